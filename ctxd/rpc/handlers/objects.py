"""``object.*``: versions of objects, now and as of any time, and which there are.

A connection that is bound to a session sees the objects of its index and its own infrastructure; everything else is as
if it did not exist. Only durable versions are shown.
"""

from typing import Any, cast

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import INNER_PREFIXES, is_file_id
from ctxd.objects.kinds import OBJECT_TYPES, state_of, type_of
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Handler
from ctxd.sessions import changes, logical
from ctxd.sessions.live import LiveSession
from ctxd.sessions.registry import Sessions
from ctxd.store.writes import Accepted
from ctxd_protocol import methods as wire
from ctxd_protocol.ids import PREFIX_CHARS_MIN
from ctxd_protocol.limits import SAFE_INTEGER_MAX
from ctxd_protocol.objects import ObjectType, ObjectVersion, VersionRow

_CURSOR = "Give next_cursor as it was."


def handlers(sessions: Sessions) -> dict[str, Handler]:
    """The methods of this family by name."""
    family = _ObjectCalls(sessions)
    return {
        "object.get": family.get,
        "object.bulk": family.bulk,
        "object.history": family.history,
        "object.list": family.list,
        "object.sessions": family.sessions,
    }


class _ObjectCalls:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store

    async def get(self, caller: Caller, params: wire.ObjectGetParams) -> Accepted:
        live = await self._live(params.session)
        id = await self._resolved(caller, live, params.object)
        stored = await self._version(id, params.valid_time, params.tx, content=params.content)
        if stored is None:
            is_past = params.valid_time is not None or params.tx is not None
            if is_past and await self._version(id, None, None, content=False) is not None:
                raise CtxdError(
                    "object_not_found",
                    f"{params.object} had no version then",
                    hint="object.history lists those it has.",
                )
            raise _not_found(params.object)
        result = wire.ObjectGetResult(object=_shown(stored, live, content=params.content))
        return Accepted(live.barrier if live else None, lambda _: result)

    async def bulk(self, caller: Caller, params: wire.ObjectBulkParams) -> wire.ObjectBulkResult:
        ids = dict.fromkeys(params.objects)
        live = await self._live(caller.session)
        if caller.capability != "host":
            ids = dict.fromkeys(id for id in ids if live is not None and _within(live, id))
        plain = [id for id in ids if logical.session_of(id) is None and not id.startswith(INNER_PREFIXES)]
        found = await self._store.bulk(plain, valid_time=params.valid_time, tx=params.tx, content=params.content)
        if newest := max((stored.tx for stored in found.values() if stored.tx > self._durable()), default=0):
            tx = newest if params.tx is None else params.tx
            found = await self._store.bulk(plain, valid_time=params.valid_time, tx=tx, content=params.content)
        for id in ids:
            if logical.session_of(id) is not None:
                stored = await logical.version(self._store, id, valid_time=params.valid_time, tx=params.tx)
                if stored is not None:
                    found[id] = stored
        shown = tuple(_shown(found[id], live, content=params.content) for id in ids if id in found)
        missing = tuple(id for id in dict.fromkeys(params.objects) if id not in found)
        return wire.ObjectBulkResult(objects=shown, missing=missing)

    async def history(self, caller: Caller, params: wire.ObjectHistoryParams) -> wire.ObjectHistoryResult:
        live = await self._live(params.session)
        id = await self._resolved(caller, live, params.object)
        after = _parsed(params.cursor)
        if logical.session_of(id) is not None:
            rows = await logical.history(self._store, id, valid_time=params.valid_time, tx=params.tx)
            if params.order == "desc":
                rows.reverse()
            rows = [row for row in rows if after is None or _beyond(row, after, params.order)][: params.limit + 1]
        else:
            found = await self._store.history(
                id,
                order=params.order,
                corrections=params.corrections,
                valid_time=params.valid_time,
                tx=params.tx,
                after=after,
                limit=params.limit + 1,
            )
            rows = [_row(stored) for stored in found]
        if not rows and after is None:
            raise _not_found(params.object)
        page, more = tuple(rows[: params.limit]), len(rows) > params.limit
        cursor = f"{page[-1].valid_time}.{page[-1].tx}" if more else None
        return wire.ObjectHistoryResult(versions=page, next_cursor=cursor)

    async def list(self, caller: Caller, params: wire.ObjectListParams) -> Accepted:
        live = await self._live(params.session)
        if live is None:
            if params.level is not None:
                raise CtxdError("invalid_params", "level is of a session", hint="Give session too.")
            return Accepted(None, _always(await self._list_all(params)))
        return await self._list_index(live, params)

    async def sessions(self, _: Caller, params: wire.ObjectSessionsParams) -> wire.ObjectSessionsResult:
        if (await self._store.heads((params.object,)))[params.object] is None:
            raise _not_found(params.object)
        return wire.ObjectSessionsResult(sessions=tuple(await self._sessions.knowing(params.object)))

    async def _live(self, session: str | None) -> LiveSession | None:
        """The session as of the calls before this one; null if none is named."""
        if session is None:
            return None
        live = await self._sessions.live(session)
        async with live.lock:
            live.require_current()
        return live

    async def _resolved(self, caller: Caller, live: LiveSession | None, text: str) -> str:
        """The id that ``text`` means to ``caller``. Raises: CtxdError object_not_found, ambiguous_id."""
        if text.startswith(INNER_PREFIXES):
            raise _not_found(text)
        if live is None:
            return text
        if type_of(text) is not None:
            if caller.capability != "host" and not _within(live, text):
                raise _not_found(text)
            return text
        try:
            return changes.resolve(live.state, live.session, text)
        except CtxdError as error:
            if error.code == "ambiguous_id":
                raise
            if caller.capability != "host" or (await self._store.heads((text,)))[text] is None:
                raise _not_found(text) from error
            return text

    async def _version(self, id: str, valid_time: int | None, tx: int | None, *, content: bool) -> Stored | None:
        if logical.session_of(id) is not None:
            return await logical.version(self._store, id, valid_time=valid_time, tx=tx)
        stored = await self._store.get(id, valid_time=valid_time, tx=tx, content=content)
        if stored is not None and stored.tx > self._durable():
            # Not on the disk yet: by its sequence it is read once it is there, or the one before it if it was lost.
            stored = await self._store.get(id, valid_time=valid_time, tx=stored.tx, content=content)
        return stored

    async def _list_index(self, live: LiveSession, params: wire.ObjectListParams) -> Accepted:
        state = live.state
        start = _number(params.cursor)
        wanted: list[str] = []
        end: int | None = None
        for place, id in enumerate(state.index):
            if place < start or (params.level is not None and state.level(id) != params.level):
                continue
            if params.type is not None and params.type != ("file" if is_file_id(id) else "toolcall"):
                continue
            if len(wanted) == params.limit:
                end = place
                break
            wanted.append(id)
        levels = {id: (state.level(id), id in state.pinned) for id in wanted}
        barrier = live.barrier
        heads = await self._store.heads(wanted)
        if newest := max((head.tx for head in heads.values() if head and head.tx > self._durable()), default=0):
            # Another session's write, which may yet be lost: what is read by its sequence is on the disk.
            heads = {**await self._store.bulk(wanted, tx=newest)}
        items = tuple(_item(head, live, *levels[id]) for id, head in heads.items() if head is not None)
        cursor = None if end is None else str(end)
        return Accepted(barrier, _always(wire.ObjectListResult(objects=items, next_cursor=cursor)))

    async def _list_all(self, params: wire.ObjectListParams) -> wire.ObjectListResult:
        """Objects of all sessions by id. Chats, being folds, are not among them."""
        after = params.cursor or ""
        items: list[wire.ObjectListItem] = []
        while True:
            page = await self._store.scan("", after=after, limit=params.limit + 1)
            for stored in page:
                after = stored.document.id
                if after.startswith(INNER_PREFIXES):
                    # Beyond all ids of this kind: a semicolon is the character after the colon.
                    after = after.partition(":")[0] + ";"
                    break
                if stored.document.type not in OBJECT_TYPES or params.type not in (None, stored.document.type):
                    continue
                if len(items) == params.limit:
                    return wire.ObjectListResult(objects=tuple(items), next_cursor=items[-1].object)
                items.append(_item(stored, None, None, False))
            else:
                if len(page) <= params.limit:
                    return wire.ObjectListResult(objects=tuple(items), next_cursor=None)

    def _durable(self) -> int:
        receipt = self._store.head()
        return 0 if receipt is None else receipt.seq


