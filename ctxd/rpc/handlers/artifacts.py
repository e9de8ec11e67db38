"""``artifact.*``: bytes of any size by their address, tags, and the collection of what nothing refers to.

An artifact that was put is an entity, ``artifact:{address}``, whose versions have its bytes; a tag is one,
``artifact_tag:{name}``, that names an address. A collection purges entities: the journal records it, and checks in the
same transaction that nothing else has the bytes.

What a sandbox puts is searched for secrets before it is stored, under the strictest policy of its sessions. It cannot
be redacted, as that would change its address: with a secret in it, it is refused under ``redact``.

A sandbox puts artifacts, and reads what it has put and what tool calls and commits of its sessions have. Every read
goes through ``_visible``; what is foreign and what is missing look the same.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

import anyio
import msgspec
from anyio.abc import TaskStatus
from blake3 import blake3

from ctxd import dbfile
from ctxd.artifacts import fsck
from ctxd.artifacts.store import ArtifactStore
from ctxd.artifacts.uploads import Uploads
from ctxd.clock import Clock
from ctxd.commits.artifact_secrets import ArtifactSecrets, SearchedArtifact, SecretInArtifact
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Document, Page, Stored, encode_content
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.kinds import is_purged
from ctxd.offload import Lane
from ctxd.rpc.caller import Caller, viewer_of
from ctxd.sessions.object_reads import Objects
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import Accepted, WriteRequest, again, find_replay, kept_result
from ctxd.store.purge import ARTIFACT, ARTIFACT_TAG, KIND
from ctxd.store.writes import Pending, PurgeRequest, Write
from ctxd_protocol.methods import artifacts as wire
from ctxd_protocol.secrets import SecretPolicy, Secrets

T = TypeVar("T")

_TAGGED: Final = "tag:"
_ADDRESS_DIGITS: Final = 64
_CANDIDATES: Final = 5
_HOST: Final = ""
_BY_HOST: Final[Mapping[str, str]] = {_HOST: "default"}
_STRONGEST: Final[tuple[wire.ArtifactPolicy, ...]] = ("pin", "default", "ephemeral")
"""Policies: of several, the first one holds."""
_PAGE: Final = 1_000
_UPKEEP_S: Final = 60.0
_BOUND_GRACE_MS: Final = 600_000
"""Age below which the bound removes no artifact: what will refer to it may be on its way."""

_COLLECTOR: Final = "ctxd"
"""Principal of the automatic collection."""

_REMOVED_MAX: Final = 1_000
_REMOVED_AT_ONCE: Final = 100
"""Artifacts that one transaction removes: the writes of others wait for it."""


class ArtifactCalls:
    """Handlers of ``artifact.*``."""

    def __init__(self, sessions: Sessions, clock: Clock, *, policy: SecretPolicy, bytes_max: int = 0) -> None:
        """``bytes_max``: bytes of artifacts above which ``run`` collects them; 0: never. ``policy``: on secrets, of
        sandboxes without a session."""
        store = sessions.store
        self._bytes_max = bytes_max
        # Until it is counted, it may be any number.
        self._bytes: int | None = None
        self._collect_after_ms = 0
        self._objects = Objects(sessions)
        self._secrets = ArtifactSecrets(sessions, policy)
        self._store = store
        self._clock = clock
        self._uploads = Uploads(store.root / "artifacts" / "uploads")
        self._uploading = Lane("artifact.upload", 2, bulk=True)
        self._collecting = anyio.Lock()
        # Held from the choice of what a transaction removes to its end, and by a put while it looks at what is there.
        self._removing = anyio.Lock()
        self._used_last_ms: dict[str, int] = {}
        self._uses_to_keep: dict[str, int] = {}
        # What cannot be removed now is reported by the next collection.
        with suppress(OSError):
            self._uploads.remove_stale(clock.wall_ms())

    def close(self) -> None:
        """End the process that searches uploads for secrets. Blocks until it has ended."""
        self._secrets.close()

    # --- put ---

    async def artifact_upload(self, caller: Caller, params: wire.ArtifactUploadParams) -> wire.ArtifactUploadResult:
        name = _upload_name(caller, params.upload)
        if params.offset is None:
            return wire.ArtifactUploadResult(offset=await self._upload(partial(self._uploads.size, name)))
        write = partial(self._uploads.write, name, params.offset, params.data)
        return wire.ArtifactUploadResult(offset=await self._upload(write))

    async def _upload(self, work: Callable[[], T]) -> T:
        def run() -> T:
            with dbfile.faults():
                return work()

        try:
            return await self._uploading.run(run)
        except dbfile.DiskFull as error:
            raise CtxdError("disk_full", str(error), hint=error.hint, outcome="not_applied") from error
        except dbfile.DiskFailed as error:
            raise CtxdError("store_failed", f"the upload cannot be written: {error}", outcome="unknown") from error

    async def artifact_put(self, caller: Caller, params: wire.ArtifactPutParams, call: WriteRequest) -> Accepted:
        upload = None if params.upload is None else _upload_name(caller, params.upload)
        if params.policy == "pin" and caller.capability != "host":
            hint = "Use the policy default; the harness pins artifacts."
            raise CtxdError("invalid_params", "a sandbox cannot pin an artifact", hint=hint, outcome="not_applied")
        if (replay := await find_replay(self._store, call)) is not None:
            if upload is not None:
                # The first call may have been cut off before this; or its bytes were sent once more.
                await self._upload(partial(self._uploads.remove, upload))
            return again(replay, wire.ArtifactPutResult)
        if (params.data is None) is (upload is None):
            hint = "Give data, or upload after artifact.upload."
            raise CtxdError("invalid_params", "an artifact is put from data or from an upload", hint=hint)
        searched = None if caller.capability == "host" else await self._searched(caller, params.data, upload)
        data = params.data
        held = await self._store.put_artifact(partial(self._uploads.pieces, str(upload)) if data is None else data)
        if searched is not None and searched.address != held.ref:
            message, hint = "the upload was changed while it was put", "Send one piece after the other, then put it."
            raise CtxdError("artifact_mismatch", message, hint=hint, outcome="not_applied")
        if params.blake3 not in (None, held.ref):
            message, hint = f"the bytes have the address {held.ref}", "Send them again from offset 0."
            raise CtxdError("artifact_mismatch", message, hint=hint, outcome="not_applied")
        async with self._removing:
            marks = {} if searched is None else searched.marks
            result, pending = await self._submit_put(caller, params, call, held, marks)
        if upload is not None:
            # What it holds is in the journal's hands now; the piece's file may go once it is durable.
            if pending is not None:
                await pending.wait()
            await self._upload(partial(self._uploads.remove, upload))
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    async def _searched(self, caller: Caller, data: bytes | None, upload: str | None) -> SearchedArtifact | None:
        """Search what a sandbox puts for secrets. An upload that may have none and has one is removed."""
        if data is not None:
            return await self._secrets.search(viewer_of(caller), data)
        try:
            with await self._upload(partial(self._uploads.open, str(upload))) as file:
                return await self._secrets.search(viewer_of(caller), file)
        except SecretInArtifact:
            await self._upload(partial(self._uploads.remove, str(upload)))
            raise

    async def _submit_put(
        self,
        caller: Caller,
        params: wire.ArtifactPutParams,
        call: WriteRequest,
        held: Artifact,
        marks: dict[str, Any],
    ) -> tuple[wire.ArtifactPutResult, Pending | None]:
        known = await self._put(held.ref)
        was = {} if known is None else known.document.payload
        is_host = caller.capability == "host"
        owner = _HOST if is_host else caller.principal
        owners: dict[str, wire.ArtifactPolicy] = {**was.get("owners", {_HOST: was["policy"]} if was else {})}
        owners[owner] = params.policy or owners.get(owner, "default")
        policy = min(owners.values(), key=_STRONGEST.index)
        # What a sandbox is answered is the same whatever others have put.
        media_type = (params.media_type if is_host or not was else None) or was.get("media_type")
        shown = policy if is_host else owners[owner]
        result = wire.ArtifactPutResult(artifact=held.ref, size=held.size, policy=shown, receipt=None)
        marks = marks or {name: was[name] for name in ("secrets",) if name in was}
        document = _artifact_document(held, policy, media_type, owners, marks)
        if known is None and self._bytes is not None:
            self._bytes += held.size
        if known is not None:
            self._note_use(held.ref)
            if was == document.payload:
                return result, None
        return result, self._submit(call, result, document)

    async def _put(self, ref: str) -> Stored | None:
        """The newest version of the artifact ``ref`` that was put; None if it was not, or was purged."""
        stored = (await self._store.heads((ARTIFACT + ref,)))[ARTIFACT + ref]
        return None if stored is None or is_purged(stored.document) else stored

    def _submit(
        self, call: WriteRequest, result: msgspec.Struct, *puts: Document, deletes: tuple[str, ...] = ()
    ) -> Pending:
        heads = (self._store.peek(id) for id in (*(put.id for put in puts), *deletes))
        floor = max((head.valid_time + 1 for head in heads if isinstance(head, Stored)), default=0)
        pending = self._store.submit(
            Write(
                kind=call.kind,
                principal=call.principal,
                op_id=call.op_id,
                request=call.request,
                result=kept_result(call, result),
                puts=puts,
                deletes=deletes,
                floor_vt=floor,
            )
        )
        call.submitted = True
        return pending

    # --- read ---

    async def artifact_get(self, caller: Caller, params: wire.ArtifactGetParams) -> wire.ArtifactGetResult:
        ref = await self._visible(caller, params.artifact)
        end = params.offset + params.limit

        def read(artifacts: ArtifactStore) -> tuple[int, bytes] | None:
            size = artifacts.size(ref)
            return None if size is None else (size, b"".join(artifacts.pieces(ref, params.offset, end)))

        found = await self._store.read_artifacts(read)
        if found is None:
            whole = await self._inline(ref)
            if whole is None:
                raise CtxdError("artifact_not_found", f"artifact {ref} is gone", hint="It was purged; put it again.")
            found = len(whole), whole[params.offset : end]
        size, data = found
        self._note_use(ref)
        next_offset = end if end < size else None
        return wire.ArtifactGetResult(artifact=ref, size=size, offset=params.offset, data=data, next_offset=next_offset)

    async def _visible(self, caller: Caller, given: str) -> str:
        """The address of the artifact ``given``, whose bytes ``caller`` may read.

        A sandbox has no abbreviations, whose errors name other artifacts, and no versions of files: object.get decides
        which of them it may see. Raises: CtxdError artifact_not_found, in a sandbox also for a foreign one;
        ambiguous_id.
        """
        if caller.capability == "host":
            return await self.address(given)
        if not given.startswith(_TAGGED) and len(given) != _ADDRESS_DIGITS:
            raise _not_found(given)
        ref = await self.address(given)
        ids = await self._store.referring(ref) if given == ref or given.startswith(_TAGGED) else []
        viewer, calls = viewer_of(caller), list[str]()
        for id, head in (await self._store.heads(ids)).items():
            if head is None:
                continue
            if head.document.type == "toolcall":
                calls.append(id)
            elif id.startswith(ARTIFACT) and caller.principal in head.document.payload.get("owners", ()):
                return ref
            elif id.startswith(COMMIT_PREFIX) and viewer.owns(head):
                return ref
        for session in viewer.sessions or () if calls else ():
            with suppress(CtxdError):
                if any(map((await self._objects.viewer(session, confined=True)).holds, calls)):
                    return ref
        raise _not_found(given)

    async def _inline(self, ref: str) -> bytes | None:
        """The bytes of ``ref``, which is not in the artifact store, if a version in the database has them."""
        if not await self._store.referring(ref):
            return None
        return encode_content((await self._store.contents((ref,)))[ref])

    async def address(self, given: str) -> str:
        """The address of the artifact ``given``. Raises: CtxdError artifact_not_found, ambiguous_id."""
        if given.startswith(_TAGGED):
            name = given.removeprefix(_TAGGED)
            if (ref := await self._tagged(name)) is None:
                raise _not_found(given)
            return ref
        prefix = given.removeprefix("art-").lower()
        if len(prefix) > _ADDRESS_DIGITS or not prefix or set(prefix) - set("0123456789abcdef"):
            hint = "Give hex digits of its address, or tag:NAME."
            raise CtxdError("invalid_params", f"{given!r} is no address of an artifact", hint=hint)
        if len(prefix) == _ADDRESS_DIGITS:
            return prefix
        found = await self._store.read_artifacts(lambda artifacts: artifacts.matching(prefix, _CANDIDATES + 1))
        if not found:
            raise _not_found(given)
        if len(found) > 1:
            listed = ", ".join(found[:_CANDIDATES]) + (", …" if len(found) > _CANDIDATES else "")
            hint = f"Give more digits of one of {listed}."
            raise CtxdError("ambiguous_id", f"{given} is the beginning of several artifacts", hint=hint)
        return found[0]

    async def artifact_stat(self, _: Caller, params: wire.ArtifactParams) -> wire.ArtifactStatResult:
        ref = await self.address(params.artifact)
        size = await self._store.read_artifacts(lambda artifacts: artifacts.size(ref))
        if size is None:
            if (whole := await self._inline(ref)) is None:
                raise _not_found(params.artifact)
            size = len(whole)
        known = await self._put(ref)
        payload = {} if known is None else known.document.payload
        referring = await self._store.referring(ref)
        return wire.ArtifactStatResult(
            artifact=ref,
            size=size,
            policy=payload.get("policy"),
            media_type=payload.get("media_type"),
            created_at=None if known is None else known.tx_time,
            tags=tuple(tag for tag, target in (await self._tags()).items() if target == ref),
            references=len({*referring} - {ARTIFACT + ref}),
            secrets=msgspec.convert(payload.get("secrets"), Secrets | None),
        )

    async def artifact_list(self, _: Caller, params: wire.ArtifactListParams) -> wire.ArtifactListResult:
        tags: dict[str, list[str]] = {}
        for tag, target in (await self._tags()).items():
            tags.setdefault(target, []).append(tag)
        found: list[wire.ArtifactListItem] = []
        async for stored in self._scan(ARTIFACT, after=params.cursor):
            if is_purged(stored.document):
                continue
            if len(found) == params.limit:
                return wire.ArtifactListResult(artifacts=tuple(found), next_cursor=found[-1].artifact)
            ref, payload = stored.document.id.removeprefix(ARTIFACT), stored.document.payload
            found.append(
                wire.ArtifactListItem(
                    artifact=ref,
                    size=payload["size"],
                    policy=payload["policy"],
                    created_at=stored.tx_time,
                    tags=tuple(tags.get(ref, ())),
                )
            )
        return wire.ArtifactListResult(artifacts=tuple(found), next_cursor=None)

    async def _scan(self, prefix: str, *, after: str | None = None) -> AsyncIterator[Stored]:
        last = None if after is None else prefix + after
        while True:
            page = await self._store.scan(prefix, page=Page(after=last, limit=_PAGE))
            for stored in page:
                yield stored
            if len(page) < _PAGE:
                return
            last = page[-1].document.id

    # --- tags ---

    async def artifact_tag(self, _: Caller, params: wire.ArtifactTagParams, call: WriteRequest) -> Accepted:
        if (replay := await find_replay(self._store, call)) is not None:
            return again(replay, wire.ArtifactTagResult)
        held = None
        if params.artifact is not None:
            held = await self._held(await self.address(params.artifact))
        known = None if held is None else await self._put(held.ref)
        previous = await self._tagged(params.tag)
        if params.expected is not None and params.expected != (previous or ""):
            message = f"tag {params.tag} names {previous or 'no artifact'}, not {params.expected or 'nothing'}"
            hint = "Read it again, and expect that."
            raise CtxdError("tag_moved", message, hint=hint, outcome="not_applied")
        ref = None if held is None else held.ref
        result = wire.ArtifactTagResult(tag=params.tag, artifact=ref, previous=previous, receipt=None)
        if ref == previous:
            return Accepted(None, lambda _: result)
        if held is None:
            pending = self._submit(call, result, deletes=(ARTIFACT_TAG + params.tag,))
        else:
            # Content that is no artifact of its own yet becomes one: a tag keeps it.
            puts = () if known is not None else (_artifact_document(held, "default", None),)
            pending = self._submit(call, result, *puts, _document(ARTIFACT_TAG + params.tag, {"artifact": held.ref}))
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    async def _held(self, ref: str) -> Artifact:
        if await self._store.read_artifacts(lambda artifacts: artifacts.holds(ref)):
            return await self._store.hold_artifact(ref)
        # What is in the database becomes an artifact.
        inline = await self._inline(ref)
        if inline is None:
            raise _not_found(ref)
        return await self._store.put_artifact(inline)

    async def _tagged(self, name: str) -> str | None:
        stored = (await self._store.heads((ARTIFACT_TAG + name,)))[ARTIFACT_TAG + name]
        return None if stored is None else str(stored.document.payload["artifact"])

    async def _tags(self) -> dict[str, str]:
        return {
            stored.document.id.removeprefix(ARTIFACT_TAG): stored.document.payload["artifact"]
            async for stored in self._scan(ARTIFACT_TAG)
        }

    # --- collection ---

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Keep last uses, and the bound, until cancelled: both within a minute. Then end the process that searches."""
        task_status.started()
        try:
            while True:
                # What the disk refuses now is tried again.
                with suppress(CtxdError):
                    await self.upkeep()
                await self._clock.sleep(_UPKEEP_S)
        finally:
            self.close()

    async def upkeep(self) -> None:
        """Note the last uses on the disk, and collect artifacts if they have more bytes than the bound."""
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
            found = await self._collect(_COLLECTOR, params)
            more = found.more and bool(found.removed)
            if found.left_bytes > self._bytes_max and not more:
                # The others are reached or young: only time changes that.
                self._collect_after_ms = self._clock.wall_ms() + _BOUND_GRACE_MS

    def _note_use(self, ref: str) -> None:
        self._used_last_ms[ref] = self._uses_to_keep[ref] = self._clock.wall_ms()

    async def artifact_gc(self, caller: Caller, params: wire.ArtifactGcParams) -> wire.ArtifactGcResult:
        return await self._collect(caller.principal, params)

    async def _collect(self, principal: str, params: wire.ArtifactGcParams) -> wire.ArtifactGcResult:
        kept = await self._store.read_artifacts(lambda artifacts: artifacts.last_uses())
        self._used_last_ms = kept | self._used_last_ms
        async with self._collecting:
            now = self._clock.wall_ms()
            await self._upload(partial(self._uploads.remove_stale, now))
            tagged = set((await self._tags()).values())
            total, candidates = 0, list[Stored]()
            async for stored in self._scan(ARTIFACT):
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

    def _used_ms(self, stored: Stored) -> int:
        return max(stored.tx_time, self._used_last_ms.get(stored.document.id.removeprefix(ARTIFACT), 0))

    async def _remove(self, principal: str, refs: list[str], unused_since_ms: int) -> list[str]:
        removed: list[str] = []
        for first in range(0, len(refs), _REMOVED_AT_ONCE):
            async with self._removing:
                # Some may have been read or put again since they were chosen.
                batch = [
                    ref
                    for ref in refs[first : first + _REMOVED_AT_ONCE]
                    if self._used_last_ms.get(ref, 0) <= unused_since_ms
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

    # --- verification ---

    async def artifact_fsck(self, _: Caller, params: wire.ArtifactFsckParams) -> wire.ArtifactFsckResult:
        found = await self._store.read_artifacts(lambda artifacts: fsck.page(artifacts, params.cursor, params.limit))
        return wire.ArtifactFsckResult(
            checked=found.checked,
            checked_bytes=found.checked_bytes,
            damaged=tuple(wire.DamagedArtifact(artifact=ref, fault=fault) for ref, fault in found.damaged),
            faults=tuple(found.faults),
            next_cursor=found.cursor,
        )


def _not_found(given: str) -> CtxdError:
    hint = "Give its 64 digits; artifact.list has those that were put, and the tags."
    return CtxdError("artifact_not_found", f"there is no artifact {given}", hint=hint, outcome="not_applied")


def _upload_name(caller: Caller, upload: str) -> str:
    """The name under which an upload is kept: that of a sandbox is its own."""
    if caller.capability == "host":
        return upload
    return f"{blake3(caller.principal.encode()).hexdigest()}+{upload}"


def _artifact_document(
    held: Artifact,
    policy: str,
    media_type: str | None,
    owners: Mapping[str, str] = _BY_HOST,
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> Document:
    """The document of an artifact that was put. ``owners``: the policy of each who put it, a sandbox by principal.
    ``marks``: what its payload has of secrets."""
    payload: dict[str, Any] = {"artifact": held.ref, "size": held.size, "policy": policy, **marks}
    if owners.keys() != _BY_HOST.keys():
        payload["owners"] = dict(owners)
    if media_type is not None:
        payload["media_type"] = media_type
    return msgspec.structs.replace(_document(ARTIFACT + held.ref, payload), artifact=held)


def _document(id: str, payload: dict[str, Any]) -> Document:
    kind = id.partition(":")[0]
    return Document(
        id=id,
        type=kind,
        identity_hash=identity_hash(kind, None, id),
        # Its bytes have a hash of their own, and may be too many for memory.
        content_hash=content_hash(payload, None),
        payload=payload,
    )
