"""The only place where exceptions become wire errors.

The peer gets a code and a safe sentence, the log gets the rest.
"""

import asyncio
import re
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import inspect
from structlog.typing import FilteringBoundLogger

from ctxd.errors import CtxdError
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.errors import ERRORS, ErrorData, ErrorObject, Outcome
from ctxd_protocol.jsonrpc import error_object

_PLACE: Final = re.compile(r".*?(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_STEP: Final = re.compile(r"\.\w+|\[[^\]]*\]")
_OF_THE_STORE: Final = frozenset({"corrupt", "data_loss", "internal_error"})


class MalformedParams(Exception):
    """The params are no array and no object: the request itself is at fault, not the parameters."""


def error_of(exc: BaseException, *, method: str, log: FilteringBoundLogger) -> ErrorObject:
    """The wire error for ``exc``, raised by a call of ``method``. An unexpected exception is logged whole."""
    if isinstance(exc, CtxdError):
        kind = ERRORS[exc.code]
        data = ErrorData(
            code=exc.code,
            hint=exc.hint,
            retryable=kind.retryable,
            retry_after_ms=exc.retry_after_ms,
            outcome=exc.outcome,
        )
        return ErrorObject(code=kind.number, message=exc.message, data=data)
    if isinstance(exc, MalformedParams):
        return error_object("invalid_request", "params is an array or an object, or left out")
    log.error("rpc.internal_error", method=method, exc_info=exc)
    hint = "The daemon's log has the details."
    return error_object("internal_error", "the daemon failed to carry out the call", hint=hint)


def catch_strays(log: FilteringBoundLogger) -> None:
    """Log exceptions that no call catches by type and location; the loop's own message would quote content."""

    def told(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        log.error("loop.failed", exc_info=context.get("exception"))

    asyncio.get_running_loop().set_exception_handler(told)


def with_outcome(error: ErrorObject, *, submitted: bool) -> ErrorObject:
    """Return ``error`` of a write with its outcome: unknown once it was ``submitted``.

    Otherwise it was not applied, as is stated of errors that do not follow from the parameters alone.
    """
    data = error.data
    if data.outcome is not None or not (submitted or data.retryable or data.code in _OF_THE_STORE):
        return error
    outcome: Outcome = "unknown" if submitted else "not_applied"
    return msgspec.structs.replace(error, data=msgspec.structs.replace(data, outcome=outcome))


def params_error(exc: msgspec.DecodeError | UnicodeDecodeError | TypeError, params: type[msgspec.Struct]) -> CtxdError:
    """The error of params that do not fit ``params``, the method's type; it names the values or fields that do."""
    message, hint = str(exc), "rpc.discover describes every method's parameters."
    if place := _PLACE.fullmatch(message):
        fitting = _at(_type_of(params), place["path"] or "")
        structs = [each for each in fitting if isinstance(each, inspect.StructType)]
        if message.startswith("Object contains unknown field") and structs:
            names = dict.fromkeys(field.encode_name for each in structs for field in each.fields)
            message += f": the fields are {', '.join(names)}" if names else ": there are none"
            if any(each.cls is ToolDeclaration for each in structs):
                hint = "A tool has this form in every format: pass MODEL_TOOLS.values(), not model_tools(format)."
        literals = [each for each in fitting if isinstance(each, inspect.LiteralType)]
        if message.startswith(("Invalid enum value", "Invalid value")) and literals:
            values = dict.fromkeys(str(value) for each in literals for value in each.values)
            message += f": it is one of {', '.join(values)}"
    return CtxdError("invalid_params", message, hint=hint)


@cache
def _type_of(params: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(params)


def _at(type: inspect.Type, path: str) -> list[inspect.Type]:
    """The types of the values at ``path``, as msgspec writes it, in a value of ``type``; none if nothing is there."""
    found = [type]
    for step in _STEP.findall(path):
        found = [
            inner
            for each in found
            for alternative in (each.types if isinstance(each, inspect.UnionType) else (each,))
            for inner in _inner(alternative, step)
        ]
    return [last for each in found for last in (each.types if isinstance(each, inspect.UnionType) else (each,))]


def _inner(type: inspect.Type, step: str) -> list[inspect.Type]:
    """The types of the values at ``step`` of a value of ``type``: ``.name`` or ``[0]``."""
    match type:
        case inspect.StructType(tag_field=field, tag=tag) if field is not None and step == f".{field}":
            return [inspect.LiteralType((tag,))]
        case inspect.StructType(fields=fields) if step[0] == ".":
            return [each.type for each in fields if each.encode_name == step[1:]]
        case inspect.DictType(value_type=inner):
            return [inner]
        case inspect.VarTupleType(item_type=inner) | inspect.ListType(item_type=inner) if step[0] == "[":
            return [inner]
    return []


def timeout_error(seconds: float, *, writes: bool) -> ErrorObject:
    """The error of a call that was not answered in time."""
    outcome: Outcome | None = "unknown" if writes else None
    hint = "Send it again with the same op_id." if writes else "Send it again."
    return error_object("timeout", f"no answer within {seconds:g} s", hint=hint, outcome=outcome)


def cancelled_error(*, writes: bool) -> ErrorObject:
    """The error of a call that its client cancelled."""
    return error_object("cancelled", "the client cancelled the call", outcome="unknown" if writes else None)


def draining_error(retry_after_ms: int) -> ErrorObject:
    """The error of a call that came while the daemon stops."""
    return error_object(
        "draining",
        "the daemon is stopping",
        hint="Connect again when it is back.",
        retry_after_ms=retry_after_ms,
        outcome="not_applied",
    )
