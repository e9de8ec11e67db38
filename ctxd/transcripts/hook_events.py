"""Conversion of a hook's input to the call or the events to record. Pure.

Claude Code and codex pass one JSON object to a hook; the extension for pi and the plugin for opencode use the same
form. Prompts, tool calls and sub-agents have the same ids in the transcript of the session.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from ctxd.transcripts.claude_code import INJECTED, read_session, without_notices, wrapper_of
from ctxd.transcripts.codex import HISTORY, context_kind, is_failed_command, read_rollout
from ctxd.transcripts.hooked_outputs import output_of
from ctxd.transcripts.opencode import SYNTHETIC
from ctxd.transcripts.record_decoding import (
    Entry,
    Line,
    Record,
    args_object,
    as_text,
    decoded,
    flattened,
    record_of,
)
from ctxd_protocol import event_types as typed
from ctxd_protocol.ids import TOOLCALL_ID_PATTERN, captured_session_id, native_op_id
from ctxd_protocol.object_types import ToolcallStatus
from ctxd_protocol.session_types import Harness

_ENVELOPE: Final = (
    "session_id",
    "transcript_path",
    "transcript_lines",
    "earlier_calls",
    "cwd",
    "hook_event_name",
    "agent_id",
)
_STATED: Final = {
    "SessionStart": "source",
    "SessionEnd": "reason",
    "PreCompact": "trigger",
    "SubagentStart": "agent_type",
}
"""Events that become a notice in the conversation, with the member for its text."""

_UNRECORDED: Final = frozenset({"PostToolBatch", "PermissionRequest", "InstructionsLoaded", "MessageDisplay"})
"""Events that are not recorded, as other events have the same content."""


_READERS: Final[dict[str, Callable[[Iterable[Line]], Iterator[Entry]]]] = {
    "claude-code": read_session,
    "codex": read_rollout,
}
"""Readers of the transcripts of harnesses whose hooks do not report all texts."""


_OF_HARNESS: Final = frozenset({"system", "loop_wakeup", "schedule_wakeup", "poll_event"})
"""Sources of the prompts that Claude Code itself submits."""

_NAMING: Final = ("command", "cmd", "file_path", "filePath", "path", "pattern", "query", "url", "description", "input")
"""Arguments that describe a tool call; the first one present is displayed."""

_DISPLAY_CHARS_MAX: Final = 200


_GRANTS: Final = ("permission_mode", "approval_policy", "sandbox_mode")
"""Members that hold the permissions of the harness."""


_REUSED: Final = re.compile(r"~[0-9a-f]{8}")
"""End of the id of a call whose native id an earlier call of the session has: some providers restart the numbers of
calls in each reply."""

_REUSED_CHARS_MAX: Final = 1000


def native_call_id(call: str) -> str:
    """Return the harness's own id of a call recorded as ``call``."""
    return call[:-9] if _REUSED.fullmatch(call[-9:]) else call


def another_call_id(call: str, *content: object) -> str:
    """Return the id of a call whose native id an earlier ``call`` has. ``content``: its tool and arguments, and its
    output if an earlier call has these too."""
    return f"{native_call_id(call)}~{_digest(msgspec.json.encode(content, order='sorted').decode())[:8]}"


class HookedCall(NamedTuple):
    """One tool call in the main conversation, with its output as text. ``is_started``: the call is already recorded,
    without the output. A call whose output has ``attachments``, at the time ``at``, is recorded as events, the others
    as objects, which have only text."""

    call: str
    tool: str
    args: dict[str, Any]
    text: str
    status: ToolcallStatus
    is_started: bool = False
    attachments: tuple[typed.Attachment, ...] = ()
    at: int | None = None

    def op_id(self, session: str) -> str | None:
        """Return the operation id with which ``events`` are recorded; None without attachments."""
        return native_op_id(session, "call", self.call) if self.attachments else None

    @property
    def events(self) -> tuple[typed.Event, ...]:
        """The call and its output as events; only the output if the call is already recorded."""
        output = typed.ToolResultEvent(
            call=self.call, text=self.text, attachments=self.attachments, is_error=self.status != "ok", at=self.at
        )
        if self.is_started:
            return (output,)
        return typed.ToolCallEvent(call=self.call, tool=self.tool, args=self.args, at=self.at), output

    @property
    def output(self) -> tuple[object, ...]:
        """The output as content for ``another_call_id``."""
        return (self.text, self.attachments) if self.attachments else (self.text,)

    @property
    def display(self) -> str | None:
        """The beginning of the command, path or other argument that describes the call; None without one."""
        named = next((text for name in _NAMING if (text := as_text(self.args.get(name)).strip())), "")
        return " ".join(named[:_DISPLAY_CHARS_MAX].split()) or None


