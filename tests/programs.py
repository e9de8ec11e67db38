"""``ctx`` and ``ctxd`` in processes of their own, without the time that a start takes.

Half of what a run of a program costs is the interpreter and its imports: 0.4 s of a processor for the daemon. A server
process imports both programs once, and forks itself for each run. What it forks is a process as any other, with its
own arguments, environment, directory and descriptors, and ends as one. Where a start itself matters, as with variables
that Python or the imports read, the program is executed. With ``CTXD_TEST_START=exec`` all of them are.
"""

import atexit
import gc
import importlib
import marshal
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any, Final, Literal, NoReturn

Name = Literal["ctx", "ctxd", "ctxd-elsewhere"]
"""``ctxd-elsewhere``: ``tests.xtdb.skewed``, the daemon of another host."""

SCRIPTS: Final = Path(sysconfig.get_path("scripts"))

_REQUEST_BYTES_MAX: Final = 128 * 1024
_READ_AT_START: Final = ("PYTHON", "LC_", "LANG", "LD_", "MALLOC_", "CTXD_FAILPOINTS", "TZ")
"""Beginnings of the names of variables that the interpreter, the C library or an import reads."""

LIMIT_S: Final = 60.0
"""Seconds that a run may take."""


class Forked:
    """A program that the server has forked, with what the tests use of ``subprocess.Popen``."""

    def __init__(self, status: IO[bytes]) -> None:
        self._status = status
        self._lock = threading.Lock()
        self.pid = int(status.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the program runs."""
        if self.returncode is None and self._has_ended(0):
            return self.wait()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end of the program. Raises: subprocess.TimeoutExpired."""
        if not self._has_ended(timeout):
            raise subprocess.TimeoutExpired("a forked program", timeout or 0)
        with self._lock:
            if self.returncode is None:
                self.returncode = int(self._status.readline())
                self._status.close()
            return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the program has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """End it as a service manager does."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.send_signal(signal.SIGKILL)

    def _has_ended(self, timeout: float | None) -> bool:
        if self.returncode is not None:
            return True
        ready = select.poll()
        ready.register(self._status, select.POLLIN)
        return bool(ready.poll(None if timeout is None else timeout * 1000))


Started = Forked | subprocess.Popen[bytes]


def start(
    program: Name,
    words: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
) -> Started:
    """Start ``program``. ``stdin``, ``stdout`` and ``stderr``: descriptors, or ``subprocess.DEVNULL``."""
    executed = [sys.executable, "-m", "tests.xtdb.skewed"] if program == "ctxd-elsewhere" else [str(SCRIPTS / program)]
    command = [*executed, *map(str, words)]
    env = dict(os.environ if env is None else env)
    request = marshal.dumps((program, [executed[-1], *map(str, words)], env, str(cwd or Path.cwd())))
    if os.environ.get("CTXD_TEST_START") == "exec" or _matters_at_start(env) or len(request) > _REQUEST_BYTES_MAX:
        return subprocess.Popen(command, env=env, cwd=cwd, stdin=stdin, stdout=stdout, stderr=stderr)
    given = [stdin, stdout, stderr]
    with open(os.devnull, "r+b") as null:
        numbers = [
            null.fileno() if each == subprocess.DEVNULL else each if isinstance(each, int) else each.fileno()
            for each in given
        ]
        return Forked(_server().fork(request, numbers))


def run(
    program: Name,
    words: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: str = "",
    timeout: float = LIMIT_S,
) -> subprocess.CompletedProcess[str]:
    """Run ``program`` on pipes to its end, as ``subprocess.run`` does. Raises: subprocess.TimeoutExpired."""
    done = run_bytes(program, words, env=env, cwd=cwd, input=input.encode(), timeout=timeout)
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


def run_bytes(
    program: Name,
    words: Sequence[object],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    input: bytes = b"",
    timeout: float = LIMIT_S,
) -> subprocess.CompletedProcess[bytes]:
    """Run ``program`` as ``run`` does, with input and output as bytes."""
    given, said, failed = os.pipe(), os.pipe(), os.pipe()
    try:
        made = start(program, words, env=env, cwd=cwd, stdin=given[0], stdout=said[1], stderr=failed[1])
    finally:
        for fd in (given[0], said[1], failed[1]):
            os.close(fd)
    found: dict[int, bytes] = {}

    def read(fd: int) -> None:
        with open(fd, "rb") as file:
            found[fd] = file.read()

    def write() -> None:
        with suppress(BrokenPipeError), open(given[1], "wb") as file:  # It may end without reading all of it.
            file.write(input)

    work = [threading.Thread(target=read, args=(fd,), daemon=True) for fd in (said[0], failed[0])]
    work.append(threading.Thread(target=write, daemon=True))
    for each in work:
        each.start()
    try:
        code = made.wait(timeout)
    except subprocess.TimeoutExpired:
        made.kill()
        raise
    for each in work:
        each.join(timeout)
    return subprocess.CompletedProcess([program, *map(str, words)], code, found[said[0]], found[failed[0]])


def _matters_at_start(env: Mapping[str, str]) -> bool:
    """True if what is read at a start is not as the server has it."""
    return any(env[name] != os.environ.get(name) for name in env if name.startswith(_READ_AT_START))


class _Server:
    """The process that forks."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.programs", str(theirs.fileno())],
                cwd=Path(__file__).parents[1], stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno()],
            )  # fmt: skip

    def fork(self, request: bytes, fds: Sequence[int]) -> IO[bytes]:
        """Send ``request``. Returns: what reads the id of the process, and once it has ended its exit code."""
        read, written = os.pipe()
        try:
            with self._lock:
                socket.send_fds(self._requests, [request], [*fds, written])
        finally:
            os.close(written)
        return open(read, "rb")

    def close(self) -> None:
        """End it; what it has forked runs on."""
        self._requests.close()
        self._process.wait(LIMIT_S)


