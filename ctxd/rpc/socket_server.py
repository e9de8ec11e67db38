"""Server: accepts connections on a Unix socket until it is stopped.

Owns the socket, the task group in which calls run, and the orderly shutdown. Guarantee: however ``run`` ends, it leaves
no task, socket or open connection behind.
"""

import asyncio
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import anyio
import msgspec
from anyio.abc import TaskStatus

from ctxd.failpoints import hit
from ctxd.rpc.connection import Connection
from ctxd.rpc.listener_state import ListenerContext, ListenerSettings, SharedState, Timing
from ctxd.rpc.scheduler import TaskPool
from ctxd.rpc.socket_binding import bind_socket, inode_of, remove_socket

CONNECTIONS_MAX: Final = 4096
"""Maximum connections per listener. More are refused with an error; each takes a descriptor and about 10 KB."""

_KEEPS_PATH: Final[dict[str, bool]] = {"cleanup_socket": False} if sys.version_info >= (3, 13) else {}
"""Option of ``create_unix_server``. From Python 3.13 on, closing a server removes its path by default, even if the
service manager keeps the socket."""


class Server:
    """A listener at ``path``. ``shared``: the state shared with other listeners; its own by default. With a quota it is
    a sandbox's: every user that can reach the socket may use it, within the quota. ``accept`` creates the protocol of
    one connection."""

    def __init__(
        self,
        path: Path,
        settings: ListenerSettings,
        *,
        gid: int | None = None,
        shared: SharedState | None = None,
        accept: Callable[[ListenerContext], asyncio.Protocol] = Connection,
    ) -> None:
        self._path = path
        self._settings = settings
        self._log = settings.log
        self._gid = gid
        self._shared = shared
        self._accept = accept
        self._listening: ListenerContext | None = None
        self._listener: asyncio.Server | None = None

    @property
    def connections(self) -> int:
        """Open connections."""
        return 0 if self._listening is None else len(self._listening.connections)

    @property
    def in_flight(self) -> int:
        """Calls without a reply yet."""
        return 0 if self._listening is None else self._listening.in_flight

    @property
    def requests(self) -> int:
        """Calls and notifications since the start, refused ones included."""
        return 0 if self._listening is None else self._listening.requests

    def bind(self) -> socket.socket:
        """Bind and return the listening socket, before anything else is started.

        Raises: StateDirError if it cannot be bound.
        """
        return bind_socket(self._path, gid=self._gid)

    def retime(self, timing: Timing, connections_max: int) -> None:
        """Use ``timing`` and ``connections_max`` for further calls and connections."""
        self._settings = msgspec.structs.replace(self._settings, timing=timing, connections_max=connections_max)
        if self._listening is not None:
            self._listening.timing, self._listening.connections_max = timing, connections_max

    async def run(
        self,
        bound: socket.socket | None = None,
        *,
        lasting: bool = False,
        task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED,
    ) -> None:
        """Serve until cancelled; started once connections are accepted. Cancel: safe; every connection is closed at
        once. With ``lasting`` the service manager holds the socket too, and it is not removed.

        Raises: StateDirError if the socket cannot be bound.
        """
        bound = self.bind() if bound is None else bound
        inode = inode_of(self._path)
        shared = self._shared or SharedState()
        shared.listeners += 1
        try:
            async with anyio.create_task_group() as group:
                tasks = TaskPool(asyncio.get_running_loop(), group.start_soon)
                await group.start(tasks.serve)
                context = self._listening = self._context(tasks, shared)
                loop: Any = asyncio.get_running_loop()
                try:
                    self._listener = await loop.create_unix_server(
                        lambda: self._accept(context), sock=bound, backlog=1024, **_KEEPS_PATH
                    )
                    task_status.started()
                    await anyio.sleep_forever()
                finally:
                    # Connections keep reading until the group has ended.
                    tasks.close()
        finally:
            self._end()
            shared.listeners -= 1
            if not lasting:
                self._remove(inode)
            bound.close()

    async def drain(self) -> None:
        """Stop accepting, refuse new calls, give those in flight ``drain_s``, then close every connection.

        Cancel: safe; ``run`` closes the remaining connections when it ends.
        """
        hit("drain.start")
        if self._listener is not None:
            self._listener.close()
        context = self._listening
        if context is None:
            return
        emptied = anyio.Event()
        context.emptied = emptied.set
        for connection in list(context.connections):
            connection.drain()
        if context.connections:
            with anyio.move_on_after(self._settings.timing.drain_s):
                await emptied.wait()
        for connection in list(context.connections):
            connection.abort()

    def _remove(self, inode: tuple[int, int]) -> None:
        """Remove the socket. If the disk fails, a stale socket is left, which the next start replaces."""
        try:
            remove_socket(self._path, inode)
        except OSError as error:
            self._log.error("rpc.socket_not_removed", path=str(self._path), error=str(error))

    def _end(self) -> None:
        if self._listener is not None:
            self._listener.close()
        if self._listening is not None:
            for connection in list(self._listening.connections):
                connection.abort()
            if self._shared is None:
                self._listening.shared.close()

    def _context(self, tasks: TaskPool, shared: SharedState) -> ListenerContext:
        return ListenerContext(
            self._settings,
            shared=shared,
            owner_uid=self._path.stat().st_uid,
            owner_only=self._gid is None and self._settings.quota is None,
            loop=asyncio.get_running_loop(),
            tasks=tasks,
        )
