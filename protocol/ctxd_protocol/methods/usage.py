"""Methods ``session.usage*``: the tokens that providers billed for a session's requests."""

from typing import Annotated, Any, Final

import msgspec

from ctxd_protocol.ids import OpIdText
from ctxd_protocol.methods.declaration import SESSION_ERRORS, Method, Milliseconds, Result, SessionParams
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.usage_types import RequestUsage, UsageSum


class UsageParams(SessionParams, frozen=True, kw_only=True):
    """A session, and the tokens that a provider billed for one of its requests.

    ``usage`` is the provider's unchanged object: ``usage`` of Anthropic Messages, of OpenAI Responses or of OpenAI Chat
    Completions, whose further members are kept; or the members ``input`` (without cached tokens), ``cache_read``,
    ``cache_write`` (a number, or tokens by the cache's lifetime in seconds), ``output`` and ``reasoning``, and no
    others. ``context_id``: that of the request's assembly; by default, of the newest one with a request format among
    the newest 128 or, without one, of the newest assembly. ``model``: the provider's name of it, by default that of the
    model for which the request was made.
    """

    usage: dict[str, Any]
    context_id: str | None = None
    model: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] | None = None
    op_id: OpIdText | None = None


class UsageResult(Result, frozen=True, kw_only=True):
    """The usage as stored; no ``receipt`` if it was stored already."""

    usage: RequestUsage
    receipt: Receipt | None


class UsageTotalsParams(SessionParams, frozen=True, kw_only=True):
    """A session as of ``valid_time`` and journal sequence ``tx``, by default as it is now.

    The requests before a fork count in the session that made them, not in the fork.
    """

    valid_time: Milliseconds | None = None
    tx: Annotated[int, msgspec.Meta(ge=0)] | None = None


class UsageTotalsResult(Result, frozen=True, kw_only=True):
    """The usage of all requests, and that of each model by its name."""

    total: UsageSum
    models: dict[str, UsageSum]


ROWS: Final = (
    Method(
        name="session.usage",
        params=UsageParams,
        result=UsageResult,
        access="record",
        writes=True,
        handle="usage",
        summary="Record the tokens that the provider billed for a request.",
        description="A later record of the same request corrects the earlier one.",
        errors=(*SESSION_ERRORS, "session_closed", "session_removed", "assembly_not_found"),
        example={"session": "s1", "usage": {"input_tokens": 12, "output_tokens": 240}},
        shows=".usage.price",
        positional=("usage",),
    ),
    Method(
        name="session.usage_totals",
        params=UsageTotalsParams,
        result=UsageTotalsResult,
        access="read",
        handle="usage_totals",
        summary="Get the tokens and the price of a session's requests.",
        errors=SESSION_ERRORS,
        example={"session": "s1"},
        shows=".total.price.total",
    ),
)
