"""Purge of a chat's events: they stay in their turns with kind and references, without content.

The content of an event is in its segment, perhaps in the bundle of its run, and in the preview of a listing. It is
removed from all versions of these, whether or not spec 1's chat shows the event. Equal content elsewhere in the session
is removed too, so that no earlier version of a segment keeps it: in the title, in labels, and in the summaries and tags
of commits also longer texts that quote it. All but ``events_in`` and ``content_in`` is pure.
"""

import re
from bisect import bisect_right
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing
from functools import cached_property, partial
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd.formats import events_v1
from ctxd.formats.cbor_array import encoded, items, joined
from ctxd.formats.delta_formats import has_lines
from ctxd.objects.commit_document import STORED_NAMES, commit_hash
from ctxd.objects.document import Content, Document, encode_content, require_text
from ctxd.objects.generated_ids import segments_prefix
from ctxd.objects.hashing import content_hash
from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import (
    PREVIEW_CHARS,
    AppendChat,
    SegmentOperation,
    SessionDelta,
    events_size,
    preview_of,
    read_bundle,
    read_segment,
    segment_document,
    to_text,
)
from ctxd.store.purge import COMMITS_OF
from ctxd.transcripts.harness_labels import HARNESS_LABELS
from ctxd_protocol.event_types import Attachment, Event
from ctxd_protocol.ids import session_object_id
from ctxd_protocol.limits import SETTINGS_BYTES_MAX
from ctxd_protocol.session_types import PURGED_TEXT

PURGED_ATTACHMENT: Final = Attachment(media_type="application/octet-stream", name=PURGED_TEXT)
"""Replaces a purged attachment: without it, nothing would show that the event had one."""

_SAMPLE_BYTES: Final = 64

_QUOTE_CHARS: Final = 8
"""Minimum length at which a purged text is also searched for inside a longer title, label, summary or tag, and a title
inside a purged text. Shorter ones, such as "yes", are parts of many texts by chance: they must be equal."""

_encode: Final = msgspec.json.Encoder(order="sorted").encode

_TEXTS: Final = ("text", "summary")
_CONTENT: Final = (*_TEXTS, "signature", "encrypted", "args", "data", "meta")
"""Fields of events that hold content, except attachments. The texts come first: an event that loses its text loses all
its content."""

_RECORDED: Final = ("title", "prompt")
"""Fields with text among those that a harness recorded about its session."""

_KEPT: Final = ("id", "parent", "message", "at", "sidechain", "call", "tool", "object", "is_error")


def _content(event: Event) -> dict[str, str]:
    """Return the content of ``event`` by field: texts unchanged, other values as JSON."""
    found: dict[str, str] = {}
    for name in _CONTENT:
        value = getattr(event, name, None)
        if value not in (None, "", (), {}, [], PURGED_TEXT):
            found[name] = value if isinstance(value, str) else _encode(value).decode()
    return found


def _attached(event: Event) -> list[tuple[Attachment, str]]:
    """Return the attachments of ``event``, each with its content; empty for a purged one. Copies may differ in name and
    type, so these count as content only if there is no other."""
    found: list[tuple[Attachment, str]] = []
    for each in getattr(event, "attachments", ()):
        if each == PURGED_ATTACHMENT:
            found.append((each, ""))
            continue
        source = [value for value in (each.data, each.artifact, each.url) if value is not None]
        found.append((each, _encode(source or [each.media_type, each.name]).decode()))
    return found


def args_text(args: object) -> str:
    """Return the arguments of a tool call as text, in the form in which a purge compares them."""
    return _encode(args).decode()


def _texts(event: Event) -> list[str]:
    """Return the texts that are the content of ``event``."""
    return [*_content(event).values(), *(text for _, text in _attached(event) if text)]


