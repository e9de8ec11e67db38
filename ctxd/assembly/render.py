r"""The text of a context (spec 1 §4.1): pure, and with one text per value.

A context is a row of *blocks* with one blank line (``\n\n``) between each two::

    {system prompt}                                          only if not empty

    METADATA_POOL                                            only if the pool is not empty
    id={id} type=file path={path} file_type={t} char_count={n}
    id={id} type=file path={path} file_type={t} char_count=0 [unread]
    id={id} type=file path={path} file_type={t} char_count=0 [deleted]
    id={id} type=file path={path} file_type={t} char_count=0 [purged]
    id={id} type=toolcall tool={tool} status={status}

    CHAT_MESSAGE role=user                                   or role=assistant
    {text}

    toolcall_ref id={id} tool={tool} status={status}

    ACTIVE_CONTENT id={id}
    {content}

Content stands as it is, its own final newline (or none) included, so nothing is added or lost: the blank line between
blocks is two line feeds that follow the last byte of the content, and the text ends with the last block's last byte.
What could be taken for structure is escaped (``ctxd.assembly.escape``), so that ``parse(render(context)) == context``
for every context.
"""

from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from ctxd.assembly.escape import escape, quote

LineState = Literal["present", "unread", "deleted", "purged"]


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
    """What a user or an assistant said."""

    role: Literal["user", "assistant"]
    text: str


class ToolcallRef(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where a tool's output stood in the chat."""

    id: str
    tool: str
    status: str


class ActiveContent(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """An active object, whole."""

    id: str
    content: str


PoolLine = FileLine | ToolcallLine
ChatEntry = ChatText | ToolcallRef


class Context(msgspec.Struct, frozen=True, kw_only=True):
    """All four sections: the pool in order of entry, the chat by message, active objects in order of activation."""

    system_prompt: str = ""
    pool: tuple[PoolLine, ...] = ()
    chat: tuple[ChatEntry, ...] = ()
    active: tuple[ActiveContent, ...] = ()


RENDERER: Final = 1
"""Version of the format, kept with every recorded assembly. A change of any byte of any rendering needs a new one."""

SEPARATOR: Final = "\n\n"
"""What stands between two blocks."""

POOL_HEADER: Final = "METADATA_POOL"
_SUFFIXES: Final = {"present": "", "unread": " [unread]", "deleted": " [deleted]", "purged": " [purged]"}


def render(context: Context) -> str:
    """The whole text of ``context``."""
    return SEPARATOR.join(render_blocks(context))


def render_blocks(context: Context) -> list[str]:
    """The blocks of ``context`` in order, without the separators between them."""
    blocks = [render_system_prompt(context.system_prompt)] if context.system_prompt else []
    if context.pool:
        blocks.append(render_pool(map(render_pool_line, context.pool)))
    blocks.extend(map(render_chat_entry, context.chat))
    blocks.extend(map(render_active, context.active))
    return blocks


def render_system_prompt(content: str) -> str:
    """The first block."""
    return escape(content)


def render_pool(lines: Iterable[str]) -> str:
    """The metadata pool from its rendered lines, or from runs of lines joined by a line feed."""
    return "\n".join((POOL_HEADER, *lines))


def render_pool_line(line: PoolLine) -> str:
    """The one line of an object in the metadata pool."""
    if isinstance(line, FileLine):
        return (
            f"id={quote(line.id)} type=file path={quote(line.path)} file_type={quote(line.file_type)}"
            f" char_count={line.char_count}{_SUFFIXES[line.state]}"
        )
    return f"id={quote(line.id)} type=toolcall tool={quote(line.tool)} status={quote(line.status)}"


def render_chat_entry(entry: ChatEntry) -> str:
    """A chat message, or the reference that stands for a tool's output."""
    if isinstance(entry, ToolcallRef):
        return f"toolcall_ref id={quote(entry.id)} tool={quote(entry.tool)} status={quote(entry.status)}"
    return f"CHAT_MESSAGE role={entry.role}\n{escape(entry.text)}"


def render_active(active: ActiveContent) -> str:
    """An active object's block."""
    return f"ACTIVE_CONTENT id={quote(active.id)}\n{escape(active.content)}"
