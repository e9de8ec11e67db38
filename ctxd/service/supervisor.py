"""The daemon's side of a service manager: systemd, or another that speaks its protocol.

Owns what was handed over at the start and what is said afterwards: ready, reloading, stopping, and alive, which is said
only when work was seen to be done. Knows no part of the daemon. Promise: a socket that is kept is one that a client can
connect to while no daemon runs.
"""

import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

import anyio
from structlog.typing import FilteringBoundLogger

from ctxd.clock import Clock
from ctxd.service import handed
from ctxd.service.notify import Notify

STATUS_S: Final = 10.0
"""Seconds between two looks at what is to be said, where no watchdog sets the pace."""

KEPT_PREFIX: Final = "sbx-"
"""How the names of sockets begin that are kept for sandboxes."""

Listening = dict[str, list[socket.socket]]


class Supervisor:
    """What was handed over, and whom to tell. ``watchdog_s`` null: nobody waits for a sign of life."""

    def __init__(self, notify: Notify, listening: Listening, watchdog_s: float | None) -> None:
        self._notify = notify
        self._watchdog_s = watchdog_s
        self._said = ""
        self._stale: set[str] = set()
        kept = {name: found for name, found in listening.items() if name.startswith(KEPT_PREFIX)}
        self._kept = {name: found[-1] for name, found in kept.items()}
        self._host = [each for name, found in listening.items() if name not in kept for each in found]

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> "Supervisor":
        """The one that ``environ`` tells of, whose variables are gone from it afterwards."""
        return cls(Notify.of(environ), handed.take(environ), _watchdog_s(environ))

    # --- sockets

    @property
    def keeps(self) -> bool:
        """Whether sockets can be given to it for the time of a restart."""
        return self._notify.wanted

    def host_path(self) -> str:
        """Where that socket is; empty if the daemon has to make it."""
        return handed.path_of(self._host[0]) if self._host else ""

    def listening(self) -> socket.socket | None:
        """The socket that the host's clients come to, once; null if the daemon has to make it."""
        return self._host.pop(0) if self._host else None

    def kept(self, name: str, path: str) -> socket.socket | None:
        """The socket kept as ``name``, once, if it is still the one at ``path``."""
        found = self._kept.pop(name, None)
        if found is not None and (handed.path_of(found) != path or not os.path.exists(path)):
            refuse(found)
            self._stale.add(name)
            return None
        return found

    def unclaimed(self) -> list[str]:
        """The names of sockets that were kept and that nobody has asked for."""
        return list(self._kept)

    async def keep(self, name: str, listener: socket.socket) -> None:
        """Have ``listener`` kept as ``name`` when the daemon ends."""
        if name in self._stale:
            self._stale.remove(name)
            await self._notify.send(FDSTOREREMOVE=1, FDNAME=name)
        await self._notify.send([listener.fileno()], FDSTORE=1, FDNAME=name, FDPOLL=0)

    async def forget(self, name: str) -> None:
        """Have the socket kept as ``name`` closed."""
        await self._notify.send(FDSTOREREMOVE=1, FDNAME=name)
        unclaimed = self._kept.pop(name, None)
        if unclaimed is not None:
            refuse(unclaimed)

    # --- how it goes

    async def ready(self, said: str) -> None:
        """The daemon serves; ``said`` is for people. Also the end of ``reloading``."""
        self._said = said
        await self._notify.send(READY=1, STATUS=said)

    async def reloading(self, now: float) -> None:
        """The settings are being read again, from second ``now`` of the monotonic clock until ``ready``."""
        await self._notify.send(RELOADING=1, MONOTONIC_USEC=int(now * 1e6))

    async def stopping(self) -> None:
        """The daemon finishes what it has begun, and ends."""
        await self._notify.send(STOPPING=1, STATUS="stopping")

    async def watch(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        *,
        works: Callable[[], Awaitable[None]],
        say: Callable[[], str],
    ) -> None:
        """Tell that the daemon is alive, each half of what the manager waits, if ``works`` returns within a quarter,
        and what ``say`` tells whenever it is another thing. Runs until cancelled, which is safe.

        That this loop turns is told by the telling; that work is done, by ``works``.
        """
        if not self._notify.wanted:
            return
        period = STATUS_S if self._watchdog_s is None else self._watchdog_s / 2
        late_since: float | None = None
        while True:
            began = clock.monotonic()
            # Less than the rest of the time: what is found at its end must still be told before that is over.
            with anyio.move_on_after(period / 2) as waited:
                await works()
            if not waited.cancelled_caught:
                late_since = None
                await self._alive(say())
                await clock.sleep(max(0.0, began + period - clock.monotonic()))
            else:
                late_since = began if late_since is None else late_since
                late_s = clock.monotonic() - late_since
                log.error("service.no_progress", seconds=round(late_s, 3))

    async def _alive(self, said: str) -> None:
        fields: dict[str, Any] = {} if self._watchdog_s is None else {"WATCHDOG": 1}
        if said != self._said:
            self._said = fields["STATUS"] = said
        if fields:
            await self._notify.send(**fields)

    def close(self) -> None:
        """Let go of what was not asked for."""
        for listener in (*self._host, *self._kept.values()):
            listener.close()
        self._notify.close()


def alone() -> Supervisor:
    """The supervisor of a daemon that nobody supervises."""
    return Supervisor(Notify(None), {}, None)


def refuse(listener: socket.socket) -> None:
    """Close ``listener`` for all who hold it: who connects from now on is refused, and so is who waits."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    finally:
        listener.close()


def _watchdog_s(environ: MutableMapping[str, str]) -> float | None:
    period, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not period.isdecimal() or int(period) == 0 or (meant and meant != str(os.getpid())):
        return None
    return int(period) / 1e6
