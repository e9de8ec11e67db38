"""Who is told what became of writes.

A write stands, or is lost, whatever its observers do: what one of them raises is told to ``fault``, and neither the
others nor the store stop.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ctxd.store.writes import Pending, Write

T = TypeVar("T")
Landed = Sequence[tuple[Write, Pending]]


class Observers:
    """Callbacks of one store, by what they are told, in the order in which they came.

    Those of ``on_durable`` stand with the types of entities that they are told of, null for all.
    """

    def __init__(self) -> None:
        self.on_lost: list[Callable[[frozenset[str]], None]] = []
        self.on_durable: list[tuple[Callable[[Landed], None], Collection[str] | None]] = []
        self.on_fault: list[Callable[[Exception], None]] = []

    def lost(self, sessions: frozenset[str]) -> None:
        """Tell of the sessions whose writes were lost."""
        self._tell(self.on_lost, sessions)

    def durable(self, landed: Landed) -> None:
        """Tell of writes that are on the disk. What a purge is about is known to none of them: all are told of one."""
        types = {document.type for write, _ in landed for document in write.puts}
        everybody = any(write.purge is not None for write, _ in landed)
        told = [
            callback
            for callback, wanted in self.on_durable
            if everybody or wanted is None or not types.isdisjoint(wanted)
        ]
        self._tell(told, landed)

    def fault(self, raised: Exception) -> None:
        """Tell what a callback raised."""
        for callback in self.on_fault:
            # A log that cannot be written is no reason to stop either.
            with suppress(Exception):
                callback(raised)

    def _tell(self, callbacks: Iterable[Callable[[T], None]], what: T) -> None:
        for callback in callbacks:
            try:
                callback(what)
            except Exception as raised:  # noqa: BLE001 - see the module
                self.fault(raised)
