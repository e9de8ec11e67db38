"""Stored form of a session: segments, bundles of segments, and the head.

Owns the stored field names of all three. Segment ``n`` is the change made by one write. It carries a bundle if
``n + 1`` is a multiple of ``RUN``: a second copy of its run's small segments, so that a long session opens by reading
few rows. The head holds settings and figures; it is written when the session is created, when its settings change, at
each new turn and with each assembly, and its figures may lag behind the segments in between.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, get_args

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.secrets.guard import DEFAULT
from ctxd_protocol.events import Event, message_of
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.secrets import SecretPolicy
from ctxd_protocol.sessions import Collapse, Message, Mount, Role, SessionStatus


class Snapshot(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "index": "i",
        "pool": "p",
        "active": "a",
        "pinned": "k",
        "read": "r",
        "turn": "n",
        "calls": "c",
        "recency": "t",
        "chosen": "e",
        "files": "f",
    },
):
    """A session's sets whole, without its chat. An object is given by its place in ``index``.

    ``read`` pairs an object with the number of the segment that first showed its content; ``calls`` a turn with its
    count of tool calls; ``recency`` an active tool call with its turn and its place in that; ``chosen`` an active
    object with the turn in which it was activated by request. ``files`` are the files; all others are tool calls. None
    in snapshots of earlier versions, whose files were the objects with ids in the form of a hash.
    """

    index: tuple[str, ...] = ()
    pool: tuple[int, ...] = ()
    active: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    read: tuple[tuple[int, int], ...] = ()
    turn: int = 0
    calls: tuple[tuple[int, int], ...] = ()
    recency: tuple[tuple[int, int, int], ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()
    files: tuple[int, ...] | None = None


class SessionDelta(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "snapshot": "s",
        "messages": "m",
        "events": "e",
        "called": "t",
        "collapsed": "c",
        "read": "r",
        "discovered": "d",
        "activated": "a",
        "shown": "v",
        "pinned": "k",
        "unpinned": "u",
        "deactivated": "x",
        "hidden": "h",
    },
):
    """One write's changes, made in the order of the fields; object ids but for ``snapshot`` and ``messages``.

    ``snapshot``: the sets as they were before this delta. ``called``: tool calls that came in; ``collapsed``: those
    that left the window then. ``read``: objects whose content was shown to the agent. ``discovered``: objects known by
    name. ``activated``, ``deactivated``: by request. ``shown``, ``hidden``: in and out of the metadata pool by request.
    """

    snapshot: Snapshot | None = None
    messages: tuple[Message, ...] = ()
    events: tuple[Event, ...] = ()
    called: tuple[str, ...] = ()
    collapsed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    discovered: tuple[str, ...] = ()
    activated: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    deactivated: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def said(self) -> tuple[Message, ...]:
        """The messages that the delta adds to spec 1's chat: its own, or the view of its events."""
        if not self.events:
            return self.messages
        return tuple(message for event in self.events if (message := message_of(event)) is not None)


NOTHING: Final = SessionDelta()
"""The delta that changes nothing; it is not written."""


def speaks(payload: dict[str, Any]) -> bool:
    """True if a segment's payload adds to the chat log."""
    return "m" in payload or "e" in payload


READ_FIELDS: Final = ("r", "a")
"""Names under which a segment's payload holds the ids that its write read or activated."""

_MARKS: Final = {role: Message(role=role) for role in get_args(Role)}


def mark_of(message: Message) -> Message:
    """``message`` without text: its role, and the tool call that it stands for. Marks of equal roles are one object."""
    if message.toolcall is None:
        return _MARKS[message.role]
    return Message(role=message.role, toolcall=message.toolcall)


def marked(delta: SessionDelta) -> SessionDelta:
    """``delta`` with marks instead of its messages and events: all that folding a session needs of its chat."""
    if not delta.messages and not delta.events:
        return delta
    return msgspec.structs.replace(delta, messages=tuple(map(mark_of, delta.said)), events=())


def from_payload(payload: dict[str, Any]) -> SessionDelta:
    """Return the delta of a segment. Raises: msgspec.ValidationError for an invalid ``payload``."""
    return msgspec.convert(payload, SessionDelta)


