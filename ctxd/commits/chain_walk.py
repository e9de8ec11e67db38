"""The walk along a chain of commits, which uses snapshots where they exist."""

from collections.abc import Sequence
from functools import partial
from typing import Final

import msgspec

from ctxd import sqlite_file
from ctxd.commits.commit import read_fields
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import Fields, commit_id, entity_id
from ctxd.objects.document import Stored
from ctxd.objects.version_state import is_purged
from ctxd.store import commit_index
from ctxd.store.chain_snapshots import ChainSnapshot, ChainSnapshots
from ctxd.store.version_store import VersionStore

_BATCH: Final = 64
"""Commits per read."""


class Walked(msgspec.Struct, frozen=True):
    """A commit of a chain: its fields, the hash of its content, None once purged, and the content's size in bytes."""

    commit: str
    fields: Fields
    content_ref: str | None
    size: int


class ChainWalk(msgspec.Struct, frozen=True):
    """The commits from ``tip``, an entity id, back to ``stop``: ``compaction``, ``root`` or a commit. With
    ``snapshots``, existing ones replace their commits."""

    tip: str
    stop: str
    snapshots: ChainSnapshots | None

    async def run(self, store: VersionStore) -> list[Walked | ChainSnapshot]:
        """Walk the chain, a few commits per read, so that other calls can read in between. Returns: newest first.

        Raises: CtxdError ``invalid_params`` if ``stop`` is not an ancestor, ``corrupt``, ``store_failed``.
        """
        last, inside = "", None
        if self.stop not in ("compaction", "root"):
            last = entity_id(self.stop)
            ids = await store.read_index(lambda connection: commit_index.chain(connection, self.tip, last=last))
            if not ids or ids[-1] != last:
                message = f"commit {self.stop} is not an ancestor of {commit_id(self.tip)}"
                raise CtxdError("invalid_params", message, hint="commit.history has the ancestors.")
            inside = frozenset(ids)
        chain: list[Walked | ChainSnapshot] = []
        at, seen = self.tip, set[str]()
        # A damaged parent may form a cycle.
        while at and at not in seen:
            seen.add(at)
            found, at = await store.read_index(partial(self._step, at=at, last=last, inside=inside))
            seen.update(entity_id(each.commit) for each in found if isinstance(each, Walked))
            chain += found
        return chain

    def _step(
        self, connection: sqlite_file.Connection, at: str, last: str, inside: frozenset[str] | None
    ) -> tuple[list[Walked | ChainSnapshot], str]:
        """The consecutive snapshots from ``at`` on, or the commits up to the next snapshot; and the next position."""
        joined: list[Walked | ChainSnapshot] = []
        while len(joined) < _BATCH and (snapshot := self._found(at, inside)) is not None:
            joined.append(snapshot)
            at = snapshot.parent
        if joined:
            return joined, at
        to_boundary = self.stop == "compaction"
        rows = commit_index.chain_versions(connection, at, to_boundary=to_boundary, last=last, limit=_BATCH)
        if not rows:
            message = f"commit {commit_id(at)} is missing in the index of commits"
            raise CtxdError("corrupt", message)
        found: list[Walked | ChainSnapshot] = []
        for stored, size in rows:
            if found and self._found(stored.document.id, inside) is not None:
                return found, stored.document.id
            walked = _walked(stored, size)
            found.append(walked)
            ends = stored.document.id == last or (to_boundary and walked.fields.is_boundary)
            at = "" if ends or not walked.fields.parent else entity_id(walked.fields.parent)
        return found, at

    def _found(self, newest: str, inside: frozenset[str] | None) -> ChainSnapshot | None:
        if self.snapshots is None:
            return None
        found = self.snapshots.find(newest, across=self.stop != "compaction")
        if found is None or (inside is not None and found.parent not in inside):
            return None
        return found


def _walked(stored: Stored, size: int) -> Walked:
    ref = None if is_purged(stored.document) else stored.content_ref
    return Walked(commit_id(stored.document.id), read_fields(stored), ref, size)


def included(chain: Sequence[Walked | ChainSnapshot]) -> list[Walked | ChainSnapshot]:
    """The elements of ``chain``, which is newest first, whose contents make up the context, oldest first.

    A compaction or a snapshot commit repeats the content before it, so it counts only as the first element.
    """
    rest = (each for each in reversed(chain[:-1]) if isinstance(each, ChainSnapshot) or not each.fields.is_boundary)
    return [chain[-1], *rest]
