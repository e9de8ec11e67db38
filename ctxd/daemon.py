"""Composition root: builds every part once, starts the parts in order, and stops them in the reverse order.

Has no behaviour of its own. Guarantee: the socket accepts calls only after the journal is recovered, and is removed
before the journal is closed.
"""

import os
import platform
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import anyio
from anyio.abc import TaskStatus
from structlog.typing import FilteringBoundLogger

from ctxd import __version__
from ctxd.assembly.assembler import Assembler
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.assembly.usage_operations import UsageOperations
from ctxd.clock import Clock, SystemClock
from ctxd.commits.artifact_operations import Artifacts
from ctxd.commits.commit_import import CommitImports
from ctxd.commits.commit_operations import Commits
from ctxd.commits.materialize import Materializer
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.commits.session_start import SessionStart
from ctxd.config import Config, ConfigError
from ctxd.daemon_options import Options, Settings, options_of, scanner_from, timing_of, with_passed_socket
from ctxd.epochs.component import Provider
from ctxd.epochs.component_files import AgentFiles
from ctxd.epochs.environment_and_date import EnvironmentProvider
from ctxd.epochs.instruction_files import InstructionFiles
from ctxd.epochs.skills import SkillFiles
from ctxd.errors import CtxdError, StateDirError
from ctxd.indexing.file_indexer import Indexer
from ctxd.memory_trim import MemoryTrim
from ctxd.models import read_models
from ctxd.mounts.filesystem_id import host_devices, host_filesystem_id
from ctxd.observe.logs import Threshold, open_log
from ctxd.observe.metrics_socket import serve_metrics
from ctxd.process_setup import has_terminal, have_descriptors, tune_gc, tune_malloc
from ctxd.projection.ownership_checks import Ownership
from ctxd.projection.projection_loop import Projection
from ctxd.rpc.dispatch import Handler, build_table, complete
from ctxd.rpc.handlers import (
    artifacts,
    commits,
    context,
    epochs,
    events,
    objects,
    secrets,
    shared_sessions,
    trackers,
)
from ctxd.rpc.handlers import daemon as daemon_methods
from ctxd.rpc.handlers import files as file_methods
from ctxd.rpc.handlers import mounts as mount_methods
from ctxd.rpc.handlers import search as search_methods
from ctxd.rpc.handlers import sessions as session_methods
from ctxd.rpc.listener_state import ListenerIdentity, ListenerSettings, SharedState
from ctxd.rpc.socket_binding import listening
from ctxd.rpc.socket_server import Server
from ctxd.rpc.wire_errors import log_uncaught_exceptions
from ctxd.sandboxes import sandbox_methods
from ctxd.sandboxes.lifecycle import Sandboxes
from ctxd.sandboxes.listeners import SandboxListeners
from ctxd.sandboxes.sandbox_directories import Directories
from ctxd.search.search_index import SearchIndex
from ctxd.search.search_queries import SearchQueries
from ctxd.secrets.keyfile import load_key
from ctxd.secrets.redaction import KEY_BYTES, Guard
from ctxd.secrets.scanner import built_in_scanner
from ctxd.service.service_manager_client import ServiceManager, alone
from ctxd.service.watchdog import ping_watchdog
from ctxd.sessions.change_notices import NoticeFeeds
from ctxd.sessions.operation_table import Operations
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_listing import SessionLists
from ctxd.sessions.session_tracking import Tracking
from ctxd.sources.confinement import Confinement
from ctxd.sources.host_files import HostFiles
from ctxd.sources.project_lookup import ProjectLookup
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import StoreFailed
from ctxd.task_groups import first_of
from ctxd.trackers.tracker import file_trackers
from ctxd.worker_threads import NoThread, in_thread
from ctxd_protocol.default_paths import sandboxes_name
from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.session_types import ComponentName
from ctxd_protocol.status_types import DaemonStatus

if TYPE_CHECKING:
    from ctxd.sharing.session_ownership import SessionOwnership

_EXIT_IO: Final = 74


