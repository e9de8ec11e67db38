"""``bureau-agent-v1``: a CBOR array of Bureau's messages to a model, byte for byte.

A message has a role and blocks; every block has all members, and those that its type does not use are empty. Unknown
members and types survive reading and writing.
"""

from collections.abc import Iterable, Iterator
from typing import Any, Final

import msgspec

from ctxd.formats.losses import Losses, args_text, event_text
from ctxd.transcripts.record_decoding import decoded
from ctxd_protocol import event_types as typed

Block = dict[str, Any]

NAME: Final = "bureau-agent-v1"

_MEMBERS: Final = ("ToolUse", "Thinking", "ToolResult", "ServerToolUse", "ServerToolResult")


def events(messages: Iterable[object]) -> Iterator[typed.Event]:
    """Yield the events of ``messages``; events of one message have the same ``message``."""
    for number, message in enumerate(messages):
        place = f"{NAME}/{number}"
        match message:
            case {"Role": "user" | "assistant" as role, "Content": [_, *_] as blocks, **rest} if not rest:
                for block in blocks:
                    yield _event(str(role), block, place)
            case _:
                yield typed.OpaqueEvent(kind=NAME, data={"message": message}, message=place)


class MessageWriter:
    """Conversion of events to messages: consecutive events of one role become one message, as providers require.

    Events of sub-agents, and events that no model has seen, are left out and counted.
    """

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._role = ""
        self._place: str | None = None
        self._blocks: list[Block] = []

    def add(self, event: typed.Event) -> Iterator[Any]:
        """Add one event, and yield the messages that it completes."""
        place = event.message if (event.message or "").startswith(NAME) else None
        match event:
            case typed.OpaqueEvent(kind=kind, data={"message": message}) if kind == NAME:
                yield from self.end()
                yield message
                return
            case typed.OpaqueEvent(kind=kind, data={"role": str(role), "block": dict(block)}) if kind == NAME:
                pass
            case _:
                found = None if event.sidechain is not None else _block(event)
                if found is None:
                    self._losses.drop(event)
                    return
                role, block = found
                self._losses.compare(event, _event(role, block, place))
        if role != self._role or place != self._place:
            yield from self.end()
            self._role, self._place = role, place
        self._blocks.append(block)

    def end(self) -> Iterator[Any]:
        """Yield the last message, if it has blocks."""
        if self._blocks:
            yield {"Role": self._role, "Content": self._blocks}
        self._role, self._place, self._blocks = "", None, []


def _event(role: str, block: Any, place: str | None) -> typed.Event:  # noqa: ANN401 - any value
    event = _read(role, block, place)
    if event is None or (found := _block(event)) is None:
        return typed.OpaqueEvent(kind=NAME, data={"role": role, "block": block}, message=place)
    if found == (role, block):
        return event
    rest = {name: value for name, value in block.items() if found[1].get(name, ...) != value}
    event = msgspec.structs.replace(event, meta={**(event.meta or {}), NAME: rest})
    if _block(event) == (role, block):
        return event
    return typed.OpaqueEvent(kind=NAME, data={"role": role, "block": block}, message=place)


def _read(role: str, block: object, place: str | None) -> typed.Event | None:
    match role, block:
        case "user", {"Type": "text", "Text": str(text)}:
            return typed.PromptEvent(text=text, message=place)
        case "assistant", {"Type": "text", "Text": str(text)}:
            return typed.ResponseEvent(text=text, message=place)
        case "assistant", {"Type": "thinking", "Thinking": {"Content": str(text), "Signature": str(signature)}}:
            return typed.ThinkingEvent(text=text, signature=signature or None, message=place)
        case "assistant", {"Type": "tool_use", "ToolUse": {"ID": str(id), "Name": str(name), "Input": bytes(input)}}:
            return typed.ToolCallEvent(call=id, tool=name, args=_args(input), message=place)
        case "assistant", {
            "Type": "server_tool_use",
            "ServerToolUse": {"ID": str(id), "Name": str(name), "Input": bytes(input)},
        }:
            meta = {"server_tool": True}
            return typed.ToolCallEvent(call=id, tool=name, args=_args(input), message=place, meta=meta)
        case "user", {
            "Type": "tool_result",
            "ToolResult": {"Content": str(text), "IsError": bool(failed), "ToolUseID": str(id)},
        }:
            return typed.ToolResultEvent(call=id or None, text=text, is_error=failed, message=place)
        case _:
            return None


def _args(raw: bytes) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return decoded(raw)
    except ValueError:
        return raw.decode("utf-8", "replace")


def _block(event: typed.Event) -> tuple[str, Block] | None:
    """Return the role and the block of an event; None if the format cannot express it."""
    block: Block = {"Text": "", "Type": "text", **dict.fromkeys(_MEMBERS)}
    match event:
        case typed.PromptEvent() | typed.SystemEvent() | typed.CompactionEvent():
            text = event_text(event)
            if not text and not isinstance(event, typed.PromptEvent):
                return None
            role, block = "user", block | {"Text": text}
        case typed.ResponseEvent():
            role, block = "assistant", block | {"Text": event.text}
        case typed.ThinkingEvent():
            thinking = {"Content": event.text, "Signature": event.signature or ""}
            role, block = "assistant", block | {"Type": "thinking", "Thinking": thinking}
        case typed.ToolCallEvent():
            kind, member = ("tool_use", "ToolUse")
            if (event.meta or {}).get("server_tool") is True:
                kind, member = ("server_tool_use", "ServerToolUse")
            use = {"ID": event.call, "Name": event.tool, "Input": args_text(event.args).encode()}
            role, block = "assistant", block | {"Type": kind, member: use}
        case typed.ToolResultEvent():
            result = {"Content": event.text, "IsError": event.is_error, "ToolUseID": event.call or ""}
            role, block = "user", block | {"Type": "tool_result", "ToolResult": result}
        case typed.OpaqueEvent():
            return None
    rest = (event.meta or {}).get(NAME)
    return role, block | rest if isinstance(rest, dict) else block
