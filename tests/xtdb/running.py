"""Real XTDB nodes, and a real PostgreSQL, in processes of their own for tests.

    with node("rocksdb", directory=tmp_path) as running:
        ...  # running.url; running.kill(), .stop(), .pause(), .cont(), .start(), .restart()

Without Java, Maven or PostgreSQL the test is skipped with the reason; with ``CTXD_REQUIRE_XTDB=1`` it fails.
"""

import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from ctxd.backends.xtdb.node.install import install
from ctxd.backends.xtdb.node.launch import Launch, command, find_config, start
from ctxd.backends.xtdb.node.node_layout import EXIT_MISSING, Installation, NodeFailure

START_S_MAX = 60.0
"""Seconds that a node may take from its start until it serves, on a busy machine."""

STOP_S_MAX = 30.0
LAST_WORDS = 20
"""Lines of its output that are shown of a node that ended."""

QUICK = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that starts sooner and is slower at its peak."""


def missing(what: str) -> NoReturn:
    """Skip the test for what the machine lacks; fail it where the machine has to have it."""
    if os.environ.get("CTXD_REQUIRE_XTDB") == "1":
        pytest.fail(f"CTXD_REQUIRE_XTDB=1, but {what}")
    pytest.skip(what)


@functools.cache
def _installed() -> Installation | NodeFailure:
    home = os.environ.get("CTXD_XTDB_HOME") or Path(__file__).parents[2] / ".xtdb"
    made = Installation(Path(home).absolute())
    try:
        install(made, lambda line: print(f"xtdb: {line}", file=sys.stderr), os.environ)
    except NodeFailure as failure:
        return failure
    return made


def prepare() -> None:
    """Install the node if that has not been done, however long it takes; ``installation`` returns it."""
    _installed()


def installation() -> Installation:
    """The node that tests start: installed once, in ``$CTXD_XTDB_HOME`` or ``.xtdb`` beside the tests."""
    found = _installed()
    if isinstance(found, Installation):
        return found
    if found.exit_code == EXIT_MISSING:
        missing(f"{found.message}. {found.remedy}")
    raise found


class Node:
    """A node at ``url`` with its data in ``data``. It keeps both over ``kill`` or ``stop`` and ``start``."""

    def __init__(self, launch: Launch, directory: Path, environ: Mapping[str, str]) -> None:
        self.url = launch.url
        self.data = launch.data
        self.log = directory / "node.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._launch = launch
        self._environ = {**os.environ, **environ}

    @property
    def socket(self) -> str:
        """The path of its socket."""
        return self.url.removeprefix("unix:")

    def start(self) -> None:
        """Start it, and wait until it serves. Raises: NodeFailure with the end of its log."""
        arguments = command(installation(), self._launch, self._environ)
        self.process = start(arguments, self._environ, log=self.log, ready_s=START_S_MAX)

    def stop(self) -> None:
        """End it in order (SIGTERM), and wait until it has ended."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL). It may be paused."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Pause it (SIGSTOP): it takes connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def cont(self) -> None:
        """Continue it after ``pause``."""
        self._send(signal.SIGCONT)

    def restart(self) -> None:
        """Kill it, and start it again on the same data."""
        self.kill()
        self.start()

    def require_alive(self, *, within_s: float = 0.0) -> None:
        """Raises: NodeFailure with its last words if its process has ended by itself, or does so ``within_s``."""
        if self.process is None:
            return
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(within_s)
        if (code := self.process.returncode) is None:
            return
        assert self.process.stdout is not None
        # The JVM reports a lack of memory on standard output.
        lines = [*self.log.read_text(errors="replace").splitlines(), *self.process.stdout.read().decode().splitlines()]
        words = "\n".join(lines[-LAST_WORDS:])
        raise NodeFailure(
            f"the node at {self.url} ended with {code}:\n{words}", remedy=f"Its log is {self.log}.", exit_code=1
        )

    def wipe(self) -> None:
        """Remove all its data. It has to be stopped."""
        assert self.process is None, "a running node's data is not removed"
        shutil.rmtree(self.data)

    def _send(self, number: signal.Signals) -> None:
        assert self.process is not None, "the node is not running"
        self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        with process:
            process.send_signal(number)
            try:
                process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


