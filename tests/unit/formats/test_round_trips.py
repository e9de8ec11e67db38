"""Sessions that are read and written again in the format of their harness: no event changes."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd_protocol import event_types as typed
from tests.unit.formats.read_back import (
    IMAGE,
    Events,
    codex_again,
    of_codex,
    of_opencode,
    of_pi,
    opencode_again,
    pi_again,
)

ROOT = Path(os.environ.get("CTXD_TRANSCRIPTS") or Path(__file__).resolve().parents[4] / "shared/data/transcripts")
FILES = {
    name: sorted(path for path in (ROOT / name).rglob("*") if path.suffix in {".jsonl", ".json"})
    for name in ("codex", "pi", "opencode-export")
}

AGAIN = {
    "codex": (of_codex, codex_again),
    "pi": (of_pi, pi_again),
    "opencode-export": (of_opencode, opencode_again),
}


def comparable(event: typed.Event, numbered: bool) -> typed.Event:
    """Files of pi's first version number no entry; they are written in the third, which does."""
    if numbered:
        return event
    event = msgspec.structs.replace(event, id=None, parent=None, message=None)
    return (
        msgspec.structs.replace(event, meta=None, kept_from=None)
        if event.__struct_config__.tag == "compaction"
        else event
    )


@pytest.mark.requirement("HND-5")
@pytest.mark.parametrize("name", AGAIN)
def test_real_sessions_come_back_with_the_same_events(name: str) -> None:
    if not FILES[name]:
        pytest.skip(f"no transcripts below {ROOT / name}: set CTXD_TRANSCRIPTS")
    read, write = AGAIN[name]
    for path in FILES[name]:
        events = read(path.read_bytes())
        content, losses = write(events)
        numbered = name != "pi" or any(event.message is not None for event in events)
        mine, theirs = ([comparable(event, numbered) for event in each] for each in (events, read(content)))
        assert mine == theirs, path
        assert losses.found() == (), path


CODEX: Events = [
    typed.SystemEvent(kind="session_meta", text="Be brief.", at=1, meta={"id": "S", "cwd": "/w"}),
    typed.OpaqueEvent(kind="turn_context", data={"model": "m"}, at=2),
    typed.SystemEvent(kind="developer", text="Sandboxed.", at=3),
    typed.SystemEvent(kind="environment_context", text="<environment_context>x</environment_context>", at=3),
    typed.PromptEvent(text="Look.", attachments=(IMAGE,), at=4),
    typed.OpaqueEvent(kind="event_msg.user_message", data={"type": "user_message", "message": "Look."}, at=4),
    typed.ThinkingEvent(text="A tab?", encrypted="gAAA", model="m", at=5),
    typed.ToolCallEvent(call="c1", tool="exec_command", args={"cmd": "ls"}, model="m", at=6),
    typed.ToolResultEvent(call="c1", text="a\n", at=7),
    typed.ToolCallEvent(call="c2", tool="apply_patch", args="*** Begin", model="m", at=8),
    typed.ToolResultEvent(call="c2", text="done", attachments=(IMAGE,), at=9),
    typed.ToolCallEvent(id="ws", call="ws", tool="web_search", args={"query": "q"}, model="m", at=9),
    typed.ToolCallEvent(call="c3", tool="local_shell", args={"command": ["ls"]}, model="m", at=9),
    typed.ResponseEvent(text="Fixed.", model="m", at=10, meta={"phase": "final_answer"}),
    typed.CompactionEvent(summary="Short.", at=11, meta={"replacement_history": []}),
    typed.OpaqueEvent(kind="ghost_snapshot", data={"type": "ghost_snapshot", "n": 1}, at=12),
    typed.OpaqueEvent(kind="world_state", data={"type": "world_state", "payload": {}, "timestamp": "x"}, at=None),
    typed.OpaqueEvent(kind="damaged", data="no JSON"),
]
PI: Events = [
    typed.OpaqueEvent(kind="session", data={"type": "session", "version": 3, "id": "S", "timestamp": "x"}, id="S"),
    typed.SystemEvent(
        id="1", message="1", kind="system", text="Be brief.\n\nNow.", meta={"sections": {"time": "Now.", "gone": None}}
    ),
    typed.PromptEvent(id="2", message="2", parent="1", text="Look.", at=4),
    typed.ThinkingEvent(id="3", message="3", parent="2", text="A tab?", signature="S", model="m", meta={"api": "a"}),
    typed.ResponseEvent(id="3", message="3", parent="2", text="Looking.", stop_reason="toolUse", model="m"),
    typed.ToolCallEvent(id="3", message="3", parent="2", call="c1", tool="read", args={"path": "a"}, model="m"),
    typed.ToolResultEvent(
        id="4", message="4", parent="3", call="c1", text="a\n", attachments=(IMAGE,), is_error=True,
        meta={"toolCallId": "c1", "toolName": "read", "isError": True},
    ),
    typed.SystemEvent(id="5", message="5", parent="4", kind="bashExecution", text="out", meta={"output": "out"}),
    typed.SystemEvent(id="6", parent="5", kind="branch_summary", text="Left.", meta={"fromId": "2"}),
    typed.SystemEvent(id="7", parent="2", kind="custom_message", text="Note.", meta={"customType": "c"}),
    typed.CompactionEvent(
        id="8", parent="7", summary="Short.", kept_from="7", tokens_before=9, meta={"firstKeptEntryId": "7"}
    ),
    typed.OpaqueEvent(kind="label", id="9", parent="8", data={"type": "label", "id": "9", "parentId": "8"}),
    typed.ResponseEvent(id="10", message="10", parent="9", stop_reason="error", model="m", meta={"errorMessage": "x"}),
]  # fmt: skip


@pytest.mark.requirement("HND-5")
@pytest.mark.parametrize(("again", "read", "events"), [(codex_again, of_codex, CODEX), (pi_again, of_pi, PI)])
def test_every_kind_of_event_round_trips(again: Any, read: Any, events: Events) -> None:
    content, losses = again(events)
    assert read(content) == events
    assert losses.found() == ()
