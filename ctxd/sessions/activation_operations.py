"""Operations that move objects among a session's sets: activate, deactivate, pin, unpin, pool_add and pool_remove."""

from collections.abc import Callable
from typing import Any

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed
from ctxd.objects.document import Stored
from ctxd.objects.version_state import is_deleted, is_unread
from ctxd.sessions import id_resolution
from ctxd.sessions.live_session import Accepted, LiveSession, Transaction
from ctxd.sessions.operation_admission import Operation, OperationGroup, admitted
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.stored_session import (
    NOTHING,
    ActivateObjects,
    DeactivateObjects,
    HideObjects,
    PinObjects,
    SessionDelta,
    ShowObjects,
    UnpinObjects,
)
from ctxd_protocol.methods import sessions as session_methods
from ctxd_protocol.session_types import ContextLevel

Decision = Callable[[SessionState, str], SessionDelta]


def _membership(kind: str, decide: Decision) -> Operation:
    """Return the operation ``kind``, which makes the change that ``decide`` returns. It raises the errors of
    ``decide``."""

    @admitted(kind, session_methods.MembershipResult)
    async def body(_: OperationGroup, tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        id = id_resolution.resolve(tx.live.state, params.session, params.object, ancestors=tx.live.lineage.ancestors)
        return _change_membership(tx, id, decide(tx.live.state, id))

    return body


def activate_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that makes ``id`` active by request, even if it is active because it was read: a tool call
    then counts as recent from this turn on. An object outside the pool is added to it."""
    if id in state.active and id in state.chosen and (state.is_file(id) or state.chosen[id] == state.turn):
        return NOTHING
    return (ActivateObjects((id,)),)


def deactivate_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that makes ``id`` inactive. Raises: CtxdError not_active."""
    if id not in state.active:
        hint = 'object.list with {"level": "active"} lists active objects.'
        raise CtxdError("not_active", f"{id} is not active", hint=hint)
    return (DeactivateObjects((id,)),)


def pin_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that exempts ``id`` from auto-collapse and the token budget. Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return NOTHING if id in state.pinned else (PinObjects((id,)),)


def unpin_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that unpins ``id``. Raises: CtxdError not_pinned."""
    if id not in state.pinned:
        raise CtxdError("not_pinned", f"{id} is not pinned", hint="session.get lists pinned objects.")
    return (UnpinObjects((id,)),)


def show_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that adds ``id`` to the pool."""
    return NOTHING if id in state.pool else (ShowObjects((id,)),)


def hide_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change that removes ``id`` from pool, active and pinned; it stays in the index.
    Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return (HideObjects((id,)),)


def outcome(state: SessionState, id: str, delta: SessionDelta) -> tuple[ContextLevel, bool]:
    """Return the level of ``id`` and whether it is pinned, after ``delta``, which changes ``id`` alone."""
    level, pinned = state.level(id), id in state.pinned
    for operation in delta:
        match operation:
            case ActivateObjects():
                level = "active"
            case DeactivateObjects() | ShowObjects():
                level = "inactive"
            case HideObjects():
                level, pinned = "indexed", False
            case PinObjects() | UnpinObjects():
                pinned = isinstance(operation, PinObjects)
    return level, pinned


def _not_in_pool(id: str) -> CtxdError:
    return CtxdError("not_in_pool", f"{id} is not in the metadata pool", hint="Add it with session.pool_add first.")


class ActivationOperations(OperationGroup):
    """Operations that change the level or the pin of an indexed object."""

    @admitted("session.activate", session_methods.MembershipResult)
    async def activate(self, tx: Transaction, params: session_methods.MembershipParams) -> Accepted:
        """Make an object active. A file that is unread or was deleted is read in the same write.

        Raises: CtxdError content_unavailable if there is no text to show; file_not_found if the file is gone;
        source_unreachable if it cannot be read now; path_escapes_mount, corrupt.
        """
        live = tx.live
        id = id_resolution.resolve(live.state, params.session, params.object, ancestors=live.lineage.ancestors)
        delta = activate_delta(live.state, id)
        if not delta or id in live.state.active:
            return _change_membership(tx, id, delta)
        head = (await self.store.heads((id,)))[id]
        if head is None:
            raise CtxdError("corrupt", f"object {id} is in the index of {live.session} but not in the store")
        visibility = self.sessions.visibility
        hidden = visibility.restricts(live.session) and await visibility.shown(live, head) is None
        if hidden or is_unread(head.document) or is_deleted(head.document):
            indexed = await self._read_for_activation(live, head)
            return _change_membership(tx, id, delta, **indexed.writes)
        if head.content_ref is None:
            raise _unavailable(head)
        return _change_membership(tx, id, delta)

    async def _read_for_activation(self, live: LiveSession, known: Stored) -> Indexed:
        """Read a file that is unread or was deleted. The caller writes the result before its next await."""
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

    deactivate = _membership("session.deactivate", deactivate_delta)
    pin = _membership("session.pin", pin_delta)
    unpin = _membership("session.unpin", unpin_delta)
    pool_add = _membership("session.pool_add", show_delta)
    pool_remove = _membership("session.pool_remove", hide_delta)


def _change_membership(tx: Transaction, id: str, delta: SessionDelta, **writes: Any) -> Accepted:  # noqa: ANN401
    """Write a change of membership. The result's ``changed`` is true if the object's level or pin differs."""
    state = tx.live.state
    before = (state.level(id), id in state.pinned)
    after = outcome(state, id, delta)
    result = session_methods.MembershipResult(
        object=id, level=after[0], pinned=after[1], changed=before != after, receipt=None
    )
    return tx.submit(result, delta, **writes) if delta else tx.unchanged(result)


def _unavailable(head: Stored) -> CtxdError:
    payload = head.document.payload
    why = "it is deleted" if payload.get("deleted") else f"the file is {payload.get('kind', 'not text')}"
    return _without_text(head.document.id, why)


def _without_text(id: str, why: str) -> CtxdError:
    hint = "Its metadata line stays; index the file again once it holds text."
    return CtxdError("content_unavailable", f"{id} has no text: {why}", hint=hint, outcome="not_applied")
