"""Purges of an object or of turns of a chat: admission, and the proof that the content is gone.

The proof is not a search. Every place that may hold a text is known: the versions and journal rows in the index of
texts, the database pages that they occupied, the artifact, and the write-ahead log. See ``ctxd.store.purge``.
``ctxd verify --absent`` searches the files themselves, in a process of its own.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Final

import anyio
import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.commit_document import STORED_NAMES
from ctxd.objects.document import Document, Page
from ctxd.objects.generated_ids import COMMIT_PREFIX, ENTRY_PREFIX, UNPURGEABLE_PREFIXES, is_hash, session_of
from ctxd.objects.version_state import is_purged
from ctxd.sessions.call_erasure import native_id, own_id, without_calls
from ctxd.sessions.chat import read_pages
from ctxd.sessions.event_erasure import (
    ErasedContent,
    args_text,
    content_in,
    events_in,
    list_chat_entities,
    make_eraser,
    without_bundle,
)
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_loading import batched
from ctxd.sessions.stored_session import events_size
from ctxd.store import commit_index, component_text_index
from ctxd.store.idempotency import Resend
from ctxd.store.purge import COMMITS_OF, KIND, decode_counts, restated_by, with_same_text
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import Pending, PurgeRequest, Replay, Restate, Write
from ctxd_protocol.ids import chat_id, session_object_id
from ctxd_protocol.object_types import Receipt

_COMMITS_READ: Final = 64
_HISTORY: Final = 500


class Proof(msgspec.Struct, frozen=True):
    """Result of a purge. ``residue``: files of the state directory that may still hold purged content, and objects that
    were not purged because their session moved to another host."""

    objects: tuple[str, ...]
    versions: int
    texts: int
    residue: tuple[str, ...]
    receipt: Receipt | None
    sessions: tuple[str, ...] = ()
    """Other sessions that had some of the content."""


async def purge(sessions: Sessions, call: WriteRequest, id: str, session: str | None = None) -> Proof:
    """Erase the content of ``id``, in every version, other objects with equal content, and the component texts that
    were made from any of these.

    ``session``: that of a tool call or commit. For a tool call, equal text and arguments are erased from its chat and
    those of its family in the same write, and so is everything that these and their commits have under its id; if the
    session moved to another host, they stay, and the chat is listed as residue. For a commit, the title and the first
    prompt that the session's harness recorded are erased, as they may be from that commit.

    If nothing is left to purge, nothing is written. Raises: CtxdError object_not_found; unsupported for ids such as
    those of sessions and chats (see ``purge_chat``); and those of the store. Cancel: the purge continues.
    """
    if id.startswith(UNPURGEABLE_PREFIXES):
        hint = "Purge the chat, the tool calls and the files that the session knows; object.list names them."
        raise CtxdError("unsupported", f"{id} cannot be purged", hint=hint, outcome="not_applied")
    store, guard = sessions.store, sessions.guard
    if not await _has_unpurged_version(store, id):
        # A daemon that was killed after an earlier purge of it may have left late texts.
        return await _with_late_texts(sessions, call, (id,), await _nothing_left(store, id))
    ids = (id, *await _made_from(store, (id, *await store.read_index(partial(with_same_text, id=id)))))
    if session is None:
        asked = PurgeRequest(ids, guard.keyed_hash, sharing=without_bundle)
        pending = store.submit(_write(call, asked))
        call.submitted = True
        return await _proof(sessions, call, asked, pending)
    if id.startswith(COMMIT_PREFIX):
        return await _purge_imported(sessions, call, ids, session)
    gone = await _content_of_call(store, id)
    lines = partial(without_calls, calls={native_id(id)}, gone=gone)
    # Another session of the family may use the same id for a call of its own.
    elsewhere = make_eraser(ErasedContent(gone.texts), lines)
    restate = partial(_restated_call, session=session, own=make_eraser(gone, lines), elsewhere=elsewhere)
    async with sessions.purging(session) as others:
        family = (session, *others)
    # Found before the locks are taken, and not in the thread that commits: a session may have 100,000 commits. That
    # thread searches only the few that are made meanwhile.
    searched = await store.read_index(commit_index.highest_number)
    copies = await _commits_to_restate(store, family, restate)
    live = await sessions.live(session)
    async with live.lock:
        count = 0
        async with aclosing(read_pages(live)) as pages:
            async for page in pages:
                count += await off_loop(events_size(page.events), partial(gone.losses, page.events))
        live.require_current()
        is_moved = live.session in live.moved_sessions
        if is_moved:
            asked = PurgeRequest(ids, guard.keyed_hash, sharing=without_bundle)
            pending = store.submit(_write(call, asked))
        else:
            async with sessions.purging(session) as others:
                asked = PurgeRequest(
                    ids,
                    guard.keyed_hash,
                    within=(*_chat_or_commits((session, *others), is_in_chat=bool(count)), *copies),
                    restate=restate,
                    sharing=without_bundle,
                    messages=count,
                    searched=searched,
                )
                write = _write(call, asked, session)
                pending = live.restate(write, gone.event, gone.delta, gone.preview, gone.settings)
        call.submitted = True
        await _settled(pending)
    proof = await _proof(sessions, call, asked, pending)
    if not (is_moved and (count or copies)):
        return proof
    return msgspec.structs.replace(proof, residue=(*proof.residue, live.chat_ref))


def _restated_call(document: Document, session: str, own: Restate, elsewhere: Restate) -> Document | None:
    """Return ``document`` without a purged call of ``session``; None if nothing changes."""
    of = session_of(document.id) or document.payload.get(STORED_NAMES["session"])
    return (own if of == session else elsewhere)(document)


async def _commits_to_restate(store: VersionStore, sessions: Sequence[str], restate: Restate) -> list[str]:
    """Return the commits of ``sessions`` that ``restate`` changes. Raises: CtxdError corrupt; those of the store."""
    found: list[str] = []
    for session in sessions:
        ids = await store.read_index(partial(commit_index.of_session, session=session))
        for some in batched(ids, _COMMITS_READ):
            found += await store.read_index(partial(restated_by, ids=some, restate=restate))
    return found


def _chat_or_commits(sessions: Sequence[str], *, is_in_chat: bool) -> list[str]:
    return [name for name in list_chat_entities(sessions) if is_in_chat or name.startswith(COMMITS_OF)]


async def _purge_imported(sessions: Sessions, call: WriteRequest, ids: Sequence[str], session: str) -> Proof:
    """Erase the content of ``ids``, a commit, and the title and the first prompt of ``session`` and its family that
    their harness recorded. Raises and cancel: as ``purge``."""
    store, guard, live = sessions.store, sessions.guard, await sessions.live(session)
    async with live.lock:
        live.require_current()
        if live.session in live.moved_sessions:
            asked = PurgeRequest(ids, guard.keyed_hash, sharing=without_bundle)
            pending = store.submit(_write(call, asked))
            residue = [str(session_object_id(session))]
        else:
            # A title may summarise the commit's text, so it cannot be found by comparing texts.
            gone = ErasedContent(recorded=True)
            async with sessions.purging(session) as others:
                heads = [str(session_object_id(each)) for each in (session, *others)]
                asked = PurgeRequest(
                    ids, guard.keyed_hash, within=heads, restate=make_eraser(gone), sharing=without_bundle
                )
                write = _write(call, asked, session)
                pending = live.restate(write, gone.event, gone.delta, gone.preview, gone.settings)
            residue = []
        call.submitted = True
        await _settled(pending)
    proof = await _proof(sessions, call, asked, pending)
    return msgspec.structs.replace(proof, residue=(*proof.residue, *residue))


async def _made_from(store: VersionStore, ids: Iterable[str]) -> list[str]:
    """Return the component texts that were made from ``ids``. Cost: a look-up for each file and entry among ``ids``,
    and that of the result."""
    sources = [id for id in ids if is_hash(id) or id.startswith(ENTRY_PREFIX)]
    if not sources:
        return []
    texts = await store.read_index(partial(component_text_index.made_from, sources=sources))
    heads = await store.heads(texts) if texts else {}
    return [stored.document.id for stored in heads.values() if stored is not None and not is_purged(stored.document)]


async def _with_late_texts(sessions: Sessions, call: WriteRequest, ids: Iterable[str], proof: Proof) -> Proof:
    """Purge the component texts that were made from ``ids`` during their purge, and return ``proof`` with them
    included. None are made once the first purge is durable."""
    late = await _made_from(sessions.store, ids)
    if not late:
        return proof
    asked = PurgeRequest(tuple(late), sessions.guard.keyed_hash, sharing=without_bundle)
    call = call.without_id()
    more = await _proof(sessions, call, asked, sessions.store.submit(_write(call, asked)))
    return msgspec.structs.replace(
        more,
        objects=(*proof.objects, *more.objects),
        versions=proof.versions + more.versions,
        texts=proof.texts + more.texts,
        receipt=proof.receipt or more.receipt,
        sessions=tuple(dict.fromkeys((*proof.sessions, *more.sessions))),
    )


async def _content_of_call(store: VersionStore, id: str) -> ErasedContent:
    """Return the text of every version of the tool call ``id``, its arguments as ``args_text`` encodes them, and its
    ids."""
    found: set[str] = set()
    after: tuple[int, int] | None = None
    while True:
        page = await store.history(id, page=Page(after=after, limit=_HISTORY), corrections=True)
        contents = await store.contents(stored.content_ref for stored in page if stored.content_ref is not None)
        found.update(text for text in contents.values() if isinstance(text, str) and text)
        found.update(args_text(args) for stored in page if (args := stored.document.payload.get("args")))
        if len(page) < _HISTORY:
            return ErasedContent(found, calls=(id, own_id(id)))
        after = (page[-1].valid_time, page[-1].tx)


async def purge_chat(sessions: Sessions, call: WriteRequest, session: str, turns: Sequence[int] | None) -> Proof:
    """Erase the content of the events in ``turns`` of the chat of ``session``; None: all turns. The events stay, with
    kinds and references. Equal content elsewhere in the session and in its family, the sessions that share a beginning
    with it, is erased as well.

    If nothing is left to purge, nothing is written. Raises: CtxdError session_not_found, session_owned_elsewhere if the
    session moved to another host, which has its own copy, and those of the store. Cancel: the purge continues.
    """
    store, guard, live = sessions.store, sessions.guard, await sessions.live(session)
    async with live.lock:
        live.require_current()
        live.require_here()
        gone, count = await content_in(live, turns)
        live.require_current()
        if not count:
            return await _nothing_left(store, live.chat_ref)
        async with sessions.purging(session) as others:
            asked = PurgeRequest(
                (),
                guard.keyed_hash,
                within=list_chat_entities((session, *others)),
                restate=make_eraser(gone),
                messages=count,
            )
            write = _write(call, asked, session)
            pending = live.restate(write, gone.event, gone.delta, gone.preview, gone.settings)
        call.submitted = True
        await _settled(pending)
    return await _proof(sessions, call, asked, pending)


async def sessions_with_text(
    store: VersionStore,
    sessions: Iterable[tuple[str, LiveSession]],
    live: LiveSession,
    id: str,
    turns: Sequence[int] | None,
) -> tuple[str, ...]:
    """Return those of ``sessions``, the family of ``live``, in which a purge of ``id`` would erase messages, and the
    sessions of tool calls and commits with the same text. ``turns``: as in ``purge_chat``.

    Raises: CtxdError corrupt, store_failed. Cancel: safe. Cost: the chats of all ``sessions``.
    """
    others: tuple[str, ...] = ()
    if id == live.chat_ref:
        gone, _ = await content_in(live, turns)
    else:
        gone = await _content_of_call(store, id)
        others = await _sessions_of(store, [id, *await store.read_index(partial(with_same_text, id=id))])
    found: dict[str, None] = {}
    for name, each in sessions:
        async with aclosing(read_pages(each)) as pages:
            async for page in pages:
                if await off_loop(events_size(page.events), partial(gone.losses, page.events)):
                    found[name] = None
                    break
    return tuple(dict.fromkeys((*found, *others)))


async def kept_outputs(store: VersionStore, live: LiveSession, turns: Sequence[int] | None) -> list[str]:
    """The tool calls of ``turns`` of the chat of ``live``, None: of all turns, whose outputs are not purged.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    named: dict[str, None] = {}
    async with aclosing(events_in(live, turns)) as pages:
        async for events in pages:
            named |= {id: None for event in events if (id := getattr(event, "object", None)) is not None}
    found: list[str] = []
    for some in batched(named, _HISTORY):
        for id, head in (await store.heads(some)).items():
            if head is not None and head.document.type == "toolcall" and not is_purged(head.document):
                found.append(id)
    return found


