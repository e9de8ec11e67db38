"""Versions in memory: the plainest reading of the algebra, against which the others are tested."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from ctxd.backends.port import LATEST, DamagedVersion, IntervalWrite, Version

_order = attrgetter("valid_time", "tx")


class MemoryBackend:
    """See ``EmbeddedBackend``."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[int, int], Version]] = {}
        self._numbers: dict[str, int] = {}

    def create(self) -> None:
        """See ``EmbeddedBackend.create``."""

    def clear(self) -> None:
        """See ``EmbeddedBackend.clear``."""
        self._rows.clear()
        self._numbers.clear()

    def rolled_back(self) -> None:
        """See ``EmbeddedBackend.rolled_back``. Nothing here is ever taken back."""

    def number(self, ids: Iterable[str]) -> dict[str, int]:
        """See ``EmbeddedBackend.number``."""
        return {id: self._numbers.setdefault(id, len(self._numbers) + 1) for id in ids}

    def append(self, versions: Sequence[Version]) -> None:
        """See ``EmbeddedBackend.append``."""
        for version in versions:
            self._write(version)

    def apply(self, tx: int, tx_time: int, changes: Sequence[IntervalWrite]) -> None:
        """See ``VersionBackend.apply``."""
        for change in changes:
            if change.end is None:
                self._open_ended(tx, tx_time, change)
            elif change.start < change.end:
                self._bounded(tx, tx_time, change, change.end)

    def _write(self, version: Version) -> None:
        self._rows.setdefault(version.id, {})[version.valid_time, version.tx] = version

    def _top(self, id: str) -> list[Version]:
        by_time: dict[int, Version] = {}
        for version in sorted(self._rows.get(id, {}).values(), key=_order):
            by_time[version.valid_time] = version
        return list(by_time.values())

    def _open_ended(self, tx: int, tx_time: int, change: IntervalWrite) -> None:
        seen = self._visible(change.id, change.start, tx)
        later = [row for row in self._top(change.id) if row.valid_time >= change.start]
        self._write(Version(change.id, change.start, tx, tx_time, change.body, change.content))
        if seen is None or seen.body is None:
            return
        for row in later:
            if (row.tx, row.body, row.content) != (seen.tx, seen.body, seen.content):
                return
            self._write(Version(change.id, row.valid_time, tx, tx_time, change.body, change.content))

    def _bounded(self, tx: int, tx_time: int, change: IntervalWrite, end: int) -> None:
        earlier = [row for row in reversed(self._top(change.id)) if row.valid_time <= end]
        for start in {change.start, *(row.valid_time for row in earlier if change.start < row.valid_time < end)}:
            self._write(Version(change.id, start, tx, tx_time, change.body, change.content))
        if earlier:
            was = earlier[0]
            self._write(Version(change.id, end, was.tx, was.tx_time, was.body, was.content))
        else:
            self._write(Version(change.id, end, tx, tx_time, None))

    def _visible(self, id: str, valid_time: int, tx: int) -> Version | None:
        rows = self._rows.get(id, {}).values()
        return max((row for row in rows if row.valid_time <= valid_time and row.tx <= tx), key=_order, default=None)

    def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``VersionBackend.as_of``."""
        return list(self._present(dict.fromkeys(ids), valid_time, tx))

    def _present(self, ids: Iterable[str], valid_time: int, tx: int) -> Iterable[Version]:
        for id in ids:
            version = self._visible(id, valid_time, tx)
            if version is not None and version.body is not None:
                yield version

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
        """See ``VersionBackend.history``."""
        rows = [row for row in self._rows.get(id, {}).values() if row.valid_time <= valid_time and row.tx <= tx]
        rows.sort(key=_order)
        if not corrections:
            rows = list({row.valid_time: row for row in rows}.values())
        if not ascending:
            rows.reverse()
        if after is not None:
            rows = [row for row in rows if (_order(row) > after if ascending else _order(row) < after)]
        return rows[:limit]

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
        """See ``VersionBackend.scan``."""
        ids = sorted((id for id in self._rows if id.startswith(prefix)), reverse=not ascending)
        if after is not None:
            ids = [id for id in ids if (id > after if ascending else id < after)]
        return list(self._present(ids, valid_time, tx))[:limit]

    def everything(self, damaged: Callable[[DamagedVersion], None]) -> Iterator[Version]:
        """See ``VersionBackend.everything``."""
        for rows in self._rows.values():
            yield from rows.values()
