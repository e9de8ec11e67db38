"""Many backends in one node, each as if it were alone there: a start of a node takes seconds."""

import itertools
import os
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import msgspec

from ctxd.backends.port import Change, DamagedVersion, Version
from ctxd.backends.xtdb.backend import XtdbBackend
from ctxd.backends.xtdb.client import XtdbClient

_numbers = itertools.count(1)


class Apart:
    """A backend whose entities are called something else in the node, so that nobody else has them."""

    def __init__(self, client: XtdbClient) -> None:
        self._apart = f"{os.getpid()}-{next(_numbers)}/"
        self.writer = self._apart.encode().hex()[:32].ljust(32, "0")
        self.inner = XtdbBackend(client, self.writer)

    def _there(self, id: str) -> str:
        return self._apart + id

    def there(self, versions: Sequence[Version]) -> list[Version]:
        """``versions`` as they are called in the node."""
        return [msgspec.structs.replace(version, id=self._there(version.id)) for version in versions]

    def _here(self, versions: Sequence[Version]) -> list[Version]:
        return [msgspec.structs.replace(version, id=version.id.removeprefix(self._apart)) for version in versions]

    async def apply(self, tx: int, tx_time: int, changes: Sequence[Change]) -> None:
        renamed = [msgspec.structs.replace(change, id=self._there(change.id)) for change in changes]
        await self.inner.apply(tx, tx_time, renamed)

    async def as_of(self, ids: Sequence[str], **options: Any) -> list[Version]:
        return self._here(await self.inner.as_of([self._there(id) for id in ids], **options))

    async def history(self, id: str, **options: Any) -> list[Version]:
        return self._here(await self.inner.history(self._there(id), **options))

    async def scan(self, prefix: str, *, after: str | None = None, **options: Any) -> list[Version]:
        beyond = None if after is None else self._there(after)
        return self._here(await self.inner.scan(self._there(prefix), after=beyond, **options))

    async def everything(self, damaged: Callable[[DamagedVersion], None]) -> AsyncIterator[Version]:
        async for version in self.inner.everything(damaged, prefix=self._apart):
            yield self._here([version])[0]
