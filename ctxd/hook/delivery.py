"""Program of ``ctx-hook``: sends a hook's standard input to the daemon, or keeps it for the next hook to deliver.

It exits with 0, within ``DELIVERY_S`` plus ``REST_S``, and prints only the daemon's output for the harness. It runs at
every tool call, and most of its time is the start of the process: hence it uses only modules of the standard library
that load fast, and the C modules beneath ``socket``, ``json`` and ``signal``. ``ctx-hook`` imports it without the
package around it.

While the daemon is unreachable, each event waits in a file of its own in the user's state directory, and the next hook
delivers all of them in order. An event whose reply was lost is sent again with the same operation id.
"""

import os
import sys
import time
from _json import encode_basestring, scanstring  # type: ignore[import-not-found,unused-ignore]
from _signal import ITIMER_REAL, SIGALRM, setitimer, signal  # type: ignore[import-not-found,unused-ignore]

from ctxd.hook.daemon_connection import (
    DELIVERED,
    POSTPONED,
    POSTPONED_FOLDER,
    REFUSED,
    RETRY_LIMIT_S,
    RETRY_S,
    UNANSWERED,
    DaemonConnection,
    code_of,
    delivery_s,
    now,
    retry_age_s,
)

TYPE_CHECKING = False  # The module ``typing`` takes long to load.
if TYPE_CHECKING:
    from ctxd.hook.event_spool import EventSpool

REST_S = 2.5
"""Seconds for all other work; the process is then terminated unconditionally."""

LOSS_RECORD_S = 0.2
"""Additional seconds to record the loss of an event."""

INPUT_BYTES_MAX = 64 * 1024 * 1024
"""Maximum bytes of a hook's standard input; a larger event is lost."""

FRAME_BYTES_MAX = 15 * 1024 * 1024
"""Maximum bytes of a call, below the daemon's limit of a line. An event that is larger with its escapes is cut."""

CUT_BYTES = 2 * 1024 * 1024
"""Bytes that are kept of such an event: the more, the longer the harness waits."""

START_WRITTEN_S = 2.0
"""Seconds from the start of a tool call within which the harness writes it to its transcript. Claude Code takes up to
0.2, and 1.1 on a busy machine. It does not wait for the hook meanwhile."""

END_WRITTEN_S = 0.5
"""The same from the end of the call, for a call that ended before it was written: the harness waits for this hook."""

LATE_FOLDER, LATE = "late", ".late"
"""Directory of the files for events that wait for the transcript, and the suffix of each."""

LATE_S = 3.0
"""Maximum seconds until such an event is delivered; an older file was left by a killed hook."""

WAITING = (".event", ".draft")
"""Suffixes of the files for events that wait for the daemon."""

_PAUSE_S = 0.01
_SLACK_S = 0.05
"""Seconds by which a hook that waits for its transcript may end late."""

_TOOL_EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure")

HARNESSES = {"claude": "claude-code", "codex": "codex", "pi": "pi", "opencode": "opencode"}
SYSTEM_SOCKET = "/run/ctxd/ctxd.sock"


def main(arguments: list[str]) -> None:
    """Deliver the event on standard input, and exit with 0."""
    run = HookRun()
    try:
        signal(SIGALRM, lambda *_: run.give_up("time"))
        setitimer(ITIMER_REAL, delivery_s(os.environ) + REST_S)
        run.deliver_input(arguments)
    except BaseException as error:  # noqa: BLE001 - a hook that fails must not disturb the harness
        if os.environ.get("CTXD_HOOK_DEBUG"):
            sys.stderr.write(f"ctx-hook: {error!r}\n")
        run.give_up("too_large" if isinstance(error, OverflowError) else "failed")
    os._exit(0)


