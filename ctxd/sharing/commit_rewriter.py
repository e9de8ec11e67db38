"""Commit rewriting: turns the commits of one journal into commits of another, with their ids.

Pure. A commit keeps its id, which people, tags and trailers refer to, unless another commit has it here: it then gets
the longer id that it would have got here, and its children refer to that one.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.commit_document import REVISION, STORED_NAMES, Fields, commit_hash, commit_id, entity_id, ids_of
from ctxd.objects.document import Document, Stored, renamed
from ctxd.objects.version_state import is_purged, is_reclaimed

_LASTING: Final = tuple(STORED_NAMES.get(name, name) for name in ("at", "principal", "session", "format", "checkpoint"))
"""Members of a commit's payload that are the same on all hosts."""

DELTA_TOKENS_AHEAD: Final = 4096
"""Maximum tokens of a delta that an import prefetches in a batch."""

_MUTABLE: Final = ("summary", "tags")
_PARENT: Final = STORED_NAMES["parent"]


class SourceCommit(NamedTuple):
    """The newest version of a commit, and the journal sequence of its creation."""

    stored: Stored
    made: int


class CommitRewriter:
    """The commits of an import in the form that they get here."""

    def __init__(self, commits: Sequence[Stored], here: Mapping[str, Stored | None]) -> None:
        """``here``: the newest versions of the entities of ``commits``, and of those in ``ids_instead``.

        Raises: CtxdError internal_error if no id is left for one; corrupt.
        """
        self._here = here
        self._renamed = {stored.document.id: self._free_id(stored) for stored in commits if self._is_taken(stored)}

    def id(self, entity: str) -> str:
        """Return the id of the commit ``entity`` here."""
        return self._renamed.get(entity, entity)

    def is_wanted(self, stored: Stored) -> bool:
        """True if the commit ``stored`` is not here, or was changed or purged since it was copied."""
        here = self._here.get(self.id(stored.document.id))
        if here is None:
            return True
        if is_purged(here.document) != is_purged(stored.document):
            return is_purged(stored.document) or is_reclaimed(here.document)
        return _age(stored) > _age(here) and any(
            here.document.payload.get(name) != stored.document.payload.get(name) for name in _MUTABLE
        )

    def rewritten(self, stored: Stored) -> Document:
        """Return the commit ``stored`` with the id and the parent that it has here, without its delta."""
        document, payload = stored.document, dict(stored.document.payload)
        if _PARENT in payload:
            payload[_PARENT] = commit_id(self.id(entity_id(payload[_PARENT])))
        hashed = document.content_hash if is_purged(document) else commit_hash(payload, stored.content_ref)
        made = msgspec.structs.replace(document, payload=payload, content_hash=hashed)
        return renamed(made, self.id(document.id))

    def _is_taken(self, stored: Stored) -> bool:
        here = self._here.get(stored.document.id)
        return here is not None and not is_one_commit(here, stored)

    def _free_id(self, stored: Stored) -> str:
        for id in ids_instead(stored):
            here = self._here.get(id)
            if here is None or is_one_commit(here, stored):
                return id
        message = f"every id of {stored.document.id} is another commit's here"
        raise CtxdError("internal_error", message, outcome="not_applied")


def _age(stored: Stored) -> tuple[int, int]:
    # Commits that an earlier version of this program changed have no count, only the time by their host's clock.
    return stored.document.payload.get(REVISION, 0), stored.valid_time


def read_commit(stored: Stored) -> Fields:
    """Return the fields of the commit ``stored``. Raises: CtxdError corrupt."""
    try:
        return msgspec.convert(stored.document.payload, Fields)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"{stored.document.id} is damaged: {error}") from error


def is_large(stored: Stored) -> bool:
    """True if ``stored`` is a commit whose delta an import fetches alone."""
    return stored.document.type == "commit" and read_commit(stored).token_count > DELTA_TOKENS_AHEAD


def is_one_commit(here: Stored, there: Stored) -> bool:
    """True if two versions are of the same commit, which may be purged on one host."""
    if any(here.document.payload.get(name) != there.document.payload.get(name) for name in _LASTING):
        return False
    return is_purged(here.document) or is_purged(there.document) or here.content_ref == there.content_ref


def ids_instead(stored: Stored) -> list[str]:
    """Return the alternative entity ids of the commit ``stored``, for when its own is taken, best first."""
    ids = (entity_id(id) for id in ids_of(read_commit(stored), stored.content_ref or ""))
    return [id for id in ids if id != stored.document.id]
