"""Versions in memory: the plainest reading of the algebra, against which the others are tested."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from ctxd.backends.stored_version import DamagedVersion, Version
from ctxd.objects.document import ALL, NOW, AsOf, HistoryPage, IdPage

_order = attrgetter("valid_time", "tx")


class MemoryBackend:
    """See ``SqliteBackend``."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[tuple[int, int], Version]] = {}
        self._numbers: dict[str, int] = {}

    def create(self) -> None:
        """See ``SqliteBackend.create``."""

    def clear(self) -> None:
        """See ``SqliteBackend.clear``."""
        self._rows.clear()
        self._numbers.clear()

    def rolled_back(self) -> None:
        """See ``SqliteBackend.rolled_back``. Nothing here is ever taken back."""

    def number(self, ids: Iterable[str]) -> dict[str, int]:
        """See ``SqliteBackend.number``."""
        return {id: self._numbers.setdefault(id, len(self._numbers) + 1) for id in ids}

    def append(self, versions: Sequence[Version]) -> None:
        """See ``SqliteBackend.append``."""
        for version in versions:
            self._rows.setdefault(version.id, {})[version.valid_time, version.tx] = version

    def _visible(self, id: str, at: AsOf) -> Version | None:
        rows = self._rows.get(id, {}).values()
        seen = (row for row in rows if row.valid_time <= at.valid_time and row.tx <= at.tx)
        return max(seen, key=_order, default=None)

    def as_of(self, ids: Sequence[str], at: AsOf = NOW) -> list[Version]:
        """See ``SqliteBackend.as_of``."""
        return list(self._present(dict.fromkeys(ids), at))

    def _present(self, ids: Iterable[str], at: AsOf) -> Iterable[Version]:
        for id in ids:
            version = self._visible(id, at)
            if version is not None and version.body is not None:
                yield version

    def history(self, id: str, at: AsOf = NOW, page: HistoryPage = ALL, *, corrections: bool = False) -> list[Version]:
        """See ``SqliteBackend.history``."""
        rows = [row for row in self._rows.get(id, {}).values() if row.valid_time <= at.valid_time and row.tx <= at.tx]
        rows.sort(key=_order)
        if not corrections:
            rows = list({row.valid_time: row for row in rows}.values())
        if not page.ascending:
            rows.reverse()
        if page.after is not None:
            rows = [row for row in rows if (_order(row) > page.after if page.ascending else _order(row) < page.after)]
        return rows[: page.limit]

    def scan(self, prefix: str, at: AsOf = NOW, page: IdPage = ALL, *, size: int | None = None) -> list[Version]:
        """See ``SqliteBackend.scan``."""
        ids = sorted((id for id in self._rows if id.startswith(prefix)), reverse=not page.ascending)
        if page.after is not None:
            ids = [id for id in ids if (id > page.after if page.ascending else id < page.after)]
        found: list[Version] = []
        for version in list(self._present(ids, at))[: page.limit]:
            if size is not None and sum(len(each.body or b"") for each in found) >= size:
                break
            found.append(version)
        return found

    def everything(self, damaged: Callable[[DamagedVersion], None]) -> Iterator[Version]:
        """See ``SqliteBackend.everything``."""
        for rows in self._rows.values():
            yield from rows.values()
