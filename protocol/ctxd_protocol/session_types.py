"""Types of the session methods: mounts, messages, views of sessions, notices (spec 1 §3)."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.secret_types import SecretPolicy, Secrets

SessionStatus = Literal["active", "paused", "closed", "removed"]
"""``removed``: in the trash; ``session.restore`` can restore it until ``session.gc`` empties the trash."""
ComponentName = Literal["environment", "date", "instructions", "skills"]
"""A part of the system context that the daemon reads and keeps up to date in a request."""
Harness = Literal["claude-code", "codex", "pi", "opencode"]
"""A harness whose instruction files and skills are known."""
CheckpointPolicy = Literal["none", "turn", "tool", "compaction"]
"""Events on which the daemon commits new content of a session. ``none``: only a call of ``context.current``. ``turn``:
the end of each turn, which is the next prompt, a pause or the end of the session. ``tool``: also shortly after tool
calls. ``compaction``: each compaction, a pause and the end of the session."""
ContextLevel = Literal["active", "inactive", "indexed"]
"""Whole content in the window; a metadata line; known but not shown (spec 1 §3.2)."""

Role = Literal["user", "assistant", "toolcall"]


class Mount(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One mount mapping: the agent's ``agent_prefix`` is ``canonical_prefix`` on ``filesystem_id``.

    ``filesystem_id`` defaults to the host's own filesystem (spec 1 §5.3).
    """

    agent_prefix: str
    canonical_prefix: str
    filesystem_id: str | None = None
    writable: bool = True


