"""How far a reader of notices has come. Pure; both clients follow notices by it.

Several notices may share one journal sequence, since one write can change several files: what was seen at the newest
sequence is remembered, so that reading that sequence again repeats nothing and misses nothing.
"""

from ctxd_protocol.methods.sessions import NoticesResult
from ctxd_protocol.sessions import Notice


class Cursor:
    """How far a reader of notices has come: the newest sequence seen, and what was seen at it. Pure."""

    def __init__(self, after: int) -> None:
        self.after = after
        self._seen: set[tuple[str, str]] = set()

    @property
    def reread_from(self) -> int:
        """The ``after`` to ask with so that nothing is missed; ``fresh`` tells apart what was seen."""
        return self.after - 1 if self._seen else self.after

    def fresh(self, notice: Notice) -> bool:
        """Whether ``notice`` was not seen before; it counts as seen from now on."""
        mark = (notice.object, notice.change)
        if notice.seq < self.after or (notice.seq == self.after and (not self._seen or mark in self._seen)):
            return False
        if notice.seq > self.after:
            self.after, self._seen = notice.seq, set()
        self._seen.add(mark)
        return True

    def more_behind(self, page: NoticesResult, limit: int) -> bool:
        """Whether the journal may hold more behind ``page``; one that shows nothing new is stepped over."""
        if len(page.notices) < limit:
            return False
        if page.notices[-1].seq <= self.after:
            self.after, self._seen = max(self.after, page.next_after), set()
        return True
