"""Small handlers under real method names, for tests of what stands before any handler."""

from typing import Any

import anyio

from ctxd.errors import CtxdError
from ctxd.sessions.live_session import Accepted
from ctxd.store.write_types import Pending
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.methods.chat import SessionAppendResult
from ctxd_protocol.methods.declaration import WriteResult
from ctxd_protocol.methods.sessions import MembershipResult
from ctxd_protocol.object_types import Receipt


class Services:
    """What the handlers below act on; the test opens gates and resolves writes."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []
        self.gate = anyio.Event()
        self.entered = anyio.Event()
        self.cancelled: list[str] = []
        self.pending: list[Pending] = []

    async def current(self, caller: Any, params: Any) -> CurrentContext:
        self.calls.append(("context.current", params))
        return CurrentContext(context_id=None, session=params.session, turn=0, assembly=0)

    async def plan(self, caller: Any, params: Any) -> Any:
        """A read that takes its time."""
        self.calls.append(("context.plan", params))
        self.entered.set()
        try:
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append("context.plan")
            raise
        return CurrentContext(context_id="ctx-00000000", session=params.session, turn=0, assembly=0)

    async def append(self, caller: Any, params: Any, call: Any) -> Accepted:
        """A write whose flush the test decides."""
        pending = Pending(seq=len(self.pending) + 1, vt=0, size=0)
        self.pending.append(pending)
        return Accepted(pending, lambda receipt: SessionAppendResult(turn=1, receipt=receipt))

    async def prompt(self, caller: Any, params: Any, call: Any) -> Accepted:
        """A write that takes its time before it is submitted."""
        self.entered.set()
        try:
            await self.gate.wait()
        except anyio.get_cancelled_exc_class():
            self.cancelled.append("session.set_system_prompt")
            raise
        pending = Pending(seq=len(self.pending) + 1, vt=0, size=0)
        self.pending.append(pending)
        return Accepted(pending, lambda receipt: WriteResult(receipt=receipt))

    async def pin(self, caller: Any, params: Any, call: Any) -> Accepted:
        """Nothing to write."""
        return Accepted(None, lambda receipt: _pinned(params.object, receipt))

    async def chat(self, caller: Any, params: Any) -> Any:
        raise CtxdError("session_not_found", "there is no session x", hint="session.list lists them")

    async def get(self, caller: Any, params: Any) -> Any:
        raise RuntimeError("the password is hunter2")

    def handlers(self) -> dict[str, Any]:
        return {
            "context.current": self.current,
            "context.plan": self.plan,
            "session.append": self.append,
            "session.set_system_prompt": self.prompt,
            "session.chat": self.chat,
            "session.get": self.get,
            "session.pin": self.pin,
        }


RECEIPT = Receipt(seq=1, chain="c", vt=5)
"""What a write is resolved with."""


def _pinned(object_id: str, receipt: Receipt | None) -> MembershipResult:
    return MembershipResult(object=object_id, level="active", pinned=True, changed=False, receipt=receipt)
