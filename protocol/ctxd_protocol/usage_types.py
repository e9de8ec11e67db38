"""Usage: the tokens that a provider billed for requests, and their price."""

from typing import Any

import msgspec


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """Price in integer micro-dollars, by the table of models. Each part of each request is rounded once, half up; sums,
    including ``total``, add rounded parts. ``cache_write``: by the cache's lifetime in seconds."""

    input: int
    cache_read: int
    cache_write: dict[str, int]
    output: int
    total: int


class RequestUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of one request, as billed by its provider.

    ``number`` and ``context_id`` are those of its assembly. ``input`` excludes tokens read from and written to the
    cache. ``cache_write``: tokens by the cache's lifetime in seconds, with the key ``0`` if the provider gives none.
    ``output`` includes ``reasoning``, which is None if the provider does not give it. ``other``: further fields of the
    provider's object. ``price``: None for a model that is not in the table of models.
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
    """Sum over requests. ``price``: that of requests for models in the table of models; ``unpriced``: number of the
    other requests."""

    requests: int
    input: int
    cache_read: int
    cache_write: dict[str, int]
    output: int
    reasoning: int
    price: Price
    unpriced: int
