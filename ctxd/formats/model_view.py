"""Events that the model of a harness sees in its own session, and their form, for a session that it continues. Pure."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

from ctxd.formats.losses import Losses
from ctxd.transcripts.claude_code import ASKED_BY_OTHERS, BEFORE_PROMPTS, wrapper_of
from ctxd.transcripts.codex import UNNAMED
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.opencode import SUBTASK, SYNTHETIC
from ctxd.transcripts.record_decoding import Record, as_text, record_of, records_of, rest
from ctxd_protocol import event_types as typed

_SEEN_BY_MODEL: Final[dict[HarnessCommand, frozenset[str]]] = {
    "claude": frozenset(
        {
            "meta",
            "interrupted",
            "command-name",
            "command-message",
            "command-args",
            "local-command-stdout",
            "local-command-stderr",
            "local-command-caveat",
            "bash-input",
            "bash-stdout",
            "bash-stderr",
            "task-notification",
            "user-memory-input",
            "mcp-resource-update",
            "mcp-polling-update",
            "tick",
            "post-tool-use-hook",
            *BEFORE_PROMPTS,
            *ASKED_BY_OTHERS,
        }
    ),
    "codex": frozenset(
        {
            "developer",
            "turn_aborted",
            "user_shell_command",
            "skill",
            "user_action",
            "subagent_notification",
            "send_user_message_question_reply",
            "hook_prompt",
            "codex_internal_context",
            "goal_context",
            "extension_context",
            "external_context",
            "agent_message_board_notification",
            "warning",
            UNNAMED,
        }
    ),
    "pi": frozenset({"branch_summary", "custom_message", "bashExecution"}),
    "opencode": frozenset({SYNTHETIC}),
}
"""Kinds of notices in a harness's own sessions that its model sees and that the harness does not add again."""

_CODEX_CONTEXT: Final = re.compile(r"\s*<[a-z_ ]+>", re.ASCII)
"""Start of a text that codex adds to each new session; texts of hooks do not begin with such an element."""

_CLEARED: Final = "[Old tool result content cleared]"
"""Text that opencode sends in place of an output that it has pruned."""

_RUN_BY_USER: Final = "The following tool was executed by the user"
"""Text that opencode sends in place of the prompt of a command that a sub-agent runs; the call has the prompt."""

_INTERRUPTED: Final = "MessageAbortedError"
"""Error of a reply of opencode that the user interrupted."""


def as_seen(events: Iterable[typed.Event], harness: str, losses: Losses) -> Iterator[typed.Event]:
    """Yield ``events`` as the model of ``harness`` sees them; the others are counted in ``losses``."""
    match harness:
        case "claude":
            yield from _claude(list(events), losses)
        case "codex":
            yield from map(_codex, events)
        case "opencode":
            yield from _opencode(events, losses)
        case _:
            yield from events


def is_seen(event: typed.SystemEvent, harness: HarnessCommand) -> bool:
    """Return True for a notice in a harness's own session that is kept there."""
    if harness == "codex" and event.kind == "developer" and _CODEX_CONTEXT.match(event.text):
        return False
    has_content = event.kind == "bashExecution" or "content" in (event.meta or {})
    return event.kind in _SEEN_BY_MODEL[harness] and (bool(event.text) or has_content)


def _claude(events: list[typed.Event], losses: Losses) -> Iterator[typed.Event]:
    replaced: dict[str, str] = {}
    for event in events:
        if isinstance(event, typed.OpaqueEvent) and event.kind == "content-replacement":
            replaced.update(_replacements(record_of(event.data)))
    for event in events:
        match event:
            case typed.SystemEvent(kind="local_command", meta=meta) if (meta or {}).get("isDisplayOnly") is True:
                losses.drop(event)
            case typed.SystemEvent(kind="local_command"):
                # The model sees the record as a user message.
                yield msgspec.structs.replace(event, kind=wrapper_of(event.text) or "meta")
            case typed.OpaqueEvent(kind="content-replacement", data=data) if _is_applied(record_of(data)):
                pass
            case typed.ToolResultEvent(call=str(call), sidechain=None) if call in replaced:
                yield msgspec.structs.replace(event, text=replaced[call], attachments=())
            case _:
                yield event


def _replacements(record: Record) -> Iterator[tuple[str, str]]:
    """Yield the calls of the conversation whose outputs the harness has replaced, with the new texts."""
    for each in records_of(record.get("replacements")) if not record.get("agentId") else ():
        match each:
            case {"kind": "tool-result", "toolUseId": str(call), "replacement": str(text)}:
                yield call, text
            case _:
                pass


def _is_applied(record: Record) -> bool:
    """True if all that ``record`` states is in the outputs: it is not left out then."""
    stated = records_of(record.get("replacements"))
    return bool(stated) and len(list(_replacements(record))) == len(stated)


def _codex(event: typed.Event) -> typed.Event:
    """Return a message of another agent as the item that codex makes of it."""
    if not isinstance(event, typed.OpaqueEvent) or event.kind != "inter_agent_communication":
        return event
    payload = record_of(record_of(event.data).get("payload"))
    content = [{"type": "input_text", "text": as_text(payload.get("content"))}]
    if encrypted := as_text(payload.get("encrypted_content")):
        kind = "NEW_TASK" if payload.get("trigger_turn") else "MESSAGE"
        sender, recipient = as_text(payload.get("author")), as_text(payload.get("recipient"))
        head = f"Message Type: {kind}\nTask name: {recipient}\nSender: {sender}\nPayload:\n"
        content = [
            {"type": "input_text", "text": head}, {"type": "encrypted_content", "encrypted_content": encrypted},
        ]  # fmt: skip
    item = {"type": "agent_message", "author": payload.get("author"), "recipient": payload.get("recipient")}
    return msgspec.structs.replace(event, kind="agent_message", data={**item, "content": content})


def _opencode(events: Iterable[typed.Event], losses: Losses) -> Iterator[typed.Event]:
    failed: set[str | None] = set()
    for event in events:
        meta = getattr(event, "meta", None) or {}
        match event:
            case typed.OpaqueEvent(kind="message", data=dict(info)):
                name = record_of(info.get("error")).get("name")
                if isinstance(name, str) and name != _INTERRUPTED:
                    failed.add(event.message)
                yield event
            case typed.OpaqueEvent():
                yield event
            case _ if event.message is not None and event.message in failed:
                losses.drop(event)
            case typed.SystemEvent() if meta.get("ignored") is True:
                losses.drop(event)
            case typed.PromptEvent() if meta.get("type") == SUBTASK:
                yield msgspec.structs.replace(event, text=_RUN_BY_USER, meta=None)
            case typed.ToolResultEvent():
                yield _output(event, meta)
            case _:
                yield event


def _output(event: typed.ToolResultEvent, meta: Record) -> typed.ToolResultEvent:
    if record_of(meta.get("time")).get("compacted"):
        return msgspec.structs.replace(event, text=_CLEARED, attachments=(), meta=rest(meta, "time"))
    match meta.get("metadata"):
        case {"interrupted": True, "output": str(text)}:
            return msgspec.structs.replace(event, text=text)
        case _:
            return event
