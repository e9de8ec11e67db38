"""``object.purge`` and ``object.scan``: what an operator does about secrets that are stored."""

from typing import cast

import anyio
import anyio.to_thread

from ctxd.objects.document import Stored
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import Handler
from ctxd.sessions.calls import call_of
from ctxd.sessions.objects import Objects
from ctxd.sessions.purging import Found, again, purge, scanned
from ctxd.sessions.registry import Sessions
from ctxd_protocol import methods as wire
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.objects import ObjectType

_SCANNED_AT_ONCE = 32


def handlers(sessions: Sessions) -> dict[str, Handler]:
    """The methods of this family by name."""
    family = _SecretCalls(sessions)
    return {"object.purge": family.purge, "object.scan": family.scan}


class _SecretCalls:
    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._objects = Objects(sessions)
        self._scanning = anyio.CapacityLimiter(1)

    async def purge(self, caller: Caller, params: wire.ObjectPurgeParams) -> wire.ObjectPurgeResult:
        call = call_of("object.purge", caller.principal, params)
        replay = None
        if call.op_id is not None:
            replay = await self._store.replay(call.principal, call.op_id, call.request)
        if replay is not None:
            proof = await again(self._store, call, replay)
        else:
            proof = await purge(self._store, self._sessions.guard, call, params.object)
        return wire.ObjectPurgeResult(
            objects=proof.objects,
            versions=proof.versions,
            texts=proof.texts,
            searched=proof.searched,
            residue=proof.residue,
            complete=proof.complete,
            receipt=proof.receipt,
        )

    async def scan(self, _: Caller, params: wire.ObjectScanParams) -> wire.ObjectScanResult:
        if params.session is not None:
            live = await self._sessions.live(params.session)
            ids = sorted({*live.state.index, system_prompt_id(params.session)})
            ids = [id for id in ids if id > (params.cursor or "")][: params.limit + 1]
            more = len(ids) > params.limit
            ids = ids[: params.limit]
        else:
            found, more = await self._objects.of_all(type=None, after=params.cursor or "", limit=params.limit)
            ids = [listed.stored.document.id for listed in found]
        rows: list[wire.Scanned] = []
        for first in range(0, len(ids), _SCANNED_AT_ONCE):
            versions = await self._store.bulk(ids[first : first + _SCANNED_AT_ONCE], content=True)
            rows += [
                _row(stored, told) for stored in versions.values() if (told := await self._scanned(stored)) is not None
            ]
        return wire.ObjectScanResult(objects=tuple(rows), scanned=len(ids), next_cursor=ids[-1] if more else None)

    async def _scanned(self, stored: Stored) -> Found | None:
        guard = self._sessions.guard
        return await anyio.to_thread.run_sync(scanned, guard, stored, limiter=self._scanning)


def _row(stored: Stored, told: Found) -> wire.Scanned:
    document = stored.document
    label = document.source.path if document.source is not None else str(document.payload.get("tool", document.type))
    return wire.Scanned(
        object=document.id,
        type=cast(ObjectType, document.type),
        label=label,
        found=told.found,
        lines=told.lines,
    )
