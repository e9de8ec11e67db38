"""Sessions that moved to another host: this journal has only their beginning.

Separate: sessions need this to refuse writes, and depend on nothing else about other hosts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ctxd.errors import CtxdError


class MovedSession(msgspec.Struct, frozen=True):
    """The host that owns a session now, and the branch with the writes that came too late here, if any."""

    host: str
    branch: str | None

    def error(self, session: str) -> CtxdError:
        """Return the error for a write to ``session``."""
        kept = f"Session {self.branch} has the writes made here since then. " if self.branch else ""
        hint = f"{kept}Continue {session} on {self.host}, or pause it there and call session.resume here."
        return owned_elsewhere(session, self.host, hint=hint)


NO_MOVED_SESSIONS: Final[Mapping[str, MovedSession]] = MappingProxyType({})


def owned_elsewhere(session: str, host: str, *, hint: str = "", retry_after_ms: int | None = None) -> CtxdError:
    """Return the error for a call on ``session``, which ``host`` owns."""
    return CtxdError(
        "session_owned_elsewhere",
        f"session {session} is owned by host {host}",
        hint=hint or f"Pause it on {host}, or wait until the lease of {host} has expired.",
        retry_after_ms=retry_after_ms,
        outcome="not_applied",
    )
