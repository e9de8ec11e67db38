"""Events that hooks keep for the daemon: those that quote an object, which a purge erases, and their state for
``ctx doctor``. ``ctxd.hook.delivery`` keeps and delivers them."""

import fcntl
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ctxd.doctor_findings import Finding, fail, ok, warn
from ctxd.formatting import count
from ctxd.hook import delivery
from ctxd.hook.event_spool import LOST, EventSpool
from ctxd.transcripts.records import decoded
from ctxd_client.socket_lookup import find_socket
from ctxd_protocol.ids import captured_session_id

_CHAT: Final = "chat:"
_DELIVERY_S: Final = 30.0


def erase(socket: str | None, names: Iterable[str]) -> int:
    """Erase the events that quote one of ``names``: an object's id, a path, or ``chat:SESSION`` for all of that
    session. Those waiting for the daemon at ``socket``, and those that hooks with another environment keep for the
    daemons of other sockets, in the places where they do by default too.

    Returns their number. Raises: OSError, once all others are erased, for a directory that cannot be used.
    """
    wanted = [name for name in names if name]
    erased, failure = 0, None
    for path, environ in _spools(find_socket(socket).path):
        try:
            with _waiting(path, environ) as waiting:
                erased += 0 if waiting is None else _erase_in(waiting, wanted)
        except OSError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return erased


def _erase_in(waiting: EventSpool, wanted: list[str]) -> int:
    erased = 0
    for name in (*waiting.names(), *waiting.drafts()):
        with suppress(FileNotFoundError):
            if _quotes(waiting.read(name), wanted):
                waiting.erase(name)
                erased += 1
    return erased


def _spools(own: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sockets for which this user's hooks keep events, each with the environment that names the place."""
    # A program that cron starts knows of no other place than the default one.
    default = {name: value for name, value in os.environ.items() if name != "XDG_STATE_HOME"}
    environs = {delivery.waiting_root(environ): environ for environ in (default, dict(os.environ))}
    for environ in environs.values():
        others = {unquote(os.path.basename(folder)) for folder in _folders(environ)}
        for path in sorted({own, *others}):
            yield path, environ


def deliver_waiting(socket: str | None) -> None:
    """Deliver the events waiting for the daemon at ``socket``, so that an import knows what they record. Those that
    cannot be delivered wait on. Blocks for ``_DELIVERY_S`` at most."""
    path = find_socket(socket).path
    with suppress(OSError):
        if (waiting := delivery.find_spool(path, os.environ)) is not None:
            try:
                if not waiting.is_empty():
                    delivery.deliver_waiting(waiting, path, delivery.now() + _DELIVERY_S)
            finally:
                waiting.close()


def findings(socket: str) -> Iterator[Finding]:
    """Check that no event waits for a daemon that answers, and that none was dropped; and that none waits for the
    daemon of another socket, which hooks with another environment have looked for."""
    yield _finding("hooks", socket, "the next hook delivers them once the daemon answers")
    own = os.path.abspath(find_socket(socket).path)
    for folder in _folders(dict(os.environ)):
        other = unquote(os.path.basename(folder))
        remedy = (
            "start its daemon, or run ctx install again for hooks that find this one: ctx import reads the events"
            f" from the transcripts; then remove {folder}"
        )
        if other != own and (found := _finding(f"hooks for {other}", other, remedy)).verdict != "ok":
            yield found


def _finding(name: str, socket: str, remedy: str) -> Finding:
    """Check the events for ``socket``; ``remedy``: for those that wait."""
    try:
        with _waiting(find_socket(socket).path, dict(os.environ)) as waiting:
            if waiting is None:
                return ok(name, "no event waits")
            number, lost = len(waiting.names()), waiting.lost()
    except OSError as error:
        folder = delivery.waiting_root(os.environ)
        return fail(name, f"{error.filename or folder}: {error.strerror or error}", f"make {folder} yours, mode 0700")
    if lost:
        dropped = f"ctx import reads them from the transcripts; then remove {waiting.path}/{LOST}"
        return warn(name, f"{count(len(lost), 'event')} dropped, the last one: {lost[-1]}", dropped)
    return warn(name, f"{count(number, 'event')} waiting", remedy) if number else ok(name, "no event waits")


def _folders(environ: dict[str, str]) -> list[str]:
    """The directories of events, each named by its socket."""
    root = delivery.waiting_root(environ)
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []  # The check of this daemon's own directory reports it.
    return [f"{root}/{name}" for name in names if name.startswith("%2F")]


@contextmanager
def _waiting(path: str, environ: dict[str, str]) -> Iterator[EventSpool | None]:
    """The events for the daemon at ``path``, with no hook delivering them meanwhile; None where none ever waited."""
    waiting = delivery.find_spool(path, environ)
    if waiting is None:
        yield None
        return
    try:
        with waiting.opened("lock", os.O_RDWR | os.O_CREAT) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield waiting
    finally:
        waiting.close()


def _quotes(frame: bytes, names: list[str]) -> bool:
    """True if the event quotes one of ``names``, or cannot be read: what cannot be read cannot be cleared either."""
    try:
        params = msgspec.json.decode(frame)["params"]
        event = decoded(params["input"].encode())
        session = captured_session_id(params["harness"], event["session_id"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return True
    if f"{_CHAT}{session}" in names:
        return True
    texts = list(_texts(event))
    return any(name in text for name in names if not name.startswith(_CHAT) for text in texts)


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - any JSON value
    waiting = [value]
    while waiting:
        match waiting.pop():
            case str() as text:
                yield text
            case list() as items:
                waiting += items
            case dict() as members:
                waiting += [*members, *members.values()]
            case _:
                pass
