"""Target of a request: the provider's API, model, tools and maximum length of the answer."""

from collections.abc import Sequence
from typing import Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.models import Model, Models
from ctxd_protocol.context_types import RequestFormat, ToolDeclaration
from ctxd_protocol.secret_types import Secrets

MAX_TOKENS: Final = 8_192
"""Default maximum of tokens in an answer, for APIs that require a number."""


_TOKENS_MIN: Final[dict[RequestFormat, int]] = {"openai-responses": 16}
"""Lowest maximum of tokens in an answer that a format accepts, where it is not 1."""


PROVIDERS: Final[dict[RequestFormat, str | None]] = {
    "anthropic-messages": "anthropic",
    "openai-responses": "openai",
    "openai-chat": None,
}
"""Provider of each format, by its name in reasoning; None for a format that takes no reasoning back."""


class RequestTarget(msgspec.Struct, frozen=True, kw_only=True):
    """API of a request, and the parts of its body besides the window.

    ``max_tokens``: None where the API has a default. ``cache_key``: keeps the requests of a session and its forks,
    which begin alike, on one machine of the provider, if the API supports that.
    """

    format: RequestFormat
    model: str
    max_tokens: int | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    cache_key: str = ""


class WantedSpec(msgspec.Struct, frozen=True):
    """The form of an assembly in the layout ``spec``. ``target``: of the request to make from the context, None for
    text. ``secrets``: those found in its tools."""

    target: RequestTarget | None = None
    secrets: Secrets | None = None


class Wanted(msgspec.Struct, frozen=True):
    """The form of an assembly in the layout ``append``, also the source of a target. ``format`` None: blocks and text.
    ``model`` None: the one that answered last. ``secrets``: those found in ``tools``."""

    format: RequestFormat | None = None
    model: str | None = None
    max_tokens: int | None = None
    tools: tuple[ToolDeclaration, ...] = ()
    secrets: Secrets | None = None


def target_for(cache_key: str, wanted: Wanted, spoken: str | None, models: Models) -> RequestTarget | None:
    """The target for ``wanted``, None for text. ``spoken``: the model that answered last. ``cache_key``: the session
    that began the conversation.

    Raises: CtxdError invalid_params if no model is known, or the provider would reject the format, ``max_tokens`` or
    the declarations of tools.
    """
    if wanted.format is None:
        return None
    model = wanted.model or spoken
    if model is None:
        raise CtxdError(
            "invalid_params",
            "no model given, and none can be inferred: the session has no replies yet",
            hint="Give model, as the provider names it.",
            outcome="not_applied",
        )
    known = models.find(model)
    if known is not None and PROVIDERS[wanted.format] not in (None, known.provider):
        formats = [name for name, provider in PROVIDERS.items() if provider in (None, known.provider)]
        raise CtxdError(
            "invalid_params",
            f"model {model!r} is from provider {known.provider}, which does not support format {wanted.format}",
            hint=f"Give the format {' or '.join(formats)}, or a model of another provider.",
            outcome="not_applied",
        )
    _require_declarable(wanted.tools)
    _require_answerable(wanted, model, known)
    most = wanted.max_tokens
    if most is None and wanted.format == "anthropic-messages":
        most = MAX_TOKENS if known is None else min(MAX_TOKENS, known.output_tokens_max)
    return RequestTarget(format=wanted.format, model=model, max_tokens=most, tools=wanted.tools, cache_key=cache_key)


def _require_answerable(wanted: Wanted, model: str, known: Model | None) -> None:
    """Raises: CtxdError invalid_params if the provider does not accept ``max_tokens`` of ``wanted``."""
    assert wanted.format is not None, "text has no answer"
    least, most = _TOKENS_MIN.get(wanted.format, 1), None if known is None else known.output_tokens_max
    given = wanted.max_tokens
    if given is None or (given >= least and (most is None or given <= most)):
        return
    bound = f"at least {least}" if given < least else f"at most {most:,}"
    message = f"max_tokens is {given:,}, but {wanted.format} takes {bound} for {model}"
    hint = f"Give {bound}, or leave it out." if given < least else f"Give {bound}, see `ctxd config --models`."
    raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")


def _require_declarable(tools: Sequence[ToolDeclaration]) -> None:
    """Raises: CtxdError invalid_params if two ``tools`` have the same name, or arguments are not an object."""
    names: set[str] = set()
    for tool in tools:
        if tool.name in names or tool.input_schema.get("type") != "object":
            fault = "is declared twice" if tool.name in names else 'has an input_schema whose "type" is not "object"'
            hint = "Tool names must be unique, and each schema must be of type object."
            raise CtxdError("invalid_params", f"the tool {tool.name} {fault}", hint=hint, outcome="not_applied")
        names.add(tool.name)
