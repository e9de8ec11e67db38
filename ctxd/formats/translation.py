"""Translation of the deltas of a chain to one conversation in the wanted format.

Four tiers, the best first: ``native`` (deltas joined unchanged), ``fields`` (events mapped one by one), ``narrative``
(text for any model), ``raw`` (deltas of an unknown format, unchanged). One chain may mix formats. The result depends
only on the deltas, the outputs of tool calls that they refer to, and ``TRANSLATOR_VERSION``.
"""

from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import groupby, islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Final, Literal, NamedTuple

import msgspec

from ctxd.formats import bureau_agent_v1, claude_code_v1, codex_v1, events_v1, narrative_v1
from ctxd.formats.cbor_array import array_head, encoded, joinable
from ctxd.formats.compacted_window import (
    is_before_later_summary,
    replaces,
    summary_as_message,
    with_agent_messages,
    with_first_window,
)
from ctxd.formats.delta_formats import DELTA_FORMATS, is_array, measure_event, tokens_of, window_events
from ctxd.formats.losses import Loss, Losses
from ctxd_protocol.event_types import Event, SystemEvent, ToolResultEvent

Tier = Literal["native", "fields", "narrative", "raw"]

TRANSLATOR_VERSION: Final = 9
"""Changes whenever the same deltas would give different bytes."""

RAW: Final = "raw-v1"
"""Format of a result: one line of JSON for each delta, with its format, and its text or its bytes in base64."""

_CHUNK_BYTES: Final = 64 * 1024

_HELD_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of an array that are held in memory until its length is known."""

_FILE_PIECE_BYTES: Final = 1024 * 1024

_WRITERS: Final = frozenset({events_v1.NAME, bureau_agent_v1.NAME, claude_code_v1.NAME})

WANTED: Final = (*sorted(DELTA_FORMATS), narrative_v1.NAME, RAW)
"""All formats that can be requested."""


Buffer = bytes | memoryview


class Delta(NamedTuple):
    """One delta of a chain. ``read`` returns its bytes, the same on each call, so that they need not be kept in memory.

    ``messages`` and ``tokens``: its counts, as returned by ``delta_formats.count``. ``is_compaction``: it begins with
    messages that its compaction keeps in the window.
    """

    format: str
    read: Callable[[], bytes]
    messages: int
    tokens: int
    is_compaction: bool = False


class Output(NamedTuple):
    """Output of a tool call to which the delta of a session refers."""

    text: str
    is_error: bool = False

    @classmethod
    def of(cls, payload: Mapping[str, Any], content: object, state: str) -> "Output":
        """Return the output in a version of a tool call's object; a note in its place if it has no text."""
        text = content if isinstance(content, str) else f"[The output is {state}.]"
        if "encoding" in payload:
            text = "[The output is binary.]"
        return cls(text, payload.get("status") == "fail")


OutputReader = Callable[[Sequence[str]], Mapping[str, Output]]
"""Returns outputs by the ids of their objects. References to outputs that it omits stay unresolved."""

GONE: Final = Output("[The output is gone.]")

_OUTPUTS_AT_ONCE: Final = 4
"""Events whose outputs are read together: each output may have 16 MiB."""


def reference_of(event: Event) -> str | None:
    """Return the object with the output of a tool call; None if ``event`` has the output, or is another event."""
    return (event.object or None) if isinstance(event, ToolResultEvent) and not event.text else None


def with_output(event: Event, output: Output) -> Event:
    """Return ``event``, the result of a tool call, with ``output`` in place of its reference."""
    assert isinstance(event, ToolResultEvent), "other events refer to no output"
    failed = event.is_error or output.is_error
    return msgspec.structs.replace(event, object=None, text=output.text, is_error=failed)


class UntranslatableFormat(ValueError):
    """Deltas cannot be translated to the wanted format."""


