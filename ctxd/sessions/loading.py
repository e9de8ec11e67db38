"""A session out of the store: its head and the fold of its segments, now or as of a time.

A session of today is read by its bundles and the segments after the last one; one of the past segment by segment.
"""

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import number_of, segment_id, segments_prefix
from ctxd.sessions.segments import RUN, SessionDelta, carriers, from_payload, from_text, read_head
from ctxd.sessions.session import LiveSession
from ctxd.sessions.state import SessionState, fold
from ctxd.store.store import VersionStore
from ctxd_protocol.ids import session_object_id

SEGMENTS_INLINE_MAX: Final = 500
"""Segments that are decoded on the loop: a few milliseconds. More go to a thread, so that other sessions go on."""

T = TypeVar("T")


class Segments(msgspec.Struct, frozen=True):
    """A session's deltas from the first on, the sequence of each one's write, and the newest valid time, or 0."""

    deltas: list[SessionDelta]
    seqs: list[int]
    valid_time: int


async def load(
    store: VersionStore,
    session: str,
    *,
    host_filesystem_id: str,
    limiter: CapacityLimiter,
    tx: int | None = None,
    valid_time: int | None = None,
) -> LiveSession | None:
    """``session`` as of both times, null meaning now; null if there is none.

    One of an earlier time is for reading only. Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    stored = await store.get(session_object_id(session), tx=tx, valid_time=valid_time)
    if stored is None or (tx is None and valid_time is None and read_head(stored).entering):
        return None
    if tx is None and valid_time is None:
        segments = await _newest(store, session, limiter)
    else:
        found = await store.scan(segments_prefix(session), tx=tx, valid_time=valid_time)
        segments = await _in_thread(limiter, len(found), lambda: decoded(session, found))
    state = await _in_thread(limiter, len(segments.deltas), lambda: fold(segments.deltas))
    return LiveSession(
        store,
        session,
        read_head(stored),
        state,
        segments.seqs,
        run=segments.deltas[len(segments.deltas) // RUN * RUN :],
        head_vt=stored.valid_time,
        updated_at=max(stored.valid_time, segments.valid_time),
        host_filesystem_id=host_filesystem_id,
    )


def fold_stored(session: str, segments: Sequence[Stored]) -> SessionState:
    """The state that ``segments``, all of the session's by number, make. Raises: CtxdError corrupt."""
    return fold(decoded(session, segments).deltas)


def decoded(session: str, found: Sequence[Stored], *, first: int = 0) -> Segments:
    """What the segments ``found`` hold, which are all of ``session`` from number ``first`` on.

    Raises: CtxdError corrupt if one cannot be read or is missing.
    """
    if found and found[-1].document.id != segment_id(session, first + len(found) - 1):
        raise CtxdError("corrupt", f"segments of session {session} are missing before {found[-1].document.id}")
    return Segments(
        [_delta(segment) for segment in found],
        [segment.tx for segment in found],
        found[-1].valid_time if found else 0,
    )


async def _newest(store: VersionStore, session: str, limiter: CapacityLimiter) -> Segments:
    prefix = segments_prefix(session)
    newest = await store.scan_newest(prefix, before_id=None, limit=1)
    count = number_of(newest[0].document.id) + 1 if newest else 0
    ends = [segment_id(session, number) for number in carriers(count)]
    carrying = await store.bulk(ends, content=True)
    if len(carrying) < len(ends):
        raise CtxdError("corrupt", f"segments of session {session} are missing")
    first = len(ends) * RUN
    # Those that came in since then are of a session that somebody else has loaded meanwhile.
    tail = await store.scan(prefix, after=ends[-1] if ends else "", limit=count - first)

    def read() -> tuple[list[SessionDelta | None], list[int], Segments]:
        deltas: list[SessionDelta | None] = []
        seqs: list[int] = []
        for stored in carrying.values():
            _unbundle(stored, deltas, seqs)
        return deltas, seqs, decoded(session, tail, first=first)

    deltas, seqs, rest = await _in_thread(limiter, count, read)
    large = {segment_id(session, number): number for number, delta in enumerate(deltas) if delta is None}
    for id, stored in (await store.bulk(list(large))).items():
        deltas[large[id]] = _delta(stored)
    whole = [delta for delta in (*deltas, *rest.deltas) if delta is not None]
    if len(whole) != count:
        raise CtxdError("corrupt", f"session {session} has {len(whole)} of its {count} segments")
    return Segments(whole, seqs + rest.seqs, newest[0].valid_time if newest else 0)


def _unbundle(stored: Stored, deltas: list[SessionDelta | None], seqs: list[int]) -> None:
    """Add the run that ends with ``stored``."""
    try:
        bundle = from_text(stored.document.content or "")
    except msgspec.DecodeError as error:
        raise CtxdError("corrupt", f"the bundle of {stored.document.id} cannot be read") from error
    deltas.extend(bundle.deltas)
    deltas.append(_delta(stored))
    seqs.extend(bundle.seqs)
    seqs.append(stored.tx)


def _delta(segment: Stored) -> SessionDelta:
    try:
        return from_payload(segment.document.payload)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"segment {segment.document.id} cannot be read") from error


async def _in_thread(limiter: CapacityLimiter, segments: int, work: Callable[[], T]) -> T:
    return await run_sync(work, limiter=limiter) if segments > SEGMENTS_INLINE_MAX else work()
