"""The walk along a chain of commits, which uses snapshots where they exist, and the choice of new snapshots."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Final

import msgspec

from ctxd import sqlite_file
from ctxd.commits.commit import read_fields
from ctxd.errors import CtxdError
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.formats.translation import Delta, Materialization
from ctxd.objects.commit_document import Fields, commit_id, entity_id
from ctxd.objects.document import Content, Stored, encode_content
from ctxd.objects.kinds import is_purged
from ctxd.store import commit_index
from ctxd.store.chain_snapshots import ChainSnapshot, ChainSnapshots, SnapshotPart
from ctxd.store.version_store import VersionStore

SNAPSHOT_COMMITS_MIN: Final = 64
"""Minimum number of consecutive commits without a snapshot for which a new one is made."""

SNAPSHOT_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of the deltas of one snapshot, all of which are in memory while it is made."""

_LONG_BYTES: Final = 256 * 1024
"""Deltas of more bytes stay out of snapshots: compared to their content, reading the commit costs little."""

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
                message = (
                    f"commit {self.stop} is not an ancestor of {commit_id(self.tip)}: {len(ids)} commits were followed"
                )
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


def plan(chain: Sequence[Walked | ChainSnapshot]) -> list[list[Walked | ChainSnapshot]]:
    """The parts of ``chain``, which is newest first, that are worth a new snapshot; each part is oldest first. A new
    snapshot absorbs older ones that have no more commits than it, so a chain has few snapshots, and each commit is
    written a logarithmic number of times."""
    found: list[list[Walked | ChainSnapshot]] = []
    run: list[Walked | ChainSnapshot] = []
    size = commits = 0
    for each in chain:
        fits = _is_joinable(each) and size + _size(each) <= SNAPSHOT_BYTES_MAX
        if isinstance(each, ChainSnapshot):
            fits = fits and SNAPSHOT_COMMITS_MIN <= commits >= each.commits
        if not fits:
            found.append(run)
            run, size, commits = [], 0, 0
            if isinstance(each, ChainSnapshot) or not _is_joinable(each):
                continue
        run.append(each)
        size += _size(each)
        commits += each.commits if isinstance(each, ChainSnapshot) else 1
    found.append(run)
    return [whole for run in found if _is_worth(whole := _trimmed(run))]


def _is_joinable(each: Walked | ChainSnapshot) -> bool:
    if isinstance(each, ChainSnapshot) or each.fields.is_boundary:
        return True
    return each.content_ref is not None and each.fields.format in DELTA_FORMATS and each.size <= _LONG_BYTES


def _size(each: Walked | ChainSnapshot) -> int:
    return 0 if isinstance(each, Walked) and each.fields.is_boundary else each.size


def _trimmed(run: Sequence[Walked | ChainSnapshot]) -> list[Walked | ChainSnapshot]:
    """``run``, oldest first, without leading boundaries: a boundary may be the first commit of a context."""
    oldest_first = list(reversed(run))
    while oldest_first and isinstance(first := oldest_first[0], Walked) and first.fields.is_boundary:
        del oldest_first[0]
    return oldest_first


def _is_worth(run: Sequence[Walked | ChainSnapshot]) -> bool:
    return sum(isinstance(each, Walked) for each in run) >= SNAPSHOT_COMMITS_MIN


def keep_snapshot(
    snapshots: ChainSnapshots, part: Sequence[Walked | ChainSnapshot], contents: Mapping[str, Content], drops: int
) -> None:
    """Join ``part``, oldest first, and keep it as one snapshot, which replaces those in ``part``; blocks.

    ``drops``: as ``ChainSnapshots.keep``. Raises: SnapshotGone, UnreadableDelta, OSError.
    """
    deltas, reader = list[Delta](), SnapshotReader(snapshots)
    for each in part:
        if isinstance(each, ChainSnapshot):
            deltas += reader.deltas(each)
        elif not each.fields.is_boundary:
            read = partial(encode_content, contents[each.content_ref or ""])
            deltas.append(Delta(each.fields.format, read, each.fields.message_count, each.fields.token_count))
    joined, pieces = list[SnapshotPart](), list[bytes]()
    for format, run in groupby(deltas, key=lambda delta: delta.format):
        made = Materialization(list(run), format)
        content = b"".join(made.chunks())
        pieces.append(content)
        joined.append(SnapshotPart(format, made.messages, made.tokens, len(content)))
    first, last = part[0], part[-1]
    parent = (
        first.parent if isinstance(first, ChainSnapshot) else first.fields.parent and entity_id(first.fields.parent)
    )
    snapshot = ChainSnapshot(
        newest=last.newest if isinstance(last, ChainSnapshot) else entity_id(last.commit),
        oldest=first.oldest if isinstance(first, ChainSnapshot) else entity_id(first.commit),
        parent=parent,
        commits=sum(each.commits if isinstance(each, ChainSnapshot) else 1 for each in part),
        boundaries=sum(
            each.boundaries if isinstance(each, ChainSnapshot) else each.fields.is_boundary for each in part
        ),
        messages=sum(each.messages if isinstance(each, ChainSnapshot) else each.fields.message_count for each in part),
        parts=tuple(joined),
    )
    snapshots.keep(snapshot, b"".join(pieces), drops)
    for each in part:
        if isinstance(each, ChainSnapshot):
            snapshots.discard(each)


class SnapshotReader:
    """Contents of snapshots, for a thread that reads them in order: keeps the last one in memory."""

    def __init__(self, snapshots: ChainSnapshots) -> None:
        self._snapshots = snapshots
        self._held: tuple[ChainSnapshot, bytes] | None = None

    def deltas(self, snapshot: ChainSnapshot) -> list[Delta]:
        """The parts of ``snapshot`` as deltas. Their reads block, and raise SnapshotGone."""
        deltas, start = [], 0
        for part in snapshot.parts:
            read = partial(self._read, snapshot, start, start + part.size)
            deltas.append(Delta(part.format, read, part.messages, part.tokens))
            start += part.size
        return deltas

    def _read(self, snapshot: ChainSnapshot, start: int, end: int) -> bytes:
        if self._held is None or self._held[0] is not snapshot:
            self._held = None
            self._held = snapshot, self._snapshots.read(snapshot)
        content = self._held[1]
        return content if end - start == len(content) else content[start:end]
