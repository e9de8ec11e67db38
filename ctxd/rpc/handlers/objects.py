"""``object.*``: versions of objects, now and as of any time, and listings.

A connection that is bound to a session sees the objects of its index and its own infrastructure; everything else seems
not to exist. Only durable versions are returned. ``ctxd.sessions.object_reads`` decides visibility; cursors and wire
forms are decided here.
"""

from base64 import b64encode
from contextlib import aclosing
from functools import partial
from heapq import nsmallest
from itertools import groupby
from typing import Any, Final, cast

import msgspec

from ctxd import sqlite_file
from ctxd.commits.delta_secrets import found_in_delta
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.objects.commit_document import entity_id
from ctxd.objects.document import AsOf, Document, Page, Stored, encode_content, is_binary
from ctxd.objects.generated_ids import (
    COMMIT_PREFIX,
    INFRASTRUCTURE_PREFIXES,
    INNER_PREFIXES,
    assemblies_prefix,
    assembly_id,
    entries_prefix,
    number_of,
    session_of,
)
from ctxd.objects.kinds import is_purged, state_of
from ctxd.rpc.caller import Caller
from ctxd.secrets.policy import rules_found
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import Accepted, LiveSession, WriteRequest, find_replay
from ctxd.sessions.object_reads import ListedObject, Objects
from ctxd.sessions.purge_operations import Proof, again, kept_outputs, purge, purge_chat, sessions_with_text
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import Found, merged, scan_events, scanned
from ctxd.sessions.session_loading import batched
from ctxd.sessions.session_settings import ContinuedCommit
from ctxd.sessions.session_state import EventPosition
from ctxd.store import commit_index
from ctxd.store.commit_index import fields_of
from ctxd.worker_threads import Lane
from ctxd_protocol.ids import chat_id, session_object_id, system_prompt_id
from ctxd_protocol.limits import PAGE_ITEMS_MAX, PATHS_MAX, SAFE_INTEGER_MAX
from ctxd_protocol.methods import objects as wire
from ctxd_protocol.object_types import ObjectType, ObjectVersion, source_label
from ctxd_protocol.session_types import PURGED_TEXT

_CURSOR = "Pass next_cursor of the previous page unchanged."
_SCANNED_AT_ONCE: Final = 32
_CHATS: Final = "chat:"
_INNER: Final = ("assembly:", "session_entry:", COMMIT_PREFIX)
"""Prefixes of other entities that are searched: assemblies, which contain the declared tools, entries and commits."""