@cache
def _server() -> _Server:
    made = _Server()
    atexit.register(made.close)
    return made


# --- in the server ---


def _serve(requests: socket.socket) -> tuple[Name, list[str]]:
    """Fork for each request. Returns: in a forked process, the program and its arguments."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES_MAX, 4)
        if not data:
            os._exit(0)
        program, command, env, cwd = marshal.loads(data)
        if command[1:2] == ["mcp"]:
            _import_mcp()
        if not os.fork():
            requests.close()
            _supervise(fds, env, cwd)
            return program, command
        for fd in fds:
            os.close(fd)


def _supervise(fds: Sequence[int], env: Mapping[str, str], cwd: str) -> None:
    """Fork once more, and report the end of that process. Returns: in that process, which is the program's."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *standard, status = fds
    child = os.fork()
    if not child:
        os.close(status)
        _become(standard, env, cwd)
        return
    for fd in (*standard, 0, 1, 2):
        os.close(fd)
    os.write(status, b"%d\n" % child)
    _, ended = os.waitpid(child, 0)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(ended))
    os._exit(0)


def _become(standard: Sequence[int], env: Mapping[str, str], cwd: str) -> None:
    """Take descriptors, environment and directory as a new process has them."""
    for number, fd in enumerate(standard):
        os.dup2(fd, number)
    for fd in standard:
        os.close(fd)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(cwd)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin = open(0, encoding="utf-8", closefd=False)
    sys.stdout = open(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = open(2, "w", 1, encoding="utf-8", errors="backslashreplace", closefd=False)


def _import_programs() -> None:
    import ctxd.cli
    import ctxd.commands
    import ctxd.daemon

    for package in (ctxd.cli, ctxd.commands):
        for module in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
            if module.name != "ctxd.cli.mcp_server":
                importlib.import_module(module.name)


def _import_mcp() -> None:
    """The official package, which takes a second: for the first of its runs only."""
    with suppress(ImportError):  # The program says so.
        importlib.import_module("ctxd.cli.mcp_server")


def _main(fd: int) -> NoReturn:
    _import_programs()
    gc.freeze()
    program, sys.argv = _serve(socket.socket(fileno=fd))
    main: Callable[[], None]
    if program == "ctx":
        from ctxd.cli.entry_point import main
    elif program == "ctxd":
        from ctxd.__main__ import main
    else:
        from tests.xtdb.skewed import main
    main()
    sys.exit()


if __name__ == "__main__":
    _main(int(sys.argv[1]))
