"""What ``context.*`` takes and answers."""

from typing import Annotated

import msgspec

from ctxd_protocol.context import AssemblyRecord, BudgetPlan
from ctxd_protocol.ids import SessionIdText
from ctxd_protocol.methods.parts import PageSize, Params, Result


class ContextCurrentParams(Params, frozen=True, kw_only=True):
    """``session`` null: the connection's own session, or the only one there is."""

    session: SessionIdText | None = None


class AssembleParams(Params, frozen=True, kw_only=True):
    """Whose context, and whether the answer carries its text and its blocks."""

    session: SessionIdText
    text: bool = True
    blocks: bool = True


class PlanParams(Params, frozen=True, kw_only=True):
    """A budget to plan for; null takes the session's own."""

    session: SessionIdText
    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class PlanResult(Result, frozen=True, kw_only=True):
    """The plan; nothing was changed."""

    plan: BudgetPlan


class ShowParams(Params, frozen=True, kw_only=True):
    """Exactly one of ``number`` (an assembly) and ``turn`` (its newest assembly); both null: the newest."""

    session: SessionIdText
    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    text: bool = True
    blocks: bool = True


class AssemblyListParams(Params, frozen=True, kw_only=True):
    """Records with a number beyond ``after``."""

    session: SessionIdText
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100


class AssemblyListResult(Result, frozen=True, kw_only=True):
    """Records in order; ``next_after`` null at the end."""

    assemblies: tuple[AssemblyRecord, ...]
    next_after: int | None
