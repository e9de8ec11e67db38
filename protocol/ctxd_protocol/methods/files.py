"""What ``toolcall.*``, ``tool.*``, ``file.*`` and ``mount.*`` take and answer."""

from typing import Annotated, Any, Literal

import msgspec

from ctxd_protocol.ids import OpIdText, SessionIdText, ToolcallIdText
from ctxd_protocol.limits import PATHS_MAX
from ctxd_protocol.methods.parts import Params, PathText, Result
from ctxd_protocol.objects import Receipt
from ctxd_protocol.sessions import Mount


class ToolcallRecordParams(Params, frozen=True, kw_only=True):
    """A tool call, its arguments as the harness had them, and its whole output."""

    session: SessionIdText
    id: ToolcallIdText
    tool: Annotated[str, msgspec.Meta(min_length=1, max_length=128)]
    content: str
    args: dict[str, Any] = {}
    args_display: str | None = None
    status: Literal["ok", "fail"] = "ok"
    file_refs: tuple[str, ...] | None = None
    op_id: OpIdText | None = None


class ToolcallRecordResult(Result, frozen=True, kw_only=True):
    """The tool call's object, and the tool calls that were collapsed to make room for it."""

    object: str
    outcome: Literal["created", "unchanged"]
    collapsed: tuple[str, ...]
    receipt: Receipt | None


class ToolObserveParams(Params, frozen=True, kw_only=True):
    """``command`` is the shell command line as it ran in ``cwd`` (the session's workdir when null), ``output``
    its output.
    """

    session: SessionIdText
    command: str
    output: str
    cwd: PathText | None = None
    op_id: OpIdText | None = None


class Discovered(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One path that was looked at. ``outcome`` ``ignored`` makes no object and says why in ``reason``."""

    path: str
    outcome: Literal["created", "unchanged", "ignored"]
    object: str | None = None
    reason: str | None = None


class ToolObserveResult(Result, frozen=True, kw_only=True):
    """Each path that was looked at, in order of appearance.

    ``tool.observe`` leaves out a name that may as well be a directory or a word and turned out to be no file. A name
    that git prints from the top of its work tree has the path of the file there.
    """

    objects: tuple[Discovered, ...]
    receipt: Receipt | None


FileKind = Literal["text", "binary", "too_large", "unreadable", "special", "missing"]
FileOutcome = Literal["created", "updated", "unchanged", "deleted", "orphaned"]


class FileIndexParams(Params, frozen=True, kw_only=True):
    """``content`` null lets the daemon read the file. ``content_base64`` is for bytes that are not UTF-8."""

    session: SessionIdText
    path: PathText
    content: str | None = None
    content_base64: str | None = None
    cause: Literal["read", "edit", "check"] = "read"
    op_id: OpIdText | None = None


class FileIndexResult(Result, frozen=True, kw_only=True):
    """What became of the file's object; ``char_count`` is in code points, 0 without text."""

    object: str
    outcome: FileOutcome
    kind: FileKind
    source_hash: str | None
    char_count: int
    receipt: Receipt | None


class FileDiscoverParams(Params, frozen=True, kw_only=True):
    """Paths as the agent names them."""

    session: SessionIdText
    paths: Annotated[tuple[PathText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    op_id: OpIdText | None = None


class FileResolveParams(Params, frozen=True, kw_only=True):
    """A path as the agent names it."""

    session: SessionIdText
    path: PathText


class FileResolveResult(Result, frozen=True, kw_only=True):
    """The object a path is, whether or not it is known yet."""

    object: str
    canonical_path: str
    filesystem_id: str
    display_path: str
    known: bool


class MountDetectParams(Params, frozen=True, kw_only=True):
    """Exactly one of the two: the text of ``docker inspect CONTAINER``, or of ``/proc/self/mountinfo`` in the
    sandbox.
    """

    docker_inspect: str | None = None
    mountinfo: str | None = None


class MountDetectResult(Result, frozen=True, kw_only=True):
    """Mappings, the container's own filesystem id if the text names it, and what was ignored and why."""

    mounts: tuple[Mount, ...]
    filesystem_id: str | None
    ignored: tuple[str, ...]
