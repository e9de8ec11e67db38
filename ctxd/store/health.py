"""Health of the store: whether it takes writes and reads, and why not. Pure.

Loss and damage are found elsewhere: ``witness`` at the start, ``scrub`` while the daemon runs, ``verify`` on demand.
"""

from collections.abc import Callable
from typing import Literal

from ctxd.errors import CtxdError
from ctxd_protocol.error_codes import ErrorCode


class Health:
    """The store's state: in order, read-only for want of space, read-only for lost data, or failed; and whether it
    drains."""

    def __init__(self, changed: Callable[[ErrorCode | None], None]) -> None:
        """``changed`` is called with the code when writes begin to be refused, with None when they are taken again."""
        self._changed = changed
        self.state: Literal["ok", "read_only", "failed"] = "ok"
        self.reason = ""
        self.writable = True
        """False if ``require_writable`` raises."""
        self.code: ErrorCode | None = None
        """Code with which writes are refused, unless it drains: ``disk_full`` only until the disk has room."""
        self._hint = ""
        self._draining = False
        self._closed = False

    @property
    def lost(self) -> bool:
        """True if acknowledged data is missing."""
        return self.code == "data_loss"

    def fill(self, reason: str, hint: str = "") -> None:
        """The disk is full, or the system has no room of another kind, which ``hint`` makes; empty: free space."""
        if self.state == "ok":
            self._hint = hint
            self.state, self.code, self.reason = "read_only", "disk_full", f"disk_full: {reason}"
            self.writable = False
            self._changed(self.code)

    def resume(self) -> None:
        """The disk has room again."""
        if self.code == "disk_full":
            self.state, self.code, self.reason = "ok", None, ""
            self.writable = not self._draining
            self._changed(None)

    def lose(self, reason: str) -> None:
        """The journal is behind what was acknowledged, or damaged: nothing may be written on top of it."""
        if self.state != "failed":
            is_new = not self.lost
            self.state, self.code, self.reason = "read_only", "data_loss", f"data_loss: {reason}"
            self.writable = False
            if is_new:
                self._changed(self.code)

    def fail(self, reason: str) -> None:
        """The disk failed: nothing may be written or believed until it was read afresh."""
        self.state, self.code, self.reason = "failed", "store_failed", reason
        self.writable = False

    def drain(self) -> None:
        """No further writes."""
        self._draining, self.writable = True, False

    def close(self) -> None:
        """No further reads either."""
        self._draining = self._closed = True
        self.writable = False

    def require_writable(self) -> None:
        """Raises: CtxdError ``disk_full``, ``data_loss``, ``store_failed`` or ``draining`` unless writes are taken."""
        if self.code:
            wait = 1_000 if self.code != "data_loss" else None
            hint = self._hint if self.code == "disk_full" else ""
            raise CtxdError(self.code, self.reason, hint=hint, retry_after_ms=wait, outcome="not_applied")
        if self._draining:
            raise CtxdError("draining", "the daemon is going down", retry_after_ms=1_000, outcome="not_applied")

    def require_readable(self) -> None:
        """Raises: CtxdError ``store_failed`` after a failure of the disk, ``draining`` after the end."""
        if self.state == "failed":
            raise CtxdError("store_failed", self.reason, retry_after_ms=1_000)
        if self._closed:
            raise CtxdError("draining", "the daemon is going down", retry_after_ms=1_000)
