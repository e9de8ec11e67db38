"""Client of the service manager: systemd, or another one with its protocol.

Owns the passed sockets and the notifications: ready, reloading, stopping and status. ``watchdog.py`` decides when to
ping the watchdog. Connections to a held socket wait in its queue while no daemon runs.
"""

import os
import socket
from collections.abc import MutableMapping
from typing import Any, Final

from ctxd.service import socket_activation
from ctxd.service.sd_notify import Notify

_STATUS_S: Final = 10.0
"""Seconds between status updates without a watchdog."""

KEPT_PREFIX: Final = "sbx-"
"""Prefix of the names of sandboxes' sockets."""

Listening = dict[str, list[socket.socket]]


class ServiceManager:
    """Passed sockets and the notification socket. ``watchdog_s`` None: no watchdog."""

    def __init__(self, notify: Notify, listening: Listening, watchdog_s: float | None) -> None:
        self._notify = notify
        self._watchdog_s = watchdog_s
        self._status = ""
        kept = {name: found for name, found in listening.items() if name.startswith(KEPT_PREFIX)}
        self._kept = {name: found[0] for name, found in kept.items() if len(found) == 1}
        # Of several sockets with one name, the one at the path cannot be identified: a new one replaces them all.
        self._stale = {name for name, found in kept.items() if len(found) > 1}
        for name in self._stale:
            for listener in kept[name]:
                refuse(listener)
        self._host = [each for name, found in listening.items() if name not in kept for each in found]

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> "ServiceManager":
        """Return the service manager described by ``environ``, and remove its variables."""
        return cls(Notify.of(environ), socket_activation.take(environ), _watchdog_s(environ))

    # --- sockets

    @property
    def present(self) -> bool:
        """True if a service manager started this daemon; it can hold sockets during a restart."""
        return self._notify.wanted

    def host_path(self) -> str:
        """Return the path of the passed host socket; empty if the daemon has to create one."""
        return socket_activation.path_of(self._host[0]) if self._host else ""

    def listening(self) -> socket.socket | None:
        """Return the host's listening socket, once; None if the daemon has to create one."""
        return self._host.pop(0) if self._host else None

    def kept(self, name: str, path: str) -> socket.socket | None:
        """The socket kept as ``name``, once; None without one, or if it is no longer the one at ``path``."""
        found = self._kept.pop(name, None)
        if found is not None and (socket_activation.path_of(found) != path or not os.path.exists(path)):
            refuse(found)
            self._stale.add(name)
            return None
        return found

    def unclaimed(self) -> list[str]:
        """Return the names of held sockets that were not claimed."""
        return [*self._kept, *self._stale]

    async def keep(self, name: str, listener: socket.socket) -> None:
        """Pass ``listener`` to the manager under ``name``, so that it outlives the daemon."""
        if name in self._stale:
            self._stale.remove(name)
            await self._notify.send(FDSTOREREMOVE=1, FDNAME=name)
        await self._notify.send([listener.fileno()], FDSTORE=1, FDNAME=name, FDPOLL=0)

    async def forget(self, name: str) -> None:
        """Make the manager close the socket that it holds as ``name``."""
        await self._notify.send(FDSTOREREMOVE=1, FDNAME=name)
        self._stale.discard(name)
        unclaimed = self._kept.pop(name, None)
        if unclaimed is not None:
            refuse(unclaimed)

    # --- how it goes

    async def ready(self, text: str) -> None:
        """Report that the daemon is ready, with the status ``text``. Also ends ``reloading``."""
        self._status = text
        await self._notify.send(READY=1, STATUS=text)

    async def reloading(self, now: float) -> None:
        """Report that the settings are being reloaded, from second ``now`` of the monotonic clock until ``ready``."""
        await self._notify.send(RELOADING=1, MONOTONIC_USEC=int(now * 1e6))

    async def stopping(self) -> None:
        """Report that the daemon finishes its calls and stops."""
        await self._notify.send(STOPPING=1, STATUS="stopping")

    @property
    def ping_period_s(self) -> float:
        """Seconds between two calls of ``report_alive``: half the watchdog's interval. Without a watchdog, only the
        status is sent."""
        return _STATUS_S if self._watchdog_s is None else self._watchdog_s / 2

    async def report_alive(self, text: str) -> None:
        """Ping the watchdog, if there is one, and send the status ``text`` if it changed."""
        fields: dict[str, Any] = {} if self._watchdog_s is None else {"WATCHDOG": 1}
        if text != self._status:
            self._status = fields["STATUS"] = text
        if fields:
            await self._notify.send(**fields)

    def close(self) -> None:
        """Close the unclaimed passed sockets, and the notification socket."""
        for listener in (*self._host, *self._kept.values()):
            listener.close()
        self._notify.close()


def alone() -> ServiceManager:
    """Return the service manager of a daemon without a service manager."""
    return ServiceManager(Notify(None), {}, None)


def refuse(listener: socket.socket) -> None:
    """Shut ``listener`` down in all processes that hold it: new and waiting connections are refused."""
    try:
        listener.shutdown(socket.SHUT_RDWR)
    finally:
        listener.close()


def _watchdog_s(environ: MutableMapping[str, str]) -> float | None:
    period, meant = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
    if not period.isdecimal() or int(period) == 0 or (meant and meant != str(os.getpid())):
        return None
    return int(period) / 1e6
