"""Operations on the entries of a session's system context: set and delete them, within bounds."""

from typing import Any

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document, document_without_source
from ctxd.objects.generated_ids import entry_id
from ctxd.objects.hashing import canonical
from ctxd.secrets.redaction import Capture
from ctxd.sessions.live_session import Accepted, Transaction
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.secret_redaction import off_loop
from ctxd_protocol.limits import ENTRIES_MAX, ENTRY_BYTES_MAX
from ctxd_protocol.methods import epochs as epoch_methods
from ctxd_protocol.methods.declaration import WriteResult


class EntryOperations(OperationGroup):
    """Writes of entries, which are components of the system context."""

    @admitted("session.set_entry", WriteResult)
    async def set_entry(self, tx: Transaction, params: epoch_methods.EntrySetParams) -> Accepted:
        """Set an entry of the system context. Raises: CtxdError too_large, invalid_params."""
        size, capture = len(msgspec.json.encode(params.value)), Capture(tx.guard, tx.live.settings.secrets)
        if size > ENTRY_BYTES_MAX:
            hint = "Put long text into a file that the agent reads."
            message = f"the value has {size:,} bytes of JSON; the maximum is {ENTRY_BYTES_MAX:,}"
            raise CtxdError("too_large", message, hint=hint, outcome="not_applied")
        value = await off_loop(size, lambda: _entry_text(capture.value(params.value)), sandbox=tx.sandbox)
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
        """Write ``value``, None for a tombstone, and ``entries``, the keys that are set afterwards."""
        live, document, result = tx.live, _entry_document(tx.live.session, key, value), WriteResult(receipt=None)
        head = (await self.store.heads((document.id,)))[document.id]
        is_same = head is not None and head.document.content_hash == document.content_hash
        if entries == live.settings.entries and (is_same or value is None):
            return tx.unchanged(result)
        settings = msgspec.structs.replace(live.settings, entries=entries)
        floor_vt = 0 if head is None else head.valid_time + 1
        return tx.submit(result, puts=(document,), floor_vt=floor_vt, settings=settings)


def _entry_text(value: Any) -> str:  # noqa: ANN401 - for any JSON value
    """The canonical JSON of the value of an entry. Raises: CtxdError invalid_params."""
    try:
        return canonical(value).decode()
    except ValueError as error:
        raise CtxdError("invalid_params", f"value: {error}", outcome="not_applied") from error


def _entry_document(session: str, key: str, value: str | None) -> Document:
    """The document of an entry. ``value``: its canonical JSON, None for a tombstone."""
    payload: dict[str, Any] = {"key": key} if value is not None else {"key": key, "deleted": True}
    return document_without_source(entry_id(session, key), "session_entry", payload, value)
