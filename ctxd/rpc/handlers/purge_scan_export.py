"""``object.purge`` and ``object.scan``, for stored secrets; ``session.export``, which leaves secrets out."""

from contextlib import aclosing
from heapq import nsmallest
from itertools import groupby
from typing import Final, TypeVar, cast

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Page
from ctxd.objects.generated_ids import (
    COMMIT_PREFIX,
    INNER_PREFIXES,
    assemblies_prefix,
    assembly_id,
    entries_prefix,
    number_of,
    session_of,
)
from ctxd.rpc.caller import Caller
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.chat import read_pages
from ctxd.sessions.export import Exports
from ctxd.sessions.object_reads import Objects
from ctxd.sessions.purge_operations import Proof, again, purge, purge_chat
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import Found, merged, scan_events, scanned
from ctxd.sessions.session import LiveSession, WriteRequest, find_replay
from ctxd.store.commit_index import fields_of
from ctxd.worker_threads import Lane
from ctxd_protocol.ids import chat_id, session_object_id, system_prompt_id
from ctxd_protocol.methods import objects as wire
from ctxd_protocol.methods.chat import SessionExportParams, SessionExportResult
from ctxd_protocol.object_types import ObjectType, source_label

_SCANNED_AT_ONCE: Final = 32
_CHATS: Final = "chat:"
_INNER: Final = ("assembly:", "session_entry:")
"""Prefixes of other entities that are searched: assemblies, which contain the declared tools, and entries."""

T = TypeVar("T")


class SecretCalls:
    """Handlers of ``object.purge``, ``object.scan`` and ``session.export``."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._objects = Objects(sessions)
        self._exports = Exports(sessions.store, sessions.guard)
        self._scanning = Lane("secrets.scan", bulk=True)

    async def object_purge(
        self, _: Caller, params: wire.ObjectPurgeParams, call: WriteRequest
    ) -> wire.ObjectPurgeResult:
        replay = await find_replay(self._store, call)
        if replay is not None:
            proof = await again(self._store, call, replay)
        else:
            proof = await self._purge(call, params)
        return wire.ObjectPurgeResult(
            objects=proof.objects,
            versions=proof.versions,
            texts=proof.texts,
            residue=proof.residue,
            complete=not proof.residue,
            receipt=proof.receipt,
        )

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
        for first in range(0, len(ids), _SCANNED_AT_ONCE):
            some = ids[first : first + _SCANNED_AT_ONCE]
            before = {id: before_id for id in some if (before_id := _assembly_before(id)) is not None}
            read = dict.fromkeys((*(id for id in some if not id.startswith(_CHATS)), *before.values()))
            versions = await self._store.bulk(list(read), content=True)
            for id in some:
                if id.startswith(_CHATS):
                    rows += await self._chat(id)
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
        return wire.ObjectScanResult(objects=tuple(rows), scanned=len(ids), next_cursor=ids[-1] if more else None)

    async def session_export(self, _: Caller, params: SessionExportParams) -> SessionExportResult:
        live = await self._sessions.live(params.session)
        async with live.lock:
            live.require_current()
        # Pending writes may still be lost, but an export is kept.
        await self._store.settled()
        records, cursor = await self._exports.page(live, params.cursor, params.limit)
        return SessionExportResult(records=tuple(records), next_cursor=cursor)

    async def _wanted(self, session: str | None, after: str, limit: int) -> list[str]:
        """Return at most ``limit`` ids of objects, entries and assemblies after ``after``, in order: those of
        ``session``, or all without one."""
        inner: list[str] = []
        for prefix in _INNER if session is None else (assemblies_prefix(session), entries_prefix(session)):
            if after < prefix or after.startswith(prefix):
                page = Page(after=after if after.startswith(prefix) else None, limit=limit)
                inner += [each.document.id for each in await self._store.scan(prefix, page=page)]
        if session is not None:
            live = await self._sessions.live(session)
            own = (chat_id(session), session_object_id(session), system_prompt_id(session))
            return nsmallest(limit, (id for id in {*live.state.index, *map(str, own), *inner} if id > after))
        found, _ = await self._objects.of_all(type=None, after=after, limit=limit)
        return sorted((*(listed.stored.document.id for listed in found), *inner))[:limit]

    async def _object(self, newest: Document, *, history: bool) -> list[wire.Scanned]:
        guard = self._sessions.guard
        told = await self._scanning.run(scanned, guard, newest)
        after: tuple[int, int] | None = None
        while history and newest.type != "session":
            page = await self._store.history(
                newest.id, page=Page(after=after, limit=_SCANNED_AT_ONCE), corrections=True, content=True
            )
            for each in page:
                told = merged(told, await self._scanning.run(scanned, guard, each.document))
            if len(page) < _SCANNED_AT_ONCE:
                break
            after = (page[-1].valid_time, page[-1].tx)
        return [] if told is None else [_row(guard, newest, told)]

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
            wire.Scanned(object=id, type="chat", label=f"turn {turn}", found=told.found, lines=(), turn=turn)
            for turn, capture in turns.items()
            if (told := capture.secrets) is not None
        ]


def _assembly_before(id: str) -> str | None:
    """The id of the assembly before the assembly ``id``; None for the first one, and for other entities."""
    if not id.startswith(_INNER[0]) or (number := number_of(id)) == 1:
        return None
    return assembly_id(session_of(id) or "", number - 1)


def _row(guard: Guard, document: Document, told: Found) -> wire.Scanned:
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
        type=cast(ObjectType, type),
        # A path may contain a secret too.
        label=guard.redacted(label),
        found=told.found,
        lines=told.lines,
    )
