"""Methods ``session.*``: sessions, their settings and states, the objects in their window, and notices to them."""

from typing import Annotated, Final, Literal

import msgspec

from ctxd_protocol.ids import ObjectIdText, OpIdText, SessionIdText
from ctxd_protocol.methods.commits import CommitIdText, StartContext
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    SESSION_ERRORS,
    Method,
    Milliseconds,
    Nothing,
    PageSize,
    Params,
    PathText,
    Result,
    SessionParams,
)
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import SecretPolicy
from ctxd_protocol.session_types import (
    CheckpointPolicy,
    Collapse,
    ComponentName,
    ComponentOptions,
    ContextLevel,
    Mount,
    Notice,
    Reconciled,
    RecordedSession,
    SessionView,
    SharingHost,
)

TITLE_CHARS_MAX: Final = 200


class SessionGetParams(SessionParams, frozen=True, kw_only=True):
    """A session and a point in time, by default now."""

    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SessionWriteParams(SessionParams, frozen=True, kw_only=True):
    """A session by its id."""

    op_id: OpIdText | None = None


class SessionPauseParams(SessionParams, frozen=True, kw_only=True):
    """A session to pause. With several hosts on one log, ``wait`` makes the call return once the whole session is in
    the log and another host may resume it; otherwise it returns once the pause is durable here."""

    op_id: OpIdText | None = None
    wait: bool = True


class SessionCreateParams(Params, frozen=True, kw_only=True):
    """The template of a new session, its settings, and the context that it begins with.

    Without ``context`` the session is empty and begins a chain of commits, and ``agent`` is required. With a context
    the session has the chat of that moment, and its chain continues there; settings that are left out, or given as
    their default, are those of the context's session. A context of a session of this host shares that session's
    beginning, with its sets, entries and assemblies, as with ``session.fork``; any other context becomes the chat of
    the new session, also one that ends with commits of a client that were never in the session's chat. Without
    ``session`` the daemon chooses the id; ``collapse`` and ``secrets`` default to the configured values. ``secrets``:
    the treatment of secrets in captured text. Paths outside all mounts are on
    ``filesystem_id``, by default the host's. ``detect_filesystems``, for an agent that runs on the host: such paths are
    on the filesystem of their directory's device, found by stat; the devices of the system and of the home directories
    are the host's filesystem. It is off by default, because ids by device number are valid only until the next boot,
    and excludes ``filesystem_id``. ``components``: parts of the system context that the daemon reads and adds to
    request bodies, with their later changes; none by default, as a harness's own system prompt includes them.
    ``component_options``: how to find them.
    ``checkpoint``: when the daemon commits new content of the chat, as a chain of context commits in ``events-v1``; by
    default only when ``context.current`` is called. A ``turn`` is committed at the next prompt, a pause or the end of
    the session; ``tool`` also commits shortly after tool calls. A crash or a restart leaves no gap in the chain and
    commits nothing twice.
    ``state``: ``paused`` for a session that takes no writes until it is resumed, such as an imported one. ``archived``:
    listings leave it out.
    """

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=128)] | None = None
    session: SessionIdText | None = None
    system_prompt: str = ""
    workdir: PathText = "/"
    filesystem_id: str | None = None
    detect_filesystems: bool = False
    mounts: tuple[Mount, ...] = ()
    collapse: Collapse | None = None
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    labels: dict[str, str] = {}
    secrets: SecretPolicy | None = None
    op_id: OpIdText | None = None
    components: tuple[ComponentName, ...] = ()
    component_options: ComponentOptions | None = None
    checkpoint: CheckpointPolicy = "none"
    context: StartContext | None = None
    state: Literal["active", "paused"] = "active"
    archived: bool = False


