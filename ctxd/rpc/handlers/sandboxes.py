"""``sandbox.*``: the harness's side of sandboxes. None of it exists on a sandbox's own socket: they do not nest."""

import os
from collections.abc import Sequence
from typing import Final

import anyio
import msgspec

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.mounts.mapping import normalise
from ctxd.rpc.dispatch import Answer, Handler
from ctxd.rpc.identity import Caller
from ctxd.sandboxes.registration import Registration, new_id
from ctxd.sandboxes.registry import Home, Sandboxes
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import Accepted, WriteRequest, find_replay, kept_result
from ctxd.sources.port import Limited
from ctxd.sources.rights import User
from ctxd.store.writes import Pending, Replay, Write
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.methods import sandboxes as wire
from ctxd_protocol.methods.row import Nothing, WriteResult
from ctxd_protocol.methods.sessions import SessionConfigureParams
from ctxd_protocol.sessions import Mount

_USER: Final = "uid:"
"""How the principals of the host's users begin; their number follows."""


class Known:
    """The sessions, as sandboxes ask for them; see ``ctxd.sandboxes.registry.Households``."""

    def __init__(self, sessions: Sessions, source: Limited) -> None:
        """``source`` reads the files of the host for sandboxes."""
        self._sessions = sessions
        self._source = source

    def home(self, session: str) -> Home:
        """Where the files of ``session`` lie. Raises: CtxdError session_not_found."""
        settings = self._sessions.catalog.settings(session)
        on_host = settings.detect_filesystems or settings.filesystem_id == self._sessions.host_filesystem_id
        return Home(not on_host, settings.mounts)

    def current(self, session: str) -> CurrentContext:
        """The durable context of ``session``. Raises: CtxdError session_not_found."""
        return self._sessions.current(session)

    def limit(self, sandbox: str, mounts: Sequence[Mount], uid: int | None) -> None:
        """Read nothing below ``mounts`` that user ``uid`` may not; null: the daemon's own. Blocks briefly."""
        if uid is not None and uid != os.geteuid():
            host = (None, self._sessions.host_filesystem_id)
            named = [normalise(mount.canonical_prefix) for mount in mounts if mount.filesystem_id in host]
            roots = {root.rstrip("/") for name in named for root in (name, os.path.realpath(name))}
            self._source.limit(sandbox, roots, User.of(uid))

    def lift(self, sandbox: str) -> None:
        """End that limit, if there is one."""
        self._source.lift(sandbox)

    def restrict(self, sandbox: str, sessions: Sequence[str], seq: int) -> None:
        """Show ``sandbox`` of ``sessions`` what it may see since its registration, of journal sequence ``seq``."""
        self._sessions.visibility.restrict(sandbox, sessions, seq)

    def unrestrict(self, sandbox: str, sessions: Sequence[str]) -> None:
        """End that."""
        self._sessions.visibility.lift(sandbox, sessions)

    def mounts(self, session: str) -> tuple[Mount, ...]:
        """The mounts of ``session``; none if it is gone."""
        return self._sessions.catalog.settings(session).mounts if session in self._sessions.catalog else ()

    def objects(self, session: str) -> int:
        """The entries of its index; none if it is gone."""
        return self._sessions.summary(session)[0].index_count if session in self._sessions.catalog else 0


class _Kept(msgspec.Struct, frozen=True):
    """What is kept of a write for a resend: the rest is as it is then."""

    sandbox: str


def keeping_mounts(handlers: dict[str, Handler], sandboxes: Sandboxes) -> dict[str, Handler]:
    """``handlers`` of sessions, of which none changes what a registered sandbox was given of the host."""
    configure = handlers["session.configure"]

    async def kept(caller: Caller, params: SessionConfigureParams, call: WriteRequest) -> Answer:
        if params.mounts is not None and sandboxes.confines(params.session):
            raise CtxdError(
                "session_in_sandbox",
                f"session {params.session} is a registered sandbox's, whose mounts are fixed",
                hint="Release the sandbox, or register another one.",
                outcome="not_applied",
            )
        return await configure(caller, params, call)

    return {**handlers, "session.configure": kept}


def handlers(sandboxes: Sandboxes, sessions: Sessions, clock: Clock) -> dict[str, Handler]:
    """The methods of this family by name."""
    family = _SandboxCalls(sandboxes, sessions, clock)
    return {
        "sandbox.register": family.register,
        "sandbox.renew": family.renew,
        "sandbox.release": family.release,
        "sandbox.list": family.list,
    }


class _SandboxCalls:
    def __init__(self, sandboxes: Sandboxes, sessions: Sessions, clock: Clock) -> None:
        self._sandboxes = sandboxes
        self._store = sessions.store
        self._clock = clock
        self._registering = anyio.Lock()

    async def register(self, caller: Caller, params: wire.SandboxRegisterParams, call: WriteRequest) -> Accepted:
        # One after the other: of two that ask for one principal, or resend one call, the second must see the first.
        async with self._registering:
            return await self._register(caller, params, call)

    async def _register(self, caller: Caller, params: wire.SandboxRegisterParams, call: WriteRequest) -> Accepted:
        replay = await find_replay(self._store, call)
        if replay is not None:
            sandbox = msgspec.json.decode(replay.result, type=_Kept).sandbox
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
        _, pending = await self._sandboxes.register(wanted, params.mounts, _write(call, kept_result(call, _Kept(id))))
        call.submitted = True
        self._hold(caller, id)
        return self._shown(id, pending)

    async def renew(self, caller: Caller, params: wire.SandboxParams, call: WriteRequest) -> Accepted:
        if (replay := await find_replay(self._store, call)) is not None:
            return self._shown(params.sandbox, replay.pending, replay)
        pending = self._sandboxes.renew(params.sandbox, _write(call, kept_result(call, _Kept(params.sandbox))))
        self._hold(caller, params.sandbox)
        return self._shown(params.sandbox, pending)

    async def release(self, caller: Caller, params: wire.SandboxParams, call: WriteRequest) -> Accepted:
        replay = await find_replay(self._store, call)
        if replay is not None:
            pending = replay.pending
        else:
            kept = kept_result(call, _Kept(params.sandbox))
            pending = await self._sandboxes.release(params.sandbox, _write(call, kept))
        first = None if replay is None else replay.receipt
        return Accepted(pending, lambda receipt: WriteResult(receipt=receipt or first))

    async def list(self, _: Caller, params: Nothing) -> wire.SandboxListResult:
        return wire.SandboxListResult(sandboxes=tuple(self._sandboxes.all()))

    def _hold(self, caller: Caller, sandbox: str) -> None:
        self._sandboxes.held_by(sandbox, caller.connection, caller.on_close)

    def _shown(self, sandbox: str, pending: Pending | None, replay: Replay | None = None) -> Accepted:
        view = self._sandboxes.view(sandbox)
        first = None if replay is None else replay.receipt
        return Accepted(pending, lambda receipt: wire.SandboxResult(sandbox=view, receipt=receipt or first))


def _user_inside(caller: Caller) -> int | None:
    """The user that ``caller`` is; null if the daemon runs as that one too."""
    if not caller.principal.startswith(_USER):
        return None
    uid = int(caller.principal.removeprefix(_USER))
    return None if uid == os.geteuid() else uid


def _write(call: WriteRequest, result: bytes) -> Write:
    return Write(kind=call.kind, principal=call.principal, op_id=call.op_id, request=call.request, result=result)
