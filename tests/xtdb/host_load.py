"""A random load on three hosts that share one log, with faults, and an oracle of everything they acknowledged.

    with cluster(folder) as three:
        load = Load(three, seed=7)
        load.run(seconds=100)
        report = load.settle()

The oracle is outside the daemons: it keeps every acknowledgement, and compares them with the hosts once the
load is over, every process runs again, and the log is reachable.
"""

import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME
from ctxd.projection.owner_record import Owner, from_doc, owner_id
from ctxd_client import CallFailed
from ctxd_protocol.session_types import SessionSummary
from tests.xtdb.hosts import TEN_MINUTES_MS, Host, require_namespaces
from tests.xtdb.running import Node, Postgres, node, postgres

SESSIONS = 4
LEVEL_S_MAX = 60.0
"""Seconds after the load within which every host has to be level with its journal."""

ROWS_MAX = 3.0
"""Journal rows of all hosts for one acknowledged write, at most."""

FAULTS = ("corrupt", "internal_error", "data_loss")
"""Codes of errors that no fault of a node, a log or another host may cause."""

WRITE_S = 3.0
RESUME_S = 8.0
PAUSE_S = 3.0
ACTIONS = (
    ("write", 60), ("read", 6), ("assemble", 8), ("pause", 4), ("resume", 12), ("hand_over", 3), ("back_and_forth", 2),
    ("purge", 2), ("kill", 1), ("stall", 1), ("stop_node", 1),
)  # fmt: skip


@dataclass
class Acknowledged:
    """Everything that a host confirmed, by session: ids of tool calls, and texts of messages."""

    calls: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    messages: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    count: Counter[str] = field(default_factory=Counter)

    @property
    def writes(self) -> int:
        return self.count.total()


Contents = tuple[dict[str, list[str]], dict[str, list[str]]]
"""The session and the branches that have each tool call, and each message, by its id or text."""


@dataclass(frozen=True)
class Compared:
    """Acknowledged writes that are not where they should be: nowhere; in several branches and not in the session; and
    either of these in a session whose claim is still open, which its host may have yet to read."""

    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    unsettled: list[str] = field(default_factory=list)


def compare(kept: Acknowledged, contents: Mapping[str, Contents], open_claims: Container[str]) -> Compared:
    """Compare what was acknowledged with the ``contents`` of each session. ``open_claims``: the unsettled sessions."""
    compared = Compared()
    for session, (calls, said) in contents.items():
        for wanted, found in ((kept.calls[session], calls), (kept.messages[session], said)):
            for id in sorted(wanted):
                where = found.get(id, [])
                if session in where or len(where) == 1:
                    continue
                if session in open_claims:
                    compared.unsettled.append(f"{session}: {id} in {where}")
                elif where:
                    compared.doubled.append(f"{session}: {id} in {where}")
                else:
                    compared.lost.append(f"{session}: {id}")
    return compared


@dataclass(frozen=True)
class Report:
    """The state of the hosts after the load. ``lost``, ``doubled`` and ``unsettled`` name writes, ``unrendered``
    assemblies; ``unsettled`` also the sessions whose claims are still open."""

    seed: int
    acknowledged: int
    rows: int
    lost: list[str]
    doubled: list[str]
    unsettled: list[str]
    unrendered: list[str]
    unlevel: list[str]
    different: list[str]
    level_s: float
    branches: int
    faults: list[str]
    actions: dict[str, int]
    refusals: dict[str, int]

    @property
    def kept(self) -> bool:
        """True if every promise was kept."""
        broken = self.lost or self.doubled or self.unsettled or self.unrendered
        return not (broken or self.unlevel or self.different or self.faults) and self.rows_per_write < ROWS_MAX

    @property
    def rows_per_write(self) -> float:
        return self.rows / max(1, self.acknowledged)


@dataclass(frozen=True)
class Cluster:
    hosts: tuple[Host, ...]
    nodes: tuple[Node, ...]
    log: Postgres

    def require_nodes(self, *, within_s: float = 0.0) -> None:
        """Raises: NodeFailure if a node's process has ended, or does so ``within_s``, which no fault of a load does."""
        for its in self.nodes:
            its.require_alive(within_s=within_s)


