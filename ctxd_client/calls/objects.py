"""Calls that read objects and their versions."""

from collections.abc import Sequence
from typing import Literal

from ctxd_client.wire import Call
from ctxd_protocol.methods import (
    ObjectBulkParams,
    ObjectBulkResult,
    ObjectGetParams,
    ObjectGetResult,
    ObjectHistoryParams,
    ObjectHistoryResult,
    ObjectListParams,
    ObjectListResult,
    ObjectPurgeParams,
    ObjectPurgeResult,
    ObjectScanParams,
    ObjectScanResult,
    ObjectSessionsParams,
    ObjectSessionsResult,
)
from ctxd_protocol.objects import ObjectType
from ctxd_protocol.sessions import ContextLevel


def object_get(
    object: str,
    *,
    session: str | None = None,
    valid_time: int | None = None,
    tx: int | None = None,
    content: bool = True,
) -> Call[ObjectGetResult]:
    """One version of one object, the newest unless two times say otherwise.

    Example: ``(await client.object_get("3f9a01bc", session="s1")).object.payload["content"]``
    """
    return Call(
        "object.get",
        ObjectGetParams(object=object, session=session, valid_time=valid_time, tx=tx, content=content),
        ObjectGetResult,
    )


def object_bulk(
    objects: Sequence[str],
    *,
    session: str | None = None,
    valid_time: int | None = None,
    tx: int | None = None,
    content: bool = False,
) -> Call[ObjectBulkResult]:
    """Many objects in one call, without content unless asked for; as ``session`` names them.

    Example: ``(await client.object_bulk(["a" * 64])).missing``
    """
    return Call(
        "object.bulk",
        ObjectBulkParams(objects=tuple(objects), session=session, valid_time=valid_time, tx=tx, content=content),
        ObjectBulkResult,
    )


def object_history(
    object: str,
    *,
    session: str | None = None,
    order: Literal["asc", "desc"] = "asc",
    corrections: bool = False,
    valid_time: int | None = None,
    tx: int | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[ObjectHistoryResult]:
    """One page of an object's versions, oldest first.

    Example: ``(await client.object_history("3f9a01bc", session="s1")).versions``
    """
    return Call(
        "object.history",
        ObjectHistoryParams(
            object=object,
            session=session,
            order=order,
            corrections=corrections,
            valid_time=valid_time,
            tx=tx,
            limit=limit,
            cursor=cursor,
        ),
        ObjectHistoryResult,
    )


def object_list(
    *,
    session: str | None = None,
    type: ObjectType | None = None,
    level: ContextLevel | None = None,
    limit: int = 100,
    cursor: str | None = None,
) -> Call[ObjectListResult]:
    """One page of objects, of one session or of all.

    Example: ``(await client.object_list(session="s1", level="active")).objects``
    """
    return Call(
        "object.list",
        ObjectListParams(session=session, type=type, level=level, limit=limit, cursor=cursor),
        ObjectListResult,
    )


def object_sessions(object: str) -> Call[ObjectSessionsResult]:
    """The sessions whose index holds an object.

    Example: ``(await client.object_sessions("a" * 64)).sessions``
    """
    return Call("object.sessions", ObjectSessionsParams(object=object), ObjectSessionsResult)


def object_purge(
    object: str, *, turns: Sequence[int] | None = None, op_id: str | None = None
) -> Call[ObjectPurgeResult]:
    """Destroy what an object says, in every version, and every other version that says the same; of a chat, ``turns``
    or all of them. For good.

    Example: ``(await client.object_purge("a" * 64)).complete``
    """
    params = ObjectPurgeParams(object=object, turns=None if turns is None else tuple(turns), op_id=op_id)
    return Call("object.purge", params, ObjectPurgeResult)


def object_scan(
    *, session: str | None = None, history: bool = False, limit: int = 100, cursor: str | None = None
) -> Call[ObjectScanResult]:
    """Look for secrets in a session's objects and chat, or in all, a page at a time; with ``history`` in earlier
    versions too.

    Example: ``(await client.object_scan(session="s1")).objects``
    """
    params = ObjectScanParams(session=session, history=history, limit=limit, cursor=cursor)
    return Call("object.scan", params, ObjectScanResult)
