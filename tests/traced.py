"""Daemon that reports which functions of ours it enters: ``python -m tests.traced CONTROL_SOCKET CTXD_ARGUMENTS``.

``Traced.enters(call)`` returns them for one call. A daemon does other work now and then (it checkpoints, it writes its
high-water mark), so ``fewest`` takes samples until one is within the budget.
"""

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[1]
OURS = tuple(str(ROOT / folder) + "/" for folder in ("ctxd", "ctxd_client", "protocol"))
START_S_MAX = 30.0
SAMPLES_MAX = 60


class Entered(NamedTuple):
    """The modules, by their paths in the repository, and the functions, as ``path:qualified name``."""

    modules: frozenset[str]
    functions: frozenset[str]

    def within(self, budget: tuple[int, int]) -> bool:
        """Whether there are as many modules and functions at most."""
        return len(self.modules) <= budget[0] and len(self.functions) <= budget[1]


class Traced:
    """A running daemon. ``socket`` is where it serves."""

    def __init__(self, control: Path, serving: Path) -> None:
        self._control = control
        self.socket = serving

    def enters(self, call: Callable[[], object], *, under: str = "") -> Entered:
        """The functions that the daemon enters during ``call``; with ``under`` only those called, however indirectly,
        from a module whose path contains it."""
        self._ask(f"on {under}")
        call()
        rows = [row.split("\t") for row in self._ask("off").splitlines()]
        # Comprehensions and lambdas are parts of the function that they stand in.
        functions = frozenset(f"{path}:{name}" for path, name in rows if "<" not in name.rpartition(".")[2])
        return Entered(frozenset(path for path, _ in rows), functions)

    def _ask(self, text: str) -> str:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.connect(str(self._control))
            peer.sendall(text.encode())
            peer.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: peer.recv(65536), b"")).decode()


def fewest(sample: Callable[[], Entered], budget: tuple[int, int]) -> Entered:
    """The first of many samples that is within ``budget``, else the smallest: on a busy machine a call is slow, and
    rounds of other tasks come in between."""
    smallest = sample()
    for _ in range(SAMPLES_MAX):
        if smallest.within(budget):
            break
        smallest = min(smallest, sample(), key=lambda entered: len(entered.functions))
    return smallest


@contextmanager
def traced(folder: Path, env: Mapping[str, str] | None = None) -> Iterator[Traced]:
    """A daemon with its state below ``folder``, ended afterwards."""
    daemon = Traced(folder / "trace.sock", folder / "ctxd.sock")
    arguments = ["run", "--state-dir", str(folder / "state"), "--socket", str(daemon.socket)]
    command = [sys.executable, "-m", "tests.traced", str(folder / "trace.sock"), *arguments]
    log = folder / "daemon.log"
    with log.open("wb") as out:
        process = subprocess.Popen(command, cwd=ROOT, env={**os.environ, **(env or {})}, stdout=out, stderr=out)
    try:
        ends = time.monotonic() + START_S_MAX
        while True:
            with socket.socket(socket.AF_UNIX) as probe, suppress(OSError):
                probe.connect(str(daemon.socket))
                break
            assert process.poll() is None and time.monotonic() < ends, log.read_text()
            time.sleep(0.02)
        yield daemon
    finally:
        process.terminate()
        process.wait(30)


class _Tracer:
    """Profiles every thread of this process while it is on."""

    def __init__(self, control: str) -> None:
        self._found: set[tuple[str, str]] | None = None
        self._under = ""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(control)
        self._listener.listen()
        threading.Thread(target=self._serve, daemon=True).start()
        threading.setprofile(self._note)
        sys.setprofile(self._note)

    def _note(self, frame: FrameType, event: str, _: Any) -> None:
        found, code = self._found, frame.f_code
        if found is None or event != "call" or not code.co_filename.startswith(OURS):
            return
        if not self._under or _is_called_from(frame, self._under):
            found.add((os.path.relpath(code.co_filename, ROOT), code.co_qualname))

    def _serve(self) -> None:
        while True:
            peer, _ = self._listener.accept()
            with peer:
                word, _, under = b"".join(iter(lambda peer=peer: peer.recv(4096), b"")).decode().partition(" ")
                if word == "on":
                    self._under, self._found = under, set()
                else:
                    found, self._found = self._found or set(), None
                    peer.sendall("\n".join("\t".join(row) for row in sorted(found)).encode())


def _is_called_from(frame: FrameType, part: str) -> bool:
    each: FrameType | None = frame
    while each is not None:
        if part in each.f_code.co_filename:
            return True
        each = each.f_back
    return False


if __name__ == "__main__":
    _Tracer(sys.argv.pop(1))
    from ctxd.__main__ import main

    sys.argv[0] = "ctxd"
    main()
