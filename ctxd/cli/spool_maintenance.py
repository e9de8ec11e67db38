"""Events that hooks keep for the daemon: erasing those that quote a purged object, and checks for ``ctx doctor``.
``ctxd.hook.delivery`` keeps and delivers them."""

import fcntl
import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, Final
from urllib.parse import unquote

import msgspec

from ctxd.doctor_findings import Finding, fail, ok, warn
from ctxd.formatting import count
from ctxd.hook import delivery
from ctxd.hook.daemon_connection import now
from ctxd.hook.event_spool import LOST, SETTINGS, EventSpool
from ctxd.hook.spool_delivery import SpoolDelivery
from ctxd.transcripts.record_decoding import decoded, flattened
from ctxd_client.socket_lookup import find_socket
from ctxd_protocol.default_paths import without_state_home
from ctxd_protocol.ids import captured_session_id

_CHAT: Final = "chat:"
_DELIVERY_S: Final = 30.0

_BEFORE: Final = r"(?:(?<=\\[nrt])|(?<![\w.])(?<![\w.]-))"
"""What precedes an id or a path: no other part of a name, except an escape such as in the text of a JSON file."""

_NOTHING: Final = r"(?!)"


class HeldEvents:
    """The waiting events of all ``spools``, which no hook delivers meanwhile. ``failure``: the error of a directory
    that cannot be used."""

    def __init__(self, spools: list[EventSpool], failure: OSError | None) -> None:
        self._spools = spools
        self._failure = failure

    def erase(self, names: Iterable[str]) -> int:
        """Erase the events that quote one of ``names``: an object's id, a path, or ``chat:SESSION`` for all events of
        that session.

        Returns their number. Raises: OSError for a directory or an event that cannot be read, after erasing all other
        events.
        """
        wanted = [name for name in names if name]
        quoting, erased, failure = _quoting(wanted), 0, self._failure
        for waiting in self._spools:
            try:
                found = [*waiting.all_names(), *waiting.drafts()]
            except OSError as error:
                failure, found = failure or error, []
            for name in found:
                try:
                    if _quotes(waiting.read(name), wanted, quoting):
                        waiting.erase(name)
                        erased += 1
                except FileNotFoundError:
                    pass
                except OSError as error:
                    failure = failure or error
        if failure is not None:
            raise failure
        return erased


@contextmanager
def hold(socket: str | None) -> Iterator[HeldEvents]:
    """Keep hooks from delivering the waiting events for the block. This includes events for other sockets than
    ``socket``, from hooks with another environment, and events in the default state directory."""
    failure: OSError | None = None
    spools: list[EventSpool] = []
    with ExitStack() as stack:
        for path, environ in _spools(find_socket(socket).path):
            try:
                waiting = stack.enter_context(_waiting(path, environ))
            except OSError as error:
                failure = failure or error
            else:
                spools += () if waiting is None else (waiting,)
        yield HeldEvents(spools, failure)


def _spools(own: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the sockets for which this user's hooks may keep events, each with the environment that sets the place."""
    both = (without_state_home(os.environ), dict(os.environ))
    environs = {delivery.waiting_root(environ): environ for environ in both}
    for environ in environs.values():
        others = {unquote(os.path.basename(folder)) for folder in _folders(environ)}
        for path in sorted({own, *others}):
            yield path, environ


def deliver_waiting(socket: str | None) -> None:
    """Deliver the events waiting for the daemon at ``socket``, so that an import takes them into account. Events that
    cannot be delivered keep waiting. Blocks for about ``_DELIVERY_S`` at most."""
    path = find_socket(socket).path
    with suppress(OSError):
        if (waiting := delivery.find_spool(path, os.environ)) is not None:
            try:
                if not waiting.is_empty():
                    SpoolDelivery(waiting, path, now() + _DELIVERY_S).deliver(retries_all=True)
            finally:
                waiting.close()


def findings(socket: str) -> Iterator[Finding]:
    """Check that no event is waiting for the daemon at ``socket`` or was dropped, and that no hook ignored a setting.
    The same for other sockets, which hooks with another environment use."""
    yield _finding("hooks", socket, "the next hook delivers them once the daemon responds")
    own = os.path.abspath(find_socket(socket).path)
    for folder in _folders(dict(os.environ)):
        other = unquote(os.path.basename(folder))
        remedy = (
            "start the daemon of that socket; or run ctx install again so that hooks use this daemon, recover the"
            f" events with ctx import, and remove {folder}"
        )
        if other != own and (found := _finding(f"hooks for {other}", other, remedy)).verdict != "ok":
            yield found


def _finding(name: str, socket: str, remedy: str) -> Finding:
    """Check the events for ``socket``; ``remedy``: the fix for waiting events."""
    try:
        with _waiting(find_socket(socket).path, dict(os.environ)) as waiting:
            if waiting is None:
                return ok(name, "no spooled events")
            number, lost, ignored = len(waiting.all_names()), waiting.lost(), waiting.settings()
            postponed = number - len(waiting.names())
    except OSError as error:
        folder = delivery.waiting_root(os.environ)
        return fail(
            name,
            f"{error.filename or folder}: {error.strerror or error}",
            f"run chown and chmod 700 on {folder}, so that it belongs to this user alone",
        )
    if lost:
        dropped = f"ctx import reads them from the transcripts; then remove {waiting.path}/{LOST}"
        return warn(name, f"{count(len(lost), 'event')} dropped, the last one: {lost[-1]}", dropped)
    if ignored:
        corrected = f"correct it where the harness or its hooks set it; then remove {waiting.path}/{SETTINGS}"
        return warn(name, f"a hook ignored {ignored[-1]}", corrected)
    if postponed:
        retried = "the daemon accepts them once this host owns their sessions; hooks retry them every minute"
        remedy = retried if postponed == number else f"{remedy}; for the postponed ones, {retried}"
        return warn(name, f"{count(number, 'spooled event')}, {postponed} of them postponed by the daemon", remedy)
    return warn(name, f"{count(number, 'spooled event')}", remedy) if number else ok(name, "no spooled events")


def _folders(environ: dict[str, str]) -> list[str]:
    """The directories of events, each named by its socket."""
    root = delivery.waiting_root(environ)
    try:
        names = sorted(os.listdir(root))
    except OSError:
        return []  # The check for this daemon's own socket reports it.
    return [f"{root}/{name}" for name in names if name.startswith("%2F")]


@contextmanager
def _waiting(path: str, environ: dict[str, str]) -> Iterator[EventSpool | None]:
    """The events for the daemon at ``path``, locked against delivery by hooks; None if no event has ever waited."""
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


def _quoting(names: list[str]) -> re.Pattern[str]:
    """A pattern of those of ``names`` that are ids or paths, as a whole: ``a.py`` is in ``src/a.py`` and in ``Read
    a.py.``, but not in ``schema.py`` or ``a.py.orig``."""
    either = "|".join(re.escape(name) for name in names if not name.startswith(_CHAT)) or _NOTHING
    return re.compile(rf"{_BEFORE}(?:{either})(?!\w|[.-]\w)")


def _quotes(frame: bytes, names: list[str], quoting: re.Pattern[str]) -> bool:
    """True if the event quotes one of ``names``, or cannot be decoded: then it might quote them."""
    try:
        params = msgspec.json.decode(frame)["params"]
        event = decoded(flattened(params["input"].encode()))
        session = captured_session_id(params["harness"], event["session_id"])
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return True
    return f"{_CHAT}{session}" in names or any(quoting.search(text) for text in _texts(event))


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
