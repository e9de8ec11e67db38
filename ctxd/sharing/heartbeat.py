"""This host's lease, kept up, and the others', watched: a look and a small transaction a few times in its length."""

from collections.abc import Callable
from typing import Any, Final

import anyio

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.errors import XtdbFailure
from ctxd.clock import Clock
from ctxd.sharing import leases, ownership_ops
from ctxd.sharing.leases import Lease, Observer

BEAT_S: Final = 2.0
"""Seconds that a renewal may take, however short the lease: less is no sign of a node that lost the request."""

Tell = Callable[[str, dict[str, Any]], None]


class Heartbeat:
    """The leases of all hosts as seen from ``writer``'s. ``run`` while the daemon does."""

    def __init__(
        self, client: XtdbClient, clock: Clock, *, writer: str, host: str, filesystem: str, incarnation: int,
        lease_s: float, tell: Tell,
    ) -> None:  # fmt: skip
        self._client = client
        self._clock = clock
        self._writer = writer
        self._mine = Lease(host=host, filesystem=filesystem, incarnation=incarnation, beat=0)
        self._standing: Lease | None = None
        self._lease_s = lease_s
        self._tell = tell
        self._failing = False
        self.observer = Observer(lease_s)

    async def run(self) -> None:
        """Renew and watch until cancelled; a node that does not answer is tried again at the next turn."""
        while True:
            turn_s, began = self._lease_s / leases.RENEWALS, self._clock.monotonic()
            within_s = max(turn_s, BEAT_S)
            try:
                # A node that lost one request may answer the next, and the lease has room for that.
                with anyio.fail_after(within_s):
                    await self.beat()
                self._failing = False
            except (XtdbFailure, ValueError, TimeoutError) as error:
                if not self._failing:
                    reason = str(error) or f"the node does not answer within {within_s:g} s"
                    self._tell("sharing.lease_not_renewed", {"reason": reason})
                self._failing = True
            await self._clock.sleep(max(0.0, turn_s - (self._clock.monotonic() - began)))

    async def beat(self) -> None:
        """Renew this host's lease and look at all. Raises: XtdbFailure, ValueError. Cancel: safe."""
        await self.look()
        after = leases.renewed(self._mine, self._standing)
        if await ownership_ops.renew(self._client, self._writer, self._standing, after):
            self._mine = self._standing = after

    async def look(self) -> None:
        """See everybody's lease. Raises: XtdbFailure, ValueError. Cancel: safe."""
        seen = await ownership_ops.every_lease(self._client)
        self._standing = seen.pop(self._writer, None)
        self.observer.see(seen.items(), self._clock.monotonic())

    def left_s(self, writer: str) -> float:
        """Seconds until the lease of ``writer`` has run out as seen from here; 0 or less: it has.

        One who has none, has one from the first time it is asked for.
        """
        self.observer.miss(writer, self._clock.monotonic())
        return self.observer.left_s(writer, self._clock.monotonic())

    def host(self, writer: str) -> str:
        """The name of the host of ``writer``, its first digits where no lease tells it."""
        if writer == self._writer:
            return self._mine.host
        lease = self.observer.leases.get(writer)
        return writer[:8] if lease is None or not lease.host else lease.host

    def filesystem(self, writer: str) -> str:
        """The id of the own filesystem of the host of ``writer``; empty where no lease tells it."""
        lease = self.observer.leases.get(writer)
        return "" if lease is None else lease.filesystem
