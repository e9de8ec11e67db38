"""Who is told what became of writes.

A write stands, or is lost, whatever its observers do: what one of them raises is told to ``fault``, and neither the
others nor the store stop.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ctxd.store.writes import Pending, Write

T = TypeVar("T")


class Observers:
    """Callbacks of one store, by what they are told, in the order in which they came."""

    def __init__(self) -> None:
        self.on_lost: list[Callable[[frozenset[str]], None]] = []
        self.on_durable: list[Callable[[Sequence[tuple[Write, Pending]]], None]] = []
        self.on_fault: list[Callable[[Exception], None]] = []

    def lost(self, sessions: frozenset[str]) -> None:
        """Tell of the sessions whose writes were lost."""
        self._tell(self.on_lost, sessions)

    def durable(self, landed: Sequence[tuple[Write, Pending]]) -> None:
        """Tell of writes that are on the disk."""
        self._tell(self.on_durable, landed)

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
