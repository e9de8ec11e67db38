"""Ownership of sessions: adds matches to each batch of rows, which fail unless this host owns the batch's sessions, and
leaves out fenced rows.

The guard keeps the owners as they will be after the newest submitted batch. A batch that finds other owners is aborted,
and its owners are read again. Guarantee: a row of a session that another host owns is never projected;
``ownership_loss`` fences such rows.

A fence is a document of the journal, so it survives a restart, a backup and a rebuild, and a comparison with the node
knows which rows the node lacks. A claim first writes a fence without rows, so that the local copy of the session takes
no writes until the session is imported.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import anyio
import msgspec

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.backends.xtdb.messages import Op
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored, decode_document, document_without_source
from ctxd.objects.generated_ids import NUMBER_DIGITS, session_of
from ctxd.projection import owner_record
from ctxd.projection.node_connection import Node
from ctxd.projection.owner_record import Owner
from ctxd.projection.projected_rows import ProjectedRow
from ctxd_protocol.ids import session_object_id

FENCES: Final = "fence:"
"""Prefix of the ids of fences."""
_TYPE: Final = "fence"

NO_ROW: Final = 2**53 - 1
"""``Fence.first`` of a claim, which fences no row."""


class Fence(msgspec.Struct, frozen=True, kw_only=True):
    """A range of rows of ``session``, from row ``first`` up to the fence's own, that are not part of the session.
    ``NO_ROW``: no rows; this host claims the session, and owns it once a later version of its head is not entering.

    ``branch``: the local session that keeps the rows, ``None`` if there are none. ``host``: the owner that was found;
    ``token``: its ownership token, for a claim the new one.
    """

    session: str
    first: int
    branch: str | None
    host: str
    token: int


def fence_document(fence: Fence) -> Document:
    """Return the document of ``fence``. One change of owner may need several, for late rows."""
    id = f"{FENCES}{fence.session}#{fence.token:0{NUMBER_DIGITS}d}.{fence.first}"
    return document_without_source(id, _TYPE, msgspec.to_builtins(fence))


def read_fence(stored: Stored) -> Fence:
    """Return the fence in a version. Raises: CtxdError corrupt if it is another document."""
    try:
        return msgspec.convert(stored.document.payload, Fence)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the fence {stored.document.id} cannot be read") from error


class Fences:
    """The fences of one journal, each with the sequence of its own row."""

    def __init__(self, found: Iterable[Stored] = ()) -> None:
        """Raises: CtxdError corrupt if ``found`` has another document."""
        self._by_session: dict[str, list[tuple[Fence, int]]] = {}
        self._any_row = False
        self.take(found)

    def __bool__(self) -> bool:
        """True if a row is fenced."""
        return self._any_row

    def take(self, found: Iterable[Stored]) -> None:
        """Add the fences in ``found``. Raises: CtxdError corrupt."""
        for stored in found:
            self.add(read_fence(stored), stored.tx)

    def add(self, fence: Fence, seq: int) -> None:
        """Add ``fence``, written as row ``seq``."""
        self._by_session.setdefault(fence.session, []).append((fence, seq))
        self._any_row = self._any_row or fence.first != NO_ROW

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


# --- the guard ---

Heads = Callable[[Iterable[str]], Awaitable[Mapping[str, Stored | None]]]
"""Returns the newest accepted versions of entities."""


class OwnershipLost(Exception):
    """Other hosts own ``sessions``, by id, and rows of these from ``first`` on are not projected yet."""

    def __init__(self, sessions: Mapping[str, Owner], first: int) -> None:
        super().__init__(f"sessions are others': {', '.join(sessions)}")
        self.sessions = sessions
        self.first = first


class Guarded(msgspec.Struct, frozen=True):
    """A batch without its fenced rows, and the operations that bind it to the owners of its sessions.

    ``owners``: those before and after the batch, by session.
    """

    pieces: list[ProjectedRow]
    ops: list[Op]
    owners: dict[str, tuple[Owner | None, Owner]] = {}


class Ownership:
    """Owners of the sessions of one journal. Call ``begin`` before each run of batches."""

    def __init__(self, heads: Heads | None) -> None:
        """``heads`` ``None``: a single host without owners; fenced rows are still left out."""
        self.writer = ""
        self.fences = Fences()
        self._heads = heads
        self._known: dict[str, Owner | None] = {}
        self._held: Counter[str] = Counter()
        self._settler: Callable[[OwnershipLost], Awaitable[None]] | None = None
        self._is_open = False
        self._opened: anyio.Event | None = None
        self.begun = 0
        """How often all owners were forgotten."""

    def open(self, fences: Iterable[Stored], settler: Callable[[OwnershipLost], Awaitable[None]]) -> None:
        """Start passing batches, now that the ``fences`` of the journal are known. ``settler`` is awaited when sessions
        are lost. Raises: CtxdError corrupt."""
        self.fences.take(fences)
        self._settler = settler
        self._is_open = True
        if self._opened is not None:
            self._opened.set()

    @property
    def is_shared(self) -> bool:
        """True if other hosts may have sessions on the log."""
        return self._heads is not None

    @classmethod
    def of_one(cls, fences: Fences) -> "Ownership":
        """Return the guard of a single host, whose journal may have ``fences`` from before."""
        made = cls(None)
        made.fences, made._is_open = fences, True
        return made

    def begin(self, writer: str) -> None:
        """Forget all owners: submitted batches may have failed."""
        self.writer = writer
        self._known.clear()
        self.begun += 1
        self._opened = self._opened or anyio.Event()
        if self._is_open:
            self._opened.set()

    @contextmanager
    def holding(self, session: str) -> Iterator[None]:
        """Context manager: do not release ``session`` inside, because it is about to be resumed."""
        self._held[session] += 1
        try:
            yield
        finally:
            self._held[session] -= 1
            self._held += Counter()

    def believed(self, session: str) -> Owner | None:
        """Return the owner of ``session`` after the newest submitted batch; ``None`` if no batch had the session."""
        return self._known.get(session)

    async def settle(self, lost: OwnershipLost) -> None:
        """Return once the rows of the sessions in ``lost`` are fenced."""
        assert self._settler is not None, "no session is lost before the guard is open"
        await self._settler(lost)

    def is_held(self, session: str) -> bool:
        """True if ``session`` is about to be resumed."""
        return session in self._held

    def learn(self, session: str, owner: Owner) -> None:
        """Record that ``owner`` was put outside a batch."""
        self._known[session] = owner

    async def guard(self, node: Node, batch: Sequence[ProjectedRow]) -> Guarded:
        """Return ``batch`` in the form to project; later batches assume its outcome, unless ``undo`` is called.

        Raises: OwnershipLost if it has rows of sessions that other hosts own; XtdbFailure; ValueError for an owner's
        document that this version does not write. Cancel: safe.
        """
        if self._opened is not None:
            await self._opened.wait()
        pieces = [msgspec.structs.replace(piece, versions=self.fences.kept(piece.versions)) for piece in batch]
        if self._heads is None:
            return Guarded(pieces, [])
        owned = {piece.session: None for piece in pieces if piece.session is not None and self._touches(piece)}
        sessions = [session for session in owned if session is not None]
        await self._look_up(node, [session for session in sessions if session not in self._known])
        rest = await self._resting(pieces)
        # An owner may be learned during any await, so the owners are compared after the last one.
        lost = {
            session: owner
            for session in sessions
            if (owner := self._known[session]) is not None and owner.writer != self.writer
        }
        if lost:
            raise OwnershipLost(lost, batch[0].seq)
        guarded = Guarded(pieces, [])
        for session in sessions:
            before = self._known[session]
            after = self._next(before, rest.get(session))
            guarded.ops.extend(owner_record.change(session, before, after))
            guarded.owners[session] = before, after
            self._known[session] = after
        return guarded

    def undo(self, guarded: Guarded) -> None:
        """Assume that ``guarded`` has no outcome: it was not submitted."""
        for session, (before, after) in guarded.owners.items():
            # An owner learned meanwhile is newer.
            if self._known.get(session) is after:
                self._known[session] = before

    def _next(self, owner: Owner | None, rests: bool | None) -> Owner:
        """Return ``owner`` after a batch with rows of its session. ``rests``: True if the head in it is not active,
        ``None`` without a head."""
        if owner is None:
            after = owner_record.first(self.writer)
        else:
            after = owner_record.resumed(owner) if owner.released else owner
        if rests is not None:
            after = owner_record.adopted(after)
        return owner_record.released(after) if rests else after

    async def _look_up(self, node: Node, sessions: Sequence[str]) -> None:
        if not sessions:
            return
        found = await node.entities(map(owner_record.owner_id, sessions), valid_time=FIXED_VALID_TIME)
        for session in sessions:
            # An owner learned meanwhile is newer than this response.
            self._known.setdefault(session, owner_record.from_doc(found.get(owner_record.owner_id(session))))

    async def _resting(self, pieces: Sequence[ProjectedRow]) -> dict[str, bool]:
        """Return the sessions of which ``pieces`` have a complete head; True for those that may be released."""
        states: dict[str, tuple[bool, int]] = {}
        for piece in pieces:
            for version in piece.versions:
                session = session_of(version.id)
                if session is not None and version.id == session_object_id(session) and version.body is not None:
                    head = decode_document(version.id, version.body).payload
                    if not head.get("entering"):
                        at_rest = head["settings"].get("state", "active") != "active"
                        states[session] = (at_rest, version.tx)
        assert self._heads is not None, "a host of several knows its heads"
        newest = await self._heads(
            [str(session_object_id(session)) for session, (at_rest, _) in states.items() if at_rest]
        )
        rest = {}
        for session, (at_rest, tx) in states.items():
            head_now = newest.get(str(session_object_id(session)))
            # Do not release a session that was resumed since: the row of its resume follows this batch.
            is_newest = head_now is not None and head_now.tx == tx
            rest[session] = at_rest and is_newest and session not in self._held
        return rest

    def _touches(self, piece: ProjectedRow) -> bool:
        """True if ``piece`` writes or purges the session itself; files and tool calls have no owner."""
        ids = [id for id in piece.purged if not self.fences.skips(id, piece.seq)]
        return any(session_of(id) == piece.session for id in (*ids, *(version.id for version in piece.versions)))