SCANNED_DELTA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a delta that ``object.scan`` searches: all of it is in memory at once."""


class ObjectCalls:
    """Handlers of ``object.*``, except ``object.purge`` and ``object.scan``."""

    def __init__(self, sessions: Sessions) -> None:
        self._objects = Objects(sessions)
        self._store = sessions.store

    async def object_get(self, caller: Caller, params: wire.ObjectGetParams) -> Accepted:
        viewer = await self._objects.viewer(params.session, confined=caller.is_confined)
        at = AsOf.given(params.valid_time, params.tx)
        stored = await self._objects.version(
            viewer, params.object, at, content=params.content, size_max=caller.reply_bytes_max
        )
        result = wire.ObjectGetResult(object=_shown(stored, viewer.live, content=params.content))
        return Accepted(viewer.live.barrier if viewer.live else None, lambda _: result)

    async def object_bulk(self, caller: Caller, params: wire.ObjectBulkParams) -> wire.ObjectBulkResult:
        viewer = await self._objects.viewer(params.session, confined=caller.is_confined)
        at = AsOf.given(params.valid_time, params.tx)
        found: dict[str, Stored] = {}
        size = 0
        # Deduplicate: a chat requested a thousand times is read once.
        wanted = tuple(dict.fromkeys(params.objects))
        for part in batched(wanted, _TEXTS_AT_ONCE if params.content else PATHS_MAX):
            found |= (
                some := await self._objects.versions(
                    viewer, part, at, content=params.content, size_max=caller.reply_bytes_max
                )
            )
            size += sum(map(_size, some.values()))
            _require_short(size, caller)
        return wire.ObjectBulkResult(
            objects=tuple(_shown(stored, viewer.live, content=params.content) for stored in found.values()),
            missing=tuple(id for id in wanted if id not in found),
        )

    async def object_history(self, caller: Caller, params: wire.ObjectHistoryParams) -> wire.ObjectHistoryResult:
        viewer = await self._objects.viewer(params.session, confined=caller.is_confined)
        rows, more = await self._objects.history(
            viewer,
            params.object,
            AsOf.given(params.valid_time, params.tx),
            page=Page(after=_parsed(params.cursor), limit=params.limit, ascending=params.order == "asc"),
            corrections=params.corrections,
        )
        cursor = f"{rows[-1].valid_time}.{rows[-1].tx}" if more else None
        return wire.ObjectHistoryResult(versions=tuple(rows), next_cursor=cursor)

    async def object_list(self, caller: Caller, params: wire.ObjectListParams) -> Accepted:
        viewer = await self._objects.viewer(params.session, confined=caller.is_confined)
        if viewer.live is None:
            return Accepted(None, _always(await self._list_all(params)))
        found, end, barrier = await self._objects.of_session(
            viewer, viewer.live, type=params.type, level=params.level, start=_number(params.cursor), limit=params.limit
        )
        items = tuple(_item(listed, viewer.live) for listed in found)
        cursor = None if end is None else str(end)
        return Accepted(barrier, _always(wire.ObjectListResult(objects=items, next_cursor=cursor)))

    async def _list_all(self, params: wire.ObjectListParams) -> wire.ObjectListResult:
        if params.level is not None:
            raise CtxdError("invalid_params", "level applies only to a session", hint="Give session too.")
        found, more = await self._objects.of_all(
            type=params.type, after="" if params.cursor is None else params.cursor, limit=params.limit
        )
        items = tuple(_item(listed, None) for listed in found)
        return wire.ObjectListResult(objects=items, next_cursor=items[-1].object if more else None)

    async def object_query(self, _: Caller, params: wire.ObjectQueryParams) -> wire.ObjectQueryResult:
        found = await self._store.query(
            params.query,
            params.args,
            AsOf.given(params.valid_time, params.tx),
            limit=params.limit,
            timeout_s=params.timeout_ms / 1_000,
        )
        return wire.ObjectQueryResult(rows=tuple(map(tuple, found.rows)), complete=found.complete, tx=found.tx)

    async def object_sessions(self, _: Caller, params: wire.ObjectSessionsParams) -> wire.ObjectSessionsResult:
        return wire.ObjectSessionsResult(sessions=tuple(await self._objects.sessions_of(params.object)))


class SecretCalls:
    """Handlers of ``object.purge`` and ``object.scan``."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._objects = Objects(sessions)
        self._files = indexer.stale_files
        self._anywhere = MountTable.of_host(sessions.host_filesystem_id)
        self._scanning = Lane("secrets.scan", bulk=True)

    async def object_purge(
        self, _: Caller, params: wire.ObjectPurgeParams, call: WriteRequest
    ) -> wire.ObjectPurgeResult:
        if params.dry_run:
            return await self._foreseen(params)
        replay = await find_replay(self._store, call)
        if replay is not None:
            proof = await again(self._store, call, replay)
        else:
            proof = await self._purge(call, params)
        files = [id for id in proof.objects if not id.startswith((*INFRASTRUCTURE_PREFIXES, *INNER_PREFIXES))]
        outputs = await self._kept_outputs(params)
        is_chat = params.object.startswith(_CHATS)
        live = await self._purged_session(params.object)
        return wire.ObjectPurgeResult(
            objects=proof.objects,
            versions=proof.versions,
            texts=proof.texts,
            residue=proof.residue,
            complete=not proof.residue,
            receipt=proof.receipt,
            existing=tuple(await self._files.existing(self._anywhere, files)),
            outputs_left=len(outputs),
            outputs=tuple(outputs[:PAGE_ITEMS_MAX]),
            copies=tuple(await self._copies(params.object.removeprefix(_CHATS)) if is_chat else ())[:PAGE_ITEMS_MAX],
            sessions=tuple(each for each in proof.sessions if live is None or each != live.session)[:PAGE_ITEMS_MAX],
        )

    async def _foreseen(self, params: wire.ObjectPurgeParams) -> wire.ObjectPurgeResult:
        """The other sessions in which a purge would erase texts, without the purge."""
        found: tuple[str, ...] = ()
        live = await self._purged_session(params.object)
        if live is not None:
            sessions = self._sessions
            family = [each for each in sessions.family(live.session) if each != live.session]
            others = [(each, sessions.peek(each) or await sessions.as_of(each)) for each in sorted(family)]
            having = await sessions_with_text(self._store, others, live, params.object, params.turns)
            found = tuple(each for each in having if each != live.session)
        return wire.ObjectPurgeResult(
            objects=(), versions=0, texts=0, residue=(), complete=False, receipt=None, sessions=found[:PAGE_ITEMS_MAX]
        )

    async def _purged_session(self, id: str) -> LiveSession | None:
        """The session whose chat, tool call or commit ``id`` is; None for other objects."""
        session = id.removeprefix(_CHATS)
        if not id.startswith(_CHATS):
            return await self._session_of(id)
        return None if self._sessions.catalog.state(session) is None else await self._sessions.live(session)

    async def _kept_outputs(self, params: wire.ObjectPurgeParams) -> list[str]:
        """The tool calls of the purged turns whose outputs stay; none for an object that is no chat."""
        session = params.object.removeprefix(_CHATS)
        if not params.object.startswith(_CHATS) or self._sessions.catalog.state(session) is None:
            return []
        return await kept_outputs(self._store, await self._sessions.live(session), params.turns)

    async def _copies(self, session: str) -> list[str]:
        """The sessions that began with a commit of ``session``, and whose chats still have messages of it."""
        catalog, begun = self._sessions.catalog, dict[str, ContinuedCommit]()
        for each in catalog.states():
            settings = catalog.settings(each)
            # A fork with a base shares the chat, and was purged with it.
            if settings.continues is not None and settings.base is None:
                begun[each] = settings.continues
        heads = await self._store.heads({entity_id(each.commit) for each in begun.values()})
        found: list[str] = []
        for each, continues in begun.items():
            head = heads[entity_id(continues.commit)]
            fields = None if head is None else fields_of(head.document)
            if fields is not None and fields.session == session and await self._has_text(each, continues.position.chat):
                found.append(each)
        return found

    async def _has_text(self, session: str, end: EventPosition) -> bool:
        """True if an event of the chat of ``session`` before ``end`` has a text that is not purged."""
        live = self._sessions.peek(session) or await self._sessions.as_of(session)
        async with aclosing(read_pages(live, end=end)) as pages:
            async for page in pages:
                for place, event in page.placed():
                    text = getattr(event, "text", "") or getattr(event, "summary", "")
                    if place < end and text not in ("", PURGED_TEXT):
                        return True
        return False

    async def _session_of(self, id: str) -> LiveSession | None:
        """The session that recorded the tool call ``id``, or that the commit ``id`` belongs to; None for other objects,
        or if it is unknown here."""
        is_commit = id.startswith(COMMIT_PREFIX)
        head = None if id.startswith(INNER_PREFIXES) and not is_commit else (await self._store.heads((id,)))[id]
        if head is None:
            return None
        if is_commit:
            fields = fields_of(head.document)
            session = "" if fields is None or fields.session is None else fields.session
        elif head.document.type == "toolcall":
            session = str(head.document.payload.get("chat_ref", "")).removeprefix(_CHATS)
        else:
            return None
        if self._sessions.catalog.state(session) is None:
            return None
        if is_commit and self._sessions.catalog.settings(session).recorded is None:
            return None
        return await self._sessions.live(session)

    async def _purge(self, call: WriteRequest, params: wire.ObjectPurgeParams) -> Proof:
        guard = self._sessions.guard
        if not params.object.startswith(_CHATS):
            if params.turns is not None:
                raise CtxdError(
                    "invalid_params", f"{params.object} has no turns: only a chat has", outcome="not_applied"
                )
            live = await self._session_of(params.object)
        else:
            live = await self._sessions.live(params.object.removeprefix(_CHATS))
        family = self._sessions.purging
        if not params.object.startswith(_CHATS):
            return await purge(self._store, guard, call, family, params.object, live)
        assert live is not None, "a chat is that of a session"
        return await purge_chat(self._store, guard, call, family, live, params.turns)

    async def object_scan(self, _: Caller, params: wire.ObjectScanParams) -> wire.ObjectScanResult:
        ids = await self._wanted(params.session, "" if params.cursor is None else params.cursor, params.limit + 1)
        more, ids = len(ids) > params.limit, ids[: params.limit]
        rows: list[wire.Scanned] = []
        left_out, unreadable = 0, list[str]()
        for first in range(0, len(ids), _SCANNED_AT_ONCE):
            some = ids[first : first + _SCANNED_AT_ONCE]
            before = {id: before_id for id in some if (before_id := _assembly_before(id)) is not None}
            whole = (id for id in some if not id.startswith((_CHATS, COMMIT_PREFIX)))
            read = dict.fromkeys((*whole, *before.values()))
            versions = await self._store.bulk(list(read), content=True)
            for id in some:
                if id.startswith(_CHATS):
                    rows += await self._chat(id)
                elif id.startswith(COMMIT_PREFIX):
                    try:
                        found = await self._commit(id, history=params.history)
                    except CtxdError as error:
                        if error.code != "corrupt":
                            raise
                        unreadable.append(id)
                        continue
                    rows += found or ()
                    left_out += found is None
                elif (stored := versions.get(id)) is None:
                    continue
                elif stored.document.type == "assembly":
                    last = versions.get(before.get(id, ""))
                    # Most requests declare the same tools as the one before. Objects that the record refers to are
                    # searched anyway.
                    if last is None or last.document.content != stored.document.content:
                        rows += await self._object(msgspec.structs.replace(stored.document, payload={}), history=False)
                else:
                    rows += await self._object(stored.document, history=params.history)
        return wire.ObjectScanResult(
            objects=tuple(rows),
            scanned=len(ids),
            next_cursor=ids[-1] if more else None,
            left_out=left_out,
            unreadable=tuple(unreadable),
        )

    async def _wanted(self, session: str | None, after: str, limit: int) -> list[str]:
        """Return at most ``limit`` ids of objects, commits, entries and assemblies after ``after``, in order: those of
        ``session``, or all without one."""
        inner: list[str] = []
        for prefix in _INNER if session is None else (assemblies_prefix(session), entries_prefix(session)):
            if after < prefix or after.startswith(prefix):
                page = Page(after=after if after.startswith(prefix) else None, limit=limit)
                inner += [each.document.id for each in await self._store.scan(prefix, page=page)]
        if session is not None:
            live = await self._sessions.live(session)
            own = (chat_id(session), session_object_id(session), system_prompt_id(session))
            commits = await self._store.read_index(partial(_commits, session=session, after=after, limit=limit))
            return nsmallest(limit, (id for id in {*live.state.index, *map(str, own), *inner, *commits} if id > after))
        found, _ = await self._objects.of_all(type=None, after=after, limit=limit)
        return sorted((*(listed.stored.document.id for listed in found), *inner))[:limit]

    async def _commit(self, id: str, *, history: bool) -> list[wire.Scanned] | None:
        """The secrets in the delta and the summary of a commit, unless the daemon made it of a chat; None if the delta
        is too large. ``history``: also those in earlier summaries."""
        stored = (await self._store.heads((id,)))[id]
        fields = None if stored is None else fields_of(stored.document)
        if stored is None or fields is None or fields.position is not None:
            return []
        guard, ref = self._sessions.guard, stored.content_ref
        secrets = await self._found(stored.document, history=history, content=False)
        if ref is not None and not is_purged(stored.document):
            sizes = await self._store.read_index(partial(commit_index.content_sizes, refs=(ref,)))
            if sizes.get(ref, 0) > SCANNED_DELTA_BYTES_MAX:
                return None
            content = (await self._store.contents((ref,), keep=False))[ref]
            more = await self._scanning.run(found_in_delta, guard, fields.format, content)
            secrets = merged(secrets, None if more is None else Found(more.found, ()))
        return [] if secrets is None else [_scanned_row(guard, stored.document, secrets)]

    async def _object(self, newest: Document, *, history: bool) -> list[wire.Scanned]:
        secrets = await self._found(newest, history=history and newest.type != "session")
        return [] if secrets is None else [_scanned_row(self._sessions.guard, newest, secrets)]

    async def _found(self, newest: Document, *, history: bool, content: bool = True) -> Found | None:
        """The secrets in the version ``newest``, and with ``history`` in all versions. ``content``: search the
        content of these as well."""
        guard = self._sessions.guard
        secrets = await self._scanning.run(scanned, guard, newest)
        after: tuple[int, int] | None = None
        while history:
            page = await self._store.history(
                newest.id, page=Page(after=after, limit=_SCANNED_AT_ONCE), corrections=True, content=content
            )
            for each in page:
                secrets = merged(secrets, await self._scanning.run(scanned, guard, each.document))
            if len(page) < _SCANNED_AT_ONCE:
                break
            after = (page[-1].valid_time, page[-1].tx)
        return secrets

    async def _chat(self, id: str) -> list[wire.Scanned]:
        session, guard = id.removeprefix(_CHATS), self._sessions.guard
        live = self._sessions.peek(session) or await self._sessions.as_of(session)
        turns: dict[int, Capture] = {}
        async with aclosing(read_pages(live)) as pages:
            async for page in pages:
                for turn, placed in groupby(page.placed(), lambda each: each[0][0]):
                    capture = turns.setdefault(turn, Capture(guard, "flag"))
                    events = [event for _, event in placed]
                    await self._scanning.run(scan_events, capture, events)
        return [
            wire.Scanned(object=id, type="chat", label=f"turn {turn}", found=secrets.found, lines=(), turn=turn)
            for turn, capture in turns.items()
            if (secrets := capture.secrets) is not None
        ]


