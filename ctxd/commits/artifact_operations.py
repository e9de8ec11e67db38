"""Operations on artifacts, which are bytes of any size with an address, and on their tags.

A put artifact is an entity, ``artifact:{address}``, whose versions have its bytes; a tag is an entity,
``artifact_tag:{name}``, that refers to an address.

Artifacts that a sandbox puts are searched for secrets before they are stored, under the strictest policy of its
sessions. Redaction would change the address, so under ``redact`` an artifact with a secret is refused.

A sandbox may put artifacts, and read those that it has put and those of tool calls and commits of its sessions. Every
read goes through ``_visible``; foreign and missing artifacts are indistinguishable.
"""

from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from types import MappingProxyType
from typing import Any, Final

import msgspec
from anyio.abc import TaskStatus
from blake3 import blake3

from ctxd.artifacts import fsck
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.uploads import Uploads
from ctxd.clock import Clock
from ctxd.commits.artifact_collection import ArtifactCollection, UploadFiles, entities, tags
from ctxd.commits.artifact_secrets import ArtifactSecrets, SearchedArtifact, SecretInArtifact
from ctxd.commits.commit_reads import CommitViewer
from ctxd.errors import CtxdError
from ctxd.objects.document import Artifact, Document, Stored, encode_content
from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.version_state import is_purged
from ctxd.sessions.live_session import Accepted, WriteRequest, again, find_replay, kept_result
from ctxd.sessions.object_reads import Objects
from ctxd.sessions.registry import Sessions
from ctxd.store.purge import ARTIFACT, ARTIFACT_TAG
from ctxd.store.write_types import Pending, Write
from ctxd_protocol.methods import artifacts as wire
from ctxd_protocol.secret_types import SecretPolicy, Secrets

_TAGGED: Final = "tag:"
_ADDRESS_DIGITS: Final = 64
_CANDIDATES: Final = 5
_HOST: Final = ""
_BY_HOST: Final[Mapping[str, str]] = {_HOST: "default"}
_STRONGEST: Final[tuple[wire.ArtifactPolicy, ...]] = ("pin", "default", "ephemeral")
"""Policies, strongest first: of several, the strongest applies."""


