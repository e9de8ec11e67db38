"""``object.*``: versions of objects, now and as of any time, and listings.

A connection that is bound to a session sees the objects of its index and its own infrastructure; everything else seems
not to exist. Only durable versions are returned. ``ctxd.sessions.object_reads`` decides visibility; cursors and wire
forms are decided here.
"""

from base64 import b64encode
from typing import Any, cast

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Page, Stored, encode_content, is_binary
from ctxd.objects.version_state import state_of
from ctxd.rpc.caller import Caller
from ctxd.secrets.policy import rules_found
from ctxd.sessions.live_session import Accepted, LiveSession
from ctxd.sessions.object_reads import ListedObject, Objects
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_loading import batched
from ctxd_protocol.limits import PATHS_MAX, SAFE_INTEGER_MAX
from ctxd_protocol.methods import objects as wire
from ctxd_protocol.object_types import ObjectType, ObjectVersion, source_label

_CURSOR = "Pass next_cursor of the previous page unchanged."


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
            every = await self._list_all(params)
            return Accepted(None, lambda _: every)
        found, end, barrier = await self._objects.of_session(
            viewer, viewer.live, type=params.type, level=params.level, start=_number(params.cursor), limit=params.limit
        )
        items = tuple(_item(listed, viewer.live) for listed in found)
        cursor = None if end is None else str(end)
        return Accepted(barrier, lambda _: wire.ObjectListResult(objects=items, next_cursor=cursor))

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
