"""Usage of a provider: the tokens that it billed for requests, and their price."""

from typing import Any

import msgspec


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price in integer micro-dollars, by the table of models. Each part of each request is rounded once, half up; every
    sum, ``total`` too, is one of rounded parts. ``cache_write``: by the cache's lifetime in seconds."""

    input: int
    cache_read: int
    cache_write: dict[str, int]
    output: int
    total: int


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request as its provider billed them.

    ``number`` and ``context_id`` are those of its assembly. ``input`` excludes what was read from and written to the
    cache. ``cache_write``: tokens by the cache's lifetime in seconds, ``0`` where the provider gives none. ``output``
    includes ``reasoning``, None if the provider does not give it. ``other``: further fields of the provider's object.
    ``price``: None for a model that the table of models does not have.
    """

    number: int
    context_id: str
    model: str
    input: int
    cache_read: int
    cache_write: dict[str, int]
    output: int
    reasoning: int | None
    other: dict[str, Any]
    price: Price | None


class UsageSum(msgspec.Struct, frozen=True, kw_only=True):
    """Sum over requests. ``price``: of those whose model the table of models has; ``unpriced``: how many it lacks."""

    requests: int
    input: int
    cache_read: int
    cache_write: dict[str, int]
    output: int
    reasoning: int
    price: Price
    unpriced: int
