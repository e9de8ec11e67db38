"""Methods ``artifact.*``: bytes of any size by their address, tags on them, and their collection."""

from typing import Annotated, Literal

import msgspec

from ctxd_protocol.ids import OpIdText
from ctxd_protocol.methods.declaration import Method, Milliseconds, PageSize, Params, Result
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import Secrets

ArtifactText = Annotated[str, msgspec.Meta(min_length=4, max_length=140)]
"""An artifact: the 64 hex digits of its BLAKE3, at least the first 4 of them, or ``tag:`` and the name of a tag."""

AddressText = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
TagText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$(?!\n)")]
UploadText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,64}$(?!\n)")]
MediaTypeText = Annotated[str, msgspec.Meta(min_length=1, max_length=200)]

ArtifactPolicy = Literal["default", "pin", "ephemeral"]
"""``pin``: never collected. ``default``, ``ephemeral``: collected once nothing refers to them, ``ephemeral`` first."""

PIECE_BYTES_MAX = 4 * 1024 * 1024
"""Bytes of one piece of an upload or a download."""


class ArtifactUploadParams(Params, frozen=True, kw_only=True):
    """A piece of an upload in base64, and its offset; without ``offset`` nothing is written.

    The caller names the upload. Acknowledged bytes are on disk: after a lost connection or a restart, request the
    offset and continue there.
    """

    upload: UploadText
    offset: Annotated[int, msgspec.Meta(ge=0)] | None = None
    data: bytes = b""


class ArtifactUploadResult(Result, frozen=True, kw_only=True):
    """The number of bytes received, which is the offset of the next piece."""

    offset: int


class ArtifactPutParams(Params, frozen=True, kw_only=True):
    """Either ``data`` in base64 or a complete ``upload``, which this call ends.

    ``policy``: by default the artifact's current one, and ``default`` for a new artifact. ``blake3``: the address that
    the bytes must have.
    """

    data: bytes | None = None
    upload: UploadText | None = None
    policy: ArtifactPolicy | None = None
    media_type: MediaTypeText | None = None
    blake3: AddressText | None = None
    op_id: OpIdText | None = None


class ArtifactPutResult(Result, frozen=True, kw_only=True):
    """The address of the artifact, its size in bytes, and its policy; no ``receipt`` if nothing had to be written."""

    artifact: str
    size: int
    policy: ArtifactPolicy
    receipt: Receipt | None


class ArtifactGetParams(Params, frozen=True, kw_only=True):
    """An artifact, and the part of it to read."""

    artifact: ArtifactText
    offset: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES_MAX)] = 1024 * 1024


class ArtifactGetResult(Result, frozen=True, kw_only=True):
    """A part of an artifact in base64; no ``next_offset`` at its end."""

    artifact: str
    size: int
    offset: int
    data: bytes
    next_offset: int | None


class ArtifactParams(Params, frozen=True, kw_only=True):
    """An artifact."""

    artifact: ArtifactText


class ArtifactStatResult(Result, frozen=True, kw_only=True):
    """One artifact. ``created_at``: milliseconds since 1970, None for bytes that were not put as an artifact.

    ``references``: number of objects, commits and other entities with a version that has these bytes. An artifact with
    a reference, a tag, or the policy ``pin`` is not collected. ``secrets``: those found in an artifact that a sandbox
    put, None without any.
    """

    artifact: str
    size: int
    policy: ArtifactPolicy | None
    media_type: str | None
    created_at: int | None
    tags: tuple[str, ...]
    references: int
    secrets: Secrets | None


class ArtifactListParams(Params, frozen=True, kw_only=True):
    """A page of the artifacts that were put, in order of address."""

    limit: PageSize = 100
    cursor: AddressText | None = None


class ArtifactListItem(msgspec.Struct, frozen=True, kw_only=True):
    """One artifact of a list."""

    artifact: str
    size: int
    policy: ArtifactPolicy
    created_at: int
    tags: tuple[str, ...]


class ArtifactListResult(Result, frozen=True, kw_only=True):
    """One page; no ``next_cursor`` at the end."""

    artifacts: tuple[ArtifactListItem, ...]
    next_cursor: str | None


class ArtifactTagParams(Params, frozen=True, kw_only=True):
    """A tag, and its new artifact; without ``artifact`` the tag is removed.

    ``expected``: the full address that the tag must have now, or an empty text if it must not exist; by default any.
    """

    tag: TagText
    artifact: ArtifactText | None = None
    expected: Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{64})?$(?!\n)")] | None = None
    op_id: OpIdText | None = None


class ArtifactTagResult(Result, frozen=True, kw_only=True):
    """The tag's artifact, and its previous one; no ``receipt`` if both are the same."""

    tag: str
    artifact: str | None
    previous: str | None
    receipt: Receipt | None