class SessionConfigureParams(SessionParams, frozen=True, kw_only=True):
    """New settings of a session.

    Settings left out are unchanged. ``budget_tokens`` 0 removes the budget.
    """

    workdir: PathText | None = None
    mounts: tuple[Mount, ...] | None = None
    collapse: Collapse | None = None
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    labels: dict[str, str] | None = None
    secrets: SecretPolicy | None = None
    op_id: OpIdText | None = None
    components: tuple[ComponentName, ...] | None = None
    component_options: ComponentOptions | None = None
    checkpoint: CheckpointPolicy | None = None


class SessionAnnotateParams(SessionParams, frozen=True, kw_only=True):
    """Properties of a session in a listing, in any state; those left out are unchanged.

    ``title``: an empty one restores the harness's title or the first prompt. ``labels``: added to the existing ones;
    one with the value None is removed. ``directory``: the new path of the project on the host, if it was moved.
    ``recorded``: the data of the harness's own record of the session, replaced as a whole.
    """

    title: Annotated[str, msgspec.Meta(max_length=TITLE_CHARS_MAX)] | None = None
    archived: bool | None = None
    labels: dict[str, str | None] | None = None
    directory: PathText | None = None
    recorded: RecordedSession | None = None
    op_id: OpIdText | None = None


class SessionForkParams(SessionParams, frozen=True, kw_only=True):
    """A session, and the moment at which to fork it, by default now.

    ``commit``: as of a commit of the session. ``valid_time`` and ``tx``: as of a time or a journal sequence.
    ``fork``: the id of the new session, by default chosen by the daemon.
    """

    commit: CommitIdText | None = None
    fork: SessionIdText | None = None
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SessionForkResult(Result, frozen=True, kw_only=True):
    """The new session, its base, and the last journal sequence and turn that they share."""

    session: str
    base: str
    tx: int
    turn: int
    receipt: Receipt | None


class SessionResult(Result, frozen=True, kw_only=True):
    """The whole session; no ``receipt`` if nothing had to be written."""

    session: SessionView
    receipt: Receipt | None


class SessionOwnerResult(Result, frozen=True, kw_only=True):
    """Ownership of a session.

    ``host``: the name of the owning host; ``here``: it is this host. ``released``: any host may take the session.
    ``branch``: the session with the writes made here after the ownership was lost, if there are any.
    ``lease_left_ms``: time until the owner's lease expires unless renewed; None for this host.
    """

    session: str
    host: str
    here: bool
    released: bool
    branch: str | None
    lease_left_ms: int | None


class SessionHostsResult(Result, frozen=True, kw_only=True):
    """The hosts on the shared log, by name."""

    hosts: tuple[SharingHost, ...]


class SessionGcParams(Params, frozen=True, kw_only=True):
    """A collection: ``keep_ms`` is how long removed sessions stay in the trash, and others may be idle.

    The journal must confirm an age: an interval without any write counts for at most a third of ``keep_ms`` (an hour if
    that is longer), so that a forward jump of the clock does not age sessions. ``force``: use ages by the clock alone.
    ``limit``: maximum sessions of one reply, which has fewer if the work takes some seconds; pass ``next_cursor`` as
    ``cursor`` to continue.
    """

    keep_ms: Milliseconds
    dry_run: bool = False
    force: bool = False
    limit: PageSize = 100
    cursor: SessionIdText | None = None


KeepReason = Literal["clock", "forked", "sandbox", "in_use", "elsewhere"]
"""The reason why a collection keeps an old session."""


class CollectedSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A session that is old enough, and the ``action`` on it.

    ``emptied``: its otherwise unreferenced content, ``bytes`` in all, was erased. ``retired``: it was idle, and is in
    the trash now. ``kept``: not collected, for a ``reason``: ``clock``: the journal does not confirm its age;
    ``forked``: a fork of it exists; ``sandbox``: a registered sandbox may use it; ``in_use``: calls are in progress or
    its notices are followed; ``elsewhere``: it was continued on another host. ``age_ms``: time since its removal or its
    last write by the clock; ``confirmed_ms``: the part of it that the journal confirms. Both are absent if the call
    completed an interrupted emptying. ``title``: as in ``session.list``.
    """

    session: str
    action: Literal["emptied", "retired", "kept"]
    title: str = ""
    reason: KeepReason | None = None
    bytes: int = 0
    age_ms: int | None = None
    confirmed_ms: int | None = None


class SessionGcResult(Result, frozen=True, kw_only=True):
    """The sessions that are old enough, in the order of their ids; no ``next_cursor`` at the end."""

    sessions: tuple[CollectedSession, ...]
    next_cursor: str | None


class SessionResumeResult(Result, frozen=True, kw_only=True):
    """The resumed session, and the outcome of its file check."""

    session: SessionView
    reconciled: Reconciled
    receipt: Receipt | None


class MembershipParams(SessionParams, frozen=True, kw_only=True):
    """An object of a session.

    ``object``: a full id, or a unique prefix of at least 8 characters of an id in the session's index.
    """

    object: ObjectIdText
    op_id: OpIdText | None = None


class MembershipResult(Result, frozen=True, kw_only=True):
    """The state of the object; ``changed`` is false if it already had the requested state."""

    object: str
    level: ContextLevel
    pinned: bool
    changed: bool
    receipt: Receipt | None


class NoticesParams(SessionParams, frozen=True, kw_only=True):
    """A session; only notices with a sequence above ``after`` are returned."""

    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class NoticesResult(Result, frozen=True, kw_only=True):
    """Notices in order, and the sequence after which to continue."""

    notices: tuple[Notice, ...]
    next_after: int


ROWS: Final = (
    Method(
        name="session.create",
        params=SessionCreateParams,
        result=SessionResult,
        access="host",
        writes=True,
        summary="Start a session, empty or from a context: a fresh start, a resumption or a fork.",
        errors=(
            "session_exists",
            "invalid_path",
            "session_not_found",
            "session_removed",
            "session_owned_elsewhere",
            "commit_not_found",
            "purged",
            "unsupported",
        ),
        example={"agent": "demo", "workdir": "/workspace"},
        shows=".session.session",
        positional=("agent",),
    ),  # fmt: skip
    Method(
        name="session.configure",
        params=SessionConfigureParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="configure",
        summary="Change a session's settings.",
        errors=(*ACTIVE_ERRORS, "session_in_sandbox", "invalid_path"),
        example={"session": "s1", "budget_tokens": 128000},
        shows=".session.budget_tokens",
    ),
    Method(
        name="session.get",
        params=SessionGetParams,
        result=SessionResult,
        access="read",
        handle="view",
        summary="Get a session: its settings and its four sets.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".session.active_set",
    ),
    Method(
        name="session.owner",
        params=SessionParams,
        result=SessionOwnerResult,
        access="host",
        summary="Get the host that owns a session.",
        errors=("session_not_found", "unsupported", "store_unavailable"),
        example={"session": "s1"},
        shows=".host",
    ),
    Method(
        name="session.hosts",
        params=Nothing,
        result=SessionHostsResult,
        access="host",
        summary="List the hosts on the shared log with their sessions, lag and lease.",
        errors=("unsupported", "store_unavailable"),
        example={},
        shows=".hosts",
    ),
    Method(
        name="session.annotate",
        params=SessionAnnotateParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="annotate",
        summary="Set a session's title, labels and project, and archive it.",
        description="Listings omit archived sessions unless ``archived`` is set; ``session.resume`` makes a session"
        " visible again.",
        errors=(*SESSION_ERRORS, "invalid_path"),
        example={"session": "s1", "title": "Fix the parser"},
        shows=".session.title",
    ),
    Method(
        name="session.pause",
        params=SessionPauseParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="pause",
        summary="Pause a session: it refuses writes until it is resumed.",
        errors=(*SESSION_ERRORS, "session_closed", "session_removed", "session_not_released"),
        example={"session": "s1"},
        shows=".session.state",
    ),
    Method(
        name="session.resume",
        params=SessionWriteParams,
        result=SessionResumeResult,
        access="host",
        writes=True,
        handle="resume",
        summary="Continue a session and check its files for changes.",
        errors=(*SESSION_ERRORS, "session_closed", "session_removed"),
        example={"session": "s1"},
        shows=".reconciled.updated",
    ),
    Method(
        name="session.close",
        params=SessionWriteParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="close",
        summary="End a session for good; it stays readable.",
        errors=(*SESSION_ERRORS, "session_closed", "session_removed"),
        example={"session": "s1"},
        shows=".session.state",
    ),
    Method(
        name="session.fork",
        params=SessionForkParams,
        result=SessionForkResult,
        access="host",
        writes=True,
        handle="fork",
        summary="Start a session that continues from a moment of another, without copying it.",
        description="The fork begins with the sets, the chat, the entries, the assemblies and the context epoch of that"
        " moment. Neither session sees later changes of the other. To rewind is to fork at an earlier moment.",
        errors=(*SESSION_ERRORS, "session_removed", "session_exists", "commit_not_found", "unsupported"),
        example={"session": "s1"},
        shows=".session",
    ),
    Method(
        name="session.remove",
        params=SessionWriteParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="remove",
        summary="Move a session to the trash.",
        description="The session refuses writes, remains readable, and is listed only if the state ``removed`` is"
        " requested. ``session.restore`` restores it until ``session.gc`` erases it.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".session.removed",
    ),
    Method(
        name="session.restore",
        params=SessionWriteParams,
        result=SessionResult,
        access="host",
        writes=True,
        handle="restore",
        summary="Bring a session back from the trash, in the state that it had.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".session.state",
    ),
    Method(
        name="session.gc",
        params=SessionGcParams,
        result=SessionGcResult,
        access="host",
        summary="Erase sessions that have long been in the trash, and move idle sessions there.",
        description="Files, artifacts, commits, and tool calls that other sessions share are kept. Commits that the"
        " daemon made automatically are erased unless a tag, a session or a kept commit refers to them. ``dry_run``"
        " changes nothing.",
        errors=("store_failed", "store_unavailable", "store_backlog_full", "disk_full", "data_loss"),
        example={"keep_ms": 7776000000, "dry_run": True},
        shows=".sessions",
    ),
    Method(
        name="session.activate",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="activate",
        summary="Load an object's content into the window.",
        errors=(
            *ACTIVE_ERRORS,
            "not_in_index",
            "ambiguous_id",
            "infrastructure_object",
            "content_unavailable",
            "file_not_found",
            "source_unreachable",
            "purged",
        ),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.deactivate",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="deactivate",
        summary="Take an object's content out of the window; a metadata line stays.",
        errors=(*ACTIVE_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object", "not_active"),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.pin",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="pin",
        summary="Exempt an object from auto-collapse and budget drops.",
        errors=(*ACTIVE_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object", "not_in_pool"),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.unpin",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="unpin",
        summary="Undo a pin.",
        errors=(*ACTIVE_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object", "not_pinned"),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.pool_add",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="pool_add",
        summary="Show an indexed object as metadata.",
        errors=(*ACTIVE_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object"),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.pool_remove",
        params=MembershipParams,
        result=MembershipResult,
        access="arrange",
        writes=True,
        handle="pool_remove",
        summary="Hide an object's metadata; it stays indexed.",
        errors=(*ACTIVE_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object", "not_in_pool"),
        example={"session": "s1", "object": "call_1"},
        shows=".level",
    ),
    Method(
        name="session.notices",
        params=NoticesParams,
        result=NoticesResult,
        access="read",
        handle="notices",
        summary="List changes that others made to objects the session has read.",
        errors=SESSION_ERRORS,
        example={"session": "s1", "after": 0},
        shows=".notices",
    ),
)
