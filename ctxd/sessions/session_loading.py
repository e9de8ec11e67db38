"""Loading of a session from the store: its head and the fold of its segments, now or as of a time.

The newest state is read from bundles and the segments after the last bundle; a past state segment by segment. Either
way only a few are in memory at once, and only marks of their messages are kept.
"""

from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import NOW, AsOf, Document, Page, Stored
from ctxd.objects.generated_ids import number_of, segment_id, segments_prefix
from ctxd.sessions.lineage import Lineage
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import SessionState, replay_deltas
from ctxd.sessions.stored_session import (
    RUN,
    SessionDelta,
    carriers,
    delta_events,
    kept_in_run,
    marked,
    preview_of,
    read_bundle,
    read_head,
    read_segment,
    segment_document,
)
from ctxd.store.version_store import VersionStore
from ctxd.worker_threads import Lane
from ctxd_protocol.event_types import PromptEvent, starts_turn
from ctxd_protocol.ids import session_object_id

SEGMENTS_INLINE_MAX: Final = 500
"""Up to this many segments are decoded on the loop, in a few milliseconds; more on a thread, so that the loop is not
blocked."""

BUNDLES_AT_ONCE: Final = 16
"""Bundles that are read at once: at most 8 MiB of text in memory, however long the session is."""

LARGE_AT_ONCE: Final = 4
"""Large segments that are read at once; each may have as much text as a request."""

PAGE_BYTES: Final = 1024 * 1024
"""Bytes of segments after which a page ends."""

T = TypeVar("T")


class Segments(msgspec.Struct, frozen=True):
    """All deltas of a session, with marks instead of messages, and the sequence of the write of each.

    ``run``: the deltas of the last run, in the form in which its bundle will hold them. ``valid_time``: that of the
    newest segment, or 0.
    """

    deltas: list[SessionDelta]
    seqs: list[int]
    run: list[SessionDelta | None]
    valid_time: int


class InitialChat(NamedTuple):
    """The first segments of a new session, of about ``size`` bytes. ``is_stale`` returns True if something was purged
    since they were read."""

    deltas: Sequence[SessionDelta]
    size: int
    is_stale: Callable[[], bool]


EMPTY_CHAT: Final = InitialChat((), 0, lambda: False)


class PurgedMeanwhile(Exception):
    """Something was purged since the initial chat of the new session was read, so that content of it may be gone."""


class InitialState(NamedTuple):
    """The first state of a new session, the documents of its segments, their run, and the start of its newest and its
    first prompt."""

    state: SessionState
    segments: list[Document]
    run: list[SessionDelta | None]
    preview: str
    first_prompt: str


def build_initial_state(session: str, initial: Sequence[SessionDelta]) -> InitialState:
    """Return the first state of the new ``session``, whose segments are ``initial``. Cost: their size."""
    prompts = [
        event.text
        for delta in initial
        for event in delta_events(delta)
        if isinstance(event, PromptEvent) and starts_turn(event)
    ]
    return InitialState(
        replay_deltas(initial),
        [segment_document(segment_id(session, number), delta) for number, delta in enumerate(initial)],
        [kept_in_run(delta) for delta in initial],
        preview_of(prompts[-1]) if prompts else "",
        next((preview_of(text) for text in prompts if text), ""),
    )


