"""Large content: made durable in the artifact store before the write that refers to it is submitted.

The commit thread writes no artifact, so no session waits for another one's content. Content that no version refers to
is removed: what a crash has left at the next start, what was kept for a write that was not made once its hold ends.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import anyio
import msgspec

from ctxd import dbfile
from ctxd.artifacts.store import ArtifactStore
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Content, Document, encode_content, is_large
from ctxd.store.health import Health
from ctxd.worker_threads import Lane, LoopHandle, NoThread

KEPT_AT_ONCE: Final = 2
"""Large contents that are encoded and written at once. Bounds their second copy in memory, and leaves threads to others
while a disk is slow."""

READ_AT_ONCE: Final = 2
"""Artifacts that are read at once, each whole in memory."""

T = TypeVar("T")

_FAILURES: Final = (dbfile.DiskFull, dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed)

Read = Callable[[Callable[[], set[str]]], Awaitable[set[str]]]
"""Calls a function on the reader's thread, over everything accepted so far."""


class LargeContent:
    """Keeps large content, and removes what no version refers to. Usable once it is open."""

    def __init__(
        self, health: Health, failed: Callable[[dbfile.DiskFailed], None], fault: Callable[[Exception], None]
    ) -> None:
        """``failed`` ends the store after a failed disk; ``fault`` receives what a removal raised. Neither raises."""
        self._health = health
        self._failed = failed
        self._fault = fault
        self._keeping = Lane("artifact.keep", KEPT_AT_ONCE, bulk=True)
        self._reading = Lane("artifact.read", READ_AT_ONCE, bulk=True)
        self._collecting = Lane("artifact.collect", bulk=True)
        self._unused: set[str] = set()
        self._became_unused = anyio.Event()

    def open(self, root: Path) -> ArtifactStore:
        """Return the store of the artifacts in ``root``. Call this on the loop."""
        loop = LoopHandle()
        self._artifacts = ArtifactStore(root, lambda ref: loop.soon(self._note_unused, ref))
        return self._artifacts

    def _note_unused(self, ref: str) -> None:
        self._unused.add(ref)
        self._became_unused.set()

    async def keep(self, document: Document) -> Document:
        """Return ``document`` with its content durable in the artifact store if it is too large for the database.

        Call this before the decision to write it: then no other session waits for this one's content. What is not
        submitted is removed. Raises: CtxdError as ``VersionStore.submit``. Cancel: waits for the disk.
        """
        if document.artifact is not None or (artifact := await self.keep_content(document.content)) is None:
            return document
        return msgspec.structs.replace(document, artifact=artifact)

    async def keep_content(self, content: Content | None) -> Artifact | None:
        """As ``keep``, of ``content`` alone. Returns: the hold to put it with, None for small content."""
        if content is None or not is_large(content):
            return None
        return await self._kept(lambda: encode_content(content))

    async def put_artifact(self, data: bytes | Callable[[], Iterable[bytes]]) -> Artifact:
        """Return a hold on ``data``, or on the pieces that it returns on a thread, durable in the artifact store.

        A document that is submitted with ``artifact=`` the hold refers to it. It is removed once the hold has ended and
        no version refers to it. Raises and cancel: as ``keep``.
        """
        return await self._kept((lambda: data) if isinstance(data, bytes) else data)

    async def get_artifact(self, ref: str) -> bytes:
        """Return the bytes of the artifact ``ref``, compared with their hash.

        Raises: CtxdError ``corrupt`` if they are not there or damaged; ``disk_full``. Cancel: waits for the disk.
        """
        return await self.read_artifacts(lambda artifacts: artifacts.read(ref))

    async def read_artifacts(self, work: Callable[[ArtifactStore], T]) -> T:
        """Return what ``work`` returns, which reads from the artifact store on a thread.

        Raises: CtxdError ``corrupt``, ``disk_full``. Cancel: waits for the disk.
        """
        self._health.require_readable()
        return await self._answered(self._reading, lambda: work(self._artifacts))

    async def hold_artifact(self, ref: str) -> Artifact:
        """Return a hold on an artifact that is there. Raises: CtxdError ``artifact_not_found``. Cancel: as ``keep``."""
        held = await self._answered(self._reading, lambda: self._artifacts.hold(ref))
        if held is None:
            raise CtxdError("artifact_not_found", f"there is no artifact {ref}", outcome="not_applied")
        return held

    async def repack_artifacts(self) -> int:
        """Rewrite packs that are mostly dead. Returns: how many are gone. Raises and cancel: as ``read_artifacts``."""
        return await self._answered(self._collecting, self._artifacts.repack)

    async def _answered(self, lane: Lane, work: Callable[[], T]) -> T:
        def run() -> T:
            with dbfile.faults():
                return work()

        try:
            return await lane.run(run)
        except dbfile.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except (dbfile.DiskFailed, dbfile.FileDamaged, dbfile.SqlFailed) as error:
            raise CtxdError("corrupt", f"the index of artifacts cannot be read: {error}") from error

    async def _kept(self, data: Callable[[], bytes | Iterable[bytes]]) -> Artifact:
        """Return a hold on what ``data`` returns, on a thread."""
        self._health.require_writable()
        try:
            return await self._keeping.run(self._keep, data)
        except dbfile.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except (dbfile.FileDamaged, dbfile.SqlFailed) as error:
            hint = "Restart the daemon: it rebuilds the index of artifacts from their packs."
            raise CtxdError("corrupt", f"the index of artifacts: {error}", hint=hint, outcome="not_applied") from error
        except dbfile.DiskFailed as error:
            self._failed(error)
            raise CtxdError("store_failed", str(error), outcome="not_applied") from error

    def _keep(self, data: Callable[[], bytes | Iterable[bytes]]) -> Artifact:
        with dbfile.faults(), self._artifacts.writer() as writer:
            pieces = data()
            for piece in (pieces,) if isinstance(pieces, bytes) else pieces:
                writer.write(piece)
            return writer.finish()

    async def collect(self, read: Read, referenced: Callable[[Sequence[str]], set[str]]) -> None:
        """Remove artifacts that no version refers to, until cancelled. ``referenced``, called by ``read``, returns
        those that one does refer to."""
        try:
            await self._collecting.run(self._artifacts.remove_leftovers)
            after = ""
            while names := await self._collecting.run(self._artifacts.names_after, after):
                await self._remove_unused(names, read, referenced)
                after = names[-1]
        except (*_FAILURES, NoThread) as error:
            # The index cannot be read: what a crash left is found at the next start.
            self._fault(error)
        while True:
            await self._became_unused.wait()
            self._became_unused = anyio.Event()
            unused, self._unused = self._unused, set()
            await self._remove_unused(unused, read, referenced)

    async def _remove_unused(
        self, refs: Iterable[str], read: Read, referenced: Callable[[Sequence[str]], set[str]]
    ) -> None:
        """Remove those of ``refs`` that are not referenced; what cannot be removed now is tried with the next ones."""
        # Claimed before the look: a write that refers to one of them has landed, or holds it.
        claimed = self._artifacts.claim_removal(refs)
        if not claimed:
            return
        held: Sequence[str] = claimed

        def remove(used: set[str]) -> None:
            nonlocal held
            # From here on the removal ends the claims, one by one.
            held = ()
            with dbfile.faults():
                self._artifacts.remove_unused(claimed, used)

        try:
            await self._collecting.run(remove, await read(partial(referenced, claimed)))
        except (CtxdError, *_FAILURES, NoThread) as error:
            self._unused.update(claimed)
            self._fault(error)
        finally:
            self._artifacts.disclaim(held)