def _write(call: WriteRequest, asked: PurgeRequest, session: str | None = None) -> Write:
    return Write(
        kind=KIND, principal=call.principal, session=session, op_id=call.op_id, request=call.request, purge=asked
    )


async def _settled(pending: Pending) -> None:
    """Return once ``pending`` is durable or has failed. Cancel: takes effect at the end."""
    with anyio.CancelScope(shield=True), suppress(CtxdError):
        await pending.wait()


async def _nothing_left(store: VersionStore, id: str) -> Proof:
    return Proof((id,), 0, 0, await store.purge_residue(), None)


async def _proof(sessions: Sessions, call: WriteRequest, asked: PurgeRequest, pending: Pending) -> Proof:
    """Return the proof of ``asked`` and of the purge of late texts. Raises: as the wait for ``pending``."""
    receipt = await pending.wait()
    done = asked.done
    assert done is not None, "a purge that is durable was done"
    reported, residue = _reported(done.ids), await sessions.store.purge_residue()
    having = await _sessions_of(sessions.store, done.ids)
    proof = Proof(reported, done.versions, done.text_count, residue, receipt, having)
    return await _with_late_texts(sessions, call, done.ids, proof)


async def _sessions_of(store: VersionStore, ids: Iterable[str]) -> tuple[str, ...]:
    """Return the sessions to which chats, commits and tool calls among ``ids`` belong, in order."""
    found: dict[str, None] = {}
    for some in batched(dict.fromkeys(ids), _HISTORY):
        heads = await store.heads(some)
        for id in some:
            payload = {} if (head := heads.get(id)) is None else head.document.payload
            if id.startswith(COMMIT_PREFIX):
                session = payload.get(STORED_NAMES["session"])
            else:
                session = session_of(id) or str(payload.get("chat_ref", "")).removeprefix("chat:")
            if session:
                found[session] = None
    return tuple(found)