class Services(NamedTuple):
    """The parts that handlers of methods call."""

    store: VersionStore
    sessions: Sessions
    indexer: Indexer
    hosts: "SessionOwnership | None"
    sandboxes: Sandboxes
    tracking: Tracking | None
    commits: Commits
    materializer: Materializer
    checkpoints: SessionCheckpoints
    artifacts: Artifacts
    search_index: SearchIndex


class Parts(NamedTuple):
    """The parts of a running daemon, for its status, its metrics and a change of settings."""

    store: VersionStore
    projection: Projection | None
    search_index: SearchIndex
    sessions: Sessions
    checkpoints: SessionCheckpoints
    sandboxes: Sandboxes
    listeners: SandboxListeners
    tracking: Tracking | None
    shared: SharedState
    server: Server


class Daemon:
    """One daemon, from its start to the end of its drain."""

    def __init__(
        self,
        options: Options,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        service_manager: ServiceManager | None = None,
        settings: Settings | None = None,
        threshold: Threshold | None = None,
    ) -> None:
        """``service_manager`` None: no service manager is notified. ``settings`` None: SIGHUP stops the daemon.

        ``threshold`` is that of ``log``.
        """
        self._service_manager = service_manager or alone()
        self._settings = settings
        self._threshold = threshold
        self._options = options
        self._clock = clock
        self._log = log
        self._parts: Parts | None = None
        self._ready_at = 0.0
        self._draining = False

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until SIGTERM or SIGINT, then drain. ``task_status`` is started once the socket accepts calls. Parts
        end in the reverse order of their start.

        Raises: StateDirError if it cannot start, StoreFailed when the disk has failed. Cancel: ends without a drain.
        """
        options, clock, log = self._options, self._clock, self._log
        log_uncaught_exceptions(log)
        async with AsyncExitStack() as running:
            # The store first: it takes the lock, so that of two daemons only its holder touches the socket.
            store = VersionStore(options.state_dir, clock)
            store.on_health(self._note_health)
            store.on_fault(lambda fault: log.error("store.fault", exc_info=fault))
            ownership = Ownership(store.heads)
            projection = self._projected(store, ownership)
            store.attach((search := SearchIndex(clock, options.cache_dir)).serve)
            await running.enter_async_context(part(store.run))

            substitute = None if options.state_dir is None else options.state_dir / "machine-id"
            host, projects = host_filesystem_id(substitute=substitute), ProjectLookup()
            files = HostFiles(clock, private=filter(None, (store.root, options.cache_dir)))
            guard = Guard(options.scanner or built_in_scanner(), await in_thread(load_key, store.root))
            indexer = Indexer(store, files, host, host_devices=host_devices(), guard=guard)
            sessions = Sessions(store, clock, host_filesystem_id=host, guard=guard, indexer=indexer, projects=projects)
            # Before any client can call: a symlink that a sandbox planted may wait for the first read after a restart.
            for mounts in await sessions.start():
                indexer.visibility.confine(mounts)
            hosts = await self._joined(sessions, ownership, projection, host)

            commits = Commits(sessions, clock, machine=platform.node(), policy=options.secrets)
            running.callback(commits.close)
            checkpoints = SessionCheckpoints(sessions, commits)
            listeners = SandboxListeners(
                clock, log, sessions=sessions, checkpoints=checkpoints, limits=options.limits, timing=options.timing,
                service_manager=self._service_manager,
            )  # fmt: skip
            directories = Directories(options.socket.with_name(sandboxes_name(options.socket.name)))
            sandboxes = Sandboxes(
                sessions, checkpoints, files.confinement, clock, listeners, directories, log,
                not_mounted=[each for each in (options.state_dir, options.cache_dir) if each is not None],
            )  # fmt: skip
            tracking = self._tracked(sessions, indexer, files.confinement, sandboxes)
            artifacts = Artifacts(sessions, clock, policy=options.secrets, bytes_max=options.artifacts_bytes_max)
            materializer = Materializer(commits)
            services = Services(
                store, sessions, indexer, hosts, sandboxes, tracking, commits, materializer, checkpoints, artifacts,
                search,
            )  # fmt: skip
            handlers = self._handlers(services)
            await running.enter_async_context(part(artifacts.run))
            await running.enter_async_context(part(materializer.run))
            store.on_durable((memory := MemoryTrim(clock)).note, types=("commit",))
            await running.enter_async_context(part(memory.run))
            running.callback((shared := SharedState()).close)
            listeners.serve(handlers, shared)
            server = self._host_server(handlers, shared)
            self._parts = Parts(
                store, projection, search, sessions, checkpoints, sandboxes, listeners, tracking, shared, server
            )
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                await self._open(running, self._parts, hosts)
                task_status.started()
                await self._heed(signals, self._parts)
            await self._drain(self._parts)
        log.info("daemon.stopped")

    async def _open(self, running: AsyncExitStack, parts: Parts, hosts: "SessionOwnership | None") -> None:
        """Start the parts that serve: other hosts, the sockets of sandboxes, the host's socket, trackers and
        metrics."""
        running.callback(self._service_manager.close)
        if hosts is not None:
            await running.enter_async_context(part(hosts.run))
        await running.enter_async_context(part(parts.listeners.run))
        await running.enter_async_context(part(parts.checkpoints.run))
        # Before the host's socket, so that a harness that reconnects at once finds its sandboxes.
        await parts.sandboxes.start()
        handed = self._service_manager.listening()
        await running.enter_async_context(part(partial(parts.server.run, handed, lasting=handed is not None)))
        await running.enter_async_context(part(parts.sandboxes.run))
        if parts.tracking is not None:
            await running.enter_async_context(part(parts.tracking.run))
        if (metrics := self._options.metrics) is not None:
            bound = running.enter_context(listening(metrics))
            await running.enter_async_context(part(partial(serve_metrics, bound, partial(self._metrics, parts))))
        self._ready_at = self._clock.monotonic()
        self._log.info("daemon.ready", **self._place(parts.store))
        await self._service_manager.ready(self._state_text())
        await running.enter_async_context(part(self._watch))

    async def _drain(self, parts: Parts) -> None:
        """Finish the calls in flight, and return once every accepted write is durable."""
        self._draining = True
        await self._service_manager.stopping()
        async with anyio.create_task_group() as draining:
            draining.start_soon(parts.server.drain)
            draining.start_soon(parts.listeners.drain)
        await parts.store.drain()

    async def _heed(self, signals: AsyncIterator[signal.Signals], parts: Parts) -> None:
        """Return at a signal to stop. SIGHUP reloads the settings; on a terminal, or without ``settings``, it stops as
        well."""
        async for number in signals:
            if number != signal.SIGHUP or self._settings is None or has_terminal():
                self._log.info("daemon.stopping", signal=signal.Signals(number).name)
                return
            await self._service_manager.reloading(self._clock.monotonic())
            await self._service_manager.ready(await self._reload(self._settings, parts))

    async def _reload(self, settings: Settings, parts: Parts) -> str:
        """Apply changed settings. Returns: the status text for the service manager."""
        try:
            changes = await in_thread(settings.reread)
        except (ConfigError, NoThread) as error:
            self._log.error("daemon.not_reloaded", reason=str(error))
            return f"{self._state_text()}; settings not applied: {error}"
        config = settings.config
        if self._threshold is not None:
            self._threshold.level = config.log_level
        parts.server.retime(timing_of(config), config.connections_max)
        parts.listeners.retime(timing_of(config))
        self._log.info("daemon.reloaded", applied=changes.applied, after_restart=changes.after_restart)
        return f"{self._state_text()}; {changes.summary}"

    async def _watch(self, *, task_status: TaskStatus[None]) -> None:
        task_status.started()
        await ping_watchdog(self._service_manager, self._clock, self._log, works=self._works, status=self._state_text)

    async def _works(self) -> None:
        """Return once the store's thread has committed its pending writes, and has read something."""
        assert self._parts is not None, "the daemon is running"
        with suppress(CtxdError):
            await self._parts.store.check_alive()

    # --- parts

    def _projected(self, store: VersionStore, ownership: Ownership) -> Projection | None:
        options = self._options
        if options.store is None:
            return None
        projection = Projection(options.store, self._clock, log_event=self._log_event)
        if options.shared is not None:
            projection.share(ownership)
        store.attach(projection.serve)
        return projection

    async def _joined(
        self, sessions: Sessions, ownership: Ownership, projection: Projection | None, filesystem: str
    ) -> "SessionOwnership | None":
        target, shared = self._options.store, self._options.shared
        if shared is None or target is None or projection is None:
            return None
        # HTTP libraries are loaded only if they are needed.
        from ctxd.sharing.session_ownership import SessionOwnership

        hosts = SessionOwnership(
            target.url, sessions, ownership, self._clock, host=shared.host, lease_s=shared.lease_s,
            filesystem=filesystem, projected=lambda: projection.seq, log_event=self._log_event,
        )  # fmt: skip
        await hosts.start()
        return hosts

    def _note_health(self, code: ErrorCode | None) -> None:
        # The reason may name an object, so it is in the status but not in the log.
        if code is None:
            self._log.info("store.writable")
        else:
            self._log.error("store.read_only", code=code)

    def _log_event(self, what: str, fields: dict[str, Any]) -> None:
        self._log.warning(what, **fields)

    def _tracked(
        self, sessions: Sessions, indexer: Indexer, confinement: Confinement, sandboxes: Sandboxes
    ) -> Tracking | None:
        if self._options.watcher is None:
            return None
        log = self._log
        followed = file_trackers(
            self._clock,
            confinement,
            lambda event, directory, reason: log.warning(event, directory=directory, reason=reason),
            choice=self._options.watcher,
        )
        return Tracking(
            sessions,
            indexer,
            followed,
            self._clock,
            room=partial(sandboxes.tracking_room, count=followed.tracked.count),
            failed=lambda error: log.error("tracker.failed", exc_info=error),
        )

    def _handlers(self, services: Services) -> Mapping[str, Handler]:
        """The handler of every method."""
        options, store, sessions, indexer = self._options, services.store, services.sessions, services.indexer
        notices = NoticeFeeds(sessions)
        operations = Operations(sessions, indexer, options.collapse, options.secrets)
        start = SessionStart(operations, services.commits, services.checkpoints, services.materializer)
        queries = SearchQueries(services.search_index, sessions, self._clock)
        lists = SessionLists(sessions, indexer, queries.sessions_naming)
        models = options.models or read_models()
        archive = Archive(store, sessions, spec, estimate_tokens, models)
        usage = UsageOperations(sessions, archive)
        files = AgentFiles(indexer, store)
        environment = EnvironmentProvider(files, self._clock)
        providers: dict[ComponentName, Provider] = {
            "environment": environment.environment,
            "date": environment.date,
            "instructions": InstructionFiles(files).provide,
            "skills": SkillFiles(files).provide,
        }
        assembler = Assembler(
            store, sessions, indexer, archive, models, self._clock, providers=providers, aim=options.aim
        )
        return complete(
            daemon_methods.DaemonCalls(
                incarnation=store.incarnation,
                journal=store.journal_id,
                limits=options.limits,
                status=self.status,
                check_receipt=store.check_receipt,
            ),
            operations.by_method(),
            session_methods.SessionCalls(sessions, notices),
            shared_sessions.SharedSessionCalls(operations, start.start, services.hosts, lists),
            file_methods.FileCalls(sessions, indexer),
            mount_methods.MountCalls(),
            objects.ObjectCalls(sessions),
            secrets.SecretCalls(sessions, indexer),
            context.ContextCalls(sessions, assembler, archive, services.checkpoints),
            epochs.EpochCalls(sessions, archive),
            {"session.usage": usage.record, "session.usage_totals": usage.totals},
            commits.CommitCalls(
                services.commits, CommitImports(sessions, services.commits), services.materializer, services.artifacts
            ),
            events.EventCalls(notices),
            sandbox_methods.SandboxCalls(services.sandboxes, sessions, self._clock),
            trackers.TrackerCalls(services.tracking),
            artifacts.ArtifactCalls(services.artifacts),
            search_methods.SearchCalls(queries),
        )

    def _host_server(self, handlers: Mapping[str, Handler], shared: SharedState) -> Server:
        options = self._options
        settings = ListenerSettings(
            table=build_table(handlers, "host"),
            identity=ListenerIdentity(),
            limits=options.limits,
            timing=options.timing,
            connections_max=options.connections_max,
            log=self._log,
        )
        return Server(options.socket, settings, gid=options.socket_gid, shared=shared)

    # --- figures

    def _place(self, store: VersionStore) -> dict[str, Any]:
        state = self._options.state_dir
        return {
            "version": __version__,
            "pid": os.getpid(),
            "socket": str(self._options.socket),
            "state_dir": "temporary" if state is None else str(state),
            "incarnation": store.incarnation,
        }

    async def _metrics(self, parts: Parts) -> bytes:
        """The current metrics in Prometheus' text format."""
        # The Prometheus library is loaded only if it is needed.
        from ctxd.prometheus_metrics import DaemonMetrics, exposition

        tracking = parts.tracking
        figures = DaemonMetrics(
            status=self.status(),
            tally=parts.shared.tally,
            commits=parts.store.commit_durations,
            tracked=[] if tracking is None else [file.state for file in tracking.trackers.tracked.files.values()],
        )
        return await in_thread(exposition, figures)

    def _state_text(self) -> str:
        """The state and its reason, for the service manager."""
        status = self.status()
        reason = status.store.reason or (status.store.projection is not None and status.store.projection.reason)
        return status.state + (f": {reason}" if reason else "")

    def status(self) -> DaemonStatus:
        """Health and figures, as ``daemon.status`` returns them."""
        parts = self._parts
        assert parts is not None, "the daemon is running"
        store = parts.store.status()
        if parts.projection is not None:
            store = parts.projection.reported_in(store)
        problem = store.reason or (store.projection is not None and store.projection.reason)
        return DaemonStatus(
            uptime_s=round(self._clock.monotonic() - self._ready_at, 3),
            state="draining" if self._draining else "degraded" if problem else "ready",
            connections=parts.server.connections,
            in_flight=parts.server.in_flight,
            requests=parts.server.requests,
            sessions_live=parts.sessions.live_count,
            objects_cached=parts.store.cached,
            store=store,
            tracking=trackers.watching_of(parts.tracking),
            sandboxes=parts.sandboxes.status(),
            search=parts.search_index.status(),
            **self._place(parts.store),
        )


