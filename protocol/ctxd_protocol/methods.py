"""The API's index: every method, its parameters, its result, who may call it, and whether a resend is safe.

Every write takes an optional ``op_id``: the same ``op_id`` with the same parameters is applied once and answers
the first result; with other parameters it is refused as ``idempotency_mismatch``. A call that changes nothing
writes nothing, its ``op_id`` neither: sent again later, it is decided anew.
"""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.context import AssembledContext, AssemblyRecord, BudgetPlan, CurrentContext
from ctxd_protocol.ids import ID_PATTERN, ObjectIdText, OpIdText, SessionIdText, ToolcallIdText
from ctxd_protocol.limits import PAGE_ITEMS_MAX, PATHS_MAX, Limits
from ctxd_protocol.objects import ObjectType, ObjectVersion, Receipt, VersionRow
from ctxd_protocol.sandboxes import GRANTS_DEFAULT, Grant, Quota, SandboxView
from ctxd_protocol.secrets import SecretFound, SecretPolicy
from ctxd_protocol.sessions import (
    Collapse,
    ContextLevel,
    Message,
    Mount,
    Notice,
    SessionState,
    SessionSummary,
    SessionView,
)
from ctxd_protocol.status import DaemonStatus
from ctxd_protocol.trackers import Tracker, TrackerState, Watching

Capability = Literal["observe", "session", "host"]
"""``observe``: ask for the current context. ``session``: work in one's own session. ``host``: everything."""

PathText = Annotated[str, msgspec.Meta(min_length=1, max_length=4096)]
PageSize = Annotated[int, msgspec.Meta(ge=1, le=PAGE_ITEMS_MAX)]
Milliseconds = Annotated[int, msgspec.Meta(ge=0)]


