"""Sessions and chats as objects in the form of the specification (spec 1 §2.5, §3.1), now or as of any time.

Neither is stored in that form: each version is the fold of the segments up to it. So every write to a session is a
version of its session object, and every write that adds messages is a version of its chat.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing
from typing import Any

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import (
    LATEST,
    NOW,
    AsOf,
    Document,
    HistoryPage,
    Page,
    Stored,
    document_without_source,
    require_text,
)
from ctxd.objects.generated_ids import entry_id, number_of, segments_prefix
from ctxd.sessions.lineage import Lineage
from ctxd.sessions.session_loading import pages
from ctxd.sessions.session_state import SessionState, replay_deltas
from ctxd.sessions.stored_session import SessionDelta, adds_chat, marked, messages_of, text_size
from ctxd.store.version_store import VersionStore
from ctxd.worker_threads import Lane
from ctxd_protocol.ids import chat_id, session_object_id, system_prompt_id
from ctxd_protocol.object_types import VersionRow
from ctxd_protocol.session_types import Message


def session_of(id: str) -> str | None:
    """Return the session whose object or chat is ``id``; None for other ids."""
    kind, _, session = id.partition(":")
    return session if kind in ("session", "chat") and session else None


async def entries(store: VersionStore, session: str, keys: Iterable[str]) -> dict[str, tuple[Stored, str]]:
    """Return the entries of ``session`` at ``keys`` that are not purged: each with its version, and its value as JSON
    text.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    ids = {key: entry_id(session, key) for key in keys}
    heads = await store.heads(ids.values())
    refs = {id: head.content_ref for id, head in heads.items() if head is not None and head.content_ref is not None}
    contents = await store.contents(refs.values())
    return {
        key: (head, require_text(contents[refs[id]]))
        for key, id in ids.items()
        if id in refs and (head := heads[id]) is not None
    }


async def version(
    store: VersionStore, id: str, at: AsOf = NOW, *, lineage: Lineage, lane: Lane, size_max: int | None = None
) -> Stored | None:
    """Return the version as of ``at`` of ``id``, the object or chat of a session with that ``lineage``; None if it did
    not exist. ``lane`` folds long sessions, which would block the loop.

    The content is None for a session, empty for a chat. Raises: CtxdError too_large as soon as a chat's messages have
    more than ``size_max`` characters; corrupt, store_failed. Cancel: safe.
    """
    session = session_of(id)
    assert session is not None, "only sessions and chats are folded"
    first = await store.history(session_object_id(session), at, Page(limit=1))
    if not first:
        return None
    is_chat = id.startswith("chat:")
    deltas: list[SessionDelta] = []
    newest, size = first[-1], 0
    async with aclosing(pages(store, lineage, as_of=at)) as every:
        async for segments, found in every:
            deltas += found if is_chat else map(marked, found)
            size += sum(text_size(messages_of(delta)) for delta in found) if is_chat else 0
            if size_max is not None and size > size_max:
                message = f"{id} has more than {size_max:,} characters"
                raise CtxdError("too_large", message, hint="Read it page by page with session.chat.")
            newest = max(
                [newest, *(some for some in segments if not is_chat or adds_chat(some.document.payload))],
                key=lambda stored: stored.tx,
            )
    if not is_chat:
        head = await store.get(session_object_id(session), at if at.tx != LATEST else AsOf(at.valid_time, newest.tx))
        newest = max(newest, head or newest, key=lambda stored: stored.tx)

    def folded() -> Document:
        state = replay_deltas(deltas)
        if is_chat:
            return document_without_source(id, "chat", _chat(session, state, deltas), "")
        return document_without_source(id, "session", _session(session, state))

    document = await lane.run(folded, size=len(deltas))
    return Stored(
        document=document, content_ref=None, valid_time=newest.valid_time, tx=newest.tx, tx_time=newest.tx_time
    )


async def history(store: VersionStore, id: str, at: AsOf, page: HistoryPage, *, lineage: Lineage) -> list[VersionRow]:
    """Return a ``page``, which must have a limit, of the versions of ``id`` up to ``at``, without hashes: each would
    need a fold. The versions of a fork begin at the fork.

    Cost: that of the page, whatever its place. Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    session = session_of(id)
    assert session is not None and page.limit is not None, "only sessions and chats are folded, a page at a time"
    is_chat = id.startswith("chat:")
    # The first version of a chat is that of its session; later changes of the head are no versions of it.
    oldest = Page(limit=1, ascending=True) if is_chat else page
    heads = await store.history(session_object_id(session), at, oldest)
    rows = {stored.tx: _row(stored) for stored in heads}
    found = dict[int, VersionRow]()
    place = await _place(store, lineage, at, page)
    while len(found) < page.limit:
        first = place if page.ascending else max(lineage.inherited, place - page.limit)
        end = place + page.limit if page.ascending else place
        segments = [each async for run, _ in pages(store, lineage, first=first, end=end, as_of=at) for each in run]
        for segment in segments if page.ascending else reversed(segments):
            if not is_chat or adds_chat(segment.document.payload):
                # An import writes several segments at once: the last one is the version.
                if page.ascending or segment.tx not in found:
                    found[segment.tx] = _row(segment)
        place = end if page.ascending else first
        if not segments or place == lineage.inherited:
            break
    rows |= found
    after = page.after
    beyond = [
        row
        for _, row in sorted(rows.items(), reverse=not page.ascending)
        if after is None or (row.tx > after[1] if page.ascending else row.tx < after[1])
    ]
    return beyond[: page.limit]


async def _place(store: VersionStore, lineage: Lineage, at: AsOf, page: HistoryPage) -> int:
    """Return the number of the first segment of an ascending ``page``, or one above the first of a descending page, by
    bisection: later segments have later transactions."""
    low = lineage.inherited
    if page.ascending and page.after is None:
        return low
    newest = await store.scan(segments_prefix(lineage.parts[-1].session), at, Page(limit=1, ascending=False))
    high = number_of(newest[0].document.id) + 1 if newest else low
    if page.after is None:
        return high
    while low < high:
        middle = (low + high) // 2
        segment = await store.get(lineage.segment_id(middle), at)
        tx = 0 if segment is None else segment.tx
        if tx < page.after[1] or (tx == page.after[1] and page.ascending):
            low = middle + 1
        else:
            high = middle
    return low


def _row(stored: Stored) -> VersionRow:
    return VersionRow(
        valid_time=stored.valid_time,
        tx=stored.tx,
        tx_time=stored.tx_time,
        content_hash=None,
        source_hash=None,
        state="present",
    )


def _session(session: str, state: SessionState) -> dict[str, Any]:
    return {
        "session_id": session,
        "chat_ref": chat_id(session),
        "system_prompt_ref": system_prompt_id(session),
        "session_index": list(state.index),
        "metadata_pool": list(state.pool),
        "active_set": list(state.active),
        "pinned_set": list(state.pinned),
    }


def _chat(session: str, state: SessionState, deltas: Sequence[SessionDelta]) -> dict[str, Any]:
    turns: list[list[Message]] = [[]]
    for message in (message for delta in deltas for message in messages_of(delta)):
        if message.role == "user":
            turns.append([])
        turns[-1].append(message)
    refs = dict.fromkeys(mark.toolcall for marks in state.turns for mark in marks if mark and mark.toolcall)
    return {
        "turns": [
            {"number": number, "messages": msgspec.to_builtins(messages)}
            for number, messages in enumerate(turns)
            if number or messages
        ],
        "session_ref": session_object_id(session),
        "turn_count": state.turn,
        "toolcall_refs": list(refs),
    }
