"""Part of ``ctx context``: the newest request of a session, its price, and its prefix in the cache."""

from contextlib import suppress
from typing import Final

from ctxd.cli.revision_lookup import newest_number
from ctxd.formatting import count, size
from ctxd.terminal import cell
from ctxd_client.errors import InvalidCall, InvalidState
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssembledContext, AssemblyRecord, CacheBreak

REQUESTS_SEARCHED: Final = 200
"""Number of newest assemblies that are searched for a request."""

_BROKEN: Final[dict[CacheBreak, str]] = {
    "format": "the last request had another format",
    "model": "the last request was for another model",
    "tools": "the last request had other tools",
    "compaction": "a compaction began a new window",
    "cache_expired": "the cache's lifetime had passed",
    "purge": "something that the last request showed was purged",
    "budget": "a repack for the budget",
    "cost": "a repack, as carrying old content had cost too much",
}


def dollars(price: int) -> str:
    """``price`` in micro-dollars as dollars."""
    return f"${price // 1_000_000:,}.{price % 1_000_000:06d}"


def newest_assembly(client: SyncClient, session: str) -> AssemblyRecord | None:
    """The newest request among the newest assemblies of ``session``, else its newest assembly; None without one, or if
    a sandbox may not list assemblies."""
    with suppress(InvalidCall):
        newest = newest_number(client, session)
        rows = client.context_list(session, after=max(0, newest - REQUESTS_SEARCHED), limit=REQUESTS_SEARCHED)
        found = rows.assemblies
        requests = [each for each in found if each.format is not None and each.layout == "append"]
        return requests[-1] if requests else found[-1] if found else None
    return None


def newest_cost_lines(client: SyncClient, newest: AssemblyRecord, session: str) -> list[str]:
    """The ``cost_lines`` of the assembly ``newest`` of ``session``; in their place a note if it showed content that was
    purged, as it cannot be rendered again."""
    try:
        return cost_lines(client.context_show(session, number=newest.number, text=False, blocks=False))
    except InvalidState as error:
        if error.code != "purged":
            raise
        return [f"request       {cell(error.message)}"]


def cost_lines(shown: AssembledContext) -> list[str]:
    """The price and the prefix of the request ``shown`` as text; no lines if it has no figures."""
    cost = shown.cost
    if cost is None:
        return []
    price, history = ("no price known" if each is None else dollars(each) for each in (cost.price, cost.history_price))
    tokens = count(cost.tokens, "token")
    tokens = f"about {tokens}" if cost.reserve is None else f"{tokens} (± {count(cost.reserve)})"
    name = f"assembly {shown.number}" if shown.number else "the next one"
    prefix = ["prefix        none: this is the first request"]
    if cost.broken_by != "first_request":
        share = cost.shared_bytes / cost.before_bytes if cost.before_bytes else 0.0
        shared = f"{size(cost.shared_bytes)}, {count(cost.shared_tokens, 'token')}"
        broken = "" if cost.broken_by is None else f": {_BROKEN[cost.broken_by]}"
        prefix = [
            f"prefix        {share:.1%} of the last request ({shared}) unchanged",
            f"cached        {count(cost.cache_read, 'token')}{broken}",
        ]
    return [
        f"request       {name} for {cell(cost.model)}: {tokens}, {price}",
        *prefix,
        f"full history  {count(cost.history_tokens, 'token')}, {history}",
    ]
