"""Lineage of a session: which session stores which of its segments and assemblies.

A fork shares the beginning of its parent: its own segments and assemblies continue the parent's numbering at the fork,
and earlier ones are read from the parent. Nothing is copied, and the fork never reads the parent's later writes.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from ctxd.objects.document import Page, Stored
from ctxd.objects.generated_ids import assemblies_prefix, assembly_id, number_of, segment_id
from ctxd.store.version_store import VersionStore

_ENDLESS: Final = 2**62


class Part(NamedTuple):
    """The segments below ``segments`` and the assemblies up to ``assemblies`` that ``session`` stores, without those of
    earlier parts."""

    session: str
    segments: int = _ENDLESS
    assemblies: int = _ENDLESS


class Lineage:
    """The parts of a session, the oldest first; the last one is its own."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.parts = tuple(parts)
        self.root = self.parts[0].session
        """The session that began the conversation."""

    @property
    def inherited(self) -> int:
        """Number of segments that ancestors store."""
        return max([part.segments for part in self.parts[:-1]], default=0)

    @property
    def sessions(self) -> tuple[str, ...]:
        """The session itself, then its ancestors, the nearest first."""
        return tuple(part.session for part in reversed(self.parts))

    @property
    def ancestors(self) -> tuple[str, ...]:
        """The ancestors of the session, the nearest first."""
        return self.sessions[1:]

    def holder(self, segment: int) -> Part:
        """The part that has ``segment``."""
        return next(part for part in self.parts if segment < part.segments)

    def segment_id(self, number: int) -> str:
        """The id of segment ``number``."""
        return segment_id(self.holder(number).session, number)

    def recorder(self, assembly: int) -> Part:
        """The part that has ``assembly``."""
        return next(part for part in self.parts if assembly <= part.assemblies)

    def assembly_id(self, number: int) -> str:
        """The id of the record of assembly ``number``."""
        return assembly_id(self.recorder(number).session, number)

    async def newest_assembly(self, store: VersionStore) -> Stored | None:
        """Return the newest assembly record, None before the first. Raises: CtxdError store_failed. Cancel: safe."""
        own = self.parts[-1].session
        found = await store.scan(assemblies_prefix(own), page=Page(limit=1, ascending=False))
        if found or len(self.parts) == 1 or not (last := self.parts[-2].assemblies):
            return found[0] if found else None
        return (await store.heads((self.assembly_id(last),)))[self.assembly_id(last)]

    async def assemblies_after(
        self, store: VersionStore, after: int, *, limit: int | None = None, size: int | None = None
    ) -> list[Stored]:
        """Return records of assemblies above number ``after``, in order: a page of at most ``limit`` records and about
        ``size`` bytes, perhaps fewer; empty at the end. Raises: CtxdError store_failed. Cancel: safe."""
        part = self.recorder(after + 1)
        page = Page(after=assembly_id(part.session, after), limit=limit)
        found = await store.scan(assemblies_prefix(part.session), page=page, size=size)
        return [each for each in found if number_of(each.document.id) <= part.assemblies]

    async def assemblies_before(
        self, store: VersionStore, before: int, *, limit: int | None = None, size: int | None = None
    ) -> list[Stored]:
        """Return records of assemblies below number ``before``, newest first. Otherwise as ``assemblies_after``."""
        if before <= 1:
            return []
        part = self.recorder(before - 1)
        page = Page(after=assembly_id(part.session, before), limit=limit, ascending=False)
        return await store.scan(assemblies_prefix(part.session), page=page, size=size)
