"""Values of a context, and the rendering of a whole one, block by block: what the layout ``spec`` is compared with."""

from typing import Literal

import msgspec

from ctxd.assembly.spec_rendering import (
    POOL_HEADER,
    SEPARATOR,
    LineState,
    escape,
    render_active,
    render_file_line,
    render_message,
    render_tool_message,
    render_toolcall_line,
    render_toolcall_ref,
)


class FileLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A file in the metadata pool. ``path`` is what the agent calls it; ``char_count`` is in code points."""

    id: str
    path: str
    file_type: str
    char_count: int
    state: LineState = "present"


class ToolcallLine(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call in the metadata pool."""

    id: str
    tool: str
    status: str


class ChatText(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Message of a user or an assistant."""

    role: Literal["user", "assistant"]
    text: str


class ToolcallRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Place of a tool's output in the chat."""

    id: str
    tool: str
    status: str


class ToolMessage(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A tool call in the chat that no object holds. ``arguments``: a JSON object in one line."""

    tool: str
    status: str
    arguments: str
    output: str


class ActiveContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An active object, whole."""

    id: str
    content: str


PoolLine = FileLine | ToolcallLine
ChatEntry = ChatText | ToolcallRef | ToolMessage


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """All four sections: the pool in order of entry, the chat by message, active objects in order of activation."""

    system_prompt: str = ""
    pool: tuple[PoolLine, ...] = ()
    chat: tuple[ChatEntry, ...] = ()
    active: tuple[ActiveContent, ...] = ()


def render(context: Context) -> str:
    """The whole text of ``context``."""
    return SEPARATOR.join(render_blocks(context))


def render_blocks(context: Context) -> list[str]:
    """The blocks of ``context`` in order, without the separators between them."""
    blocks = [escape(context.system_prompt)] if context.system_prompt else []
    if context.pool:
        blocks.append("\n".join((POOL_HEADER, *map(pool_line, context.pool))))
    blocks.extend(map(chat_entry, context.chat))
    blocks.extend(render_active(active.id, active.content) for active in context.active)
    return blocks


def pool_line(line: PoolLine) -> str:
    """The one line of an object in the metadata pool."""
    if isinstance(line, FileLine):
        return render_file_line(line.id, line.path, line.file_type, line.char_count, line.state)
    return render_toolcall_line(line.id, line.tool, line.status)


def chat_entry(entry: ChatEntry) -> str:
    """A chat message, or the reference that stands for a tool's output."""
    if isinstance(entry, ToolcallRef):
        return render_toolcall_ref(entry.id, entry.tool, entry.status)
    if isinstance(entry, ToolMessage):
        return render_tool_message(entry.tool, entry.status, entry.arguments, entry.output)
    return render_message(entry.role, entry.text)
