"""Budget for the bytes of replies that are being built, or wait for a client that does not read.

The budgets of a connection, its sandbox and the daemon are a chain of this type.
"""

from collections import deque
from collections.abc import Callable
from typing import Final

MIB: Final = 1024 * 1024

SANDBOX_REPLY_BYTES_MAX: Final = 8 * MIB
"""Maximum bytes of a reply on a sandbox's socket; a longer one is refused as ``too_large``."""

HOST_REPLY_BYTES_MAX: Final = 256 * MIB
"""Maximum bytes of a reply on the host's socket."""

SANDBOX_BYTES: Final = 48 * MIB
"""Budget of one sandbox. Building a large reply takes about four times its size in memory."""

SANDBOXES_BYTES: Final = 128 * MIB
"""Budget of all sandboxes."""

CONNECTION_BYTES: Final = 128 * MIB
"""Budget of one connection of the host."""

TOTAL_BYTES: Final = 512 * MIB
"""Budget of the whole daemon."""


class ReplyBudget:
    """At most ``most`` bytes, and no more than ``parent`` has left. Bytes are taken before a reply is built."""

    __slots__ = ("_most", "_parent", "_waiting", "held")

    def __init__(self, most: int, parent: "ReplyBudget | None" = None) -> None:
        self._most = most
        self._parent = parent
        self._waiting: deque[Callable[[], None]] = deque()
        self.held = 0

    def has_room(self, size: int) -> bool:
        """True if ``size`` more bytes may be taken."""
        return self._full(size) is None

    def when_room(self, size: int, callback: Callable[[], None]) -> None:
        """Call ``callback`` once: now if there is room for ``size``, else when the exhausted budget gets bytes back."""
        full = self._full(size)
        if full is None:
            callback()
        else:
            full._waiting.append(callback)

    def take(self, size: int) -> None:
        """Take ``size`` bytes, even without room if a reply turned out longer than expected."""
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

    def _full(self, size: int) -> "ReplyBudget | None":
        if self.held + size > self._most:
            return self
        return None if self._parent is None else self._parent._full(size)
