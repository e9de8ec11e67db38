"""Sessions of which this journal has only an old part: they went on on another host."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ctxd.errors import CtxdError


class MovedSession(msgspec.Struct, frozen=True):
    """Where a session is now, and the session that keeps what was written here too late; null if nothing was."""

    host: str
    branch: str | None

    def error(self, session: str) -> CtxdError:
        """What a write to ``session`` is told."""
        kept = f"What was written here meanwhile is session {self.branch}. " if self.branch else ""
        hint = f"{kept}Go on on {self.host}, or pause it there and call session.resume here."
        return owned_elsewhere(session, self.host, hint=hint)


NO_MOVED_SESSIONS: Final[Mapping[str, MovedSession]] = MappingProxyType({})


def owned_elsewhere(session: str, host: str, *, hint: str = "", retry_after_ms: int | None = None) -> CtxdError:
    """The error of a call for ``session``, which is that of ``host``."""
    return CtxdError(
        "session_owned_elsewhere",
        f"session {session} is owned by host {host}",
        hint=hint or f"Pause it on {host}, or wait until that has been silent for its lease.",
        retry_after_ms=retry_after_ms,
        outcome="not_applied",
    )
