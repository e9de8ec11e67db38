"""Part of ``ctx context``: the price of a request, and the reason why a window has an object."""

from contextlib import suppress
from typing import Final

from ctxd.cli.common_options import Invocation
from ctxd.formatting import count, moment, short, size
from ctxd.terminal import cell
from ctxd_client.errors import InvalidCall
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssembledContext, CacheBreak, ShownAs, WhyRule
from ctxd_protocol.methods.context import WhyResult

REQUESTS_SEARCHED: Final = 200
"""Number of newest assemblies that are searched for a request."""

_BROKEN: Final[dict[CacheBreak, str]] = {
    "first_request": "it is the first request",
    "format": "the last request had another format",
    "model": "the last request was for another model",
    "tools": "the last request had other tools",
    "compaction": "a compaction began a new window",
    "cache_expired": "the cache's lifetime had passed",
    "purge": "something that the last request showed was purged",
    "budget": "a repack for the budget",
    "cost": "a repack, as carrying old content had cost too much",
}

_SHOWN: Final[dict[ShownAs, str]] = {
    "whole": "is in the window",
    "cut": "is in the window in part",
    "stub": "has a stub in the window",
    "line": "has a line in the window",
    "none": "is not in the window",
}

_RULES: Final[dict[WhyRule, str]] = {
    "pinned": "it is pinned",
    "activated": "it was activated by request",
    "read": "it was read",
    "recorded": "its call was recorded",
    "changed": "it changed since it was shown",
    "read_by_call": "the output of a call has its content",
    "cut_on_entry": "it was cut when it came, as it is long",
    "cut_for_budget": "it was cut for the budget",
    "repacked_cache_expired": "a repack removed it once the cache had expired",
    "repacked_budget": "a repack removed it for the budget",
    "repacked_cost": "a repack removed it, as carrying it had cost as much as rewriting what stands behind it",
    "removed_budget": "the replies around it were removed for the budget",
    "compacted": "a compaction replaced the conversation",
    "dropped_budget": "the budget left it out",
    "listed": "it is in the metadata pool, and its content was never shown",
    "known_by_name": "it is known by name and was never read",
    "not_active": "it is not active, or not any more",
    "left_pool": "it was taken out of the metadata pool",
    "not_in_pool": "it is hidden: it is not in the metadata pool",
    "not_assembled": "nothing was assembled since it came",
}


def dollars(price: int) -> str:
    """``price`` in micro-dollars as dollars."""
    return f"${price // 1_000_000:,}.{price % 1_000_000:06d}"


def newest_request(client: SyncClient, session: str, number: int) -> AssembledContext | None:
    """The newest request among the last assemblies up to ``number``; None without one, or if a sandbox may not list
    assemblies."""
    with suppress(InvalidCall):
        rows = client.context_list(
            session, after=max(0, number - REQUESTS_SEARCHED), limit=REQUESTS_SEARCHED
        ).assemblies
        made = next((row.number for row in reversed(rows) if row.format is not None and row.layout == "append"), None)
        return None if made is None else client.context_show(session, number=made, text=False, blocks=False)
    return None


def cost_lines(shown: AssembledContext) -> list[str]:
    """The price and the prefix of the request ``shown`` as text; no lines if it has no figures."""
    cost = shown.cost
    if cost is None:
        return []
    price, history = ("no price known" if each is None else dollars(each) for each in (cost.price, cost.history_price))
    error = "not calibrated" if cost.reserve is None else f"± {count(cost.reserve)}"
    share = cost.shared_bytes / cost.before_bytes if cost.before_bytes else 0.0
    broken = "" if cost.broken_by is None else f"; the rest is new: {_BROKEN[cost.broken_by]}"
    name = f"assembly {shown.number}" if shown.number else "the next one"
    return [
        f"request       {name} for {cell(cost.model)}: {count(cost.tokens, 'token')} ({error}), {price}",
        f"prefix        {share:.1%} of the last request ({size(cost.shared_bytes)}, "
        f"{count(cost.shared_tokens, 'token')}) unchanged, {count(cost.cache_read, 'token')} from the cache{broken}",
        f"full history  {count(cost.history_tokens, 'token')}, {history}",
    ]


def show_why(run: Invocation, found: WhyResult, label: str) -> None:
    """Print the explanation ``found`` for the object named ``label``."""
    if run.screen.as_json:
        run.screen.document(found)
        return
    detail = "" if found.detail is None else f" ({found.detail})"
    run.screen.line(f"{cell(label)} {_SHOWN[found.shown]}: {_RULES[found.rule]}{detail}")
    if (since := found.since) is not None:
        run.screen.line(
            f"since assembly {since.number}, turn {since.turn}, {moment(since.assembled_at)}, {cell(since.context_id)}"
        )
    pinned = ", pinned" if found.pinned else ""
    run.screen.line(f"now {found.level}{pinned}; id {short(found.object)}; layout {found.layout}")
