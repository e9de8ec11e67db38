"""A real daemon in a process of its own, for tests of the client and of the command line."""

import os
import signal
from pathlib import Path
from typing import Self

from ctxd_client import CallFailed, connect_sync
from tests import programs

START_S_MAX = 30.0
"""Seconds that a daemon may take from its start to its first answer, on a busy machine."""


class Running:
    """``ctxd run`` at ``socket``; with ``keep_state`` it keeps its state over ``kill`` and ``start``.

    ``watcher``: the setting of that name. By default no file is followed: most tests change a file and then report it,
    and a daemon that follows it could be first.
    """

    def __init__(self, folder: Path, *, keep_state: bool = False, watcher: str = "off") -> None:
        self._env = {**os.environ, "CTXD_TRACKING_WATCHER": watcher}
        self.folder = folder
        self.socket = str(folder / "ctxd.sock")
        self._state = ["--state-dir", str(folder / "state")] if keep_state else ["--ephemeral"]
        self._log = folder / "ctxd.log"
        self._process: programs.Started | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._end(signal.SIGTERM)

    @property
    def pid(self) -> int:
        """The process id of the running daemon."""
        assert self._process is not None, "the daemon was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait for its first answer."""
        with self._log.open("ab") as log:
            words = ["run", "--socket", self.socket, *self._state]
            self._process = programs.start("ctxd", words, stdout=log, stderr=log, env=self._env)
        try:
            with connect_sync(self.socket, wait_s=START_S_MAX):
                pass
        except CallFailed as error:
            self._end(signal.SIGKILL)
            raise RuntimeError(self._log.read_text()) from error

    def kill(self) -> None:
        """End it as a power cut would."""
        self._end(signal.SIGKILL)

    def ended(self) -> int:
        """Wait for it to end by itself. Returns: its exit code, negative for a signal."""
        assert self._process is not None
        return self._process.wait(START_S_MAX)

    def _end(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(START_S_MAX)
            self._process = None
