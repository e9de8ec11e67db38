"""Arguments and results of a session's handle, and their conversions; both clients share them."""

import base64
import os
import posixpath
import secrets
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ctxd_client.errors import CallFailed, Conflict, InvalidCall
from ctxd_protocol.methods.toolcalls import ToolcallRecordResult, ToolObserveResult
from ctxd_protocol.object_types import ToolcallStatus
from ctxd_protocol.session_types import Mount, SessionView


class ToolRecorded(NamedTuple):
    """Result of ``Session.tool``: the record, and the files found in the output.

    ``observed`` is None without ``command``, or if the search failed; ``failure`` is then the reason.
    """

    record: ToolcallRecordResult
    observed: ToolObserveResult | None
    failure: CallFailed | None = None


class ToolError(str):
    """Result text of a model's tool call that was refused; ``Session.tool`` records it as a failure."""

    __slots__ = ()


def toolcall_id() -> str:
    """A fresh id for a tool call, for harnesses that assign none."""
    return f"call-{secrets.token_hex(8)}"


def tool_outcome(output: str | Exception) -> tuple[str, ToolcallStatus]:
    """The text and the status to record for a tool's ``output``, which may be the exception that it raised.

    A ``ToolError`` is a failure. Raises: ``InvalidCall`` for anything else, such as bytes.
    """
    if isinstance(output, str):
        return str(output), "fail" if isinstance(output, ToolError) else "ok"
    if not isinstance(output, BaseException):
        raise InvalidCall(
            f"output is {type(output).__name__}, not text or an exception",
            code="invalid_params",
            hint="give text: decode bytes with .decode()",
            outcome="not_applied",
            method="toolcall.record",
        )
    # File names in it may contain bytes that are not text.
    return f"{type(output).__name__}: {output}".encode(errors="backslashreplace").decode(), "fail"


def as_mounts(mounts: Mapping[str, str] | Sequence[Mount]) -> tuple[Mount, ...]:
    """``mounts`` as the protocol has them. A mapping is from the agent's prefix to a folder of this host, whose path is
    resolved."""
    if isinstance(mounts, Mapping):
        return tuple(
            Mount(agent_prefix=prefix, canonical_prefix=os.path.realpath(folder)) for prefix, folder in mounts.items()
        )
    return tuple(mounts)


def require_same(found: SessionView, **given: object) -> None:
    """Check that an existing session matches ``given``; values that are None or empty match any.

    Raises: ``Conflict`` if the session is closed, in the trash, or differs.
    """
    if found.state == "closed":
        hint = "Choose another id, or leave out agent to read the closed session."
        raise Conflict(f"session {found.session} exists and is closed", code="session_exists", hint=hint)
    if found.state == "removed":
        hint = "Choose another id, or bring the session back with session.restore."
        raise Conflict(f"session {found.session} exists and is in the trash", code="session_exists", hint=hint)
    workdir = given.pop("workdir", None)
    if isinstance(workdir, str) and workdir != "/":
        given["workdir"] = posixpath.normpath(workdir)
    differing = [
        f"{name} {getattr(found, name)!r}, not {value!r}" if isinstance(value, str | int) else f"another {name}"
        for name, value in given.items()
        if value and value != getattr(found, name)
    ]
    if differing:
        raise Conflict(
            f"session {found.session} exists with {'; '.join(differing)}",
            code="session_exists",
            hint="Choose another id, or leave out agent to use the session as it is.",
        )


def split_content(content: str | bytes | None) -> tuple[str | None, str | None]:
    """``content`` as ``file.index`` takes it: text, or bytes in base64."""
    if isinstance(content, bytes):
        return None, base64.b64encode(content).decode()
    return content, None
