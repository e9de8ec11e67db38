"""Sources that the tasks of an import are importing: a task that needs the source of another waits for it.

Separate from the import: sources may name each other in a circle, which must not deadlock.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import anyio


class BusySources:
    """The sources being imported, by path, each by one task. A task may import several, one within the other."""

    def __init__(self) -> None:
        self._tasks: dict[str, int] = {}
        self._ended: dict[str, anyio.Event] = {}
        self._awaited: dict[int, str] = {}
        """The source that each waiting task waits for."""

    async def is_free(self, path: str) -> bool:
        """Wait until no other task is importing ``path``. Returns: False at once if the current task is importing it,
        or another one that waits for the current task. Cancel: safe."""
        task = anyio.get_current_task().id
        while path in self._tasks:
            if self._leads_to(task, path):
                return False
            self._awaited[task] = path
            try:
                await self._ended[path].wait()
            finally:
                del self._awaited[task]
        return True

    @contextmanager
    def importing(self, path: str) -> Iterator[None]:
        """Note that the current task is importing ``path``, which is free."""
        self._tasks[path], self._ended[path] = anyio.get_current_task().id, anyio.Event()
        try:
            yield
        finally:
            del self._tasks[path]
            self._ended.pop(path).set()

    def _leads_to(self, task: int, path: str) -> bool:
        """True if ``path`` is imported by ``task``, or by one that waits for it, perhaps by way of others."""
        owner = self._tasks.get(path)
        while owner is not None and owner != task:
            owner = self._tasks.get(self._awaited.get(owner, ""))
        return owner == task