@contextmanager
def node(
    config: str = "memory",
    directory: Path | None = None,
    *,
    heap: str = "512m",
    environ: Mapping[str, str] | None = None,
    limits: str | None = None,
    tcp: str | None = None,
    java_options: Sequence[str] = QUICK,
) -> Iterator[Node]:
    """A node of ``memory``, ``rocksdb``, ``postgres`` (with ``environ=postgres.environ``) or of a file of EDN.

    Its data and its log are in ``directory``, or in one of its own that goes with it. It serves when this is entered.
    """
    installation()
    with tempfile.TemporaryDirectory(prefix="xtdb-") as short:
        directory = directory or Path(short)
        launch = Launch(
            find_config(config),
            directory / "data",
            Path(short, "s"),
            tcp=tcp,
            heap=heap,
            limits=limits,
            java_options=java_options,
        )
        running = Node(launch, directory, environ or {})
        running.start()
        try:
            yield running
        finally:
            running.kill()


@dataclass(frozen=True)
class Postgres:
    """A PostgreSQL on loopback with one empty database. ``environ`` configures nodes for it."""

    host: str
    port: int
    database: str
    user: str
    password: str
    data: Path

    def pause(self) -> None:
        """Pause all its processes (SIGSTOP): it takes connections and answers nothing."""
        self._send(signal.SIGSTOP)

    def cont(self) -> None:
        """Continue it after ``pause``."""
        self._send(signal.SIGCONT)

    def _send(self, number: signal.Signals) -> None:
        postmaster = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        os.kill(postmaster, number)
        children = Path(f"/proc/{postmaster}/task/{postmaster}/children").read_text().split()
        for child in map(int, children):
            with suppress(ProcessLookupError):
                os.kill(child, number)

    @property
    def environ(self) -> dict[str, str]:
        """Environment of a node of ``postgres``."""
        fields = {"HOST": self.host, "PORT": self.port, "DATABASE": self.database, "USER": self.user}
        return {f"CTXD_XTDB_PG_{name}": str(value) for name, value in fields.items()} | {
            "CTXD_XTDB_PG_PASSWORD": self.password
        }


@contextmanager
def postgres() -> Iterator[Postgres]:
    """A PostgreSQL of its own, run by a user who is not root, with its data in a directory that goes with it."""
    programs = _postgres_programs()
    who = _unprivileged()
    with tempfile.TemporaryDirectory(prefix="pg-") as name:
        directory = Path(name)
        directory.chmod(0o755)
        data = directory / "data"
        data.mkdir(mode=0o700)
        if who is not None:
            os.chown(data, who.pw_uid, who.pw_gid)
        port = _free_port()

        def run(*arguments: str) -> None:
            as_user = {} if who is None else {"user": who.pw_uid, "group": who.pw_gid, "extra_groups": []}
            done = subprocess.run(
                arguments, cwd=data, capture_output=True, text=True, check=False, timeout=60, **as_user
            )  # type: ignore[call-overload]
            assert done.returncode == 0, f"{arguments}: {done.stdout}{done.stderr}"

        control = str(programs / "pg_ctl")
        run(str(programs / "initdb"), "-D", str(data), "-U", "xtdb", "-A", "trust", "-E", "UTF8", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories= -c fsync=off"
        run(control, "-D", str(data), "-l", str(data / "log"), "-o", options, "-w", "start")
        try:
            run(str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", "xtdb", "xtdb")
            yield Postgres("127.0.0.1", port, "xtdb", "xtdb", "", data)
        finally:
            run(control, "-D", str(data), "-m", "immediate", "-w", "stop")


def _postgres_programs() -> Path:
    known = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), reverse=True)
    on_path = shutil.which("initdb")
    for directory in [*known, *([Path(os.path.realpath(on_path)).parent] if on_path else [])]:
        if (directory / "initdb").exists():
            return directory
    return missing("there is no PostgreSQL (Debian: apt-get install postgresql)")


def _unprivileged() -> pwd.struct_passwd | None:
    """User to run PostgreSQL as, which refuses root; ``None``: the current one."""
    if os.geteuid() != 0:
        return None
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    return missing("there is no user who could run PostgreSQL instead of root")


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
