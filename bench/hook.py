"""Time of the process of a hook, over that of a bare ``python -S`` that reads as much from standard input, connects to
the same daemon, sends as much and receives a reply. Both have the socket of the interpreter's part in C, without the
module ``socket``, whose import takes as long as the rest of the bare process.

Both are run in turn, each with an event of its own: a call of a tool with an output of 2 KiB. The hook also reads the
end of a transcript of 1 MiB, in which the call and a text before it are.
"""

import json
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from bench import running
from bench.figures import Figure

GOAL = 1.5
HOOK = str(Path(sysconfig.get_path("scripts"), "ctx-hook"))
_TEXT = '{{"type":"assistant","uuid":"text-{}","message":{{"content":[{{"type":"text","text":"I look."}}]}}}}\n'
_CALL = '{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"toolu_{}"}}]}}}}\n'
_RESULT = '{"type":"user","message":{"content":[{"type":"tool_result","content":""}]}}\n'
BARE = """
import sys
from _socket import AF_UNIX, SOCK_STREAM, socket
text = sys.stdin.buffer.read()
wire = socket(AF_UNIX, SOCK_STREAM)
wire.connect(sys.argv[1])
wire.sendall(text)
while not wire.recv(65536).endswith(b"\\n"):
    pass
"""


def run() -> Iterator[Figure]:
    """Return the ratio of the medians."""
    runs = 20 if running.quick() else 100
    hooks: list[float] = []
    bare: list[float] = []
    with running.folder() as place:
        path = place / "ctxd.sock"
        transcript = place / "transcript.jsonl"
        transcript.write_text(f'{{"type":"user","message":"{"x" * 4_096}"}}\n' * 256)
        environ = {"HOME": str(place), "CTXD_SOCKET": str(path), "PATH": os.environ["PATH"]}
        with running.daemon(path, place / "state"):
            for number in range(runs):
                with transcript.open("a") as file:
                    file.write(_RESULT + _TEXT.format(number) + _CALL.format(number))
                hooks.append(_took([HOOK, "claude"], _event(f"toolu_{number}", transcript), environ))
                params = {"harness": "claude-code", "input": _event(f"toolu_bare_{number}", transcript).decode()}
                call = {"jsonrpc": "2.0", "id": 1, "method": "session.hook", "params": params}
                sent = json.dumps(call).encode() + b"\n"
                bare.append(_took([sys.executable, "-S", "-c", BARE, str(path)], sent, environ))
        if any(place.glob(".local/state/ctx-hook/*/*")):
            raise RuntimeError("an event waited for the daemon")
    detail = f"median of {runs}: {median(hooks) * 1e3:.1f} ms over {median(bare) * 1e3:.1f} ms, both durable"
    yield Figure(name="hook", value=median(hooks) / median(bare), goal=GOAL, better="lower", detail=detail)


def _event(call: str, transcript: Path) -> bytes:
    record = {
        "session_id": "bench",
        "transcript_path": str(transcript),
        "cwd": "/",
        "hook_event_name": "PostToolUse",
        "tool_name": "Bash",
        "tool_input": {"command": "ls"},
        "tool_response": {"stdout": "x" * 2_048, "stderr": ""},
        "tool_use_id": call,
    }
    return json.dumps(record).encode()


def _took(command: list[str], stdin: bytes, environ: dict[str, str]) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, input=stdin, capture_output=True, env=environ, timeout=60)
    took = time.perf_counter() - began
    if done.returncode or done.stdout:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()}{done.stdout.decode()}")
    return took
