"""Calls to lines and lines to answers, without I/O: what both clients share of JSON-RPC."""

import secrets
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import msgspec

from ctxd_client.errors import CallFailed, DaemonFault, InvalidCall, TooLarge, from_wire
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.framing import FrameDecoder, FrameFault
from ctxd_protocol.limits import FRAME_BYTES_HOST_MAX
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.events import NoticeEvent
from ctxd_protocol.methods.row import Params

ANSWER_BYTES_MAX: Final = 8 * FRAME_BYTES_HOST_MAX
"""Bytes of one line from the daemon. Only guards this process's memory: a whole context with blocks may far exceed a
request."""

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The default of a parameter that is a mapping."""

R = TypeVar("R")

_ENCODER = msgspec.json.Encoder()


class Call(Generic[R]):
    """One call that is yet to be made: its method, its parameters, and what comes back."""

    __slots__ = ("method", "params", "result")

    def __init__(self, method: str, params: Params, result: type[R]) -> None:
        self.method = METHODS[method]
        self.params = params
        self.result = result

    def with_op_id(self) -> "Call[R]":
        """The same call; a write without an ``op_id`` gets a fresh one, so that sending it twice applies it once."""
        if getattr(self.params, "op_id", "") is not None:
            return self
        return Call(self.method.name, msgspec.structs.replace(self.params, op_id=secrets.token_hex(16)), self.result)

    def decode(self, result: msgspec.Raw) -> R:
        """The typed result. Raises: ``DaemonFault`` if the answer has not the shape that this version knows."""
        try:
            try:
                return _decoder(self.result).decode(result)
            except msgspec.ValidationError:
                # Types that parameters and results share are closed; a newer daemon may have added members to them.
                known = _known_members(msgspec.json.decode(result), msgspec.inspect.type_info(self.result))
                return msgspec.convert(known, self.result)
        except msgspec.DecodeError as error:
            raise DaemonFault(
                f"the answer has an unknown shape: {error}",
                code="protocol_mismatch",
                hint="update the client to the daemon's version",
                method=self.method.name,
            ) from error


class Answer(msgspec.Struct):
    """One line from the daemon: an answer when ``method`` is null, else a notification."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: ErrorObject | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()


class _Request(msgspec.Struct, omit_defaults=True, tag_field="jsonrpc", tag="2.0"):
    method: str
    params: Any
    id: int | None = None


_ANSWER = msgspec.json.Decoder(Answer)
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def request_line(id: int, call: Call[Any], *, bytes_max: int) -> bytes:
    """The line for ``call``, line feed included.

    Raises: ``TooLarge`` above ``bytes_max``, ``InvalidCall`` for text that has no UTF-8; before anything is sent.
    """
    try:
        body = _ENCODER.encode(_Request(method=call.method.name, params=call.params, id=id))
    except UnicodeEncodeError as error:
        raise InvalidCall(
            f"the call holds text that is not Unicode: {error.object[error.start : error.end]!a}",
            code="invalid_params",
            hint="decode bytes that are not UTF-8 with errors='replace'",
            outcome="not_applied",
            method=call.method.name,
        ) from error
    if len(body) > bytes_max:
        raise TooLarge(
            f"the call has {len(body)} bytes, more than the {bytes_max} of one line",
            code="frame_too_large",
            hint="send less at once: split the messages, or let the daemon read the file",
            outcome="not_applied",
            method=call.method.name,
        )
    return body + b"\n"


def cancel_line(id: int) -> bytes:
    """The line that asks the daemon to give up request ``id``."""
    return _ENCODER.encode(_Request(method="$/cancelRequest", params={"id": id})) + b"\n"


def parse(line: bytes | bytearray) -> Answer:
    """One line of the daemon. Raises: ``DaemonFault`` if it is not JSON-RPC; the connection is of no more use then."""
    try:
        return _ANSWER.decode(line)
    except msgspec.DecodeError as error:
        raise DaemonFault(f"the daemon sent what is not JSON-RPC: {error}", code="protocol_mismatch") from error


def event(answer: Answer) -> NoticeEvent | None:
    """The value of a notification; null for one that this version does not know."""
    if answer.method != "events.notice":
        return None
    try:
        return _decoder(NoticeEvent).decode(answer.params)
    except msgspec.DecodeError:
        return None


def failure(error: ErrorObject, call: Call[Any]) -> CallFailed:
    """The exception for an answered error."""
    return from_wire(error, call.method.name)


class Lines:
    """Received bytes to lines of the daemon; of one that is not complete, up to ``ANSWER_BYTES_MAX`` are held."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without line feed. Raises: ``DaemonFault`` when a line grows too long."""
        try:
            return self._decoder.feed(data)
        except FrameFault as fault:
            raise DaemonFault(f"the daemon sent what is no line: {fault}", code="protocol_mismatch") from fault


def _known_members(value: Any, kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401 - any JSON value
    """``value`` without the members that ``kind`` does not have."""
    match kind:
        case msgspec.inspect.StructType(fields=fields, tag_field=tag_field) if isinstance(value, dict):
            kinds = {field.encode_name: field.type for field in fields}
            return {
                name: _known_members(member, kinds[name]) if name in kinds else member
                for name, member in value.items()
                if name in kinds or name == tag_field
            }
        case msgspec.inspect.VarTupleType(item_type=item) if isinstance(value, list):
            return [_known_members(member, item) for member in value]
        case msgspec.inspect.UnionType(types=types) if isinstance(value, dict | list):
            closed = (msgspec.inspect.StructType, msgspec.inspect.VarTupleType)
            inner = next((each for each in types if isinstance(each, closed)), kind)
            return value if inner is kind else _known_members(value, inner)
        case _:
            return value


def _decoder(kind: type[R]) -> "msgspec.json.Decoder[R]":
    if kind not in _DECODERS:
        _DECODERS[kind] = msgspec.json.Decoder(kind)
    return _DECODERS[kind]
