"""The values a context is made of, before rendering and after parsing.

Owns no text format: ``render`` turns these into text, ``parse`` gives them back. Two contexts are the same text exactly
when they are equal values.
"""

from typing import Literal

import msgspec

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
