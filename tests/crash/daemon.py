"""A real daemon in a process of its own, for tests that kill it, starve it or talk nonsense to it."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import msgspec

from tests import programs

START_S_MAX = 20.0
"""Longest wait for a daemon to answer. It takes a second; the rest is for a machine that does other work."""

STOP_S_MAX = 20.0
"""Longest wait for a daemon to end after a signal."""


class NotReady(Exception):
    """The process ended, or did not answer in time. The text holds its exit code and what it said."""


class DaemonProcess:
    """One ``ctxd run`` at a time on one state directory; ``start`` and ``kill`` as often as wanted."""

    def __init__(self, folder: Path, *, env: Mapping[str, str] | None = None) -> None:
        self.state_dir = folder / "state"
        self.socket = folder / "ctxd.sock"
        self.log = folder / "daemon.log"
        self._env = {**os.environ, **(env or {})}
        self._env.pop("CTXD_FAILPOINTS", None)
        self._process: programs.Started | None = None

    @property
    def pid(self) -> int:
        """The process id of the running daemon."""
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """What the process ended with; null while it runs. Minus the signal's number if a signal ended it."""
        assert self._process is not None, "the daemon was not started"
        return self._process.poll()

    def launch(self, *arguments: str, failpoints: str = "") -> None:
        """Start the process and do not wait until it is ready."""
        env = {**self._env, "CTXD_FAILPOINTS": failpoints} if failpoints else self._env
        words = ["run", "--state-dir", self.state_dir, "--socket", self.socket, *arguments]
        with self.log.open("ab") as log:
            self._process = programs.start("ctxd", words, env=env, stderr=log, stdout=log)

    async def start(self, *arguments: str, failpoints: str = "") -> float:
        """Start the process and return the seconds until it accepted a connection.

        Raises: NotReady if it ended or did not come up.
        """
        began = time.monotonic()
        self.launch(*arguments, failpoints=failpoints)
        while not self._accepts():
            if self.exit_code is not None or time.monotonic() - began > START_S_MAX:
                raise NotReady(f"exit code {self.exit_code}: {self.said()}")
            await anyio.sleep(0.005)
        return time.monotonic() - began

    def _accepts(self) -> bool:
        with contextlib.closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
            return probe.connect_ex(str(self.socket)) == 0

    def send(self, signum: int) -> None:
        """Send a signal, if the process still runs."""
        if self.exit_code is None:
            os.kill(self.pid, signum)

    async def ended(self) -> int:
        """The exit code, once the process has ended.

        Raises: TimeoutError after ``STOP_S_MAX``.
        """
        assert self._process is not None, "the daemon was not started"
        process = self._process
        try:
            return await anyio.to_thread.run_sync(lambda: process.wait(STOP_S_MAX))
        except subprocess.TimeoutExpired as error:
            raise TimeoutError(f"the daemon still runs after {STOP_S_MAX} s: {self.said()}") from error

    async def kill(self) -> int:
        """End the process the hard way."""
        self.send(signal.SIGKILL)
        return await self.ended()

    async def stop(self) -> int:
        """Ask the process to end, and return its exit code."""
        self.send(signal.SIGTERM)
        return await self.ended()

    def said(self, bytes_max: int = 4000) -> str:
        """The end of what the daemon wrote to its log."""
        return self.log.read_bytes()[-bytes_max:].decode(errors="replace") if self.log.exists() else ""

    async def verify(self) -> tuple[int, Any]:
        """Exit code and report of ``ctxd verify`` on the state directory."""
        command = [sys.executable, "-m", "ctxd", "verify", "--state-dir", str(self.state_dir), "--json"]
        done = await anyio.run_process(command, check=False, env=self._env)
        try:
            return done.returncode, msgspec.json.decode(done.stdout)
        except msgspec.DecodeError:
            return done.returncode, (done.stdout + done.stderr).decode(errors="replace")

    def fd_count(self) -> int:
        """Open file descriptors of the process."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_mib(self) -> float:
        """Resident memory of the process in MiB."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


@contextlib.contextmanager
def daemon_process(folder: Path, *, env: Mapping[str, str] | None = None) -> Iterator[DaemonProcess]:
    """A daemon to be, on state below ``folder``; none runs any more afterwards."""
    daemon = DaemonProcess(folder, env=env)
    try:
        yield daemon
    finally:
        if daemon._process is not None and daemon.exit_code is None:
            daemon._process.kill()
            daemon._process.wait()
