"""Health of the store: whether it accepts writes and reads, and if not, why. Pure.

Loss and damage are found elsewhere: by the head witness at the start, the scrub while the daemon runs, and ``verify``.
"""

from collections.abc import Callable
from typing import Literal

from ctxd.errors import CtxdError
from ctxd_protocol.error_codes import ErrorCode


class Health:
    """The store's state: ok, read-only for lack of space or for lost data, or failed; and whether it is draining."""

    def __init__(self, changed: Callable[[ErrorCode | None], None]) -> None:
        """``changed`` is called with an error code when writes start to be refused, with None when they resume."""
        self._changed = changed
        self.state: Literal["ok", "read_only", "failed"] = "ok"
        self.reason = ""
        self.writable = True
        """False if ``require_writable`` raises."""
        self.code: ErrorCode | None = None
        """Error code of refused writes, unless draining. ``disk_full`` lasts only until the disk has room."""
        self._hint = ""
        self._draining = False
        self._closed = False

    @property
    def lost(self) -> bool:
        """True if acknowledged data is missing."""
        return self.code == "data_loss"

    def fill(self, reason: str, hint: str = "") -> None:
        """Refuse writes: the disk or another resource is exhausted. ``hint`` is the remedy; empty: free space."""
        if self.state == "ok":
            self._hint = hint
            self.state, self.code, self.reason = "read_only", "disk_full", f"disk_full: {reason}"
            self.writable = False
            self._changed(self.code)

    def resume(self) -> None:
        """Accept writes again after ``fill``: the disk has room."""
        if self.code == "disk_full":
            self.state, self.code, self.reason = "ok", None, ""
            self.writable = not self._draining
            self._changed(None)

    def lose(self, reason: str) -> None:
        """Refuse writes: the journal lacks acknowledged rows or is damaged, so nothing may be added to it."""
        if self.state != "failed":
            is_new = not self.lost
            self.state, self.code, self.reason = "read_only", "data_loss", f"data_loss: {reason}"
            self.writable = False
            if is_new:
                self._changed(self.code)

    def fail(self, reason: str) -> None:
        """Refuse reads and writes because the disk failed: its content is unknown until a restart reads it again."""
        self.state, self.code, self.reason = "failed", "store_failed", reason
        self.writable = False

    def drain(self) -> None:
        """Refuse further writes."""
        self._draining, self.writable = True, False

    def close(self) -> None:
        """Refuse further writes and reads."""
        self._draining = self._closed = True
        self.writable = False

    def require_writable(self) -> None:
        """Raises: CtxdError ``disk_full``, ``data_loss``, ``store_failed`` or ``draining`` if writes are refused."""
        if self.code:
            wait = 1_000 if self.code != "data_loss" else None
            hint = self._hint if self.code == "disk_full" else ""
            raise CtxdError(self.code, self.reason, hint=hint, retry_after_ms=wait, outcome="not_applied")
        if self._draining:
            raise CtxdError("draining", "the daemon is stopping", retry_after_ms=1_000, outcome="not_applied")

    def require_readable(self) -> None:
        """Raises: CtxdError ``store_failed`` after a disk failure, ``draining`` after ``close``."""
        if self.state == "failed":
            raise CtxdError("store_failed", self.reason, retry_after_ms=1_000)
        if self._closed:
            raise CtxdError("draining", "the daemon is stopping", retry_after_ms=1_000)
