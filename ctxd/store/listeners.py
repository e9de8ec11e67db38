"""Commit and loss listeners: callbacks of a store that learn what became of its writes.

A write stands, or is lost, whatever a listener does: what one raises is reported to ``on_fault``, and neither the
others nor the store stop. A module of its own because other packages name ``Landed`` without the store itself.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import TypeVar

from ctxd.store.writes import Pending, Write

T = TypeVar("T")
Landed = Sequence[tuple[Write, Pending]]


class Listeners:
    """Callbacks of one store, by event, in the order of their registration.

    Those of ``on_durable`` are registered for types of entities, ``None`` for all.
    """

    def __init__(self) -> None:
        self.on_lost: list[Callable[[frozenset[str]], None]] = []
        self.on_durable: list[tuple[Callable[[Landed], None], Collection[str] | None]] = []
        self.on_fault: list[Callable[[Exception], None]] = []

    def lost(self, sessions: frozenset[str]) -> None:
        """Report the sessions whose writes were lost."""
        self._call(self.on_lost, sessions)

    def durable(self, landed: Landed) -> None:
        """Report writes that are on the disk; a purge, whose types are not known here, to every listener."""
        types = {document.type for write, _ in landed for document in write.puts}
        everybody = any(write.purge is not None for write, _ in landed)
        told = [
            callback
            for callback, wanted in self.on_durable
            if everybody or wanted is None or not types.isdisjoint(wanted)
        ]
        self._call(told, landed)

    def fault(self, raised: Exception) -> None:
        """Report what a callback raised."""
        for callback in self.on_fault:
            # A log that cannot be written is no reason to stop either.
            with suppress(Exception):
                callback(raised)

    def _call(self, callbacks: Iterable[Callable[[T], None]], what: T) -> None:
        for callback in callbacks:
            try:
                callback(what)
            except Exception as raised:  # noqa: BLE001 - see the module
                self.fault(raised)
