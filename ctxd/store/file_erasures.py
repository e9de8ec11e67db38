"""Files beside the journal that may hold purged content, such as the search index: the part that owns a file cleans it.

Separate: the store knows none of these parts.
"""

from collections.abc import Awaitable, Callable, Sequence


class Erasures:
    """Parts that erase purged content from files of their own. ``left``: the files not yet known to be clean in the
    last call of ``finished``, relative to the state directory."""

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[str], Callable[[], Awaitable[None]]]] = []
        self.left: tuple[str, ...] = ()

    def add(self, files: Sequence[str], erased: Callable[[], Awaitable[None]]) -> None:
        """Register ``files``, relative to the state directory. Once ``erased()`` returns, they hold nothing purged
        before the call."""
        self._parts.append((files, erased))

    async def finished(self) -> None:
        """Return once no file holds anything purged before the call. Cancel: safe."""
        self.left = tuple(file for files, _ in self._parts for file in files)
        for files, erased in self._parts:
            await erased()
            self.left = tuple(file for file in self.left if file not in files)
