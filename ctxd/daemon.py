"""The composition root: builds every part once, starts them in order, and stops them in the reverse one.

Holds no behaviour of its own. Promise: the socket answers only after the journal is recovered, and it is gone
before the journal is closed.
"""

import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
from anyio.abc import TaskStatus
from structlog.typing import FilteringBoundLogger

from ctxd import __version__
from ctxd.assembly.archive import Archive
from ctxd.assembly.assemble import Assembler
from ctxd.assembly.measure import estimate_tokens
from ctxd.assembly.spec_layout import spec
from ctxd.clock import Clock, SystemClock
from ctxd.config import Config, ConfigError
from ctxd.errors import CtxdError, StateDirError
from ctxd.indexing.indexer import Indexer
from ctxd.mounts.filesystem_id import host_devices, host_filesystem_id
from ctxd.observe.logs import Threshold, open_log
from ctxd.observe.metrics_socket import serve_metrics
from ctxd.offload import in_thread
from ctxd.options import Options, Settings, options_of, scanner_from, timing_of, with_passed_socket
from ctxd.process import has_terminal, have_descriptors, return_large_blocks, spare_the_collector
from ctxd.projection.ownership import Ownership
from ctxd.projection.projection import Projection
from ctxd.rpc.dispatch import Handler, complete
from ctxd.rpc.handlers import context, events, files, objects, secrets, sessions, trackers
from ctxd.rpc.handlers import daemon as daemon_methods
from ctxd.rpc.handlers import hosts as host_methods
from ctxd.rpc.listener import SharedState
from ctxd.rpc.server import Server
from ctxd.rpc.unix_socket import listening
from ctxd.rpc.wire_errors import catch_strays
from ctxd.sandboxes import handlers as sandbox_methods
from ctxd.sandboxes.directories import Directories
from ctxd.sandboxes.listeners import SandboxListeners
from ctxd.sandboxes.registry import Sandboxes
from ctxd.secrets.guard import KEY_BYTES, Guard
from ctxd.secrets.keyfile import load_key
from ctxd.secrets.scan import Scanner
from ctxd.service.supervisor import Supervisor, alone
from ctxd.sessions.notices import NoticeFeeds
from ctxd.sessions.operations import Operations
from ctxd.sessions.registry import Sessions
from ctxd.sessions.tracking import Tracking
from ctxd.sources.confinement import Confinement
from ctxd.sources.filesystem import HostFiles
from ctxd.store.store import VersionStore
from ctxd.store.writes import StoreFailed
from ctxd.trackers.tracker import FILES_MAX, file_trackers
from ctxd_protocol.places import SANDBOXES_NAME
from ctxd_protocol.status import DaemonStatus

if TYPE_CHECKING:
    from ctxd.sharing.hosts import Hosts

_E = TypeVar("_E", bound=Exception)
_EXIT_IO: Final = 74


