"""Calls that a session's handle has besides those of the table: the same calls under shorter names."""

import base64
import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from ctxd_client.calls.context import context_current
from ctxd_client.calls.recording import file_index
from ctxd_client.calls.sessions import session_append
from ctxd_client.errors import CallFailed
from ctxd_client.wire import Call
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.methods import FileIndexResult, SessionAppendResult, ToolcallRecordResult, ToolObserveResult
from ctxd_protocol.sessions import Message, Mount


class ToolRecorded(NamedTuple):
    """Result of a tool call: its record, and the files found in its output.

    ``observed`` is `None` without ``command``, and when the search failed; ``failure`` is the reason then.
    """

    record: ToolcallRecordResult
    observed: ToolObserveResult | None
    failure: CallFailed | None = None


def user(
    session: str, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None
) -> Call[SessionAppendResult]:
    """Add a user message, which starts a turn.

    Example: ``await s.user("fix the bug")``
    """
    return session_append(session, [Message(role="user", content=text, meta=meta)], op_id=op_id)


def assistant(
    session: str, text: str, *, meta: dict[str, Any] | None = None, op_id: str | None = None
) -> Call[SessionAppendResult]:
    """Add what the model answered; ``meta`` keeps model, usage and the like as they came.

    Example: ``await s.assistant("Fixed.", meta={"model": "m-1"})``
    """
    return session_append(session, [Message(role="assistant", content=text, meta=meta)], op_id=op_id)


def read(
    session: str, path: str, *, content: str | bytes | None = None, op_id: str | None = None
) -> Call[FileIndexResult]:
    """Say that the agent read the file at ``path``, its own name for it. Without content the daemon reads the file.

    Example: ``await s.read("/workspace/a.py")``
    """
    return _index(session, path, content, "read", op_id)


def edited(
    session: str, path: str, *, content: str | bytes | None = None, op_id: str | None = None
) -> Call[FileIndexResult]:
    """Say that the agent wrote the file at ``path``. Without content the daemon reads the file.

    Example: ``await s.edited("/workspace/a.py")``
    """
    return _index(session, path, content, "edit", op_id)


def current(session: str) -> Call[CurrentContext]:
    """The context that the session works in now.

    Example: ``(await s.current()).context_id``
    """
    return context_current(session=session)


def toolcall_id() -> str:
    """A fresh id for a tool call of a harness that has none of its own."""
    return f"call-{secrets.token_hex(8)}"


def as_mounts(mounts: Mapping[str, str] | Sequence[Mount]) -> tuple[Mount, ...]:
    """Mounts as the protocol has them; a mapping is from the agent's prefix to a folder of this host, made
    canonical."""
    if isinstance(mounts, Mapping):
        return tuple(
            Mount(agent_prefix=prefix, canonical_prefix=os.path.realpath(folder)) for prefix, folder in mounts.items()
        )
    return tuple(mounts)


def _index(
    session: str, path: str, content: str | bytes | None, cause: Literal["read", "edit"], op_id: str | None
) -> Call[FileIndexResult]:
    if isinstance(content, bytes):
        encoded = base64.b64encode(content).decode()
        return file_index(session, path, content_base64=encoded, cause=cause, op_id=op_id)
    return file_index(session, path, content=content, cause=cause, op_id=op_id)
