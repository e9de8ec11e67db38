"""Calls that start, change and read sessions."""

from collections.abc import Mapping, Sequence

from ctxd_client.wire import EMPTY, Call
from ctxd_protocol.methods import (
    ChatParams,
    ChatResult,
    NoticesParams,
    NoticesResult,
    SessionAppendParams,
    SessionAppendResult,
    SessionConfigureParams,
    SessionCreateParams,
    SessionExportParams,
    SessionExportResult,
    SessionListParams,
    SessionListResult,
    SessionOwnerResult,
    SessionParams,
    SessionResult,
    SessionResumeResult,
    SessionWriteParams,
    SystemPromptParams,
    WriteResult,
)
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Message, Mount, SessionStatus


def session_create(
    agent: str,
    *,
    session: str | None = None,
    system_prompt: str = "",
    workdir: str = "/",
    filesystem_id: str | None = None,
    detect_filesystems: bool = False,
    mounts: Sequence[Mount] = (),
    collapse: Collapse | None = None,
    budget_tokens: int | None = None,
    labels: Mapping[str, str] = EMPTY,
    secrets: SecretPolicy | None = None,
    op_id: str | None = None,
) -> Call[SessionResult]:
    """Start a session. Without ``session`` the daemon chooses its id, without ``collapse`` the auto-collapse window.

    Example: ``created = await client.session_create("demo", workdir="/workspace")``
    """
    return Call(
        "session.create",
        SessionCreateParams(
            agent=agent,
            session=session,
            system_prompt=system_prompt,
            workdir=workdir,
            filesystem_id=filesystem_id,
            detect_filesystems=detect_filesystems,
            mounts=tuple(mounts),
            collapse=collapse,
            budget_tokens=budget_tokens,
            labels=dict(labels),
            secrets=secrets,
            op_id=op_id,
        ),
        SessionResult,
    )


def session_configure(
    session: str,
    *,
    workdir: str | None = None,
    mounts: Sequence[Mount] | None = None,
    collapse: Collapse | None = None,
    budget_tokens: int | None = None,
    labels: dict[str, str] | None = None,
    secrets: SecretPolicy | None = None,
    op_id: str | None = None,
) -> Call[SessionResult]:
    """Change a session's settings; what is left out stays. ``budget_tokens`` 0 removes the budget.

    Example: ``await client.session_configure("s1", budget_tokens=128_000)``
    """
    return Call(
        "session.configure",
        SessionConfigureParams(
            session=session,
            workdir=workdir,
            mounts=None if mounts is None else tuple(mounts),
            collapse=collapse,
            budget_tokens=budget_tokens,
            labels=labels,
            secrets=secrets,
            op_id=op_id,
        ),
        SessionResult,
    )


def session_list(
    *,
    state: SessionStatus | None = None,
    agent: str | None = None,
    label: str | None = None,
    text: str | None = None,
    limit: int = 100,
    cursor: str | None = None,
    elsewhere: bool = False,
) -> Call[SessionListResult]:
    """One page of sessions, newest first, or of those of other hosts. Pass ``next_cursor`` as ``cursor`` for the next.

    Example: ``page = await client.session_list(state="active")``
    """
    return Call(
        "session.list",
        SessionListParams(
            state=state, agent=agent, label=label, text=text, elsewhere=elsewhere, limit=limit, cursor=cursor
        ),
        SessionListResult,
    )


def session_get(session: str) -> Call[SessionResult]:
    """One session whole: its settings and its four sets.

    Example: ``(await client.session_get("s1")).session.active_set``
    """
    return Call("session.get", SessionParams(session=session), SessionResult)


def session_owner(session: str) -> Call[SessionOwnerResult]:
    """Which of several hosts a session is on, and whether it can be resumed here.

    Example: ``(await client.session_owner("s1")).host``
    """
    return Call("session.owner", SessionParams(session=session), SessionOwnerResult)


def session_pause(
    session: str,
    *,
    op_id: str | None = None,
) -> Call[SessionResult]:
    """Set a session aside; nothing is lost.

    Example: ``await client.session_pause("s1")``
    """
    return Call("session.pause", SessionWriteParams(session=session, op_id=op_id), SessionResult)


def session_resume(
    session: str,
    *,
    op_id: str | None = None,
) -> Call[SessionResumeResult]:
    """Take a session up again; its files are checked and what changed is told.

    Example: ``(await client.session_resume("s1")).reconciled.updated``
    """
    return Call("session.resume", SessionWriteParams(session=session, op_id=op_id), SessionResumeResult)


def session_close(
    session: str,
    *,
    op_id: str | None = None,
) -> Call[SessionResult]:
    """End a session for good; it stays readable.

    Example: ``await client.session_close("s1")``
    """
    return Call("session.close", SessionWriteParams(session=session, op_id=op_id), SessionResult)


def session_append(
    session: str,
    messages: Sequence[Message],
    *,
    op_id: str | None = None,
) -> Call[SessionAppendResult]:
    """Add chat messages; a user message starts a turn.

    Example: ``await client.session_append("s1", [Message(role="user", content="fix it")])``
    """
    return Call(
        "session.append",
        SessionAppendParams(session=session, messages=tuple(messages), op_id=op_id),
        SessionAppendResult,
    )


def session_set_system_prompt(
    session: str,
    content: str,
    *,
    op_id: str | None = None,
) -> Call[WriteResult]:
    """Replace the system prompt.

    Example: ``await client.session_set_system_prompt("s1", "Be brief.")``
    """
    return Call(
        "session.set_system_prompt", SystemPromptParams(session=session, content=content, op_id=op_id), WriteResult
    )


def session_chat(
    session: str,
    *,
    first_turn: int = 0,
    limit: int = 100,
) -> Call[ChatResult]:
    """The chat from ``first_turn`` on, turn by turn.

    Example: ``(await client.session_chat("s1")).turns``
    """
    return Call("session.chat", ChatParams(session=session, first_turn=first_turn, limit=limit), ChatResult)


def session_export(session: str, *, limit: int = 100, cursor: str | None = None) -> Call[SessionExportResult]:
    """A page of the session's transcript, with every secret in it replaced.

    Example: ``(await client.session_export("s1")).records``
    """
    params = SessionExportParams(session=session, limit=limit, cursor=cursor)
    return Call("session.export", params, SessionExportResult)


def session_notices(
    session: str,
    *,
    after: int = 0,
    limit: int = 100,
) -> Call[NoticesResult]:
    """What others changed of what this session has read, from journal sequence ``after`` on.

    Example: ``(await client.session_notices("s1", after=41)).notices``
    """
    return Call("session.notices", NoticesParams(session=session, after=after, limit=limit), NoticesResult)
