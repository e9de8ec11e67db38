"""The metadata pool's text, kept up to date: one changed object renders its own line and joins one chunk again.

Lines are kept only within the chunks, so the text is in memory once. A line never holds a line feed, so a chunk can be
taken apart again. The text is always what rendering every line from scratch would give.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from ctxd.assembly import render
from ctxd.assembly.pieces import Display, pool_line
from ctxd.objects.document import Stored

CHUNK_LINES: Final = 128
"""Lines of one chunk: what a change joins again. Fewer make more fragments to compare, more make a change dearer."""

Head = Callable[[str], Stored | None]
"""The newest version of an object."""


class PoolText:
    """The pool's lines in chunks, each line behind a line feed; ``text`` is the block."""

    __slots__ = ("_ids", "_versions", "chunks")

    def __init__(self) -> None:
        self.chunks: list[str] = []
        self._ids: list[str] = []
        self._versions: list[int] = []

    def __len__(self) -> int:
        return len(self._ids)

    def update(self, ids: Iterable[str], head: Head, display: Display, *, heads_moved: bool = True) -> None:
        """Show ``ids`` in order, each at its ``head``. ``heads_moved`` false: no head changed since the last update.

        Raises: what ``head`` and ``pool_line`` raise; then call it again before the text is used.
        """
        wanted = list(ids)
        kept = self._common(wanted)
        if kept < len(self._ids):
            self._reorder(wanted, kept, head, display)
        if heads_moved:
            self._refresh(head, display)
        self._extend(wanted[len(self._ids) :], head, display)

    def warm(self, ids: Sequence[str], head: Head, display: Display, *, lines: int) -> bool:
        """Make at most ``lines`` of the lines that ``update`` would add at the end; whether some are left to make.

        Nothing is made of ids that are in another order than they were. Raises: as ``update``.
        """
        have = len(self._ids)
        if have >= len(ids) or ids[have - 1 : have] != self._ids[-1:]:
            return False
        self._extend(list(ids[have : have + lines]), head, display)
        return len(self._ids) < len(ids)

    def _common(self, wanted: list[str]) -> int:
        """How many leading ids are as they were."""
        if wanted[: len(self._ids)] == self._ids:
            return len(self._ids)
        return next((n for n, (old, new) in enumerate(zip(self._ids, wanted, strict=False)) if old != new), len(wanted))

    def _reorder(self, wanted: list[str], kept: int, head: Head, display: Display) -> None:
        """Cut everything from the chunk of place ``kept`` on and put it back in the new order, old lines used again."""
        start = kept - kept % CHUNK_LINES
        lines = [line for chunk in self.chunks[start // CHUNK_LINES :] for line in chunk.split("\n")[1:]]
        old = dict(zip(self._ids[start:], zip(self._versions[start:], lines, strict=True), strict=True))
        entries = [(id, *(old.get(id) or self._line(id, head, display))) for id in wanted[start:]]
        del self.chunks[start // CHUNK_LINES :], self._ids[start:], self._versions[start:]
        self._append(entries)

    def _refresh(self, head: Head, display: Display) -> None:
        changed: dict[int, list[tuple[int, int, str]]] = {}
        for place, (id, version) in enumerate(zip(self._ids, self._versions, strict=True)):
            stored = head(id)
            if stored is None or stored.tx != version:
                entry = (place, *self._line(id, head, display))
                changed.setdefault(place // CHUNK_LINES, []).append(entry)
        for chunk, entries in changed.items():
            lines = self.chunks[chunk].split("\n")
            for place, version, line in entries:
                self._versions[place] = version
                lines[place % CHUNK_LINES + 1] = line
            self.chunks[chunk] = "\n".join(lines)

    def _extend(self, ids: list[str], head: Head, display: Display) -> None:
        self._append([(id, *self._line(id, head, display)) for id in ids])

    def _append(self, entries: Iterable[tuple[str, int, str]]) -> None:
        full = len(self._ids) - len(self._ids) % CHUNK_LINES
        fresh = self.chunks.pop().split("\n")[1:] if full < len(self._ids) else []
        for id, version, line in entries:
            self._ids.append(id)
            self._versions.append(version)
            fresh.append(line)
            if len(fresh) == CHUNK_LINES:
                self.chunks.append("\n" + "\n".join(fresh))
                fresh = []
        if fresh:
            self.chunks.append("\n" + "\n".join(fresh))

    @staticmethod
    def _line(id: str, head: Head, display: Display) -> tuple[int, str]:
        stored = head(id)
        line = render.render_pool_line(pool_line(id, stored, display))
        assert stored is not None, "an object without a version has no line"
        return stored.tx, line
