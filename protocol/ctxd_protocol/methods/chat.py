"""Methods ``session.*`` on the chat: the events that are appended, its turns, the transcript, and the system prompt."""

from typing import Annotated, Any, Final

import msgspec

from ctxd_protocol.event_types import Event
from ctxd_protocol.ids import OpIdText
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    SESSION_ERRORS,
    Method,
    Milliseconds,
    PageSize,
    Result,
    SessionParams,
    WriteResult,
)
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.session_types import Message


class SessionAppendParams(SessionParams, frozen=True, kw_only=True):
    """A session and the messages or the typed events to add, in order.

    Either ``messages`` or ``events`` is given. A user message without content, and a prompt without text or attachment,
    are refused. An event with an ``object`` represents the output of that tool call and has no text of its own.
    """

    messages: Annotated[tuple[Message, ...], msgspec.Meta(max_length=1000)] = ()
    op_id: OpIdText | None = None
    events: Annotated[tuple[Event, ...], msgspec.Meta(max_length=1000)] = ()


class SessionAppendResult(Result, frozen=True, kw_only=True):
    """The number of the turn that the last message or event belongs to."""

    turn: int
    receipt: Receipt | None


class SystemPromptParams(SessionParams, frozen=True, kw_only=True):
    """The new system prompt. ``valid_time``: see ``file.index``."""

    content: str
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class SessionTurnParams(SessionParams, frozen=True, kw_only=True):
    """A turn of a session: ``back`` turns before a reference turn.

    The reference is ``turn``, or the turn in progress at ``valid_time``, or by default the newest. Turns are numbered
    by user message from 1; turn 0 has the messages before the first.
    """

    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    valid_time: Milliseconds | None = None
    back: Annotated[int, msgspec.Meta(ge=0)] = 0


class SessionTurnResult(Result, frozen=True, kw_only=True):
    """A turn. ``tx``: the journal sequence at its end, for reads as of then; None for the newest, which is open.
    ``has_later``: True if the write at its end also has the start of the next turn, which reads as of then have too."""

    session: str
    turn: int
    turn_count: int
    tx: int | None
    has_later: bool = False


class ChatResult(Result, frozen=True, kw_only=True):
    """Turns in order; no ``next_turn`` at the end."""

    session: str
    turn_count: int
    turns: tuple[Any, ...]
    next_turn: int | None


class ChatParams(SessionParams, frozen=True, kw_only=True):
    """A range of turns.

    Turn 0 has the messages before the first user message.
    """

    first_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class LoggedEvent(Result, frozen=True, kw_only=True):
    """One event of the chat: its ``turn``, its number ``place`` in that turn, from 0, and the sequence of its write.

    ``event`` has the members that ``session.append`` takes.
    """

    turn: int
    place: int
    seq: int
    event: Any


class EventLogResult(Result, frozen=True, kw_only=True):
    """Events in order; no ``next_cursor`` at the end."""

    session: str
    turn_count: int
    events: tuple[LoggedEvent, ...]
    next_cursor: str | None


class EventLogParams(SessionParams, frozen=True, kw_only=True):
    """A part of the chat's event log: every event, including those that ``session.chat`` does not show.

    It begins at ``first_turn``, or continues at ``cursor``, which an earlier call for this session returned; not both.
    Turn 0 has the events before the first prompt.
    """

    first_turn: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100
    cursor: str | None = None


class SessionExportParams(SessionParams, frozen=True, kw_only=True):
    """A session, and the page to export."""

    limit: PageSize = 100
    cursor: str | None = None


class SessionExportResult(Result, frozen=True, kw_only=True):
    """One page of transcript records; no ``next_cursor`` at the end.

    Every secret is replaced by ``[REDACTED:rule:tag]``. The member ``record`` is the kind of a record. The order is:
    ``session`` with its ``entries``; ``system_prompt``; by turn, each ``message``, followed by its ``toolcall`` if it
    is a tool result, and each ``event`` without a message; the other objects of the session, ``toolcall``, and ``file``
    without content; the ``usage`` of each request. An ``object`` of state ``unknown`` no longer has a version. Messages
    that arrive after the first page are left out.
    """

    records: tuple[dict[str, Any], ...]
    next_cursor: str | None


ROWS: Final = (
    Method(
        name="session.append",
        params=SessionAppendParams,
        result=SessionAppendResult,
        access="record",
        writes=True,
        handle="append",
        summary="Add chat messages, or typed events; a user message or prompt starts a turn.",
        errors=(*ACTIVE_ERRORS, "not_in_index"),
        example={"session": "s1", "messages": [{"role": "user", "content": "fix it"}]},
        shows=".turn",
        positional=("messages",),
    ),
    Method(
        name="session.set_system_prompt",
        params=SystemPromptParams,
        result=WriteResult,
        access="prompt",
        writes=True,
        handle="set_system_prompt",
        summary="Replace the system prompt.",
        errors=ACTIVE_ERRORS,
        example={"session": "s1", "content": "Be brief."},
    ),
    Method(
        name="session.turn",
        params=SessionTurnParams,
        result=SessionTurnResult,
        access="read",
        handle="turn",
        summary="Find a turn by its number, its distance from the newest, or a time.",
        errors=(*SESSION_ERRORS, "turn_not_found"),
        example={"session": "s1", "back": 1},
        shows=".tx",
    ),
    Method(
        name="session.chat",
        params=ChatParams,
        result=ChatResult,
        access="read",
        handle="chat",
        summary="Get the chat, turn by turn.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".turns",
    ),
    Method(
        name="session.events",
        params=EventLogParams,
        result=EventLogResult,
        access="read",
        handle="events",
        summary="Get the chat as typed events, page by page.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".events",
    ),
    Method(
        name="session.export",
        params=SessionExportParams,
        result=SessionExportResult,
        access="host",
        handle="export",
        summary="Get a page of the redacted transcript.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".records",
    ),
)
