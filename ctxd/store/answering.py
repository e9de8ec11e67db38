"""The reading half of the store: what versions there are, of what is accepted or durable.

Heads come from memory, pending writes included. Anything else is read once everything accepted before is durable or
has failed, so that nobody is shown what may be taken back.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeVar

import anyio
import msgspec
from anyio.to_thread import run_sync

from ctxd import limits
from ctxd.objects.document import Stored
from ctxd.store.answers import MISSING, Change, Missing
from ctxd.store.cache import Heads, Texts
from ctxd.store.loads import Loads
from ctxd.store.past import Past, ReadModel
from ctxd.store.reads import Reader, answered, basis, to_stored
from ctxd.store.sieve import Sieve
from ctxd.store.state import Health

T = TypeVar("T")


class Answering:
    """What ``VersionStore`` answers. It fills ``_heads``, ``_texts`` and ``_sieve``, and opens ``_reader``."""

    _past: Past
    _model: ReadModel

    def __init__(self) -> None:
        self._health = Health()
        self._heads = Heads(limits.HEADS_CACHED_MAX)
        self._texts = Texts(limits.CONTENT_CACHE_BYTES)
        self._loads = Loads(self._heads)
        self._sieve = Sieve()
        self._reading = anyio.CapacityLimiter(1)

    def _answer_from(self, reader: Reader) -> None:
        self._reader = reader
        self._past = self._model = ReadModel(reader, self._reading)

    async def _settle(self) -> None:
        """Return once everything accepted before is durable or has failed."""
        raise NotImplementedError

    async def settled(self) -> None:
        """Return once everything accepted before is durable or has failed.

        Raises: CtxdError ``store_failed``, ``draining``. Cancel: safe.
        """
        self._health.require_readable()
        await self._settle()
        self._health.require_readable()

    async def _read(self, function: Callable[[], T]) -> T:
        """Call ``function`` on the reader's thread, over everything accepted so far."""
        await self.settled()
        return await run_sync(answered, function, limiter=self._reading)

    def peek(self, id: str) -> Stored | None | Missing:
        """The newest accepted version of ``id`` without waiting; ``MISSING`` when only a reading would tell."""
        head = self._heads.get(id)
        return None if head is MISSING and self._sieve.lacks(id) else head

    async def heads(self, ids: Iterable[str]) -> dict[str, Stored | None]:
        """The newest accepted versions of ``ids``, in their order, without content; null for what does not exist.

        Raises: CtxdError ``corrupt``, ``store_failed``. Cancel: safe.
        """
        self._health.require_readable()
        return await self._loads.newest(dict.fromkeys(ids), self._sieve.lacks, self._settle)

    async def get(
        self, id: str, *, valid_time: int | None = None, tx: int | None = None, content: bool = False
    ) -> Stored | None:
        """The version of ``id`` as of both times, null meaning the newest; null if there is none.

        Raises: CtxdError ``corrupt``, ``store_failed``. Cancel: safe.
        """
        return (await self.bulk((id,), valid_time=valid_time, tx=tx, content=content)).get(id)

    async def bulk(
        self, ids: Sequence[str], *, valid_time: int | None = None, tx: int | None = None, content: bool = False
    ) -> dict[str, Stored]:
        """The versions of ``ids`` as of both times, in order; an id that has none is left out. Otherwise as ``get``."""
        if valid_time is None and tx is None:
            found = [head for head in (await self.heads(ids)).values() if head is not None]
        else:
            at = basis(valid_time, tx)
            await self.settled()
            versions = await self._past.as_of(ids, valid_time=at[0], tx=at[1])
            by_id = {version.id: to_stored(version) for version in versions}
            found = [stored for id in dict.fromkeys(ids) if (stored := by_id.get(id)) is not None]
        if content:
            found = await self._with_content(found)
        return {stored.document.id: stored for stored in found}

    async def _with_content(self, found: Sequence[Stored]) -> list[Stored]:
        texts = await self.contents(stored.content_ref for stored in found if stored.content_ref is not None)
        replace = msgspec.structs.replace
        return [
            stored
            if stored.content_ref is None
            else replace(stored, document=replace(stored.document, content=texts[stored.content_ref]))
            for stored in found
        ]

    async def history(
        self,
        id: str,
        *,
        order: Literal["asc", "desc"] = "asc",
        corrections: bool = False,
        valid_time: int | None = None,
        tx: int | None = None,
        after: tuple[int, int] | None = None,
        limit: int = 100,
    ) -> list[Stored]:
        """The versions of ``id`` at or below both times by ``(valid_time, tx)``, from beyond ``after`` on.

        With ``corrections`` also those that a later write replaced at the same valid time. Otherwise as ``get``.
        """
        at = basis(valid_time, tx)
        await self.settled()
        versions = await self._past.history(
            id,
            ascending=order == "asc",
            corrections=corrections,
            valid_time=at[0],
            tx=at[1],
            after=after,
            limit=limit,
        )
        return [stored for version in versions if (stored := to_stored(version)) is not None]

    async def scan(
        self,
        prefix: str,
        *,
        after: str = "",
        limit: int | None = None,
        valid_time: int | None = None,
        tx: int | None = None,
    ) -> list[Stored]:
        """The versions of every entity with ``prefix``, by id, from beyond ``after`` on. Otherwise as ``get``."""
        at = basis(valid_time, tx)
        await self.settled()
        # The newest are here; only what was is another's to tell.
        past = self._model if valid_time is None and tx is None else self._past
        versions = await past.scan(prefix, after=after or None, limit=limit, valid_time=at[0], tx=at[1])
        return [stored for version in versions if (stored := to_stored(version)) is not None]

    async def scan_newest(self, prefix: str, *, before_id: str | None, limit: int) -> list[Stored]:
        """As ``scan``, from the greatest id below ``before_id`` downwards."""
        await self.settled()
        versions = await self._model.scan(prefix, ascending=False, after=before_id, limit=limit)
        return [stored for version in versions if (stored := to_stored(version)) is not None]

    async def contents(self, refs: Iterable[str]) -> dict[str, str]:
        """Text by its ``content_ref``.

        Raises: CtxdError ``corrupt`` if text is missing or does not match its hash; ``store_failed``. Cancel: safe.
        """
        wanted = list(dict.fromkeys(refs))
        texts = {ref: text for ref in wanted if (text := self._texts.get(ref)) is not None}
        if missing := [ref for ref in wanted if ref not in texts]:
            found = await self._read(lambda: self._reader.contents(missing))
            for ref, text in found.items():
                self._texts.put(ref, text)
            texts |= found
        return {ref: texts[ref] for ref in wanted}

    async def knowing(self, object_id: str) -> list[str]:
        """The ids of the sessions in whose index ``object_id`` is, in order. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.knowing(object_id))

    async def signatures(self, ids: Sequence[str]) -> dict[str, bytes]:
        """The stat signatures last kept for ``ids``, where there are any. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.signatures(ids))

    async def changes(self, *, after: int, limit: int) -> list[Change]:
        """At most ``limit`` journal rows beyond sequence ``after``, in order. Raises and cancel: as ``get``."""
        return await self._read(lambda: self._reader.changes(after, limit))

    @property
    def cached(self) -> int:
        """How many heads are in memory."""
        return len(self._heads)
