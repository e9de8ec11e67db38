"""Methods ``object.*``: versions, listings, purges, and scans for stored secrets."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.ids import ObjectIdText, OpIdText, SessionIdText
from ctxd_protocol.limits import PAGE_ITEMS_MAX, PATHS_MAX
from ctxd_protocol.methods.declaration import Method, Milliseconds, PageSize, Params, Result
from ctxd_protocol.object_types import ObjectType, ObjectVersion, Receipt, VersionRow
from ctxd_protocol.secret_types import SecretFound
from ctxd_protocol.session_types import ContextLevel


class ObjectGetParams(Params, frozen=True, kw_only=True):
    """An object and a point in time.

    Without ``valid_time`` and ``tx``, the newest version is returned. With ``session``, ``object`` may be a unique
    prefix of at least 8 characters, and display paths are the session's.
    """

    object: ObjectIdText
    session: SessionIdText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    content: bool = True


class ObjectGetResult(Result, frozen=True, kw_only=True):
    """One version."""

    object: ObjectVersion


class ObjectBulkParams(Params, frozen=True, kw_only=True):
    """Objects by their full ids, with session and times as in ``object.get``."""

    objects: Annotated[tuple[ObjectIdText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    session: SessionIdText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    content: bool = False


class ObjectBulkResult(Result, frozen=True, kw_only=True):
    """The versions found; ``missing`` lists the ids without a version at those times."""

    objects: tuple[ObjectVersion, ...]
    missing: tuple[str, ...]


class ObjectHistoryParams(Params, frozen=True, kw_only=True):
    """An object and a range of its history.

    ``corrections``: include versions that a later transaction replaced at the same valid time. With ``session``,
    ``object`` may be a unique prefix.
    """

    object: ObjectIdText
    session: SessionIdText | None = None
    order: Literal["asc", "desc"] = "asc"
    corrections: bool = False
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limit: PageSize = 100
    cursor: str | None = None


class ObjectHistoryResult(Result, frozen=True, kw_only=True):
    """Versions in the requested order; no ``next_cursor`` at the end."""

    versions: tuple[VersionRow, ...]
    next_cursor: str | None


class ObjectListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold.

    ``level`` needs a ``session``.
    """

    session: SessionIdText | None = None
    type: ObjectType | None = None
    level: ContextLevel | None = None
    limit: PageSize = 100
    cursor: str | None = None


