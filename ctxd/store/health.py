"""Health of the store: whether it takes writes and reads, and why not. Pure."""

from typing import Literal

from ctxd.errors import CtxdError
from ctxd_protocol.error_codes import ErrorCode


class Health:
    """The store's state: in order, read-only for want of space, read-only for lost data, or failed; and whether it
    drains."""

    def __init__(self) -> None:
        self.state: Literal["ok", "read_only", "failed"] = "ok"
        self.reason = ""
        self._code: ErrorCode | None = None
        self._draining = False
        self._closed = False

    @property
    def full(self) -> bool:
        """True if writes are refused until the disk has room."""
        return self._code == "disk_full"

    @property
    def lost(self) -> bool:
        """True if acknowledged data is missing."""
        return self._code == "data_loss"

    def fill(self, reason: str) -> None:
        """The disk is full."""
        if self.state == "ok":
            self.state, self._code, self.reason = "read_only", "disk_full", f"disk_full: {reason}"

    def resume(self) -> None:
        """The disk has room again."""
        if self.full:
            self.state, self._code, self.reason = "ok", None, ""

    def lose(self, reason: str) -> None:
        """The journal is behind what was acknowledged, or damaged: nothing may be written on top of it."""
        if self.state != "failed":
            self.state, self._code, self.reason = "read_only", "data_loss", f"data_loss: {reason}"

    def fail(self, reason: str) -> None:
        """The disk failed: nothing may be written or believed until it was read afresh."""
        self.state, self._code, self.reason = "failed", "store_failed", reason

    def drain(self) -> None:
        """No further writes."""
        self._draining = True

    def close(self) -> None:
        """No further reads either."""
        self._draining = self._closed = True

    def require_writable(self) -> None:
        """Raises: CtxdError ``disk_full``, ``data_loss``, ``store_failed`` or ``draining`` unless writes are taken."""
        if self._code:
            wait = 1_000 if self._code != "data_loss" else None
            raise CtxdError(self._code, self.reason, retry_after_ms=wait, outcome="not_applied")
        if self._draining:
            raise CtxdError("draining", "the daemon is going down", retry_after_ms=1_000, outcome="not_applied")

    def require_readable(self) -> None:
        """Raises: CtxdError ``store_failed`` after a failure of the disk, ``draining`` after the end."""
        if self.state == "failed":
            raise CtxdError("store_failed", self.reason, retry_after_ms=1_000)
        if self._closed:
            raise CtxdError("draining", "the daemon is going down", retry_after_ms=1_000)
