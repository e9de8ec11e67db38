"""Heartbeat: renews this host's lease in XTDB, and observes the leases of the other hosts.

A host is alive while its lease or its projection cursor changes: a host that projects rows need not renew. No two
clocks are compared: a lease has expired for an observer if, by the observer's own monotonic clock, neither has changed
for the lease's length. A host without an active session needs no lease and does not renew it.

Cost: a renewal is one row of XTDB's transaction log, which is never trimmed. Its document is one of ``BEATS``, which
the document store updates in place. An idle host with active sessions writes ``RENEWALS`` rows per lease length:
17,280 a day at the default of 15 s, so 1.7 million for 100 such hosts; a longer lease writes fewer.
"""

from collections.abc import Callable, Iterable
from typing import Final

import anyio
import msgspec

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, cursor_id
from ctxd.backends.xtdb.messages import Doc, Match, Op, PutDoc, Unknown, XtdbFailure
from ctxd.clock import Clock
from ctxd.observe.logs import LogEvent

PREFIX: Final = "ctxd/lease/"

RENEWALS: Final = 3
"""Renewals per length of a lease: two may fail before other hosts consider its holder dead."""

BEATS: Final = 1_000
"""Modulus of the beat. An observer fails to see a change only if it misses exactly that many renewals."""

RENEWALS_MAX: Final = 10**8
"""Renewals of one run with distinct valid times, enough for years."""

LAG_BEATS: Final = 10
"""Turns after which a host that projects rows renews its lease nevertheless, to publish its lag."""

BEAT_S: Final = 2.0
"""Minimum timeout of a renewal in seconds, however short the lease: only a node that lost the request takes longer."""

STEP_S: Final = 10.0
"""Seconds for which to wait until the node has indexed a transaction; then its outcome is looked up."""


class HostLease(msgspec.Struct, frozen=True, kw_only=True):
    """The lease of a host. ``host``: the machine's name, for display. ``filesystem``: the id of its own filesystem.
    ``run`` counts the daemon's starts, ``beat`` the renewals since then, modulo ``BEATS``. ``lag``: number of journal
    rows that its node lacked."""

    host: str
    filesystem: str
    run: int = 0
    beat: int
    lag: int = 0


def lease_id(writer: str) -> str:
    """Return the id of the entity with the lease of ``writer``."""
    return PREFIX + writer


def to_doc(writer: str, lease: HostLease) -> Doc:
    """Return the document of ``lease``."""
    return {"xt/id": lease_id(writer), "type": "lease", "payload": msgspec.to_builtins(lease)}


def from_doc(doc: Doc | None) -> HostLease | None:
    """Return the lease in ``doc``, ``None`` for ``None``. Raises: ValueError if it has no lease."""
    return None if doc is None else msgspec.convert(doc.get("payload"), HostLease)


def renewal(writer: str, before: HostLease | None, after: HostLease, number: int) -> list[Op]:
    """Return the transaction from ``before``, ``None`` for no lease, to ``after``, the renewal ``number`` of its run.

    Each has a distinct valid time: many versions at one valid time would make every renewal slower than the previous
    one.
    """
    match = Match(lease_id(writer), None if before is None else to_doc(writer, before), NEWEST_VALID_TIME)
    return [match, PutDoc(to_doc(writer, after), FIXED_VALID_TIME + after.run * RENEWALS_MAX + number)]