@contextmanager
def cluster(folder: Path, *, names: tuple[str, ...] = ("alpha", "beta", "gamma"), seed: int = 0) -> Iterator[Cluster]:
    """Three hosts, each a daemon and a node, on one PostgreSQL log. The nodes keep data and logs in ``folder``."""
    require_namespaces()
    rng = random.Random(seed)
    with ExitStack() as stack:
        log = stack.enter_context(postgres())
        nodes = tuple(
            stack.enter_context(node("postgres", folder / f"{name}-node", environ=log.environ)) for name in names
        )
        ahead = [rng.choice((0, 0, TEN_MINUTES_MS, -TEN_MINUTES_MS)) for _ in names]
        made = tuple(
            Host(name, its, folder / name, ahead_ms=ms) for name, its, ms in zip(names, nodes, ahead, strict=True)
        )
        three = Cluster(made, nodes, log)
        try:
            for host in made:
                host.start()
            yield three
        except BaseException:
            # A call that failed because a node ended is not the cause.
            three.require_nodes(within_s=1)
            raise
        finally:
            log.cont()
            for its in nodes:
                its.cont()
            for host in made:
                if host.process is not None:
                    host.send(signal.SIGCONT)
                    host.stop()
    for host in made:
        host.verified()


class Load:
    """``run`` for a time, then ``settle``. One thread works on each host, another stops and continues the log."""

    def __init__(self, three: Cluster, *, seed: int, faults: bool = True) -> None:
        self.three = three
        self.seed = seed
        self.kept = Acknowledged()
        self.sessions = [f"s{seed}-{n}" for n in range(SESSIONS)]
        self.actions: Counter[str] = Counter()
        self.refusals: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self._faults = faults
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        rng = random.Random(seed)
        for session in self.sessions:
            rng.choice(three.hosts).client.session_create("agent", session=session, filesystem_id="nfs-1")

    def run(self, seconds: float) -> None:
        """Work for ``seconds``. Raises: what a worker did not expect."""
        workers = [_Worker(self, number) for number in range(len(self.three.hosts))]
        threads = [threading.Thread(target=self._guarded, args=(worker.work,)) for worker in workers]
        if self._faults:
            threads.append(threading.Thread(target=self._guarded, args=(self._stop_the_log,)))
        for thread in threads:
            thread.start()
        self._guarded(partial(self._watch_nodes, time.monotonic() + seconds))
        self._over.set()
        for thread in threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _watch_nodes(self, until: float) -> None:
        while not self._over.wait(min(1.0, max(0.0, until - time.monotonic()))) and time.monotonic() < until:
            self.three.require_nodes()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - a failed thread must fail the test
            self._failures.append(error)
            self._over.set()

    def _stop_the_log(self) -> None:
        rng = random.Random(f"{self.seed} log")
        while not self._over.wait(rng.uniform(15, 40)):
            with self.count("stop_log"):
                self.three.log.pause()
                self._over.wait(rng.uniform(1, 8))
                self.three.log.cont()

    @contextmanager
    def count(self, action: str) -> Iterator[None]:
        try:
            yield
        except CallFailed as error:
            with self._lock:
                self.refusals[f"{action}: {error.code}"] += 1
                if error.code in FAULTS:
                    self.faults[f"{action}: {error}"] += 1
        else:
            with self._lock:
                self.actions[action] += 1

    def acknowledge(self, kind: str, session: str, id: str) -> None:
        with self._lock:
            self.kept.count[kind] += 1
            if kind == "call":
                self.kept.calls[session].add(id)
            elif kind == "message":
                self.kept.messages[session].add(id)

    @property
    def over(self) -> threading.Event:
        return self._over

    def settle(self) -> Report:
        """Let everything run again, wait until the hosts are level, and compare them with what was acknowledged.

        Raises: NodeFailure if a node has ended.
        """
        began = time.monotonic()
        self.three.log.cont()
        for its in self.three.nodes:
            its.cont()
        unlevel = self._level(began)
        level_s = time.monotonic() - began
        open_claims = self._incomplete(began)
        unlevel += self._level(time.monotonic())
        rows = sum(host.client.daemon_status().store.head_seq for host in self.three.hosts)
        contents = {session: self._contents(session) for session in self.sessions}
        compared = compare(self.kept, contents, open_claims)
        # Reading writes nothing: a journal that grows without clients has not settled.
        grown = sum(host.client.daemon_status().store.head_seq for host in self.three.hosts)
        if grown != rows:
            unlevel.append(f"the journals grew by {grown - rows} rows without a client")
        different = [line for host in self.three.hosts for line in host.differences()]
        branches = sum("@" in row.session for host in self.three.hosts for row in _rows(host))
        return Report(
            seed=self.seed,
            acknowledged=self.kept.writes,
            rows=rows,
            lost=compared.lost,
            doubled=compared.doubled,
            unsettled=[*open_claims.values(), *compared.unsettled],
            unrendered=self._unrendered(),
            unlevel=unlevel,
            different=different,
            level_s=level_s,
            branches=branches,
            actions=dict(self.actions),
            faults=[f"{count} times {fault}" for fault, count in self.faults.items()],
            refusals=dict(self.refusals.most_common()),
        )

    def _incomplete(self, began: float) -> dict[str, str]:
        """Wait until every claim that broke off is completed by its host, without a resume. Returns: by session, what
        to report of those that are not completed in time."""
        while True:
            owners = anyio.run(self._owners)
            broken = [session for session, owner in owners.items() if owner is None or owner.source is not None]
            if not broken:
                return {}
            if time.monotonic() - began > LEVEL_S_MAX:
                return {each: f"the claim of session {each} is not completed: {owners[each]}" for each in broken}
            time.sleep(1)

    async def _owners(self) -> dict[str, Owner | None]:
        async with XtdbClient(self.three.nodes[0].url) as client:
            ids = {session: owner_id(session) for session in self.sessions}
            docs = await client.entities(ids.values(), valid_time=FIXED_VALID_TIME)
            return {session: from_doc(docs.get(id)) for session, id in ids.items()}

    def _level(self, began: float) -> list[str]:
        heads: list[int] = []
        while True:
            self.three.require_nodes()
            status = [host.client.daemon_status().store for host in self.three.hosts]
            lag = [each.head_seq - (each.projection.seq if each.projection else 0) for each in status]
            before, heads = heads, [each.head_seq for each in status]
            if not any(lag) and heads == before:
                return []
            if time.monotonic() - began > LEVEL_S_MAX:
                return [
                    f"{host.name} is {rows} rows behind ({each.projection and each.projection.reason})"
                    for host, rows, each in zip(self.three.hosts, lag, status, strict=True)
                    if rows
                ] or ["journals keep growing"]
            time.sleep(2)

    def _contents(self, session: str) -> Contents:
        """The session and the branches that have each tool call, and each message, each as its owner has it."""
        calls: dict[str, list[str]] = defaultdict(list)
        said: dict[str, list[str]] = defaultdict(list)
        for host in self.three.hosts:
            for row in _rows(host):
                its = row.session.partition("@")[0] == session
                if not its or host.client.session_owner(row.session).host != host.name:
                    continue
                for id in host.client.session_get(row.session).session.session_index:
                    calls[id].append(row.session)
                for text in _said(host, row.session):
                    said[text].append(row.session)
        return calls, said

    def _unrendered(self) -> list[str]:
        """The recorded assemblies that do not render as they were recorded."""
        failed = []
        for host in self.three.hosts:
            for row in _rows(host):
                after = 0
                while True:
                    page = host.client.context_list(row.session, after=after).assemblies
                    for record in page:
                        try:
                            host.client.context_show(row.session, number=record.number)
                        except CallFailed as error:
                            if error.code != "purged":
                                failed.append(f"{host.name} {row.session} {record.number}: {error}")
                    if not page:
                        break
                    after = page[-1].number
        return failed