class Params(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Parameters by name; an unknown or missing name is refused."""


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call, an object with named members."""


class Nothing(Params, frozen=True, kw_only=True):
    """No parameters."""


# --- daemon ---


class HelloParams(Params, frozen=True, kw_only=True):
    """Who the client is, what it speaks, the newest receipt it holds, and the journal that receipt is of."""

    client: str = ""
    version: str = ""
    protocol: tuple[int, ...] = (1,)
    last_receipt: Receipt | None = None
    journal: str | None = None


class HelloResult(Result, frozen=True, kw_only=True):
    """Who the daemon is, the protocol version to speak, the methods and bounds of this connection.

    ``journal`` names the journal that receipts are of: a new state directory or a restored backup is another one.
    """

    server: str
    version: str
    protocol: int
    methods: tuple[str, ...]
    limits: Limits
    incarnation: int
    journal: str


# --- sessions ---


class SessionParams(Params, frozen=True, kw_only=True):
    """A session by its id."""

    session: SessionIdText


class SessionWriteParams(Params, frozen=True, kw_only=True):
    """A session by its id, to be written."""

    session: SessionIdText
    op_id: OpIdText | None = None


class SessionCreateParams(Params, frozen=True, kw_only=True):
    """What a session starts with. ``session`` null: the daemon makes an id. ``filesystem_id`` null: the host's.

    ``detect_filesystems``, for an agent that runs on the host: a path that no mount covers lies on the filesystem of
    the device that its directory is on, found by stat; the devices of the system and of the homes are the host's own
    filesystem. Mounts take precedence. Off by default, because ids by device number hold only until the next boot. Not
    together with ``filesystem_id``. ``collapse`` and ``secrets`` null: as the daemon is configured. ``secrets``: what
    becomes of secrets in what the session captures.
    """

    agent: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
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


class SessionConfigureParams(Params, frozen=True, kw_only=True):
    """A field left out stays as it is. ``budget_tokens`` 0 removes the budget."""

    session: SessionIdText
    workdir: PathText | None = None
    mounts: tuple[Mount, ...] | None = None
    collapse: Collapse | None = None
    budget_tokens: Annotated[int, msgspec.Meta(ge=0)] | None = None
    labels: dict[str, str] | None = None
    secrets: SecretPolicy | None = None
    op_id: OpIdText | None = None


class SessionResult(Result, frozen=True, kw_only=True):
    """The whole session; ``receipt`` null when nothing was written."""

    session: SessionView
    receipt: Receipt | None


class SessionListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold: ``label`` is ``name=value``, ``text`` occurs in id or preview.

    ``elsewhere``: the sessions of other hosts instead of this one's, in the order of their ids.
    """

    state: SessionState | None = None
    agent: str | None = None
    label: str | None = None
    text: str | None = None
    limit: PageSize = 100
    cursor: str | None = None
    elsewhere: bool = False


class SessionListResult(Result, frozen=True, kw_only=True):
    """One page, newest first; ``next_cursor`` null at the end."""

    sessions: tuple[SessionSummary, ...]
    next_cursor: str | None


class SessionOwnerResult(Result, frozen=True, kw_only=True):
    """Whose a session is. ``host``: the name of that host; ``here``: it is this one. ``released``: any may take it.

    ``branch``: the session that keeps what was written here after the session went on elsewhere, null if nothing was.
    ``lease_left_ms``: how long its host is still counted as alive if it stays silent; null for this host.
    """

    session: str
    host: str
    here: bool
    released: bool
    branch: str | None
    lease_left_ms: int | None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """What a resume found: counts by outcome, and the ids of every object that is not as it was."""

    unchanged: int
    unread: int
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    orphaned: tuple[str, ...]


class SessionResumeResult(Result, frozen=True, kw_only=True):
    """The session as it goes on, and what its files came to."""

    session: SessionView
    reconciled: Reconciled
    receipt: Receipt | None


class SessionAppendParams(Params, frozen=True, kw_only=True):
    """Messages to add, in order."""

    session: SessionIdText
    messages: Annotated[tuple[Message, ...], msgspec.Meta(min_length=1, max_length=1000)]
    op_id: OpIdText | None = None


class SessionAppendResult(Result, frozen=True, kw_only=True):
    """The number of the turn that the last message belongs to."""

    turn: int
    receipt: Receipt | None


class SystemPromptParams(Params, frozen=True, kw_only=True):
    """The system prompt to have from now on."""

    session: SessionIdText
    content: str
    op_id: OpIdText | None = None


class WriteResult(Result, frozen=True, kw_only=True):
    """A write without other result; ``receipt`` null when nothing was to be written."""

    receipt: Receipt | None


class ChatResult(Result, frozen=True, kw_only=True):
    """Turns in order; ``next_turn`` null at the end."""

    session: str
    turn_count: int
    turns: tuple[Any, ...]
    next_turn: int | None


class ChatParams(Params, frozen=True, kw_only=True):
    """Which turns of a chat; turn 0 holds what came before the first user message."""

    session: SessionIdText
    first_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class SessionExportParams(Params, frozen=True, kw_only=True):
    """Which session to write out, and from where on."""

    session: SessionIdText
    limit: PageSize = 100
    cursor: str | None = None


class SessionExportResult(Result, frozen=True, kw_only=True):
    """The next records of a transcript, every secret in them replaced by ``[REDACTED:rule:tag]``; ``next_cursor`` null
    at the end.

    ``record`` of each tells what it is: ``session`` first, then ``system_prompt``, ``message`` by turn with the
    ``toolcall`` it stands for behind it, and then what else the session knows: ``toolcall``, and ``file`` without its
    content. An ``object`` of state ``unknown`` has no version any more. What comes in after the first page is left out.
    """

    records: tuple[dict[str, Any], ...]
    next_cursor: str | None


class MembershipParams(Params, frozen=True, kw_only=True):
    """``object``: a full id, or a unique prefix of at least 8 characters of one in the session's index."""

    session: SessionIdText
    object: ObjectIdText
    op_id: OpIdText | None = None


class MembershipResult(Result, frozen=True, kw_only=True):
    """``changed`` false: the object already was as asked, and nothing was written."""

    object: str
    level: ContextLevel
    pinned: bool
    changed: bool
    receipt: Receipt | None


class NoticesParams(Params, frozen=True, kw_only=True):
    """Notices beyond the sequence ``after``."""

    session: SessionIdText
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class NoticesResult(Result, frozen=True, kw_only=True):
    """Notices in order, and the sequence from which to ask on."""

    notices: tuple[Notice, ...]
    next_after: int


# --- tool calls and files ---


class ToolcallRecordParams(Params, frozen=True, kw_only=True):
    """A tool call, its arguments as the harness had them, and its whole output."""

    session: SessionIdText
    id: ToolcallIdText
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    content: str
    args: dict[str, Any] = {}
    args_display: str | None = None
    status: Literal["ok", "fail"] = "ok"
    file_refs: tuple[str, ...] | None = None
    op_id: OpIdText | None = None


class ToolcallRecordResult(Result, frozen=True, kw_only=True):
    """The tool call's object, and the tool calls that were collapsed to make room for it."""

    object: str
    outcome: Literal["created", "unchanged"]
    collapsed: tuple[str, ...]
    receipt: Receipt | None


class ToolObserveParams(Params, frozen=True, kw_only=True):
    """``command`` is the shell command line as it ran in ``cwd`` (the session's workdir when null), ``output``
    its output.
    """

    session: SessionIdText
    command: str
    output: str
    cwd: PathText | None = None
    op_id: OpIdText | None = None


class Discovered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that was looked at. ``outcome`` ``ignored`` makes no object and says why in ``reason``."""

    path: str
    outcome: Literal["created", "unchanged", "ignored"]
    object: str | None = None
    reason: str | None = None


class ToolObserveResult(Result, frozen=True, kw_only=True):
    """Each path that was looked at, in order of appearance.

    ``tool.observe`` leaves out a name that may as well be a directory or a word and turned out to be no file. A name
    that git prints from the top of its work tree has the path of the file there.
    """

    objects: tuple[Discovered, ...]
    receipt: Receipt | None


FileKind = Literal["text", "binary", "too_large", "unreadable", "special", "missing"]
FileOutcome = Literal["created", "updated", "unchanged", "deleted", "orphaned"]


class FileIndexParams(Params, frozen=True, kw_only=True):
    """``content`` null lets the daemon read the file. ``content_base64`` is for bytes that are not UTF-8."""

    session: SessionIdText
    path: PathText
    content: str | None = None
    content_base64: str | None = None
    cause: Literal["read", "edit", "check"] = "read"
    op_id: OpIdText | None = None


class FileIndexResult(Result, frozen=True, kw_only=True):
    """What became of the file's object; ``char_count`` is in code points, 0 without text."""

    object: str
    outcome: FileOutcome
    kind: FileKind
    source_hash: str | None
    char_count: int
    receipt: Receipt | None


class FileDiscoverParams(Params, frozen=True, kw_only=True):
    """Paths as the agent names them."""

    session: SessionIdText
    paths: Annotated[tuple[PathText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    op_id: OpIdText | None = None


class FileResolveParams(Params, frozen=True, kw_only=True):
    """A path as the agent names it."""

    session: SessionIdText
    path: PathText


class FileResolveResult(Result, frozen=True, kw_only=True):
    """The object a path is, whether or not it is known yet."""

    object: str
    canonical_path: str
    filesystem_id: str
    display_path: str
    known: bool


class MountDetectParams(Params, frozen=True, kw_only=True):
    """Exactly one of the two: the text of ``docker inspect CONTAINER``, or of ``/proc/self/mountinfo`` in the
    sandbox.
    """

    docker_inspect: str | None = None
    mountinfo: str | None = None


class MountDetectResult(Result, frozen=True, kw_only=True):
    """Mappings, the container's own filesystem id if the text names it, and what was ignored and why."""

    mounts: tuple[Mount, ...]
    filesystem_id: str | None
    ignored: tuple[str, ...]


# --- objects ---


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
    """What is no more. ``objects``: those that were purged, the one asked for and every other with the same text.

    Of a chat, every message of the turns that were asked for, and every other in it that says the very same.

    ``versions``: how many of theirs; ``texts``: how many texts, of a chat messages. The proof: ``searched`` fragments
    of what was destroyed were looked for in every file of the state directory, and found again in ``residue``: other
    objects hold them too, or, with ``complete`` false, somebody still reads an old state of the database, and the rest
    is done once that ends.
    Sent again, it is not searched again: nobody knows any more what for.
    """

    objects: tuple[str, ...]
    versions: int
    texts: int
    searched: int
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


# --- context ---


class ContextCurrentParams(Params, frozen=True, kw_only=True):
    """``session`` null: the connection's own session, or the only one there is."""

    session: SessionIdText | None = None


class AssembleParams(Params, frozen=True, kw_only=True):
    """Whose context, and whether the answer carries its text and its blocks."""

    session: SessionIdText
    text: bool = True
    blocks: bool = True


class PlanParams(Params, frozen=True, kw_only=True):
    """A budget to plan for; null takes the session's own."""

    session: SessionIdText
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class PlanResult(Result, frozen=True, kw_only=True):
    """The plan; nothing was changed."""

    plan: BudgetPlan


class ShowParams(Params, frozen=True, kw_only=True):
    """Exactly one of ``number`` (an assembly) and ``turn`` (its newest assembly); both null: the newest."""

    session: SessionIdText
    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    text: bool = True
    blocks: bool = True


class AssemblyListParams(Params, frozen=True, kw_only=True):
    """Records with a number beyond ``after``."""

    session: SessionIdText
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class AssemblyListResult(Result, frozen=True, kw_only=True):
    """Records in order; ``next_after`` null at the end."""

    assemblies: tuple[AssemblyRecord, ...]
    next_after: int | None


# --- events ---


class SubscribeParams(Params, frozen=True, kw_only=True):
    """Notices to ``session`` with a sequence above ``after`` come at once, later ones as they happen."""

    session: SessionIdText
    after: Annotated[int, msgspec.Meta(ge=0)] | None = None


class SubscribeResult(Result, frozen=True, kw_only=True):
    """``after``: the sequence from which notices will come."""

    subscription: int
    after: int


class UnsubscribeParams(Params, frozen=True, kw_only=True):
    """A subscription of this connection."""

    subscription: int


class NoticeEvent(msgspec.Struct, frozen=True, kw_only=True):
    """Params of the notification ``events.notice``. ``missed`` true: the queue was full; read
    ``session.notices`` again.
    """

    subscription: int
    notice: Notice
    missed: bool = False


# --- trackers ---


class TrackerListParams(Params, frozen=True, kw_only=True):
    """Filters. With ``session``, all that it has read is listed, followed or not; without, all that is followed."""

    session: SessionIdText | None = None
    state: TrackerState | None = None
    limit: PageSize = 100
    cursor: str | None = None


class TrackerListResult(Result, frozen=True, kw_only=True):
    """A page by path, and all of it in figures."""

    trackers: tuple[Tracker, ...]
    watching: Watching
    next_cursor: str | None


# --- sandboxes ---


class SandboxRegisterParams(Params, frozen=True, kw_only=True):
    """Who is inside, and what they may do; fixed for as long as the sandbox is registered.

    ``sessions``: what it may name, each made with a filesystem of its own; the first is meant by a call that names
    none. ``principal`` null: named after the sandbox. ``mounts`` null: those of its sessions, which all have the same.
    ``ttl_s`` null: the lease is this connection's; it ends ``grace_s`` after that does, unless another renews it.
    ``uid``: the user inside, as the host knows it; null: the one who registers it.
    """

    sessions: Annotated[tuple[SessionIdText, ...], msgspec.Meta(min_length=1, max_length=64)]
    principal: Annotated[str, msgspec.Meta(pattern=ID_PATTERN)] | None = None
    mounts: tuple[Mount, ...] | None = None
    grants: tuple[Grant, ...] = GRANTS_DEFAULT
    quota: Quota = Quota()
    ttl_s: Annotated[int, msgspec.Meta(ge=1, le=31_536_000)] | None = None
    grace_s: Annotated[int, msgspec.Meta(ge=0, le=86_400)] = 30
    uid: Annotated[int, msgspec.Meta(ge=0, le=4_294_967_294)] | None = None
    op_id: OpIdText | None = None


class SandboxParams(Params, frozen=True, kw_only=True):
    """A sandbox by its id."""

    sandbox: SessionIdText
    op_id: OpIdText | None = None


class SandboxResult(Result, frozen=True, kw_only=True):
    """The sandbox; ``receipt`` null when nothing was written."""

    sandbox: SandboxView
    receipt: Receipt | None


class SandboxListResult(Result, frozen=True, kw_only=True):
    """All that are registered, oldest first."""

    sandboxes: tuple[SandboxView, ...]


class CancelParams(Params, frozen=True, kw_only=True):
    """Params of the notification ``$/cancelRequest``."""

    id: int | str


# --- the table ---


class Method(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the table.

    ``idempotent``: safe to send again (a read, or a write under its ``op_id``). ``writes``: changes durable state.
    ``ordered``: calls of one session take effect in the order they arrive on a connection.
    """

    name: str
    params: type[Params]
    result: type[Any]
    capability: Capability
    summary: str
    writes: bool = False

    @property
    def idempotent(self) -> bool:
        """Whether the call may be sent again after a lost answer: reads always, writes when they carry an ``op_id``."""
        return self.name != "events.subscribe"


def _read(name: str, params: type[Params], result: type[Any], capability: Capability, summary: str) -> Method:
    return Method(name=name, params=params, result=result, capability=capability, summary=summary)


def _write(name: str, params: type[Params], result: type[Any], capability: Capability, summary: str) -> Method:
    return Method(name=name, params=params, result=result, capability=capability, summary=summary, writes=True)


_TABLE: Final = (
    _read("hello", HelloParams, HelloResult, "observe", "Say who one is; learn versions, limits and methods."),
    _read("rpc.discover", Nothing, dict, "observe", "The OpenRPC document of this API."),
    _read("daemon.status", Nothing, DaemonStatus, "host", "Health and figures of the daemon."),
    _write("session.create", SessionCreateParams, SessionResult, "host", "Start a session."),
    _write("session.configure", SessionConfigureParams, SessionResult, "host", "Change a session's settings."),
    _read("session.list", SessionListParams, SessionListResult, "host", "Sessions, newest first, with previews."),
    _read("session.get", SessionParams, SessionResult, "session", "One session whole."),
    _read("session.owner", SessionParams, SessionOwnerResult, "host", "Which of several hosts a session is on."),
    _write("session.pause", SessionWriteParams, SessionResult, "host", "Set a session aside; nothing is lost."),
    _write(
        "session.resume",
        SessionWriteParams,
        SessionResumeResult,
        "host",
        "Take a session up again and check its files.",
    ),
    _write("session.close", SessionWriteParams, SessionResult, "host", "End a session for good; it stays readable."),
    _write(
        "session.append",
        SessionAppendParams,
        SessionAppendResult,
        "session",
        "Add chat messages; a user message starts a turn.",
    ),
    _write("session.set_system_prompt", SystemPromptParams, WriteResult, "session", "Replace the system prompt."),
    _read("session.chat", ChatParams, ChatResult, "session", "The chat, turn by turn."),
    _read("session.export", SessionExportParams, SessionExportResult, "host", "A transcript, always redacted."),
    _write(
        "session.activate", MembershipParams, MembershipResult, "session", "Load an object's content into the window."
    ),
    _write(
        "session.deactivate",
        MembershipParams,
        MembershipResult,
        "session",
        "Take an object's content out of the window.",
    ),
    _write(
        "session.pin",
        MembershipParams,
        MembershipResult,
        "session",
        "Exempt an object from auto-collapse and budget drops.",
    ),
    _write("session.unpin", MembershipParams, MembershipResult, "session", "Undo a pin."),
    _write("session.pool_add", MembershipParams, MembershipResult, "session", "Show an indexed object as metadata."),
    _write(
        "session.pool_remove",
        MembershipParams,
        MembershipResult,
        "session",
        "Hide an object's metadata; it stays indexed.",
    ),
    _read(
        "session.notices",
        NoticesParams,
        NoticesResult,
        "session",
        "Changes that others made to what the session has read.",
    ),
    _write(
        "toolcall.record", ToolcallRecordParams, ToolcallRecordResult, "session", "Keep a tool call and its output."
    ),
    _write(
        "tool.observe", ToolObserveParams, ToolObserveResult, "session", "Find the files a command's output speaks of."
    ),
    _write("file.index", FileIndexParams, FileIndexResult, "session", "Bring a file's object up to date."),
    _write("file.discover", FileDiscoverParams, ToolObserveResult, "session", "Make unread stubs for existing files."),
    _read("file.resolve", FileResolveParams, FileResolveResult, "session", "Which object a path is."),
    _read(
        "mount.detect",
        MountDetectParams,
        MountDetectResult,
        "host",
        "Mount mappings from docker inspect or mountinfo text.",
    ),
    _read(
        "object.get", ObjectGetParams, ObjectGetResult, "session", "One version of one object, now or as of two times."
    ),
    _read("object.bulk", ObjectBulkParams, ObjectBulkResult, "session", "Many objects in one call."),
    _read("object.history", ObjectHistoryParams, ObjectHistoryResult, "session", "An object's versions."),
    _read("object.list", ObjectListParams, ObjectListResult, "session", "Objects, of one session or all."),
    _read("object.sessions", ObjectSessionsParams, ObjectSessionsResult, "host", "The sessions that know an object."),
    _write(
        "object.purge", ObjectPurgeParams, ObjectPurgeResult, "host", "Destroy what an object says, in every version."
    ),
    _read("object.scan", ObjectScanParams, ObjectScanResult, "host", "Look for secrets in what is stored."),
    _read("context.current", ContextCurrentParams, CurrentContext, "observe", "The id of the context being worked in."),
    _write("context.assemble", AssembleParams, AssembledContext, "session", "What the model sees now; recorded."),
    _read("context.plan", PlanParams, PlanResult, "session", "What a token budget would drop, and why."),
    _read("context.show", ShowParams, AssembledContext, "session", "A recorded assembly, byte for byte."),
    _read("context.list", AssemblyListParams, AssemblyListResult, "session", "A session's recorded assemblies."),
    _read(
        "events.subscribe",
        SubscribeParams,
        SubscribeResult,
        "session",
        "Have a session's notices sent as notifications.",
    ),
    _read("events.unsubscribe", UnsubscribeParams, WriteResult, "session", "Stop a subscription."),
    _write("sandbox.register", SandboxRegisterParams, SandboxResult, "host", "Give a sandbox a socket of its own."),
    _write("sandbox.renew", SandboxParams, SandboxResult, "host", "Extend a sandbox's lease, or take it over."),
    _write("sandbox.release", SandboxParams, WriteResult, "host", "End a sandbox: its socket and its connections."),
    _read("sandbox.list", Nothing, SandboxListResult, "host", "The registered sandboxes."),
    _read("tracker.list", TrackerListParams, TrackerListResult, "host", "The files followed on disk, and how."),
)

METHODS: Final[dict[str, Method]] = {method.name: method for method in _TABLE}
"""Every method by its name."""

NOTIFICATIONS: Final[dict[str, type[Any]]] = {"events.notice": NoticeEvent}
"""What the daemon sends unasked, by name. ``$/cancelRequest`` is what a client may send as one."""
