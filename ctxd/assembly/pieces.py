"""From versions to rendered pieces: which values a stored version shows, as what, and why it is there.

Pure. Owns the closed set of reasons; how values become text is ``render``'s. A version is shown under the id in its
document, which is another than its entity's where an object had to be renamed: see ``named``.
"""

from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from ctxd.assembly import render
from ctxd.assembly.measure import size_bytes
from ctxd.assembly.render import ActiveContent, ChatText, FileLine, PoolLine, ToolcallLine, ToolcallRef
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.kinds import state_of
from ctxd.sessions.state import SessionState
from ctxd_protocol.context import Section
from ctxd_protocol.objects import Source
from ctxd_protocol.sessions import Message

Reason = Literal["system prompt", "metadata pool", "chat", "pinned", "activated explicitly", "recent tool call", "read"]
"""Why a block is in the context."""

Display = Callable[[Source], str]
"""What the agent calls a file."""


class Piece(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One rendered block, ``size`` bytes of UTF-8, and the version that it shows."""

    section: Section
    text: str
    size: int
    reason: Reason
    object: str | None = None
    valid_time: int | None = None
    tx: int | None = None


def named(head: Callable[[str], Stored | None], renamed: Mapping[str, str]) -> Callable[[str], Stored | None]:
    """``head``, with the documents of the objects in ``renamed`` under the ids that they are shown by."""
    if not renamed:
        return head
    replace = msgspec.structs.replace

    def shown(id: str) -> Stored | None:
        stored = head(id)
        if stored is None or id not in renamed:
            return stored
        return replace(stored, document=replace(stored.document, id=renamed[id]))

    return shown


def pool_line(id: str, stored: Stored | None, display: Display) -> PoolLine:
    """The values of an object's metadata line.

    Raises: CtxdError corrupt if the object has no version, or a file no source.
    """
    if stored is None:
        raise _without_version(id)
    document = stored.document
    payload = document.payload
    if document.type == "toolcall":
        return ToolcallLine(id=document.id, tool=payload["tool"], status=payload["status"])
    if document.source is None:
        raise CtxdError("corrupt", f"the file {id} has no source")
    state = state_of(document)
    assert state != "orphaned", "a version does not know that its source is out of reach"
    return FileLine(
        id=id,
        path=display(document.source),
        file_type=payload["file_type"],
        char_count=payload["char_count"],
        state=state,
    )


def prompt_piece(stored: Stored, content: str) -> Piece:
    """The system prompt's block."""
    return _piece("system_prompt", render.render_system_prompt(content), "system prompt", stored)


def chat_piece(message: Message, chat: str, seq: int) -> Piece:
    """The block of a chat message with text, which the write of sequence ``seq`` added to ``chat``."""
    assert message.role != "toolcall", "a tool result has a block of its own kind"
    text = render.render_chat_entry(ChatText(role=message.role, text=message.content))
    return Piece(section="chat", text=text, size=size_bytes(text), reason="chat", object=chat, tx=seq)


def toolcall_piece(id: str, stored: Stored | None) -> Piece:
    """The block that stands in the chat for the result of the tool call ``id``.

    Raises: CtxdError corrupt if that tool call has no version.
    """
    if stored is None:
        raise _without_version(id)
    document = stored.document
    ref = ToolcallRef(id=document.id, tool=document.payload["tool"], status=document.payload["status"])
    return _piece("chat", render.render_chat_entry(ref), "chat", stored, id)


def active_piece(id: str, stored: Stored, content: str, reason: Reason) -> Piece:
    """The block of the active object ``id``."""
    text = render.render_active(ActiveContent(id=stored.document.id, content=content))
    return _piece("active_content", text, reason, stored, id)


def why_active(state: SessionState, id: str) -> Reason:
    """Why the active object ``id`` is in the window: the strongest of its reasons."""
    if id in state.pinned:
        return "pinned"
    if id in state.chosen:
        return "activated explicitly"
    # An active tool call that was not chosen has a place in its turn; a file never has.
    return "recent tool call" if id in state.recency else "read"


def _without_version(id: str) -> CtxdError:
    return CtxdError("corrupt", f"{id} is in the session but has no version", hint="Run `ctxd verify`.")


def _piece(section: Section, text: str, reason: Reason, stored: Stored | None, id: str | None = None) -> Piece:
    if stored is None:
        return Piece(section=section, text=text, size=size_bytes(text), reason=reason)
    return Piece(
        section=section,
        text=text,
        size=size_bytes(text),
        reason=reason,
        object=id or stored.document.id,
        valid_time=stored.valid_time,
        tx=stored.tx,
    )
