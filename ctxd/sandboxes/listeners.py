"""The listeners of sandboxes: one each, opened and closed while the daemon runs.

Owns their servers and the state that these share. Promise: once ``close`` returns, the sandbox's listener and its
connections are gone.
"""

import socket
from collections.abc import Callable, Container, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskGroup, TaskStatus
from structlog.typing import FilteringBoundLogger

from ctxd.clock import Clock
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError
from ctxd.rpc.dispatch import Handler, Table, build_table
from ctxd.rpc.grants import granted
from ctxd.rpc.listener_state import ListenerIdentity, ListenerSettings, SharedState, Timing
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd.rpc.socket_server import Server
from ctxd.sandboxes.registration import Registration
from ctxd.sandboxes.reply_filter import viewed
from ctxd.sandboxes.sandbox_connection import SandboxConnection
from ctxd.service.service_manager_client import KEPT_PREFIX, ServiceManager
from ctxd.sessions.registry import Sessions
from ctxd.worker_threads import in_thread
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.limits import FRAME_BYTES_SANDBOX_MAX, Limits
from ctxd_protocol.session_types import Mount

_WRITE_BUFFER_BYTES: Final = 256 * 1024
"""Bytes of unsent replies to a sandbox above which the daemon stops reading from it."""


class SocketMetrics(msgspec.Struct, frozen=True):
    """Figures of one sandbox's socket: open connections, calls since it was opened, and calls refused for the quota."""

    connections: int = 0
    requests: int = 0
    refused: int = 0


class _Open:
    """One open listener."""

    def __init__(self, server: Server, meter: QuotaMeter, bound: socket.socket, connections_max: int) -> None:
        self.server = server
        self.bound = bound
        self.connections_max = connections_max
        self.meter = meter
        self.scope = anyio.CancelScope()
        self.ended = anyio.Event()