@asynccontextmanager
async def part(run: Callable[..., Coroutine[Any, Any, Any]]) -> AsyncIterator[None]:
    """Start ``run(task_status=…)``, and cancel it at the end of the block. Raises: the exceptions of ``run``, in a
    group."""
    async with anyio.create_task_group() as group:
        await group.start(run)
        yield
        group.cancel_scope.cancel()


def serve(config: Config, *, ephemeral: bool = False, reread: Callable[[], Config] | None = None) -> int:
    """Run one daemon in this process until it is stopped. Returns the exit code: 0, 74 if the disk has failed, or 70
    after an unexpected exception.

    ``reread`` reads the settings again at SIGHUP; None: SIGHUP stops the daemon too.

    Raises: StateDirError if it cannot start.
    """
    service_manager = ServiceManager.of(os.environ)
    have_descriptors()
    tune_gc()
    tune_malloc()
    scanner = scanner_from(config)
    # The lock on the state directory, which has the key, is not held yet: tags in the log are valid for this run only.
    redact = Guard(scanner, os.urandom(KEY_BYTES)).redacted
    threshold = Threshold(config.log_level)
    log = open_log(threshold, None if config.log_format == "auto" else config.log_format, redact=redact)
    daemon = Daemon(
        with_passed_socket(options_of(config, scanner, ephemeral=ephemeral), service_manager.host_path(), config),
        SystemClock(),
        log,
        service_manager=service_manager,
        settings=None if reread is None else Settings(config, reread),
        threshold=threshold,
    )
    code, refusal = 0, None
    try:
        anyio.run(daemon.run, backend_options={"use_uvloop": True})
    except* StoreFailed as failed:
        log.critical("store.failed", reason=str(first_of(failed)))
        code = _EXIT_IO
    except* StateDirError as refused:
        refusal = first_of(refused)
    except* Exception as bug:
        log.critical("daemon.failed", exc_info=bug)
        code = os.EX_SOFTWARE
    if refusal is not None:
        # Raised after the try: Python before 3.11.4 wraps an exception raised inside except* in a new group.
        raise refusal
    return code
