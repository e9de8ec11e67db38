"""Methods ``commit.*``: an agent's understanding as a chain of commits (spec 3), each with the delta to its parent.

A commit and its delta never change; only its summary and its tags do. A connection of a sandbox sees the commits of its
own sessions, ancestors included; to it, no other commit exists.
"""

from base64 import b64encode
from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.ids import STOP_PATTERN, OpIdText, SessionIdText
from ctxd_protocol.limits import PAGE_ITEMS_MAX, SAFE_INTEGER_MAX
from ctxd_protocol.methods.artifacts import PIECE_BYTES_MAX, ArtifactText
from ctxd_protocol.methods.declaration import Method, Milliseconds, PageSize, Params, PathText, Result
from ctxd_protocol.object_types import Receipt

CommitType = Literal["delta", "compaction", "snapshot"]
"""Content of a commit. ``delta``: the entries since its parent. ``compaction``: a summary that replaces everything
before it. ``snapshot``: the whole context up to it."""

Checkpoint = Literal["turn_boundary", "tool_call", "compaction", "session_end", "explicit"]
"""Trigger of a commit."""

CommitIdText = Annotated[str, msgspec.Meta(pattern=r"^ctx-[0-9a-f]{8,64}$(?!\n)")]
FormatText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+/-]{0,63}$(?!\n)")]
TagText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$(?!\n)")]
NameText = Annotated[str, msgspec.Meta(max_length=256)]
SummaryText = Annotated[str, msgspec.Meta(max_length=65_536)]
Count = Annotated[int, msgspec.Meta(ge=0, le=10**12)]

IMPORTED_DELTAS_MAX: Final = 1_000
"""Deltas of one import, which are committed in one write."""


class Commit(msgspec.Struct, frozen=True, kw_only=True):
    """A context commit.

    ``parent``: None for a root. ``artifact_ref``: the BLAKE3 of its content, None once that is purged. ``principal``
    and ``machine``: its origin, as determined by the daemon; ``machine`` is shown on the host only. ``created_at``: ISO
    8601 in whole seconds, as it is part of the id; ``created_at_ms``: the exact instant in ms since 1970. ``depth``:
    the number of its ancestors. ``version``: that of its writer's rules. ``tx``: the journal sequence.
    """

    commit: str
    parent: str | None
    commit_type: str
    artifact_ref: str | None
    format: str
    template: str
    principal: str
    machine: str
    session: str | None
    checkpoint: str
    ticket_id: str
    thread_id: str
    summary: str
    tags: tuple[str, ...]
    message_count: int
    token_count: int
    depth: int
    created_at: str
    created_at_ms: int
    version: int
    tx: int


class CheckpointParams(Params, frozen=True, kw_only=True):
    """A commit: its parent, and its delta.

    ``parent``: a commit; without it the new commit is a root. Exactly one delta is given, in the form of ``format``:
    ``delta`` is text, ``delta_base64`` is bytes, ``artifact`` refers to bytes of any size that ``artifact.put`` has
    stored, by their address, its first digits or ``tag:`` and a tag, on the host only. The artifact itself is not
    changed: if it contains a secret, the policy ``redact`` keeps a redacted copy.
    ``checkpoint``: the trigger. ``message_count`` and ``token_count``: by default counted and estimated.
    ``valid_time``: the time at which an imported commit was made, in ms since 1970; on the host only. The daemon itself
    determines principal, machine and time.
    """

    format: FormatText
    delta: str | None = None
    session: SessionIdText | None = None
    parent: CommitIdText | None = None
    commit_type: CommitType = "delta"
    checkpoint: Checkpoint = "explicit"
    delta_base64: str | None = None
    template: NameText = ""
    ticket_id: NameText = ""
    thread_id: NameText = ""
    summary: SummaryText = ""
    message_count: Count | None = None
    token_count: Count | None = None
    valid_time: Milliseconds | None = None
    op_id: OpIdText | None = None
    artifact: ArtifactText | None = None


