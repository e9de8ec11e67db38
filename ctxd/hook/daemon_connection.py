"""Calls of ``ctx-hook`` to the daemon: their outcomes, time limits, and the events that the daemon accepts later only.

Every hook loads it: see ``ctxd.hook.delivery``.
"""

import os
import time
from _socket import AF_UNIX, SOCK_STREAM, socket

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from collections.abc import Mapping

DELIVERY_S = 1.5
"""Seconds for delivering the new event and the waiting ones; $CTXD_HOOK_SECONDS overrides it."""

DELIVERY_S_MAX = 86_400.0
"""Maximum of $CTXD_HOOK_SECONDS."""

POSTPONED_FOLDER = "postponed"
"""Directory of the events that the daemon accepts later, such as those of a session that another host owns: in it, one
directory for each session, so that they neither delay other events nor are overtaken by later ones of the session."""

RETRIED = f"{POSTPONED_FOLDER}/retried"
RETRY_S = 60.0
RETRY_LIMIT_S = 0.3
"""File whose time is that of the last retry of all postponed events, minimum seconds between two retries, and maximum
seconds for one by a hook."""

REPLY_BYTES_MAX = 16 * 1024 * 1024
"""Maximum bytes of a reply, which has at most an output of the event."""

REFUSALS = {
    "parse_error", "invalid_request", "invalid_params", "invalid_path", "too_large", "idempotency_mismatch",
    "internal_error", "session_closed", "session_removed",
}  # fmt: skip
"""Permanent errors of an event. After any other error, such as one of an older daemon, the event waits."""

DELIVERED, REFUSED, POSTPONED, UNREACHABLE, UNANSWERED = range(5)


class DaemonConnection:
    """A connection to the daemon at ``path``, opened by the first call, for use until ``ends``."""

    def __init__(self, path: str, ends: float) -> None:
        self._path = path
        self._ends = ends
        self._wire: socket | None = None

    def open(self) -> int:
        """Connect, unless this is connected. Returns: 0, or as ``call``."""
        if self._wire is not None:
            return 0
        began = now()
        try:
            wire = socket(AF_UNIX, SOCK_STREAM)
            wire.settimeout(self._left())
            wire.connect(self._path)
        except TimeoutError:
            return self._timed_out(began)
        except OSError:
            return UNREACHABLE
        self._wire = wire
        return 0

    def call(self, frame: bytes) -> tuple[int, bytes]:
        """Send ``frame``. Returns: the outcome, and the reply if there is one. REFUSED is permanent; POSTPONED is not,
        as for a session of another host; UNANSWERED means that the daemon did not reply in time. A call that began too
        late for a reply is UNREACHABLE."""
        began = now()
        if failure := self.open():
            return failure, b""
        assert self._wire is not None, "it is open"
        reply = b""
        try:
            self._wire.settimeout(self._left())
            self._wire.sendall(frame)
            while not reply.endswith(b"\n"):
                self._wire.settimeout(self._left())
                received = self._wire.recv(1 << 16)
                if not received or len(reply) > REPLY_BYTES_MAX:
                    return UNREACHABLE, b""
                if now() > self._ends:
                    raise TimeoutError
                reply += received
        except TimeoutError:
            return self._timed_out(began), b""
        except OSError:
            return UNREACHABLE, b""
        if b'"error":{' not in reply[:64]:
            return DELIVERED, reply
        code = code_of(reply)
        if code in REFUSALS:
            return REFUSED, reply
        return (UNREACHABLE if b'"retryable":true' in reply or code == "method_not_found" else POSTPONED), reply

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._wire is not None:
            self._wire.close()

    def _timed_out(self, began: float) -> int:
        return UNANSWERED if self._ends - began >= delivery_s(os.environ) / 2 else UNREACHABLE

    def _left(self) -> float:
        return max(0.001, self._ends - now())


def delivery_s(environ: "Mapping[str, str]") -> float:
    """Seconds for delivering, from ``environ`` or by default."""
    return seconds_of(environ.get("CTXD_HOOK_SECONDS", "")) or DELIVERY_S


def seconds_of(given: str) -> float:
    """The number of seconds ``given``; 0 if it is not a number, or not in the range of a time limit."""
    try:
        seconds = float(given)
    except ValueError:
        return 0.0
    return seconds if 0 < seconds <= DELIVERY_S_MAX else 0.0


def retry_age_s(folder: int | None) -> float | None:
    """Seconds since the last retry of the postponed events in the spool ``folder``; None if there are none. Raises:
    OSError."""
    try:
        return abs(time.time_ns() / 1e9 - os.stat(RETRIED, dir_fd=folder, follow_symlinks=False).st_mtime)
    except FileNotFoundError:
        return None


def code_of(reply: bytes) -> str:
    """The symbolic code of an error reply; ``refused`` if it has none."""
    import json

    try:
        return str(json.loads(reply)["error"]["data"]["code"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return "refused"


def now() -> float:
    """Seconds of the monotonic clock that all time limits use."""
    return time.clock_gettime(time.CLOCK_MONOTONIC)
