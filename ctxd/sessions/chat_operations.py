"""Operations on the text of a conversation: append to the chat, replace the system prompt.

Separate from ``ctxd.sessions.chat``: that reads the chat, also for parts that write nothing.
"""

from ctxd.objects.document import AsOf, system_prompt
from ctxd.secrets.guard import Capture
from ctxd.sessions import transitions
from ctxd.sessions.operation_steps import OperationGroup, admitted
from ctxd.sessions.session import Accepted, Transaction
from ctxd.sessions.text_capture import captured, off_loop
from ctxd_protocol.event_types import starts_turn
from ctxd_protocol.ids import system_prompt_id
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