class HookRun:
    """One run of the program. If it ends before the event is delivered or kept, it notes that the event is lost."""

    def __init__(self) -> None:
        self._socket = ""
        self._is_safe = True

    def give_up(self, reason: str) -> None:
        """Exit with 0; if the event is lost, first note ``reason``."""
        signal(SIGALRM, lambda *_: os._exit(0))
        setitimer(ITIMER_REAL, LOSS_RECORD_S)
        try:
            if not self._is_safe:
                make_spool(self._socket, os.environ).note_lost(reason)
        finally:
            os._exit(0)

    def deliver_input(self, arguments: list[str]) -> None:
        """Deliver the event on standard input, or keep it. Raises: any exception that prevents both."""
        # The last option may lack its value.
        options = dict(zip(arguments[1::2], [*arguments[2::2], ""], strict=False))
        harness = HARNESSES[arguments[0]]
        self._socket = options.get("--socket") or socket_path(os.environ)
        at_ns = time.time_ns()
        self._is_safe = False
        raw = _input()
        if harness == "claude-code" and "CLAUDE_ENV_FILE" in os.environ:
            from ctxd.hook.session_environment import name_session

            name_session(os.environ, options.get("--socket"))
        event, name = HookedEvent(harness, raw), f"{at_ns:020}-{os.getpid()}"
        order = EventOrder(self._socket, name, event)
        chars, unusable, given = 0, list[str](), options.get("--shorten")
        if given is not None or "CTXD_HOOK_SECONDS" in os.environ:
            from ctxd.hook.hook_settings import shorten_chars, unusable_settings

            chars, unusable = shorten_chars(given or ""), unusable_settings(os.environ, given)
        frame = _frame(harness, with_transcript_lines(event, order), at_ns, chars)
        order.wait()
        reply = self._deliver(frame, name, order)
        if b'"output":"' in reply:
            import json

            os.write(1, json.loads(reply)["result"]["output"].encode())
        order.end()
        if unusable:
            make_spool(self._socket, os.environ).note_settings(unusable)
        if reply and order.has_retry:
            from ctxd.hook.spool_delivery import SpoolDelivery

            SpoolDelivery(make_spool(self._socket, os.environ), self._socket, now() + RETRY_LIMIT_S).retry()

    def _deliver(self, frame: bytes, name: str, order: "EventOrder") -> bytes:
        """Send ``frame`` after all waiting events, or keep it. Return the daemon's reply, empty for none."""
        ends, may_wait = now() + delivery_s(os.environ), order.has_waiting
        sent, reply = (POSTPONED, b"") if may_wait else DaemonConnection(self._socket, ends).call(frame)
        if sent == DELIVERED:
            self._is_safe = True
            return reply
        waiting = make_spool(self._socket, os.environ)
        name = f"{waiting.after_waiting(name) if may_wait else name}-{order.session_key}"
        reason, reply = code_of(reply) if sent == REFUSED else waiting.add(name, frame), b""
        self._is_safe = sent != REFUSED and not reason
        if sent == UNANSWERED:
            waiting.hold()
        if may_wait and not waiting.is_held():
            from ctxd.hook.spool_delivery import SpoolDelivery

            own = waiting.file_of(name)
            unkept = {own: frame} if reason else {}
            reply = SpoolDelivery(waiting, self._socket, ends).deliver(own, unkept)
            # The delivery of other events has made room, unless it has failed as well.
            reason = waiting.add(name, frame) if unkept else ""
        if reason:
            waiting.note_lost(reason)
        self._is_safe = True
        waiting.close()
        return reply


def socket_path(environ: "os._Environ[str] | dict[str, str]") -> str:
    """The socket that ``ctxd_client.socket_lookup`` finds, without its imports."""
    if named := environ.get("CTXD_SOCKET"):
        return named
    runtime = environ.get("XDG_RUNTIME_DIR")
    places = [SYSTEM_SOCKET, *([f"{runtime}/ctxd/ctxd.sock"] if runtime else []), f"{_state(environ)}/ctxd/ctxd.sock"]
    existing = [place for place in places if os.path.exists(place)]
    for place in existing:
        if os.access(place, os.W_OK, effective_ids=True):
            return place
    return (existing or [places[0 if os.geteuid() == 0 else 1]])[0]


def waiting_root(environ: "os._Environ[str] | dict[str, str]") -> str:
    """The parent of the directories of waiting events, one for each socket."""
    return f"{_state(environ)}/ctx-hook"


