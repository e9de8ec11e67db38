"""The composition root: builds every part once, starts them in order, and stops them in the reverse one.

Holds no behaviour of its own. Promise: the socket answers only after the journal is recovered, and it is gone
before the journal is closed.
"""

import gc
import grp
import os
import resource
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import msgspec
from anyio.abc import TaskStatus
from anyio.to_thread import run_sync
from structlog.typing import FilteringBoundLogger

from ctxd import __version__
from ctxd.assembly.archive import Archive
from ctxd.assembly.assemble import Assembler
from ctxd.clock import Clock, SystemClock
from ctxd.config import Config
from ctxd.errors import StateDirError
from ctxd.indexing.index import Indexer
from ctxd.mounts.devices import host_devices
from ctxd.mounts.filesystem_id import host_filesystem_id
from ctxd.observe.logs import open_log
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.handlers import context, events, files, objects, sandboxes, secrets, sessions, toolcalls, trackers
from ctxd.rpc.handlers import daemon as daemon_methods
from ctxd.rpc.handlers import hosts as host_methods
from ctxd.rpc.handlers.table import complete
from ctxd.rpc.lane import Floor, Timing
from ctxd.rpc.listeners import Listeners
from ctxd.rpc.server import CONNECTIONS_MAX, Server
from ctxd.sandboxes.places import Places
from ctxd.sandboxes.registry import Sandboxes
from ctxd.secrets.guard import KEY_BYTES, Guard
from ctxd.secrets.keyfile import load_key
from ctxd.secrets.policy import DEFAULT
from ctxd.secrets.rulefile import RulesRefused, scanner_of
from ctxd.secrets.scan import Scanner
from ctxd.sessions.notices import Notices
from ctxd.sessions.registry import Sessions
from ctxd.sessions.tracking import Tracking
from ctxd.sources.filesystem import HostFiles
from ctxd.store.answers import StoreFailed
from ctxd.store.projection.ownership import Ownership
from ctxd.store.projection.projection import Projection, Target
from ctxd.store.projection.spill import Room
from ctxd.store.versions import VersionStore
from ctxd.trackers.opening import Choice, file_trackers
from ctxd_protocol.limits import Limits
from ctxd_protocol.places import SANDBOXES_NAME
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse
from ctxd_protocol.status import DaemonStatus

if TYPE_CHECKING:
    from ctxd.sessions.hosts import Hosts

_E = TypeVar("_E", bound=Exception)
_EXIT_IO: Final = 74
_EXIT_CONFIG: Final = 78
_COLLECTED_AT: Final = 20_000
"""Objects made, less those freed, after which the collector looks at them: some 1,000 writes, a few ms."""


class Shared(msgspec.Struct, frozen=True, kw_only=True):
    """Other hosts use the same log. ``host`` is what they call this one; others may take over after ``lease_s`` of
    its silence."""

    host: str
    lease_s: float


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """How one daemon is to run. ``state_dir`` null: a temporary directory; ``socket_gid`` null: mode 0600.

    ``collapse``: the window of sessions that ask for none. ``watcher``: what files are followed by; null: none are.
    ``store``: the XTDB node to project to; null: none. ``secrets``: the policy of sessions that ask for none;
    ``scanner``: the rules that secrets are found by, null for the built-in ones.
    """

    socket: Path
    state_dir: Path | None
    socket_gid: int | None = None
    limits: Limits = Limits()
    timing: Timing = Timing()
    connections_max: int = CONNECTIONS_MAX
    collapse: Collapse = Collapse()
    watcher: Choice | None = "auto"
    store: Target | None = None
    shared: Shared | None = None
    secrets: SecretPolicy = DEFAULT
    scanner: Scanner | None = None


