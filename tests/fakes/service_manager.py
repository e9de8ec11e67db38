"""A service manager for tests: it does for one ``ctxd run`` what systemd does for a unit of ``Type=notify``.

It listens on the unit's socket and hands it over, keeps what is stored with it over restarts, reads what the daemon
says of itself, and notices when a sign of life is overdue. What it does itself is a test's word: nothing is restarted
that a test did not restart.
"""

import array
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 30.0
"""Seconds that a test waits for the daemon to say something."""

_EXEC = """
import os, sys
os.environ["LISTEN_PID"] = os.environ["WATCHDOG_PID"] = str(os.getpid())
os.execv(sys.executable, [sys.executable, "-m", "ctxd", "run", *sys.argv[1:]])
"""


class Overdue(Exception):
    """No sign of life within the watchdog's time."""


class ServiceManager:
    """One unit with the socket ``folder``/ctxd.sock. ``watchdog_s`` null: no watchdog."""

    def __init__(self, folder: Path, *, watchdog_s: float | None = None, env: Mapping[str, str] | None = None) -> None:
        self.socket, self.state_dir, self.log = folder / "ctxd.sock", folder / "state", folder / "daemon.log"
        self._env = {**os.environ, "CTXD_TRACKING_WATCHER": "off", **(env or {})}
        self._watchdog_s = watchdog_s
        self._notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notified.bind(str(folder / "notify"))
        self._env["NOTIFY_SOCKET"] = str(folder / "notify")
        self._listener = socket.socket(socket.AF_UNIX)
        os.fchmod(self._listener.fileno(), 0o600)
        self._listener.bind(str(self.socket))
        self._listener.listen(1024)
        self.stored: dict[str, int] = {}
        self.said: list[dict[str, str]] = []
        self._alive_at: float | None = None
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def start(self, *arguments: str, failpoints: str = "") -> None:
        """Start the daemon and wait until it is ready."""
        self.launch(*arguments, failpoints=failpoints)
        self.until("READY")

    def launch(self, *arguments: str, failpoints: str = "") -> None:
        """Start the daemon."""
        handed = [("ctxd.socket", self._listener.fileno()), *self.stored.items()]
        env = {**self._env, "LISTEN_FDS": str(len(handed)), "LISTEN_FDNAMES": ":".join(name for name, _ in handed)}
        if self._watchdog_s is not None:
            env["WATCHDOG_USEC"] = str(int(self._watchdog_s * 1e6))
        if failpoints:
            env["CTXD_FAILPOINTS"] = failpoints
        self.said = []
        first, count = 3, len(handed)
        # Out of the way first: a descriptor that is handed over may have a number that another one is to have.
        high = [os.dup(fd) for _, fd in handed]

        def arrange() -> None:
            above = [_dup_above(fd, first + count) for fd in high]
            for number, fd in enumerate(above):
                os.dup2(fd, first + number, inheritable=True)

        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _EXEC, "--state-dir", str(self.state_dir), *arguments],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=arrange,
                close_fds=False,
            )
        for fd in high:
            os.close(fd)
        # As systemd's, the watchdog counts from readiness on; until then only the time to start does.
        self._alive_at = None

    def until(self, name: str, value: str | None = None, seconds: float = WAIT_S) -> dict[str, str]:
        """The message that sets ``name``, to ``value`` if one is given; what comes before it is taken note of.

        Raises: TimeoutError; Overdue, when the watchdog's time is over first.
        """
        deadline = time.monotonic() + seconds
        while True:
            ends = deadline
            if self._watchdog_s is not None and self._alive_at is not None:
                ends = min(ends, self._alive_at + self._watchdog_s)
            message = self._hear(max(0.0, ends - time.monotonic()))
            if message is None:
                if ends < deadline:
                    raise Overdue(self.tail())
                raise TimeoutError(f"{name}: {self.said} {self.tail()}")
            if name in message and value in (None, message[name]):
                return message

    def _hear(self, seconds: float) -> dict[str, str] | None:
        self._notified.settimeout(max(seconds, 0.001))
        try:
            data, rights, _, _ = self._notified.recvmsg(4096, socket.CMSG_SPACE(64))
        except TimeoutError:
            return None
        message = dict(line.split("=", 1) for line in data.decode().splitlines())
        self.said.append(message)
        fds = array.array("i")
        for _, _, content in rights:
            fds.frombytes(content[: len(content) // fds.itemsize * fds.itemsize])
        if "FDSTORE" in message:
            (self.stored[message["FDNAME"]],) = fds
        if "FDSTOREREMOVE" in message and message["FDNAME"] in self.stored:
            os.close(self.stored.pop(message["FDNAME"]))
        if "WATCHDOG" in message or "READY" in message:
            self._alive_at = time.monotonic()
        return message

    def until_logged(self, text: str) -> None:
        """Wait until the daemon's log holds ``text``. Raises: TimeoutError."""
        deadline = time.monotonic() + WAIT_S
        while text not in self.tail():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{text}: {self.tail()}")
            time.sleep(0.01)

    def hear_all(self) -> None:
        """Take note of what was said so far."""
        while self._hear(0) is not None:
            pass

    def end(self, number: int = signal.SIGTERM) -> int:
        """Send the daemon a signal and wait for its end. The exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        code = self.process.wait(WAIT_S)
        self.hear_all()
        return code

    def tail(self) -> str:
        """The end of the daemon's log."""
        return self.log.read_text()[-3000:] if self.log.exists() else ""

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in self.stored.values():
            os.close(fd)
        self._listener.close()
        self._notified.close()


def _dup_above(fd: int, least: int) -> int:
    import fcntl

    return fcntl.fcntl(fd, fcntl.F_DUPFD, least)


@contextmanager
def service_manager(
    folder: Path, *, watchdog_s: float | None = None, env: Mapping[str, str] | None = None
) -> Iterator[ServiceManager]:
    """A manager whose daemon is gone afterwards."""
    made = ServiceManager(folder, watchdog_s=watchdog_s, env=env)
    try:
        yield made
    finally:
        made.close()
