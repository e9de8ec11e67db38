"""What ``object.*`` takes and answers: versions, listings, and what is done about secrets that are stored."""

from typing import Annotated, Literal

import msgspec

from ctxd_protocol.ids import ObjectIdText, OpIdText, SessionIdText
from ctxd_protocol.limits import PAGE_ITEMS_MAX, PATHS_MAX
from ctxd_protocol.methods.parts import Milliseconds, PageSize, Params, Result
from ctxd_protocol.objects import ObjectType, ObjectVersion, Receipt, VersionRow
from ctxd_protocol.secrets import SecretFound
from ctxd_protocol.sessions import ContextLevel


class ObjectGetParams(Params, frozen=True, kw_only=True):
    """``valid_time`` and ``tx`` null mean the newest. ``session`` gives display paths and allows id prefixes."""

    object: ObjectIdText
    session: SessionIdText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    content: bool = True


class ObjectGetResult(Result, frozen=True, kw_only=True):
    """One version."""

    object: ObjectVersion


class ObjectBulkParams(Params, frozen=True, kw_only=True):
    """Objects by their full ids, and session and basis as in ``object.get``."""

    objects: Annotated[tuple[ObjectIdText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    session: SessionIdText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    content: bool = False


class ObjectBulkResult(Result, frozen=True, kw_only=True):
    """``missing`` lists the ids that had no version at those times."""

    objects: tuple[ObjectVersion, ...]
    missing: tuple[str, ...]


class ObjectHistoryParams(Params, frozen=True, kw_only=True):
    """``corrections`` true also lists versions that a later transaction replaced at the same valid time."""

    object: ObjectIdText
    session: SessionIdText | None = None
    order: Literal["asc", "desc"] = "asc"
    corrections: bool = False
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None
    limit: PageSize = 100
    cursor: str | None = None


class ObjectHistoryResult(Result, frozen=True, kw_only=True):
    """Versions in the order asked for; ``next_cursor`` null at the end."""

    versions: tuple[VersionRow, ...]
    next_cursor: str | None


class ObjectListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold; ``level`` needs a ``session``."""

    session: SessionIdText | None = None
    type: ObjectType | None = None
    level: ContextLevel | None = None
    limit: PageSize = 100
    cursor: str | None = None


class ObjectListItem(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an object listing; ``level`` and ``pinned`` only within a session. ``secrets``: the rules that found
    one in it when it was captured."""

    object: str
    type: ObjectType
    state: str
    label: str
    char_count: int | None
    level: ContextLevel | None
    pinned: bool
    secrets: tuple[str, ...] = ()


class ObjectListResult(Result, frozen=True, kw_only=True):
    """One page; ``next_cursor`` null at the end."""

    objects: tuple[ObjectListItem, ...]
    next_cursor: str | None


class ObjectSessionsParams(Params, frozen=True, kw_only=True):
    """An object by its full id."""

    object: ObjectIdText


class ObjectSessionsResult(Result, frozen=True, kw_only=True):
    """The ids of the sessions in whose index the object is."""

    sessions: tuple[str, ...]


class ObjectPurgeParams(Params, frozen=True, kw_only=True):
    """An object by its full id: a file, a tool call, a system prompt or a chat.

    ``turns``: only these turns of a chat, of no other object; null for all of it.
    """

    object: ObjectIdText
    turns: Annotated[tuple[Annotated[int, msgspec.Meta(ge=0)], ...], msgspec.Meta(max_length=PAGE_ITEMS_MAX)] | None = (
        None
    )
    op_id: OpIdText | None = None


class ObjectPurgeResult(Result, frozen=True, kw_only=True):
    """Objects that were purged: the requested one, and every other with the same text.

    Of a chat, every message of the requested turns, and every other in it with the same text.

    ``versions``: number of their versions; ``texts``: number of texts, of a chat messages. ``complete``: no version,
    no journal row, no free page, no artifact and no write-ahead log holds them any more. Otherwise ``residue`` names
    the files that may still hold some: a program, such as a verification or a backup, reads an older state of the
    database, and the rest is removed once that ends.
    """

    objects: tuple[str, ...]
    versions: int
    texts: int
    residue: tuple[str, ...]
    complete: bool
    receipt: Receipt | None


class ObjectScanParams(Params, frozen=True, kw_only=True):
    """Whose objects to scan by the rules of now, null for those of the whole store, and from where on.

    ``history``: also the earlier versions of files, tool calls and system prompts.
    """

    session: SessionIdText | None = None
    history: bool = False
    limit: PageSize = 100
    cursor: str | None = None


class Scanned(msgspec.Struct, frozen=True, kw_only=True):
    """One object that holds secrets, or one turn of a chat. ``lines``: where, from 1, by the order of the text; none
    for what is in arguments, a path or metadata. ``label`` is redacted."""

    object: str
    type: ObjectType
    label: str
    found: tuple[SecretFound, ...]
    lines: tuple[int, ...]
    turn: int | None = None


class ObjectScanResult(Result, frozen=True, kw_only=True):
    """What was found in ``scanned`` objects; ``next_cursor`` null at the end."""

    objects: tuple[Scanned, ...]
    scanned: int
    next_cursor: str | None
