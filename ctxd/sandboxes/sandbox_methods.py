"""Handlers of ``sandbox.*``, for harnesses. A sandbox's own socket refuses them: sandboxes do not nest."""

import os
from typing import Final

import anyio
import msgspec

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.sandboxes.lifecycle import Sandboxes
from ctxd.sandboxes.registration import Registration, new_id
from ctxd.sessions.live_session import Accepted, WriteRequest, find_replay, kept_result
from ctxd.sessions.registry import Sessions
from ctxd.store.write_types import Pending, Replay, Write
from ctxd_protocol.methods import sandboxes as wire
from ctxd_protocol.methods.declaration import Nothing, WriteResult

_USER: Final = "uid:"
"""Prefix of the principals of the host's users, followed by the user's number."""


class _KeptSandbox(msgspec.Struct, frozen=True):
    """Stored result of a write for a resend: the rest of the reply is as of the resend."""

    sandbox: str


class SandboxCalls:
    """Handlers of ``sandbox.*``."""

    def __init__(self, sandboxes: Sandboxes, sessions: Sessions, clock: Clock) -> None:
        self._sandboxes = sandboxes
        self._store = sessions.store
        self._clock = clock
        self._registering = anyio.Lock()

    async def sandbox_register(
        self, caller: Caller, params: wire.SandboxRegisterParams, call: WriteRequest
    ) -> Accepted:
        # Sequentially: of two sends of one call, the second must see the first.
        async with self._registering:
            return await self._register(caller, params, call)

    async def _register(self, caller: Caller, params: wire.SandboxRegisterParams, call: WriteRequest) -> Accepted:
        replay = await find_replay(self._store, call)
        if replay is not None:
            sandbox = msgspec.json.decode(replay.result, type=_KeptSandbox).sandbox
            self._hold(caller, sandbox)
            return self._shown(sandbox, replay.pending, replay)
        id = new_id()
        principal = f"sandbox:{id}" if params.principal is None else params.principal
        if principal.startswith(_USER):
            raise CtxdError("invalid_params", "principals that begin with uid: are users", outcome="not_applied")
        now = self._clock.wall_ms()
        wanted = Registration(
            id=id,
            principal=principal,
            sessions=params.sessions,
            grants=tuple(dict.fromkeys(params.grants)),
            quota=params.quota,
            ttl_s=params.ttl_s,
            grace_s=params.grace_s,
            uid=_user_inside(caller) if params.uid is None else params.uid,
            created_at=now,
            expires_at=None if params.ttl_s is None else now + 1000 * params.ttl_s,
        )
        pending = await self._sandboxes.register(
            wanted, params.mounts, _write(call, kept_result(call, _KeptSandbox(id)))
        )
        call.submitted = True
        self._hold(caller, id)
        return self._shown(id, pending)

    async def sandbox_renew(self, caller: Caller, params: wire.SandboxParams, call: WriteRequest) -> Accepted:
        if (replay := await find_replay(self._store, call)) is not None:
            return self._shown(params.sandbox, replay.pending, replay)
        pending = self._sandboxes.renew(params.sandbox, _write(call, kept_result(call, _KeptSandbox(params.sandbox))))
        call.submitted = pending is not None
        self._hold(caller, params.sandbox)
        return self._shown(params.sandbox, pending)

    async def sandbox_release(self, caller: Caller, params: wire.SandboxParams, call: WriteRequest) -> Accepted:
        replay = await find_replay(self._store, call)
        if replay is not None:
            pending = replay.pending
        else:
            kept = kept_result(call, _KeptSandbox(params.sandbox))
            pending = await self._sandboxes.release(params.sandbox, _write(call, kept))
            call.submitted = True
        first = None if replay is None else replay.receipt
        return Accepted(pending, lambda receipt: WriteResult(receipt=receipt or first))

    async def sandbox_list(self, _: Caller, params: Nothing) -> wire.SandboxListResult:
        return wire.SandboxListResult(sandboxes=tuple(self._sandboxes.all()))

    def _hold(self, caller: Caller, sandbox: str) -> None:
        self._sandboxes.hold(sandbox, caller.connection, caller.on_close)

    def _shown(self, sandbox: str, pending: Pending | None, replay: Replay | None = None) -> Accepted:
        view = self._sandboxes.view(sandbox)
        first = None if replay is None else replay.receipt
        return Accepted(pending, lambda receipt: wire.SandboxResult(sandbox=view, receipt=receipt or first))


def _user_inside(caller: Caller) -> int | None:
    """The user of ``caller``; ``None`` if the daemon runs as that user too."""
    if not caller.principal.startswith(_USER):
        return None
    uid = int(caller.principal.removeprefix(_USER))
    return None if uid == os.geteuid() else uid


def _write(call: WriteRequest, result: bytes) -> Write:
    return Write(kind=call.kind, principal=call.principal, op_id=call.op_id, request=call.request, result=result)