class HookInput(NamedTuple):
    """One event of a harness for ``session``: a tool call with its output, or ``events``; neither for some hooks.

    ``op_id``: the operation id derived from the harness's own ids; None if the harness gives none. ``start_op_id``:
    that of the start of the tool call. ``texts``: texts of the model before the call, each with its own operation id.
    ``response``: the output of the tool in the harness's own form.
    ``permissions``: the permissions in the input. ``kept``: the first messages that a compaction keeps in the window.
    ``earlier``: the ids of the calls before the tool call in the same response.
    ``spawned_by``: the harness's own id of the session whose sub-agent it is, empty if the harness names none.
    """

    session: str
    native_session: str
    cwd: str
    event: str
    call: HookedCall | None = None
    events: tuple[typed.Event, ...] = ()
    op_id: str | None = None
    start_op_id: str | None = None
    texts: tuple[tuple[str, typed.ResponseEvent], ...] = ()
    response: object = None
    permissions: dict[str, Any] = {}
    kept: tuple[typed.Event, ...] = ()
    earlier: tuple[str, ...] = ()
    spawned_by: str = ""

    @property
    def is_start(self) -> bool:
        """True for the start of a tool call; another event has its output."""
        return self.start_op_id is not None and self.start_op_id == self.op_id

    def without_start(self) -> "HookInput":
        """Return the input with only the output of the tool call, as its start is already recorded."""
        if self.call is not None:
            return self._replace(call=self.call._replace(is_started=True))
        return self._replace(events=tuple(each for each in self.events if isinstance(each, typed.ToolResultEvent)))

    @property
    def call_id(self) -> str:
        """The id of the call that the event starts or ends in the conversation; empty for any other event."""
        if self.call is not None:
            return self.call.call
        event = self.events[0] if self.is_start else None
        return event.call if isinstance(event, typed.ToolCallEvent) and event.sidechain is None else ""

    def of_another_call(self, *content: object) -> "HookInput":
        """Return the input with ``another_call_id`` of its call for ``content``. Unchanged without ``call_id``, and for
        one that is too long."""
        if not 0 < len(self.call_id) <= _REUSED_CHARS_MAX:
            return self
        id = another_call_id(self.call_id, *content)
        start = native_op_id(self.session, "start", id)
        if self.call is not None:
            call = self.call._replace(call=id, is_started=False)
            return self._replace(call=call, op_id=call.op_id(self.session), start_op_id=start)
        started = msgspec.structs.replace(self.events[0], call=id)
        return self._replace(events=(started,), op_id=start, start_op_id=start)

    @property
    def is_end(self) -> bool:
        """True for the end of the harness's session, or of a sub-agent's task in a session of its own."""
        return self.event == "SessionEnd" or (self.event == "SubagentStop" and bool(self.spawned_by))


def read_hook(harness: Harness, text: str, at: int | None) -> HookInput:
    """Read the input of a hook that ran at time ``at``, in ms. Raises: ValueError, with the reason."""
    record = decoded(flattened(text.encode("utf-8", "replace")))
    if not isinstance(record, dict):
        raise ValueError("the input of a hook is a JSON object")
    native, event = as_text(record.get("session_id")), as_text(record.get("hook_event_name"))
    if not native or not event:
        missing = "hook_event_name" if native else "session_id"
        raise ValueError(f"the input of a hook has a text {missing}, this one has none")
    agent, caller = as_text(record.get("agent_id")), as_text(record.get("spawned_by"))
    if harness == "codex" and agent:
        # A sub-agent of codex is a thread of its own, with its own rollout.
        native, agent, caller = agent, "", native
    cwd = as_text(record.get("cwd"))
    found = HookInput(
        captured_session_id(harness, native),
        native,
        cwd if cwd.startswith("/") and len(cwd) <= 4096 and "\0" not in cwd else "/",
        event,
        permissions={name: record[name] for name in _GRANTS if isinstance(record.get(name), str) and record[name]},
        spawned_by=caller,
    )
    place: dict[str, Any] = {"at": at, "sidechain": agent or None}
    match event:
        case "PreToolUse":
            return _with_texts(harness, _start(found, record, place), record, place)
        case "PostToolUse" | "PostToolUseFailure":
            is_failed = event == "PostToolUseFailure" or (harness == "codex" and _is_failed_command(record))
            return _with_texts(harness, _tool(found, record, place, is_failed=is_failed), record, place)
        case "UserPromptSubmit":
            return _prompt(harness, found, record, place)
        case _ if event in _MESSAGES:
            return _MESSAGES[event](found, record, place)
        case "PostCompact":
            return _compaction(found, record, place, tuple(_lines_of(harness, record, place)))
        case _ if event in _UNRECORDED:
            return found
        case _:
            return found._replace(events=(_notice(event, record, place),))


