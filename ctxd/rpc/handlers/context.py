"""Handlers of ``context.*``: the assembled context, budget plans, and recorded assemblies."""

from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any

import msgspec

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.assembly_record import Assembled, summary
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.request_bodies import spec_request
from ctxd.assembly.request_target import RequestTarget, Wanted, WantedSpec, target_for
from ctxd.assembly.window_explanation import explain
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.sessions.id_resolution import resolve
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import declarations_captured
from ctxd_protocol.context_types import AssemblyRecord, CurrentContext
from ctxd_protocol.methods.context import (
    AssembleParams,
    AssemblyListParams,
    AssemblyListResult,
    ContextCurrentParams,
    PlanParams,
    PlanResult,
    ShowParams,
    WhyParams,
)


class ContextCalls:
    """Handlers of ``context.*``. A result that shows a state is sent once that state is durable."""

    def __init__(
        self, sessions: Sessions, assembler: Assembler, archive: Archive, checkpoints: SessionCheckpoints
    ) -> None:
        self._sessions = sessions
        self._checkpoints = checkpoints
        self._assembler = assembler
        self._archive = archive

    def context_current(
        self, caller: Caller, params: ContextCurrentParams
    ) -> CurrentContext | Coroutine[Any, Any, CurrentContext]:
        return self._checkpoints.current(caller.session if params.session is None else params.session)

    async def _seen_by(self, caller: Caller, session: str, assembled: Assembled) -> Assembled:
        """``assembled`` for ``caller``: a sandbox gets no times from before it first saw a file."""
        if not caller.is_confined:
            return assembled
        live = await self._sessions.live(session)
        blocks = await self._sessions.visibility.dated(live, assembled.context.blocks)
        return assembled if blocks is assembled.context.blocks else assembled.with_blocks(blocks)

    async def context_assemble(self, caller: Caller, params: AssembleParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        format = None if params.format == "blocks" or params.format == "text" else params.format
        wanted = Wanted(format, params.model, params.max_tokens)
        if params.tools:
            guard = self._sessions.guard.by(live.session) if caller.is_confined else self._sessions.guard
            tools, secrets = await declarations_captured(
                guard, live.settings.secrets, params.tools, sandbox=caller.principal if caller.is_confined else None
            )
            wanted = msgspec.structs.replace(wanted, tools=tools, secrets=secrets)
            # It may have been unloaded during the scan.
            live = await self._sessions.live(params.session)
        layout = params.layout or ("spec" if format is None else "append")
        target: RequestTarget | None = None
        form: WantedSpec | Wanted = wanted
        if layout == "spec":
            root = live.lineage.root
            target = None if format is None else target_for(root, wanted, None, self._archive.models)
            form = WantedSpec(target, wanted.secrets)
        assemble = self._assembler.dry_run if params.dry_run else self._assembler.assemble
        assembled = await assemble(live, call, form, chars_max=caller.reply_bytes_max)
        assembled = await self._seen_by(caller, params.session, assembled)
        if target is not None:
            assembled = assembled.with_request(spec_request(assembled.context.blocks, target).body)
        text = params.text if params.format is None else params.format == "text"
        blocks = params.blocks if params.format is None else params.format == "blocks"
        return Accepted(assembled.pending, lambda receipt: assembled.encoded(receipt, text=text, blocks=blocks))

    async def context_plan(self, caller: Caller, params: PlanParams) -> Accepted:
        live = await self._sessions.live(params.session)
        made, barrier = await self._assembler.plan(
            live,
            live.settings.budget_tokens if params.budget_tokens is None else params.budget_tokens,
            chars_max=caller.reply_bytes_max,
        )
        return Accepted(barrier, lambda _: PlanResult(plan=made))

    async def context_show(self, caller: Caller, params: ShowParams) -> Accepted:
        if sum(given is not None for given in (params.number, params.turn, params.at)) > 1:
            raise CtxdError("invalid_params", "give one of number, turn and at, or none")
        bytes_max = caller.reply_bytes_max
        shown = await self._archive.show(
            params.session, number=params.number, turn=params.turn, at=params.at, bytes_max=bytes_max,
            confined=caller.is_confined,
        )  # fmt: skip
        shown = await self._seen_by(caller, params.session, shown)
        return Accepted(None, lambda _: shown.encoded(text=params.text, blocks=params.blocks))

    async def context_why(self, caller: Caller, params: WhyParams) -> Accepted:
        live = await self._sessions.live(params.session)
        id = resolve(live.state, params.session, params.object, ancestors=live.lineage.ancestors)
        if caller.is_confined and await self._sessions.visibility.hidden(live, [id]):
            message = f"no object {params.object} in the index of session {params.session}"
            raise CtxdError("not_in_index", message, hint="Give an id from object.list.")
        found = await explain(live, id, self._archive)
        return Accepted(live.barrier, lambda _: found)

    async def context_list(self, caller: Caller, params: AssemblyListParams) -> AssemblyListResult:
        found: list[AssemblyRecord] = []
        if params.context_id is not None:
            record = await self._archive.with_id(params.session, params.context_id)
            return AssemblyListResult(assemblies=() if record is None else (summary(record),), next_after=None)
        if params.session is None:
            message = "context.list without a session requires a context id"
            raise CtxdError("invalid_params", message, hint="Give session or context_id.")
        async with aclosing(self._archive.pages(params.session, after=params.after, limit=params.limit)) as pages:
            async for page in pages:
                found += map(summary, page)
        more = len(found) == params.limit
        return AssemblyListResult(assemblies=tuple(found), next_after=found[-1].number if more else None)