class ImportedDelta(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A delta of ``size`` bytes that became known to an agent at ``valid_time``, in ms since 1970; by default now.

    Its parent is the commit ``parent``, or ``after``, an earlier delta of the same call by its number from 0; without
    either it is a root. The other fields are those of ``commit.checkpoint``.
    """

    size: Annotated[int, msgspec.Meta(ge=1)]
    parent: CommitIdText | None = None
    after: Annotated[int, msgspec.Meta(ge=0, lt=IMPORTED_DELTAS_MAX)] | None = None
    commit_type: CommitType = "delta"
    checkpoint: Checkpoint = "explicit"
    thread_id: NameText = ""
    summary: SummaryText = ""
    message_count: Count | None = None
    token_count: Count | None = None
    valid_time: Milliseconds | None = None


class CommitImportParams(Params, frozen=True, kw_only=True):
    """Deltas of a session, at most 1,000, all in the form of ``format``.

    ``content_base64``: the concatenated bytes of all of them, at most 16 MiB; with ``compression``, one Zstandard frame
    that holds them.
    """

    session: SessionIdText
    format: FormatText
    content_base64: bytes
    deltas: Annotated[tuple[ImportedDelta, ...], msgspec.Meta(min_length=1, max_length=IMPORTED_DELTAS_MAX)]
    compression: Literal["zstd"] | None = None


class CommitImportResult(Result, frozen=True, kw_only=True):
    """The commit of each delta, in order, and the number of new ones; no ``receipt`` without new ones."""

    commits: tuple[str, ...]
    made: int
    receipt: Receipt | None


class CommitResult(Result, frozen=True, kw_only=True):
    """The commit; no ``receipt`` if nothing had to be written."""

    commit: Commit
    receipt: Receipt | None


class CommitParams(Params, frozen=True, kw_only=True):
    """A commit by its id."""

    commit: CommitIdText


class CommitShowParams(CommitParams, frozen=True, kw_only=True):
    """A commit as of ``valid_time`` and journal sequence ``tx``, by default as it is now."""

    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None


class CommitShowResult(Result, frozen=True, kw_only=True):
    """The commit, and the ids of its children, oldest first; at most 1,000."""

    commit: Commit
    children: tuple[str, ...]


class CommitHistoryParams(Params, frozen=True, kw_only=True):
    """A commit, and the number of commits to return, from it back through its ancestors."""

    commit: CommitIdText
    depth: PageSize = 100


class CommitHistoryResult(Result, frozen=True, kw_only=True):
    """The commits from the requested one back towards the root. ``next_commit``: the parent of the last one, for the
    next call; None at the root."""

    commits: tuple[Commit, ...]
    next_commit: str | None


class CommitListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold, and a page.

    ``parent``: only its children. ``tips``: only commits without children. ``without_summary``: only commits without
    one. ``cursor``: ``next_cursor`` of the previous page. ``oldest_first``: the reverse order, in which every page but
    an empty one has a ``next_cursor``, which leads to later commits.
    """

    session: SessionIdText | None = None
    principal: NameText | None = None
    tag: TagText | None = None
    parent: CommitIdText | None = None
    tips: bool = False
    without_summary: bool = False
    cursor: Annotated[str, msgspec.Meta(max_length=64)] | None = None
    limit: PageSize = 100
    oldest_first: bool = False


class CommitListResult(Result, frozen=True, kw_only=True):
    """The commits, newest first unless ``oldest_first`` was given. ``more``: the next page has commits already."""

    commits: tuple[Commit, ...]
    next_cursor: str | None
    more: bool


CommitIds = Annotated[tuple[CommitIdText, ...], msgspec.Meta(min_length=1, max_length=PAGE_ITEMS_MAX)]


class CommitDeltasParams(Params, frozen=True, kw_only=True):
    """The commits whose deltas to read."""

    commits: CommitIds


class CommitDelta(msgspec.Struct, frozen=True, kw_only=True):
    """A commit's own delta: its format, its ``size`` in bytes, and its ``data`` in base64.

    ``artifact_ref``: its address, None if it was purged. ``data`` is also None for a delta longer than 4 MiB, which
    ``artifact.get`` reads in pieces by its address.
    """

    commit: str
    format: str
    artifact_ref: str | None
    size: int
    data: bytes | None


class CommitDeltasResult(Result, frozen=True, kw_only=True):
    """The deltas of the first of the requested commits, in order: as many as fit in 4 MiB, and at least one. Request
    the others again."""

    deltas: tuple[CommitDelta, ...]


class CommitDiscardParams(Params, frozen=True, kw_only=True):
    """The commits whose deltas and summaries to erase."""

    commits: CommitIds


class CommitDiscardResult(Result, frozen=True, kw_only=True):
    """The number of commits that still had content."""

    discarded: int


class CommitAnnotateParams(CommitParams, frozen=True, kw_only=True):
    """A commit and its new summary; an empty one removes it."""

    summary: SummaryText
    op_id: OpIdText | None = None


class CommitTagParams(CommitParams, frozen=True, kw_only=True):
    """A commit and a tag.

    ``remove``: remove the tag. ``expected``: the commit that must have the tag now, empty if it must not exist; without
    it, the tag is moved from any commit.
    """

    tag: TagText
    remove: bool = False
    expected: Annotated[str, msgspec.Meta(pattern=r"^(ctx-[0-9a-f]{8,64})?$(?!\n)")] | None = None
    op_id: OpIdText | None = None


class CommitResolveParams(Params, frozen=True, kw_only=True):
    """A principal, and an instant, by default now.

    ``principal``: by default the caller; with ``session`` any. ``at``: ISO 8601 with an offset or ``Z``. ``session``
    and ``template``: only their commits. A session without such commits has those of the chain that it began with.
    ``turn``: only commits without content after this turn of ``session``. ``assembly``: only commits that precede this
    assembly of ``session`` in the journal, whatever their times.
    """

    principal: NameText | None = None
    at: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None
    session: SessionIdText | None = None
    template: NameText | None = None
    turn: Annotated[int, msgspec.Meta(ge=0, le=SAFE_INTEGER_MAX)] | None = None
    assembly: Annotated[int, msgspec.Meta(ge=1, le=SAFE_INTEGER_MAX)] | None = None


class CommitResolveResult(Result, frozen=True, kw_only=True):
    """The newest commit at or before the instant; of commits at the same time, the one written last. None without
    one."""

    commit: Commit | None


class CommitMaterializeParams(Params, frozen=True, kw_only=True):
    """A commit, and the end of its chain.

    Without ``commit`` the result is the empty context. ``stop``: ``compaction`` ends the chain at the nearest
    compaction or snapshot, ``root`` at the root, and the id of an ancestor at that commit. ``format``: by default that
    of the oldest content; content in other formats is translated to it; ``narrative-v1`` is readable text. ``content``:
    False for the counts alone. ``limit``: at most this many bytes of the content, from ``offset`` on; without it the
    whole content, which is refused if it is too large for one reply. ``descriptor``, which ``ctxd_client`` sets
    itself: True if the connection accepts a long whole content as a file, whose descriptor is passed with the reply.
    """

    commit: CommitIdText | None = None
    stop: Annotated[str, msgspec.Meta(pattern=STOP_PATTERN)] = "compaction"
    format: FormatText | None = None
    content: bool = True
    offset: Annotated[int, msgspec.Meta(ge=0, le=SAFE_INTEGER_MAX)] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=PIECE_BYTES_MAX)] | None = None
    descriptor: bool = False


