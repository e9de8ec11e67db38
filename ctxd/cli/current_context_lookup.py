"""Lookup of the current context id within 200 ms of the start of the process.

The sources are, in this order, the environment, the file that it names, the daemon, and the file beside a sandbox's
socket. That file names the newest commit, whereas the daemon first commits new events. The module imports
little, since imports would take longer than the lookup, and bounds the time even if a file system hangs.
"""

import _thread
import json
import os
import socket
import time
from pathlib import Path
from typing import Any, Final

from ctxd_protocol.default_paths import CONTEXT_FILE_NAME, SYSTEM_SOCKET

WITHIN_S: Final = 0.2
"""Seconds from the start of the process to its end."""

_END_S: Final = 0.04
"""Seconds of ``WITHIN_S`` that are reserved for the exit."""

_FILE_S: Final = 0.03
"""Seconds of ``WITHIN_S`` that are reserved for the file beside the socket, if it exists."""

_LEAST_S: Final = 0.03
"""Minimum seconds for the lookup, even if the start of the process took too long."""

_ANSWER_BYTES_MAX: Final = 65_536

_LISTED_MAX: Final = 20
"""Sessions that are searched for a prefix."""

_HARNESS_SESSIONS: Final = (("CODEX_THREAD_ID", "codex"), ("PI_SESSION_ID", "pi"))
"""Variables in which harnesses pass their session id to tools, and the prefix of the id of the session that captures
it. For other harnesses, `ctx install` sets $CTXD_SESSION."""


class UnknownSession(Exception):
    """The daemon has no session with the given name."""

    hint = "give its full id: ctx session ls lists them"

    def __init__(self, session: str) -> None:
        super().__init__(f"no such session: {session}")


def look(session: str | None = None, socket_path: str | None = None) -> dict[str, Any] | None:
    """Return the current context of ``session`` as ``context.current`` returns it, or at least its id; else None.

    ``session`` None: $CTXD_SESSION, else the daemon's default. ``socket_path`` None: the default places.
    Raises: UnknownSession.
    """
    wanted = session or os.environ.get("CTXD_SESSION")
    seconds = max(_LEAST_S, WITHIN_S - _END_S - _age_s())
    found = _within(seconds, wanted, socket_path, by_environment=session is None)
    if isinstance(found, UnknownSession):
        raise found
    context = None if found is None else found.get("context_id")
    return found if isinstance(context, str) and context else None


def _within(
    seconds: float, session: str | None, socket_path: str | None, *, by_environment: bool
) -> dict[str, Any] | UnknownSession | None:
    """Search in a thread, and abandon it after ``seconds``: access to a hanging file system has no timeout, and only
    SIGKILL interrupts it."""
    ends = time.clock_gettime(time.CLOCK_MONOTONIC) + seconds
    found: list[dict[str, Any] | UnknownSession | None] = []
    captured = next((f"{harness}-{id}" for name, harness in _HARNESS_SESSIONS if (id := os.environ.get(name))), None)
    done = _thread.allocate_lock()

    def search() -> None:
        try:
            place = _socket(socket_path)
            named = os.environ.get("CTXD_CONTEXT_FILE")
            if named and (context := _from_file(Path(named), session)):
                found.append(context)
                return
            beside = place.parent / CONTEXT_FILE_NAME
            has_file = beside.exists()
            try:
                context = _from_daemon(place, session or captured, ends - _FILE_S if has_file else ends)
            except (OSError, ValueError):
                context = None
            except UnknownSession:
                # Without a name, the harness is not connected.
                whole = None if session is None else _by_prefix(place, session, ends)
                context = _from_daemon(place, whole, ends)
            found.append(context or (_from_file(beside, session) if has_file else None))
        except UnknownSession as unknown:
            found.append(unknown)
        except Exception:  # noqa: BLE001, S110 - a hook gets no context rather than a traceback
            pass
        finally:
            done.release()

    if by_environment and (named := os.environ.get("CTXD_CONTEXT_ID")):
        return {"context_id": named}
    done.acquire()
    _thread.start_new_thread(search, ())
    done.acquire(timeout=seconds)
    return found[0] if found else None


def _socket(named: str | None) -> Path:
    if socket_path := named or os.environ.get("CTXD_SOCKET"):
        return Path(socket_path)
    if os.access(SYSTEM_SOCKET, os.W_OK):
        return Path(SYSTEM_SOCKET)
    from ctxd.config import load
    from ctxd_client.socket_lookup import find_socket

    config = load()
    return config.socket if config.origins["socket"].startswith("file") else Path(find_socket().path)


def _from_file(path: Path, session: str | None) -> dict[str, Any] | None:
    """Return the content of the context file; None if it is missing, invalid, or of another session."""
    try:
        with open(path, "rb") as file:
            found = json.loads(file.read(_ANSWER_BYTES_MAX))
    except (OSError, ValueError, RecursionError):
        return None
    of_another = session is not None and isinstance(found, dict) and found.get("session") != session
    return found if isinstance(found, dict) and not of_another else None


def _from_daemon(place: Path, session: str | None, ends: float) -> dict[str, Any] | None:
    """Return the daemon's result, received before ``ends``. Raises: OSError, ValueError, UnknownSession."""
    reply = _reply(place, "context.current", {} if session is None else {"session": session}, ends)
    if session is not None and reply.get("error", {}).get("data", {}).get("code") == "session_not_found":
        raise UnknownSession(session)
    found = reply.get("result")
    return found if isinstance(found, dict) else None


def _by_prefix(place: Path, prefix: str, ends: float) -> str:
    """Return the only session whose id begins with ``prefix``, in the order in which other commands search. Raises:
    OSError, ValueError, UnknownSession."""
    for more in ({}, {"archived": True}, {"state": "removed"}):
        page = _reply(place, "session.list", {"text": prefix, "limit": _LISTED_MAX, **more}, ends).get("result", {})
        named = [row["session"] for row in page.get("sessions", ()) if row["session"].startswith(prefix)]
        if len(named) == 1 and page["next_cursor"] is None:
            return str(named[0])
        if named:
            break
    raise UnknownSession(prefix)


def _reply(place: Path, method: str, params: dict[str, Any], ends: float) -> dict[str, Any]:
    """Return the daemon's reply to a call, received before ``ends``. Raises: OSError, ValueError."""
    line = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode() + b"\n"
    answer = b""
    with socket.socket(socket.AF_UNIX) as wire:
        wire.settimeout(_left(ends))
        wire.connect(os.fspath(place))
        wire.sendall(line)
        while not answer.endswith(b"\n") and len(answer) < _ANSWER_BYTES_MAX:
            wire.settimeout(_left(ends))
            received = wire.recv(_ANSWER_BYTES_MAX)
            if not received:
                break
            answer += received
    reply = json.loads(answer)
    return reply if isinstance(reply, dict) else {}


def _left(ends: float) -> float:
    return max(0.001, ends - time.clock_gettime(time.CLOCK_MONOTONIC))


def _age_s() -> float:
    """Seconds since this process was started."""
    try:
        started = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return time.process_time()
