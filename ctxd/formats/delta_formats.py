"""Table of delta formats: their names and readers; and the counts of a delta's messages and tokens.

``narrative-v1`` and ``raw-v1`` are formats of results, not of deltas.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from io import BytesIO
from itertools import chain
from math import ceil
from typing import Final, NamedTuple, TypeVar

from ctxd.formats import bureau_agent_v1, events_v1
from ctxd.formats.cbor_array import UnreadableDelta, items
from ctxd.formats.losses import args_text, event_text
from ctxd.transcripts import claude_code, codex, codex_exec, opencode, pi
from ctxd.transcripts.record_decoding import Entry, Line, joined_parts, lines
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

E = TypeVar("E")

CONVERSATION: Final = (PromptEvent, ResponseEvent, ThinkingEvent, ToolCallEvent, ToolResultEvent, CompactionEvent)
"""Types of the events that count as messages."""

_BYTES_PER_TOKEN: Final = 4
"""Bytes of UTF-8 that count as one token, as in the estimate of a context's size."""


class DeltaFormat(NamedTuple):
    """A format of deltas. ``events`` reads the bytes of consecutive deltas of a chain.

    ``is_lines``: a delta consists of complete lines of JSON, otherwise of one CBOR array. ``edited``: as ``events``,
    but applies edits of earlier entries, and reads each delta several times; None for formats without edits.
    """

    name: str
    is_lines: bool
    events: Callable[[Iterable[bytes]], Iterator[Event]]
    edited: Callable[[Sequence[Callable[[], bytes]]], Iterator[Event]] | None = None


def window_events(format: DeltaFormat, deltas: Sequence[Callable[[], bytes]]) -> Iterator[Event]:
    """Yield the events of ``deltas``, functions that return their bytes, in the form in which a model sees them.

    Raises: UnreadableDelta, and the errors of the functions.
    """
    if format.edited is not None:
        return format.edited(deltas)
    return format.events(read() for read in deltas)


class Counts(NamedTuple):
    """Size of a conversation. ``messages``: number of prompts, responses, reasoning, tool calls, their results, and
    compactions.

    ``tokens``: an estimate, a quarter of the bytes of their texts and arguments.
    """

    messages: int
    tokens: int


def count(format: str, content: bytes) -> Counts:
    """Return the counts of one delta; no messages if the format is unknown. Decodes the delta one item at a time.

    Raises: UnreadableDelta if ``content`` is not valid in ``format``.
    """
    known = DELTA_FORMATS.get(format)
    if known is None:
        return Counts(0, ceil(len(content) / _BYTES_PER_TOKEN))
    messages = size = 0
    for event in known.events([content]):
        found, text = measure_event(event)
        messages += found
        size += text
    return Counts(messages, tokens_of(size))


def is_array(format: str) -> bool:
    """Return True for a known format whose deltas are CBOR arrays, which are never UTF-8."""
    known = DELTA_FORMATS.get(format)
    return known is not None and not known.is_lines


def has_lines(format: str) -> bool:
    """Return True for a known format whose deltas are lines of JSON."""
    known = DELTA_FORMATS.get(format)
    return known is not None and known.is_lines


def measure_event(event: Event) -> tuple[int, int]:
    """Return the number of messages of an event, 1 or 0, and the bytes of its text."""
    if not isinstance(event, CONVERSATION):
        return 0, 0
    text = event.tool + args_text(event.args) if isinstance(event, ToolCallEvent) else event_text(event)
    return 1, len(text) if text.isascii() else len(text.encode())


def tokens_of(size: int) -> int:
    """Return the estimated tokens of ``size`` bytes of text."""
    return ceil(size / _BYTES_PER_TOKEN)


def _from_lines(reader: Callable[[Iterable[Line]], Iterator[Entry]]) -> Callable[[Iterable[bytes]], Iterator[Event]]:
    def events(deltas: Iterable[bytes]) -> Iterator[Event]:
        found = chain.from_iterable(_checked(delta) for delta in deltas)
        return (entry.event for entry in reader(joined_parts(found)))

    return events


def _edited(
    mark: str, edits_in: Callable[[Iterable[Line]], E], reader: Callable[[Iterable[Line], E], Iterator[Entry]]
) -> Callable[[Sequence[Callable[[], bytes]]], Iterator[Event]]:
    """Return ``DeltaFormat.edited`` for a format whose lines with an edit contain ``mark``."""

    def events(deltas: Sequence[Callable[[], bytes]]) -> Iterator[Event]:
        has_edits = any(mark.encode() in read() for read in deltas)
        edited = chain.from_iterable(_checked(read()) for read in deltas) if has_edits else ()
        edits = edits_in(joined_parts(edited))
        yield from _from_lines(lambda found: reader(found, edits))(read() for read in deltas)

    return events


def _checked(delta: bytes) -> Iterator[Line]:
    try:
        yield from lines(BytesIO(delta))
    except ValueError as error:
        raise UnreadableDelta(str(error)) from None


def _from_items(reader: Callable[[Iterable[object]], Iterator[Event]]) -> Callable[[Iterable[bytes]], Iterator[Event]]:
    return lambda deltas: reader(chain.from_iterable(map(items, deltas)))


DELTA_FORMATS: Final[dict[str, DeltaFormat]] = {
    format.name: format
    for format in (
        DeltaFormat(events_v1.NAME, False, _from_items(events_v1.events)),
        DeltaFormat(bureau_agent_v1.NAME, False, _from_items(bureau_agent_v1.events)),
        DeltaFormat(
            "claude-code-v1",
            True,
            _from_lines(claude_code.read_session),
            _edited(claude_code.RETRACTED, claude_code.retracted_in, claude_code.read_session),
        ),
        DeltaFormat("claude-stream-json-v1", True, _from_lines(claude_code.read_session)),
        DeltaFormat("codex-v1", True, _from_lines(codex.read_rollout)),
        DeltaFormat("codex-events-v1", True, _from_lines(codex.read_events)),
        DeltaFormat("codex-exec-json-v1", True, _from_lines(codex_exec.read_exec)),
        DeltaFormat("pi-v1", True, _from_lines(pi.read_session), _edited(pi.EDIT, pi.edits_of, pi.read_session)),
        DeltaFormat("pi-json-mode-v1", True, _from_lines(pi.read_stream)),
        DeltaFormat("opencode-v1", True, _from_lines(opencode.read_session)),
        DeltaFormat("opencode-run-json-v1", True, _from_lines(opencode.read_run)),
    )
}
"""All formats in which deltas can be read, by name."""