def _notice(event: str, record: Record, place: dict[str, Any]) -> typed.Event:
    """Return what is recorded of an event that is neither a call nor a message."""
    if event not in _STATED:
        return typed.OpaqueEvent(kind=event, data=_rest(record), **place)
    return typed.SystemEvent(text=as_text(record.get(_STATED[event])), kind=_kind(event), meta=_rest(record), **place)


def _prompt(harness: Harness, found: HookInput, record: Record, place: dict[str, Any]) -> HookInput:
    text, id = as_text(record.get("prompt")), _turn(record)
    if not text:
        return found._replace(events=(typed.SystemEvent(kind="empty_prompt", meta=_rest(record), **place),))
    meta = _rest(record, "prompt", "prompt_id", "turn_id")
    # codex accepts several prompts in one turn.
    op_id = None if id is None else native_op_id(found.session, "prompt", id, _digest(text))
    # A person may begin a prompt with the tags of another harness.
    is_claude = harness == "claude-code"
    wrapper = wrapper_of(text) if is_claude else context_kind(text) if harness == "codex" else None
    if wrapper is None and is_claude and as_text(record.get("source")) in _OF_HARNESS:
        wrapper = INJECTED
    if wrapper is not None:
        notice = typed.SystemEvent(id=id, text=text, kind=wrapper, meta=meta, **place)
        return found._replace(events=(notice,), op_id=op_id)
    notices, own = without_notices(text) if is_claude else ([], text)
    prompt = typed.PromptEvent(id=id, text=own, meta=meta, **place)
    return found._replace(events=(*(msgspec.structs.replace(each, **place) for each in notices), prompt), op_id=op_id)


def _synthetic_text(found: HookInput, record: Record, place: dict[str, Any]) -> HookInput:
    id = as_text(record.get("part_id"))
    event = typed.SystemEvent(
        id=id or None, text=as_text(record.get("text")), kind=SYNTHETIC, meta=_rest(record, "text", "part_id"), **place
    )
    return found._replace(events=(event,), op_id=native_op_id(found.session, SYNTHETIC, id) if id else None)


def _start(found: HookInput, record: Record, place: dict[str, Any]) -> HookInput:
    call = _call_id(record)
    if call is None:
        return found  # Without an id, its output could not be matched to it.
    args = record.get("tool_input") if place["sidechain"] else args_object(record.get("tool_input"))
    event = typed.ToolCallEvent(call=call, tool=_tool_name(record), args=args, **place)
    key = native_op_id(found.session, "start", call, *_agent_of(place))
    return found._replace(events=(event,), op_id=key, start_op_id=key)


def _with_texts(harness: Harness, found: HookInput, record: Record, place: dict[str, Any]) -> HookInput:
    """Return ``found`` with the texts and the calls before the call, which ``ctx-hook`` has added from the
    transcript."""
    texts = []
    for event in _lines_of(harness, record, place):
        if isinstance(event, typed.ResponseEvent) and event.text and event.sidechain is None:
            # Calls of one response follow the same text, so its operation id must not depend on the call.
            id = event.id or f"{event.at} {_digest(event.text)}"
            at = place["at"] if event.at is None else event.at
            response = typed.ResponseEvent(id=event.id, text=event.text, model=event.model, at=at)
            texts.append((native_op_id(found.session, "text", id), response))
    earlier = record.get("earlier_calls")
    if not isinstance(earlier, list) or place["sidechain"] is not None:
        return found._replace(texts=tuple(texts))
    calls = (call for each in earlier if (call := _accepted_id(as_text(each))) is not None)
    return found._replace(texts=tuple(texts), earlier=tuple(calls))


def _lines_of(harness: Harness, record: Record, place: dict[str, Any]) -> Iterator[typed.Event]:
    """Yield the events of the transcript lines that ``ctx-hook`` added to the input."""
    lines, read = record.get("transcript_lines"), _READERS.get(harness)
    if read is not None and isinstance(lines, list) and place["sidechain"] is None:
        found = (Line(number, record_of(_json_of(as_text(line)))) for number, line in enumerate(lines))
        yield from (entry.event for entry in read(found))


def _json_of(text: str) -> object:
    try:
        return decoded(flattened(text.encode("utf-8", "replace")))
    except ValueError:
        return None


def _is_failed_command(record: Record) -> bool:
    """Return True for a command of codex that failed. codex gives a hook the output without the exit code, which
    ``ctx-hook`` adds from the transcript."""
    response = record.get("tool_response")
    return record.get("exit_code") not in (0, None) or (isinstance(response, str) and is_failed_command(response))


