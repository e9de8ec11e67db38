"""Transcripts of four harnesses as the steps an agent took: what was said, what was run, what came back.

Reads just enough of each format to drive a session with real text. What a file holds besides is left out.
"""

import json
import posixpath
import re
import shlex
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple


class Said(NamedTuple):
    """A message of the user or of the assistant."""

    role: str
    text: str


class Ran(NamedTuple):
    """A tool call with its output. ``command`` and ``cwd`` are those of a shell command, null otherwise."""

    id: str
    tool: str
    args: dict[str, Any]
    output: str
    failed: bool
    command: str | None
    cwd: str | None


Step = Said | Ran
Record = dict[str, Any]
_HALF = re.compile("[\ud800-\udfff]")
_INTEGER_MAX = 2**53 - 1


def steps(path: Path) -> list[Step]:
    """What ``path`` tells, in its order; empty if it tells nothing."""
    if path.suffix == ".db":
        return list(_opencode_parts(_database_parts(path)))
    records = list(_records(path))
    if path.suffix == ".json" or any("messages" in record for record in records):
        return list(_opencode_parts(_export_parts(records)))
    return [step for reader in (_blocks, _codex, _codex_exec, _run_json) for step in reader(records)]


def _loads(text: str | bytes) -> Any:
    """``text`` as a session takes it: half characters replaced, integers no double holds as text."""
    return _plain(json.loads(text))


def _plain(value: Any) -> Any:
    match value:
        case str():
            return _HALF.sub("\ufffd", value)
        case int() if abs(value) > _INTEGER_MAX:
            return str(value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case _:
            return value


def _records(path: Path) -> Iterator[Record]:
    text = path.read_text("utf-8", errors="replace")
    documents = [text] if path.suffix == ".json" else text.split("\n")
    for document in documents:
        try:
            record = _loads(document)
        except ValueError:
            continue
        if isinstance(record, dict):
            yield record


def _text(content: object) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(_text(item) for item in content)
    if isinstance(content, dict):
        return _text(content.get("text") or content.get("content") or content.get("output") or "")
    return ""


def _args(raw: object) -> dict[str, Any]:
    if isinstance(raw, str):
        try:
            raw = _loads(raw)
        except ValueError:
            return {"raw": raw}
    return raw if isinstance(raw, dict) else {"raw": raw}


def _ran(id: str, tool: str, args: dict[str, Any], output: object, failed: bool, cwd: str | None) -> Ran:
    command = args.get("command") or args.get("cmd")
    if isinstance(command, list):
        command = shlex.join(map(str, command))
    told = args.get("workdir") or args.get("working_directory")
    if isinstance(told, str):
        cwd = posixpath.join(cwd or "/", told)
    shell = command if isinstance(command, str) and tool.lower() not in {"read", "edit", "write"} else None
    return Ran(id, tool, args, _text(output), failed, shell, cwd)


def _blocks(records: list[Record]) -> Iterator[Step]:
    """Claude Code, its stream and pi: messages of content blocks."""
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    cwd: str | None = None
    for record in records:
        cwd = record.get("cwd") or cwd
        message = record.get("message")
        if not isinstance(message, dict) or record.get("type") in {"message_update", "message_start", "turn_end"}:
            continue
        role, content = message.get("role"), message.get("content")
        if role == "toolResult" and message.get("toolCallId") in calls:
            tool, args = calls.pop(message["toolCallId"])
            yield _ran(message["toolCallId"], tool, args, content, bool(message.get("isError")), cwd)
            continue
        for block in content if isinstance(content, list) else [{"type": "text", "text": _text(content)}]:
            kind = block.get("type") if isinstance(block, dict) else None
            if kind == "text" and role in {"user", "assistant"} and _text(block):
                yield Said(role, _text(block))
            elif kind in {"tool_use", "toolCall"} and block.keys() >= {"id", "name"}:
                calls[block["id"]] = (block["name"], _args(block.get("input", block.get("arguments"))))
            elif kind == "tool_result" and str(block.get("tool_use_id")) in calls:
                tool, args = calls.pop(block["tool_use_id"])
                yield _ran(block["tool_use_id"], tool, args, block.get("content"), bool(block.get("is_error")), cwd)


def _codex(records: list[Record]) -> Iterator[Step]:
    calls: dict[str, tuple[str, dict[str, Any]]] = {}
    cwd: str | None = None
    for record in records:
        payload = record.get("payload")
        if not isinstance(payload, dict):
            continue
        cwd = payload.get("cwd") or cwd
        kind = payload.get("type") or ""
        if kind == "message" and payload.get("role") in {"user", "assistant"}:
            yield Said(payload["role"], _text(payload.get("content")))
        elif kind in {"function_call", "custom_tool_call", "local_shell_call"}:
            raw = payload.get("arguments") or payload.get("input") or payload.get("action")
            calls[payload.get("call_id") or ""] = (payload.get("name") or kind, _args(raw))
        elif kind.endswith("_output") and payload.get("call_id") in calls:
            tool, args = calls.pop(payload["call_id"])
            yield _ran(payload["call_id"], tool, args, payload.get("output"), False, cwd)


def _codex_exec(records: list[Record]) -> Iterator[Step]:
    for record in records:
        item = record.get("item")
        if record.get("type") != "item.completed" or not isinstance(item, dict):
            continue
        if item.get("type") == "agent_message":
            yield Said("assistant", _text(item.get("text")))
        elif item.get("type") == "command_execution":
            args = {"command": item.get("command")}
            yield _ran(
                item.get("id") or "", "exec", args, item.get("aggregated_output"), item.get("exit_code") != 0, None
            )


def _run_json(records: list[Record]) -> Iterator[Step]:
    parts = [("assistant", record["part"], None) for record in records if isinstance(record.get("part"), dict)]
    return _opencode_parts(iter(parts))


Part = tuple[str, Record, str | None]


def _export_parts(records: list[Record]) -> Iterator[Part]:
    for record in records:
        directory = (record.get("info") or {}).get("directory")
        for message in record.get("messages") or []:
            role = (message.get("info") or {}).get("role") or "assistant"
            for part in message.get("parts") or []:
                yield role, part, directory


def _database_parts(path: Path) -> Iterator[Part]:
    connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
    try:
        if not connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'part'").fetchone():
            return
        query = """SELECT message.data, part.data, session.directory FROM part
            JOIN message ON message.id = part.message_id JOIN session ON session.id = part.session_id
            ORDER BY part.session_id, part.id"""
        for message, part, directory in connection.execute(query):
            yield _loads(message).get("role") or "assistant", _loads(part), directory
    finally:
        connection.close()


def _opencode_parts(parts: Iterator[Part]) -> Iterator[Step]:
    for role, part, directory in parts:
        if part.get("type") == "text" and part.get("text"):
            yield Said(role if role in {"user", "assistant"} else "assistant", part["text"])
        elif part.get("type") == "tool":
            state = part.get("state") or {}
            output = state.get("output") or state.get("error") or ""
            id = part.get("callID") or part.get("id") or ""
            failed = state.get("status") == "error"
            yield _ran(id, part.get("tool") or "tool", state.get("input") or {}, output, failed, directory)
