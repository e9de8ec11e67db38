"""Garbage collection of artifacts that nothing refers to, on request and above a limit of bytes.

It purges entities. The purge is recorded in the journal, and its transaction checks that nothing else has the bytes.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import anyio
from anyio.abc import TaskStatus

from ctxd import sqlite_file
from ctxd.artifacts.uploads import Uploads
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.document import Page, Stored
from ctxd.objects.version_state import is_purged
from ctxd.store.purge import ARTIFACT, ARTIFACT_TAG, KIND
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import PurgeRequest, Write
from ctxd.worker_threads import Lane
from ctxd_protocol.methods import artifacts as wire

T = TypeVar("T")

_PAGE: Final = 1_000
_UPKEEP_S: Final = 60.0
_BOUND_GRACE_MS: Final = 600_000
"""Minimum age of artifacts that the limit removes: a write that refers to a younger one may be on its way."""

_COLLECTOR: Final = "ctxd"
"""Principal of the automatic collection."""

_REMOVED_MAX: Final = 1_000
_REMOVED_AT_ONCE: Final = 100
"""Artifacts removed per transaction, for which other writes wait."""


class UploadFiles:
    """The files of unfinished uploads, accessed in threads."""

    def __init__(self, files: Uploads) -> None:
        self.files = files
        self._lane = Lane("artifact.upload", 2, bulk=True)

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``. Raises: CtxdError ``disk_full``, ``store_failed``. Cancel: waits for it."""

        def guarded() -> T:
            with sqlite_file.faults():
                return work()

        try:
            return await self._lane.run(guarded)
        except sqlite_file.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except sqlite_file.DiskFailed as error:
            raise CtxdError("store_failed", f"the upload cannot be written: {error}", outcome="unknown") from error


