"""Daemons as if on hosts of their own: each in a network namespace without a network, with a machine id of its own.

They meet only in the log behind their nodes.
"""

import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path

import anyio

from ctxd.projection.node_connection import connect
from ctxd.projection.node_maintenance import compared
from ctxd.store.verify import verify
from ctxd_client import CallFailed, connect_sync
from ctxd_client.retry import Retry
from ctxd_client.sync import SyncClient
from tests.programs import Started, start
from tests.waiting import block_until
from tests.xtdb.running import Node, missing

LEASE_S = 2.0
START_S_MAX = 30.0
TEN_MINUTES_MS = 600_000
PROMPT = "You are careful.\n"


class Host:
    """One daemon on ``node``; its state outlives ``kill``."""

    def __init__(self, name: str, node: Node, folder: Path, *, ahead_ms: int = 0) -> None:
        self.name = name
        self.node = node
        self.state = folder / "state"
        self.socket = str(folder / "ctxd.sock")
        self.log = folder / "log"
        self.shared = True
        self.node_wait_s: float | None = None
        """Seconds that it waits for its node to have all rows; None for those of the product."""
        self._ahead_ms = ahead_ms
        self._machine = folder / "machine-id"
        folder.mkdir(parents=True, exist_ok=True)
        self._machine.write_text(sha256(str(folder).encode()).hexdigest()[:32] + "\n")
        self.process: Started | None = None
        self._connected = ExitStack()
        self.client: SyncClient

    def start(self, *, failpoints: str = "") -> "Host":
        settings = {
            "CTXD_STORE_BACKEND": "xtdb",
            "CTXD_STORE_URL": self.node.url,
            "CTXD_STORE_SHARED": str(self.shared).lower(),
            "CTXD_STORE_HOST": self.name,
            "CTXD_STORE_LEASE_S": str(LEASE_S),
            "CTXD_TEST_MACHINE_ID": str(self._machine),
        }
        if failpoints:
            settings["CTXD_FAILPOINTS"] = failpoints
        if self.node_wait_s is not None:
            settings["CTXD_TEST_NODE_WAIT_S"] = str(self.node_wait_s)
        words = [self._ahead_ms, "run", "--socket", self.socket, "--state-dir", self.state]
        with self.log.open("ab") as log:
            self.process = start("ctxd-elsewhere", words, env={**os.environ, **settings}, stdout=log, stderr=log)
        try:
            self.client = self._connected.enter_context(connect_sync(self.socket, wait_s=START_S_MAX))
        except CallFailed as error:
            self.stop()
            raise RuntimeError(self.log.read_text()) from error
        return self

    @property
    def once(self) -> SyncClient:
        """The client with calls that are not repeated: the first failure is raised, whenever it comes."""
        never_s = 1e6
        return SyncClient(self.client._transport, Retry(first_s=never_s, most_s=never_s))

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> None:
        self._connected.close()
        process, self.process = self.process, None
        if process is not None:
            process.send_signal(number)
            process.wait(START_S_MAX)

    def level(self) -> None:
        """Return once the node has the whole journal."""
        block_until(lambda: self.is_level(self.client))

    def is_level(self, client: SyncClient) -> bool:
        """True if the node has the whole journal."""
        status = client.daemon_status().store
        return status.projection is not None and status.projection.seq >= status.head_seq

    def differences(self) -> list[str]:
        """Compare the journal with the node: everything that one of them lacks, or has otherwise."""
        report = anyio.run(compared, self.node.url, self.state, connect, lambda _: None)
        return [*map(str, report.problems)] or ([] if report.equal else [f"{self.name} and its node differ"])

    def agrees(self) -> None:
        """Require that the node has all of the journal, and nothing else under its name."""
        assert self.differences() == []

    def verified(self) -> None:
        """Verify the state directory of a stopped daemon."""
        *_, report = verify(self.state)
        assert report.problems == []


def require_namespaces() -> None:
    done = subprocess.run(["unshare", "-nm", "true"], capture_output=True, check=False)
    if done.returncode != 0:
        missing(f"this user cannot make namespaces: {done.stderr.decode().strip()}")


@contextmanager
def hosts(*all: Host) -> Iterator[tuple[Host, ...]]:
    """``all`` running; whatever state they are in at the end, it is verified."""
    try:
        for host in all:
            host.start()
        yield all
    finally:
        for host in all:
            if host.process is not None:
                host.send(signal.SIGCONT)
                host.stop()
    for host in all:
        host.verified()


Pair = Callable[..., tuple[Host, Host]]


def lived(client: SyncClient, session: str, folder: Path, *, turns: int = 3, calls: int = 4) -> list[str]:
    """A session with a file that changes, tool calls and several assemblies. The texts of the assemblies."""
    folder.mkdir(exist_ok=True)
    client.session_create("agent", session=session, system_prompt=PROMPT, workdir=str(folder), labels={"k": "v"})
    s = client.session(session)
    texts = []
    for turn in range(turns):
        s.user(f"turn {turn}")
        (folder / "notes.txt").write_text(f"as of turn {turn}\n")
        s.read("notes.txt")
        for n in range(calls):
            s.tool("bash", {"n": n}, output=f"{session} {turn} {n}", id=f"{session}-{turn}-{n}")
        texts.append(s.assemble().text)
    return texts


def shown(client: SyncClient, session: str) -> list[str]:
    """Every recorded assembly, rendered again."""
    records = client.context_list(session).assemblies
    return [client.context_show(session, number=record.number).text for record in records]


def set_aside(host: Host, session: str) -> None:
    """Pause the session: then any host may resume it."""
    host.client.session_pause(session)
    assert host.client.session_owner(session).released


def taken_over(host: Host, session: str) -> None:
    """Resume a session of a host that does not answer any more, as soon as its lease allows."""

    def attempt() -> bool:
        try:
            host.client.session_resume(session)
        except CallFailed as error:
            assert error.code in ("session_owned_elsewhere", "store_unavailable")
            assert error.retry_after_ms
            return False
        return True

    block_until(attempt)
