"""Sessions that moved to another host: this journal has only their beginning.

Stands alone because sessions refuse writes to them, and know nothing else of other hosts.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from ctxd.errors import CtxdError


class MovedSession(msgspec.Struct, frozen=True):
    """The host of a session, and the branch with what was written here too late; ``None`` without such writes."""

    host: str
    branch: str | None

    def error(self, session: str) -> CtxdError:
        """Return the error of a write to ``session``."""
        kept = f"What was written here meanwhile is session {self.branch}. " if self.branch else ""
        hint = f"{kept}Go on on {self.host}, or pause it there and call session.resume here."
        return owned_elsewhere(session, self.host, hint=hint)


NO_MOVED_SESSIONS: Final[Mapping[str, MovedSession]] = MappingProxyType({})


def owned_elsewhere(session: str, host: str, *, hint: str = "", retry_after_ms: int | None = None) -> CtxdError:
    """Return the error of a call for ``session``, which ``host`` owns."""
    return CtxdError(
        "session_owned_elsewhere",
        f"session {session} is owned by host {host}",
        hint=hint or f"Pause it on {host}, or wait until that has been silent for its lease.",
        retry_after_ms=retry_after_ms,
        outcome="not_applied",
    )
