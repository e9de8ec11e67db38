"""Memory that one sandbox can make the daemon use: its resident peak above idle, in MB.

The sandbox has the usual quota and every grant but its prompt. It fills its chat, records long tool calls, and then
asks on all its connections for the largest answers there are without reading one: contexts, chats, the chat as an
object and objects in bulk.
"""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
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
                    _fill(box, before, chat)
                    if chat == CHAT_BYTES[-1]:
                        _record(box)
                for method, params in ASKED.items():
                    with _peak(process.pid, peaks, f"{method} at {size}"):
                        _ask(box, method, params)
            assert process.poll() is None, "the daemon lives"
    value = max(peaks.values()) - idle
    detail = ", ".join(f"{name} {peak - idle if name != 'idle' else peak:.0f}" for name, peak in peaks.items())
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


def _fill(box: Path, before: int, chat: int) -> None:
    with running.Caller(box) as inside:
        for number in range(before // MESSAGE_BYTES, chat // MESSAGE_BYTES):
            role = "user" if number % 8 == 0 else "assistant"
            message = {"role": role, "content": f"{number} {'x' * MESSAGE_BYTES}"}
            _patiently(inside, "session.append", session="box", messages=[message])


def _record(box: Path) -> None:
    with running.Caller(box) as inside:
        for number in range(TOOLCALLS):
            content = f"{number} {'y' * MESSAGE_BYTES}"
            _patiently(inside, "toolcall.record", session="box", id=f"call-{number}", tool="bash", content=content)


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
