"""Methods ``file.*``: files by their agents' paths."""

from typing import Annotated, Final, Literal

import msgspec

from ctxd_protocol.ids import OpIdText
from ctxd_protocol.limits import PATHS_MAX
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    SESSION_ERRORS,
    Method,
    Milliseconds,
    PathText,
    Result,
    SessionParams,
)
from ctxd_protocol.methods.toolcalls import ToolObserveResult
from ctxd_protocol.object_types import Receipt

FileKind = Literal["text", "binary", "too_large", "unreadable", "special", "missing"]
FileOutcome = Literal["created", "updated", "unchanged", "deleted", "orphaned"]


class FileIndexParams(SessionParams, frozen=True, kw_only=True):
    """A file by the agent's path.

    Without content, the daemon reads the file. ``content_base64`` is for bytes that are not UTF-8. ``valid_time``: the
    past time, in milliseconds since 1970, at which the file had the content: for imported history, from the host's own
    connections only.
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
    """Paths of the agent. ``valid_time``: see ``file.index``."""

    paths: Annotated[tuple[PathText, ...], msgspec.Meta(max_length=PATHS_MAX)]
    op_id: OpIdText | None = None
    valid_time: Milliseconds | None = None


class FileResolveParams(SessionParams, frozen=True, kw_only=True):
    """A path of the agent."""

    path: PathText


class FileResolveResult(Result, frozen=True, kw_only=True):
    """The object at the path. ``known``: it already has a version."""

    object: str
    canonical_path: str
    filesystem_id: str
    display_path: str
    known: bool


ROWS: Final = (
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
)
