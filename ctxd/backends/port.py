"""What keeps versions: the port that every backend implements, and the values that pass it.

A backend knows two times. ``valid_time`` is when a version holds; ``tx`` is the write that said so. It keeps encoded
documents and does not look inside. Its promises are the algebra of ``VersionBackend``; ``tests/suites/backend.py``
holds every implementation to it. Calls to a ``VersionBackend`` block; the caller runs them on a thread, one at a time.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

LATEST: Final = 2**63 - 1
"""The upper bound of both times: no version is later."""


class DamagedVersion(Exception):
    """A row is not what was written: it must not be served."""


class Version(msgspec.Struct, frozen=True, gc=False):
    """One row: what entity ``id`` is from ``valid_time`` on, as write ``tx`` said it at ``tx_time`` (ms since 1970).

    ``body`` is the encoded document, null for a deletion. ``content`` is the BLAKE3 of its text, 32 bytes, null
    without.
    """

    id: str
    valid_time: int
    tx: int
    tx_time: int
    body: bytes | None
    content: bytes | None = None


class Change(msgspec.Struct, frozen=True, gc=False):
    """Entity ``id`` is ``body`` from ``start`` until ``end``, or with ``end`` null until the next version already
    there.

    ``body`` null deletes. Requires ``start <= end``; equal bounds change nothing.
    """

    id: str
    start: int
    body: bytes | None
    content: bytes | None = None
    end: int | None = None


class VersionBackend(Protocol):
    """A bitemporal map from entity to versions.

    With ``as_of(e, v, t)`` the row of ``e`` that has the greatest ``(valid_time, tx)`` at or below ``v`` and ``t``:

    - a change without end writes a row at its start, and again at every later valid time that still shows,
      unchanged, the row that was visible at its start;
    - a change with end writes a row at its start and at every valid time between, and at its end restores what was
      visible there, under that row's own ``tx``;
    - a row with equal entity, valid time and tx is replaced.
    """

    def apply(self, tx: int, tx_time: int, changes: Sequence[Change]) -> None:
        """Do ``changes`` in order as write ``tx``, which is above every earlier one."""
        ...

    def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """What ``ids`` are at those times; an entity that is unknown or deleted there is left out."""
        ...

    def history(
        self,
        id: str,
        *,
        ascending: bool = True,
        corrections: bool = False,
        valid_time: int = LATEST,
        tx: int = LATEST,
        after: tuple[int, int] | None = None,
        limit: int | None = None,
    ) -> list[Version]:
        """The rows of ``id`` at or below both times, by ``(valid_time, tx)``, deletions included.

        Without ``corrections`` only the row with the greatest ``tx`` of each valid time. ``after`` is the pair of
        the last row seen, in the order asked for.
        """
        ...

    def scan(
        self,
        prefix: str,
        *,
        ascending: bool = True,
        after: str | None = None,
        limit: int | None = None,
        valid_time: int = LATEST,
        tx: int = LATEST,
    ) -> list[Version]:
        """What the entities are whose id starts with ``prefix``, by id, from beyond ``after`` in the order asked
        for."""
        ...

    def everything(self, damaged: Callable[[DamagedVersion], None]) -> Iterator[Version]:
        """Every row there is, in no order; ``damaged`` is told of those that cannot be read."""
        ...


class EmbeddedBackend(VersionBackend, Protocol):
    """A backend whose tables lie in the store's own file, beside others that refer to an entity by its number in the
    table ``entity(n, id)``, which the backend fills: see ``number``."""

    def create(self) -> None:
        """Make what is missing to keep versions in."""
        ...

    def clear(self) -> None:
        """Remove every version and every number. What refers to a number has to go first."""
        ...

    def rolled_back(self) -> None:
        """Hear that the transaction that the last calls were made in was rolled back."""
        ...

    def number(self, ids: Iterable[str]) -> dict[str, int]:
        """The number of each of ``ids``, given to it now if it has none. What ``append`` and ``apply`` write has one
        without this."""
        ...

    def with_content(self, refs: Iterable[bytes]) -> list[Version]:
        """Return every version whose text has one of the hashes ``refs``, by index: the cost is that of the result."""
        ...

    def append(self, versions: Sequence[Version]) -> None:
        """Add rows whose valid time is above everything their entity has: the fast way of a change without end."""
        ...
