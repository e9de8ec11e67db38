"""Calls about the assembled context."""

from ctxd_client.wire import Call
from ctxd_protocol.context import AssembledContext, CurrentContext
from ctxd_protocol.methods import (
    AssembleParams,
    AssemblyListParams,
    AssemblyListResult,
    ContextCurrentParams,
    PlanParams,
    PlanResult,
    ShowParams,
)


def context_current(
    *,
    session: str | None = None,
) -> Call[CurrentContext]:
    """The context being worked in: of ``session``, of the connection's own, or of the only one there is.

    Example: ``(await client.context_current()).context_id``
    """
    return Call("context.current", ContextCurrentParams(session=session), CurrentContext)


def context_assemble(
    session: str,
    *,
    text: bool = True,
    blocks: bool = True,
) -> Call[AssembledContext]:
    """What the model sees now; the daemon records it.

    Example: ``(await client.context_assemble("s1", blocks=False)).text``
    """
    return Call("context.assemble", AssembleParams(session=session, text=text, blocks=blocks), AssembledContext)


def context_plan(
    session: str,
    *,
    budget_tokens: int | None = None,
) -> Call[PlanResult]:
    """What a token budget would drop, and why. Without ``budget_tokens``, the session's own.

    Example: ``(await client.context_plan("s1", budget_tokens=8_000)).plan.dropped``
    """
    return Call("context.plan", PlanParams(session=session, budget_tokens=budget_tokens), PlanResult)


def context_show(
    session: str,
    *,
    number: int | None = None,
    turn: int | None = None,
    text: bool = True,
    blocks: bool = True,
) -> Call[AssembledContext]:
    """A recorded assembly, byte for byte: by number, by turn, or the newest.

    Example: ``(await client.context_show("s1", turn=3)).text``
    """
    return Call(
        "context.show",
        ShowParams(session=session, number=number, turn=turn, text=text, blocks=blocks),
        AssembledContext,
    )


def context_list(
    session: str,
    *,
    after: int = 0,
    limit: int = 100,
) -> Call[AssemblyListResult]:
    """A session's recorded assemblies, from number ``after`` on.

    Example: ``(await client.context_list("s1")).assemblies``
    """
    return Call("context.list", AssemblyListParams(session=session, after=after, limit=limit), AssemblyListResult)
