"""Target of a request: the provider's API, model, tools and length of the answer."""

from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.models import Models
from ctxd_protocol.context_types import RequestFormat, ToolDeclaration
from ctxd_protocol.secrets import Secrets

MAX_TOKENS: Final = 8_192
"""Tokens that an answer may have where an API wants a number and the caller gives none."""


PROVIDERS: Final[dict[RequestFormat, str | None]] = {
    "anthropic-messages": "anthropic",
    "openai-responses": "openai",
    "openai-chat": None,
}
"""Provider of each format, as reasoning names it; None for a format that takes no reasoning back."""


class RequestTarget(msgspec.Struct, frozen=True, kw_only=True):
    """API that a body is for, and what goes into it beside the window.

    ``max_tokens``: None where the API has a default. ``cache_key``: keeps the requests of a session and
    its forks, which begin alike, on one machine of the provider, where it has such a thing.
    """

    format: RequestFormat
    model: str
    max_tokens: int | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    cache_key: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """The form of an assembly. ``format`` None: blocks and text. ``model`` None: the one that answered last.
    ``secrets``: those in ``tools``."""

    format: RequestFormat | None = None
    model: str | None = None
    max_tokens: int | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    secrets: Secrets | None = None


def target_for(cache_key: str, wanted: Wanted, spoken: str | None, models: Models) -> RequestTarget | None:
    """The target that ``wanted`` means, None for text. ``spoken``: the model that answered last. ``cache_key``: the
    session that began the conversation.

    Raises: CtxdError invalid_params if no model is known, or its provider does not take the format.
    """
    if wanted.format is None:
        return None
    model = wanted.model or spoken
    if model is None:
        raise CtxdError(
            "invalid_params",
            "no model is given, and none has answered in the session yet",
            hint="Give model, as the provider names it.",
            outcome="not_applied",
        )
    known = models.find(model)
    if known is not None and PROVIDERS[wanted.format] not in (None, known.provider):
        formats = [name for name, provider in PROVIDERS.items() if provider in (None, known.provider)]
        raise CtxdError(
            "invalid_params",
            f"the model {model!r} is of the provider {known.provider}, which does not take {wanted.format}",
            hint=f"Give the format {' or '.join(formats)}, or a model of another provider.",
            outcome="not_applied",
        )
    most = wanted.max_tokens
    if most is None and wanted.format == "anthropic-messages":
        most = MAX_TOKENS
    return RequestTarget(format=wanted.format, model=model, max_tokens=most, tools=wanted.tools, cache_key=cache_key)
