"""Stored form of a session: segments, bundles of segments, and the head.

Defines the stored names of all three. Segment ``n`` holds the operations of one write. It carries a bundle if ``n + 1``
is a multiple of ``RUN``: a second copy of its run's small segments, so that a long session loads from few rows. The
head holds settings and counts; it is written when the session is created, when its settings change, at each new turn
and with each assembly, so its counts may lag behind the segments.
"""

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored, require_text
from ctxd.objects.generated_ids import is_hash
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.sessions.session_settings import SessionSettings
from ctxd.transcripts.codex import request_in
from ctxd_protocol.event_types import (
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    ToolResultEvent,
    event_of,
    message_of,
)
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.session_types import Message


class Snapshot(msgspec.Struct, frozen=True, array_like=True, tag="snapshot", gc=False):
    """The sets before the other operations of its segment, of which it is the first. It has no chat. Objects are given
    by their places in ``index``.

    ``read`` pairs an object with the number of the segment that first showed its content; ``calls`` a turn with its
    count of tool calls; ``recency`` an active tool call with its turn and its place in the turn; ``chosen`` an active
    object with the turn in which it was activated by request. ``files`` are the files; all others are tool calls.
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
    files: tuple[int, ...] = ()


class AppendChat(msgspec.Struct, frozen=True, array_like=True, tag="chat", gc=False):
    """``events`` were appended to the chat."""

    events: tuple[Event, ...]


class ObjectsOperation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Change of the sets for ``objects``, given by id."""

    objects: tuple[str, ...]


class RecordCalls(ObjectsOperation, frozen=True, tag="call"):
    """Tool calls were recorded: they are active."""


class CollapseCalls(ObjectsOperation, frozen=True, tag="collapse"):
    """Tool calls left the window."""


class ReadObjects(ObjectsOperation, frozen=True, tag="read"):
    """The content of objects was shown to the agent: they are active."""


class DiscoverObjects(ObjectsOperation, frozen=True, tag="discover"):
    """Objects are known by name: they are in the metadata pool."""


class ActivateObjects(ObjectsOperation, frozen=True, tag="activate"):
    """Objects are active by request."""


class ShowObjects(ObjectsOperation, frozen=True, tag="show"):
    """Objects are in the metadata pool by request."""


class PinObjects(ObjectsOperation, frozen=True, tag="pin"):
    """Objects are pinned."""


class UnpinObjects(ObjectsOperation, frozen=True, tag="unpin"):
    """Objects are no longer pinned."""


class DeactivateObjects(ObjectsOperation, frozen=True, tag="deactivate"):
    """Objects are inactive by request."""


class HideObjects(ObjectsOperation, frozen=True, tag="hide"):
    """Objects were removed from the metadata pool by request; they stay in the index."""


class RecordUsage(msgspec.Struct, frozen=True, array_like=True, tag="usage", gc=False):
    """Tokens that a provider billed for the request of assembly ``assembly``; a later record replaces an earlier one.

    ``input`` excludes the tokens read from and written to the cache; ``cache_write`` pairs the cache's lifetime in
    seconds, 0 if unknown, with tokens. ``output`` includes ``reasoning``, which is None if unknown. ``other``: the
    provider's further fields.
    """

    assembly: int
    model: str
    input: int
    cache_read: int
    cache_write: tuple[tuple[int, int], ...]
    output: int
    reasoning: int | None = None
    other: dict[str, Any] = {}

    @property
    def tokens_in(self) -> int:
        """All tokens of the request, cached or not."""
        return self.input + self.cache_read + sum(tokens for _, tokens in self.cache_write)


SegmentOperation = (
    Snapshot
    | AppendChat
    | RecordCalls
    | CollapseCalls
    | ReadObjects
    | DiscoverObjects
    | ActivateObjects
    | ShowObjects
    | PinObjects
    | UnpinObjects
    | DeactivateObjects
    | HideObjects
    | RecordUsage
)
"""One change of a session. The tags are the stored names. A new operation needs a struct here and a case in
``ctxd.sessions.session_state.apply``; older versions reject its segments by the tag."""

SessionDelta = tuple[SegmentOperation, ...]
"""The changes of one write, in order. An empty delta changes nothing and is not written."""

