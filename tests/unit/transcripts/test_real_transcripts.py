"""Every real transcript below ``$CTXD_TRANSCRIPTS``: nothing of it is lost, and counts agree with a naive count.

The naive counts look for the marks of a format in its text or by SQL; they share no code with the readers.
"""

import json
import os
import re
import shutil
import sqlite3
from pathlib import Path

import pytest

from ctxd.transcripts.format_detection import read
from ctxd_protocol.event_types import OpaqueEvent, ThinkingEvent, ToolCallEvent, ToolResultEvent

ROOT = Path(os.environ.get("CTXD_TRANSCRIPTS") or Path(__file__).resolve().parents[4] / "shared/data/transcripts")
FILES = sorted(path for path in ROOT.rglob("*") if path.suffix in {".jsonl", ".json", ".db"})

pytestmark = pytest.mark.skipif(not FILES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS")

EVENTS_ONLY = (
    "codex_parent_with_spawns", "codex_subagent_matched", "codex_subagent_matched_2", "codex_subagent_unmatched",
    "rollout-parent-019b88e0", "rollout-subagent-019b88e5",
)  # fmt: skip
"""Rollouts without an item of type ``message``."""

FORMATS = {"claude_code_api_error.jsonl": "claude-stream-json"} | {
    f"{name}.jsonl": "codex-events" for name in EVENTS_ONLY
}
"""Formats of files that are not that of their folder."""


def name(path: Path) -> str:
    return "/".join(path.relative_to(ROOT).parts[0::2])


@pytest.fixture
def source(request, tmp_path):
    """The transcript, or of a database a copy: SQLite makes files beside one that it reads."""
    path = request.param
    if path.suffix != ".db":
        return path
    for each in path.parent.glob("opencode.db*"):
        shutil.copy(each, tmp_path)
    return tmp_path / path.name


@pytest.mark.requirement("CLI-13")
@pytest.mark.parametrize("source", FILES, ids=name, indirect=True)
def test_every_record_of_a_real_transcript_becomes_an_event(source, request):
    format, entries = read(source)
    found = list(entries)
    folder = request.node.callspec.params["source"].relative_to(ROOT).parts[0]
    assert format == FORMATS.get(source.name, folder)
    assert found
    if source.suffix == ".jsonl":
        complete = [number for number, line in enumerate(source.read_bytes().split(b"\n"), 1) if line.strip()]
        assert {entry.line for entry in found} >= set(complete[:-1]), "each line has an event"
    events = [entry.event for entry in found]
    calls = [event.call for event in events if isinstance(event, ToolCallEvent)]
    results = [event.call for event in events if isinstance(event, ToolResultEvent)]
    thoughts = sum(isinstance(event, ThinkingEvent) for event in events)
    assert (len(calls), len(results), thoughts) == naive_counts(format, source)


def naive_counts(format: str, path: Path) -> tuple[int, int, int]:
    """Tool calls, results and blocks of thinking."""
    if format == "opencode-sqlite":
        with sqlite3.connect(path) as database:
            parts = [json.loads(data) for (data,) in database.execute("SELECT data FROM part")]
        return of_parts(parts)
    if format == "opencode-export":
        document = json.loads(path.read_bytes())
        return of_parts([part for message in document["messages"] for part in message["parts"]])
    records = []
    for line in path.read_text("utf-8", "replace").split("\n"):
        try:
            records.append(json.loads(line))
        except ValueError:
            continue
    records = [record for record in records if isinstance(record, dict)]
    match format:
        case "claude-code" | "claude-stream-json":
            blocks = [
                block
                for record in records
                if record.get("type") in ("user", "assistant") and isinstance(record.get("message"), dict)
                for block in record["message"].get("content") or ()
                if isinstance(block, dict)
            ]
            named = [str(block.get("type")) for block in blocks]
            return (
                sum(kind.endswith("tool_use") for kind in named),
                sum(kind.endswith("tool_result") for kind in named),
                sum(kind.endswith("thinking") for kind in named),
            )
        case "codex":
            items = [str(r["payload"].get("type")) for r in records if r["type"] == "response_item"]
            called = sum(bool(re.fullmatch(r".*_call", kind)) for kind in items)
            return called, sum(kind.endswith("_call_output") for kind in items), items.count("reasoning")
        case "codex-events":
            kinds = [(r["type"], r["payload"].get("type")) for r in records]
            calls = sum(kind == ("response_item", "function_call") for kind in kinds)
            return calls, calls, kinds.count(("event_msg", "agent_reasoning"))
        case "codex-exec-json":
            items_done = [r.get("item") or {} for r in records if r["type"] == "item.completed"]
            done = [item.get("type", item.get("item_type")) for item in items_done]
            calls = ("command_execution", "file_change", "mcp_tool_call", "collab_tool_call", "web_search")
            ran = sum(kind in calls for kind in done)
            return ran, ran, done.count("reasoning")
        case "pi" | "pi-json-mode":
            kind = "message" if format == "pi" else "message_end"
            messages = [record["message"] for record in records if record["type"] == kind]
            blocks = [b["type"] for m in messages if m["role"] == "assistant" for b in m["content"]]
            results = sum(message["role"] == "toolResult" for message in messages)
            return blocks.count("toolCall"), results, blocks.count("thinking")
    return of_parts([record.get("part") or {} for record in records])


def of_parts(parts: list[dict]) -> tuple[int, int, int]:
    tools = [part["state"]["status"] for part in parts if part.get("type") == "tool"]
    done = sum(status in ("completed", "error") for status in tools)
    return len(tools), done, sum(part.get("type") == "reasoning" for part in parts)


def test_most_of_real_transcripts_is_typed():
    opaque: dict[str, int] = {}
    for path in FILES:
        if path.suffix == ".db":
            continue
        for entry in read(path)[1]:
            if isinstance(entry.event, OpaqueEvent):
                opaque[entry.event.kind or ""] = opaque.get(entry.event.kind or "", 0) + 1
    conversation = {"user", "assistant", "text", "thinking", "tool_use", "tool_result", "reasoning", "toolCall", "tool"}
    assert sum(count for kind, count in opaque.items() if kind in conversation) <= 5, opaque
