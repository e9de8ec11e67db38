"""The position of a reader of notices."""

from ctxd_protocol.methods.sessions import NoticesResult
from ctxd_protocol.session_types import Notice


class NoticeCursor:
    """Position of a reader of notices: the newest sequence seen, and the notices seen at it. Pure.

    Several notices may share one journal sequence, since one write can change several files. The cursor remembers the
    notices seen at the newest sequence, so that reading it again neither repeats nor misses one.
    """

    def __init__(self, after: int) -> None:
        self.after = after
        self._seen: set[tuple[str, str]] = set()

    @property
    def reread_from(self) -> int:
        """The ``after`` to read from so that no notice is missed; ``fresh`` filters the repeats."""
        return self.after - 1 if self._seen else self.after

    def fresh(self, notice: Notice) -> bool:
        """True if ``notice`` is new; it counts as seen from now on."""
        mark = (notice.object, notice.change)
        if notice.seq < self.after or (notice.seq == self.after and (not self._seen or mark in self._seen)):
            return False
        if notice.seq > self.after:
            self.after, self._seen = notice.seq, set()
        self._seen.add(mark)
        return True

    def more_behind(self, page: NoticesResult, limit: int) -> bool:
        """True if the journal may have more after ``page``. A full page with no newer sequence is skipped."""
        if len(page.notices) < limit:
            return False
        if page.notices[-1].seq <= self.after:
            self.after, self._seen = max(self.after, page.next_after), set()
        return True