class StartContext(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """The context that a session continues: exactly one of ``commit``, ``session`` and ``principal``.

    ``session``: as it is now, or as of ``valid_time`` or the journal sequence ``tx``. ``principal``: its newest commit,
    of the template ``agent`` if that is given, after new content of its newest session has been committed; empty for
    the caller. ``project``: with ``principal``, an absolute path of the host: only work in listed sessions of the
    project there.
    """

    commit: CommitIdText | None = None
    session: SessionIdText | None = None
    principal: NameText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    project: PathText | None = None


class LostPart(msgspec.Struct, frozen=True):
    """A kind of part of a conversation that a format cannot represent, and the number of its occurrences."""

    part: str
    times: int


class CommitMaterializeResult(Result, frozen=True, kw_only=True):
    """A context: the agent's knowledge at the commit.

    ``tier``: ``native``, ``fields`` (translated part by part), ``narrative`` (readable text) or ``raw``, the lowest
    that any delta required; ``lost``: the parts that the content lacks. ``format``: that of the content.
    ``content`` is text, ``content_base64`` is bytes; one of them is set if content was requested. ``artifact_ref``: the
    BLAKE3 of the content; ``size``: its bytes. ``stop``: the oldest commit of the chain, None for the empty context.
    ``commit_count``: number of commits in the chain; ``message_count`` and ``token_count``: those of the deltas in the
    content; ``chain_message_count``: that of the whole chain. ``cached``: an earlier call computed the result.
    With ``limit`` the piece is in ``content_base64``; ``next_offset``: the offset of the next one, None at the end. All
    pieces are of the same content as long as ``artifact_ref`` is the same. ``descriptor``: the name of the content
    member that is passed as a file of ``size`` bytes instead; the file's descriptor arrives as ancillary data
    (SCM_RIGHTS) with the first byte of this line.
    """

    commit: str | None
    stop: str | None
    format: str | None
    tier: Literal["native", "fields", "narrative", "raw"]
    lost: tuple[LostPart, ...]
    artifact_ref: str | None
    size: int
    commit_count: int
    message_count: int
    token_count: int
    chain_message_count: int
    cached: bool
    content: str | None = None
    content_base64: str | None = None
    next_offset: int | None = None
    descriptor: Literal["content", "content_base64"] | None = None


_FOUND: Final = ("session_not_found", "commit_not_found")
_DELTA: Final = '{"type":"user","message":{"content":"Why does the test fail?"}}\n'
_EXAMPLE: Final[dict[str, Any]] = {"commit": "ctx-9d216d08"}

ROWS: Final = (
    Method(
        name="commit.checkpoint",
        params=CheckpointParams,
        result=CommitResult,
        access="record",
        writes=True,
        summary="Commit the events since an agent's last commit.",
        description="The same delta after the same parent within one second is one commit.",
        errors=(
            *_FOUND,
            "session_removed",
            "artifact_not_found",
            "ambiguous_id",
            "session_owned_elsewhere",
            "unsupported",
        ),
        example={"session": "s1", "format": "claude-code-v1", "delta": _DELTA},
        shows=".commit.commit",
        positional=("delta",),
    ),
    Method(
        name="commit.import",
        params=CommitImportParams,
        result=CommitImportResult,
        access="host",
        writes=True,
        summary="Commit many existing deltas in one write.",
        description="A repeated call writes nothing: the same delta in the same thread after the same parent is one "
        "commit, whenever it is imported.",
        errors=(*_FOUND, "session_removed", "session_owned_elsewhere", "unsupported"),
        example={
            "session": "s1",
            "format": "claude-code-v1",
            "content_base64": b64encode(_DELTA.encode()).decode(),
            "deltas": [{"size": len(_DELTA), "valid_time": 1767323045000}],
        },
        shows=".commits",
    ),
    Method(
        name="commit.show",
        params=CommitShowParams,
        result=CommitShowResult,
        access="read",
        summary="Get a commit.",
        errors=("commit_not_found",),
        example=_EXAMPLE,
    ),
    Method(
        name="commit.history",
        params=CommitHistoryParams,
        result=CommitHistoryResult,
        access="read",
        summary="Get a commit and its ancestors.",
        errors=("commit_not_found",),
        example=_EXAMPLE,
    ),
    Method(
        name="commit.list",
        params=CommitListParams,
        result=CommitListResult,
        access="read",
        summary="List commits, newest first.",
        errors=_FOUND,
        example={"session": "s1"},
        shows=".commits",
    ),
    Method(
        name="commit.deltas",
        params=CommitDeltasParams,
        result=CommitDeltasResult,
        access="read",
        summary="Read the deltas of many commits at once, each as it was committed.",
        errors=("commit_not_found",),
        example={"commits": ["ctx-9d216d08"]},
        shows=".deltas",
    ),
    Method(
        name="commit.discard",
        params=CommitDiscardParams,
        result=CommitDiscardResult,
        access="host",
        summary="Erase the deltas and summaries of commits that are no longer needed.",
        description="The commits keep their places in their chains, as purged ones do. Text that another entity shares"
        " is kept; ``object.purge`` erases a text everywhere. Discarding a commit again changes nothing.",
        errors=(
            "commit_not_found",
            "store_failed",
            "store_unavailable",
            "store_backlog_full",
            "disk_full",
            "data_loss",
        ),
        example={"commits": ["ctx-9d216d08"]},
        shows=".discarded",
    ),
    Method(
        name="commit.annotate",
        params=CommitAnnotateParams,
        result=CommitResult,
        access="record",
        writes=True,
        summary="Set the summary of a commit.",
        errors=("commit_not_found", "unsupported"),
        example={"commit": "ctx-9d216d08", "summary": "The parser drops the last line."},
    ),
    Method(
        name="commit.tag",
        params=CommitTagParams,
        result=CommitResult,
        access="record",
        writes=True,
        summary="Tag a commit: a tag names at most one commit of a principal and session.",
        errors=("commit_not_found", "tag_conflict", "unsupported"),
        example={"commit": "ctx-9d216d08", "tag": "before-refactoring"},
    ),
    Method(
        name="commit.resolve",
        params=CommitResolveParams,
        result=CommitResolveResult,
        access="read",
        summary="Find the newest commit of a principal or of a session at a moment.",
        errors=("session_not_found", "commit_not_found", "turn_not_found", "assembly_not_found"),
        example={"at": "2026-05-01T12:00:00Z"},
    ),
    Method(
        name="commit.materialize",
        params=CommitMaterializeParams,
        result=CommitMaterializeResult,
        access="read",
        summary="Get the context of a commit: the concatenated deltas of its chain.",
        errors=("commit_not_found", "disk_full", "purged", "too_large", "unsupported"),
        example=_EXAMPLE,
        positional=("commit",),
    ),
)