class Collapse(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The auto-collapse window: the number of newest tool calls kept active per turn, and the number of newest turns
    (spec 1 §4.3)."""

    per_turn: Annotated[int, msgspec.Meta(ge=0, le=1000)] = 5
    turns: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 3


class ComponentOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Options of the components of the system context, see ``session.create``.

    ``harness``: the one whose instruction files and skills are read; None: the first word of the agent's name, else
    codex. ``home``: the agent's home directory, by the agent's path; ``shell``: its shell; None: those of the user who
    creates the session, nothing for an agent in a sandbox. ``zone``: the IANA time zone of the date; None: the host's.
    """

    harness: Harness | None = None
    home: Annotated[str, msgspec.Meta(min_length=1, max_length=4096)] | None = None
    shell: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    zone: Annotated[str, msgspec.Meta(min_length=1, max_length=64)] | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """One chat message. With ``role`` ``toolcall`` it is a tool result: ``toolcall`` is the id of the object, and
    ``content`` is empty.

    ``meta`` is data of the harness (model, usage, stop reason) and is stored unchanged. ``secrets``: the daemon's
    findings in content and ``meta``; a client's value is ignored.
    """

    role: Role
    content: str = ""
    toolcall: str | None = None
    meta: dict[str, Any] | None = None
    secrets: Secrets | None = None


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One turn: a user message and every message up to the next one, in order."""

    number: int
    messages: tuple[Message, ...]


class Removal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Removal of a session: at ``at``, ms since 1970, by the principal ``by``, through the connection ``via``.

    ``state``: the session's previous state, which ``session.restore`` restores. ``idle``: ``session.gc`` retired it.
    """

    at: int
    by: str
    via: str
    state: SessionStatus
    idle: bool = False


class Project(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The project of a session. ``directory``: the working tree of its git repository or, without one, the session's
    directory; a path of the host. ``path``: the session's directory relative to it, empty if they are the same.

    ``remotes``: the addresses of the repository's remotes, without credentials and in a form that is independent of the
    protocol; that of ``origin`` is first. ``roots``: its root commits, sorted; empty for a shallow clone, and if git
    took too long.
    """

    directory: str
    path: str = ""
    remotes: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()


class SessionOrigin(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The origin of a session that continues another: that ``session``, and the ``commit`` if it was not the newest one
    at that moment."""

    session: str | None = None
    commit: str | None = None


PURGED_TEXT: Final = "[purged]"
"""Stands for a text that was purged, such as a title or that of an event."""


class RecordedSession(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """Data of a harness's own record of a session: its ``title``, the first ``prompt``, and the times of the first and
    the last event, ``began_at`` and ``ended_at`` in ms since 1970.

    ``permissions``: those granted to the harness, by its own names and values. They are shown, but never applied.
    """

    title: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    prompt: Annotated[str, msgspec.Meta(max_length=1000)] = ""
    began_at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    ended_at: Annotated[int, msgspec.Meta(ge=0)] | None = None
    permissions: dict[str, Any] = {}


class SessionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a session listing. ``preview`` is the start of the newest user message. Times are ms since 1970.

    ``workdir`` is the agent's working directory. ``host``: the name of the last host that wrote to the session, None
    for sessions of this host. ``harness``: the value of the label ``harness``, set by hooks and imports. ``title``: the
    one set by ``session.annotate``, else the harness's, else the first prompt. Times of an imported session are those
    of its events. ``origin``: that of a session that continues another.
    """

    session: str
    agent: str
    state: SessionStatus
    created_at: int
    updated_at: int
    turn_count: int
    index_count: int
    active_count: int
    preview: str
    labels: dict[str, str]
    workdir: str = "/"
    host: str | None = None
    removed: Removal | None = None
    harness: str | None = None
    project: Project | None = None
    title: str = ""
    archived: bool = False
    origin: SessionOrigin | None = None


class SessionView(msgspec.Struct, frozen=True, kw_only=True):
    """A whole session: its settings, and its four sets as object ids in order of entry.

    Paths outside all mounts are on ``filesystem_id`` or, with ``detect_filesystems``, on the filesystem of their
    device. ``project`` and ``origin`` are not shown in a sandbox.
    """

    session: str
    agent: str
    principal: str
    state: SessionStatus
    created_at: int
    updated_at: int
    chat_ref: str
    system_prompt_ref: str
    turn_count: int
    workdir: str
    filesystem_id: str
    detect_filesystems: bool
    mounts: tuple[Mount, ...]
    collapse: Collapse
    budget_tokens: int | None
    labels: dict[str, str]
    secrets: SecretPolicy
    session_index: tuple[str, ...]
    metadata_pool: tuple[str, ...]
    active_set: tuple[str, ...]
    pinned_set: tuple[str, ...]
    components: tuple[ComponentName, ...] = ()
    entries: tuple[str, ...] = ()
    component_options: ComponentOptions = ComponentOptions()
    removed: Removal | None = None
    checkpoint: CheckpointPolicy = "none"
    project: Project | None = None
    title: str = ""
    archived: bool = False
    recorded: RecordedSession | None = None
    origin: SessionOrigin | None = None


class Reconciled(msgspec.Struct, frozen=True, kw_only=True):
    """Outcome of a file check at resume: counts, and the ids of all objects that changed."""

    unchanged: int
    unread: int
    updated: tuple[str, ...]
    deleted: tuple[str, ...]
    orphaned: tuple[str, ...]


class SharingHost(msgspec.Struct, frozen=True, kw_only=True):
    """One host on the shared log. ``sessions``: number of sessions that it owns and has not released; ``released``:
    number of those that any host may take. ``lag_rows``: its journal rows that its node lacks; for another host, as of
    its newest lease. ``lease_left_ms``: time until its lease expires unless renewed; None for this host.
    """

    host: str
    here: bool
    sessions: int
    released: int
    lag_rows: int
    lease_left_ms: int | None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A change of an object that this session has read, made by another session or found on disk.

    ``seq`` is the journal sequence of the change: pass the last one seen as ``after`` to continue.
    """

    seq: int
    session: str
    object: str
    path: str | None
    change: Literal["updated", "deleted"]
    by_session: str | None
    content_hash: str | None
    valid_time: int