class Daemon:
    """One daemon, from start to drained end."""

    def __init__(self, options: Options, clock: Clock, log: FilteringBoundLogger) -> None:
        self._options = options
        self._clock = clock
        self._log = log
        self._ownership = Ownership(lambda ids: self._store.heads(ids))
        self._projection = self._make_projection()
        self._hosts: Hosts | None = None
        self._store = VersionStore(options.state_dir, clock, self._projection)
        self._store.on_fault(lambda fault: log.error("store.callback_failed", exc_info=fault))
        self._server: Server | None = None
        self._sessions: Sessions | None = None
        self._listeners: Listeners | None = None
        self._sandboxes: Sandboxes | None = None
        self._tracking: Tracking | None = None
        self._ready_at = 0.0
        self._draining = False

    def _make_projection(self) -> Projection | None:
        options = self._options
        if options.store is None:
            return None
        projection = Projection(options.store, self._clock, tell=self._tell)
        if options.shared is not None:
            projection.share(self._ownership)
        return projection

    def _tell(self, what: str, said: dict[str, Any]) -> None:
        self._log.warning(what, **said)

    async def _make_hosts(self, live: Sessions, filesystem: str) -> "Hosts | None":
        target, shared, projection = self._options.store, self._options.shared, self._projection
        if shared is None or target is None or projection is None:
            return None
        # What it takes to speak HTTP is loaded only by those who do.
        from ctxd.sessions.hosts import hosts_at

        hosts = hosts_at(
            target.url, live, self._ownership, self._clock, host=shared.host, lease_s=shared.lease_s,
            filesystem=filesystem, projected=lambda: projection.seq, tell=self._tell,
        )  # fmt: skip
        await hosts.start()
        return hosts

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until SIGTERM or SIGINT, then drain; started once the socket answers.

        Raises: StateDirError if it cannot start, StoreFailed when the disk has failed. Cancel: ends without a drain.
        """
        async with anyio.create_task_group() as parts:
            # The store first: it takes the lock, so that of two daemons only its holder touches the socket.
            await parts.start(self._store.run)
            handlers, floor = await self._handlers(), Floor()
            server = self._server = Server(
                self._options.socket,
                handlers,
                log=self._log,
                gid=self._options.socket_gid,
                limits=self._options.limits,
                timing=self._options.timing,
                connections_max=self._options.connections_max,
                floor=floor,
            )
            listeners, boxes = self._listeners, self._sandboxes
            assert listeners is not None and boxes is not None, "made with the handlers"
            listeners.serve(handlers, floor)
            if self._hosts is not None:
                await parts.start(self._hosts.run)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
                await parts.start(listeners.run)
                # Before the host's socket: a harness that is back at once finds its sandboxes.
                await boxes.start()
                await parts.start(server.run)
                await parts.start(boxes.run)
                if self._tracking is not None:
                    await parts.start(self._tracking.run)
                self._ready_at = self._clock.monotonic()
                self._log.info("daemon.ready", **self._place())
                task_status.started()
                async for number in signals:
                    self._log.info("daemon.stopping", signal=signal.Signals(number).name)
                    break
            self._draining = True
            async with anyio.create_task_group() as draining:
                draining.start_soon(server.drain)
                draining.start_soon(listeners.drain)
            await self._store.drain()
            parts.cancel_scope.cancel()
        floor.close()
        self._log.info("daemon.stopped")

    async def _handlers(self) -> Mapping[str, Handler]:
        store, clock = self._store, self._clock
        host = host_filesystem_id(substitute=self._machine_id_substitute())
        on_host = HostFiles(clock)
        guard = Guard(self._options.scanner or Scanner(), await run_sync(load_key, store.root))
        indexer = Indexer(store, on_host, host, host_devices=host_devices(), guard=guard)
        live = self._sessions = Sessions(store, clock, host_filesystem_id=host, guard=guard)
        # Before anyone can ask: a link that a sandbox planted may wait for the first read after a restart.
        for mounts in await live.start():
            indexer.confine(mounts)
        self._hosts = await self._make_hosts(live, host)
        self._tracking = self._make_tracking(live, indexer, on_host)
        notices = Notices(live)
        archive = Archive(store, live)
        assembler = Assembler(store, live, indexer, archive, clock)
        boxes = self._make_sandboxes(live)
        return complete(
            daemon_methods.handlers(
                incarnation=store.incarnation,
                journal=store.journal_id,
                limits=self._options.limits,
                status=self.status,
                check_witness=store.check_witness,
            ),
            sandboxes.keeping_mounts(
                host_methods.handlers(
                    sessions.handlers(live, indexer, notices, self._options.collapse, self._options.secrets),
                    self._hosts,
                ),
                boxes,
            ),
            toolcalls.handlers(live),
            files.handlers(live, indexer),
            objects.handlers(live),
            secrets.handlers(live),
            context.handlers(live, assembler, archive),
            events.handlers(notices),
            sandboxes.handlers(boxes, live, clock),
            trackers.handlers(self._tracking),
        )

    def _make_tracking(self, live: Sessions, indexer: Indexer, on_host: HostFiles) -> Tracking | None:
        if self._options.watcher is None:
            return None
        log = self._log
        followed = file_trackers(
            self._clock,
            choice=self._options.watcher,
            escapes=on_host.leads_out,
            tell=lambda what, directory, reason: log.warning(what, directory=directory, reason=reason),
            keeps=live.is_watched,
        )
        return Tracking(
            live, indexer, followed, self._clock, failed=lambda error: log.error("tracker.failed", exc_info=error)
        )

    def _make_sandboxes(self, live: Sessions) -> Sandboxes:
        options, known = self._options, sandboxes.Known(live)
        listeners = self._listeners = Listeners(
            self._clock,
            self._log,
            current=known.current,
            objects=known.objects,
            holds=known.holds,
            limits=options.limits,
            timing=options.timing,
        )
        places = Places(options.socket.parent / SANDBOXES_NAME)
        self._sandboxes = Sandboxes(
            self._store, self._clock, known, listeners, places, self._log, state_dir=options.state_dir
        )
        return self._sandboxes

    def _machine_id_substitute(self) -> Path | None:
        return None if self._options.state_dir is None else self._options.state_dir / "machine-id"

    def _place(self) -> dict[str, str | int]:
        state = self._options.state_dir
        return {
            "version": __version__,
            "pid": os.getpid(),
            "socket": str(self._options.socket),
            "state_dir": "temporary" if state is None else str(state),
            "incarnation": self._store.incarnation,
        }

    def status(self) -> DaemonStatus:
        """Health and figures, as ``daemon.status`` answers them."""
        assert self._server is not None, "only a daemon that serves is asked"
        assert self._sessions is not None, "a daemon that serves has its sessions"
        store = self._store.status()
        state = self._options.state_dir
        amiss = store.reason or (store.projection is not None and store.projection.reason)
        return DaemonStatus(
            version=__version__,
            pid=os.getpid(),
            incarnation=self._store.incarnation,
            uptime_s=round(self._clock.monotonic() - self._ready_at, 3),
            state="draining" if self._draining else "degraded" if amiss else "ready",
            socket=str(self._options.socket),
            state_dir="temporary" if state is None else str(state),
            connections=self._server.connections,
            in_flight=self._server.in_flight,
            requests=self._server.requests,
            sessions_live=self._sessions.live_count,
            objects_cached=self._store.cached,
            store=store,
        )


def serve(config: Config, *, ephemeral: bool = False) -> int:
    """Run one daemon in this process until it is told to stop. The exit code: 0, or 74 when the disk has failed.

    Raises: StateDirError if it cannot start.
    """
    _have_descriptors()
    _spare_the_collector()
    scanner = _scanner(config)
    # The key is in the state directory, which nobody holds yet: tags in the log are of this run alone.
    redact = Guard(scanner, os.urandom(KEY_BYTES)).redacted
    log = open_log(config.log_level, None if config.log_format == "auto" else config.log_format, redact=redact)
    daemon = Daemon(_options(config, scanner, ephemeral=ephemeral), SystemClock(), log)
    code = 0
    try:
        anyio.run(daemon.run, backend_options={"use_uvloop": True})
    except* StoreFailed as failed:
        log.critical("store.failed", reason=str(_first(failed)))
        code = _EXIT_IO
    except* StateDirError as refused:
        raise _first(refused) from None
    return code


def _have_descriptors() -> None:
    """Allow as many open files as the system lets this process have: each sandbox and each connection is one."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _spare_the_collector() -> None:
    """Have the garbage collector look less often, and never at what was imported.

    Most of what a call makes is freed by its reference count, and what it leaves is kept: looking through either for
    cycles is a twentieth of the cost of a write.
    """
    gc.freeze()
    gc.set_threshold(_COLLECTED_AT, 20, 20)