def folder_of(path: str, environ: "os._Environ[str] | dict[str, str]") -> str:
    """The directory of the events that wait for the daemon at ``path``."""
    quoted = os.path.abspath(path).replace("%", "%25").replace("/", "%2F")
    return f"{waiting_root(environ)}/{quoted}"


def open_folder(path: str, environ: "os._Environ[str] | dict[str, str]") -> int | None:
    """Open ``folder_of``; None if it does not exist. Raises: OSError if it belongs to another user, is writable by
    others, or is a symbolic link."""
    place = folder_of(path, environ)
    try:
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        os.close(folder)
        raise PermissionError(1, "belongs to another user, or others may write to it", place)
    return folder


def make_folder(path: str, environ: "os._Environ[str] | dict[str, str]") -> int:
    """Open ``folder_of``, created if it does not exist. Raises: OSError."""
    os.makedirs(waiting_root(environ), 0o700, exist_ok=True)
    try:
        os.mkdir(folder_of(path, environ), 0o700)
    except FileExistsError:
        pass
    folder = open_folder(path, environ)
    assert folder is not None, "just created"
    return folder


def _state(environ: "os._Environ[str] | dict[str, str]") -> str:
    home = environ.get("HOME") or os.path.expanduser("~")
    return environ.get("XDG_STATE_HOME") or f"{home}/.local/state"


def _input() -> bytes:
    pieces, size = [], 0
    while piece := os.read(0, 1 << 20):
        pieces.append(piece)
        size += len(piece)
        if size > INPUT_BYTES_MAX:
            raise OverflowError("the input is too large")
    return b"".join(pieces)


class HookedEvent:
    """An event as the harness passed it, and the members that the hook itself reads, empty if they are missing."""

    def __init__(self, harness: str, raw: bytes) -> None:
        self.raw = raw
        self.text = text = raw.rstrip().decode("utf-8", "replace")
        self.harness = harness
        self.kind = _member(text, text.find('"hook_event_name"'))
        self.session = _member(text, text.find('"session_id"'))
        self.transcript = _member(text, text.find('"transcript_path"'))
        self.call = _member(text, text.rfind('"tool_use_id"'))
        agent = _agent_of(text) if '"agent_id"' in text else ""
        if harness == "codex" and agent:
            # A sub-agent of codex is a session of its own, whose rollout the event names.
            self.session, agent = agent, ""
        # A sub-agent's calls are not in the session's transcript, and its events are not ordered with the session's.
        self.is_main = text.endswith("}") and not agent


