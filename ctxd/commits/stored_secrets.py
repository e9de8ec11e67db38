"""Search for secrets in all that is stored: objects, chats, entries, declared tools, and commits with their deltas.

In this folder because it reads deltas.
"""

from contextlib import aclosing
from functools import partial
from heapq import nsmallest
from itertools import groupby
from typing import Final, cast

import msgspec

from ctxd import sqlite_file
from ctxd.commits.delta_scan import found_in_delta
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Page
from ctxd.objects.generated_ids import (
    COMMIT_PREFIX,
    ENTRY_PREFIX,
    assemblies_prefix,
    assembly_id,
    entries_prefix,
    number_of,
    session_of,
)
from ctxd.objects.version_state import is_purged
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.chat import read_pages
from ctxd.sessions.object_reads import Objects
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import Found, merged, scan_events, scanned
from ctxd.store import commit_index
from ctxd.store.commit_index import fields_of
from ctxd.worker_threads import Lane
from ctxd_protocol.ids import chat_id, session_object_id, system_prompt_id
from ctxd_protocol.methods import objects as wire
from ctxd_protocol.object_types import source_label

_SCANNED_AT_ONCE: Final = 32
_CHATS: Final = "chat:"
_INNER: Final = ("assembly:", ENTRY_PREFIX, COMMIT_PREFIX)
"""Prefixes of other entities that are searched: assemblies, which contain the declared tools, entries and commits."""

SCANNED_DELTA_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a delta that ``object.scan`` searches: all of it is in memory at once."""


class StoredSecrets:
    """The secrets in one store."""

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._objects = Objects(sessions)
        self._scanning = Lane("secrets.scan", bulk=True)

    async def page(self, params: wire.ObjectScanParams) -> wire.ObjectScanResult:
        """Search the next objects, and return those with secrets. Raises: CtxdError session_not_found, and those of the
        store. Cancel: waits for the search of one text."""
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
