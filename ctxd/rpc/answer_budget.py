"""Budget of answer bytes that are being made or wait for a client that does not read.

Stands alone because the budgets of a connection, of its sandbox and of the daemon are one chain of the same value.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

MIB: Final = 1024 * 1024

SANDBOX_ANSWER_BYTES_MAX: Final = 8 * MIB
"""Bytes of one answer on a sandbox's socket; a longer one is refused as ``too_large``."""

HOST_ANSWER_BYTES_MAX: Final = 256 * MIB
"""Bytes of one answer on the host's socket."""

SANDBOX_BYTES: Final = 48 * MIB
"""Bytes of answers of one sandbox. Making a large one takes some four times as much memory."""

SANDBOXES_BYTES: Final = 128 * MIB
"""Bytes of answers of all sandboxes."""

CONNECTION_BYTES: Final = 128 * MIB
"""Bytes of answers of one connection of the host."""

TOTAL_BYTES: Final = 512 * MIB
"""Bytes of answers of the whole daemon."""


class AnswerBudget:
    """At most ``most`` bytes, and no more than ``parent`` has left. A holder takes before it makes an answer."""

    __slots__ = ("_most", "_parent", "_waiting", "held")

    def __init__(self, most: int, parent: "AnswerBudget | None" = None) -> None:
        self._most = most
        self._parent = parent
        self._waiting: deque[Callable[[], None]] = deque()
        self.held = 0

    def has_room(self, size: int) -> bool:
        """True if ``size`` more bytes may be taken."""
        return self._full(size) is None

    def when_room(self, size: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, when bytes are given back where there is no room for ``size`` now."""
        full = self._full(size)
        if full is None:
            callback()
        else:
            full._waiting.append(callback)

    def take(self, size: int) -> None:
        """Take ``size`` bytes; more than there is room for if an answer turned out longer than was expected."""
        self.held += size
        if self._parent is not None:
            self._parent.take(size)

    def give(self, size: int) -> None:
        """Give ``size`` bytes back."""
        if not size:
            return
        self.held -= size
        if self._parent is not None:
            self._parent.give(size)
        waiting, self._waiting = self._waiting, deque()
        for callback in waiting:
            callback()

    def _full(self, size: int) -> "AnswerBudget | None":
        if self.held + size > self._most:
            return self
        return None if self._parent is None else self._parent._full(size)
