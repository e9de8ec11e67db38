"""What ``session.*`` takes and answers: sessions, their chat, what is in their window, and notices to them."""

from typing import Annotated, Any

import msgspec

from ctxd_protocol.ids import ObjectIdText, OpIdText, SessionIdText
from ctxd_protocol.methods.parts import PageSize, Params, PathText, Result
from ctxd_protocol.objects import Receipt
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import (
    Collapse,
    ContextLevel,
    Message,
    Mount,
    Notice,
    SessionStatus,
    SessionSummary,
    SessionView,
)


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
    """Filters, all of which must hold: ``label`` is ``name=value``, ``text`` occurs in id, agent or preview.

    ``elsewhere``: the sessions of other hosts instead of this one's, in the order of their ids.
    """

    state: SessionStatus | None = None
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