class Materialization:
    """One conversation, from the deltas of a chain in order.

    ``format`` is that of the content: ``narrative-v1`` or ``raw-v1`` if the wanted format cannot be written.
    ``tier`` is the lowest that any delta needed. ``lost``, ``messages`` and ``tokens`` are complete once ``chunks`` is
    exhausted.
    """

    def __init__(
        self, deltas: Sequence[Delta], wanted: str, folder: Path | None = None, outputs: OutputReader | None = None
    ) -> None:
        """Choose the tier. ``folder``: for the temporary file of a long content, by default the system's. ``outputs``
        reads the outputs that events refer to; None leaves the references. Raises: UntranslatableFormat."""
        self._deltas = deltas
        self._folder = folder
        self._outputs = outputs
        self.tier, self.format = _tier({delta.format for delta in deltas}, wanted)
        self._restart()

    @property
    def lost(self) -> tuple[Loss, ...]:
        """Parts of the conversation that the content lacks."""
        return self._losses.found()

    @property
    def media_type(self) -> str:
        """Media type of the content."""
        if self.format == narrative_v1.NAME:
            return "text/markdown"
        return "application/cbor" if is_array(self.format) else "application/jsonl"

    def chunks(self) -> Iterator[Buffer]:
        """Yield the content, in pieces of about 64 KiB or one delta. Memory: one delta, the outputs of four tool calls
        and 8 MiB; for ``bureau-agent-v1`` all consecutive outputs.

        Raises: UnreadableDelta; OSError if the temporary file of a long content fails; the errors of reading outputs.
        """
        self._restart()
        yield from _gathered(self._pieces())
        self.tokens += tokens_of(self._size)

    def _pieces(self) -> Iterator[Buffer]:
        if self.format == RAW:
            return self._raw()
        if self.format == narrative_v1.NAME:
            return self._narrative()
        if DELTA_FORMATS[self.format].is_lines:
            return self._native_lines() if self.tier == "native" else self._session()
        return self._array()

    # --- arrays ---

    def _array(self) -> Iterator[Buffer]:
        """Yield an array. It begins with its length, so its items are held until that is known, above a size in an
        unnamed temporary file. So each delta is read and translated only once."""
        held: list[Buffer] = []
        length = size = 0
        with ExitStack() as opened:
            file: IO[bytes] | None = None
            for number, part in self._array_parts():
                length += number
                size += len(part)
                if file is None and size > _HELD_BYTES_MAX:
                    file = opened.enter_context(TemporaryFile(dir=self._folder))
                    file.writelines(held)
                    held.clear()
                if file is None:
                    held.append(part)
                else:
                    file.write(part)
            yield array_head(length)
            yield from held
            if file is not None:
                file.seek(0)
                while piece := file.read(_FILE_PIECE_BYTES):
                    yield piece

    def _array_parts(self) -> Iterator[tuple[int, Buffer]]:
        for format, run in self._runs():
            if format == self.format:
                for delta in run:
                    yield joinable(delta.read())
                    self._add_counts(delta)
            else:
                for item in self._items(self._events(format, run)):
                    yield 1, encoded(item)

    def _items(self, events: Iterator[Event]) -> Iterator[object]:
        if self.format == events_v1.NAME:
            for event in events:
                self._count(event)
                yield events_v1.item_of(event)
            return
        writer = bureau_agent_v1.MessageWriter(self._losses)
        for event in events:
            self._count(event)
            yield from writer.add(event)
        yield from writer.end()

    # --- lines and text ---

    def _native_lines(self) -> Iterator[bytes]:
        for delta in self._deltas:
            content = delta.read()
            self._add_counts(delta)
            yield content
            if content and not content.endswith(b"\n"):
                yield b"\n"

    def _session(self) -> Iterator[bytes]:
        writer = claude_code_v1.SessionWriter(self._losses)
        for format, run in self._runs():
            if format == self.format:
                for delta in run:
                    self._add_counts(delta)
                    yield from map(writer.add_line, _complete_lines(delta.read()))
            else:
                for event in self._events(format, run):
                    self._count(event)
                    yield from writer.add(event)

    def _narrative(self) -> Iterator[bytes]:
        yield narrative_v1.TITLE.encode()
        first = self._deltas[0] if self._deltas and self._deltas[0].is_compaction else None
        for format, run in self._runs():
            events = self._events(format, run)
            if first is not None and (known := DELTA_FORMATS.get(format)) is not None:
                events = _summary_first(events, sum(1 for _ in known.events([first.read()])))
            first = None
            for event in events:
                self._count(event)
                yield narrative_v1.passage(event, self._losses).encode("utf-8", "replace")

    def _raw(self) -> Iterator[bytes]:
        for delta in self._deltas:
            self._add_counts(delta)
            yield msgspec.json.encode({"format": delta.format, **_raw_content(delta.read())}) + b"\n"

    # --- counts ---

    def _restart(self) -> None:
        self.messages = self.tokens = self._size = 0
        self._losses = Losses()

    def _runs(self) -> Iterator[tuple[str, Iterator[Delta]]]:
        """Yield runs of consecutive deltas of one format: a reader may need the previous delta."""
        return groupby(self._deltas, key=lambda delta: delta.format)

    def _events(self, format: str, run: Iterable[Delta]) -> Iterator[Event]:
        """Yield the events of a run, with references to outputs resolved."""
        events = _events(format, run, self._losses)
        if self.format == events_v1.NAME:
            yield from events
            return
        if self.format != codex_v1.NAME:
            events = with_first_window(events)
        if format == codex_v1.NAME:
            events = with_agent_messages(events)
        if self._outputs is None:
            yield from events
            return
        while batch := list(islice(events, _OUTPUTS_AT_ONCE)):
            named = [id for event in batch if (id := reference_of(event)) is not None]
            found = self._outputs(named) if named else {}
            for event in batch:
                id = reference_of(event)
                yield with_output(event, found[id]) if id is not None and id in found else event

    def _count(self, event: Event) -> None:
        messages, size = measure_event(event)
        self.messages += messages
        self._size += size

    def _add_counts(self, delta: Delta) -> None:
        self.messages += delta.messages
        self.tokens += delta.tokens