class ArtifactCollection:
    """Garbage collection in one store. ``bytes_max``: the limit above which ``run`` collects artifacts; 0: never."""

    def __init__(self, store: VersionStore, clock: Clock, uploads: UploadFiles, *, bytes_max: int) -> None:
        self._store = store
        self._clock = clock
        self._uploads = uploads
        self._bytes_max = bytes_max
        # None until counted.
        self._bytes: int | None = None
        self._collect_after_ms = 0
        self._collecting = anyio.Lock()
        self.removing = anyio.Lock()
        """Held from the choice of the artifacts that a transaction removes to its end, and by a put or a tag while it
        checks for an existing artifact."""
        self._tagged_since: set[str] = set()
        self._used_last_ms: dict[str, int] = {}
        self._uses_to_keep: dict[str, int] = {}

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Remove stale uploads, then record last uses and enforce the limit until cancelled, both within a minute."""
        task_status.started()
        # If a file cannot be removed now, the next collection reports it.
        with suppress(CtxdError):
            await self._remove_stale()
        while True:
            # Retry after an error.
            with suppress(CtxdError):
                await self.upkeep()
            await self._clock.sleep(_UPKEEP_S)

    async def upkeep(self) -> None:
        """Write the last uses to the disk, and collect artifacts if they exceed the limit."""
        uses, self._uses_to_keep = self._uses_to_keep, {}
        try:
            if uses:
                await self._store.read_artifacts(lambda artifacts: artifacts.note_uses(uses))
        except CtxdError:
            self._uses_to_keep = uses | self._uses_to_keep
            raise
        more = self._bytes_max > 0 and (self._bytes is None or self._bytes > self._bytes_max)
        params = wire.ArtifactGcParams(grace_ms=_BOUND_GRACE_MS, max_bytes=self._bytes_max)
        while more and self._clock.wall_ms() >= self._collect_after_ms:
            found = await self.collect(_COLLECTOR, params)
            more = found.more and bool(found.removed)
            if found.left_bytes > self._bytes_max and not more:
                # The others are referenced or too young, which only time changes.
                self._collect_after_ms = self._clock.wall_ms() + _BOUND_GRACE_MS

    def note_added(self, size: int) -> None:
        """Count the bytes of a new artifact."""
        if self._bytes is not None:
            self._bytes += size

    def note_use(self, ref: str) -> None:
        """Record that the artifact ``ref`` is used now."""
        self._used_last_ms[ref] = self._uses_to_keep[ref] = self._clock.wall_ms()

    def note_tagged(self, ref: str) -> None:
        """Keep the artifact ``ref``, which is about to get a tag, from the collection that is under way; requires
        ``removing``."""
        self._tagged_since.add(ref)

    async def collect(self, principal: str, params: wire.ArtifactGcParams) -> wire.ArtifactGcResult:
        """Remove artifacts that no version, tag or pin refers to and that were not used recently.

        Raises: CtxdError of the store. Cancel: removed artifacts stay removed.
        """
        kept = await self._store.read_artifacts(lambda artifacts: artifacts.last_uses())
        self._used_last_ms = kept | self._used_last_ms
        async with self._collecting:
            await self._remove_stale()
            now = self._clock.wall_ms()
            self._tagged_since.clear()
            tagged = set((await tags(self._store)).values())
            total, candidates = 0, list[Stored]()
            async for stored in entities(self._store, ARTIFACT):
                if is_purged(stored.document):
                    continue
                total += stored.document.payload["size"]
                ref = stored.document.id.removeprefix(ARTIFACT)
                is_kept = stored.document.payload["policy"] == "pin" or ref in tagged
                if not is_kept and self._used_ms(stored) <= now - params.grace_ms:
                    candidates.append(stored)
            candidates.sort(key=lambda one: (one.document.payload["policy"] != "ephemeral", self._used_ms(one)))
            chosen: dict[str, int] = {}
            left, more = total, False
            for stored in candidates:
                if params.max_bytes is not None and left <= params.max_bytes:
                    break
                if len(chosen) == _REMOVED_MAX:
                    more = True
                    break
                ref, size = stored.document.id.removeprefix(ARTIFACT), stored.document.payload["size"]
                if set(await self._store.referring(ref)) == {ARTIFACT + ref}:
                    chosen[ref] = size
                    left -= size
            removed = (
                list(chosen) if params.dry_run else await self._remove(principal, list(chosen), now - params.grace_ms)
            )
            if not params.dry_run:
                await self._store.repack_artifacts()
        freed = sum(chosen[ref] for ref in removed)
        if not params.dry_run:
            self._bytes = total - freed
        return wire.ArtifactGcResult(removed=tuple(removed), removed_bytes=freed, left_bytes=total - freed, more=more)

    async def _remove_stale(self) -> None:
        await self._uploads.run(partial(self._uploads.files.remove_stale, self._clock.wall_ms()))

    def _used_ms(self, stored: Stored) -> int:
        return max(stored.tx_time, self._used_last_ms.get(stored.document.id.removeprefix(ARTIFACT), 0))

    async def _remove(self, principal: str, refs: list[str], unused_since_ms: int) -> list[str]:
        removed: list[str] = []
        for first in range(0, len(refs), _REMOVED_AT_ONCE):
            async with self.removing:
                # Skip those that were read, put again or tagged since they were chosen.
                batch = [
                    ref
                    for ref in refs[first : first + _REMOVED_AT_ONCE]
                    if self._used_last_ms.get(ref, 0) <= unused_since_ms and ref not in self._tagged_since
                ]
                asked = PurgeRequest(tuple(ARTIFACT + ref for ref in batch), str, unreferenced=True)
                if batch:
                    await self._store.submit(Write(kind=KIND, principal=principal, purge=asked)).wait()
                    assert asked.done is not None, "a purge that is durable was done"
                    removed += [id.removeprefix(ARTIFACT) for id in asked.done.ids]
        for ref in removed:
            self._used_last_ms.pop(ref, None)
        await self._store.purge_residue()
        return removed


async def entities(store: VersionStore, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
    """Yield the newest version of each entity with an id of ``prefix``, in order, after ``prefix`` + ``after``."""
    last = None if after is None else prefix + after
    while True:
        page = await store.scan(prefix, page=Page(after=last, limit=_PAGE))
        for stored in page:
            yield stored
        if len(page) < _PAGE:
            return
        last = page[-1].document.id


async def tags(store: VersionStore) -> dict[str, str]:
    """Return the tags of artifacts, each with its address."""
    return {
        stored.document.id.removeprefix(ARTIFACT_TAG): stored.document.payload["artifact"]
        async for stored in entities(store, ARTIFACT_TAG)
    }
