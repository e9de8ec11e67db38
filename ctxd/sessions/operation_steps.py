"""Admission of operations: the steps that every write on a session shares.

An operation takes the actor and the params of the method of the same name, and returns an ``Accepted``: the result once
the write is durable. ``admitted`` loads the session, queues for its lock, answers a request that comes again, and
refuses one that the session's state does not allow. The bodies decide and write; between a decision and its write
nothing awaits.
"""

from collections.abc import Callable, Coroutine, Sequence
from functools import wraps
from typing import Any, TypeVar

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.sessions.reconciliation import until_durable
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import Accepted, Actor, Ticket, Transaction, WriteRequest, again, write_request
from ctxd.store.write_types import Replay
from ctxd_protocol.session_types import SessionStatus

G = TypeVar("G", bound="OperationGroup")
P = TypeVar("P", bound=msgspec.Struct)
Operation = Callable[..., Coroutine[Any, Any, Accepted]]
"""``(actor, params, request=None)``; without a request one is made of the params."""


class OperationGroup:
    """Base of the operations on one topic, over one store's sessions."""

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

    ``result``: the type that a kept result decodes to, or a function that answers a request that comes again.
    ``states``: those of a session that takes the operation. ``heads``: ids to have cached.
    The operation raises: CtxdError session_not_found, session_closed, session_removed, session_not_active,
    idempotency_mismatch, those of the body, and those of the store. Cancel: safe until the body wrote.
    """

    def decorate(body: Callable[[G, Transaction, P], Coroutine[Any, Any, Accepted]]) -> Operation:
        @wraps(body)
        async def operation(
            self: G,
            actor: Actor,
            params: Any,  # noqa: ANN401 - the method's own struct
            request: WriteRequest | None = None,
        ) -> Accepted:
            request = request or write_request(kind, actor.principal, params)
            if getattr(params, "valid_time", None) is not None:
                _require_datable(self.sessions, actor, params.valid_time)
            live = await self.sessions.live(params.session)
            with Ticket(live.lock.queue) as ticket:
                replay = await live.admit(ticket, request, heads=heads(params), states=states)
                if replay is not None:
                    if isinstance(result, type):
                        return again(replay, result)
                    return await result(self, params.session, replay)
                guard = self.sessions.guard
                # Tags of a sandbox's texts are its own: see ``Guard.by``.
                confined = actor.capability != "host"
                tx = Transaction(live, request, confined, guard.by(live.session) if confined else guard, actor)
                accepted = await body(self, tx, params)
            if tx.basis:
                # Outside the lock: the version may be another session's, and none has to wait for it here.
                await until_durable(self.store, tx.basis)
            return accepted

        return operation

    return decorate


def _require_datable(sessions: Sessions, actor: Actor, valid_time: int) -> None:
    """Raises: CtxdError invalid_params unless ``actor`` may write at ``valid_time``."""
    if actor.capability != "host":
        message = "valid_time is for the host's own connections: a sandbox records what is so now"
        raise CtxdError("invalid_params", message, hint="Leave valid_time out.", outcome="not_applied")
    sessions.store.require_past((valid_time,))
