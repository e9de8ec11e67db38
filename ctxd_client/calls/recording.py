"""Calls that tell the daemon what tools did and which files there are."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from ctxd_client.wire import EMPTY, Call
from ctxd_protocol.methods import (
    FileDiscoverParams,
    FileIndexParams,
    FileIndexResult,
    FileResolveParams,
    FileResolveResult,
    MountDetectParams,
    MountDetectResult,
    ToolcallRecordParams,
    ToolcallRecordResult,
    ToolObserveParams,
    ToolObserveResult,
)


def toolcall_record(
    session: str,
    id: str,
    tool: str,
    content: str,
    *,
    args: Mapping[str, Any] = EMPTY,
    args_display: str | None = None,
    status: Literal["ok", "fail"] = "ok",
    file_refs: Sequence[str] | None = None,
    op_id: str | None = None,
) -> Call[ToolcallRecordResult]:
    """Keep a tool call and its output. ``id`` is the harness's own id of the call.

    Example: ``await client.toolcall_record("s1", "call_1", "bash", "ok\\n", args={"command": "make"})``
    """
    return Call(
        "toolcall.record",
        ToolcallRecordParams(
            session=session,
            id=id,
            tool=tool,
            content=content,
            args=dict(args),
            args_display=args_display,
            status=status,
            file_refs=None if file_refs is None else tuple(file_refs),
            op_id=op_id,
        ),
        ToolcallRecordResult,
    )


def tool_observe(
    session: str,
    command: str,
    output: str,
    *,
    cwd: str | None = None,
    op_id: str | None = None,
) -> Call[ToolObserveResult]:
    """Find the files that a command's output speaks of. ``cwd`` null means the session's workdir.

    Example: ``await client.tool_observe("s1", "ls src", "a.py\\nb.py\\n")``
    """
    return Call(
        "tool.observe",
        ToolObserveParams(session=session, command=command, output=output, cwd=cwd, op_id=op_id),
        ToolObserveResult,
    )


def file_index(
    session: str,
    path: str,
    *,
    content: str | None = None,
    content_base64: str | None = None,
    cause: Literal["read", "edit", "check"] = "read",
    op_id: str | None = None,
) -> Call[FileIndexResult]:
    """Bring a file's object up to date. Without content the daemon reads the file.

    Example: ``await client.file_index("s1", "/workspace/a.py")``
    """
    return Call(
        "file.index",
        FileIndexParams(
            session=session, path=path, content=content, content_base64=content_base64, cause=cause, op_id=op_id
        ),
        FileIndexResult,
    )


def file_discover(
    session: str,
    paths: Sequence[str],
    *,
    op_id: str | None = None,
) -> Call[ToolObserveResult]:
    """Make unread stubs for files that exist.

    Example: ``await client.file_discover("s1", ["/workspace/a.py"])``
    """
    return Call(
        "file.discover", FileDiscoverParams(session=session, paths=tuple(paths), op_id=op_id), ToolObserveResult
    )


def file_resolve(session: str, path: str) -> Call[FileResolveResult]:
    """Which object a path is, and what its canonical path is.

    Example: ``(await client.file_resolve("s1", "/workspace/a.py")).object``
    """
    return Call("file.resolve", FileResolveParams(session=session, path=path), FileResolveResult)


def mount_detect(
    *,
    docker_inspect: str | None = None,
    mountinfo: str | None = None,
) -> Call[MountDetectResult]:
    """Mount mappings from the text of ``docker inspect`` or of ``/proc/self/mountinfo``: exactly one of the two.

    Example: ``(await client.mount_detect(mountinfo=text)).mounts``
    """
    return Call(
        "mount.detect", MountDetectParams(docker_inspect=docker_inspect, mountinfo=mountinfo), MountDetectResult
    )