PREVIEW_CHARS: Final = 200
"""Characters of the newest user message that a listing shows."""


_encode_sorted: Final = msgspec.json.Encoder(order="sorted").encode


class SessionSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Settings of a session. ``created_at`` is in ms since 1970; ``ordinal`` counts sessions as created.

    ``prefixes`` are the canonical prefixes of ``mounts`` without symlinks, as they were when the mounts were set; empty
    in sessions of earlier versions.
    ``detect_filesystems``: files outside mounts are on the file system of their device. ``renamed``: tool
    calls whose id was another object's on the host that took the session in, by the id they have there, and the id that
    they are shown by all the same.
    """

    agent: str
    principal: str
    created_at: int
    ordinal: int
    filesystem_id: str
    detect_filesystems: bool = False
    state: SessionStatus = "active"
    workdir: str = "/"
    mounts: tuple[Mount, ...] = ()
    prefixes: tuple[str, ...] = ()
    collapse: Collapse = Collapse()
    budget_tokens: int | None = None
    labels: dict[str, str] = {}
    secrets: SecretPolicy = DEFAULT
    renamed: dict[str, str] = {}


class SessionHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings, and figures as of the version. ``assembly`` counts the session's assemblies, 0 before the first.

    ``entering``: the session is being imported and incomplete, so that it does not exist yet.
    """

    settings: SessionSettings
    turn_count: int = 0
    index_count: int = 0
    active_count: int = 0
    preview: str = ""
    assembly: int = 0
    context_id: str | None = None
    entering: bool = False


def head_document(session: str, head: SessionHead) -> Document:
    """The document of ``head``. Raises: CtxdError invalid_params if a label or a prefix has no canonical encoding."""
    return _inner_document(session_object_id(session), "session", msgspec.to_builtins(head))


def read_head(stored: Stored) -> SessionHead:
    """Return the head in a version. Raises: CtxdError corrupt."""
    try:
        return msgspec.convert(stored.document.payload, SessionHead)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the head {stored.document.id} cannot be read") from error


def segment_document(id: str, delta: SessionDelta, bundle: str | None = None) -> Document:
    """Return the document of the segment ``id``, with the bundle of its run if it carries one.

    Raises: CtxdError invalid_params if a message's ``meta`` has no canonical encoding (an integer beyond 2^53-1).
    """
    payload: dict[str, Any] = msgspec.to_builtins(delta)
    if delta.messages or delta.events or delta.snapshot is not None or bundle is not None:
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


RUN: Final = 256
"""Segments of one run. More would make fewer rows, and a longer tail that is read one by one."""

LARGE_BYTES: Final = 2048
"""Bytes beyond which reading a delta again costs little beside its size. Bounds what chats cost twice."""


class Bundle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``seqs``: the write of each segment of the run but the last. ``deltas``: theirs, None for a large one."""

    seqs: tuple[int, ...]
    deltas: tuple[SessionDelta | None, ...]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Bundle).decode


def carries_bundle(number: int) -> bool:
    """True if segment ``number`` carries one."""
    return (number + 1) % RUN == 0


def carriers(segments: int) -> range:
    """The numbers of the segments with a bundle, of a session that has so many segments."""
    return range(RUN - 1, segments, RUN)


def text_size(messages: Iterable[Message]) -> int:
    """The size of ``messages`` in memory: the characters of their content and the bytes of their ``meta`` in JSON."""
    return sum(len(message.content) + (len(_encode(message.meta)) if message.meta else 0) for message in messages)


def kept_in_run(delta: SessionDelta | None) -> SessionDelta | None:
    """``delta`` as a bundle of its run holds it: None if it is large."""
    return delta if delta is not None and len(_encode(delta)) <= LARGE_BYTES else None


def to_text(seqs: Sequence[int], deltas: Sequence[SessionDelta | None]) -> str:
    """The bundle of a run's deltas but the last, None for one left out, and of the sequences of their writes."""
    return _encode((seqs, [kept_in_run(delta) for delta in deltas])).decode()


def from_text(text: str) -> Bundle:
    """Return the bundle that ``to_text`` encoded. Raises: msgspec.DecodeError."""
    return _decode(text)