async def load(
    store: VersionStore,
    session: str,
    at: AsOf = NOW,
    *,
    host_filesystem_id: str,
    lane: Lane,
    lineage: Lineage,
) -> LiveSession | None:
    """Load ``session``, which has that ``lineage``, as of ``at``; None if it did not exist.

    A past state is read-only. Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    stored = await store.get(session_object_id(session), at)
    if stored is None or (not at.is_past and read_head(stored).entering):
        return None
    segments = await (_past(store, lineage, at) if at.is_past else _newest(store, lineage, lane))
    state = await lane.run(replay_deltas, segments.deltas, size=len(segments.deltas))
    return LiveSession(
        store,
        session,
        read_head(stored),
        state,
        segments.seqs,
        run=segments.run,
        head_vt=stored.valid_time,
        updated_at=max(stored.valid_time, segments.valid_time),
        host_filesystem_id=host_filesystem_id,
        at=at,
        lineage=lineage,
    )


def decoded(session: str, found: Sequence[Stored], *, first: int = 0) -> list[SessionDelta]:
    """Decode the segments ``found``, which are consecutive in ``session`` and begin with number ``first``.

    Raises: CtxdError corrupt if one cannot be read or is missing.
    """
    if found and found[-1].document.id != segment_id(session, first + len(found) - 1):
        raise CtxdError("corrupt", f"segments of session {session} are missing before {found[-1].document.id}")
    return [read_segment(segment.document) for segment in found]


async def pages(
    store: VersionStore,
    lineage: Lineage,
    *,
    first: int = 0,
    end: int | None = None,
    as_of: AsOf = NOW,
) -> AsyncGenerator[tuple[list[Stored], list[SessionDelta]], None]:
    """Read the segments of a session from number ``first`` up to ``end``, exclusive (None: all), about ``PAGE_BYTES``
    at a time."""
    at = first
    while end is None or at < end:
        part = lineage.holder(at)
        after = segment_id(part.session, at - 1) if at else ""
        limit = min(RUN, part.segments - at, RUN if end is None else end - at)
        page = await store.scan(segments_prefix(part.session), as_of, Page(after=after, limit=limit), size=PAGE_BYTES)
        if not page:
            return
        yield page, decoded(part.session, page, first=at)
        at += len(page)


async def _past(store: VersionStore, lineage: Lineage, at: AsOf) -> Segments:
    whole: list[SessionDelta] = []
    seqs: list[int] = []
    newest = 0
    async for page, deltas in pages(store, lineage, as_of=at):
        whole += map(marked, deltas)
        seqs += [stored.tx for stored in page]
        newest = page[-1].valid_time
    # A past state is never written to, so it needs no run.
    return Segments(whole, seqs, [], newest)


async def _newest(store: VersionStore, lineage: Lineage, lane: Lane) -> Segments:
    session = lineage.parts[-1].session
    newest = await store.scan(segments_prefix(session), page=Page(limit=1, ascending=False))
    inherited = lineage.inherited
    count = number_of(newest[0].document.id) + 1 if newest else inherited
    ends = [lineage.segment_id(number) for number in carriers(count)]
    whole: list[SessionDelta] = []
    seqs: list[int] = []
    for start in range(0, len(ends), BUNDLES_AT_ONCE):
        some = ends[start : start + BUNDLES_AT_ONCE]
        carrying = await store.bulk(some, content=True)
        if len(carrying) < len(some):
            raise CtxdError("corrupt", f"segments of session {session} are missing")
        deltas, more = await lane.run(_unbundled, list(carrying.values()), size=len(some) * RUN)
        seqs += more
        large = {lineage.segment_id(len(whole) + n): n for n, delta in enumerate(deltas) if delta is None}
        for part in batched(large, LARGE_AT_ONCE):
            for id, stored in (await store.bulk(part)).items():
                deltas[large[id]] = marked(read_segment(stored.document))
        whole += [delta for delta in deltas if delta is not None]
    # Segments written meanwhile are left out: another caller has loaded the session then.
    run: list[SessionDelta | None] = []
    async for page, found in pages(store, lineage, first=len(ends) * RUN, end=count):
        for delta in found:
            # A bundle has only the session's own deltas, so that a purge finds inherited ones in one place.
            run.append(kept_in_run(delta) if len(whole) >= inherited else None)
            whole.append(marked(delta))
        seqs += [stored.tx for stored in page]
    if len(whole) != count:
        raise CtxdError("corrupt", f"session {session} has {len(whole)} of its {count} segments")
    return Segments(whole, seqs, run, newest[0].valid_time if newest else 0)


def batched(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    """Yield ``ids`` in lists of at most ``size``."""
    rest = iter(ids)
    while some := list(islice(rest, size)):
        yield some


def _unbundled(carrying: Sequence[Stored]) -> tuple[list[SessionDelta | None], list[int]]:
    """Return the deltas of the runs that the segments ``carrying`` end, None for large ones, and the sequences of their
    writes."""
    deltas: list[SessionDelta | None] = []
    seqs: list[int] = []
    for stored in carrying:
        bundle = read_bundle(stored.document)
        seqs += (*bundle.seqs, stored.tx)
        run = (*bundle.deltas, read_segment(stored.document))
        deltas += [None if delta is None else marked(delta) for delta in run]
    return deltas, seqs