class ArtifactGcParams(Params, frozen=True, kw_only=True):
    """The extent of a collection: unreferenced artifacts older than ``grace_ms``, ``ephemeral`` ones first, then in
    order of least recent use.

    ``max_bytes``: stop once at most this many bytes of artifacts are left. ``dry_run``: list them, remove nothing.
    """

    grace_ms: Milliseconds = 3_600_000
    max_bytes: Annotated[int, msgspec.Meta(ge=0)] | None = None
    dry_run: bool = False


class ArtifactGcResult(Result, frozen=True, kw_only=True):
    """Report of a collection: the removed artifacts, their bytes, and the bytes of the remaining ones.

    ``more``: the call removed the maximum of a thousand; send it again.
    """

    removed: tuple[str, ...]
    removed_bytes: int
    left_bytes: int
    more: bool


class ArtifactFsckParams(Params, frozen=True, kw_only=True):
    """The page to check: artifacts are read and compared with their addresses, then each pack and the index."""

    limit: PageSize = 100
    cursor: Annotated[str, msgspec.Meta(min_length=1, max_length=100)] | None = None


class DamagedArtifact(msgspec.Struct, frozen=True, kw_only=True):
    """An artifact whose bytes are damaged or missing, and the fault."""

    artifact: str
    fault: str


class ArtifactFsckResult(Result, frozen=True, kw_only=True):
    """Findings in one page: number of ``checked`` artifacts, which were read whole, and their ``checked_bytes``; the
    ``damaged`` ones; ``faults`` of packs and index. A page reads some 64 MiB."""

    checked: int
    checked_bytes: int
    damaged: tuple[DamagedArtifact, ...]
    faults: tuple[str, ...]
    next_cursor: str | None


ROWS = (
    Method(
        name="artifact.upload",
        params=ArtifactUploadParams,
        result=ArtifactUploadResult,
        access="record",
        takes_bytes=True,
        summary="Send a piece of a long artifact, or get the number of bytes received so far.",
        description="End it with ``artifact.put``. An upload that gets no piece for a day is removed.",
        errors=("upload_offset_mismatch", "disk_full"),
        example={"upload": "backup-1", "offset": 0, "data": "dGV4dA=="},
        shows=".offset",
    ),
    Method(
        name="artifact.put",
        params=ArtifactPutParams,
        result=ArtifactPutResult,
        access="record",
        writes=True,
        summary="Store bytes of any size under their BLAKE3 hash.",
        description="Equal chunks of all artifacts are stored once, compressed if that makes them smaller. A sandbox "
        "cannot pin an artifact; under the ``redact`` policy its artifacts with a secret are refused.",
        errors=("upload_offset_mismatch", "artifact_mismatch", "unsupported"),
        example={"data": "dGV4dA=="},
        shows=".artifact",
    ),
    Method(
        name="artifact.get",
        params=ArtifactGetParams,
        result=ArtifactGetResult,
        access="read",
        summary="Read an artifact, or a part of it.",
        description="Content of 1 MiB and less that was not put as an artifact is read by its whole address. A sandbox "
        "reads, by whole addresses and tags, the artifacts that it has put and those of tool calls and commits of its "
        "sessions.",
        errors=("artifact_not_found", "ambiguous_id"),
        example={"artifact": "tag:latest"},
        shows=".data",
    ),
    Method(
        name="artifact.stat",
        params=ArtifactParams,
        result=ArtifactStatResult,
        access="host",
        summary="Show the size, policy, tags and references of an artifact.",
        errors=("artifact_not_found", "ambiguous_id"),
        example={"artifact": "tag:latest"},
        shows=".size",
    ),
    Method(
        name="artifact.list",
        params=ArtifactListParams,
        result=ArtifactListResult,
        access="host",
        summary="List the artifacts that were put.",
        example={},
        shows=".artifacts",
    ),
    Method(
        name="artifact.tag",
        params=ArtifactTagParams,
        result=ArtifactTagResult,
        access="host",
        writes=True,
        summary="Name an artifact, if the name is free or refers to the expected artifact.",
        errors=("artifact_not_found", "ambiguous_id", "tag_moved"),
        example={"tag": "latest", "artifact": "tag:latest"},
        shows=".artifact",
    ),
    Method(
        name="artifact.gc",
        params=ArtifactGcParams,
        result=ArtifactGcResult,
        access="host",
        summary="Remove artifacts that nothing refers to.",
        description="An artifact stays while a version of anything has its bytes, a tag names it, or it is pinned.",
        example={"dry_run": True},
        shows=".removed",
    ),
    Method(
        name="artifact.fsck",
        params=ArtifactFsckParams,
        result=ArtifactFsckResult,
        access="host",
        summary="Compare every stored byte of artifacts with its hash.",
        example={},
        shows=".damaged",
    ),
)
