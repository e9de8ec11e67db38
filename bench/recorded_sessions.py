"""Recorded sessions as the sequence of what enters a window: texts, tool calls with their outputs, and requests.

Owns which output shows which file or command. A token is 4 characters.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from ctxd.assembly import repack_policy
from ctxd.transcripts.format_detection import UnknownFormat, read
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

ROOT: Final = Path(
    os.environ.get("CTXD_TRANSCRIPTS") or Path(__file__).resolve().parents[2] / "shared/data/transcripts"
)
REQUESTS_MIN: Final = 20


class Text(msgspec.Struct, frozen=True):
    """Words of the user or of the model."""

    tokens: int
    starts_turn: bool = False


class Call(msgspec.Struct, frozen=True):
    """A tool call with its output. ``subject``: the path that it read, or the command that it ran."""

    arguments: int
    output: int
    kind: repack_policy.Kind
    subject: str
    digest: bytes


class Request(msgspec.Struct, frozen=True):
    """A request to the model; ``idle_s``: seconds since the one before, None if that is not known."""

    idle_s: float | None


Session = list[Text | Call | Request]

_SHELLS: Final = ("exec_command", "shell", "shell_command", "local_shell_call")


def size(text: str) -> int:
    """Tokens of ``text``."""
    return len(text) // 4 + 1


def subject_of(call: ToolCallEvent, failed: bool) -> tuple[repack_policy.Kind, str]:
    """The kind of a call's output, and what it shows."""
    arguments = call.args if isinstance(call.args, dict) else {}
    if call.tool in ("Read", "read"):
        path = next((arguments[name] for name in ("file_path", "filePath", "path") if name in arguments), None)
        return ("file", path) if isinstance(path, str) and not failed else ("other", "")
    if call.tool in ("Bash", "bash") or call.tool in _SHELLS:
        command = arguments.get("command") or arguments.get("cmd")
        command = " ".join(map(str, command)) if isinstance(command, list) else command
        return ("command", command) if isinstance(command, str) and command else ("other", "")
    return "other", ""


def session_of(events: Iterable[Event]) -> Session:
    """The session that ``events`` are the log of. A reply is one request, whatever its parts."""
    found: Session = []
    calls: dict[str, ToolCallEvent] = {}
    message: str | None = None
    in_reply, last = False, None
    for event in events:
        match event:
            case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                if not in_reply if event.message is None else event.message != message:
                    now = event.at
                    found.append(Request(None if None in (now, last) else max(0.0, (now - last) / 1000)))
                    last = now if now is not None else last
                in_reply, message = True, event.message
                if isinstance(event, ToolCallEvent):
                    calls[event.call] = event
                elif isinstance(event, ResponseEvent) and event.text:
                    found.append(Text(size(event.text)))
            case PromptEvent() | CompactionEvent() | SystemEvent():
                in_reply, message = False, None
                text = event.summary if isinstance(event, CompactionEvent) else event.text
                found.append(Text(size(text), starts_turn=isinstance(event, PromptEvent)))
            case ToolResultEvent() if event.call is not None and (call := calls.pop(event.call, None)) is not None:
                in_reply = False
                kind, subject = subject_of(call, event.is_error)
                digest = hashlib.blake2b(event.text.encode(errors="surrogatepass"), digest_size=16).digest()
                arguments = size(json.dumps(call.args)) + 10
                found.append(Call(arguments, size(event.text), kind, subject, digest))
            case _:
                pass
    return found


def read_events(root: Path = ROOT) -> Iterator[list[Event]]:
    """The events of the main conversation of every transcript below ``root``, in the order of their paths. The file of
    a sub-agent is a session of its own."""
    for path in sorted(root.rglob("*")):
        if path.suffix not in (".jsonl", ".json") or not path.is_file():
            continue
        try:
            events = [entry.event for entry in read(path)[1]]
        except UnknownFormat:
            continue
        is_agent = all(event.sidechain is not None for event in events)
        yield [
            msgspec.structs.replace(event, sidechain=None)
            for event in events
            if is_agent or event.sidechain is None
        ]  # fmt: skip


def sessions(root: Path = ROOT) -> list[Session]:
    """The sessions below ``root`` that have at least ``REQUESTS_MIN`` requests."""
    found = [session_of(events) for events in read_events(root)]
    return [each for each in found if sum(isinstance(item, Request) for item in each) >= REQUESTS_MIN]