class LeaseObserver:
    """Signs of life of other hosts, as observed by one host. Times are of its own monotonic clock, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[object, float]] = {}

    def see(self, signs: Iterable[tuple[str, object]], now: float) -> None:
        """Record ``signs``, the newest of each writer, read no later than ``now``."""
        for writer, sign in signs:
            known = self._seen.get(writer)
            if known is None or known[0] != sign:
                self._seen[writer] = (sign, now)

    def left_s(self, writer: str, now: float) -> float:
        """Return the seconds until the lease of ``writer`` expires unless it is renewed; 0 or less: it has expired.

        For an unknown writer, the lease begins with the first call.
        """
        return self._seen.setdefault(writer, (None, now))[1] + self._lease_s - now


class Heartbeat:
    """The leases of all hosts, as seen by the host of ``writer``. ``run`` it while the daemon runs."""

    def __init__(
        self, client: XtdbClient, clock: Clock, *, writer: str, host: str, filesystem: str, lease_s: float,
        projected: Callable[[], int], head: Callable[[], int], is_active: Callable[[], bool], log_event: LogEvent,
    ) -> None:  # fmt: skip
        """``projected``, ``head``: the newest journal row at the node, and in the journal. ``is_active``: true if this
        host has an active session."""
        self._client = client
        self._clock = clock
        self._writer = writer
        self._mine = HostLease(host=host, filesystem=filesystem, run=0, beat=0)
        self._standing: HostLease | None = None
        self._number = 0
        self._lease_s = lease_s
        self._projected = projected
        self._head = head
        self._is_active = is_active
        self._log_event = log_event
        self._failing = False
        self._sign = -1
        self._skipped = 0
        self._renewed_at: float | None = None
        self.leases: dict[str, HostLease] = {}
        """The leases of the other hosts, by writer."""
        self._observer = LeaseObserver(lease_s)

    async def run(self) -> None:
        """Renew and observe until cancelled. If the node does not respond, the next turn tries again."""
        while True:
            turn_s, began = self._lease_s / RENEWALS, self._clock.monotonic()
            within_s = max(turn_s, BEAT_S)
            try:
                # A node that lost one request may respond to the next, and the lease is long enough for that.
                with anyio.fail_after(within_s):
                    await self.beat()
                self._failing = False
            except (XtdbFailure, ValueError, TimeoutError) as error:
                if not self._failing:
                    reason = str(error) or f"the node does not respond within {within_s:g} s"
                    self._log_event("sharing.lease_not_renewed", {"reason": reason})
                self._failing = True
            await self._clock.sleep(max(0.0, turn_s - (self._clock.monotonic() - began)))

    async def beat(self) -> None:
        """Observe all leases, and renew this host's if it is due. Raises: XtdbFailure, ValueError. Cancel: safe."""
        await self.look()
        projected = self._projected()
        shows_life = projected != self._sign and self._skipped < LAG_BEATS
        self._sign = projected
        if self._renewed_at is None or not (shows_life or not self._is_active()):
            await self._renew()
        else:
            self._skipped += 1

    async def require_fresh(self) -> None:
        """Renew this host's lease unless it was renewed within the last turn: the host is about to own a session.

        Raises: XtdbFailure, ValueError. Cancel: safe.
        """
        if self._renewed_at is None or self._clock.monotonic() - self._renewed_at > self._lease_s / RENEWALS:
            await self.look()
            await self._renew()

    async def look(self) -> None:
        """Read every host's lease and cursor. Raises: XtdbFailure, ValueError. Cancel: safe."""
        ids = await self._client.ids(PREFIX, valid_time=NEWEST_VALID_TIME)
        docs = await self._client.entities(ids, valid_time=NEWEST_VALID_TIME)
        self._standing = from_doc(docs.pop(lease_id(self._writer), None))
        found = {id.removeprefix(PREFIX): from_doc(doc) for id, doc in docs.items()}
        self.leases = {writer: lease for writer, lease in found.items() if lease is not None}
        cursors = await self._client.entities(map(cursor_id, self.leases), valid_time=NEWEST_VALID_TIME)
        signs = [
            (writer, (lease.run, lease.beat, repr(cursors.get(cursor_id(writer)))))
            for writer, lease in self.leases.items()
        ]
        self._observer.see(signs, self._clock.monotonic())

    async def _renew(self) -> None:
        number = self._number + 1
        run = self._mine.run or 1 + (0 if self._standing is None else self._standing.run)
        after = msgspec.structs.replace(self._mine, run=run, beat=number % BEATS, lag=self.lag(self._writer))
        ops = renewal(self._writer, self._standing, after, number)
        if await is_committed(self._client, ops) or await self._stands(after):
            self._standing, self._mine, self._number = after, after, number
            self._renewed_at, self._skipped = self._clock.monotonic(), 0

    async def _stands(self, lease: HostLease) -> bool:
        return from_doc(await self._client.entity(lease_id(self._writer), valid_time=NEWEST_VALID_TIME)) == lease

    def left_s(self, writer: str) -> float:
        """Return the seconds until the lease of ``writer`` expires, for this host; 0 or less: it has expired."""
        return self._observer.left_s(writer, self._clock.monotonic())

    def host(self, writer: str) -> str:
        """Return the name of the host of ``writer``; without a lease, the first digits of ``writer``."""
        if writer == self._writer:
            return self._mine.host
        lease = self.leases.get(writer)
        return writer[:8] if lease is None or not lease.host else lease.host

    def lag(self, writer: str) -> int:
        """Return the number of rows that the node of ``writer`` lacks; for another host, as of its newest lease."""
        if writer == self._writer:
            return max(0, self._head() - self._projected())
        lease = self.leases.get(writer)
        return 0 if lease is None else lease.lag

    def filesystem(self, writer: str) -> str:
        """Return the id of the filesystem of the host of ``writer``; empty if it has no lease."""
        lease = self.leases.get(writer)
        return "" if lease is None else lease.filesystem


async def is_committed(client: XtdbClient, ops: list[Op]) -> bool:
    """Return True if ``ops`` were committed; False also if that is unknown. Raises: Refused, Unreachable."""
    try:
        return await client.committed(await client.submit(ops), timeout_s=STEP_S)
    except Unknown:
        return False