NOTHING: Final[SessionDelta] = ()

ENTERING: Final = (RecordCalls, ReadObjects, DiscoverObjects)
"""Operations that bring objects into the index."""


def entering(delta: SessionDelta) -> tuple[str, ...]:
    """Return the objects that ``delta`` adds to the index if they are new, in order; perhaps with repeats."""
    return tuple([id for operation in delta if isinstance(operation, ENTERING) for id in operation.objects])


def delta_events(delta: SessionDelta) -> tuple[Event, ...]:
    """The events that ``delta`` adds to the chat."""
    return tuple([event for operation in delta if isinstance(operation, AppendChat) for event in operation.events])


def messages_of(delta: SessionDelta) -> tuple[Message, ...]:
    """The messages that ``delta`` adds to spec 1's chat."""
    return tuple([message for event in delta_events(delta) if (message := message_of(event)) is not None])


# --- stored form ---

VERSION: Final = 2
"""The version of segments and bundles that are written. A segment's payload is ``{"ops": [operation, …], "v": 2}``, an
operation an array of its tag and its fields; a bundle is ``[2, seqs, [operations, …]]``. In version 1 neither has a
version, and a delta is an object with one list for each operation: see ``_DeltaOfVersion1``. There ``v`` is a list, so
that programs of that version reject newer segments instead of reading them as empty."""


class _Segment(msgspec.Struct, frozen=True):
    v: int
    ops: SessionDelta


class _SnapshotOfVersion1(msgspec.Struct, frozen=True, kw_only=True):
    i: tuple[str, ...] = ()
    p: tuple[int, ...] = ()
    a: tuple[int, ...] = ()
    k: tuple[int, ...] = ()
    r: tuple[tuple[int, int], ...] = ()
    n: int = 0
    c: tuple[tuple[int, int], ...] = ()
    t: tuple[tuple[int, int, int], ...] = ()
    e: tuple[tuple[int, int], ...] = ()
    f: tuple[int, ...] | None = None

    def upgraded(self) -> Snapshot:
        """Return the same sets. In snapshots without the kinds of objects, the files are the ids in the form of a
        hash."""
        files = tuple([n for n, id in enumerate(self.i) if is_hash(id)]) if self.f is None else self.f
        return Snapshot(self.i, self.p, self.a, self.k, self.r, self.n, self.c, self.t, self.e, files)


class _DeltaOfVersion1(msgspec.Struct, frozen=True, kw_only=True):
    """A delta by the stored names of version 1, in the order in which its changes are made. The chat is in ``m`` or
    ``e``."""

    s: _SnapshotOfVersion1 | None = None
    m: tuple[Message, ...] = ()
    e: tuple[Event, ...] = ()
    t: tuple[str, ...] = ()
    c: tuple[str, ...] = ()
    r: tuple[str, ...] = ()
    d: tuple[str, ...] = ()
    a: tuple[str, ...] = ()
    v: tuple[str, ...] = ()
    k: tuple[str, ...] = ()
    u: tuple[str, ...] = ()
    x: tuple[str, ...] = ()
    h: tuple[str, ...] = ()

    def upgraded(self) -> SessionDelta:
        """Return the same changes as operations."""
        snapshot = () if self.s is None else (self.s.upgraded(),)
        events = self.e or tuple(map(event_of, self.m))
        lists: tuple[tuple[type[Any], tuple[str, ...]], ...] = (
            (RecordCalls, self.t), (CollapseCalls, self.c), (ReadObjects, self.r), (DiscoverObjects, self.d),
            (ActivateObjects, self.a), (ShowObjects, self.v), (PinObjects, self.k), (UnpinObjects, self.u),
            (DeactivateObjects, self.x), (HideObjects, self.h),
        )  # fmt: skip
        chat = (AppendChat(events),) if events else ()
        return (*snapshot, *chat, *(operation(ids) for operation, ids in lists if ids))


def read_segment(document: Document) -> SessionDelta:
    """Return the delta of a segment of this version or an earlier one.

    Raises: CtxdError unsupported for a newer version or an unknown operation; corrupt.
    """
    payload = document.payload
    try:
        if isinstance(version := payload.get("v"), int):
            _require_known(version, document.id)
            return msgspec.convert(payload, _Segment).ops
        return msgspec.convert(payload, _DeltaOfVersion1).upgraded()
    except msgspec.ValidationError as error:
        raise _unreadable(f"segment {document.id}", error) from error


