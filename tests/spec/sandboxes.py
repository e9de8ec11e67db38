"""Sandboxes of a session, and calls from inside."""

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import msgspec

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.methods.declaration import Method
from ctxd_protocol.sandbox_types import Quota, SandboxView
from tests.client.running import Running

BOX = "b" * 64
ROOMY = Quota(requests_per_s=100_000, writes_per_s=100_000)


@contextmanager
def inside(box: SandboxView) -> Iterator[SyncClient]:
    with connect_sync(box.socket) as connected:
        yield connected


@contextmanager
def wire(box: SandboxView | Running, notified: list[Any] | None = None) -> Iterator[Callable[..., Any]]:
    """Raw calls: the whole answer. ``notified`` collects the notifications that come before it."""
    with socket.socket(socket.AF_UNIX) as raw, raw.makefile("rb") as lines:
        raw.settimeout(20)
        raw.connect(box.socket)

        def call(method: str, params: Any) -> Any:
            message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            with suppress(BrokenPipeError):  # Whoever is refused may be so before asking.
                raw.sendall(json.dumps(message).encode() + b"\n")
            while "id" not in (answer := json.loads(lines.readline())):
                if notified is not None:
                    notified.append(answer)
            return answer

        yield call


def at_once(box: SandboxView, calls: list[tuple[str, Any]]) -> list[Any]:
    """The whole answers to calls that reach the daemon together, however busy the machine is, in the calls' order."""
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}).encode() + b"\n"
        for number, (method, params) in enumerate(calls)
    ]
    with socket.socket(socket.AF_UNIX) as raw, raw.makefile("rb") as answers:
        raw.settimeout(20)
        raw.connect(box.socket)
        raw.sendall(b"".join(lines))
        found: dict[int, Any] = {}
        while len(found) < len(calls):
            answer = json.loads(answers.readline())
            found[answer["id"]] = answer
    return [found[number] for number in range(len(calls))]


@contextmanager
def pending(box: SandboxView, calls: list[tuple[str, Any]]) -> Iterator[Callable[[], int]]:
    """Send ``calls`` without waiting. Yields: a function for the number of answers so far."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(box.socket)
        for number, (method, params) in enumerate(calls):
            message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
            raw.sendall(json.dumps(message).encode() + b"\n")
        raw.setblocking(False)
        received = bytearray()

        def answered() -> int:
            with suppress(BlockingIOError):
                while piece := raw.recv(1 << 20):
                    received.extend(piece)
            return received.count(b"\n")

        yield answered


SAMPLES: dict[str, Any] = {
    "object": "0" * 64,
    "objects": ["0" * 64],
    "messages": [{"role": "user", "content": "x"}],
    "content": "x",
    "tool": "bash",
    "command": "ls",
    "output": "a.py",
    "path": "a.py",
    "paths": ["a.py"],
    "subscription": 1,
    "id": "call-1",
    "usage": {"input_tokens": 1, "output_tokens": 1},
    "key": "mode",
    "value": "Plan only.",
    "format": "claude-code-v1",
    "delta": "{}\n",
    "commit": "ctx-00000000",
    "commits": ["ctx-00000000"],
    "query": "foreign",
    "summary": "It works.",
    "tag": "works",
    "upload": "u",
    "artifact": "0" * 64,
}


def sample(method: Method, session: str) -> dict[str, Any]:
    """Parameters that the method takes, with ``session`` in them. Fails for a field that has no sample yet."""
    fields = msgspec.structs.fields(method.params)
    needed = [field.name for field in fields if field.required or field.name in method.positional]
    given = {name: SAMPLES[name] for name in needed if name != "session"}
    return {**given, "session": session} if any(field.name == "session" for field in fields) else given
