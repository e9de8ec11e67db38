"""Identifiers and their rules.

An id is text. Ids that a client chooses follow ``ID_PATTERN``, tool call ids excepted: harnesses put ``|`` and blanks
in theirs, so those may be any printable text of at most 1,024 characters.
"""

import hashlib
import re
from typing import Annotated, Final, NewType

import msgspec

ObjectId = NewType("ObjectId", str)
FilesystemId = NewType("FilesystemId", str)
ContextId = NewType("ContextId", str)

ID_PATTERN: Final = r"^[A-Za-z0-9][A-Za-z0-9._:@/-]{0,127}$(?!\n)"
"""What an id that a client chooses looks like: 1 to 128 bytes, no blanks, no control characters.

Python's ``$`` also stands before a line feed at the end; what follows it here rules that out.
"""

TOOLCALL_ID_PATTERN: Final = r"^[^\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]{1,1024}$(?!\n)"
"""A tool call id as harnesses make them: printable, 1 to 1,024 characters, no control or direction marks.

OpenAI's Responses API makes some of more than 450.
"""

PREFIX_CHARS_MIN: Final = 8
"""Fewest characters by which an object id may be abbreviated."""

SessionIdText = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]
ObjectIdText = Annotated[str, msgspec.Meta(min_length=1, max_length=1280)]
"""The id of an object: a tool call's, with its session's before it, is the longest."""
EntryKeyText = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$")]
"""The key of an entry, without the prefix ``api/`` under which the model's context has it."""
ToolcallIdText = Annotated[str, msgspec.Meta(pattern=TOOLCALL_ID_PATTERN)]
OpIdText = Annotated[str, msgspec.Meta(pattern=ID_PATTERN)]


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
    """The id of a tool call of ``session`` whose own id is taken, or looks like one that ctxd makes.

    A colon in the session's id is written as ``~``, which none holds: the colon behind it is then the first one.
    """
    return ObjectId(f"toolcall:{session.replace(':', '~')}:{toolcall}")


def captured_session_id(harness: str, native: str) -> str:
    """The id of the session that captures the session ``native`` of ``harness``; that of an id with other characters
    than ours is made of its hash."""
    id = f"{harness}-{native}"
    return id if re.fullmatch(ID_PATTERN, id) else f"{harness}-{hashlib.sha256(native.encode()).hexdigest()[:32]}"


def native_op_id(session: str, kind: str, *key: str) -> str:
    """The operation id under which ``session`` records the event of ``kind`` that the harness's own ids ``key`` name:
    the second record of it writes nothing."""
    digest = hashlib.sha256("\0".join((session, kind, *key)).encode()).hexdigest()
    return f"native-{kind}-{digest[:32]}"


def context_id(parent: str, artifact: str, created_at: str, template: str, *, digits: int = 8) -> ContextId:
    """The id of a context: ``ctx-`` and the first ``digits`` hex digits of SHA-256 over the four parts, NUL-separated.

    ``parent`` is the id before it or empty; ``artifact`` names the content; ``created_at`` is UTC in whole seconds with
    a trailing ``Z``. A caller that finds the id taken by other content asks again with 12, then 16 digits.
    """
    digest = hashlib.sha256("\0".join((parent, artifact, created_at, template)).encode()).hexdigest()
    return ContextId(f"ctx-{digest[:digits]}")
