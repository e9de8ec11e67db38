"""Delivery of the events in a spool: those of each session in order, and none held up by those of another session.

Loaded only when events wait. An event that the daemon accepts later is moved to the postponed events of its session,
and later ones of the session are moved behind it. From then on, one call shows whether the daemon accepts them.
"""

import os
import time

from ctxd.hook.daemon_connection import (
    DELIVERED,
    POSTPONED,
    REFUSED,
    UNANSWERED,
    DaemonConnection,
    code_of,
    now,
)
from ctxd.hook.event_spool import UNORDERED, EventSpool

_PAUSE_S = 0.01


class SpoolDelivery:
    """A delivery of the events in ``waiting`` to the daemon at ``path``, until ``ends``."""

    def __init__(self, waiting: EventSpool, path: str, ends: float) -> None:
        self._waiting = waiting
        self._ends = ends
        self._connection = DaemonConnection(path, ends)
        self._own = ""
        self._unkept: dict[str, bytes] = {}
        self._reply = b""
        self._has_settled = False
        self._left = set[str]()  # Events that stay where they are.
        self._postponed = set[str]()  # Sessions with postponed events.
        self._awaited = set[str]()  # Those of them that have a new event.
        self._retried = set[str]()

    def deliver(self, own: str = "", unkept: dict[str, bytes] | None = None, *, retries_all: bool = False) -> bytes:
        """Deliver all waiting events, oldest first, and retry the postponed ones of sessions with new events, or of all
        sessions. Return the reply to the event ``own``, empty for none. Raises: OSError.

        ``unkept``: events for which the spool has no room. They are delivered as if they were in it, and those that the
        daemon has accepted or refused are removed. If another hook is delivering, this waits for it, so that all events
        of a session arrive in order.
        """
        self._own, self._unkept = own, {} if unkept is None else unkept
        if not self._take_over():
            return b""
        try:
            self._postponed = {*self._waiting.postponed()} - {UNORDERED}
            while self._deliver_new():
                sessions = self._waiting.postponed() if retries_all else sorted(self._awaited)
                due = [session for session in sessions if session not in self._retried]
                if not due or not all(map(self._retry, due)):
                    break
        finally:
            self._connection.close()
        return self._reply

    def retry(self) -> None:
        """Retry the postponed events of all sessions, unless another hook has or is delivering. If the time ends while
        the daemon accepts events, the next hook continues. Raises: OSError."""
        if not self._waiting.lock() or not self._waiting.is_retry_due():
            return
        self._waiting.note_retry()
        if not all(map(self._retry, self._waiting.postponed())) and self._has_settled:
            self._waiting.note_retry(continues=True)

    def _take_over(self) -> bool:
        """Begin to deliver: wait for a hook that is delivering, and connect, before the waiting events are listed, of
        which there may be thousands. Returns: False if this is impossible in time. Raises: OSError."""
        while not self._waiting.lock():
            if now() > self._ends:
                return False
            time.sleep(_PAUSE_S)
        if failure := self._connection.open():
            if failure == UNANSWERED:
                self._waiting.hold()
            return False
        self._waiting.clear()
        return True

    def _deliver_new(self) -> bool:
        """Deliver the events that are not postponed, oldest first, and postpone those that follow a postponed one of
        their session. Returns: False if the daemon or the time prevents it. Raises: OSError."""
        while names := sorted({*self._waiting.names(), *self._unkept} - self._left):
            for name in names:
                if now() >= self._ends:
                    return False
                session = self._waiting.session_of(name)
                if session in self._postponed:
                    self._postpone(name, session)
                    self._awaited.add(session)
                    continue
                try:
                    frame = self._unkept.get(name) or self._waiting.whole(name)
                except OSError:
                    self._postpone(name, UNORDERED)
                    continue
                if frame is not None and self._send(name, frame) is None:
                    return False
        return True

    def _retry(self, session: str) -> bool:
        """Deliver the postponed events of ``session``, oldest first, until the daemon postpones one again. Returns: as
        ``_deliver_new``. Raises: OSError."""
        self._retried.add(session)
        self._waiting.note_retry(session)
        for name in self._waiting.postponed_names(session):
            if now() >= self._ends:
                return False
            try:
                frame = self._waiting.whole(name)
            except OSError:
                continue
            goes_on = frame is None or self._send(name, frame)
            if goes_on is None:
                return False
            if not goes_on and session != UNORDERED:
                return True
        if self._waiting.remove_empty(session):
            self._postponed.discard(session)
            self._left -= self._unkept.keys()
        return True

    def _send(self, name: str, frame: bytes) -> bool | None:
        """Send an event, and remove or postpone it. Returns: False if the daemon accepts none of its session now, None
        if the daemon does not respond. Raises: OSError."""
        sent, reply = self._connection.call(frame)
        if sent in (DELIVERED, REFUSED):
            self._has_settled = True
            if sent == REFUSED:
                self._waiting.note_lost(code_of(reply))
            elif os.path.basename(name) == self._own:
                self._reply = reply
            if self._unkept.pop(name, None) is None:
                self._waiting.erase(name)
            return True
        if sent == POSTPONED:
            # An error of another kind may be lasting, and later events of the session free of it.
            is_of_session = code_of(reply).startswith("session_")
            session = self._waiting.session_of(name) if is_of_session else UNORDERED
            self._postpone(name, session)
            self._retried.add(session)
            return not is_of_session
        if sent == UNANSWERED:
            self._waiting.hold()
        return None

    def _postpone(self, name: str, session: str) -> None:
        if session != UNORDERED:
            self._postponed.add(session)
        if name in self._unkept:
            self._left.add(name)
            return
        try:
            self._waiting.postpone(name, session)
        except OSError:
            self._left.add(name)
