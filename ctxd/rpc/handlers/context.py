"""``context.*``: what the model sees, what a budget would leave out, and what it saw before."""

from ctxd.assembly.archive import Archive
from ctxd.assembly.assemble import Assembler
from ctxd.assembly.record import summary
from ctxd.errors import CtxdError
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session import Accepted, WriteRequest
from ctxd_protocol.context import CurrentContext
from ctxd_protocol.methods.context import (
    AssembleParams,
    AssemblyListParams,
    AssemblyListResult,
    ContextCurrentParams,
    PlanParams,
    PlanResult,
    ShowParams,
)


def handlers(sessions: Sessions, assembler: Assembler, archive: Archive) -> dict[str, Handler]:
    """Method name to handler. Answers that show a session wait until what they show is durable."""

    async def current(caller: Caller, params: ContextCurrentParams) -> CurrentContext:
        return sessions.current(caller.session if params.session is None else params.session)

    async def assemble(caller: Caller, params: AssembleParams, call: WriteRequest) -> Accepted:
        assembled = await assembler.assemble(
            await sessions.live(params.session), call, chars_max=caller.answer_bytes_max
        )
        return Accepted(
            assembled.barrier, lambda receipt: assembled.encoded(receipt, text=params.text, blocks=params.blocks)
        )

    async def plan(caller: Caller, params: PlanParams) -> Accepted:
        live = await sessions.live(params.session)
        made, barrier = await assembler.plan(
            live,
            live.settings.budget_tokens if params.budget_tokens is None else params.budget_tokens,
            chars_max=caller.answer_bytes_max,
        )
        return Accepted(barrier, lambda _: PlanResult(plan=made))

    async def show(caller: Caller, params: ShowParams) -> Accepted:
        if params.number is not None and params.turn is not None:
            raise CtxdError("invalid_params", "give number or turn, not both")
        shown = await archive.show(
            params.session, number=params.number, turn=params.turn, bytes_max=caller.answer_bytes_max
        )
        return Accepted(None, lambda _: shown.encoded(text=params.text, blocks=params.blocks))

    async def list_(caller: Caller, params: AssemblyListParams) -> AssemblyListResult:
        found = await archive.records(params.session, after=params.after, limit=params.limit)
        more = len(found) == params.limit
        return AssemblyListResult(assemblies=tuple(map(summary, found)), next_after=found[-1].number if more else None)

    return {
        "context.current": current,
        "context.assemble": assemble,
        "context.plan": plan,
        "context.show": show,
        "context.list": list_,
    }
