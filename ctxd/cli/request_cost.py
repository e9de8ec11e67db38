"""Part of ``ctx context``: the newest request of a session, its price, and its prefix in the cache."""

from contextlib import suppress
from typing import Final

from ctxd.formatting import count, size
from ctxd.terminal import cell
from ctxd_client.errors import InvalidCall, InvalidState
from ctxd_client.sync import SyncClient
from ctxd_protocol.context_types import AssembledContext, CacheBreak

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


def dollars(price: int) -> str:
    """``price`` in micro-dollars as dollars."""
    return f"${price // 1_000_000:,}.{price % 1_000_000:06d}"


def newest_cost_lines(client: SyncClient, session: str, number: int) -> list[str]:
    """The ``cost_lines`` of the newest request up to assembly ``number``; in their place a note if it showed content
    that was purged, as it cannot be rendered again."""
    try:
        made = _newest_request(client, session, number)
    except InvalidState as error:
        if error.code != "purged":
            raise
        return [f"request       {cell(error.message)}"]
    return [] if made is None else cost_lines(made)


def _newest_request(client: SyncClient, session: str, number: int) -> AssembledContext | None:
    """The newest request among the last assemblies up to ``number``; None without one, or if a sandbox may not list
    assemblies. Raises: ``InvalidState`` if it showed content that was purged."""
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
