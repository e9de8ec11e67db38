"""The indexing protocol (spec 1 §5.6): bring a file's object up to date, and return the documents to write.

It knows no session and writes nothing: a result contains the documents to put, if any, and the caller commits them
together with the changes to its session. Guarantee: a result is decided on the newest accepted versions, with no await
between reading those and returning. So a caller that submits the documents *before it awaits anything else* cannot be
overtaken: if two sessions index the same change at once, one writes it and the other gets ``unchanged``.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import msgspec

from ctxd.errors import CtxdError, purged
from ctxd.indexing.file_version_decision import (
    SANDBOXES,
    Observed,
    UnavailableSource,
    decide_outcome,
    file_kind,
    is_due,
    is_overtaken,
)
from ctxd.indexing.host_visibility import HostVisibility
from ctxd.indexing.stale_files import OVERTAKEN_RETRIES, StaleFileReader
from ctxd.mounts.filesystem_id import Devices
from ctxd.mounts.mapping import MountTable, normalise
from ctxd.objects.document import AsOf, Document, Stored, is_large
from ctxd.objects.generated_ids import file_id, observed
from ctxd.objects.version_state import is_purged
from ctxd.secrets.policy import DEFAULT, captured_under, stricter
from ctxd.secrets.redaction import Guard, ephemeral_guard
from ctxd.sources.host_files import HostFiles
from ctxd.sources.source_interface import Missing, Present, Reading, SourceAdapter
from ctxd.store.version_store import VersionStore
from ctxd_protocol.methods.files import FileKind, FileOutcome
from ctxd_protocol.object_types import FilesystemSource, Source, filesystem_source, source_label
from ctxd_protocol.secret_types import SecretPolicy

Cause = Literal["read", "edit", "check"]
"""``read`` and ``edit``: an agent read or wrote the content, so a missing file is an error. ``check``: no agent did."""


class Indexed(msgspec.Struct, frozen=True, kw_only=True):
    """Result of indexing one file.

    ``document`` is the document to put, or ``None``; ``floor_vt`` is its least valid time, in ms. ``signature`` goes
    into ``Write.signatures`` with it, ``None`` if a later stat could not prove the file unchanged. ``source_hash`` and
    ``char_count`` belong to the newest version, the document included. ``basis`` is the journal sequence of the version
    this was decided on, 0 for no version: a caller that puts nothing waits for that.
    """

    object: str
    outcome: FileOutcome
    kind: FileKind
    source: Source
    source_hash: str | None
    char_count: int
    document: Document | None = None
    signature: bytes | None = None
    floor_vt: int = 0
    basis: int = 0

    @property
    def puts(self) -> tuple[Document, ...]:
        """``document`` as ``Write.puts`` takes it."""
        return () if self.document is None else (self.document,)

    @property
    def signatures(self) -> dict[str, bytes]:
        """``signature`` as ``Write.signatures`` takes it: empty unless there is a document too."""
        return {} if self.document is None or self.signature is None else {self.object: self.signature}

    @property
    def writes(self) -> dict[str, Any]:
        """The fields of a ``Write`` for this result, by name."""
        return {"puts": self.puts, "signatures": self.signatures, "floor_vt": self.floor_vt}


class _PlainRead(msgspec.Struct, frozen=True):
    """A host file that was read without resolving symlinks. ``before``: its newest version before the read."""

    source: FilesystemSource
    before: Stored | None
    reading: Reading


class Indexer:
    """Indexes host files by reading them, and files of any filesystem by content that a caller sends. Objects with
    other kinds of ``sources`` are updated by their ids.

    ``host_devices``: see ``ctxd.mounts.filesystem_id.Devices``; for sessions that distinguish filesystems by device.
    """

    def __init__(
        self,
        versions: VersionStore,
        files: HostFiles,
        host_filesystem: str,
        *,
        host_devices: frozenset[int] = frozenset(),
        guard: Guard | None = None,
    ) -> None:
        self.versions = versions
        self.files = files
        self.sources: SourceAdapter[Any] = files
        self.visibility = HostVisibility(files, Devices(host_filesystem, host_devices))
        self.stale_files = StaleFileReader(versions, self.sources, self.visibility, guard or ephemeral_guard())
        self._stats = self.stale_files.stats
        self._builder = self.stale_files.builder

    async def resolve(self, mounts: MountTable, workdir: str, path: str) -> tuple[str, FilesystemSource]:
        """The object id of the agent's ``path``, whether or not the file exists, and its source.

        Raises: CtxdError invalid_path. Cancel: safe.
        """
        (source,) = await self.visibility.place(mounts, workdir, (path,))
        if isinstance(source, CtxdError):
            raise source
        return file_id(source), source

    async def index(
        self,
        mounts: MountTable,
        workdir: str,
        path: str,
        *,
        content: bytes | None = None,
        cause: Cause = "read",
        policy: SecretPolicy = DEFAULT,
        observer: str | None = None,
        knows: Callable[[str], bool] | None = None,
    ) -> Indexed:
        """Index the file at the agent's ``path`` from ``content`` or, if that is ``None``, by reading it.

        ``observer``: the only session that vouches for ``content``. For a file that the daemon can read itself, the
        content is then an observation, an object of that session alone, unless the daemon reads the same content.

        ``knows`` returns True for objects that a sandbox may know: for others the outcome is never ``deleted`` or
        ``orphaned``, as for objects that do not exist. ``None``: all objects are known. Secrets are treated by
        ``policy``, or that of the newest version if that is stricter.

        Cost if unchanged: one hash and one look-up. Only a ``check`` has the outcomes ``deleted`` and ``orphaned``, and
        only for an object that exists. Raises: CtxdError invalid_path, file_not_found, source_unreachable,
        path_escapes_mount, unsupported (a directory, a device). Cancel: safe; nothing is written here.
        """
        self.visibility.confine(mounts)
        plain = await self._read_plain(mounts, workdir, path) if content is None else None
        if plain is not None:
            named, shown = plain.source, normalise(path, workdir)
            return await self._index_source(
                mounts, file_id(named), named, shown, cause, policy, knows=knows, plain=plain
            )
        id, source = await self.resolve(mounts, workdir, path)
        if cause == "check":
            known = await self._known_by_name(mounts, workdir, path, source)
            if known is not None and (knows is None or knows(known[0])):
                id, source = known
        if content is None:
            return await self._index_source(mounts, id, source, normalise(path, workdir), cause, policy, knows=knows)
        if observer is not None and all(await self.visibility.readable(mounts, (source,))):
            if await self._agrees(source, content):
                return await self._index_source(
                    mounts, id, source, normalise(path, workdir), cause, policy, knows=knows
                )
            source = observed(observer, normalise(path, workdir))
            id = file_id(source)
        seen = await self._received(content, policy, observer or "")
        for _ in range(1 + OVERTAKEN_RETRIES):
            before = await self.versions.newest(id)
            document = await self.stale_files.built(id, source, seen, before.document if before else None)
            head = await self.versions.newest(id)
            if not is_overtaken(before, head):
                break
        return self._concluded(id, source, seen, head, document)

    async def _read_plain(self, mounts: MountTable, workdir: str, path: str) -> "_PlainRead | None":
        """Resolve and read a host file in one thread hop; ``None`` if its path needs more than that."""
        source = self.visibility.host_path(mounts, workdir, path)
        if source is None:
            return None
        # The newest version before the read, as in ``_read``.
        before = await self.versions.newest(file_id(source))
        reading = await self.files.read_plain(source.path)
        return None if reading is None else _PlainRead(source, before, reading)

    async def index_past(
        self, mounts: MountTable, workdir: str, path: str, content: bytes, valid_time: int, policy: SecretPolicy
    ) -> Indexed:
        """Index ``content`` as the file at the agent's ``path`` at ``valid_time``.

        Decides on the version valid then, as known now; secrets are treated as strictly as in that and in the newest
        one. Raises: CtxdError purged if that or the newest one was purged, invalid_path, corrupt, store_failed.
        Cancel: safe; nothing is written here.
        """
        id, source = await self.resolve(mounts, workdir, path)
        head = await self.versions.newest(id)
        policy = policy if head is None else stricter(policy, captured_under(head.document.payload))
        seen = await self._received(content, policy, "")
        then = await self.versions.get(id, AsOf(valid_time=valid_time))
        await self._require_unpurged(id, then)
        document = await self.stale_files.built(id, source, seen, then.document if then else None)
        # A purge may have been accepted while a thread converted the content.
        await self._require_unpurged(id, then)
        return self._concluded(id, source, seen, then, document)

    async def _require_unpurged(self, id: str, then: Stored | None) -> None:
        head = await self.versions.newest(id)
        if any(known is not None and is_purged(known.document) for known in (head, then)):
            raise purged(id)

    async def _received(self, content: bytes, policy: SecretPolicy, author: str) -> Observed:
        work = partial(self._builder.seen_in, content, policy, author)
        return await self.stale_files.capturing.run(work, size=len(content))

    async def _known_by_name(
        self, mounts: MountTable, workdir: str, path: str, source: FilesystemSource
    ) -> tuple[str, FilesystemSource] | None:
        """The object at ``path`` itself, if ``source``, its resolved path, has no object but ``path`` has one.

        It was a file before a symlink replaced it, or was stored before symlinks were resolved.
        """
        named = mounts.forward(path, workdir)
        named = FilesystemSource(source.filesystem_id, named.path)
        if named == source or await self.versions.newest(file_id(source)) is not None:
            return None
        id = file_id(named)
        return (id, named) if await self.versions.newest(id) is not None else None

    async def _agrees(self, source: FilesystemSource, content: bytes) -> bool:
        reading = await self.sources.read(source)
        return isinstance(reading, Present) and reading.raw == content

    async def index_object(
        self, mounts: MountTable, id: str, *, cause: Cause = "check", policy: SecretPolicy = DEFAULT
    ) -> Indexed:
        """Index the file of the object ``id``; an unread file is read this way when it is activated.

        ``mounts`` are those of the calling session. Raises: CtxdError object_not_found, content_unavailable (it is not
        a file), and as ``index``, but file_not_found only for a confirmed absence; if the file's directory or disk is
        missing, source_unreachable.
        """
        self.visibility.confine(mounts)
        head = await self.versions.newest(id)
        if head is None:
            raise CtxdError("object_not_found", f"no object {id}")
        source = head.document.source
        if source is None:
            raise CtxdError("content_unavailable", f"object {id} has no source to read")
        return await self._index_source(mounts, id, source, mounts.display(source), cause, policy, is_known=True)

    async def confirms(self, mounts: MountTable, document: Document) -> bool:
        """True if the file of ``document``, read now for the session with ``mounts``, has the same content."""
        self.visibility.confine(mounts)
        if document.source is None or not all(await self.visibility.readable(mounts, (document.source,))):
            return False
        reading = await self.sources.read(document.source)
        volume = await self._volume(document.id) if isinstance(reading, Missing) else None
        seen = self._builder.seen_at(reading, volume=volume, policy="off")
        return decide_outcome(document, seen.state) == "unchanged"

    async def _index_source(
        self,
        mounts: MountTable,
        id: str,
        source: Source,
        shown: str,
        cause: Cause,
        policy: SecretPolicy,
        *,
        is_known: bool = False,
        knows: Callable[[str], bool] | None = None,
        plain: "_PlainRead | None" = None,
    ) -> Indexed:
        if plain is not None or all(await self.visibility.readable(mounts, (source,))):
            seen, head, document = await self._read(id, source, policy, plain)
        else:
            seen = Observed(UnavailableSource("unreadable", _why_not_readable(mounts, source)))
            head, document = await self.versions.newest(id), None
        if isinstance(seen.state, UnavailableSource) or file_kind(seen.state) == "missing":
            if head is None or cause != "check" or (knows is not None and not knows(id)):
                raise _failure(seen, shown, is_known=is_known)
        return self._concluded(id, source, seen, head, document)

    async def _read(
        self, id: str, source: Source, policy: SecretPolicy, plain: "_PlainRead | None"
    ) -> tuple[Observed, Stored | None, Document | None]:
        """Read the source, unless ``plain`` has just been read. Returns the newest version as of the return as well."""
        author = SANDBOXES if self.visibility.is_from_sandbox(source) else ""
        for attempt in range(1 + OVERTAKEN_RETRIES):
            if plain is not None and attempt == 0:
                before, reading = plain.before, plain.reading
            else:
                before = await self.versions.newest(id)
                reading = await self.sources.read(source)
            volume = await self._volume(id) if isinstance(reading, Missing) else None
            seen = self._builder.seen_at(reading, volume=volume, policy=policy, author=author)
            document = await self.stale_files.built(id, source, seen, before.document if before else None)
            head = await self.versions.newest(id)
            if attempt == OVERTAKEN_RETRIES or not is_overtaken(before, head):
                break
        return seen, head, document

    def _concluded(
        self, id: str, source: Source, seen: Observed, head: Stored | None, early: Document | None
    ) -> Indexed:
        """Decide on ``head``, the newest version now. Does not await: see the guarantee at the top."""
        known = head.document if head else None
        outcome = decide_outcome(known, seen.state)
        document = self._builder.build(id, source, seen.state, known, early) if is_due(outcome) else None
        if document is not None and document.artifact is None and is_large(document.content):
            # Each time the content was kept, another version had been accepted meanwhile.
            message = f"other sessions write {source_label(source)} at the same time"
            raise CtxdError("store_backlog_full", message, retry_after_ms=100, outcome="not_applied")
        current = document or known
        assert current is not None, "an object that is not there was refused before"
        signature = None if outcome == "orphaned" else self._stats.note(id, seen.stamp, current)
        return Indexed(
            object=id,
            outcome=outcome,
            kind=file_kind(seen.state),
            source=source,
            source_hash=current.source_hash,
            char_count=current.payload["char_count"],
            document=document,
            signature=signature,
            floor_vt=head.valid_time + 1 if head else 0,
            basis=head.tx if head else 0,
        )

    async def _volume(self, id: str) -> int | None:
        await self._stats.load(self.versions, [id])
        entry = self._stats.get(id)
        return entry.volume if entry else None


def _why_not_readable(mounts: MountTable, source: Source) -> str:
    file = filesystem_source(source)
    if file is None:
        return "it is not a file in a mount of the sandbox"
    if mounts.by_device:
        return f"it lies on filesystem {file.filesystem_id[:12]}, which is not at that path of the host"
    return "no mount of the session contains it, so that only its agent can read it"


def _failure(seen: Observed, shown: str, *, is_known: bool) -> CtxdError:
    match seen.state:
        case UnavailableSource(kind="missing", why=why) if is_known:
            hint = "Try again once the directory or the disk is back."
            message = f"cannot reach the file {shown}: {why}"
            return CtxdError("source_unreachable", message, hint=hint, outcome="not_applied")
        case UnavailableSource(escapes=True, why=why):
            hint = "Send the file's content with the call."
            message = f"cannot read {shown}: {why}"
            return CtxdError("path_escapes_mount", message, hint=hint, outcome="not_applied")
        case UnavailableSource(kind="special", why=why):
            return CtxdError(
                "unsupported",
                f"cannot read {shown}: {why}",
                hint="Only regular files are indexed.",
                outcome="not_applied",
            )
        case UnavailableSource(kind="unreadable", why=why):
            hint = "Send the file's content with the call."
            return CtxdError(
                "source_unreachable",
                f"cannot read the file {shown}: {why}",
                hint=hint,
                outcome="not_applied",
            )
        case _:
            hint = "Give the path as the agent knows it; a relative one starts at the session's working directory."
            return CtxdError("file_not_found", f"no file {shown}", hint=hint, outcome="not_applied")
