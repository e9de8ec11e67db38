"""Transcripts as the steps that an agent took: messages, and tool calls with their output."""

import posixpath
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ctxd.transcripts.format_detection import UnknownFormat, read
from ctxd_protocol.event_types import (
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    ToolCallEvent,
    ToolResultEvent,
)


class Said(NamedTuple):
    """A message of the user or of the assistant."""

    role: str
    text: str


class Ran(NamedTuple):
    """A tool call with its output. ``command`` and ``cwd`` are those of a shell command, else None."""

    id: str
    tool: str
    args: dict[str, Any]
    output: str
    failed: bool
    command: str | None
    cwd: str | None


Step = Said | Ran


def steps(path: Path) -> list[Step]:
    """The messages with text and the finished calls in ``path``, in its order; none in a file of unknown format."""
    try:
        _, entries = read(path)
    except UnknownFormat:
        return []
    return list(_steps(entry.event for entry in entries))


def _steps(events: Iterator[Event]) -> Iterator[Step]:
    calls: dict[str, ToolCallEvent] = {}
    cwd = "/"
    for event in events:
        cwd = _directory(event.data if isinstance(event, OpaqueEvent) else event.meta) or cwd
        match event:
            case PromptEvent(text=text) if text:
                yield Said("user", text)
            case ResponseEvent(text=text) if text:
                yield Said("assistant", text)
            case ToolCallEvent():
                calls[event.call] = event
            case ToolResultEvent() if event.call in calls:
                yield _ran(calls.pop(event.call), event, cwd)
            case _:
                pass


def _directory(recorded: object) -> str | None:
    """The working directory that a record of a harness names."""
    if not isinstance(recorded, Mapping):
        return None
    found = recorded.get("cwd") or recorded.get("directory") or _directory(recorded.get("payload"))
    return found if isinstance(found, str) else None


def _ran(call: ToolCallEvent, result: ToolResultEvent, cwd: str) -> Ran:
    args = call.args if isinstance(call.args, dict) else {"raw": call.args}
    command = args.get("command") or args.get("cmd")
    if isinstance(command, list):
        command = shlex.join(map(str, command))
    named = args.get("workdir") or args.get("working_directory")
    if isinstance(named, str):
        cwd = posixpath.join(cwd, named)
    shell = command if isinstance(command, str) and call.tool.lower() not in {"read", "edit", "write"} else None
    return Ran(call.call, call.tool, args, result.text, result.is_error, shell, cwd)