class Daemon:
    """One daemon, from start to drained end."""

    def __init__(
        self,
        options: Options,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        supervisor: Supervisor | None = None,
        settings: Settings | None = None,
        threshold: Threshold | None = None,
    ) -> None:
        """``supervisor`` None: no service manager is notified. ``settings`` None: they are not read again.

        ``threshold`` is that of ``log``.
        """
        self._supervisor = supervisor or alone()
        self._settings = settings
        self._threshold = threshold
        self._options = options
        self._clock = clock
        self._log = log
        self._ownership = Ownership(lambda ids: self._store.heads(ids))
        self._projection = self._make_projection()
        self._hosts: Hosts | None = None
        self._store = VersionStore(options.state_dir, clock)
        if self._projection is not None:
            self._store.attach(self._projection.serve)
        self._store.on_fault(lambda fault: log.error("store.callback_failed", exc_info=fault))
        self._server: Server | None = None
        self._sessions: Sessions | None = None
        self._listeners: SandboxListeners | None = None
        self._sandboxes: Sandboxes | None = None
        self._tracking: Tracking | None = None
        self._ready_at = 0.0
        self._draining = False

    def _make_projection(self) -> Projection | None:
        options = self._options
        if options.store is None:
            return None
        projection = Projection(options.store, self._clock, log_event=self._log_event)
        if options.shared is not None:
            projection.share(self._ownership)
        return projection

    def _log_event(self, what: str, fields: dict[str, Any]) -> None:
        self._log.warning(what, **fields)

    async def _make_hosts(self, live: Sessions, filesystem: str) -> "Hosts | None":
        target, shared, projection = self._options.store, self._options.shared, self._projection
        if shared is None or target is None or projection is None:
            return None
        # What it takes to speak HTTP is loaded only by those who do.
        from ctxd.sharing.hosts import Hosts

        hosts = Hosts(
            target.url, live, self._ownership, self._clock, host=shared.host, lease_s=shared.lease_s,
            filesystem=filesystem, projected=lambda: projection.seq, log_event=self._log_event,
        )  # fmt: skip
        await hosts.start()
        return hosts

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until SIGTERM or SIGINT, then drain; started once the socket answers.

        Raises: StateDirError if it cannot start, StoreFailed when the disk has failed. Cancel: ends without a drain.
        """
        catch_strays(self._log)
        async with anyio.create_task_group() as parts:
            # The store first: it takes the lock, so that of two daemons only its holder touches the socket.
            await parts.start(self._store.run)
            handlers, shared = await self._handlers(), SharedState()
            server = self._server = Server(
                self._options.socket,
                handlers,
                log=self._log,
                gid=self._options.socket_gid,
                limits=self._options.limits,
                timing=self._options.timing,
                connections_max=self._options.connections_max,
                shared=shared,
            )
            handed = self._supervisor.listening()
            listeners, boxes = self._listeners, self._sandboxes
            assert listeners is not None and boxes is not None, "made with the handlers"
            listeners.serve(handlers, shared)
            if self._hosts is not None:
                await parts.start(self._hosts.run)
            with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
                await parts.start(listeners.run)
                # Before the host's socket: a harness that is back at once finds its sandboxes.
                await boxes.start()
                await parts.start(partial(server.run, handed, lasting=handed is not None))
                await parts.start(boxes.run)
                if self._tracking is not None:
                    await parts.start(self._tracking.run)
                if self._options.metrics is not None:
                    await parts.start(self._serve_metrics, self._options.metrics, shared)
                self._ready_at = self._clock.monotonic()
                self._log.info("daemon.ready", **self._place())
                await self._supervisor.ready(self._said())
                parts.start_soon(self._watch)
                task_status.started()
                await self._heed(signals)
            self._draining = True
            await self._supervisor.stopping()
            async with anyio.create_task_group() as draining:
                draining.start_soon(server.drain)
                draining.start_soon(listeners.drain)
            await self._store.drain()
            parts.cancel_scope.cancel()
        shared.close()
        self._supervisor.close()
        self._log.info("daemon.stopped")

    async def _heed(self, signals: AsyncIterator[signal.Signals]) -> None:
        """Return at the signal to stop. SIGHUP has the settings read again, unless a terminal is gone with it."""
        async for number in signals:
            if number != signal.SIGHUP or self._settings is None or has_terminal():
                self._log.info("daemon.stopping", signal=signal.Signals(number).name)
                return
            await self._supervisor.reloading(self._clock.monotonic())
            await self._supervisor.ready(await self._reload(self._settings))

    async def _reload(self, settings: Settings) -> str:
        """Take up what has changed. Returns: what came of it, in words."""
        try:
            changes = await in_thread(settings.reread)
        except ConfigError as error:
            self._log.error("daemon.not_reloaded", reason=str(error))
            return f"{self._said()}; settings not taken up: {error}"
        config = settings.config
        if self._threshold is not None:
            self._threshold.level = config.log_level
        if self._server is not None and self._listeners is not None:
            self._server.retime(timing_of(config), config.connections_max)
            self._listeners.retime(timing_of(config))
        self._log.info("daemon.reloaded", applied=changes.applied, after_restart=changes.after_restart)
        return f"{self._said()}; {changes.told}"

    async def _watch(self) -> None:
        await self._supervisor.watch(self._clock, self._log, works=self._works, status=self._said)

    async def _works(self) -> None:
        """Return once the store's thread has committed what waited for it, and has read something."""
        with suppress(CtxdError):
            await self._store.check_alive()

    def _said(self) -> str:
        status = self.status()
        reason = status.store.reason or (status.store.projection is not None and status.store.projection.reason)
        return status.state + (f": {reason}" if reason else "")

    async def _handlers(self) -> Mapping[str, Handler]:
        store, clock = self._store, self._clock
        host = host_filesystem_id(substitute=self._machine_id_substitute())
        on_host = HostFiles(clock)
        guard = Guard(self._options.scanner or Scanner(), await in_thread(load_key, store.root))
        indexer = Indexer(store, on_host, host, host_devices=host_devices(), guard=guard)
        live = self._sessions = Sessions(store, clock, host_filesystem_id=host, guard=guard, indexer=indexer)
        # Before anyone can ask: a link that a sandbox planted may wait for the first read after a restart.
        for mounts in await live.start():
            indexer.visibility.confine(mounts)
        self._hosts = await self._make_hosts(live, host)
        self._tracking = self._make_tracking(live, indexer, on_host)
        notices = NoticeFeeds(live)
        operations = Operations(live, indexer, self._options.collapse, self._options.secrets)
        archive = Archive(store, live, spec, estimate_tokens)
        assembler = Assembler(store, live, indexer, archive, clock)
        boxes = self._make_sandboxes(live, on_host.confinement)
        return complete(
            daemon_methods.DaemonCalls(
                incarnation=store.incarnation,
                journal=store.journal_id,
                limits=self._options.limits,
                status=self.status,
                check_receipt=store.check_receipt,
            ),
            host_methods.handlers(sessions.handlers(operations, notices), self._hosts),
            files.FileCalls(live, indexer),
            objects.ObjectCalls(live),
            secrets.SecretCalls(live),
            context.ContextCalls(live, assembler, archive),
            events.EventCalls(notices),
            sandbox_methods.SandboxCalls(boxes, live, clock),
            trackers.TrackerCalls(self._tracking),
        )

    def _make_tracking(self, live: Sessions, indexer: Indexer, on_host: HostFiles) -> Tracking | None:
        if self._options.watcher is None:
            return None
        log = self._log
        followed = file_trackers(
            self._clock,
            on_host.confinement,
            lambda event, directory, reason: log.warning(event, directory=directory, reason=reason),
            choice=self._options.watcher,
        )
        return Tracking(
            live,
            indexer,
            followed,
            self._clock,
            room=lambda session: (
                FILES_MAX if self._sandboxes is None else self._sandboxes.tracking_room(session, followed.tracked.count)
            ),
            failed=lambda error: log.error("tracker.failed", exc_info=error),
        )

    def _make_sandboxes(self, live: Sessions, confinement: Confinement) -> Sandboxes:
        options = self._options
        listeners = self._listeners = SandboxListeners(
            self._clock,
            self._log,
            sessions=live,
            limits=options.limits,
            timing=options.timing,
            supervisor=self._supervisor,
        )
        directories = Directories(options.socket.parent / SANDBOXES_NAME)
        self._sandboxes = Sandboxes(
            live, confinement, self._clock, listeners, directories, self._log, state_dir=options.state_dir
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

    async def _serve_metrics(self, path: Path, shared: SharedState, *, task_status: TaskStatus[None]) -> None:
        with listening(path) as bound:
            await serve_metrics(bound, partial(self._metrics, shared), task_status=task_status)

    async def _metrics(self, shared: SharedState) -> bytes:
        """The figures of this moment, as Prometheus reads them."""
        # What it takes to write them is loaded only by those who do.
        from ctxd.prometheus import Figures, exposition

        tracking = self._tracking
        figures = Figures(
            status=self.status(),
            tally=shared.tally,
            commits=self._store.commit_durations,
            tracked=[] if tracking is None else [file.state for file in tracking.trackers.tracked.files.values()],
        )
        return await in_thread(exposition, figures)

    def status(self) -> DaemonStatus:
        """Health and figures, as ``daemon.status`` answers them."""
        assert self._server is not None, "only a daemon that serves is asked"
        assert self._sessions is not None and self._sandboxes is not None, "a daemon that serves has its sessions"
        store = self._store.status()
        if self._projection is not None:
            store = self._projection.reported_in(store)
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
            tracking=trackers.watching_of(self._tracking),
            sandboxes=self._sandboxes.status(),
        )


