"""Memory that one sandbox can make the daemon use: its resident peak above idle, in MB.

The sandbox has the usual quota and every grant but its prompt. It fills its chat, records long tool calls, and then
asks on all its connections for the largest answers there are without reading one: contexts, chats, the chat as an
object and objects in bulk. Another sandbox requests the contexts of several sessions whose text has a character beyond
the basic plane in each message, with which a text takes four times its bytes in memory; short messages come first, so
that the batches in which the chat is read have grown when the long ones are reached.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from bench import running
from bench.figures import Figure
from bench.sandboxes import registered, resident_mb

GOAL_MB = 256.0
MESSAGE_BYTES = 900_000
CHAT_BYTES = (3_600_000, 8_100_000, 150_000_000)
"""Sizes of the chat at which answers are asked for: one that a sandbox gets whole, one just below what is assembled for
it, and one far beyond, after which long tool calls were recorded too."""
TOOLCALLS = 60
CONNECTIONS = 8
CALLS = 31
HELD_S = 3.0
SHORT_COMMITS = 60
SHORT_TEXTS = 19_000
"""Texts of one commit: their lines fill a call of a sandbox."""

SEARCHES = 4
WIDE_SESSIONS = 6
SHORT_MESSAGES = 60
WIDE_MESSAGES = 9
"""As many as may be read for a context of a sandbox."""

ASKED = {
    "context.assemble": {},
    "context.show": {},
    "session.chat": {"limit": 1000},
    "object.get": {"object": "chat:box", "content": True},
    "object.bulk": {"objects": [f"call-{number}" for number in range(TOOLCALLS)], "content": True},
}


def run() -> Iterator[Figure]:
    """See the module."""
    with running.folder() as place:
        path = place / "ctxd.sock"
        with running.daemon(path, place / "state") as process, running.Caller(path) as host:
            box = Path(registered(host, "box"))
            idle = resident_mb(process.pid)
            peaks = {"idle": idle}
            for before, chat in zip((0, *CHAT_BYTES), CHAT_BYTES[: 2 if running.quick() else None], strict=False):
                size = f"{chat // 1_000_000} MB"
                with _peak(process.pid, peaks, f"filled to {size}"):
                    _fill(box, "box", range(before // MESSAGE_BYTES, chat // MESSAGE_BYTES))
                    if chat == CHAT_BYTES[-1]:
                        _record(box)
                for method, params in ASKED.items():
                    with _peak(process.pid, peaks, f"{method} at {size}"):
                        _ask(box, method, params)
            wide = _wide_sessions(host, 2 if running.quick() else WIDE_SESSIONS)
            for attempt in ("first", "second"):
                with _peak(process.pid, peaks, f"{attempt} requests of wide text"):
                    _request_all(*wide)
            assert process.poll() is None, "the daemon lives"
        above = {name: peak - idle for name, peak in peaks.items() if name != "idle"}
        above |= _short_texts(place, 8 if running.quick() else SHORT_COMMITS)
    value = max(above.values())
    detail = f"idle {idle:.0f}, " + ", ".join(f"{name} {peak:.0f}" for name, peak in above.items())
    yield Figure(name="memory", value=value, goal=GOAL_MB, better="lower", detail=f"MB above idle: {detail}")


@contextlib.contextmanager
def _peak(pid: int, peaks: dict[str, float], name: str) -> Iterator[None]:
    """Note the largest resident size meanwhile."""
    done = threading.Event()
    peaks[name] = 0.0

    def look() -> None:
        while not done.wait(0.005):
            with contextlib.suppress(OSError):
                peaks[name] = max(peaks[name], resident_mb(pid))

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _fill(box: Path, session: str, numbers: range, mark: str = "", size: int = MESSAGE_BYTES) -> None:
    """Append the messages ``numbers`` of ``size`` bytes, each with ``mark``; every eighth is a prompt."""
    with running.Caller(box) as inside:
        for number in numbers:
            role = "user" if number % 8 == 0 else "assistant"
            message = {"role": role, "content": f"{number} {mark}{'x' * size}"}
            _patiently(inside, "session.append", session=session, messages=[message])


def _record(box: Path) -> None:
    with running.Caller(box) as inside:
        for number in range(TOOLCALLS):
            content = f"{number} {'y' * MESSAGE_BYTES}"
            _patiently(inside, "toolcall.record", session="box", id=f"call-{number}", tool="bash", content=content)


def _wide_sessions(host: running.Caller, count: int) -> tuple[Path, list[str]]:
    """The socket of a new sandbox, and its sessions with wide text."""
    sessions = [f"wide-{number}" for number in range(count)]
    box = Path(registered(host, *sessions))
    for session in sessions:
        _fill(box, session, range(SHORT_MESSAGES), size=10)
        _fill(box, session, range(WIDE_MESSAGES), "\N{GRINNING FACE}")
    return box, sessions


def _request_all(box: Path, sessions: list[str]) -> None:
    """Request the contexts of all sessions at once, each on a connection of its own."""

    def request(session: str) -> None:
        with running.Caller(box) as inside:
            inside.call("context.assemble", session=session, format="anthropic-messages", model="claude-sonnet-4-5")

    with ThreadPoolExecutor(len(sessions)) as pool:
        list(pool.map(request, sessions))


def _short_texts(place: Path, commits: int) -> dict[str, float]:
    """Peaks above idle while a sandbox's short texts are indexed, and while it searches for them."""
    path, peaks = place / "short.sock", dict[str, float]()
    line = '{"type":"user","message":{"content":"aa"}}\n'
    with running.daemon(path, place / "short") as process, running.Caller(path) as host:
        box = Path(registered(host, "box"))
        idle = resident_mb(process.pid)
        with _peak(process.pid, peaks, "short texts indexed"):
            with running.Caller(box) as inside:
                for number in range(commits):
                    delta = {"format": "claude-code-v1", "delta": line * SHORT_TEXTS, "thread_id": f"t{number}"}
                    _patiently(inside, "commit.checkpoint", session="box", **delta)
            while host.call("daemon.status")["search"]["lag_rows"]:
                time.sleep(0.1)

        def search(order: str) -> None:
            with running.Caller(box) as inside:
                for _ in range(2):
                    inside.call("search.query", query="aa", limit=100, order=order)

        with _peak(process.pid, peaks, "short texts searched"), ThreadPoolExecutor(SEARCHES) as pool:
            list(pool.map(search, ["best", "newest"] * (SEARCHES // 2)))
        assert process.poll() is None, "the daemon lives"
    return {name: peak - idle for name, peak in peaks.items()}


def _patiently(inside: running.Caller, method: str, **params: object) -> None:
    """Call, and again while the quota refuses the call."""
    ends = time.monotonic() + 60
    while True:
        try:
            inside.call(method, **params)
            return
        except RuntimeError as error:
            if "quota_exceeded" not in str(error) or time.monotonic() > ends:
                raise
        time.sleep(0.02)


def _ask(box: Path, method: str, params: dict[str, object]) -> None:
    """Send many calls on every connection, and read nothing while they are held."""
    given = params if method.startswith("object") and "objects" in params else {"session": "box", **params}
    with contextlib.ExitStack() as stack:
        for _ in range(CONNECTIONS):
            held = stack.enter_context(socket.socket(socket.AF_UNIX))
            held.connect(str(box))
            requests = [{"jsonrpc": "2.0", "id": number, "method": method, "params": given} for number in range(CALLS)]
            # The daemon may refuse the connection while those of the method before are not closed yet.
            with contextlib.suppress(OSError):
                held.sendall(b"".join(msgspec.json.encode(request) + b"\n" for request in requests))
        time.sleep(HELD_S)