class ErasedContent:
    """Content to remove: ``texts``, the arguments and outputs of the tool call with the ids ``calls``, and with
    ``recorded`` every title and first prompt that a harness recorded. The latter two need not equal a text."""

    def __init__(self, texts: Iterable[str] = (), *, calls: Iterable[str] = (), recorded: bool = False) -> None:
        self._takes_recorded = recorded
        self._calls = frozenset(calls)
        self._titles: dict[tuple[str, int], str] = {}
        self._quoting: dict[str, bool] = {}
        self.texts = frozenset(texts)

    @cached_property
    def _previews(self) -> frozenset[str]:
        # Earlier versions kept the start of the whole message.
        return frozenset(start for text in self.texts for start in (preview_of(text), text[:PREVIEW_CHARS]))

    @cached_property
    def encoded_texts(self) -> tuple[bytes, ...]:
        """``texts`` in UTF-8."""
        return tuple(text.encode() for text in self.texts)

    @cached_property
    def in_lines(self) -> tuple[str, ...]:
        """``texts`` as they are in lines of JSON: arguments unchanged, others as strings."""
        return (*self.texts, *(_encode(text).decode()[1:-1] for text in self.texts))

    def event(self, event: Event) -> Event:
        """Return ``event`` without purged content; itself if unchanged. It keeps its kind and references."""
        # A harness may have sent arguments as text, or a part of the output: neither equals what was recorded.
        is_of_call = not self._calls.isdisjoint((getattr(event, "call", None), getattr(event, "object", None)))
        goes = [name for name, text in _content(event).items() if is_of_call or text in self.texts]
        attached = _attached(event)
        left = tuple(
            [PURGED_ATTACHMENT if text and (is_of_call or text in self.texts) else each for each, text in attached]
        )
        if not goes and all(one is other for one, (other, _) in zip(left, attached, strict=True)):
            return event
        if not goes or goes[0] not in _TEXTS:
            changed: dict[str, Any] = dict.fromkeys(goes)
            if attached:
                changed["attachments"] = left
            return msgspec.structs.replace(event, secrets=None, **changed)
        kept: dict[str, Any] = {name: getattr(event, name) for name in _KEPT if hasattr(event, name)}
        kept |= {name: PURGED_TEXT for name in goes if name in _TEXTS}
        return type(event)(**kept)

    def losses(self, events: Iterable[Event]) -> int:
        """Return how many of ``events`` lose content."""
        return sum(self.event(event) is not event for event in events)

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

    def preview(self, preview: str) -> str:
        """Return the preview of the newest user message without purged texts."""
        return PURGED_TEXT if preview in self._previews else preview

    @cached_property
    def _lines(self) -> frozenset[str]:
        """The texts as single lines, the form of a title. Longer texts cannot be in the settings of a session."""
        return frozenset(" ".join(text.split()) for text in self.texts if len(text) <= SETTINGS_BYTES_MAX) - {""}

    @cached_property
    def _parts(self) -> list[str]:
        """The lines that are also found inside a longer one, shortest first."""
        return sorted((line for line in self._lines if len(line) >= _QUOTE_CHARS), key=len)

    def quotes(self, text: str) -> bool:
        """Return True if ``text`` is a purged text, or contains one of at least ``_QUOTE_CHARS`` characters."""
        # Many versions have the same text.
        if (found := self._quoting.get(text)) is None:
            line = " ".join(text.split())
            fitting = self._parts[: bisect_right(self._parts, len(line), key=len)]
            found = self._quoting[text] = line in self._lines or any(each in line for each in fitting)
        return found

    def title(self, text: str, least: int = _QUOTE_CHARS) -> str:
        """Return ``text``, a title or first prompt, perhaps cut; erased if it quotes a purged text, or is a part of
        one and has at least ``least`` characters."""
        if not text or text == PURGED_TEXT:
            return text
        # Every version of a head has them, so the result is cached.
        left = self._titles.get((text, least))
        if left is None:
            part = re.compile(r"\s+".join(map(re.escape, text.split())))
            quoted = len(text) >= least and any(part.search(each) for each in self.texts)
            left = self._titles[text, least] = _erased(text) if quoted or self.quotes(text) else text
        return left

    def settings(self, settings: SessionSettings) -> SessionSettings:
        """Return ``settings`` without purged texts."""
        stored = msgspec.to_builtins(settings)
        left = self.stored_settings(stored)
        return settings if left == stored else msgspec.convert(left, SessionSettings)

    def stored_settings(self, stored: dict[str, Any]) -> dict[str, Any]:
        """Return the settings of a session, as ``stored``, without purged texts."""
        left = dict(stored)
        if title := stored.get("title"):
            left["title"] = self.title(title)
        if labels := stored.get("labels"):
            left["labels"] = {name: self._label(name, value) for name, value in labels.items()}
        if recorded := stored.get("recorded"):
            left["recorded"] = {
                name: self._recorded(value) if name in _RECORDED else value for name, value in recorded.items()
            }
        return left

    def _label(self, name: str, value: str) -> str:
        # Without its identity, the session would be imported a second time.
        return value if name in HARNESS_LABELS or not self.quotes(value) else _erased(value)

    def _recorded(self, text: str) -> str:
        if self._takes_recorded and text:
            return PURGED_TEXT
        return self.title(text, least=1)


def _erased(text: str) -> str:
    """Return the replacement of ``text``, which is not longer."""
    return PURGED_TEXT if len(text.encode()) >= len(PURGED_TEXT) else ""


def list_chat_entities(sessions: Iterable[str]) -> tuple[str, ...]:
    """Return the entities that hold the chats of ``sessions``, for a purge: segments, heads and commits."""
    return tuple(
        id for each in sessions for id in (segments_prefix(each), str(session_object_id(each)), COMMITS_OF + each)
    )


def make_eraser(
    gone: ErasedContent, lines: Callable[[Content], Content] | None = None
) -> Callable[[Document], Document | None]:
    """Return a function that removes ``gone`` from a version of a segment, head or commit; None if nothing changes.
    ``lines``: returns the lines of a transcript in a commit without ``gone``, or themselves; by default they stay.

    Raises, when called: as ``read_segment``.
    """

    def restate(document: Document) -> Document | None:
        if document.type == "segment":
            return _segment(gone, document)
        if document.type == "commit":
            return _commit(gone, document, lines)
        shown: dict[str, Any] = {
            name: document.payload[name] for name in ("preview", "first_prompt") if name in document.payload
        }
        kept: dict[str, Any] = {name: gone.preview(text) for name, text in shown.items()}
        shown["settings"] = document.payload["settings"]
        kept["settings"] = gone.stored_settings(shown["settings"])
        return None if kept == shown else _with(document, {**document.payload, **kept}, document.content)

    return restate