def _within(live: LiveSession, id: str) -> bool:
    """Whether ``id`` is in the session's index, or its own infrastructure."""
    if type_of(id) is not None:
        return id.partition(":")[2] == live.session
    return id in live.state.index


def _shown(stored: Stored, live: LiveSession | None, *, content: bool) -> ObjectVersion:
    document = stored.document
    payload: dict[str, Any] = dict(document.payload)
    if content:
        payload["content"] = document.content
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


def _row(stored: Stored) -> VersionRow:
    document = stored.document
    return VersionRow(
        valid_time=stored.valid_time,
        tx=stored.tx,
        tx_time=stored.tx_time,
        content_hash=document.content_hash,
        source_hash=document.source_hash,
        state=state_of(document),
        char_count=document.payload.get("char_count"),
    )


def _item(stored: Stored, live: LiveSession | None, level: Any, pinned: bool) -> wire.ObjectListItem:  # noqa: ANN401
    document = stored.document
    if document.source is not None:
        label = document.source.path if live is None else live.mounts.display(document.source)
    else:
        label = document.payload.get("args_display") or document.payload.get("tool") or ""
    return wire.ObjectListItem(
        object=document.id,
        type=cast(ObjectType, document.type),
        state=state_of(document),
        label=label,
        char_count=document.payload.get("char_count"),
        level=level,
        pinned=pinned,
    )


def _beyond(row: VersionRow, after: tuple[int, int], order: str) -> bool:
    place = (row.valid_time, row.tx)
    return place > after if order == "asc" else place < after


def _parsed(cursor: str | None) -> tuple[int, int] | None:
    if cursor is None:
        return None
    valid_time, dot, tx = cursor.partition(".")
    if not dot:
        raise CtxdError("invalid_params", f"{cursor!r} is no cursor of a history", hint=_CURSOR)
    return _number(valid_time), _number(tx)


def _number(text: str | None) -> int:
    if text is None:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) < 20 and int(text) <= SAFE_INTEGER_MAX):
        raise CtxdError("invalid_params", f"{text[:40]!r} is no part of a cursor", hint=_CURSOR)
    return int(text)


def _always(result: Any) -> Any:  # noqa: ANN401 - any result
    return lambda _: result


def _not_found(text: str) -> CtxdError:
    hint = f"With session given, {PREFIX_CHARS_MIN} or more characters of an id of its index are enough."
    return CtxdError("object_not_found", f"no object id={text}", hint=hint)
