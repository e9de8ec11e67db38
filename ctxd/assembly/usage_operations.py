"""Recorded usage of requests: providers' usage objects in one form, stored in the session, and its totals."""

import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from ctxd.assembly.assembly_record import Recorded, read_record
from ctxd.assembly.pricing import price_of, usage_sum
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf
from ctxd.secrets.redaction import Capture
from ctxd.sessions.live_session import Accepted, Actor, LiveSession, Transaction
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.stored_session import RecordUsage
from ctxd_protocol.methods import usage as wire
from ctxd_protocol.usage_types import RequestUsage

TOKENS_MAX: Final = 10**9
"""The largest number of tokens accepted for one request."""

OTHER_BYTES_MAX: Final = 4096
"""Maximum bytes of JSON for the further members of a provider's object."""


_PLAIN: Final = ("input", "cache_read", "cache_write", "output", "reasoning")
_LIFETIMES: Final = {
    "ephemeral_5m_input_tokens": 300,
    "ephemeral_1h_input_tokens": 3600,
    "ttl_30m_tokens": 1800,
    "ttl_12h_tokens": 43_200,
}
"""Lifetimes of caches in seconds, by the providers' names."""

_ANTHROPIC_LIFETIME: Final = 300
"""Lifetime of Anthropic's cache in seconds if the object names none."""


class _Fields:
    """Reader of a usage object: each member is taken once, and the members left over are unknown. ``path`` is for
    messages."""

    def __init__(self, given: Mapping[str, Any], path: str = "usage") -> None:
        self.left = dict(given)
        self._path = path

    def tokens(self, name: str, default: int | None = None) -> int:
        """The number of tokens in ``name``; ``default`` if it is missing or None.

        Raises: CtxdError invalid_params if it is not a number of tokens, or is missing without a ``default``.
        """
        value = self.left.pop(name, None)
        if value is None and default is not None:
            return default
        if type(value) is not int or not 0 <= value <= TOKENS_MAX:
            if value is None:
                raise _refused(f"{self._path}.{name} is missing")
            raise _refused(f"{self._path}.{name} is {repr(value)[:40]}, not a number from 0 to {TOKENS_MAX:,}")
        return value

    def part(self, name: str) -> "_Fields":
        """The object in ``name``, empty if it is missing or None."""
        value = self.left.pop(name, None)
        if not isinstance(value, dict | None):
            raise _refused(f"{self._path}.{name} is {repr(value)[:40]}, not an object")
        return _Fields(value or {}, f"{self._path}.{name}")

    def lifetimes(self) -> dict[int, int]:
        """Tokens written to the cache by its lifetime in seconds, for the lifetimes that are given."""
        return {life: self.tokens(name, 0) for name, life in _LIFETIMES.items() if name in self.left}


def _refused(message: str) -> CtxdError:
    hint = "Pass the usage object of the provider's response unchanged, once for the whole response."
    return CtxdError("invalid_params", message, hint=hint, outcome="not_applied")


def usage_of(assembly: int, model: str, given: Mapping[str, Any]) -> RecordUsage:
    """The usage that ``given`` describes: a provider's object, or one of the plain form.

    Raises: CtxdError invalid_params for unknown members of the plain form, and for values that are not counts of tokens
    or contradict each other.
    """
    fields = _Fields(given)
    if "prompt_tokens" in given:
        return _of_openai(assembly, model, fields, "prompt", "completion")
    if "input_tokens" not in given:
        return _of_plain(assembly, model, fields)
    if "total_tokens" in given or "input_tokens_details" in given:
        return _of_openai(assembly, model, fields, "input", "output")
    return _of_anthropic(assembly, model, fields)


def _of_plain(assembly: int, model: str, fields: _Fields) -> RecordUsage:
    if unknown := [name for name in fields.left if name not in _PLAIN]:
        raise _refused(f"usage.{unknown[0]} is not known; the plain form has {', '.join(_PLAIN)}")
    written = fields.left.get("cache_write")
    if isinstance(written, dict):
        lives = fields.part("cache_write")
        if wrong := [life for life in written if not re.fullmatch("0|[1-9][0-9]{0,8}", str(life))]:
            raise _refused(f"usage.cache_write.{str(wrong[0])[:40]} is not a lifetime in seconds")
        cache_write = {int(life): lives.tokens(life) for life in written}
    else:
        cache_write = {0: fields.tokens("cache_write", 0)}
    return _made(
        assembly,
        model,
        input=fields.tokens("input"),
        cache_read=fields.tokens("cache_read", 0),
        cache_write=cache_write,
        output=fields.tokens("output"),
        reasoning=None if fields.left.get("reasoning") is None else fields.tokens("reasoning"),
        other={},
    )