def _first(group: BaseExceptionGroup[_E]) -> _E:
    """The first of the exceptions that a task group gathered."""
    found: BaseExceptionGroup[_E] | _E = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found


def _scanner(config: Config) -> Scanner:
    try:
        return scanner_of(config.secrets_rules)
    except RulesRefused as refused:
        raise StateDirError(str(refused), exit_code=_EXIT_CONFIG) from None


def _options(config: Config, scanner: Scanner, *, ephemeral: bool) -> Options:
    return Options(
        socket=config.socket,
        state_dir=None if ephemeral else config.state_dir,
        socket_gid=None if config.socket_group is None else _gid(config.socket_group),
        limits=Limits(frame_bytes=config.frame_bytes, in_flight=config.in_flight),
        timing=Timing(
            frame_s=config.frame_s, stall_s=config.stall_s, deadline_s=config.request_deadline_s, drain_s=config.drain_s
        ),
        connections_max=config.connections_max,
        collapse=Collapse(per_turn=config.collapse_per_turn, turns=config.collapse_turns),
        watcher=None if config.tracking_watcher == "off" else config.tracking_watcher,
        store=_target(config),
        shared=_shared(config),
        secrets=config.secrets_policy,
        scanner=scanner,
    )


def _target(config: Config) -> Target | None:
    if config.store_backend == "sqlite":
        return None
    return Target(url=config.store_url, room=Room(config.store_backlog_rows, config.store_backlog_bytes))


def _shared(config: Config) -> Shared | None:
    if not config.store_shared:
        return None
    if config.store_backend != "xtdb":
        raise StateDirError("store.shared needs store.backend = xtdb", exit_code=_EXIT_CONFIG)
    return Shared(host=config.store_host or socket.gethostname(), lease_s=config.store_lease_s)


def _gid(group: str) -> int:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        raise StateDirError(f"there is no group {group!r} for the socket", exit_code=_EXIT_CONFIG) from None
