"""JSON-RPC without I/O, for both clients: calls to lines, lines to replies, and queued notifications."""

import math
import os
import secrets
from base64 import b64encode
from collections import deque
from collections.abc import Iterable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, Final, Generic, Literal, NamedTuple, TypeVar, get_args, get_type_hints

import msgspec

from ctxd_client.errors import CallFailed, DaemonFault, InvalidCall, TooLarge, from_wire
from ctxd_protocol.errors import ErrorObject
from ctxd_protocol.jsonrpc import FrameDecoder, FrameFault
from ctxd_protocol.limits import FRAME_BYTES_HOST_MAX, Limits
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.declaration import Params
from ctxd_protocol.methods.events import NoticeEvent

ANSWER_BYTES_MAX: Final = 8 * FRAME_BYTES_HOST_MAX
"""Bytes of one line from the daemon. Only guards this process's memory: a whole context with blocks may be far longer
than any request."""

EVENTS_MAX: Final = 1000
"""Notifications of a subscription queued for its reader. Later ones are read from the journal."""

EMPTY: Final[Mapping[str, Any]] = MappingProxyType({})
"""The default of parameters that are mappings."""

R = TypeVar("R")


def _plain(value: Any) -> str:  # noqa: ANN401 - any value that msgspec does not encode
    """``value`` as the text that it is. Raises: ``TypeError`` unless it is of a subclass of ``str``."""
    if isinstance(value, str):
        return str.__str__(value)
    raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")


_ENCODER = msgspec.json.Encoder(enc_hook=_plain)


class Call(Generic[R]):
    """A call to make: its method, its parameters, and the type of its result."""

    __slots__ = ("method", "params", "result")

    def __init__(self, method: str, params: Params, result: type[R]) -> None:
        self.method = METHODS[method]
        self.params = params
        self.result = result

    def with_op_id(self) -> "Call[R]":
        """The same call; a write without an ``op_id`` gets a fresh one, so that resending does not apply it twice."""
        if getattr(self.params, "op_id", "") is not None:
            return self
        return Call(self.method.name, msgspec.structs.replace(self.params, op_id=secrets.token_hex(16)), self.result)

    def with_descriptor(self) -> "Call[R]":
        """The same call; if its result may have a long content, it requests that content as a file."""
        if not hasattr(self.params, "descriptor"):
            return self
        return Call(self.method.name, msgspec.structs.replace(self.params, descriptor=True), self.result)

    def decode(self, result: msgspec.Raw) -> R:
        """The typed result. Raises: ``DaemonFault`` if this version does not know the shape of the reply."""
        try:
            try:
                return _decoder(self.result).decode(result)
            except msgspec.ValidationError:
                # Types shared by parameters and results reject unknown members; a newer daemon may have added some.
                known = _known_members(msgspec.json.decode(result), msgspec.inspect.type_info(self.result))
                return msgspec.convert(known, self.result)
        except msgspec.DecodeError as error:
            raise DaemonFault(
                f"the reply has an unknown shape: {error}",
                code="protocol_mismatch",
                hint="update the client to the daemon's version",
                method=self.method.name,
            ) from error


class IncomingLine(msgspec.Struct):
    """One line from the daemon: a reply if ``method`` is None, else a notification."""

    id: int | str | None = None
    result: msgspec.Raw = msgspec.Raw()
    error: ErrorObject | None = None
    method: str | None = None
    params: msgspec.Raw = msgspec.Raw()


class _Request(msgspec.Struct, omit_defaults=True, tag_field="jsonrpc", tag="2.0"):
    # In this order: the daemon handles long params fastest when they are last.
    method: str
    id: int | None = None
    params: Any = None


class _Passed(msgspec.Struct):
    size: int = 0
    descriptor: Literal["content", "content_base64"] | None = None


_PASSED = msgspec.json.Decoder(_Passed)
_ANSWER = msgspec.json.Decoder(IncomingLine)
_DECODERS: dict[Any, msgspec.json.Decoder[Any]] = {}


