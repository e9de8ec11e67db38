"""Fences: rows of a session that were written here after another host had claimed it.

Fenced rows stay in the journal and are not projected. A fence is a document of the same journal, so it survives a
restart, a backup and a rebuild, and a comparison with the node knows which rows the node lacks. A claim writes a fence
without rows before it takes place: until the session is imported, what is here of it takes no writes.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from ctxd.backends.port import Version
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.identity import NUMBER_DIGITS, session_of

PREFIX: Final = "fence:"
_TYPE: Final = "fence"

NO_ROW: Final = 2**53 - 1
"""``Fence.first`` of a claim, which fences no row."""


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A range of rows of ``session``, from row ``first`` up to the fence's own, that are not part of the session;
    ``NO_ROW``: none, but this host claims the session, and has it once a later row of its head is not entering.

    ``branch``: the session that keeps them here, ``None`` if there was nothing to keep. ``host``: the owner that was
    found; ``token``: its change of hands, of a claim the one that it makes.
    """

    session: str
    first: int
    branch: str | None
    host: str
    token: int


def document_of(fence: Fence) -> Document:
    """Return the document that keeps ``fence``. Rows that came late to one owner may need several."""
    id = f"{PREFIX}{fence.session}#{fence.token:0{NUMBER_DIGITS}d}.{fence.first}"
    payload = msgspec.to_builtins(fence)
    return Document(
        id=id,
        type=_TYPE,
        identity_hash=identity_hash(_TYPE, None, id),
        content_hash=content_hash(payload, None),
        payload=payload,
    )


def read_fence(stored: Stored) -> Fence:
    """Return the fence that a version holds. Raises: CtxdError corrupt if it holds another document."""
    try:
        return msgspec.convert(stored.document.payload, Fence)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the fence {stored.document.id} cannot be read") from error


class Fences:
    """The fences of one journal, each with the sequence of its own row."""

    def __init__(self) -> None:
        self._by_session: dict[str, list[tuple[Fence, int]]] = {}

    def __bool__(self) -> bool:
        return any(fence.first != NO_ROW for some in self._by_session.values() for fence, _ in some)

    def add(self, fence: Fence, seq: int) -> None:
        """Add ``fence``, written as row ``seq``."""
        self._by_session.setdefault(fence.session, []).append((fence, seq))

    def take(self, found: Iterable[Stored]) -> None:
        """Add the fences in ``found``. Raises: CtxdError corrupt."""
        for stored in found:
            self.add(read_fence(stored), stored.tx)

    def newest(self, session: str) -> tuple[Fence, int] | None:
        """Return the last fence of ``session`` and its row; ``None`` without one."""
        return max(self._by_session.get(session, ()), key=lambda each: each[1], default=None)

    def count(self, session: str) -> int:
        """Return how many fences of rows ``session`` has."""
        return sum(fence.first != NO_ROW for fence, _ in self._by_session.get(session, ()))

    @property
    def sessions(self) -> tuple[str, ...]:
        """The sessions with a fence."""
        return tuple(self._by_session)

    def skips(self, id: str, seq: int) -> bool:
        """True if the version of ``id`` that row ``seq`` wrote is fenced."""
        if not self._by_session or (session := session_of(id)) is None:
            return False
        return any(fence.first <= seq < until for fence, until in self._by_session.get(session, ()))

    def kept(self, versions: Iterable[Version]) -> tuple[Version, ...]:
        """Return those of ``versions`` that are not fenced."""
        return tuple(version for version in versions if not self.skips(version.id, version.tx))