def _of_anthropic(assembly: int, model: str, fields: _Fields) -> RecordUsage:
    lives, details = fields.part("cache_creation"), fields.part("output_tokens_details")
    by_life = lives.lifetimes()
    written = fields.tokens("cache_creation_input_tokens", sum(by_life.values()))
    if by_life and sum(by_life.values()) != written:
        message = f"usage.cache_creation has {sum(by_life.values()):,} tokens, cache_creation_input_tokens is"
        raise _refused(f"{message} {written:,}")
    thought = "thinking_tokens" if "thinking_tokens" in details.left else "reasoning_tokens"
    return _made(
        assembly,
        model,
        input=fields.tokens("input_tokens"),
        cache_read=fields.tokens("cache_read_input_tokens", 0),
        cache_write=by_life or {_ANTHROPIC_LIFETIME: written},
        output=fields.tokens("output_tokens"),
        reasoning=None if details.left.get(thought) is None else details.tokens(thought),
        other=_other(fields, cache_creation=lives, output_tokens_details=details),
    )


def _of_openai(assembly: int, model: str, fields: _Fields, sent: str, made: str) -> RecordUsage:
    """``sent`` and ``made``: the words for input and output in the names of the members."""
    inputs, outputs = fields.part(f"{sent}_tokens_details"), fields.part(f"{made}_tokens_details")
    tokens, output = fields.tokens(f"{sent}_tokens"), fields.tokens(f"{made}_tokens")
    total = fields.tokens("total_tokens", tokens + output)
    if total != tokens + output:
        raise _refused(f"usage.total_tokens is {total:,}, {sent}_tokens and {made}_tokens are {tokens + output:,}")
    cached = inputs.tokens("cached_tokens", 0)
    lives = inputs.part("cache_write_tokens_details")
    by_life = {life: count for life, count in lives.lifetimes().items() if count}
    written = inputs.tokens("cache_write_tokens", sum(by_life.values()))
    if by_life and sum(by_life.values()) != written:
        message = f"usage.{sent}_tokens_details.cache_write_tokens is {written:,}, its details are"
        raise _refused(f"{message} {sum(by_life.values()):,}")
    if cached + written > tokens:
        message = f"usage.{sent}_tokens is {tokens:,}, but {cached + written:,} of them were read from or written to"
        raise _refused(f"{message} the cache")
    return _made(
        assembly,
        model,
        input=tokens - cached - written,
        cache_read=cached,
        cache_write=by_life or {0: written},
        output=output,
        reasoning=None if outputs.left.get("reasoning_tokens") is None else outputs.tokens("reasoning_tokens"),
        other=_other(
            fields, **{f"{sent}_tokens_details": inputs, f"{made}_tokens_details": outputs, "cache_write_ttl": lives}
        ),
    )


def _other(fields: _Fields, **parts: _Fields) -> dict[str, Any]:
    """The further members of a provider's object. Raises: CtxdError invalid_params if they are too large."""
    other = {**fields.left, **{name: part.left for name, part in parts.items() if part.left}}
    kept = {name: value for name, value in other.items() if value is not None}
    if len(msgspec.json.encode(kept)) > OTHER_BYTES_MAX:
        raise _refused(f"the further members of usage have more than {OTHER_BYTES_MAX:,} bytes")
    return kept


def _made(
    assembly: int,
    model: str,
    *,
    input: int,
    cache_read: int,
    cache_write: Mapping[int, int],
    output: int,
    reasoning: int | None,
    other: dict[str, Any],
) -> RecordUsage:
    if reasoning is not None and reasoning > output:
        raise _refused(f"usage has {reasoning:,} tokens of reasoning, but {output:,} of output, which include them")
    written = tuple(sorted((life, tokens) for life, tokens in cache_write.items() if tokens))
    return RecordUsage(assembly, model, input, cache_read, written, output, reasoning, other)


