"""Methods ``toolcall.*``, ``tool.*``, ``file.*``, ``mount.*`` and ``tracker.*``: tool calls and files."""

from typing import Annotated, Any, Final, Literal

import msgspec

from ctxd_protocol.ids import OpIdText, SessionIdText, ToolcallIdText
from ctxd_protocol.limits import PATHS_MAX
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    SESSION_ERRORS,
    Method,
    Milliseconds,
    PageSize,
    Params,
    PathText,
    Result,
    SessionParams,
)
from ctxd_protocol.object_types import Receipt, ToolcallStatus
from ctxd_protocol.session_types import Mount
from ctxd_protocol.trackers import Tracker, TrackerState, Watching

ToolcallChat = Literal["none", "result", "call_and_result"]
"""Events that the record of a tool call adds to the chat. ``result``: the chat has the call already, in the reply that
made it."""


class ToolcallRecordParams(SessionParams, frozen=True, kw_only=True):
    """A tool call and its whole output.

    ``id``: the harness's own id of the call; ``args``: the arguments as the harness had them. ``chat``: the events that
    the same write adds to the chat; a repeated record adds none. ``valid_time``: see ``file.index``.
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

    ``unresolved``: those of ``file_refs`` that name no object of the session's index; they are kept as they came.
    """

    object: str
    outcome: Literal["created", "unchanged"]
    collapsed: tuple[str, ...]
    unresolved: tuple[str, ...] = ()
    receipt: Receipt | None


class ToolObserveParams(SessionParams, frozen=True, kw_only=True):
    """A shell command line and its output.

    ``cwd``: the directory it ran in, by default the session's workdir. ``valid_time``: see ``file.index``.
    """

    command: str
    output: str
    cwd: PathText | None = None
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class Discovered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that was examined; with outcome ``ignored`` there is no object, and ``reason`` names the cause."""

    path: str
    outcome: Literal["created", "unchanged", "ignored"]
    object: str | None = None
    reason: str | None = None


class ToolObserveResult(Result, frozen=True, kw_only=True):
    """Each path that was examined, in order of appearance.

    ``tool.observe`` leaves out a name that could be a directory or a word and is no file. A name that git prints
    relative to the top of its work tree is reported with its path.
    """

    objects: tuple[Discovered, ...]
    receipt: Receipt | None


FileKind = Literal["text", "binary", "too_large", "unreadable", "special", "missing"]
FileOutcome = Literal["created", "updated", "unchanged", "deleted", "orphaned"]


class FileIndexParams(SessionParams, frozen=True, kw_only=True):
    """A file as the agent names it.

    Without content the daemon reads the file. ``content_base64`` is for bytes that are not UTF-8. ``valid_time``: the
    past time, in milliseconds since 1970, at which the file held the content: for history that is imported, from the
    host's own connections only.
    """

    path: PathText
    content: str | None = None
    content_base64: str | None = None
    cause: Literal["read", "edit", "check"] = "read"
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class FileIndexResult(Result, frozen=True, kw_only=True):
    """The outcome for the file; ``char_count`` is in code points, 0 without text."""

    object: str
    outcome: FileOutcome
    kind: FileKind
    source_hash: str | None
    char_count: int
    receipt: Receipt | None


class FileDiscoverParams(SessionParams, frozen=True, kw_only=True):
    """Paths as the agent names them. ``valid_time``: see ``file.index``."""

    paths: Annotated[tuple[PathText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class FileResolveParams(SessionParams, frozen=True, kw_only=True):
    """A path as the agent names it."""

    path: PathText


class FileResolveResult(Result, frozen=True, kw_only=True):
    """The object at the path, ``known`` if it has a version already."""

    object: str
    canonical_path: str
    filesystem_id: str
    display_path: str
    known: bool


class MountDetectParams(Params, frozen=True, kw_only=True):
    """Exactly one source text.

    ``docker_inspect``: the output of ``docker inspect CONTAINER``; ``mountinfo``: ``/proc/self/mountinfo`` of the
    sandbox.
    """

    docker_inspect: str | None = None
    mountinfo: str | None = None


class MountDetectResult(Result, frozen=True, kw_only=True):
    """Mappings, the container's own filesystem id if the text has it, and reasons for ignored lines."""

    mounts: tuple[Mount, ...]
    filesystem_id: str | None
    ignored: tuple[str, ...]


class TrackerListParams(Params, frozen=True, kw_only=True):
    """Filters, all of which must hold.

    With ``session``, all files that it has read are listed, without only those being followed.
    """

    session: SessionIdText | None = None
    state: TrackerState | None = None
    limit: PageSize = 100
    cursor: str | None = None


class TrackerListResult(Result, frozen=True, kw_only=True):
    """One page ordered by path, and the totals."""

    trackers: tuple[Tracker, ...]
    watching: Watching
    next_cursor: str | None


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
    Method(
        name="file.index",
        params=FileIndexParams,
        result=FileIndexResult,
        access="files",
        writes=True,
        makes_objects=True,
        summary="Bring a file's object up to date.",
        errors=(
            *ACTIVE_ERRORS,
            "file_not_found",
            "invalid_path",
            "path_escapes_mount",
            "source_unreachable",
            "unsupported",
            "purged",
        ),
        example={"session": "s1", "path": "/workspace/a.py"},
        shows=".object",
    ),
    Method(
        name="file.discover",
        params=FileDiscoverParams,
        result=ToolObserveResult,
        access="files",
        writes=True,
        makes_objects=True,
        handle="discover",
        summary="Create unread stubs for existing files.",
        errors=ACTIVE_ERRORS,
        example={"session": "s1", "paths": ["/workspace/a.py"]},
        shows=".objects",
    ),
    Method(
        name="file.resolve",
        params=FileResolveParams,
        result=FileResolveResult,
        access="files",
        handle="resolve",
        summary="Get the object id and the canonical path of a path.",
        errors=(*SESSION_ERRORS, "invalid_path", "path_escapes_mount"),
        example={"session": "s1", "path": "/workspace/a.py"},
        shows=".object",
    ),
    Method(
        name="mount.detect",
        params=MountDetectParams,
        result=MountDetectResult,
        access="host",
        summary="Derive mount mappings from docker inspect or mountinfo text.",
        errors=("invalid_path",),
        example={"mountinfo": "36 35 98:0 /mnt1 /mnt2 rw - ext3 /dev/root rw\n"},
        shows=".mounts",
    ),
    Method(
        name="tracker.list",
        params=TrackerListParams,
        result=TrackerListResult,
        access="host",
        summary="List the files followed on disk, and their watchers.",
        errors=("session_not_found",),
        example={"session": "s1"},
        shows=".watching.files",
    ),
)