def _tier(found: set[str], wanted: str) -> tuple[Tier, str]:
    """Return the tier for deltas of these formats, and the format of the content."""
    if wanted not in WANTED and found != {wanted}:
        raise UntranslatableFormat(f"unknown format {wanted!r}: one of {', '.join(WANTED)}")
    if wanted == RAW or not DELTA_FORMATS.keys() >= found:
        if wanted in _WRITERS or wanted == narrative_v1.NAME:
            return "raw", wanted
        return "raw", narrative_v1.NAME if wanted != RAW and found & DELTA_FORMATS.keys() else RAW
    if found <= {wanted}:
        return ("narrative" if wanted == narrative_v1.NAME else "native"), wanted
    if wanted in _WRITERS:
        return "fields", wanted
    return "narrative", narrative_v1.NAME


def _events(format: str, run: Iterable[Delta], losses: Losses) -> Iterator[Event]:
    known = DELTA_FORMATS.get(format)
    if known is not None:
        yield from window_events(known, [delta.read for delta in run])
        return
    for delta in run:
        content = delta.read()
        losses.add(f"delta of format {format}")
        found = _raw_content(content)
        encoding = "base64" if "base64" in found else "UTF-8"
        marker = f"[{len(content)} bytes of an earlier session in the unknown format {format!r} follow as {encoding}]"
        yield SystemEvent(kind="unread_delta", text=f"{marker}\n{next(iter(found.values()))}")


def _summary_first(events: Iterator[Event], number: int) -> Iterator[Event]:
    """Yield ``events`` with the compaction among the first ``number`` before the messages that it keeps, unless these
    are the beginning of the conversation."""
    first = list(islice(events, number))
    for place in reversed(range(len(first))):
        compaction = first[place]
        if not replaces(compaction):
            continue
        if any(map(is_before_later_summary, first[:place])):
            first[place] = summary_as_message(compaction)
        else:
            first.insert(0, first.pop(place))
        break
    yield from first
    yield from events


def _raw_content(content: bytes) -> dict[str, str]:
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"base64": b64encode(content).decode()}


def _complete_lines(content: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(content):
        end = content.find(b"\n", start) + 1 or len(content)
        line = content[start:end]
        yield line if line.endswith(b"\n") else line + b"\n"
        start = end


def _gathered(pieces: Iterable[Buffer]) -> Iterator[Buffer]:
    """Join small pieces, so that a consumer handles fewer."""
    held = bytearray()
    for piece in pieces:
        if held and len(held) + len(piece) > _CHUNK_BYTES:
            yield bytes(held)
            held.clear()
        if len(piece) > _CHUNK_BYTES:
            yield piece
        else:
            held += piece
    if held:
        yield bytes(held)