def _tool(found: HookInput, record: Record, place: dict[str, Any], *, is_failed: bool) -> HookInput:
    call, tool = _call_id(record), _tool_name(record)
    start = None if call is None else native_op_id(found.session, "start", call, *_agent_of(place))
    call = call or f"call-{_digest(msgspec.json.encode(record).decode())}"
    response = record.get("error" if record.get("hook_event_name") == "PostToolUseFailure" else "tool_response")
    output = output_of(response)
    failed = is_failed or record.get("is_error") is True
    status: ToolcallStatus = "aborted" if record.get("is_interrupt") is True else "fail" if failed else "ok"
    found = found._replace(start_op_id=start, response=response)
    if place["sidechain"] is None:
        args = args_object(record.get("tool_input"))
        made = HookedCall(call, tool, args, output.text, status, attachments=output.attachments, at=place["at"])
        return found._replace(call=made, op_id=made.op_id(found.session))
    # Only tool calls of the main conversation become objects: those of a sub-agent are recorded as events.
    events = (
        typed.ToolCallEvent(call=call, tool=tool, args=record.get("tool_input"), **place),
        typed.ToolResultEvent(
            call=call, text=output.text, attachments=output.attachments, is_error=status != "ok", **place
        ),
    )
    return found._replace(events=events, op_id=native_op_id(found.session, "call", call, *_agent_of(place)))


def _agent_of(place: dict[str, Any]) -> tuple[str, ...]:
    """Return the sub-agent of an event as a part of its key; empty for the conversation."""
    return () if place["sidechain"] is None else (place["sidechain"],)


def _call_id(record: Record) -> str | None:
    """Return the id of the tool call."""
    return _accepted_id(as_text(record.get("tool_use_id")))


def _accepted_id(call: str) -> str | None:
    """Return the id of a tool call, or its hash if ctxd does not accept it; None for an empty one."""
    return call if re.fullmatch(TOOLCALL_ID_PATTERN, call) else f"call-{_digest(call)}" if call else None


def _tool_name(record: Record) -> str:
    return as_text(record.get("tool_name"))[:128] or "unnamed"


def _response(found: HookInput, record: Record, place: dict[str, Any]) -> HookInput:
    text = as_text(record.get("last_assistant_message"))
    meta = _rest(record, "last_assistant_message", "prompt_id", "turn_id", "model")
    if not text:
        return found._replace(events=(typed.SystemEvent(kind=_kind(found.event), meta=meta, **place),))
    turn = _turn(record)
    event = typed.ResponseEvent(text=text, model=as_text(record.get("model")) or None, parent=turn, meta=meta, **place)
    # A turn that a hook continues has several responses.
    key = (
        None if turn is None else native_op_id(found.session, "response", turn, place["sidechain"] or "", _digest(text))
    )
    return found._replace(events=(event,), op_id=key)


_MESSAGES: Final = {
    "SyntheticText": _synthetic_text,
    "Stop": _response,
    "SubagentStop": _response,
}
"""Readers of the events that are one message of the conversation."""


def _compaction(found: HookInput, record: Record, place: dict[str, Any], lines: tuple[typed.Event, ...]) -> HookInput:
    summary, meta = as_text(record.get("compact_summary")), _rest(record, "compact_summary")
    if not summary:
        return found._replace(events=(_codex_compaction(lines, meta, place),))
    kept, before = as_text(record.get("kept_from")) or None, record.get("tokens_before")
    tokens = before if isinstance(before, int) and not isinstance(before, bool) and before >= 0 else None
    event = typed.CompactionEvent(summary=summary, kept_from=kept, tokens_before=tokens, meta=meta, **place)
    return found._replace(events=(event,), kept=lines)


def _codex_compaction(
    lines: tuple[typed.Event, ...], meta: dict[str, Any] | None, place: dict[str, Any]
) -> typed.Event:
    """Return the compaction in the record that ``ctx-hook`` has added, as codex reports no summary. A notice without
    one: a compaction without a summary would leave the window empty."""
    for event in lines:
        if isinstance(event, typed.CompactionEvent) and (event.summary or HISTORY in (event.meta or {})):
            both = {**(meta or {}), **(event.meta or {})}
            return typed.CompactionEvent(summary=event.summary, meta=both or None, **place)
    return typed.SystemEvent(kind="post_compact", meta=meta, **place)


def _turn(record: Record) -> str | None:
    return as_text(record.get("prompt_id")) or as_text(record.get("turn_id")) or None


def _rest(record: Record, *used: str) -> dict[str, Any] | None:
    return {name: value for name, value in record.items() if name not in (*_ENVELOPE, *used)} or None


def _kind(event: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event).lower()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:32]