def _reported(ids: Sequence[str]) -> tuple[str, ...]:
    """Return the objects to report for ``ids``: each, or the one that it is a part of."""
    # In a session's head and segments, a purge erases only messages of its chat.
    parts = ("session:", "segment:")
    if whole := tuple(id for id in ids if not id.startswith(parts)):
        # Segments beside a purged object lost only copies, see ``without_bundle``.
        return whole
    return tuple(dict.fromkeys(str(chat_id(session_of(id) or "")) if id.startswith(parts) else id for id in ids))


async def again(store: VersionStore, call: WriteRequest, replay: Replay) -> Proof:
    """Return the proof for a resent purge, with the counts of the first one.

    Raises: CtxdError of the store if that purge failed. Cancel: safe.
    """
    found: Replay | None = replay
    if replay.pending is not None:
        await replay.pending.wait()
        # Only its journal row has the counts.
        found = await store.replay((call.principal, call.op_id or ""), Resend(call.kind, None, call.request))
    assert found is not None and found.receipt is not None, "a purge that is durable is in the journal"
    counts = decode_counts(found.result)
    reported, residue = _reported(counts.ids), await store.purge_residue()
    sessions = await _sessions_of(store, counts.ids)
    return Proof(reported, counts.versions, counts.texts, residue, found.receipt, sessions)


async def _has_unpurged_version(store: VersionStore, id: str) -> bool:
    """Return True if a version of ``id`` is not purged yet. Raises: CtxdError object_not_found."""
    after: tuple[int, int] | None = None
    seen = False
    while True:
        page = await store.history(id, page=Page(after=after, limit=_HISTORY), corrections=True)
        seen = seen or bool(page)
        if any(not is_purged(stored.document) for stored in page):
            return True
        if len(page) < _HISTORY:
            break
        after = (page[-1].valid_time, page[-1].tx)
    if not seen:
        raise CtxdError("object_not_found", f"no object {id}", outcome="not_applied")
    return False