def serve(config: Config, *, ephemeral: bool = False, reread: Callable[[], Config] | None = None) -> int:
    """Run one daemon in this process until it is stopped. Returns the exit code: 0, or 74 if the disk has failed.

    ``reread`` reads the settings again at SIGHUP; None: SIGHUP stops the daemon too.

    Raises: StateDirError if it cannot start.
    """
    supervisor = Supervisor.of(os.environ)
    have_descriptors()
    spare_the_collector()
    return_large_blocks()
    scanner = scanner_from(config)
    # The key is in the state directory, whose lock is not held yet: tags in the log are of this run alone.
    redact = Guard(scanner, os.urandom(KEY_BYTES)).redacted
    threshold = Threshold(config.log_level)
    log = open_log(threshold, None if config.log_format == "auto" else config.log_format, redact=redact)
    daemon = Daemon(
        with_passed_socket(options_of(config, scanner, ephemeral=ephemeral), supervisor.host_path(), config),
        SystemClock(),
        log,
        supervisor=supervisor,
        settings=None if reread is None else Settings(config, reread),
        threshold=threshold,
    )
    code, refusal = 0, None
    try:
        anyio.run(daemon.run, backend_options={"use_uvloop": True})
    except* StoreFailed as failed:
        log.critical("store.failed", reason=str(_first(failed)))
        code = _EXIT_IO
    except* StateDirError as refused:
        refusal = _first(refused)
    except* Exception as bug:
        log.critical("daemon.failed", exc_info=bug)
        code = os.EX_SOFTWARE
    if refusal is not None:
        # Raised after the try: Python before 3.11.4 wraps an exception raised inside except* in a new group.
        raise refusal
    return code


def _first(group: BaseExceptionGroup[_E]) -> _E:
    """The first of the exceptions that a task group gathered."""
    found: BaseExceptionGroup[_E] | _E = group
    while isinstance(found, BaseExceptionGroup):
        found = found.exceptions[0]
    return found
