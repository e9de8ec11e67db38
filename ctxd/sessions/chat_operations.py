"""Operations on the text of a conversation: append to the chat, replace the system prompt, set and delete entries.

Separate from ``ctxd.sessions.chat``: that reads the chat, also for parts that write nothing.
"""

from typing import Any

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Document, system_prompt
from ctxd.objects.generated_ids import entry_id
from ctxd.objects.hashing import canonical, content_hash, identity_hash
from ctxd.secrets.guard import Capture
from ctxd.sessions import transitions
from ctxd.sessions.operation_steps import OperationGroup, admitted
from ctxd.sessions.secret_capture import captured, off_loop
from ctxd.sessions.session import Accepted, Transaction
from ctxd_protocol.event_types import starts_turn
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.limits import ENTRIES_MAX, ENTRY_BYTES_MAX
from ctxd_protocol.methods import epochs as epoch_methods
from ctxd_protocol.methods import sessions as session_methods
from ctxd_protocol.methods.declaration import WriteResult


class ChatOperations(OperationGroup):
    """Writes of the chat and of the system prompt."""

    @admitted("session.append", session_methods.SessionAppendResult)
    async def append(self, tx: Transaction, params: session_methods.SessionAppendParams) -> Accepted:
        """Append messages or events to the chat; each user message or prompt starts a turn."""
        live = tx.live
        events = transitions.events_from(params.messages, params.events)
        events = await captured(tx.guard, live.settings.secrets, events, confined=tx.confined)
        delta = transitions.append(live.state, params.session, events, live.settings.collapse)
        turn = live.state.turn + sum(map(starts_turn, events))
        return tx.commit(session_methods.SessionAppendResult(turn=turn, receipt=None), delta)

    @admitted("session.set_system_prompt", WriteResult)
    async def set_system_prompt(self, tx: Transaction, params: session_methods.SystemPromptParams) -> Accepted:
        """Replace the system prompt."""
        live, id = tx.live, system_prompt_id(params.session)
        head = await self.store.get(id, AsOf.given(params.valid_time, None))
        capture = Capture(tx.guard, live.settings.secrets)
        content = await off_loop(len(params.content), lambda: capture.text(params.content), confined=tx.confined)
        document = await self.store.keep(system_prompt(params.session, content, capture.secrets))
        result = WriteResult(receipt=None)
        if head is not None and head.document.content_hash == document.content_hash:
            return tx.unchanged(result)
        floor_vt = 0 if head is None else head.valid_time + 1
        return tx.commit(result, puts=(document,), floor_vt=floor_vt, valid_time=params.valid_time)

    @admitted("session.set_entry", WriteResult)
    async def set_entry(self, tx: Transaction, params: epoch_methods.EntrySetParams) -> Accepted:
        """Set an entry of the system context. Raises: CtxdError too_large, invalid_params."""
        size, capture = len(msgspec.json.encode(params.value)), Capture(tx.guard, tx.live.settings.secrets)
        if size > ENTRY_BYTES_MAX:
            hint = "Put long text into a file that the agent reads."
            message = f"the value has {size:,} bytes of JSON, {ENTRY_BYTES_MAX:,} are possible"
            raise CtxdError("too_large", message, hint=hint, outcome="not_applied")
        value = await off_loop(size, lambda: _entry_text(capture.value(params.value)), confined=tx.confined)
        entries = tx.live.settings.entries
        if params.key not in entries and len(entries) >= ENTRIES_MAX:
            hint = "Delete entries that no longer apply: session.delete_entry."
            message = f"session {params.session} has {ENTRIES_MAX} entries, the most possible"
            raise CtxdError("too_large", message, hint=hint, outcome="not_applied")
        return await self._put_entry(tx, params.key, value, tuple(dict.fromkeys((*entries, params.key))))

    @admitted("session.delete_entry", WriteResult)
    async def delete_entry(self, tx: Transaction, params: epoch_methods.EntryDeleteParams) -> Accepted:
        """Delete an entry, if it is set."""
        left = tuple(key for key in tx.live.settings.entries if key != params.key)
        return await self._put_entry(tx, params.key, None, left)

    async def _put_entry(self, tx: Transaction, key: str, value: str | None, entries: tuple[str, ...]) -> Accepted:
        """Write ``value``, None for a tombstone, with the keys that are set then."""
        live, document, result = tx.live, _entry_document(tx.live.session, key, value), WriteResult(receipt=None)
        head = (await self.store.heads((document.id,)))[document.id]
        is_same = head is not None and head.document.content_hash == document.content_hash
        if entries == live.settings.entries and (is_same or value is None):
            return tx.unchanged(result)
        settings = msgspec.structs.replace(live.settings, entries=entries)
        floor_vt = 0 if head is None else head.valid_time + 1
        return tx.commit(result, puts=(document,), floor_vt=floor_vt, settings=settings)


def _entry_text(value: Any) -> str:  # noqa: ANN401 - any JSON value is what it is for
    """The canonical JSON of the value of an entry. Raises: CtxdError invalid_params."""
    try:
        return canonical(value).decode()
    except ValueError as error:
        raise CtxdError("invalid_params", f"value: {error}", outcome="not_applied") from error


def _entry_document(session: str, key: str, value: str | None) -> Document:
    """The document of an entry. ``value``: its canonical JSON, None for a tombstone."""
    id = entry_id(session, key)
    payload: dict[str, Any] = {"key": key} if value is not None else {"key": key, "deleted": True}
    return Document(
        id=id,
        type="session_entry",
        identity_hash=identity_hash("session_entry", None, id),
        content_hash=content_hash(payload, value),
        payload=payload,
        content=value,
    )