class _Worker:
    """The clients of one host, and what happens to it."""

    def __init__(self, load: Load, number: int) -> None:
        self._load = load
        self._host = load.three.hosts[number]
        self._node = load.three.nodes[number]
        self._rng = random.Random(f"{load.seed} {number}")
        self._made = 0
        self._calls: list[tuple[str, str]] = []
        self._node_until = 0.0

    def work(self) -> None:
        names = [name for name, _ in ACTIONS if self._load._faults or name not in ("kill", "stall", "stop_node")]
        weights = [weight for name, weight in ACTIONS if name in names]
        while not self._load.over.is_set():
            if self._node_until and time.monotonic() > self._node_until:
                self._node.cont()
                self._node_until = 0.0
            (action,) = self._rng.choices(names, weights)
            session = self._rng.choice(self._load.sessions)
            with self._load.count(action):
                getattr(self, action)(session)
        self._node.cont()

    def write(self, session: str) -> None:
        """A burst of tool calls and messages."""
        client = self._host.client.within(WRITE_S)
        for _ in range(self._rng.randint(1, 30)):
            self._made += 1
            name = f"{self._host.name}-{self._made}"
            if self._rng.random() < 0.6:
                made = client.toolcall_record(session, f"{session}-{name}", "bash", f"output {name}").object
                self._calls.append((session, made))
                self._load.acknowledge("call", session, made)
            else:
                client.session(session).user(f"message {name}")
                self._load.acknowledge("message", session, f"message {name}")

    def read(self, session: str) -> None:
        """One of three files on a network filesystem is read; its content changes from time to time."""
        path = f"/shared/{self._rng.randrange(3)}.txt"
        content = f"{path} as of {int(time.monotonic() / 3)}\n" * self._rng.randint(1, 2)
        self._host.client.within(WRITE_S).file_index(session, path, content=content)
        self._load.acknowledge("read", session, "")

    def assemble(self, session: str) -> None:
        self._host.client.within(WRITE_S).context_assemble(session)
        self._load.acknowledge("assemble", session, "")

    def pause(self, session: str) -> None:
        self._host.client.within(PAUSE_S).session_pause(session)
        self._load.acknowledge("pause", session, "")

    def resume(self, session: str) -> None:
        self._host.client.within(RESUME_S).session_resume(session)
        self._load.acknowledge("resume", session, "")

    def hand_over(self, session: str) -> None:
        """Pause here and resume on another host at once."""
        other = self._rng.choice([host for host in self._load.three.hosts if host is not self._host])
        self.pause(session)
        with suppress(AttributeError):
            other.client.within(RESUME_S).session_resume(session)
            self._load.acknowledge("resume", session, "")

    def back_and_forth(self, session: str) -> None:
        """Pause and resume here, with writes between, before the node has any of it."""
        for _ in range(3):
            with suppress(CallFailed):
                self.write(session)
            with suppress(CallFailed):
                self.pause(session)
            self.resume(session)

    def purge(self, _: str) -> None:
        if self._calls:
            _, id = self._rng.choice(self._calls)
            self._host.client.within(PAUSE_S).object_purge(id)
            self._load.acknowledge("purge", "", "")

    def kill(self, _: str) -> None:
        self._host.kill()
        self._host.start()

    def stall(self, session: str) -> None:
        """Stand still for longer than the lease; others may take the sessions over."""
        self._host.send(signal.SIGSTOP)
        try:
            self._load.over.wait(self._rng.uniform(1, 4))
        finally:
            self._host.send(signal.SIGCONT)

    def stop_node(self, _: str) -> None:
        """The node stands still for a time in which the host goes on."""
        self._node.pause()
        self._node_until = time.monotonic() + self._rng.uniform(2, 12)


def _rows(host: Host) -> list[SessionSummary]:
    return list(host.client.session_list(limit=1000).sessions)


def _said(host: Host, session: str) -> Iterator[str]:
    turn: int | None = 0
    while turn is not None:
        page = host.client.session_chat(session, first_turn=turn)
        for messages in page.turns:
            yield from (message["content"] for message in messages["messages"])
        turn = page.next_turn


def main() -> None:
    """Run one load: ``python -m tests.xtdb.host_load SEED SECONDS``. Exit code 1 if a promise was broken."""
    seed, seconds = int(sys.argv[1]), float(sys.argv[2])
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, cluster(Path(folder), seed=seed) as three:
        load = Load(three, seed=seed)
        load.run(seconds)
        report = load.settle()
        print(report, f"rows per write {report.rows_per_write:.2f}", sep="\n")
        if keep := os.environ.get("KEEP"):
            shutil.copytree(folder, keep, ignore=shutil.ignore_patterns("*.sock"))
    sys.exit(0 if report.kept else 1)


if __name__ == "__main__":
    main()
