"""Operations that move objects among a session's sets: activate, deactivate, pin, unpin, show and hide."""

from collections.abc import Callable
from typing import Any

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed
from ctxd.objects.document import Stored
from ctxd.objects.kinds import is_deleted, is_unread
from ctxd.sessions import transitions
from ctxd.sessions.operation_steps import Operation, OperationGroup, admitted
from ctxd.sessions.segments import SessionDelta
from ctxd.sessions.session import Accepted, LiveSession, Transaction
from ctxd.sessions.state import SessionState
from ctxd_protocol.methods import sessions as session_methods

Decision = Callable[[SessionState, str], SessionDelta]


def _membership(kind: str, decide: Decision) -> Operation:
    """The operation ``kind``, which changes the sets as ``decide`` does. Raises: what ``decide`` raises."""

    @admitted(kind, session_methods.MembershipResult)
    async def body(_: OperationGroup, tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        id = transitions.resolve(tx.live.state, params.session, params.object)
        return _moved(tx, id, decide(tx.live.state, id))

    return body


class MembershipOperations(OperationGroup):
    """Changes of what an object of the index is to its session."""

    @admitted("session.activate", session_methods.MembershipResult)
    async def activate(self, tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        """Make an object active. A file that is unread or was deleted is read in the same write.

        Raises: CtxdError content_unavailable if there is no text to show; file_not_found if the file is gone;
        source_unreachable if it cannot be read now; path_escapes_mount, corrupt.
        """
        live = tx.live
        id = transitions.resolve(live.state, params.session, params.object)
        delta = transitions.activate(live.state, id)
        if not delta or id in live.state.active:
            return _moved(tx, id, delta)
        head = (await self.store.heads((id,)))[id]
        if head is None:
            raise CtxdError("corrupt", f"object {id} is in the index of {live.session} but not in the store")
        visibility = self.sessions.visibility
        hidden = visibility.restricts(live.session) and await visibility.shown(live, head) is None
        if hidden or is_unread(head.document) or is_deleted(head.document):
            indexed = await self._read_for_activation(live, head)
            return _moved(tx, id, delta, **indexed.writes)
        if head.content_ref is None:
            raise _unavailable(head)
        return _moved(tx, id, delta)

    async def _read_for_activation(self, live: LiveSession, known: Stored) -> Indexed:
        """Read a file that is known by name only, or was deleted. The caller writes it before its next await."""
        id = known.document.id
        try:
            indexed = await self.indexer.index_object(live.mounts, id, cause="read", policy=live.settings.secrets)
        except CtxdError as error:
            if is_deleted(known.document) and error.code != "path_escapes_mount":
                raise _unavailable(known) from error
            if error.code == "unsupported":
                raise _without_text(id, error.message) from error
            raise
        head = self.store.peek(id)
        if indexed.document is None:
            if not isinstance(head, Stored) or head.content_ref is None:
                raise _without_text(id, "it has none")
        elif indexed.document.content is None:
            raise _without_text(id, f"the file is {indexed.kind}")
        return indexed

    deactivate = _membership("session.deactivate", transitions.deactivate)
    pin = _membership("session.pin", transitions.pin)
    unpin = _membership("session.unpin", transitions.unpin)
    pool_add = _membership("session.pool_add", transitions.pool_add)
    pool_remove = _membership("session.pool_remove", transitions.pool_remove)


def _moved(tx: Transaction, id: str, delta: SessionDelta, **writes: Any) -> Accepted:  # noqa: ANN401
    """Write a change of membership. The result's ``changed`` is true if the object's level or pin is another."""
    state = tx.live.state
    before = (state.level(id), id in state.pinned)
    after = transitions.outcome(state, id, delta)
    result = session_methods.MembershipResult(
        object=id, level=after[0], pinned=after[1], changed=before != after, receipt=None
    )
    return tx.commit(result, delta, **writes) if delta else tx.unchanged(result)


def _unavailable(head: Stored) -> CtxdError:
    payload = head.document.payload
    why = "it is deleted" if payload.get("deleted") else f"the file is {payload.get('kind', 'not text')}"
    return _without_text(head.document.id, why)


def _without_text(id: str, why: str) -> CtxdError:
    hint = "Its metadata line stays; index the file again once it holds text."
    return CtxdError("content_unavailable", f"{id} has no text: {why}", hint=hint, outcome="not_applied")
