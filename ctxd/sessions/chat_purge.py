"""Purge of chat messages: turns keep their place, roles and tool calls, and lose their texts.

A message's text is in its segment, perhaps in the bundle of its run, and in the preview of a listing; it
goes from all versions of these. Equal texts elsewhere in the session go too, so that an earlier
life of a segment keeps nothing. Pure.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import msgspec

from ctxd.objects.document import Document
from ctxd.objects.hashing import content_hash
from ctxd.objects.identity import segments_prefix
from ctxd.sessions.chat import read_turns
from ctxd.sessions.segments import (
    PREVIEW_CHARS,
    AppendChat,
    SegmentOperation,
    SessionDelta,
    read_bundle,
    read_segment,
    segment_document,
    to_text,
)
from ctxd.sessions.session import LiveSession
from ctxd_protocol.events import Event, message_of
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.sessions import Message

PURGED_TEXT: Final = "[purged]"
"""Text of a purged message."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode


class Gone:
    """Texts and metadata to remove."""

    def __init__(self, messages: Iterable[Message]) -> None:
        said = [message for message in messages if says_something(message)]
        self.messages = len(said)
        self.texts = frozenset(message.content for message in said) - {"", PURGED_TEXT}
        self.metas = frozenset(_encode(message.meta) for message in said if message.meta is not None)
        self._previews = frozenset(text[:PREVIEW_CHARS] for text in self.texts)

    def message(self, message: Message) -> Message:
        """Return ``message`` without purged texts; itself if unchanged."""
        text_goes = message.content in self.texts
        meta_goes = message.meta is not None and (text_goes or _encode(message.meta) in self.metas)
        if not text_goes and not meta_goes:
            return message
        content = PURGED_TEXT if text_goes else message.content
        return msgspec.structs.replace(message, content=content, meta=None, secrets=None)

    def delta(self, delta: SessionDelta) -> SessionDelta:
        """Return ``delta`` without purged texts; itself if unchanged."""
        left = tuple([self._operation(operation) for operation in delta])
        return delta if all(one is other for one, other in zip(delta, left, strict=True)) else left

    def _operation(self, operation: SegmentOperation) -> SegmentOperation:
        if not isinstance(operation, AppendChat):
            return operation
        events = tuple(map(self.event, operation.events))
        same = all(one is other for one, other in zip(operation.events, events, strict=True))
        return operation if same else AppendChat(events)

    def event(self, event: Event) -> Event:
        """Return ``event`` without purged texts; itself if unchanged. A purged event keeps its kind and references."""
        message = message_of(event)
        if message is None:
            texts = (getattr(event, "text", ""), getattr(event, "summary", ""))
            left = event if self.texts.isdisjoint(texts) else _emptied(event)
        else:
            left = event if self.message(message) is message else _emptied(event)
        return left

    def preview(self, preview: str) -> str:
        """Return the preview of the newest user message without purged texts."""
        return PURGED_TEXT if preview in self._previews else preview


_KEPT_OF_EVENTS: Final = ("id", "parent", "message", "at", "sidechain", "call", "tool", "object")


def _emptied(event: Event) -> Event:
    kept: dict[str, Any] = {name: getattr(event, name) for name in _KEPT_OF_EVENTS if name in event.__struct_fields__}
    if "text" in event.__struct_fields__:
        kept["text"] = PURGED_TEXT
    return type(event)(**kept)


def says_something(message: Message) -> bool:
    """True if there is anything in ``message`` to purge."""
    return message.content not in ("", PURGED_TEXT) or message.meta is not None


def within(session: str) -> tuple[str, str]:
    """Return the entities that hold the chat of ``session``."""
    return segments_prefix(session), str(session_object_id(session))


def restating(gone: Gone) -> Callable[[Document], Document | None]:
    """Return a function from a version of a segment or head to its form without ``gone``; None if it stays.

    Raises, when called: as ``read_segment``.
    """

    def restate(document: Document) -> Document | None:
        if document.type == "segment":
            return _segment(gone, document)
        preview = document.payload.get("preview")
        kept = preview if preview is None else gone.preview(preview)
        return None if kept == preview else _with(document, {**document.payload, "preview": kept}, document.content)

    return restate


def _segment(gone: Gone, document: Document) -> Document | None:
    delta = read_segment(document)
    left, bundle = gone.delta(delta), document.content
    if bundle is not None:
        run = read_bundle(document)
        # What is left out of a bundle is read from its own segment.
        kept = [None if each is not None and gone.delta(each) is not each else each for each in run.deltas]
        if kept != list(run.deltas):
            bundle = to_text(run.seqs, kept)
    if left is delta and bundle is document.content:
        return None
    return segment_document(document.id, left, bundle)


def without_bundle(document: Document) -> Document | None:
    """Return a replacement for a segment whose bundle equals a purged text of another object: a bundle from which every
    delta is read elsewhere. Null for what is no such segment.

    Raises: as ``read_segment``.
    """
    if document.type != "segment" or document.content is None:
        return None
    run = read_bundle(document)
    return _with(document, document.payload, to_text(run.seqs, [None] * len(run.deltas)))


def _with(document: Document, payload: dict[str, Any], content: str | None) -> Document:
    hashed = content_hash(payload, content)
    return msgspec.structs.replace(document, payload=payload, content=content, content_hash=hashed)


async def said_in(live: LiveSession, wanted: Iterable[int] | None) -> list[Message]:
    """The messages of the turns ``wanted``, by number, of all with None; numbers beyond the last are left out.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    count = len(live.state.turns)
    numbers = set(range(count)) if wanted is None else {number for number in wanted if number < count}
    if not numbers:
        return []
    found: list[Message] = []
    async for turn in read_turns(live, min(numbers), max(numbers) + 1):
        if turn.number in numbers:
            found += turn.messages
    return found
