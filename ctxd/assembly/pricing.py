"""Prices of requests, in micro-dollars: of billed usage and of estimates, each part rounded once, half up. Pure."""

from collections.abc import Iterable, Mapping
from typing import Final

from ctxd.assembly.assembly_record import Recorded
from ctxd.models import Model, Models
from ctxd.sessions.stored_session import RecordUsage
from ctxd_protocol.context_types import RequestCost
from ctxd_protocol.usage_types import Price, UsageSum

_MICRO: Final = 1_000_000


def priced(tokens: int, price: int) -> int:
    """Micro-dollars for ``tokens`` at ``price`` for a million of them, rounded half up."""
    return (2 * tokens * price + _MICRO) // (2 * _MICRO)


def write_price(model: Model, lifetime_s: int) -> int:
    """The price of a token written to the cache for ``lifetime_s``: that of the model's next lifetime that is not
    shorter, else of its longest. 0 selects the shortest."""
    longer = [life for life in model.cache_write if life >= lifetime_s]
    return model.cache_write[min(longer) if longer else max(model.cache_write)]


def price_of(usage: RecordUsage, model: Model) -> Price:
    """The price of ``usage``."""
    written = {str(life): priced(tokens, write_price(model, life)) for life, tokens in usage.cache_write}
    return _price(
        priced(usage.input, model.input),
        priced(usage.cache_read, model.cache_read),
        written,
        priced(usage.output, model.output),
    )


def _price(input: int, cache_read: int, cache_write: dict[str, int], output: int) -> Price:
    total = input + cache_read + sum(cache_write.values()) + output
    return Price(input=input, cache_read=cache_read, cache_write=cache_write, output=output, total=total)


def _by_lifetime(rows: Iterable[Mapping[str, int]]) -> dict[str, int]:
    found: dict[str, int] = {}
    for row in rows:
        for life, number in row.items():
            found[life] = found.get(life, 0) + number
    return dict(sorted(found.items(), key=lambda each: int(each[0])))


def usage_sum(usages: Iterable[RecordUsage], models: Models) -> UsageSum:
    """The tokens and prices of ``usages`` together."""
    rows = [(usage, models.find(usage.model)) for usage in usages]
    prices = [price_of(usage, model) for usage, model in rows if model is not None]
    return UsageSum(
        requests=len(rows),
        input=sum(usage.input for usage, _ in rows),
        cache_read=sum(usage.cache_read for usage, _ in rows),
        cache_write=_by_lifetime({str(life): tokens for life, tokens in usage.cache_write} for usage, _ in rows),
        output=sum(usage.output for usage, _ in rows),
        reasoning=sum(usage.reasoning or 0 for usage, _ in rows),
        price=_price(
            sum(price.input for price in prices),
            sum(price.cache_read for price in prices),
            _by_lifetime(price.cache_write for price in prices),
            sum(price.output for price in prices),
        ),
        unpriced=len(rows) - len(prices),
    )


def cost_of(record: Recorded, models: Models) -> RequestCost | None:
    """The figures of the request of ``record`` as clients get them, None for text."""
    part = record.window
    if part is None or part.format is None or part.model is None:
        return None
    figures, model = part.figures, models.find(part.model)
    return RequestCost(
        model=part.model,
        tokens=figures.sent,
        reserve=figures.reserve,
        shared_bytes=record.stable_prefix or 0,
        before_bytes=figures.before_bytes,
        shared_tokens=figures.sent * (record.stable_prefix or 0) // max(1, record.bytes),
        broken_by=figures.broken,
        cache_read=figures.read,
        price=None if model is None else input_price(figures.sent, figures.read, model),
        history_tokens=figures.full,
        history_price=None if model is None else input_price(figures.full, figures.full_read, model),
    )


def input_price(tokens: int, read: int, model: Model) -> int:
    """Micro-dollars for the input of a request of ``tokens``: ``read`` of them come from the cache, the others are
    written to it for its shortest lifetime, or are plain input if the request is too short to be cached. Output is not
    included."""
    rate = model.cache_write[model.lifetime_s] if tokens >= model.cache_min_tokens else model.input
    return priced(read, model.cache_read) + priced(max(0, tokens - read), rate)
