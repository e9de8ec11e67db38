"""Notices of changed objects to every session that has read them, except the one that made the change.

Notices are not stored: they are derived from the journal, so they can be read from any sequence, even after a restart
and for sessions that are not live. A subscription sends the same notices as they become durable: from the requested
sequence, each one once and in order. A change that a tracker found has a notice without an author; once a session
reports the change as its own (``ctxd.sessions.reconciliation``), a second notice names it, and later reads return only
the second.

Cost of a page: proportional to the objects that the session has read, and to the versions up to the end of the page,
whatever the number of sessions and of later versions.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Final

from anyio.lowlevel import checkpoint_if_cancelled

from ctxd.mounts.mapping import UNMOUNTED
from ctxd.objects.document import Document
from ctxd.objects.version_state import is_deleted
from ctxd.sessions.later_versions import later_versions
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.sessions.stored_session import shown_in
from ctxd.store.write_types import Pending, Write
from ctxd_protocol.methods.events import NoticeEvent
from ctxd_protocol.session_types import Notice

HELD_MAX: Final = 1_000
"""Notices held for a subscriber until the reply to its subscription is sent; further ones are dropped."""

PAGE: Final = 1_000
"""Notices of the backlog read at a time."""

_ROWS: Final = 100
"""Rows of the journal read at a time for their authors."""

_AUTHORS_MAX: Final = 10_000
"""Authors of rows in memory for one page."""


class Subscription:
    """Subscription of a connection to the notices of one session. Created by ``NoticeFeeds.subscribe``.

    ``after``: the sequence up to which the backlog was read. Notices are held until ``release``. A notice is dropped
    if the connection has no room for it; the newest dropped one is sent with ``missed`` once there is room.
    """

    __slots__ = ("_contents", "_dropped", "_held", "_notify", "after", "is_confined", "live", "number")

    def __init__(
        self, number: int, live: LiveSession, after: int, notify: Callable[[str, NoticeEvent], bool], *, confined: bool
    ) -> None:
        """``notify``: see ``Caller``. ``confined``: for a sandbox, which gets one notice of each change, without its
        author."""
        self.number = number
        self.live = live
        self.after = after
        self.is_confined = confined
        self._notify = notify
        self._contents: dict[str, str | None] = {}
        self._dropped: Notice | None = None
        self._held: list[Notice] | None = []

    def take(self, notice: Notice) -> None:
        """Send or hold a ``notice`` that has just become durable; skip it if the backlog contained it."""
        if notice.seq <= self.after:
            return
        if self._held is None:
            self._deliver(notice)
        elif len(self._held) < HELD_MAX:
            self._held.append(notice)
        else:
            self._dropped = notice

    def precede(self, backlog: Sequence[Notice], after: int) -> None:
        """Hold ``backlog``, which was read up to sequence ``after``, ahead of later notices."""
        self.after = after
        if self._dropped is not None and self._dropped.seq <= after:
            self._dropped = None
        held = [*backlog, *(notice for notice in self._held or () if notice.seq > after)]
        self._held = held[:HELD_MAX]
        if len(held) > HELD_MAX and self._dropped is None:
            self._dropped = held[-1]

    def release(self) -> None:
        """Send the held notices: the client now knows the number of the subscription."""
        held, self._held = self._held or (), None
        dropped, self._dropped = self._dropped, None
        for notice in held:
            self._deliver(notice)
        self._dropped = dropped or self._dropped
        self.catch_up()

    def catch_up(self) -> None:
        """Send the newest dropped notice with ``missed``: the connection has room again."""
        if self._held is None and self._dropped is not None:
            self._send(self._dropped)

    def discard(self) -> None:
        """Send nothing more."""
        self._held = []
        self._dropped = None

    def _deliver(self, notice: Notice) -> None:
        if self.is_confined:
            if notice.change == "updated" and self._contents.get(notice.object) == notice.content_hash:
                return
            self._contents[notice.object] = notice.content_hash
        self._send(notice)

    def _send(self, notice: Notice) -> None:
        event = NoticeEvent(subscription=self.number, notice=notice, missed=self._dropped is not None)
        self._dropped = None if self._notify("events.notice", event) else notice


class _Readers:
    """The objects that each subscribed session has read, with the sequence of the first read, and the inverse."""

    def __init__(self) -> None:
        self._by_session: dict[str, dict[str, int]] = {}
        self._by_object: dict[str, dict[str, None]] = {}

    def follows(self, session: str) -> bool:
        return session in self._by_session

    def begin(self, live: LiveSession) -> None:
        self._by_session[live.session] = {}
        for id in live.state.files(live.state.read):
            self.note(live.session, id, live.seqs[live.state.read[id]])

    def note(self, session: str, id: str, seq: int) -> None:
        self._by_session[session].setdefault(id, seq)
        self._by_object.setdefault(id, {})[session] = None

    def end(self, session: str) -> None:
        for id in self._by_session.pop(session, {}):
            self._unlink(session, id)

    def forget_after(self, session: str, seq: int) -> None:
        """Remove the reads of ``session`` after ``seq``, whose writes were lost."""
        read = self._by_session[session]
        for id in [id for id, at in read.items() if at > seq]:
            del read[id]
            self._unlink(session, id)

    def of(self, id: str, seq: int, by: str | None) -> list[str]:
        """Return the sessions other than ``by`` that read ``id`` before ``seq``."""
        return [s for s in self._by_object.get(id, ()) if s != by and self._by_session[s][id] < seq]

    def _unlink(self, session: str, id: str) -> None:
        sessions = self._by_object[id]
        del sessions[session]
        if not sessions:
            del self._by_object[id]


class NoticeFeeds:
    """Reads of notices, and subscriptions to them, for the sessions of one store."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._readers = _Readers()
        self._subscriptions: dict[str, list[Subscription]] = {}
        self._listens = False
        self._numbers = count(1)
        self._store.on_lost(self._note_lost)

    async def since(self, session: str, after: int, limit: int, *, confined: bool) -> tuple[list[Notice], int]:
        """Return the durable notices to ``session`` after sequence ``after``, in order, and the sequence for the next
        page.

        ``confined``: for a sandbox, only of versions that it may see, without their authors.

        A page has about ``limit`` notices: those of one write stay together. A page with fewer is the last.
        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        live = await self._sessions.live(session)
        upto = self._head_seq()
        notices: list[Notice] = []
        authors: dict[int, str | None] = {}
        repeats: dict[str, int] = {}
        floors = _floors(live, after, upto)
        async with aclosing(later_versions(self._store, floors, upto)) as versions:
            async for stored, successor in versions:
                if len(notices) >= limit and stored.tx > notices[-1].seq:
                    return notices, notices[-1].seq
                is_repeat = repeats.pop(stored.document.id, None) == stored.tx
                by, claimed_by = await self._author(stored.tx, authors), None
                if successor is not None and successor.document.content_hash == stored.document.content_hash:
                    repeats[stored.document.id] = successor.tx
                    claimed_by = await self._author(successor.tx, authors)
                if confined:
                    # Without authors, a change has one notice, and none if the session itself made it.
                    if is_repeat or claimed_by == session:
                        continue
                    if await self._sessions.visibility.shown(live, stored) is None:
                        continue
                elif by is None and claimed_by is not None:
                    # Its author has reported it since: the notice of that version replaces this one.
                    continue
                # The session's own changes are left out.
                if by != session:
                    author = None if confined else by
                    notices.append(_notice(live, stored.document, stored.tx, stored.valid_time, author))
        return notices, max(after, upto)

    async def _author(self, seq: int, known: dict[int, str | None]) -> str | None:
        if seq not in known:
            if len(known) > _AUTHORS_MAX:
                known.clear()
            page = await self._store.changes(after=seq - 1, limit=_ROWS)
            known.update((change.seq, change.session) for change in page)
        return known[seq]

    async def subscribe(
        self, session: str, after: int | None, notify: Callable[[str, NoticeEvent], bool], *, confined: bool
    ) -> Subscription:
        """Subscribe to the notices to ``session`` after sequence ``after`` (None: now), sent with ``notify`` in order.

        The backlog is held when this returns; call ``release`` once the client knows the subscription's number, and
        ``unsubscribe`` in the end. Raises: as ``since``. Cancel: safe; nothing is left subscribed.
        """
        live = await self._sessions.live(session)
        start = self._head_seq() if after is None else after
        if not self._listens:
            # Registered by the first subscription: most daemons have none, and every write pays for the callback.
            self._listens = True
            self._store.on_durable(self._note_durable, types=("file", "segment"))
        subscription = Subscription(next(self._numbers), live, start, notify, confined=confined)
        if not self._readers.follows(session):
            self._readers.begin(live)
        self._subscriptions.setdefault(session, []).append(subscription)
        live.watched += 1
        try:
            subscription.precede(*await self._backlog(session, start, confined=confined))
            # A read in a thread ends normally even if the call is cancelled meanwhile.
            await checkpoint_if_cancelled()
        except BaseException:
            self.unsubscribe(subscription)
            raise
        return subscription

    async def _backlog(self, session: str, after: int, *, confined: bool) -> tuple[list[Notice], int]:
        """Return the first ``HELD_MAX`` notices after ``after``, plus the newest if there are more; and the sequence
        to continue from."""
        backlog: list[Notice] = []
        head = self._head_seq()
        while after < head:
            page, after = await self.since(session, after, PAGE, confined=confined)
            backlog = [*backlog[:HELD_MAX], *page] if page else backlog
            del backlog[HELD_MAX:-1]
        return backlog, after

    def unsubscribe(self, subscription: Subscription) -> None:
        """Send nothing more to ``subscription``."""
        subscription.discard()
        session = subscription.live.session
        subscription.live.watched -= 1
        others = self._subscriptions[session]
        others.remove(subscription)
        if not others:
            del self._subscriptions[session]
            self._readers.end(session)

    def _note_durable(self, writes: Sequence[tuple[Write, Pending]]) -> None:
        if not self._subscriptions:
            return
        for write, pending in writes:
            for document in write.puts:
                if document.type == "file" and document.id not in pending.behind:
                    self._notify(write, pending, document)
                elif document.type == "segment" and write.session is not None and self._readers.follows(write.session):
                    live = self._live(write.session)
                    for id in live.state.files(shown_in(document.payload)):
                        self._readers.note(write.session, id, pending.seq)

    def _notify(self, write: Write, pending: Pending, document: Document) -> None:
        valid_time = write.valid_times.get(document.id, pending.vt)
        for session in self._readers.of(document.id, pending.seq, write.session):
            for subscription in tuple(self._subscriptions[session]):
                live = self._live(session)
                if not subscription.is_confined:
                    subscription.take(_notice(live, document, pending.seq, valid_time, write.session))
                elif document.id in write.valid_times:
                    # A sandbox may not see imported history: see ``Visibility``.
                    continue
                elif document.source is not None and live.mounts.display(document.source) != UNMOUNTED:
                    # Captured while the sandbox is registered: its mounts and user limit every read.
                    subscription.take(_notice(live, document, pending.seq, valid_time, None))

    def _live(self, session: str) -> LiveSession:
        """Return the subscribed ``session``; if it is no longer live, the instance that was subscribed first."""
        return self._sessions.peek(session) or self._subscriptions[session][0].live

    def _note_lost(self, sessions: frozenset[str]) -> None:
        durable = self._head_seq()
        for session in sessions:
            if self._readers.follows(session):
                self._readers.forget_after(session, durable)

    def _head_seq(self) -> int:
        receipt = self._store.head()
        return 0 if receipt is None else receipt.seq


def _notice(live: LiveSession, document: Document, seq: int, vt: int, by: str | None) -> Notice:
    deleted = is_deleted(document)
    return Notice(
        seq=seq,
        session=live.session,
        object=document.id,
        path=None if document.source is None else live.mounts.display(document.source),
        change="deleted" if deleted else "updated",
        by_session=by,
        content_hash=None if deleted else document.content_hash,
        valid_time=vt,
    )


def _floors(live: LiveSession, after: int, upto: int) -> dict[str, int]:
    """Return the files that ``live`` had read before ``upto``, each with the sequence after which it is notified."""
    if after >= upto:
        return {}
    return {
        id: max(after, seq)
        for id, number in live.state.read.items()
        if (seq := live.seqs[number]) < upto and live.state.is_file(id)
    }
