"""Methods ``context.*``: the assembled context, current and recorded."""

from typing import Annotated, Final

import msgspec

from ctxd_protocol.context_types import (
    AssembledContext,
    AssemblyRecord,
    BudgetPlan,
    ContextFormat,
    CurrentContext,
    Layout,
    ShownAs,
    ToolDeclaration,
    WhyRule,
)
from ctxd_protocol.ids import ObjectIdText, OpIdText, SessionIdText
from ctxd_protocol.methods.declaration import (
    ACTIVE_ERRORS,
    SESSION_ERRORS,
    Method,
    Milliseconds,
    PageSize,
    Params,
    Result,
    SessionParams,
)
from ctxd_protocol.session_types import ContextLevel


class ContextCurrentParams(Params, frozen=True, kw_only=True):
    """A session; without ``session`` the connection's own, or the only existing one."""

    session: SessionIdText | None = None


class AssembleParams(SessionParams, frozen=True, kw_only=True):
    """A session, and the form of the result.

    ``format``: exactly one form; without it, ``text`` and ``blocks`` choose. ``layout``: by default ``append`` for a
    request body and ``spec`` for blocks and text. ``model``, ``max_tokens`` and ``tools`` are members of the request
    body; by default it is for the model of the last response (``spec`` requires ``model``), and declares no tools.
    ``dry_run``: nothing is recorded and no epoch begins; a context other than the last recorded one has ``number`` 0
    and no ``context_id``.
    """

    text: bool = True
    blocks: bool = True
    op_id: OpIdText | None = None
    format: ContextFormat | None = None
    layout: Layout | None = None
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    max_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None
    tools: Annotated[tuple[ToolDeclaration, ...], msgspec.Meta(max_length=512)] = ()
    dry_run: bool = False


class PlanParams(SessionParams, frozen=True, kw_only=True):
    """A session and a budget, by default the session's own."""

    budget_tokens: Annotated[int, msgspec.Meta(ge=1)] | None = None


class PlanResult(Result, frozen=True, kw_only=True):
    """The plan; nothing is changed."""

    plan: BudgetPlan


class ShowParams(SessionParams, frozen=True, kw_only=True):
    """A recorded assembly.

    It is given by ``number``; or by ``turn``, as the turn's newest request or, without requests, its newest assembly;
    or by ``at``, in ms since 1970, as that of the newest turn assembled by then. By default it is the newest of all.
    """

    number: Annotated[int, msgspec.Meta(ge=1)] | None = None
    turn: Annotated[int, msgspec.Meta(ge=0)] | None = None
    text: bool = True
    blocks: bool = True
    at: Milliseconds | None = None


class WhyParams(SessionParams, frozen=True, kw_only=True):
    """An object of a session: a full id, or a unique prefix of at least 8 characters of an id in its index."""

    object: ObjectIdText


class WhySince(msgspec.Struct, frozen=True, kw_only=True):
    """An assembly: its number, its context, its turn, and its time in ms since 1970."""

    number: int
    context_id: str
    turn: int
    assembled_at: int


class WhyResult(Result, frozen=True, kw_only=True):
    """Presence of an object in the session's newest request or, without requests, in its newest assembly.

    ``shown``: the part of the object that is included, and ``rule`` the reason; ``detail``: additional information, if
    any. ``since``: the first assembly that showed the object in this way, None if no assembly did, and for purged
    content. ``layout``: that of the assembly. ``level`` and ``pinned`` are current.
    """

    session: str
    object: str
    shown: ShownAs
    rule: WhyRule
    detail: str | None
    since: WhySince | None
    layout: Layout
    level: ContextLevel
    pinned: bool


class AssemblyListParams(Params, frozen=True, kw_only=True):
    """A session; only records with a number above ``after`` are returned, or only the one with ``context_id``. Without
    ``session``, the one with ``context_id`` is looked for in all sessions."""

    session: SessionIdText | None = None
    after: Annotated[int, msgspec.Meta(ge=0)] = 0
    limit: PageSize = 100
    context_id: Annotated[str, msgspec.Meta(max_length=128)] | None = None


class AssemblyListResult(Result, frozen=True, kw_only=True):
    """Records in order; no ``next_after`` at the end."""

    assemblies: tuple[AssemblyRecord, ...]
    next_after: int | None


ROWS: Final = (
    Method(
        name="context.current",
        params=ContextCurrentParams,
        result=CurrentContext,
        access="observe",
        handle="current",
        summary="Get the id of the context that the agent works in: a commit.",
        description="New events of the session are committed first; if there are none, nothing is written.",
        errors=("session_not_found",),
        example={"session": "s1"},
        shows=".context_id",
    ),
    Method(
        name="context.assemble",
        params=AssembleParams,
        result=AssembledContext,
        access="assemble",
        writes=True,
        handle="assemble",
        summary="Assemble what the model sees now, and record it unless it is a dry run.",
        errors=(*ACTIVE_ERRORS, "source_unreachable", "purged"),
        example={"session": "s1", "blocks": False},
        shows=".text",
    ),
    Method(
        name="context.plan",
        params=PlanParams,
        result=PlanResult,
        access="read",
        handle="plan",
        summary="Compute what a token budget would drop, and why.",
        errors=SESSION_ERRORS,
        example={"session": "s1", "budget_tokens": 8000},
        shows=".plan.dropped",
    ),
    Method(
        name="context.show",
        params=ShowParams,
        result=AssembledContext,
        access="read",
        handle="show",
        summary="Get a recorded assembly, byte for byte.",
        errors=("session_not_found", "assembly_not_found", "purged"),
        example={"session": "s1", "number": 1},
        shows=".text",
    ),
    Method(
        name="context.why",
        params=WhyParams,
        result=WhyResult,
        access="read",
        handle="why",
        summary="Explain how the window shows an object, since when, and by which rule.",
        errors=(*SESSION_ERRORS, "not_in_index", "ambiguous_id", "infrastructure_object"),
        example={"session": "s1", "object": "call_1"},
        shows=".rule",
        positional=("object",),
    ),
    Method(
        name="context.list",
        params=AssemblyListParams,
        result=AssemblyListResult,
        access="read",
        handle="assemblies",
        summary="List a session's recorded assemblies; without a session, find one by its id.",
        positional=("session",),
        errors=("session_not_found",),
        example={"session": "s1"},
        shows=".assemblies",
    ),
)
