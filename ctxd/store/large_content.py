"""Large content: made durable in the artifact store before the write that refers to it is submitted.

The commit thread writes no artifacts, so no session waits for another one's content. Content that no version refers to
is removed: after a crash at the next start, after an abandoned write when its hold ends.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec

from ctxd import sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Content, Document, encode_content, is_large
from ctxd.store.health import Health
from ctxd.worker_threads import Lane, LoopHandle

KEPT_AT_ONCE: Final = 2
"""Large contents that are encoded and written concurrently. Bounds the memory for their encoded copies, and keeps
threads free while a disk is slow."""

READ_AT_ONCE: Final = 2
"""Artifacts that are read concurrently, each wholly in memory."""

T = TypeVar("T")

_FAILURES: Final = (sqlite_file.DiskFull, sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed)

Read = Callable[[Callable[[], set[str]]], Awaitable[set[str]]]
"""Calls a function on the reader's thread, once everything accepted so far is durable or lost."""


class LargeContent:
    """Keeps large content, and removes content that no version refers to. Call ``open`` first."""

    def __init__(
        self, health: Health, failed: Callable[[sqlite_file.DiskFailed], None], fault: Callable[[Exception], None]
    ) -> None:
        """``failed`` ends the store after a disk failure; ``fault`` receives errors of removals. Neither may raise."""
        self._health = health
        self._failed = failed
        self._fault = fault
        self._keeping = Lane("artifact.keep", KEPT_AT_ONCE, bulk=True)
        self._reading = Lane("artifact.read", READ_AT_ONCE, bulk=True)
        self._collecting = Lane("artifact.collect", bulk=True)
        self._unused: set[str] = set()
        self._became_unused = anyio.Event()

    def open(self, root: Path) -> ArtifactStore:
        """Open and return the artifact store in ``root``. Call this on the loop."""
        loop = LoopHandle()
        self._artifacts = ArtifactStore(root, lambda ref: loop.soon(self._note_unused, ref))
        return self._artifacts

    def _note_unused(self, ref: str) -> None:
        self._unused.add(ref)
        self._became_unused.set()

    async def keep(self, document: Document) -> Document:
        """Return ``document`` with its content durable in the artifact store if it is too large for the database.

        Call this before deciding the write, so that no other session waits for the content. Content that is not
        submitted is removed later. Raises: CtxdError as ``VersionStore.submit``. Cancel: waits for the disk.
        """
        if document.artifact is not None or (artifact := await self.keep_content(document.content)) is None:
            return document
        return msgspec.structs.replace(document, artifact=artifact)

    async def keep_content(self, content: Content | None) -> Artifact | None:
        """As ``keep``, for content alone. Returns: the hold to put it with; None for small content."""
        if content is None or not is_large(content):
            return None
        return await self._kept(lambda: encode_content(content))

    async def put_artifact(self, data: bytes | Callable[[], Iterable[bytes]]) -> Artifact:
        """Make ``data``, or the pieces that it returns on a thread, durable in the artifact store. Returns: a hold.

        Submit a document with ``artifact=`` the hold to refer to the artifact, which is removed once the hold has ended
        and no version refers to it. Raises and cancel: as ``keep``.
        """
        return await self._kept((lambda: data) if isinstance(data, bytes) else data)

    async def get_artifact(self, ref: str) -> bytes:
        """Return the bytes of the artifact ``ref``, verified.

        Raises: CtxdError ``corrupt`` if they are missing or damaged; ``disk_full``. Cancel: waits for the disk.
        """
        return await self.read_artifacts(lambda artifacts: artifacts.read(ref))

    async def read_artifacts(self, work: Callable[[ArtifactStore], T]) -> T:
        """Call ``work`` with the artifact store on a thread, and return its result.

        Raises: CtxdError ``corrupt``, ``disk_full``. Cancel: waits for the disk.
        """
        self._health.require_readable()
        return await self._read(self._reading, lambda: work(self._artifacts))

    async def hold_artifact(self, ref: str) -> Artifact:
        """Return a hold on an existing artifact. Raises: CtxdError ``artifact_not_found``. Cancel: as ``keep``."""
        held = await self._read(self._reading, lambda: self._artifacts.hold(ref))
        if held is None:
            raise CtxdError("artifact_not_found", f"there is no artifact {ref}", outcome="not_applied")
        return held

    async def repack_artifacts(self) -> int:
        """Rewrite packs that are mostly dead. Returns: the number of packs removed. Raises and cancel: as
        ``read_artifacts``."""
        return await self._read(self._collecting, self._artifacts.repack)

    async def _read(self, lane: Lane, work: Callable[[], T]) -> T:
        def run() -> T:
            with sqlite_file.faults():
                return work()

        try:
            return await lane.run(run)
        except sqlite_file.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except (sqlite_file.DiskFailed, sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
            raise CtxdError("corrupt", f"the index of artifacts cannot be read: {error}") from error

    async def _kept(self, data: Callable[[], bytes | Iterable[bytes]]) -> Artifact:
        """Write the result of ``data`` on a thread, and return a hold on it."""
        self._health.require_writable()
        try:
            return await self._keeping.run(self._keep, data)
        except sqlite_file.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except (sqlite_file.FileDamaged, sqlite_file.SqlFailed) as error:
            hint = "Restart the daemon: it rebuilds the index of artifacts from their packs."
            raise CtxdError("corrupt", f"the index of artifacts: {error}", hint=hint, outcome="not_applied") from error
        except sqlite_file.DiskFailed as error:
            self._failed(error)
            raise CtxdError("store_failed", str(error), outcome="not_applied") from error

    def _keep(self, data: Callable[[], bytes | Iterable[bytes]]) -> Artifact:
        with sqlite_file.faults(), self._artifacts.writer() as writer:
            pieces = data()
            for piece in (pieces,) if isinstance(pieces, bytes) else pieces:
                writer.write(piece)
            return writer.finish()

    async def collect(self, read: Read, referenced: Callable[[Sequence[str]], set[str]]) -> None:
        """Remove artifacts that no version refers to, until cancelled. ``referenced`` returns those of its argument
        that a version refers to; ``read`` calls it."""
        try:
            await self._collecting.run(self._artifacts.remove_leftovers)
            after = ""
            while names := await self._collecting.run(self._artifacts.names_after, after):
                await self._remove_unused(names, read, referenced)
                after = names[-1]
        except (CtxdError, *_FAILURES) as error:
            # The index cannot be read: the next start looks for leftovers of a crash again.
            self._fault(error)
        while True:
            await self._became_unused.wait()
            self._became_unused = anyio.Event()
            unused, self._unused = self._unused, set()
            await self._remove_unused(unused, read, referenced)

    async def _remove_unused(
        self, refs: Iterable[str], read: Read, referenced: Callable[[Sequence[str]], set[str]]
    ) -> None:
        """Remove the unreferenced ones of ``refs``; those that cannot be removed now are retried with the next ones."""
        # Claim them before the lookup: a write that refers to one either is durable by then, or holds it.
        claimed = self._artifacts.claim_removal(refs)
        if not claimed:
            return
        held: Sequence[str] = claimed

        def remove(used: set[str]) -> None:
            nonlocal held
            # From here on ``remove_unused`` ends the claims, one by one.
            held = ()
            with sqlite_file.faults():
                self._artifacts.remove_unused(claimed, used)

        try:
            await self._collecting.run(remove, await read(partial(referenced, claimed)))
        except (CtxdError, *_FAILURES) as error:
            self._unused.update(claimed)
            self._fault(error)
        finally:
            self._artifacts.disclaim(held)
