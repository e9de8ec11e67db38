"""Events that the session of an imported source has from elsewhere: from its hooks as a rule, or from a hand-over."""

from collections.abc import Mapping, Sequence
from functools import cache, partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import anyio.lowlevel
import msgspec

from ctxd.capture.recorded_events import HAND_OVER_DIGEST_BYTES, HandedOverStart, RecordedEvents
from ctxd.cli.import_record import SourceRecord
from ctxd.clock import Clock
from ctxd.command_line import Stop
from ctxd.formats.harness_session import is_id_of_hand_over
from ctxd.transcripts.claude_code import is_typed
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.readers import LINE_READERS
from ctxd.transcripts.records import Line, record_of, text_of
from ctxd.transcripts.source_lines import open_source
from ctxd_protocol.event_types import Event, ResponseEvent
from ctxd_protocol.limits import PAGE_ITEMS_MAX

if TYPE_CHECKING:
    from ctxd.secrets.redaction import Guard
    from ctxd_client import Client

_BYTES_AT_ONCE: Final = 256 * 1024
"""Bytes that are read in one go while a call is under way."""


async def recorded_events(
    client: "Client", clock: Clock, source: Transcript, record: SourceRecord, events: Sequence[Event], written: int
) -> RecordedEvents:
    """Return ``events``, which the session of a source has, as what its import leaves out. ``written``: the bytes of
    the source that a hand-over wrote before them. Raises: CallFailed; as ``lines_of``. Cancel: safe."""
    # What the import adds is beside what the session goes on from, or continues it.
    own = record.continued or (await client.context_current(session=source.session)).context_id
    record.continued = own or ""
    newest = (await client.commit_resolve(session=source.session)).commit
    before = clock.wall_ms() if newest is None else newest.created_at_ms
    make = partial(
        RecordedEvents, events, record.unrecorded, before, own, redact=redacted, written=written, whole=record.whole,
        continued_at=record.continued_at, has_commits=newest is not None and newest.session == source.session,
    )  # fmt: skip
    recorded = make()
    # Once something was imported beside what hooks have recorded, the rest of the source goes on there.
    is_first = record.size == record.unrecorded and not record.whole
    if is_first and not (written or source.agent or source.is_spawned or source.stored):
        if whole := await _unrecorded_beginning(source, make()):
            recorded.complete(whole)
    return recorded


@cache
def _guard() -> "Guard":
    # Imported only where a session has redacted text: it takes as long as the import of a small file.
    from ctxd.cli.secrets import host_guard
    from ctxd.config import ConfigError

    try:
        return host_guard()
    except (Stop, ConfigError) as error:
        raise ValueError(f"the rules for secrets: {error}") from None


def redacted(text: str) -> str:
    """Return ``text`` as the daemon stores it under ``redact``, but for the tags. Raises: ValueError for rules that
    cannot be used, as an unreadable source does: the others are imported."""
    return _guard().redacted(text)


def handed_over(source: Transcript, labels: Mapping[str, str]) -> tuple[int, int]:
    """Return the bytes at the start of a source that a hand-over wrote, if they are unchanged, and the number of events
    that its session had then; zeros for any other. Of a session of opencode, which makes rows of a database of them,
    they are known by their ids. Raises: OSError, and as reading it does."""
    stated = HandedOverStart.read(labels)
    if stated is None:
        return 0, 0
    if source.stored is not None:
        size = _size_of_hand_over(source)
        return (size, stated.events) if size else (0, 0)
    digest, left = blake2b(digest_size=HAND_OVER_DIGEST_BYTES), stated.size
    with open_source(source.file) as file:
        while left and (piece := file.read(min(left, _BYTES_AT_ONCE))):
            digest.update(piece)
            left -= len(piece)
    return (stated.size, stated.events) if digest.hexdigest() == stated.digest else (0, 0)


async def _unrecorded_beginning(source: Transcript, recorded: RecordedEvents) -> int:
    """Return the bytes of a source, up to its last complete line, if the conversation in it has whole turns before the
    first event that the session has, as of a session that was resumed when its hooks were new; else 0, also where the
    source lacks what the session has. ``recorded`` takes the lines. Raises: as ``lines_of``. Cancel: safe."""
    read, end, unseen = LINE_READERS[source.format], 0, 0
    is_asked = is_answered = is_begun = False
    for line in lines_of(source):
        end, unseen = line.end, unseen + len(line.source)
        if unseen > _BYTES_AT_ONCE:
            unseen = 0
            await anyio.lowlevel.checkpoint()
        if line.record is None or line.end <= recorded.since:
            continue
        events = [entry.event for entry in read([Line(1, line.record)])]
        if recorded.meet(events):
            is_begun = True
            if not is_answered:
                return 0
        elif not is_begun:
            own = [event for event in events if event.sidechain is None]
            is_answered = is_answered or (is_asked and any(isinstance(each, ResponseEvent) for each in own))
            is_asked = is_asked or any(map(is_typed, own))
    return end if is_begun and recorded.has_met_all else 0


def _size_of_hand_over(source: Transcript) -> int:
    size = 0
    for line in lines_of(source):
        record = line.record or {}
        id = text_of(record_of(record.get("info")).get("id")) or text_of(record.get("row"))
        if is_id_of_hand_over(id, source.native):
            size = line.end
        elif "session" not in record:
            break
    return size


async def events_of(client: "Client", session: str) -> list[Event]:
    """Return all events in the chat of a session. Raises: CallFailed. Cancel: safe."""
    events: list[Event] = []
    cursor: str | None = None
    while True:
        page = await client.session_events(session, limit=PAGE_ITEMS_MAX, cursor=cursor)
        events += (msgspec.convert(logged.event, Event) for logged in page.events)
        if (cursor := page.next_cursor) is None:
            return events