_TEXTS_AT_ONCE = 8
"""Texts of objects loaded together, each of at most 8 MiB."""


def _size(stored: Stored) -> int:
    """The characters of the content of ``stored``, two per byte of binary content, plus the bytes of its other fields
    in JSON."""
    content = stored.document.content or ""
    return len(content) * (1 + is_binary(stored.document)) + len(msgspec.json.encode(stored.document.payload))


def _require_short(size: int, caller: Caller) -> None:
    if caller.reply_bytes_max is not None and size > caller.reply_bytes_max:
        message = f"the objects have more than {caller.reply_bytes_max:,} characters together"
        raise CtxdError("too_large", message, hint="Request fewer objects at once, or omit their content.")


def _shown(stored: Stored, live: LiveSession | None, *, content: bool) -> ObjectVersion:
    document = stored.document
    payload: dict[str, Any] = dict(document.payload)
    if content:
        content_shown = document.content
        if is_binary(document) and content_shown is not None:
            content_shown = b64encode(encode_content(content_shown)).decode()
        payload["content"] = content_shown
    source = document.source
    return ObjectVersion(
        id=document.id,
        type=cast(ObjectType, document.type),
        source=source,
        identity_hash=document.identity_hash,
        source_hash=document.source_hash,
        content_hash=document.content_hash,
        payload=payload,
        valid_time=stored.valid_time,
        tx=stored.tx,
        tx_time=stored.tx_time,
        state=state_of(document),
        display_path=live.mounts.display(source) if live is not None and source is not None else None,
    )