def request_line(id: int, call: Call[Any], limits: Limits) -> bytes:
    """The line for ``call``, line feed included.

    Raises: ``TooLarge`` for a line above the limit; ``InvalidCall`` for values that JSON or the daemon does not accept:
    text that is not Unicode, bytes for text, numbers that are not finite, nesting beyond the limit, other types.
    """
    _check(call, call.params, limits.depth - 1, limits)
    try:
        body = _ENCODER.encode(_Request(method=call.method.name, params=call.params, id=id))
    except UnicodeEncodeError as error:
        text = ascii(error.object[error.start : error.end])
        hint = "decode bytes that are not UTF-8 with errors='replace'"
        raise _invalid(call, f"the call holds text that is not Unicode: {text}", hint) from error
    except RecursionError as error:
        raise _invalid(call, f"the call nests deeper than {limits.depth} levels", _FLATTEN) from error
    except (TypeError, ValueError, OverflowError) as error:
        raise _invalid(call, f"the call holds a value that is not JSON: {error}", "send plain values") from error
    if len(body) > limits.frame_bytes:
        raise TooLarge(
            f"the call has {len(body)} bytes, more than the {limits.frame_bytes} of one line",
            code="frame_too_large",
            hint="send less at once: split the messages, or let the daemon read the file",
            outcome="not_applied",
            method=call.method.name,
        )
    return body + b"\n"


_FLATTEN: Final = "send deep structures as a string of JSON"
_DECODE: Final = "give text: decode bytes with .decode()"


_BYTES: Final = (bytes, bytearray, memoryview)
_LISTS: Final = (list, tuple, set, frozenset)
_CONTAINERS: Final = (dict, list, msgspec.Struct, tuple, set, frozenset, Mapping)  # the check for a Mapping is slow
_SCALARS: Final = frozenset({str, int, bool, type(None)})


class _Member(NamedTuple):
    """The member ``name`` of ``container``, which is at ``at``; None for the params of a call."""

    container: Any
    name: Any
    at: "_Member | None"

    def __str__(self) -> str:
        """The path of the member in the call."""
        at = "" if self.at is None else str(self.at)
        if isinstance(self.container, _LISTS):
            return f"{at}[{self.name}]"
        return f"{at}.{self.name}" if at else str(self.name)


def _check(call: Call[Any], value: Any, levels: int, limits: Limits, at: _Member | None = None) -> None:  # noqa: ANN401
    """Raise ``InvalidCall`` if the container ``value``, at ``at``, nests deeper than ``levels``, or holds bytes for
    text or an infinite number or NaN."""
    if levels == 0:
        raise _invalid(call, f"the call nests deeper than {limits.depth} levels", _FLATTEN)
    for name, item in _members(value):
        if isinstance(name, _BYTES):
            raise _invalid(call, f"{at or 'the call'} has the key {bytes(name)!r}, not text", _DECODE)
        if type(item) in _SCALARS:
            continue
        place = _Member(value, name, at)
        if isinstance(item, _CONTAINERS):
            _check(call, item, levels - 1, limits, place)
        elif isinstance(item, _BYTES) and name not in _bytes_fields(type(value)):  # type: ignore[arg-type]
            raise _invalid(call, f"{place} is {type(item).__name__}, not text", _DECODE)
        elif isinstance(item, float) and not math.isfinite(item):
            hint = "send it as a string, or leave it out"
            raise _invalid(call, f"{place}: {item} is not a JSON number", hint)


def _members(container: Any) -> Iterable[tuple[Any, Any]]:  # noqa: ANN401 - any container
    """The members of ``container`` by name or position."""
    if isinstance(container, dict):
        return container.items()
    if isinstance(container, msgspec.Struct):
        return [(name, getattr(container, name)) for name in container.__struct_fields__]
    return enumerate(container) if isinstance(container, _LISTS) else container.items()


@cache
def _bytes_fields(kind: type[Any]) -> frozenset[str]:
    """The fields of ``kind`` that the protocol declares as bytes; none if it is not a struct."""
    hints = get_type_hints(kind) if issubclass(kind, msgspec.Struct) else {}
    return frozenset(name for name, hint in hints.items() if hint is bytes or bytes in get_args(hint))


def _invalid(call: Call[Any], message: str, hint: str) -> InvalidCall:
    return InvalidCall(message, code="invalid_params", hint=hint, outcome="not_applied", method=call.method.name)


def cancel_line(id: int) -> bytes:
    """The line that cancels request ``id``."""
    return _ENCODER.encode(_Request(method="$/cancelRequest", params={"id": id})) + b"\n"


