"""Admission of operations: the steps that all writes to a session share.

An operation takes the actor and the params of the method of the same name, and returns an ``Accepted``, whose result
may be sent once the write is durable. ``admitted`` loads the session, queues for its lock, returns the stored reply to
a resend, and refuses a request that the session's state does not allow. The bodies decide and write, without an await
between the decision and its write.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, TypeVar

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.sessions.live_session import Accepted, Actor, Ticket, Transaction, WriteRequest, again, write_request
from ctxd.sessions.reconciliation import until_durable
from ctxd.sessions.registry import Sessions
from ctxd.store.write_types import Replay
from ctxd_protocol.session_types import SessionStatus

G = TypeVar("G", bound="OperationGroup")
P = TypeVar("P", bound=msgspec.Struct)
Operation = Callable[..., Coroutine[Any, Any, Accepted]]
"""``(actor, params, request=None, *, also_paused=False)``; by default the request is built from the params.
``also_paused``: the operation is allowed in a paused session too, which stays paused."""


class OperationGroup:
    """Base class of the operations on one topic, for the sessions of one store."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self.sessions = sessions
        self.store = sessions.store
        self.indexer = indexer


def admitted(
    kind: str,
    result: type[msgspec.Struct] | Callable[[G, str, Replay], Coroutine[Any, Any, Accepted]],
    *,
    states: Sequence[SessionStatus] = ("active",),
    heads: Callable[[Any], Sequence[str]] = lambda params: (),
) -> Callable[[Callable[[G, Transaction, P], Coroutine[Any, Any, Accepted]]], Operation]:
    """Decorate the body of the operation ``kind`` on the session that its params name.

    ``result``: the type of the stored result, or a function that builds the reply to a resend.
    ``states``: the session states in which the operation is allowed. ``heads`` returns ids whose heads the body needs
    in the cache.
    The operation raises: CtxdError session_not_found, session_closed, session_removed, session_not_active,
    idempotency_mismatch, those of the body, and those of the store. Cancel: safe until the body has written.
    """

    def decorate(body: Callable[[G, Transaction, P], Coroutine[Any, Any, Accepted]]) -> Operation:
        @wraps(body)
        async def operation(
            self: G,
            actor: Actor,
            params: Any,  # noqa: ANN401 - the method's own struct
            request: WriteRequest | None = None,
            *,
            also_paused: bool = False,
        ) -> Accepted:
            request = request or write_request(kind, actor.principal, params)
            allowed = (*states, "paused") if also_paused else states
            if getattr(params, "valid_time", None) is not None:
                require_may_backdate(actor)
                self.sessions.store.require_past((params.valid_time,))
            live = await self.sessions.live(params.session)
            with Ticket(live.lock.queue) as ticket:
                replay = await live.admit(ticket, request, heads=heads(params), states=allowed)
                if replay is not None:
                    if isinstance(result, type):
                        return again(replay, result)
                    return await result(self, params.session, replay)
                guard, sandbox = self.sessions.guard, None
                # Secrets in a sandbox's texts get tags of its own: see ``Guard.by``.
                # ``is_confined`` inlined: this runs for every write.
                if is_confined := actor.capability != "host":
                    guard, sandbox = guard.by(live.session), actor.principal
                tx = Transaction(live, request, is_confined, guard, actor, sandbox)
                accepted = await body(self, tx, params)
            if tx.basis:
                # Outside the lock: the version may be another session's, and no other call here needs to wait for it.
                await until_durable(self.store, tx.basis)
            return accepted

        return operation

    return decorate


def require_may_backdate(actor: Actor) -> None:
    """Raises: CtxdError invalid_params for a sandbox, which cannot choose the time of a write."""
    if actor.is_confined:
        message = "valid_time is only allowed on host connections; a sandbox cannot set it"
        raise CtxdError("invalid_params", message, hint="Omit valid_time.", outcome="not_applied")