def _item(listed: ListedObject, live: LiveSession | None) -> wire.ObjectListItem:
    document = listed.stored.document
    if document.source is not None:
        label = source_label(document.source) if live is None else live.mounts.display(document.source)
    else:
        label = document.payload.get("args_display") or document.payload.get("tool") or ""
    return wire.ObjectListItem(
        object=document.id,
        type=cast(ObjectType, document.type),
        state=state_of(document),
        label=label,
        char_count=document.payload.get("char_count"),
        level=listed.level,
        pinned=listed.pinned,
        secrets=rules_found(document.payload),
    )


def _parsed(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    valid_time, dot, tx = cursor.partition(".")
    if not dot:
        raise CtxdError("invalid_params", f"{cursor!r} is not a cursor of a history", hint=_CURSOR)
    return _number(valid_time), _number(tx)


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= SAFE_INTEGER_MAX):
        raise CtxdError("invalid_params", f"{text[:40]!r} is not part of a cursor", hint=_CURSOR)
    return int(text)


def _always(result: Any) -> Any:  # noqa: ANN401 - any result
    return lambda _: result


def _assembly_before(id: str) -> str | None:
    """The id of the assembly before the assembly ``id``; None for the first one, and for other entities."""
    if not id.startswith(_INNER[0]) or (number := number_of(id)) == 1:
        return None
    return assembly_id(session_of(id) or "", number - 1)


def _commits(connection: sqlite_file.Connection, session: str, after: str, limit: int) -> list[str]:
    """At most ``limit`` ids of commits of ``session`` after ``after``, in order: a session may have 100,000."""
    return nsmallest(limit, (id for id in commit_index.of_session(connection, session) if id > after))


def _scanned_row(guard: Guard, document: Document, secrets: Found) -> wire.Scanned:
    source = document.source
    id, type = document.id, document.type
    label = str(document.payload.get("tool", type)) if source is None else source_label(source)
    if type == "session_entry":
        type, label = "session", f"entry {document.payload['key']}"
    elif type == "assembly":
        label, type = f"tools declared in assembly {number_of(id)}", "session"
        id = str(session_object_id(session_of(id) or ""))
    return wire.Scanned(
        object=id,
        type=cast(wire.ScannedType, type),
        # A path may contain a secret too.
        label=guard.redacted(label),
        found=secrets.found,
        lines=secrets.lines,
    )