def parse(line: bytes | bytearray) -> IncomingLine:
    """One line of the daemon. Raises: ``DaemonFault`` if it is not JSON-RPC; the connection is then unusable."""
    try:
        return _ANSWER.decode(line)
    except msgspec.DecodeError as error:
        raise DaemonFault(f"the daemon sent a line that is not JSON-RPC: {error}", code="protocol_mismatch") from error


class FileLost(Exception):
    """A reply arrived without the file that has its content: this process has no descriptor left, or a proxy between it
    and the daemon passes bytes only."""


class PassedFiles:
    """The last descriptor received, until its reply is read. The daemon sends the next one only after this one was
    received."""

    def __init__(self) -> None:
        self._descriptor = -1

    def __del__(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the unclaimed descriptor, if any."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def keep(self, descriptors: Iterable[int]) -> None:
        """Take over received descriptors, closing an earlier one that no reply claimed."""
        for each in descriptors:
            self.close()
            self._descriptor = each
            os.set_inheritable(each, False)

    def content(self, answer: IncomingLine) -> bytes | None:
        """The content of the file passed with ``answer``; None without one, or if it cannot be read whole."""
        if self._descriptor < 0:
            return None
        try:
            passed = _PASSED.decode(answer.result)
        except msgspec.DecodeError:
            return None
        if passed.descriptor is None:
            return None
        try:
            content = os.pread(self._descriptor, passed.size, 0)
        except OSError:
            return None
        finally:
            self.close()
        return content if len(content) == passed.size else None


def completed(result: R, content: bytes | None) -> R:
    """``result`` with the ``content`` of its file in the member that the file replaces. Raises: ``FileLost``."""
    member = getattr(result, "descriptor", None)
    if member is None or not isinstance(result, msgspec.Struct):
        return result
    if content is None:
        raise FileLost
    value = content.decode() if member == "content" else b64encode(content).decode()
    return msgspec.structs.replace(result, descriptor=None, **{member: value})


class Events:
    """Notifications queued for their readers, ``EVENTS_MAX`` per subscription and then one marked ``missed``."""

    def __init__(self) -> None:
        self._queues: dict[int, deque[NoticeEvent]] = {}

    def listen(self, subscription: int) -> None:
        """Keep the notifications of ``subscription``."""
        self._queues[subscription] = deque()

    def unlisten(self, subscription: int) -> None:
        """Discard the notifications of ``subscription``."""
        self._queues.pop(subscription, None)

    def listens(self, subscription: int) -> bool:
        """True between ``listen`` and ``unlisten``."""
        return subscription in self._queues

    def keep(self, answer: IncomingLine) -> bool:
        """Queue ``answer`` if it is a notification. Returns: True if it was queued; unknown ones are ignored."""
        if answer.method != "events.notice":
            return False
        try:
            event = _decoder(NoticeEvent).decode(answer.params)
        except msgspec.DecodeError:
            return False
        queue = self._queues.get(event.subscription)
        if queue is None or len(queue) > EVENTS_MAX:
            return False
        full = len(queue) == EVENTS_MAX
        queue.append(msgspec.structs.replace(event, missed=True) if full else event)
        return True

    def next(self, subscription: int) -> NoticeEvent | None:
        """Remove and return the oldest queued notification; None if the queue is empty."""
        queue = self._queues.get(subscription)
        return queue.popleft() if queue else None


def failure(error: ErrorObject, call: Call[Any]) -> CallFailed:
    """The exception for an error reply."""
    return from_wire(error, call.method.name)


class LineDecoder:
    """Splits received bytes into lines; buffers up to ``ANSWER_BYTES_MAX`` of an incomplete one."""

    def __init__(self) -> None:
        self._decoder = FrameDecoder(ANSWER_BYTES_MAX)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without line feed. Raises: ``DaemonFault`` if a line is too long."""
        try:
            return self._decoder.feed(data)
        except FrameFault as fault:
            raise DaemonFault(f"the daemon sent a malformed line: {fault}", code="protocol_mismatch") from fault


def _known_members(value: Any, kind: msgspec.inspect.Type) -> Any:  # noqa: ANN401 - any JSON value
    """``value`` without members that ``kind`` does not define."""
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