class UsageOperations(OperationGroup):
    """Recording and summing of usage. Prices come from the table of models in ``archive``; it may change, so no price
    is stored."""

    def __init__(self, sessions: Sessions, archive: Archive) -> None:
        self.sessions = sessions
        self.store = sessions.store
        self._archive = archive
        self._models = archive.models

    @admitted("session.usage", wire.UsageResult, states=("active", "paused"))
    async def record(self, tx: Transaction, params: wire.UsageParams) -> Accepted:
        """Record the usage of a request. Usage that is stored already is not written again.

        Raises: CtxdError assembly_not_found, invalid_params.
        """
        live = tx.live
        record = await self._request(live, params.context_id)
        made = record.window or record.form
        model = params.model or (None if made is None else made.model)
        if model is None:
            message = f"the model of context {record.context_id} is unknown"
            hint = "Give model, as the provider names it."
            raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        usage = usage_of(record.number, model, params.usage)
        capture = Capture(tx.guard, live.settings.secrets)
        other = await off_loop(OTHER_BYTES_MAX, lambda: capture.value(usage.other), sandbox=tx.sandbox)
        usage = msgspec.structs.replace(usage, other=other)
        result = wire.UsageResult(usage=self.shown(usage, record.context_id), receipt=None)
        if live.state.usage.get(record.number) == usage:
            return tx.unchanged(result)
        return tx.submit(result, (usage,))

    def shown(self, usage: RecordUsage, context_id: str) -> RequestUsage:
        """``usage`` as clients get it."""
        model = self._models.find(usage.model)
        return RequestUsage(
            number=usage.assembly,
            context_id=context_id,
            model=usage.model,
            input=usage.input,
            cache_read=usage.cache_read,
            cache_write={str(life): tokens for life, tokens in usage.cache_write},
            output=usage.output,
            reasoning=usage.reasoning,
            other=usage.other,
            price=None if model is None else price_of(usage, model),
        )

    async def totals(self, _: Actor, params: wire.UsageTotalsParams) -> Accepted:
        """The usage of a session, now or as of an earlier time. Cost: linear in its requests.

        Raises: CtxdError session_not_found, corrupt, store_failed. Cancel: safe.
        """
        at = AsOf.given(params.valid_time, params.tx)
        live = await (self.sessions.as_of(params.session, at) if at.is_past else self.sessions.live(params.session))
        # Inherited requests count in the session that made them, so that the sums of all sessions add up.
        inherited = 0 if live.settings.base is None else live.settings.base.assembly
        own = [usage for number, usage in live.state.usage.items() if number > inherited]
        by_model: dict[str, list[RecordUsage]] = {}
        for usage in own:
            by_model.setdefault(usage.model, []).append(usage)
        result = wire.UsageTotalsResult(
            total=usage_sum(own, self._models),
            models={name: usage_sum(usages, self._models) for name, usages in sorted(by_model.items())},
        )
        return Accepted(live.barrier, lambda _: result)

    async def _request(self, live: LiveSession, context_id: str | None) -> Recorded:
        """The record of the assembly ``context_id``. For None, the newest request among the newest ``_PAGE``
        assemblies, else the newest assembly, as the client may make requests from text."""
        if not live.assembly:
            hint = "Call context.assemble first: usage is that of a request."
            message = f"session {live.session} has no assembly"
            raise CtxdError("assembly_not_found", message, hint=hint, outcome="not_applied")
        if context_id is None or context_id == live.context_id:
            id = live.lineage.assembly_id(live.assembly)
            head = (await self.store.heads((id,)))[id]
            if head is None:
                raise CtxdError("corrupt", f"{id} is missing")
            newest = read_record(head)
            if context_id is not None or newest.is_request:
                return newest
            recent = await live.lineage.assemblies_before(self.store, live.assembly + 1, limit=_PAGE)
            return next((record for record in map(read_record, recent) if record.is_request), newest)
        number = (await self._archive.recordings(live)).numbers.get(context_id)
        found = None if number is None else await self._archive.at(live.session, number)
        if found is None:
            message = f"session {live.session} has no context {context_id[:80]!r}"
            hint = "Pass the context_id that context.assemble returned."
            raise CtxdError("assembly_not_found", message, hint=hint, outcome="not_applied")
        return read_record(found)


_PAGE: Final = 128