class EventOrder:
    """The order of an event among the events of its session.

    While an event waits for the transcript, in a detached process, ``LATE_FOLDER`` has a file for it. Until that
    is removed, later events of the session wait in detached processes too: a denied call, for example, has no end event
    before the answer. The hook of a call's end may print, so it waits undetached, for ``END_WRITTEN_S`` at most.
    """

    def __init__(self, path: str, name: str, event: HookedEvent) -> None:
        self.has_waiting = False  # True if events in the spool precede this one.
        self.has_retry = False  # True if it is time to retry the postponed events.
        self.earlier_calls: list[str] | None = None  # Those of the same answer, for the start of a call.
        self._folder: int | None = None
        self._late_folder: int | None = None
        self._path = path
        self._name = name
        self._is_main = event.is_main
        session = _plain(event.session)
        # It ends the names of the session's waiting events, and names the directory of those that are postponed.
        self.session_key = f"{_plain(event.harness)}-{session}"
        self._session = f"-{session}-"
        self._call = f"{self._session}{_plain(event.call)}{LATE}"
        self.is_end = event.kind in _TOOL_EVENTS[1:]
        self._own_start = self._call if self.is_end else "/"  # No name of a file ends with "/".
        self._began = now()
        self._is_detached = False
        self._late: list[str] = []

    def detach(self) -> None:
        """Continue in a detached process, for which the harness does not wait. Raises: OSError."""
        try:
            folder = make_folder(self._path, os.environ)
            try:
                os.mkdir(LATE_FOLDER, 0o700, dir_fd=folder)
            except FileExistsError:
                pass
            flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            os.close(os.open(f"{LATE_FOLDER}/{self._name}{self._call}", flags, 0o600, dir_fd=folder))
            os.close(folder)
        except OSError:
            pass  # Losing the order is better than losing the text.
        self._is_detached = True
        _detach()

    def wait(self) -> None:
        """Wait for the earlier events of the session, within the time limits."""
        try:
            self._folder = open_folder(self._path, os.environ)
            if self._folder is None or not self._list_earlier():
                return
            if not self.is_end and not self._is_detached:
                self.detach()
            ends = self._began + (END_WRITTEN_S if self.is_end else START_WRITTEN_S + _SLACK_S)
            while self._list_earlier() and now() < ends:
                time.sleep(_PAUSE_S)
        except OSError:
            return  # An event that cannot wait can still be delivered.

    def _list_earlier(self) -> bool:
        """List the events of all hooks again. Returns: True while an earlier event of the session waits for the
        transcript. Raises: OSError."""
        with os.scandir(self._folder) as entries:  # Not a list: thousands may wait.
            self.has_waiting = any(entry.name.endswith(WAITING) for entry in entries)
        # After the listing: events are moved from the one directory to the other, never back.
        self._note_postponed()
        if self._late_folder is None:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            try:
                self._late_folder = os.open(LATE_FOLDER, flags, dir_fd=self._folder)
            except FileNotFoundError:
                return False
        # The names begin with the times of the events.
        self._late = [each for each in os.listdir(self._late_folder) if each[:20].isdigit()]
        return self._is_main and any(
            self._session in each and each < self._name and self._is_awaited(each) and _age_s(each) < LATE_S
            for each in self._late
        )

    def _note_postponed(self) -> None:
        """Note whether events of the session are postponed, and whether it is time to retry. Raises: OSError."""
        if (age := retry_age_s(self._folder)) is not None:
            self.has_retry = age > RETRY_S
            if os.access(f"{POSTPONED_FOLDER}/{self.session_key}", os.F_OK, dir_fd=self._folder):
                self.has_waiting = True

    def end(self) -> None:
        """Stop holding up later events: remove this event's file, and those of killed hooks. Raises: OSError."""
        for each in self._late:
            if each == self._name + self._call or each.endswith(self._own_start) or _age_s(each) > 2 * LATE_S:
                try:
                    os.unlink(each, dir_fd=self._late_folder)
                except FileNotFoundError:
                    pass

    def _is_awaited(self, name: str) -> bool:
        """True if the event of a file precedes this one. The daemon holds later calls of the answer meanwhile."""
        call, earlier = name.partition(self._session)[2].removesuffix(LATE), self.earlier_calls
        return not name.endswith(self._own_start) and (not call or earlier is None or call in map(_plain, earlier))


def _plain(id: str) -> str:
    return "".join([each for each in id if each.isalnum() and each.isascii()])[:64]


def _age_s(name: str) -> float:
    return abs(time.time_ns() - int(name[:20])) / 1e9


def with_transcript_lines(event: HookedEvent, order: EventOrder) -> bytes:
    """The event as bytes. ``transcript_lines`` is added if the transcript has texts of the model just before a tool
    call, messages that a compaction keeps, or codex's window after one: no hook reports these. ``earlier_calls`` has
    the calls before that call in the same answer, and ``exit_code`` that of a command of codex. Unchanged if the
    transcript cannot be read."""
    if not event.is_main or not event.transcript:
        return event.raw
    calls, code = list[str](), ""
    try:
        if event.kind == "PostCompact":
            from ctxd.hook.compaction_lines import compaction_lines

            lines = compaction_lines(event.text, event.transcript, order.detach)
        elif event.kind in _TOOL_EVENTS and event.call:
            from ctxd.hook.texts_before_call import exit_code_after, parts_before

            written_s, detach = (END_WRITTEN_S, None) if order.is_end else (START_WRITTEN_S, order.detach)
            found = parts_before(event.transcript, event.call, written_s, detach)
            lines, calls = found or ([], [])
            order.earlier_calls = None if order.is_end or found is None else calls
            if order.is_end and found is not None and event.harness == "codex":
                code = exit_code_after(event.transcript, event.call)
        else:
            return event.raw
    except (OSError, ValueError, RecursionError):
        return event.raw
    added = [("transcript_lines", [line.decode("utf-8", "replace") for line in lines]), ("earlier_calls", calls)]
    members = [f',"{name}":[{",".join(map(encode_basestring, texts))}]' for name, texts in added if texts]
    members += [f',"exit_code":{code}'] if code else []
    return f"{event.text[:-1]}{''.join(members)}}}".encode() if members else event.raw


