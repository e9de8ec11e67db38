"""Session of opencode as the document of ``opencode export``, which ``opencode import`` reads.

``ctxd.transcripts.opencode`` reads it. Events that were read from a document become a document with the same events.
"""

from typing import Any

from ctxd.formats.codex_v1 import data_url
from ctxd.formats.losses import Losses
from ctxd.transcripts.opencode import SUBTASK
from ctxd.transcripts.record_decoding import args_object
from ctxd_protocol import event_types as typed

Record = dict[str, Any]


class DocumentWriter:
    """Conversion of events to one document. Each message begins with an opaque event of kind ``message`` for the
    members that no part has; an event of kind ``session`` has those of the document. Other events before the first
    message are lost."""

    def __init__(self, losses: Losses) -> None:
        self._losses = losses
        self._document: Record = {"info": {}, "messages": []}
        self._parts: list[Record] | None = None
        self._calls: dict[str | None, Record] = {}

    def add(self, event: typed.Event) -> None:
        """Add one event."""
        match event:
            case typed.OpaqueEvent(kind="session", data=dict(info)):
                self._document["info"] = info
            case typed.OpaqueEvent(kind="session_state", data=dict(info)):
                known = self._document["info"]
                times = {**known.get("time", {}), **info.get("time", {})}
                self._document["info"] = {**known, **info, **({"time": times} if times else {})}
            case typed.OpaqueEvent(kind="message", data=dict(info)):
                self._parts = []
                self._document["messages"].append({"info": info, "parts": self._parts})
            case typed.CompactionEvent(meta={"info": dict(info), "parts": list(parts)}):
                self._document["messages"].append({"info": info, "parts": parts})
            case typed.ToolResultEvent() if (part := self._calls.get(event.call)) is not None:
                part["state"] |= _result(event, part)
            case _ if self._parts is not None and (part := self._part(event)) is not None:
                self._parts.append({**_place(event, self._document), **part})
                if isinstance(event, typed.ToolCallEvent):
                    self._calls[event.call] = self._parts[-1]
            case _:
                self._losses.drop(event)

    def document(self) -> Record:
        """Return the document."""
        return self._document

    def _part(self, event: typed.Event) -> Record | None:
        meta = event.meta or {}
        match event:
            case typed.PromptEvent(attachments=(file,)) if not event.text:
                name = {} if file.name is None else {"filename": file.name}
                return {"type": "file", "mime": file.media_type, **name, **meta, "url": data_url(file)}
            case typed.PromptEvent() if meta.get("type") == SUBTASK:
                return {**meta, "prompt": event.text}
            case typed.PromptEvent() | typed.ResponseEvent() | typed.SystemEvent():
                return {"type": "text", "text": event.text, **meta}
            case typed.ThinkingEvent():
                return {"type": "reasoning", "text": event.text, **meta}
            case typed.ToolCallEvent():
                state = {"status": "pending", "input": args_object(event.args)}
                return {"type": "tool", "callID": event.call, "tool": event.tool, "state": state, **meta}
            case typed.OpaqueEvent(data=dict(part)):
                return part
            case _:
                return None


def _result(event: typed.ToolResultEvent, part: Record) -> Record:
    """Return the end of the state of ``part``, the call whose output ``event`` is."""
    state: Record = {"status": "error" if event.is_error else "completed", **(event.meta or {})}
    state["error" if event.is_error else "output"] = event.text
    if event.attachments:
        state["attachments"] = [
            {
                **_attachment_place(part, number),
                "type": "file",
                "mime": each.media_type,
                "url": data_url(each),
                "filename": each.name or "file",
            }
            for number, each in enumerate(event.attachments)
        ]
    return state


def _attachment_place(part: Record, number: int) -> Record:
    """Return the ids of an attachment of ``part``, without which opencode refuses the document."""
    place: Record = {name: part[name] for name in ("sessionID", "messageID") if name in part}
    return {"id": f"{part['id']}a{number}", **place} if "id" in part else place


def _place(event: typed.Event, document: Record) -> Record:
    info = document["messages"][-1]["info"]
    return {
        **({} if event.id is None else {"id": event.id}),
        **{name: info[key] for name, key in (("messageID", "id"), ("sessionID", "sessionID")) if key in info},
    }