def _require_known(version: int, id: str) -> None:
    if version > VERSION:
        raise CtxdError(
            "unsupported",
            f"segment {id} is of version {version}, written by a newer ctxd; this one reads up to {VERSION}",
            hint="Update ctxd on this host.",
        )


def _unreadable(what: str, error: Exception) -> CtxdError:
    # The messages for an unknown tag, and for an unknown field of an event.
    if str(error).startswith(("Invalid value", "Object contains unknown field")):
        message = f"{what} has an operation or event that this ctxd does not know: {error}"
        return CtxdError("unsupported", message, hint="Update ctxd on this host.")
    return CtxdError("corrupt", f"{what} cannot be read: {error}")


def adds_chat(payload: dict[str, Any]) -> bool:
    """Return True if a segment's payload adds events to the chat."""
    return "m" in payload or "e" in payload or any(operation[0] == "chat" for operation in payload.get("ops", ()))


def shown_in(payload: dict[str, Any]) -> list[str]:
    """Return the ids that a segment of the current version reads or activates. Cost: that of its sets, not its chat."""
    return [id for tag, *fields in payload["ops"] if tag in ("read", "activate") for id in fields[0]]


_PROMPT: Final = Message(role="user")
_RESPONSE: Final = Message(role="assistant")
_UNSEEN: Final = OpaqueEvent()
_MARKS: Final = {mark.role: event_of(mark) for mark in (_PROMPT, _RESPONSE)}


def mark_of(event: Event) -> Message | None:
    """Return the message of spec 1's chat for ``event`` without text: its role, and the tool call that it refers to.
    None if there is no message, see ``message_of``. All prompts share one mark, and so do all responses."""
    if event.sidechain is not None:
        return None
    match event:
        case PromptEvent():
            return _PROMPT
        case ResponseEvent():
            return _RESPONSE
        case ToolResultEvent(object=str(id)):
            return Message(role="toolcall", toolcall=id)
        case _:
            return None


def chars_of(events: Iterable[Event]) -> int:
    """Return the number of characters of the messages for ``events`` in spec 1's chat."""
    shown = (PromptEvent, ResponseEvent, ToolResultEvent)
    return sum([len(event.text) for event in events if isinstance(event, shown) and mark_of(event) is not None])


def marked(delta: SessionDelta) -> SessionDelta:
    """Return ``delta`` with events without text, which suffice to fold a session. A delta without chat is returned
    unchanged."""
    for operation in delta:
        if isinstance(operation, AppendChat):
            break
    else:
        return delta
    return tuple(
        [AppendChat(tuple(map(_event_mark, each.events))) if isinstance(each, AppendChat) else each for each in delta]
    )


def _event_mark(event: Event) -> Event:
    mark = mark_of(event)
    if mark is None:
        return _UNSEEN
    return _MARKS.get(mark.role) or event_of(mark)


PREVIEW_CHARS: Final = 200
"""Characters of the newest user message that a listing shows."""


def preview_of(text: str) -> str:
    """Return the start of the user message ``text`` that a listing shows."""
    return request_in(text)[:PREVIEW_CHARS]