class Artifacts:
    """The artifacts of one store. ``bytes_max``: bytes above which the least recently used are collected; 0: no bound.
    ``policy``: the secret policy of sandboxes without a session."""

    def __init__(self, sessions: Sessions, clock: Clock, *, policy: SecretPolicy, bytes_max: int = 0) -> None:
        self._objects = Objects(sessions)
        self._secrets = ArtifactSecrets(sessions, policy)
        self._store = sessions.store
        self._uploads = UploadFiles(Uploads(self._store.root / "artifacts" / "uploads"))
        self.collection = ArtifactCollection(self._store, clock, self._uploads, bytes_max=bytes_max)

    def close(self) -> None:
        """End the processes that search for secrets. Blocks until they have ended."""
        self._secrets.close()

    async def run(self, *, task_status: TaskStatus[None]) -> None:
        """Collect artifacts until cancelled, then end the processes that search."""
        try:
            await self.collection.run(task_status=task_status)
        finally:
            self.close()

    # --- put ---

    async def upload(self, viewer: CommitViewer, params: wire.ArtifactUploadParams) -> wire.ArtifactUploadResult:
        """Write a piece of an upload; without an offset, only return its size.

        Raises: CtxdError ``invalid_params``, ``disk_full``, ``store_failed``. Cancel: the piece may be written.
        """
        name = _upload_name(viewer, params.upload)
        if params.offset is None:
            return wire.ArtifactUploadResult(offset=await self._uploads.run(partial(self._uploads.files.size, name)))
        write = partial(self._uploads.files.write, name, params.offset, params.data)
        return wire.ArtifactUploadResult(offset=await self._uploads.run(write))

    async def put(self, viewer: CommitViewer, params: wire.ArtifactPutParams, call: WriteRequest) -> Accepted:
        """Store bytes, or a complete upload; they are durable when the call returns.

        Raises: CtxdError ``invalid_params``, ``artifact_mismatch``, ``unsupported`` for a secret in a sandbox's
        artifact, and those of the store. Cancel: safe until it is written.
        """
        upload = None if params.upload is None else _upload_name(viewer, params.upload)
        if params.policy == "pin" and viewer.is_confined:
            hint = "Use the policy default; the harness pins artifacts."
            raise CtxdError("invalid_params", "a sandbox cannot pin an artifact", hint=hint, outcome="not_applied")
        if (replayed := await self._replayed_put(call, upload)) is not None:
            return replayed
        if (params.data is None) is (upload is None):
            hint = "Give data, or upload after artifact.upload."
            raise CtxdError("invalid_params", "an artifact is put from data or from an upload", hint=hint)
        searched = await self._searched(viewer, params.data, upload) if viewer.is_confined else None
        given = params.data
        pieces = partial(self._uploads.files.pieces, str(upload))
        held = await self._store.put_artifact(pieces if given is None else given)
        if searched is not None and searched.address != held.ref:
            message, hint = "the upload was changed while it was put", "Send one piece after the other, then put it."
            raise CtxdError("artifact_mismatch", message, hint=hint, outcome="not_applied")
        if params.blake3 not in (None, held.ref):
            if upload is not None and viewer.is_confined:
                # Otherwise it could be searched again and again.
                await self._uploads.run(partial(self._uploads.files.remove, upload))
            message, hint = f"the bytes have the address {held.ref}", "Send them again from offset 0."
            raise CtxdError("artifact_mismatch", message, hint=hint, outcome="not_applied")
        async with self.collection.removing:
            # Another call may have used the same op_id during the search and the writes to the disk.
            if (replayed := await self._replayed_put(call, upload)) is not None:
                return replayed
            marks = {} if searched is None else searched.marks
            result, pending = await self._submit_put(viewer, params, call, held, marks)
        if upload is not None:
            # Remove the upload's file once the artifact is durable.
            if pending is not None:
                await pending.wait()
            await self._uploads.run(partial(self._uploads.files.remove, upload))
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    async def _replayed_put(self, call: WriteRequest, upload: str | None) -> Accepted | None:
        """The stored result of ``call``, or None. Raises: as ``find_replay``."""
        if (replay := await find_replay(self._store, call)) is None:
            return None
        if upload is not None:
            # The first call may have been interrupted before this, or the bytes were uploaded again.
            await self._uploads.run(partial(self._uploads.files.remove, upload))
        return again(replay, wire.ArtifactPutResult)

    async def _searched(self, viewer: CommitViewer, data: bytes | None, upload: str | None) -> SearchedArtifact | None:
        """Search a sandbox's artifact for secrets. An upload that is refused for one is removed."""
        if data is not None:
            return await self._secrets.search(viewer, data)
        try:
            with await self._uploads.run(partial(self._uploads.files.open, str(upload))) as file:
                return await self._secrets.search(viewer, file)
        except SecretInArtifact:
            await self._uploads.run(partial(self._uploads.files.remove, str(upload)))
            raise

    async def _submit_put(
        self,
        viewer: CommitViewer,
        params: wire.ArtifactPutParams,
        call: WriteRequest,
        held: Artifact,
        marks: dict[str, Any],
    ) -> tuple[wire.ArtifactPutResult, Pending | None]:
        known = await self._put(held.ref)
        was = {} if known is None else known.document.payload
        is_host = not viewer.is_confined
        owner = _HOST if is_host else viewer.actor.principal
        owners: dict[str, wire.ArtifactPolicy] = {**was.get("owners", {_HOST: was["policy"]} if was else {})}
        owners[owner] = params.policy or owners.get(owner, "default")
        policy = min(owners.values(), key=_STRONGEST.index)
        # The result for a sandbox does not depend on artifacts put by others.
        media_type = (params.media_type if is_host or not was else None) or was.get("media_type")
        shown = policy if is_host else owners[owner]
        result = wire.ArtifactPutResult(artifact=held.ref, size=held.size, policy=shown, receipt=None)
        marks = marks or {name: was[name] for name in ("secrets",) if name in was}
        document = _artifact_document(held, policy, media_type, owners, marks)
        if known is None:
            self.collection.note_added(held.size)
        else:
            self.collection.note_use(held.ref)
            if was == document.payload:
                return result, None
        return result, self._submit(call, result, document)

    async def _put(self, ref: str) -> Stored | None:
        """The newest version of the put artifact ``ref``; None if it was never put, or was purged."""
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

    async def get(self, viewer: CommitViewer, params: wire.ArtifactGetParams) -> wire.ArtifactGetResult:
        """Return a piece of an artifact. Raises: CtxdError ``artifact_not_found``, ``ambiguous_id``."""
        ref = await self._visible(viewer, params.artifact)
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
        self.collection.note_use(ref)
        next_offset = end if end < size else None
        return wire.ArtifactGetResult(artifact=ref, size=size, offset=params.offset, data=data, next_offset=next_offset)

    async def _visible(self, viewer: CommitViewer, given: str) -> str:
        """The address of the artifact ``given``, whose bytes ``viewer`` may read.

        A sandbox cannot use abbreviations, whose errors list other artifacts, nor read versions of files here:
        object.get decides which of those it may see. Raises: CtxdError artifact_not_found, in a sandbox also for a
        foreign one; ambiguous_id.
        """
        if not viewer.is_confined:
            return await self.address(given)
        if not given.startswith(_TAGGED) and len(given) != _ADDRESS_DIGITS:
            raise _not_found(given)
        ref = await self.address(given)
        ids = await self._store.referring(ref) if given == ref or given.startswith(_TAGGED) else []
        calls: list[str] = []
        for id, head in (await self._store.heads(ids)).items():
            if head is None:
                continue
            if head.document.type == "toolcall":
                calls.append(id)
            elif id.startswith(ARTIFACT) and viewer.actor.principal in head.document.payload.get("owners", ()):
                return ref
            elif id.startswith(COMMIT_PREFIX) and viewer.owns(head):
                return ref
        for session in viewer.sessions or () if calls else ():
            with suppress(CtxdError):
                if any(map((await self._objects.viewer(session, confined=True)).holds, calls)):
                    return ref
        raise _not_found(given)

    async def _inline(self, ref: str) -> bytes | None:
        """The bytes of ``ref``, which is not in the artifact store, from the database; None if no version has them."""
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
            raise CtxdError("invalid_params", f"{given!r} is not the address of an artifact", hint=hint)
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

    async def stat(self, params: wire.ArtifactParams) -> wire.ArtifactStatResult:
        """Return the metadata of an artifact. Raises: as ``get``."""
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
            tags=tuple(tag for tag, target in (await tags(self._store)).items() if target == ref),
            references=len({*referring} - {ARTIFACT + ref}),
            secrets=msgspec.convert(payload.get("secrets"), Secrets | None),
        )

    async def list(self, params: wire.ArtifactListParams) -> wire.ArtifactListResult:
        """Return a page of the artifacts that were put, by address."""
        named: dict[str, list[str]] = {}
        for tag, target in (await tags(self._store)).items():
            named.setdefault(target, []).append(tag)
        found: list[wire.ArtifactListItem] = []
        async for stored in entities(self._store, ARTIFACT, after=params.cursor):
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
                    tags=tuple(named.get(ref, ())),
                )
            )
        return wire.ArtifactListResult(artifacts=tuple(found), next_cursor=None)

    # --- tags ---

    async def tag(self, params: wire.ArtifactTagParams, call: WriteRequest) -> Accepted:
        """Set a tag to an artifact, or delete it.

        Raises: CtxdError ``tag_moved``; as ``get``; those of the store. Cancel: safe until it is written.
        """
        if (replay := await find_replay(self._store, call)) is not None:
            return again(replay, wire.ArtifactTagResult)
        held = None
        if params.artifact is not None:
            held = await self._held(await self.address(params.artifact))
        async with self.collection.removing:
            if (replay := await find_replay(self._store, call)) is not None:
                return again(replay, wire.ArtifactTagResult)
            result, pending = await self._submit_tag(params, call, held)
        return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))

    async def _submit_tag(
        self, params: wire.ArtifactTagParams, call: WriteRequest, held: Artifact | None
    ) -> tuple[wire.ArtifactTagResult, Pending | None]:
        known = None if held is None else await self._put(held.ref)
        previous = await self._tagged(params.tag)
        if params.expected is not None and params.expected != (previous or ""):
            message = f"tag {params.tag} names {previous or 'no artifact'}, not {params.expected or 'nothing'}"
            hint = "Read the tag again, and pass its current address as expected."
            raise CtxdError("tag_moved", message, hint=hint, outcome="not_applied")
        ref = None if held is None else held.ref
        result = wire.ArtifactTagResult(tag=params.tag, artifact=ref, previous=previous, receipt=None)
        if ref == previous:
            return result, None
        if held is None:
            return result, self._submit(call, result, deletes=(ARTIFACT_TAG + params.tag,))
        self.collection.note_tagged(held.ref)
        # Content that is not a put artifact yet becomes one, so that the tag keeps it.
        puts = () if known is not None else (_artifact_document(held, "default", None),)
        return result, self._submit(call, result, *puts, _document(ARTIFACT_TAG + params.tag, {"artifact": held.ref}))

    async def _held(self, ref: str) -> Artifact:
        if await self._store.read_artifacts(lambda artifacts: artifacts.holds(ref)):
            return await self._store.hold_artifact(ref)
        # Content in the database becomes an artifact.
        inline = await self._inline(ref)
        if inline is None:
            raise _not_found(ref)
        return await self._store.put_artifact(inline)

    async def _tagged(self, name: str) -> str | None:
        stored = (await self._store.heads((ARTIFACT_TAG + name,)))[ARTIFACT_TAG + name]
        return None if stored is None else str(stored.document.payload["artifact"])

    # --- verification ---

    async def fsck(self, params: wire.ArtifactFsckParams) -> wire.ArtifactFsckResult:
        """Verify a page of artifacts, and return the damaged ones."""
        found = await self._store.read_artifacts(lambda artifacts: fsck.page(artifacts, params.cursor, params.limit))
        return wire.ArtifactFsckResult(
            checked=found.checked,
            checked_bytes=found.checked_bytes,
            damaged=tuple(wire.DamagedArtifact(artifact=ref, fault=fault) for ref, fault in found.damaged),
            faults=tuple(found.faults),
            next_cursor=found.cursor,
        )


def _not_found(given: str) -> CtxdError:
    hint = "artifact.list lists the stored artifacts and their tags; an address has 64 hex digits."
    return CtxdError("artifact_not_found", f"there is no artifact {given}", hint=hint, outcome="not_applied")


def _upload_name(viewer: CommitViewer, upload: str) -> str:
    """The name under which an upload is kept; each sandbox has its own namespace."""
    if not viewer.is_confined:
        return upload
    return f"{blake3(viewer.actor.principal.encode()).hexdigest()}+{upload}"


def _artifact_document(
    held: Artifact,
    policy: str,
    media_type: str | None,
    owners: Mapping[str, str] = _BY_HOST,
    marks: Mapping[str, Any] = MappingProxyType({}),
) -> Document:
    """The document of a put artifact. ``owners``: the policy given by each that put it, a sandbox by its principal.
    ``marks``: the payload's fields for secrets."""
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
        # The bytes have a hash of their own, and may not fit in memory.
        content_hash=content_hash(payload, None),
        payload=payload,
    )
