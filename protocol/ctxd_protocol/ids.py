"""Identifiers and their rules.

An id is text. Ids chosen by clients match ``ID_PATTERN``, except those of tool calls: harnesses put ``|`` and spaces in
them, so they may be any printable text of at most 1,024 characters.
"""

import hashlib
import re
from typing import Annotated, Final, NewType

import msgspec

ObjectId = NewType("ObjectId", str)
FilesystemId = NewType("FilesystemId", str)
ContextId = NewType("ContextId", str)

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$(?!\n)"
"""Pattern of ids chosen by clients: 1 to 128 bytes, no spaces, no control characters.

Python's ``$`` also matches before a trailing line feed; the lookahead after it rules that out.
"""

TOOLCALL_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]{1,1024}$(?!\n)"
"""Pattern of tool call ids, which harnesses generate: 1 to 1,024 printable characters, no control or direction marks.

OpenAI's Responses API generates some of more than 450.
"""

_CONTEXT_ID: Final = re.compile(r"ctx-[0-9a-f]{8,64}")

STOP_PATTERN: Final = r"^(compaction|root|ctx-[0-9a-f]{8,64})$(?!\n)"
"""Pattern of the place where a materialized context begins."""

PREFIX_CHARS_MIN: Final = 8
"""Minimum length of an abbreviated object id."""

SessionIdText = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
ObjectIdText = Annotated[str, msgspec.Meta(min_length=1, max_length=1280)]
"""The id of an object. A tool call's id prefixed with its session's is the longest."""
EntryKeyText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""The key of an entry, without the prefix ``api/`` that it has in the model's context."""
ToolcallIdText = Annotated[str, msgspec.Meta(pattern=TOOLCALL_ID_PATTERN)]
OpIdText = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


def is_context_id(text: str) -> bool:
    """Return True for the form of the id of a context: of a commit, or of an assembly."""
    return _CONTEXT_ID.fullmatch(text) is not None


def chat_id(session: str) -> ObjectId:
    """The id of the chat of ``session`` (spec 1 §2.4)."""
    return ObjectId(f"chat:{session}")


def system_prompt_id(session: str) -> ObjectId:
    """The id of the system prompt of ``session`` (spec 1 §2.4)."""
    return ObjectId(f"system_prompt:{session}")


def session_object_id(session: str) -> ObjectId:
    """The id of the object that wraps ``session`` (spec 1 §2.4)."""
    return ObjectId(f"session:{session}")


def toolcall_alias(session: str, toolcall: str) -> ObjectId:
    """The id of a tool call of ``session`` whose own id is taken, or has the form of an id made by ctxd.

    A colon in the session's id becomes ``~``, which no session id contains: the next colon then ends the session's id.
    """
    return ObjectId(f"toolcall:{session.replace(':', '~')}:{toolcall}")


def captured_session_id(harness: str, native: str) -> str:
    """The id of the session that captures the session ``native`` of ``harness``. If ``native`` is not a valid id, its
    hash takes its place."""
    id = f"{harness}-{native}"
    return id if re.fullmatch(ID_PATTERN, id) else f"{harness}-{hashlib.sha256(native.encode()).hexdigest()[:32]}"


def native_op_id(session: str, kind: str, *key: str) -> str:
    """The operation id for recording in ``session`` the event of ``kind`` with the harness's own ids ``key``: recording
    it twice writes it once."""
    digest = hashlib.sha256("\0".join((session, kind, *key)).encode()).hexdigest()
    return f"native-{kind}-{digest[:32]}"


def context_id(parent: str, artifact: str, created_at: str, template: str, *, digits: int = 8) -> ContextId:
    """The id of a context: ``ctx-`` and the first ``digits`` hex digits of SHA-256 over the four parts, NUL-separated.

    ``parent`` is the parent's id or empty; ``artifact`` identifies the content; ``created_at`` is UTC in whole seconds
    with a trailing ``Z``. If the id is taken by other content, the caller tries 12, then 16 digits.
    """
    digest = hashlib.sha256("\0".join((parent, artifact, created_at, template)).encode()).hexdigest()
    return ContextId(f"ctx-{digest[:digits]}")
