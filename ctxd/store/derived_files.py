"""Files beside the journal that may hold what was purged, such as the search index: each is cleaned by its own part.

Separate: the store knows none of these parts.
"""

from collections.abc import Awaitable, Callable, Sequence


class Erasures:
    """Parts that clean files. ``left`` are the files that were not known to be clean when ``finished`` was last asked;
    ``add`` registers names relative to the state directory, and a function that waits until these are clean."""

    def __init__(self) -> None:
        self._parts: list[tuple[Sequence[str], Callable[[], Awaitable[None]]]] = []
        self.left: tuple[str, ...] = ()

    def add(self, files: Sequence[str], erased: Callable[[], Awaitable[None]]) -> None:
        """Register ``files``, which hold nothing that was purged before the call once ``erased()`` returns."""
        self._parts.append((files, erased))

    async def finished(self) -> None:
        """Return once no file holds what was purged before. Cancel: safe."""
        self.left = tuple(file for files, _ in self._parts for file in files)
        for files, erased in self._parts:
            await erased()
            self.left = tuple(file for file in self.left if file not in files)