class SandboxListeners:
    """The sandboxes' listeners. ``run`` before the first is opened; ``serve`` sets the handlers."""

    def __init__(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        sessions: Sessions,
        checkpoints: SessionCheckpoints,
        limits: Limits,
        timing: Timing,
        service_manager: ServiceManager,
    ) -> None:
        """``limits`` and ``timing`` are the host's; a sandbox's lines and write buffer are smaller. ``service_manager``
        keeps the sockets while no daemon runs."""
        self._service_manager = service_manager
        self._clock = clock
        self._log = log
        self._sessions = sessions
        self._checkpoints = checkpoints
        frame_bytes = min(limits.frame_bytes, FRAME_BYTES_SANDBOX_MAX)
        self._limits = msgspec.structs.replace(limits, frame_bytes=frame_bytes)
        self._timing = _of_a_sandbox(timing)
        self._handlers: Mapping[str, Handler] = {}
        self._tables: dict[frozenset[str], Table] = {}
        self._shared: SharedState | None = None
        self._group: TaskGroup | None = None
        self._open: dict[str, _Open] = {}

    def serve(self, handlers: Mapping[str, Handler], shared: SharedState) -> None:
        """Serve calls with ``handlers``, and share ``shared`` with the host's listener."""
        self._handlers, self._shared = viewed(handlers, self._mounts_of), shared

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Run the listeners until cancelled. Cancel: safe; every connection is closed at once."""
        async with anyio.create_task_group() as self._group:
            task_status.started()
            await anyio.sleep_forever()

    def _ask(self, session: str, answer: Callable[[CurrentContext | CtxdError], None]) -> None:
        """Pass the current context of ``session`` to ``answer``, at once or from a task."""
        try:
            found = self._checkpoints.current(session)
        except CtxdError as error:
            answer(error)
            return
        if isinstance(found, CurrentContext):
            answer(found)
            return
        assert self._group is not None, "run comes first"
        self._group.start_soon(self._answer_later, found, answer)

    async def _answer_later(
        self, coming: Coroutine[Any, Any, CurrentContext], answer: Callable[[CurrentContext | CtxdError], None]
    ) -> None:
        try:
            answer(await coming)
        except CtxdError as error:
            answer(error)

    async def open(self, registration: Registration, path: Path) -> None:
        """Listen at ``path`` for the sandbox. Raises: StateDirError; CtxdError rate_limited without descriptors."""
        assert self._group is not None and self._shared is not None, "run and serve come first"
        if not self._shared.has_descriptor(on_host=False):
            raise CtxdError(
                "rate_limited",
                "the daemon has no file descriptor left for another sandbox",
                hint="Release sandboxes, or raise the daemon's limit of open files (LimitNOFILE).",
                outcome="not_applied",
            )
        meter = QuotaMeter(
            registration.quota,
            objects=lambda: sum(map(self._objects_of, registration.sessions)),
            now=self._clock.monotonic,
        )
        settings = ListenerSettings(
            table=self._table(granted(registration.grants)),
            identity=ListenerIdentity(
                capability="session", principal=registration.principal, sessions=registration.sessions
            ),
            limits=self._limits,
            timing=self._timing,
            connections_max=registration.quota.connections,
            log=self._log.bind(sandbox=registration.id),
            quota=meter,
        )
        server = Server(
            path,
            settings,
            shared=self._shared,
            accept=lambda listener: SandboxConnection(listener, partial(self._ask, registration.sessions[0])),
        )
        bound = await self._bound(server, registration.id, path)
        made = self._open[registration.id] = _Open(server, meter, bound, registration.quota.connections)

        async def keep(*, task_status: TaskStatus[None]) -> None:
            try:
                with made.scope:
                    await server.run(bound, lasting=self._service_manager.present, task_status=task_status)
            finally:
                made.ended.set()

        await self._group.start(keep)

    async def _bound(self, server: Server, sandbox: str, path: Path) -> socket.socket:
        """The socket of an earlier run, with the connections waiting on it, or a new one.

        Raises: StateDirError.
        """
        bound = self._service_manager.kept(kept_as(sandbox), str(path))
        if bound is None:
            bound = await in_thread(server.bind)
            await self._service_manager.keep(kept_as(sandbox), bound)
        return bound

    async def close_others(self, sandboxes: Container[str]) -> None:
        """Close the sockets kept from an earlier run, except those of ``sandboxes``."""
        for name in self._service_manager.unclaimed():
            if name.removeprefix(KEPT_PREFIX) not in sandboxes:
                await self._service_manager.forget(name)

    def retime(self, timing: Timing) -> None:
        """Apply ``timing`` from the next call on."""
        self._timing = _of_a_sandbox(timing)
        for made in self._open.values():
            made.server.retime(self._timing, made.connections_max)

    async def close(self, sandbox: str) -> None:
        """Stop listening for ``sandbox``, and end its connections; do nothing if it has no listener."""
        made = self._open.pop(sandbox, None)
        if made is not None:
            if self._service_manager.present:
                # Clients that connect before the service manager closes its copy are refused instead of left waiting.
                with suppress(OSError):
                    made.bound.shutdown(socket.SHUT_RDWR)
            made.scope.cancel()
            await made.ended.wait()
            await self._service_manager.forget(kept_as(sandbox))

    def figures(self, sandbox: str) -> SocketMetrics:
        """Figures of the socket of ``sandbox``."""
        made = self._open.get(sandbox)
        if made is None:
            return SocketMetrics()
        return SocketMetrics(made.server.connections, made.server.requests, made.meter.refused)

    async def drain(self) -> None:
        """Let every listener finish its calls in flight, all at once. Cancel: safe."""
        async with anyio.create_task_group() as group:
            for made in list(self._open.values()):
                group.start_soon(made.server.drain)

    def _mounts_of(self, session: str) -> Sequence[Mount]:
        catalog = self._sessions.catalog
        return catalog.settings(session).mounts if session in catalog else ()

    def _objects_of(self, session: str) -> int:
        return self._sessions.summary(session)[0].index_count if session in self._sessions.catalog else 0

    def _table(self, methods: frozenset[str]) -> Table:
        table = self._tables.get(methods)
        if table is None:
            table = self._tables[methods] = build_table(self._handlers, "session", methods)
        return table


def kept_as(sandbox: str) -> str:
    """The name under which a service manager keeps the socket of ``sandbox``."""
    return KEPT_PREFIX + sandbox


def _of_a_sandbox(timing: Timing) -> Timing:
    return msgspec.structs.replace(timing, write_buffer_bytes=_WRITE_BUFFER_BYTES)
