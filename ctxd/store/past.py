"""Who answers about versions: the port of reads that name a time, and the read model behind it.

The read model is the tables beside the journal. It holds every version that the journal does, so it can answer alone.
"""

from collections.abc import Sequence
from typing import Protocol

import anyio
from anyio.to_thread import run_sync

from ctxd.backends.port import LATEST, Version
from ctxd.store.reads import Reader, answered


class Past(Protocol):
    """The versions of one journal, as of both times: see ``VersionBackend``, whose reads these are.

    All raise CtxdError ``corrupt`` or ``store_failed``. Cancel: safe.
    """

    async def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``VersionBackend.as_of``."""
        ...

    async def history(
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
        ...

    async def scan(
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
        ...


class ReadModel:
    """See ``Past``. Reads what is durable, one call at a time on a thread."""

    def __init__(self, reader: Reader, limiter: anyio.CapacityLimiter) -> None:
        """``limiter`` is that of all who use ``reader``."""
        self.reader = reader
        self.limiter = limiter

    async def valid_time(self, tx: int) -> int:
        """The valid time of the newest journal row at or below ``tx``; 0 before the first. Raises: as the reads."""
        return await run_sync(answered, lambda: self.reader.valid_time(tx), limiter=self.limiter)

    async def as_of(self, ids: Sequence[str], *, valid_time: int = LATEST, tx: int = LATEST) -> list[Version]:
        """See ``Past.as_of``."""
        versions = self.reader.versions
        return await run_sync(
            answered, lambda: versions.as_of(list(ids), valid_time=valid_time, tx=tx), limiter=self.limiter
        )

    async def history(
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
        """See ``Past.history``."""
        read = self.reader.versions.history
        return await run_sync(
            answered,
            lambda: read(
                id,
                ascending=ascending,
                corrections=corrections,
                valid_time=valid_time,
                tx=tx,
                after=after,
                limit=limit,
            ),
            limiter=self.limiter,
        )

    async def scan(
        self,
        prefix: str,
        *,
        ascending: bool = True,
        after: str | None = None,
        limit: int | None = None,
        valid_time: int = LATEST,
        tx: int = LATEST,
    ) -> list[Version]:
        """See ``Past.scan``."""
        read = self.reader.versions.scan
        return await run_sync(
            answered,
            lambda: read(prefix, ascending=ascending, after=after, limit=limit, valid_time=valid_time, tx=tx),
            limiter=self.limiter,
        )
