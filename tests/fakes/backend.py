"""Versions in memory: the plainest reading of the algebra, against which the others are tested."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter

from ctxd.backends.port import LATEST, DamagedVersion, Version

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
            self._rows.setdefault(version.id, {})[version.valid_time, version.tx] = version

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
