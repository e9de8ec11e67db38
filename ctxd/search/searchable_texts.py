"""The searchable texts of a document: a segment, a tool call, a commit, or a session's head. Pure.

Texts are cut at ``TEXT_CHARS_MAX``, commit deltas at ``DELTA_BYTES_MAX``, and documents after ``TEXTS_MAX`` texts. Of a
tool call's arguments only the values are searchable, not the names. Index and snippets use the same functions, so they
agree.
"""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, Final, NamedTuple

from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.formats.provider_errors import provider_error
from ctxd.objects.commit_document import Fields
from ctxd.objects.document import Content, Document, encode_content
from ctxd.objects.version_state import is_purged
from ctxd.sessions.stored_session import SessionHead, delta_events, read_segment
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    starts_turn,
)
from ctxd_protocol.methods.search import SearchKind
from ctxd_protocol.session_types import PURGED_TEXT

TEXT_CHARS_MAX: Final = 1024 * 1024
"""Characters of a text that are searchable, from its start."""

DELTA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a commit's delta that are searchable, from its start."""

TEXTS_MAX: Final = 50_000
"""Texts of a document that are searchable, from its start: one of 16 MiB could have 300,000, which take 123 MB."""

SUMMARY: Final = 0
"""The place of a commit's summary, before the events of its delta."""

_ARGUMENT_CHARS_MAX: Final = 1_000
"""Longest argument by which a call's output can be found: file names and commands are shorter."""

_LEAVES_MAX: Final = 10_000

_KINDS: Final[tuple[tuple[type[Any], SearchKind], ...]] = (
    (PromptEvent, "prompt"),
    (ResponseEvent, "response"),
    (ThinkingEvent, "thinking"),
    (SystemEvent, "system"),
)


class FoundText(NamedTuple):
    """One text of a document. ``nth``: its place in the document; ``call``: the arguments of a tool call; ``turns``:
    the number of turns begun in the document so far. ``at`` is in ms since 1970; None means the document's time."""

    nth: int
    kind: SearchKind
    text: str
    call: str = ""
    tool: str = ""
    failed: bool = False
    at: int | None = None
    turns: int = 0


def segment_texts(document: Document) -> list[FoundText]:
    """The texts of a segment of a chat. Raises: CtxdError ``corrupt``, ``unsupported``."""
    return list(event_texts(delta_events(read_segment(document))))


def turns_begun(document: Document) -> int:
    """The number of turns that begin in a segment. Raises: as ``segment_texts``."""
    return sum(map(starts_turn, delta_events(read_segment(document))))


def toolcall_texts(document: Document, content: Content | None) -> list[FoundText]:
    """The text of a recorded tool call: its output and arguments. Empty for a purged one."""
    if is_purged(document):
        return []
    payload = document.payload
    output = content[:TEXT_CHARS_MAX] if isinstance(content, str) else ""
    failed = payload.get("status") in ("fail", "aborted")
    return [FoundText(0, "tool_call", output, leaves(payload.get("args")), str(payload.get("tool", "")), failed)]


def commit_texts(document: Document, fields: Fields, content: Content | None) -> Iterator[FoundText]:
    """The texts of a commit: its summary at 0, then the events of its delta.

    For a commit that the daemon made of a session's chat, only the summary: the chat has the rest. A delta of an
    unknown format has no texts, and a damaged one only those before the damage.
    """
    if fields.summary:
        yield FoundText(SUMMARY, "summary", fields.summary[:TEXT_CHARS_MAX], at=fields.at)
    known = DELTA_FORMATS.get(fields.format)
    if content is None or known is None or fields.position is not None or is_purged(document):
        return
    # If the cut is within an item, the delta ends there.
    with suppress(UnreadableDelta, ValueError, TypeError, KeyError, RecursionError):
        for found in event_texts(known.events([encode_content(content)[:DELTA_BYTES_MAX]])):
            yield found._replace(nth=found.nth + 1, at=fields.at if found.at is None else found.at)


def head_texts(head: SessionHead) -> list[FoundText]:
    """The text of a session as a whole: its titles and labels."""
    recorded = head.settings.recorded
    titles = [head.settings.title, "" if recorded is None else recorded.title]
    values = "\n".join(
        dict.fromkeys(each for each in (*titles, *head.settings.labels.values()) if each not in ("", PURGED_TEXT))
    )
    return [FoundText(0, "session", values)] if values else []


def event_texts(events: Iterable[Event]) -> Iterator[FoundText]:
    """The texts of ``events``, each at the place of its event. An output has the tool and the short arguments of its
    call, if ``events`` contains the call."""
    calls: dict[str, tuple[str, str]] = {}
    turns = 0
    for nth, event in enumerate(events):
        turns += starts_turn(event)
        match event:
            case ToolCallEvent():
                call = leaves(event.args)
                short = "\n".join(line for line in call.split("\n") if len(line) <= _ARGUMENT_CHARS_MAX)
                calls[event.call] = (event.tool, short[:_ARGUMENT_CHARS_MAX])
                found = FoundText(nth, "tool_call", "", call or event.tool, event.tool)
            case ToolResultEvent():
                tool, call = calls.get(event.call or "", ("", ""))
                text = event.text[:TEXT_CHARS_MAX]
                found = FoundText(nth, "tool_result", text, call if text else "", tool, event.is_error)
            case CompactionEvent():
                found = FoundText(nth, "compaction", event.summary[:TEXT_CHARS_MAX])
            case _:
                kind = next((kind for type, kind in _KINDS if isinstance(event, type)), None)
                text = getattr(event, "text", "")
                if error := provider_error(event):
                    kind, text = "system", error
                if kind is None:
                    continue
                found = FoundText(nth, kind, text[:TEXT_CHARS_MAX])
        if (found.text or found.call) and found.text != PURGED_TEXT:
            yield found._replace(at=event.at, turns=turns)


def leaves(value: object) -> str:
    """The texts and numbers in ``value``, the arguments of a tool call, one per line."""
    found: list[str] = []
    rest = [value]
    size = 0
    while rest and size < TEXT_CHARS_MAX and len(found) < _LEAVES_MAX:
        each = rest.pop()
        if isinstance(each, dict):
            rest += reversed(list(each.values()))
        elif isinstance(each, list | tuple):
            rest += reversed(each)
        elif isinstance(each, str | int | float) and not isinstance(each, bool):
            found.append(str(each)[:TEXT_CHARS_MAX])
            size += len(found[-1])
    return "\n".join(found)
