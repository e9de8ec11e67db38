"""A session out of the store: its head and the fold of its segments, now or as of a transaction."""

from collections.abc import Sequence
from typing import Final

import msgspec
from anyio import CapacityLimiter
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.sessions.delta import Delta, from_payload
from ctxd.sessions.head import read_head
from ctxd.sessions.live import LiveSession, segment_id
from ctxd.sessions.state import SessionState, fold
from ctxd.store.versions import VersionStore
from ctxd_protocol.ids import session_object_id

SEGMENTS_INLINE_MAX: Final = 500
"""Segments that are folded on the loop: a few milliseconds. More go to a thread, so that other sessions go on."""


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
    if stored is None:
        return None
    head = read_head(stored)
    segments = await store.scan(segment_id(session, 0)[:-10], tx=tx, valid_time=valid_time)
    if len(segments) > SEGMENTS_INLINE_MAX:
        state = await run_sync(fold_stored, session, segments, limiter=limiter)
    else:
        state = fold_stored(session, segments)
    newest = max(stored.valid_time, segments[-1].valid_time if segments else 0)
    live = LiveSession(
        store,
        session,
        head,
        state,
        [segment.tx for segment in segments],
        head_vt=stored.valid_time,
        updated_at=newest,
        host_filesystem_id=host_filesystem_id,
    )
    return live


def fold_stored(session: str, segments: Sequence[Stored]) -> SessionState:
    """The state that ``segments``, all of the session's by number, make.

    Raises: CtxdError corrupt if one cannot be read or is missing.
    """
    if segments and segments[-1].document.id != segment_id(session, len(segments) - 1):
        raise CtxdError("corrupt", f"of session {session}, {len(segments)} segments are there but not the first ones")
    return fold([_delta(segment) for segment in segments])


def _delta(segment: Stored) -> Delta:
    try:
        return from_payload(segment.document.payload)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"segment {segment.document.id} cannot be read") from error