class ObjectListItem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an object listing.

    ``level`` and ``pinned`` are only meaningful within a session. ``secrets``: the rules that matched at capture.
    """

    object: str
    type: ObjectType
    state: str
    label: str
    char_count: int | None
    level: ContextLevel | None
    pinned: bool
    secrets: tuple[str, ...] = ()


class ObjectListResult(Result, frozen=True, kw_only=True):
    """One page; no ``next_cursor`` at the end."""

    objects: tuple[ObjectListItem, ...]
    next_cursor: str | None


class ObjectSessionsParams(Params, frozen=True, kw_only=True):
    """An object by its full id."""

    object: ObjectIdText


class ObjectSessionsResult(Result, frozen=True, kw_only=True):
    """The ids of the sessions whose index has the object."""

    sessions: tuple[str, ...]


class ObjectPurgeParams(Params, frozen=True, kw_only=True):
    """A file, tool call, system prompt or chat, by its full id.

    ``turns``: only these turns of a chat; by default all of it. ``dry_run``: only return ``sessions``.
    """

    object: ObjectIdText
    turns: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=PAGE_ITEMS_MAX)] | None = (
        None
    )
    op_id: OpIdText | None = None
    dry_run: bool = False


class ObjectPurgeResult(Result, frozen=True, kw_only=True):
    """Report of a purge.

    ``objects``: the purged objects, which are the requested one and every other with the same text; in a chat, every
    message of the requested turns, and every other with the same text, is purged. With a tool call, messages of its
    session that contain its text or its arguments are purged, and so is everything that imported commits of its session
    have under its id; chats of sessions without a common beginning are unchanged. ``versions``:
    number of purged versions; ``texts``: number of purged texts and messages. ``complete``: no version, journal row,
    free page, artifact or write-ahead log has them any more. Otherwise ``residue`` names the files that may still have
    some, or a chat that another host owns: a program, such as a verification or a backup, is reading an older snapshot
    of the database, and the rest is removed once it ends. ``existing``: canonical paths of purged files that still
    exist on disk; the next change of one is recorded with all of its text. ``outputs_left``: number of tool calls of
    the purged turns whose outputs are not purged, as they are objects of their own; ``outputs``: the first of them.
    ``copies``: for a chat, the sessions that began with a commit of its session, as after ``ctx fork`` of an imported
    session, and whose chats still have messages of that commit. ``sessions``: other sessions that had the same text
    and have lost it.
    """

    objects: tuple[str, ...]
    versions: int
    texts: int
    residue: tuple[str, ...]
    complete: bool
    receipt: Receipt | None
    existing: tuple[str, ...] = ()
    outputs_left: int = 0
    outputs: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    sessions: tuple[str, ...] = ()


class ObjectScanParams(Params, frozen=True, kw_only=True):
    """The page to scan, of a session or by default of the whole store.

    Commits of clients and imports are scanned too; those that the daemon made have the texts of the chat.
    ``history``: also scan earlier versions of files, tool calls and system prompts, and earlier summaries.
    """

    session: SessionIdText | None = None
    history: bool = False
    limit: PageSize = 100
    cursor: str | None = None


ScannedType = ObjectType | Literal["commit"]


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """An object or a commit with secrets, or one turn of a chat.

    ``lines``: line numbers from 1; empty for secrets in arguments, a path or metadata. ``label`` is redacted.
    """

    object: str
    type: ScannedType
    label: str
    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]
    turn: int | None = None


class ObjectScanResult(Result, frozen=True, kw_only=True):
    """Findings in ``scanned`` objects and commits; no ``next_cursor`` at the end. ``left_out``: the number of commits
    among them whose delta has more than 16 MiB, which is not scanned. ``unreadable``: commits whose delta is damaged.
    """

    objects: tuple[Scanned, ...]
    scanned: int
    next_cursor: str | None
    left_out: int = 0
    unreadable: tuple[str, ...] = ()


class ObjectQueryParams(Params, frozen=True, kw_only=True):
    """A Datalog query, as of two times, with its bounds.

    ``query``: one map in EDN, without ``:limit`` and ``:timeout``. ``args``: values for its ``:in``. Without
    ``valid_time`` and ``tx``, it runs on the newest documents of the XTDB node.
    """

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=65_536)]
    args: Annotated[tuple[Any, ...], msgspec.Meta(max_length=100)] = ()
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limit: PageSize = 100
    timeout_ms: Annotated[int, msgspec.Meta(ge=1, le=30_000)] = 10_000


class ObjectQueryResult(Result, frozen=True, kw_only=True):
    """Rows with columns in the order of ``:find``. ``complete``: there are no more rows. ``tx``: the newest transaction
    that they reflect."""

    rows: tuple[tuple[Any, ...], ...]
    complete: bool
    tx: int


ROWS: Final = (
    Method(
        name="object.get",
        params=ObjectGetParams,
        result=ObjectGetResult,
        access="read",
        summary="Get one version of one object, now or as of two times.",
        errors=("object_not_found", "ambiguous_id", "session_not_found"),
        example={"object": "call_1", "session": "s1"},
        shows=".object.payload",
    ),
    Method(
        name="object.bulk",
        params=ObjectBulkParams,
        result=ObjectBulkResult,
        access="read",
        summary="Get many objects in one call.",
        errors=("session_not_found",),
        example={"objects": ["call_1", "call_2"]},
        shows=".missing",
    ),
    Method(
        name="object.history",
        params=ObjectHistoryParams,
        result=ObjectHistoryResult,
        access="read",
        summary="List an object's versions.",
        errors=("object_not_found", "ambiguous_id", "session_not_found"),
        example={"object": "call_1", "order": "desc"},
        shows=".versions",
    ),
    Method(
        name="object.list",
        params=ObjectListParams,
        result=ObjectListResult,
        access="read",
        summary="List objects, of one session or of all.",
        errors=("session_not_found",),
        example={"session": "s1", "level": "active"},
        shows=".objects",
    ),
    Method(
        name="object.query",
        params=ObjectQueryParams,
        result=ObjectQueryResult,
        access="host",
        summary="Query all documents in Datalog, now or as of two times.",
        description="Requires an XTDB node; the embedded store returns the error ``unsupported``.",
        errors=("unsupported", "store_unavailable"),
        example={"query": "{:find [e] :in [tool] :where [[e :tool tool]]}", "args": ["bash"]},
        shows=".rows",
    ),
    Method(
        name="object.sessions",
        params=ObjectSessionsParams,
        result=ObjectSessionsResult,
        access="host",
        summary="List the sessions whose index holds an object.",
        errors=("object_not_found",),
        example={"object": "call_1"},
        shows=".sessions",
    ),
    Method(
        name="object.purge",
        params=ObjectPurgeParams,
        result=ObjectPurgeResult,
        access="host",
        writes=True,
        summary="Erase an object's content for good, in every version.",
        description="Every other version with the same content is erased too.",
        errors=("object_not_found", "session_not_found", "session_owned_elsewhere", "unsupported"),
        example={"object": "call_1"},
        shows=".complete",
    ),
    Method(
        name="object.scan",
        params=ObjectScanParams,
        result=ObjectScanResult,
        access="host",
        summary="Search stored content for secrets.",
        errors=("session_not_found",),
        example={"session": "s1"},
        shows=".objects",
    ),
)
