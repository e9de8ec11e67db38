"""Methods ``toolcall.record`` and ``tool.observe``: tool calls, and the files that their output names."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.ids import OpIdText, ToolcallIdText
from ctxd_protocol.methods.declaration import ACTIVE_ERRORS, Method, Milliseconds, PathText, Result, SessionParams
from ctxd_protocol.object_types import Receipt, ToolcallStatus

ToolcallChat = Literal["none", "result", "call_and_result"]
"""Events that recording a tool call adds to the chat. ``result``: the chat already has the call, in the model's
reply."""


class ToolcallRecordParams(SessionParams, frozen=True, kw_only=True):
    """A tool call and its whole output.

    ``id``: the harness's own id of the call; ``args``: the arguments as the harness received them. ``chat``: the events
    that the same write adds to the chat; a repeated record adds none. ``valid_time``: see ``file.index``.
    """

    id: ToolcallIdText
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    content: str
    args: dict[str, Any] = {}
    args_display: str | None = None
    status: ToolcallStatus = "ok"
    file_refs: tuple[str, ...] | None = None
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None
    chat: ToolcallChat = "none"


class ToolcallRecordResult(Result, frozen=True, kw_only=True):
    """The object of the tool call, and the tool calls collapsed to make room for it.

    ``unresolved``: those of ``file_refs`` that match no object of the session's index; they are kept unchanged.
    """

    object: str
    outcome: Literal["created", "unchanged"]
    collapsed: tuple[str, ...]
    unresolved: tuple[str, ...] = ()
    receipt: Receipt | None


class ToolObserveParams(SessionParams, frozen=True, kw_only=True):
    """A shell command line and its output.

    ``cwd``: the directory in which it ran, by default the session's workdir. ``valid_time``: see ``file.index``.
    """

    command: str
    output: str
    cwd: PathText | None = None
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class Discovered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One examined path; with outcome ``ignored`` there is no object, and ``reason`` is the cause."""

    path: str
    outcome: Literal["created", "unchanged", "ignored"]
    object: str | None = None
    reason: str | None = None


class ToolObserveResult(Result, frozen=True, kw_only=True):
    """The examined paths, in order of appearance.

    ``tool.observe`` leaves out a name that is not a file but could be a directory or a word. A name that git prints
    relative to the top of its work tree is reported with its path.
    """

    objects: tuple[Discovered, ...]
    receipt: Receipt | None


ROWS: Final = (
    Method(
        name="toolcall.record",
        params=ToolcallRecordParams,
        result=ToolcallRecordResult,
        access="record",
        writes=True,
        makes_objects=True,
        handle="record",
        summary="Record a tool call and its output.",
        errors=(*ACTIVE_ERRORS, "toolcall_conflict", "purged"),
        example={"session": "s1", "id": "call_3", "tool": "bash", "content": "ok\n", "args": {"command": "make"}},
        shows=".object",
    ),
    Method(
        name="tool.observe",
        params=ToolObserveParams,
        result=ToolObserveResult,
        access="files",
        writes=True,
        makes_objects=True,
        handle="observe",
        summary="Find the files that a command's output names.",
        errors=ACTIVE_ERRORS,
        example={"session": "s1", "command": "ls src", "output": "a.py\nb.py\n"},
        shows=".objects",
    ),
)
