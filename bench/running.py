"""Processes that a bench measures: started, waited for, and ended whatever happens. Owns no figure."""

import contextlib
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

READY_S_MAX = 30.0


def quick() -> bool:
    """Whether short runs were asked for."""
    return os.environ.get("CTXD_BENCH_QUICK") == "1"


@contextlib.contextmanager
def folder() -> Iterator[Path]:
    """A directory on the disk that the daemon's state would lie on, gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="ctxd-bench-") as made:
        yield Path(made)


def environment(**more: str) -> dict[str, str]:
    """The environment of a program that is measured: its bytecode is kept, as an installation has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | more


@contextlib.contextmanager
def serving(arguments: list[str], path: Path, *, failpoints: str = "") -> Iterator[subprocess.Popen[bytes]]:
    """``python ARGUMENTS``, once it accepts connections on the socket ``path``; asked to end afterwards."""
    env = environment(CTXD_FAILPOINTS=failpoints)
    with Path(f"{path}.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *arguments], env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
    try:
        _until_accepts(process, path)
        yield process
    finally:
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def daemon(
    path: Path, state: Path, *, failpoints: str = ""
) -> contextlib.AbstractContextManager[subprocess.Popen[bytes]]:
    """A real daemon on the socket ``path`` with its state in ``state``."""
    return serving(["-m", "ctxd", "run", "--state-dir", str(state), "--socket", str(path)], path, failpoints=failpoints)


def _until_accepts(process: subprocess.Popen[bytes], path: Path) -> None:
    deadline = time.monotonic() + READY_S_MAX
    while True:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            if probe.connect_ex(str(path)) == 0:
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError(f"{path} does not answer: {Path(f'{path}.log').read_text()[-2000:]}")
        time.sleep(0.01)


def cpu_seconds(pid: int) -> float:
    """Processor time of a process so far, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Caller:
    """A plain blocking connection: one call at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.connect(str(path))
        self._file = self._socket.makefile("rwb")

    def __enter__(self) -> "Caller":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def call(self, method: str, **params: object) -> dict[str, object]:
        """The result of a call.

        Raises: RuntimeError if it was refused.
        """
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._file.write(msgspec.json.encode(request) + b"\n")
        self._file.flush()
        reply = msgspec.json.decode(self._file.readline())
        if "error" in reply:
            raise RuntimeError(f"{method}: {reply['error']}")
        return reply["result"]