class SessionHead(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The settings, and counts as of this version. ``assembly``: number of the newest assembly, 0 before the first.

    ``preview`` and ``first_prompt``: the start of the newest and of the first message of the user. ``entering``: the
    session is being imported, and does not exist until it is complete. ``emptied``: the session was removed for good;
    its parts are being purged ("begun"), or are gone ("done").
    """

    settings: SessionSettings
    turn_count: int = 0
    index_count: int = 0
    active_count: int = 0
    preview: str = ""
    first_prompt: str = ""
    assembly: int = 0
    context_id: str | None = None
    entering: bool = False
    emptied: Literal["begun", "done"] | None = None


def head_document(session: str, head: SessionHead) -> Document:
    """Return the document of ``head``. Raises: CtxdError invalid_params if a value has no canonical encoding."""
    return _inner_document(session_object_id(session), "session", msgspec.to_builtins(head))


def read_head(stored: Stored) -> SessionHead:
    """Return the head in a version. Raises: CtxdError corrupt."""
    try:
        return msgspec.convert(stored.document.payload, SessionHead)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the head {stored.document.id} cannot be read") from error


def segment_document(id: str, delta: SessionDelta, bundle: str | None = None) -> Document:
    """Return the document of the segment ``id``, with the bundle of its run if it carries one.

    Raises: CtxdError invalid_params if an event's ``meta`` has no canonical encoding (an integer beyond 2^53-1).
    """
    payload: dict[str, Any] = {"ops": msgspec.to_builtins(delta), "v": VERSION}
    is_plain = bundle is None
    for operation in delta:
        is_plain = is_plain and isinstance(operation, ObjectsOperation)
    if not is_plain:
        return _inner_document(id, "segment", payload, bundle)
    # Fast path for most writes: lists of text under sorted ASCII names, whose plain encoding is canonical.
    hashed = hashlib.sha256(_encode(payload)).hexdigest()
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
"""Segments in one run. A longer run means fewer bundles, but a longer tail of segments that are read one by one."""

_WIDE_BYTES_MIN: Final = 64 * 1024
"""Bytes of JSON of an event from which the width of its characters counts."""

LARGE_BYTES: Final = 2048
"""Deltas above this many bytes are left out of bundles, so that large chats are not stored twice: an extra read costs
little relative to their size."""


class Bundle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``seqs``: the journal sequence of each segment of a run but the last. ``deltas``: their deltas, None if large."""

    version: int
    seqs: tuple[int, ...]
    deltas: tuple[SessionDelta | None, ...]


class _BundleOfVersion1(msgspec.Struct, frozen=True, array_like=True):
    seqs: tuple[int, ...]
    deltas: tuple[_DeltaOfVersion1 | None, ...]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Bundle).decode
_decode_version_1: Final = msgspec.json.Decoder(_BundleOfVersion1).decode


def carries_bundle(number: int) -> bool:
    """Return True if segment ``number`` carries a bundle."""
    return (number + 1) % RUN == 0


def carriers(segments: int) -> range:
    """Return the numbers of the segments with a bundle in a session of ``segments`` segments."""
    return range(RUN - 1, segments, RUN)


def events_size(events: Iterable[Event]) -> int:
    """Return the size of ``events`` in bytes of JSON, as an estimate of their memory."""
    return sum([len(_encode(event)) for event in events])


def events_memory(events: Iterable[Event]) -> int:
    """Return ``events_size``, but twice the size of a large event that is not ASCII: each of its characters may take
    four bytes, and one more in the UTF-8 that Python keeps."""
    sizes = [(len(text), len(text) > _WIDE_BYTES_MIN and not text.isascii()) for text in map(_encode, events)]
    return sum(2 * size if is_wide else size for size, is_wide in sizes)


def text_size(messages: Iterable[Message]) -> int:
    """Return an estimate of the memory of ``messages``: characters of content plus bytes of ``meta`` in JSON."""
    return sum(len(message.content) + (len(_encode(message.meta)) if message.meta else 0) for message in messages)


def kept_in_run(delta: SessionDelta | None) -> SessionDelta | None:
    """Return ``delta`` in the form for a bundle: None if it is large."""
    return delta if delta is not None and len(_encode(delta)) <= LARGE_BYTES else None


def to_text(seqs: Sequence[int], deltas: Sequence[SessionDelta | None]) -> str:
    """Return the bundle of a run: its deltas without the last, None for omitted ones, and their journal sequences."""
    return _encode((VERSION, seqs, [kept_in_run(delta) for delta in deltas])).decode()


def read_bundle(document: Document) -> Bundle:
    """Return the bundle in the content of a segment. Raises: as ``read_segment``."""
    text = require_text(document.content or "")
    try:
        if text.startswith("[["):
            old = _decode_version_1(text)
            return Bundle(1, old.seqs, tuple([None if delta is None else delta.upgraded() for delta in old.deltas]))
        version = text[1 : text.find(",")]
        if version.isdigit():
            _require_known(int(version), document.id)
        return _decode(text)
    except msgspec.DecodeError as error:
        raise _unreadable(f"the bundle of {document.id}", error) from error
