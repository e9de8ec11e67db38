"""Who is alive: a counter that each host moves on in XTDB, and what another one makes of its standing still.

Pure. No two clocks are ever compared: a lease has run out for an observer when the observer's own monotonic clock says
that it has seen it unchanged for long enough. Like a cursor, a lease is put at a valid time of its own each time and
looked at beyond all of them: many versions at one valid time would make each renewal slower than the one before.
"""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME
from ctxd.backends.xtdb.operations import Doc, Match, Op, Put

PREFIX: Final = "ctxd/lease/"

RENEWALS: Final = 3
"""How often in its length a lease is renewed: two renewals may fail before anybody takes its holder for dead."""


class Lease(msgspec.Struct, frozen=True, kw_only=True):
    """``host``: the machine's name, for people. ``filesystem``: the id of its own filesystem. ``incarnation`` counts
    the starts of the daemon, ``beat`` the renewals of all of them: it only rises."""

    host: str
    filesystem: str
    incarnation: int
    beat: int


def lease_id(writer: str) -> str:
    """The entity that is the lease of ``writer``."""
    return PREFIX + writer


def to_doc(writer: str, lease: Lease) -> Doc:
    """The document of ``lease``."""
    return {"xt/id": lease_id(writer), "type": "lease", "payload": msgspec.to_builtins(lease)}


def from_doc(doc: Doc | None) -> Lease | None:
    """The lease that ``to_doc`` was given, null for no document. Raises: ValueError if it makes no such document."""
    return None if doc is None else msgspec.convert(doc.get("payload"), Lease)


def valid_time(lease: Lease) -> int:
    """Since when ``lease`` holds, in ms: later than any before it."""
    return FIXED_VALID_TIME + lease.beat


def renewed(mine: Lease, standing: Lease | None) -> Lease:
    """What follows ``mine``, the holder's own last, where ``standing`` is found; null: none is."""
    return msgspec.structs.replace(mine, beat=max(mine.beat, 0 if standing is None else standing.beat) + 1)


def renewal(writer: str, before: Lease | None, after: Lease) -> list[Op]:
    """The transaction from ``before``, null for none, to ``after``."""
    match = Match(lease_id(writer), None if before is None else to_doc(writer, before), NEWEST_VALID_TIME)
    return [match, Put(to_doc(writer, after), valid_time(after))]


class Observer:
    """What one host has seen of the others' leases. Times are of its own monotonic clock, in seconds."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._seen: dict[str, tuple[Lease, float]] = {}

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The leases last seen, by writer."""
        return {writer: lease for writer, (lease, _) in self._seen.items()}

    def see(self, leases: Iterable[tuple[str, Lease]], now: float) -> None:
        """Take note of ``leases``, read no later than ``now``."""
        for writer, lease in leases:
            known = self._seen.get(writer)
            if known is None or (known[0].incarnation, known[0].beat) != (lease.incarnation, lease.beat):
                self._seen[writer] = (lease, now)

    def miss(self, writer: str, now: float) -> None:
        """Take note that ``writer`` has no lease."""
        if writer not in self._seen:
            self._seen[writer] = (Lease(host="", filesystem="", incarnation=0, beat=0), now)

    def left_s(self, writer: str, now: float) -> float:
        """Seconds until the lease of ``writer`` has run out, if it is not renewed; 0 or less: it has.

        One that was never seen runs out in a whole lease at the earliest, beginning when it is seen.
        """
        known = self._seen.get(writer)
        return self._lease_s if known is None else known[1] + self._lease_s - now