def _commit(gone: ErasedContent, document: Document, lines: Callable[[Content], Content] | None) -> Document | None:
    """Return a commit without ``gone``; None if unchanged. A delta above 1 MiB, which only clients commit, is purged by
    the id of the commit."""
    payload, content = document.payload, document.content
    summary = payload.get("summary", "")
    if summary and (any(text.startswith(summary) for text in gone.texts) or gone.quotes(summary)):
        payload = {name: value for name, value in payload.items() if name != "summary"}
    if any(map(gone.quotes, tags := payload.get("tags") or ())):
        payload = {**payload, "tags": [tag for tag in tags if not gone.quotes(tag)]}
    if payload.get(STORED_NAMES["format"]) == events_v1.NAME and isinstance(content, bytes):
        content = _delta(gone, content)
    elif content is not None and lines is not None and has_lines(payload.get(STORED_NAMES["format"], "")):
        content = lines(content)
    if payload is document.payload and content is document.content:
        return None
    ref = None if content is None else blake3(encode_content(content)).hexdigest()
    return msgspec.structs.replace(document, payload=payload, content=content, content_hash=commit_hash(payload, ref))


def _delta(gone: ErasedContent, content: bytes) -> bytes:
    """Return an ``events-v1`` delta without ``gone``; itself if unchanged."""
    kept: list[bytes] = []
    changed = False
    for item, split in events_v1.whole_items(items(content)):
        event = events_v1.event_of(item)
        left: Any = item
        match item:
            case {"output": {"raw": bytes(raw)}, "ctxd_part": _}:
                # A part of an event that continues in other deltas: purged if its middle is in a purged text.
                if any(raw[len(raw) // 2 :][:_SAMPLE_BYTES] in text for text in gone.encoded_texts):
                    left = {**item, "output": {"raw": PURGED_TEXT.encode()}}
            case _:
                if (purged := gone.event(event)) is not event:
                    left = events_v1.item_of(purged)
        changed = changed or left is not item
        kept += split(encoded(left))
    return joined(kept) if changed else content


def _segment(gone: ErasedContent, document: Document) -> Document | None:
    delta = read_segment(document)
    left, bundle = gone.delta(delta), None if document.content is None else require_text(document.content)
    if bundle is not None:
        run = read_bundle(document)
        # A delta that is missing from the bundle is read from its own segment.
        kept = [None if each is not None and gone.delta(each) is not each else each for each in run.deltas]
        if kept != list(run.deltas):
            bundle = to_text(run.seqs, kept)
    if left is delta and bundle is document.content:
        return None
    return segment_document(document.id, left, bundle)


def without_bundle(document: Document) -> Document | None:
    """Return a replacement for a segment whose bundle equals a purged text of another object: with an empty bundle, so
    that every delta is read from its own segment. None if ``document`` has no bundle.

    Raises: as ``read_segment``.
    """
    if document.type != "segment" or document.content is None:
        return None
    run = read_bundle(document)
    return _with(document, document.payload, to_text(run.seqs, [None] * len(run.deltas)))


def _with(document: Document, payload: dict[str, Any], content: Content | None) -> Document:
    hashed = content_hash(payload, content)
    return msgspec.structs.replace(document, payload=payload, content=content, content_hash=hashed)


async def events_in(live: LiveSession, wanted: Iterable[int] | None) -> AsyncGenerator[list[Event], None]:
    """Yield the events of the turns with the numbers ``wanted``, None for all, page by page; numbers beyond the last
    are ignored.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    count = len(live.state.turns)
    numbers = set(range(count)) if wanted is None else {number for number in wanted if number < count}
    if not numbers:
        return
    async with aclosing(read_pages(live, (min(numbers), 0), (max(numbers) + 1, 0))) as pages:
        async for page in pages:
            yield [event for (turn, _), event in page.placed() if turn in numbers]


async def content_in(live: LiveSession, wanted: Iterable[int] | None) -> tuple[ErasedContent, int]:
    """Return the content of the turns ``wanted``, and how many of their events have content. Memory: the content and
    one page of events. Raises and cancel: as ``events_in``."""
    texts: set[str] = set()
    count = 0
    async with aclosing(events_in(live, wanted)) as pages:
        async for events in pages:
            found, number = await off_loop(events_size(events), partial(_content_of, events))
            texts |= found
            count += number
    return ErasedContent(texts), count


def _content_of(events: Sequence[Event]) -> tuple[frozenset[str], int]:
    """Return the content of ``events``, and how many of them have any."""
    gone = ErasedContent(text for event in events for text in _texts(event))
    return gone.texts, gone.losses(events)