def _detach() -> None:
    """Continue in a process that the harness does not wait for, with a new time limit of the same length."""
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(nothing, descriptor)
    setitimer(ITIMER_REAL, delivery_s(os.environ) + REST_S)


def _member(text: str, at: int) -> str:
    """The string value of the JSON member whose name is at ``at``; empty for other values, or if ``at`` is negative."""
    try:
        at = text.index('"', at + 1) + 1 if at >= 0 else len(text)
        while text[at : at + 1] in (":", " "):
            at += 1
        return scanstring(text, at + 1)[0] if text[at : at + 1] == '"' else ""
    except ValueError:
        return ""


def _agent_of(text: str) -> str:
    """The text ``agent_id`` of the JSON object ``text`` itself, not of the input of a tool in it; empty for none."""
    pieces = text.replace("\\\\", "").replace('\\"', "").split('"agent_id"')
    depth = 0
    for before, after in zip(pieces, pieces[1:], strict=False):
        outside = "".join(before.split('"')[::2])
        depth += outside.count("{") + outside.count("[") - outside.count("}") - outside.count("]")
        if depth == 1 and after.lstrip()[:1] == ":":
            value = after.lstrip()[1:].lstrip()
            return value[1:].partition('"')[0] if value[:1] == '"' else ""
    return ""


def _frame(harness: str, raw: bytes, at_ns: int, shorten_chars: int) -> bytes:
    """The JSON-RPC call that records the event ``raw``, one line; ``shorten_chars``: 0 for no limit.

    Raises: OverflowError, and as ``large_event_shortening.cut``.
    """
    text = b"" if len(raw) > FRAME_BYTES_MAX else _quoted(raw)
    if not text or len(text) > FRAME_BYTES_MAX:
        from ctxd.hook.large_event_shortening import cut

        text = _quoted(cut(raw, CUT_BYTES))
        if len(text) > FRAME_BYTES_MAX:
            raise OverflowError("the event is too large")
    op_id = f"hook-{at_ns:x}-{os.getpid()}-{os.urandom(6).hex()}"
    limit = f',"shorten_chars":{shorten_chars}' if shorten_chars else ""
    head = (
        '{"jsonrpc":"2.0","id":1,"method":"session.hook","params":'
        f'{{"harness":"{harness}","op_id":"{op_id}","at":{at_ns // 1_000_000}{limit},"input":'
    )
    return head.encode() + text + b"}}\n"


def _quoted(raw: bytes) -> bytes:
    quoted: str = encode_basestring(raw.decode("utf-8", "replace"))
    return quoted.encode()


def find_spool(path: str, environ: "os._Environ[str] | dict[str, str]") -> "EventSpool | None":
    """The spool for the daemon at ``path``; None if it does not exist. Raises: as ``open_folder``."""
    from ctxd.hook.event_spool import EventSpool

    folder = open_folder(path, environ)
    return None if folder is None else EventSpool(folder_of(path, environ), folder)


def make_spool(path: str, environ: "os._Environ[str] | dict[str, str]") -> "EventSpool":
    """The spool for the daemon at ``path``, created if it does not exist. Raises: OSError."""
    from ctxd.hook.event_spool import EventSpool

    return EventSpool(folder_of(path, environ), make_folder(path, environ))
