"""A session's inner documents: its segments, and its head, which says what it is set to and how far it has come.

Owns their stored form. The head is written when the session is made, when its settings change, at each new turn and
with each assembly; between those its figures may lag behind the segments.
"""

import hashlib
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.secrets.policy import DEFAULT
from ctxd.sessions.delta import Delta, to_payload
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Mount, SessionState

PREVIEW_CHARS: Final = 200
"""Characters of the newest user message that a listing shows."""


_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class Settings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session is set to. ``created_at`` is in ms since 1970; ``ordinal`` counts sessions as created.

    ``detect_filesystems``: what no mount covers lies where its device says, not on ``filesystem_id``. ``renamed``: tool
    calls whose id was another object's on the host that took the session in, by the id they have there, and the id that
    they are shown by all the same.
    """

    agent: str
    principal: str
    created_at: int
    ordinal: int
    filesystem_id: str
    detect_filesystems: bool = False
    state: SessionState = "active"
    workdir: str = "/"
    mounts: tuple[Mount, ...] = ()
    collapse: Collapse = Collapse()
    budget_tokens: int | None = None
    labels: dict[str, str] = {}
    secrets: SecretPolicy = DEFAULT
    renamed: dict[str, str] = {}


class Head(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings, and figures as of the version. ``assembly`` counts the session's assemblies, 0 before the first.

    ``entering``: the session is being taken in from elsewhere and not whole yet, so that as of now there is none.
    """

    settings: Settings
    turn_count: int = 0
    index_count: int = 0
    active_count: int = 0
    preview: str = ""
    assembly: int = 0
    context_id: str | None = None
    entering: bool = False


def head_document(session: str, head: Head) -> Document:
    """The document of ``head``. Raises: CtxdError invalid_params if a label or a prefix has no canonical encoding."""
    return _inner_document(session_object_id(session), "session", msgspec.to_builtins(head))


def read_head(stored: Stored) -> Head:
    """The head that a version holds. Raises: CtxdError corrupt if it is none."""
    try:
        return msgspec.convert(stored.document.payload, Head)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the head {stored.document.id} cannot be read") from error


def segment_document(id: str, delta: Delta, bundle: str | None = None) -> Document:
    """The document of the segment ``id``, with the bundle of its run if it carries one.

    Raises: CtxdError invalid_params if a message's ``meta`` has no canonical encoding (an integer beyond 2^53-1).
    """
    payload = to_payload(delta)
    if delta.messages or delta.snapshot is not None or bundle is not None:
        return _inner_document(id, "segment", payload, bundle)
    # Only lists of text under ASCII names: sorting is all that the canonical encoding does, and most writes are such.
    hashed = hashlib.sha256(_encode_sorted(payload)).hexdigest()
    identity = identity_hash("segment", None, id)
    return Document(id=id, type="segment", identity_hash=identity, content_hash=hashed, payload=payload)


def _inner_document(id: str, type: str, payload: dict[str, object], content: str | None = None) -> Document:
    try:
        hashed = content_hash(payload, content)
    except ValueError as error:
        raise CtxdError("invalid_params", str(error)) from error
    identity = identity_hash(type, None, id)
    return Document(id=id, type=type, identity_hash=identity, content_hash=hashed, payload=payload, content=content)
