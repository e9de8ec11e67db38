"""A sandbox's connection: JSON-RPC, or one query in CBOR by a tool without JSON-RPC.

The first byte distinguishes them: no text begins with the first byte of a CBOR map.
Query and reply have the form of Bureau's context socket, so that its tools find the current context here.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

import cbor2

from ctxd.errors import CtxdError
from ctxd.rpc.connection import Connection
from ctxd.rpc.listener_state import ListenerContext
from ctxd_protocol.context_types import CurrentContext

_MAPS: Final = range(0xA0, 0xC0)
"""The first bytes of CBOR maps."""

_QUESTION_BYTES_MAX: Final = 1024
"""Maximum bytes of a query, which has only an action."""

_ACTION: Final = "current-context"


class SandboxConnection(Connection):
    """One accepted connection of a sandbox. ``current`` passes the context of the sandbox to its argument."""

    __slots__ = ("_current", "_question", "_timer", "_undecided")

    def __init__(
        self, listener: ListenerContext, current: Callable[[Callable[[CurrentContext | CtxdError], None]], None]
    ) -> None:
        super().__init__(listener)
        self._current = current
        self._undecided = True
        self._question: bytearray | None = None
        self._timer: asyncio.TimerHandle | None = None

    def data_received(self, data: bytes) -> None:
        """Choose the protocol by the first byte."""
        if self._undecided:
            self._undecided = False
            if data[0] in _MAPS and self._transport is not None and not self._ending:
                self._question = bytearray()
                self._timer = self._listener.loop.call_later(self._listener.timing.frame_s, self.abort)
        if self._question is None:
            super().data_received(data)
        else:
            self._ask(self._question, data)

    def connection_lost(self, exc: Exception | None) -> None:
        """See ``Connection.connection_lost``."""
        self._stop_timer()
        super().connection_lost(exc)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _ask(self, question: bytearray, data: bytes) -> None:
        if self._ending:
            return
        question += data
        try:
            asked = cbor2.loads(bytes(question[:_QUESTION_BYTES_MAX]))
        except cbor2.CBORDecodeEOF:
            if len(question) < _QUESTION_BYTES_MAX:
                return
            asked = None
        except (cbor2.CBORDecodeError, RecursionError, OverflowError, MemoryError):
            asked = None
        self._ending = True
        self._stop_timer()
        self._listener.requests += 1
        if isinstance(asked, dict) and asked.get("action") == _ACTION:
            self._current(self._answer)
        else:
            self._reply({"ok": False, "error": f"unknown action: the only action is {_ACTION!r}"})

    def _answer(self, found: CurrentContext | CtxdError) -> None:
        if isinstance(found, CtxdError):
            self._reply({"ok": False, "error": found.message})
        else:
            self._reply({"ok": True, "data": {"context_id": found.context_id or ""}})

    def _reply(self, answer: dict[str, Any]) -> None:
        # The connection may have ended while the context was committed.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(cbor2.dumps(answer))
            self._transport.close()
