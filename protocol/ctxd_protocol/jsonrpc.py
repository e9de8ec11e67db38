"""JSON-RPC 2.0 envelopes: strict reading, exact writing.

Owns what a request, a reply and a notification look like, and which frames are refused before any method is looked at.
Knows no method and no parameters: those stay bytes (``msgspec.Raw``). Promise: what is handed on is valid UTF-8 JSON,
nests at most ``DEPTH_MAX`` deep, names each member once, and carries an id that every JSON reader can echo.

How it is fast: ``read_block`` reads all lines of one receive in one go if cheap looks at the whole show that nothing
needs a closer one; otherwise ``read_frame`` looks at each. Both give the same answers.
"""

import json
import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ctxd_protocol.errors import ERRORS, ErrorData, ErrorObject
from ctxd_protocol.limits import BATCH_MAX, DEPTH_MAX, REQUEST_ID_BYTES_MAX, SAFE_INTEGER_MAX

RequestId = int | str | None


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A call, or a notification if ``id`` is unset. ``id`` null is a call like others and answered with null."""

    jsonrpc: Literal["2.0"]
    method: str
    id: int | str | None | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The answer to a call that went well."""

    jsonrpc: str
    id: RequestId
    result: Any


class Failure(msgspec.Struct, frozen=True, gc=False):
    """The answer to a call that failed; ``id`` is null if the request's own could not be made out."""

    jsonrpc: str
    id: RequestId
    error: ErrorObject


class Notification(msgspec.Struct, frozen=True, gc=False):
    """What the daemon sends unasked."""

    jsonrpc: str
    method: str
    params: Any


class ServerMessage(msgspec.Struct, frozen=True):
    """Anything a client receives: an answer (``result`` or ``error``), or a notification (``method``)."""

    jsonrpc: Literal["2.0"]
    id: int | str | None | UnsetType = UNSET
    result: Raw | UnsetType = UNSET
    error: ErrorObject | UnsetType = UNSET
    method: str | None = None
    params: Raw | UnsetType = UNSET


class Batch(msgspec.Struct, frozen=True):
    """The members of a batch in their order; answered by one array."""

    members: tuple[Request | Failure, ...]


class Stray(msgspec.Struct, frozen=True):
    """What is dropped without an answer: an answer nobody asked for, or a notification that cannot be carried out."""


Frame = Request | Failure | Batch | Stray

_ENCODER: Final = msgspec.json.Encoder()
_REQUEST: Final = msgspec.json.Decoder(Request)
_SERVER_MESSAGE: Final = msgspec.json.Decoder(ServerMessage)
_ITEMS: Final = msgspec.json.Decoder(list[Raw])

_SHORT_MAX: Final = 2 * DEPTH_MAX + 1
"""Bytes of the longest line that cannot nest too deep: each level takes two brackets."""

_DIGITS: Final = bytes(48 if 48 <= byte < 58 else 0 for byte in range(256))
_LONG_NUMBER: Final = b"0" * len(str(SAFE_INTEGER_MAX))
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+-]*")
_BRACKETS: Final = bytes.maketrans(b"{}[]", b"()()")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_MEMBERS: Final = ("jsonrpc", "method", "id", "params")


def error_object(code: str, message: str, *, hint: str = "", **data: Any) -> ErrorObject:  # noqa: ANN401 - ErrorData's
    """The error object for ``code``, a key of ``ERRORS``; ``data`` gives further fields of ``ErrorData``."""
    kind = ERRORS[code]
    return ErrorObject(
        code=kind.number, message=message, data=ErrorData(code=code, hint=hint, retryable=kind.retryable, **data)
    )


def refuse(request_id: RequestId, error: ErrorObject) -> Failure:
    """The answer ``error`` to the request ``request_id``."""
    return Failure("2.0", request_id, error)


def encode(message: Reply | Failure | Notification | Sequence[Reply | Failure]) -> bytes:
    """``message`` as one frame; a list becomes a batch answer."""
    return _ENCODER.encode(message) + b"\n"


def encode_all(messages: list[Reply | Failure]) -> bytes:
    """All of ``messages``, a frame each."""
    return _ENCODER.encode_lines(messages)


def read_server_message(frame: bytes) -> ServerMessage:
    """What a client received, one frame.

    Raises: msgspec.DecodeError if it is no JSON-RPC message.
    """
    return _SERVER_MESSAGE.decode(frame)


def read_block(block: bytes) -> list[Request] | None:
    """The requests of ``block``, whole lines with their ends; null if only ``read_frame`` can tell."""
    count = block.count(b"\n")
    if (
        block[:1] != b"{"
        or b"\\" in block
        or block.count(b"}\n{") != count - 1
        or not block.endswith(b"}\n")
        or _LONG_NUMBER in block.translate(_DIGITS)
        or not _is_shallow(block, count)
        or not _is_utf8(block)
    ):
        return None
    try:
        requests = _REQUEST.decode_lines(block)
    except msgspec.DecodeError:
        return None
    ids = [request.id for request in requests]
    if (
        len(requests) != count
        or block.count(b'"jsonrpc"') != count
        or block.count(b'"method"') != count
        or block.count(b'"id"') != count - ids.count(UNSET)
        or block.count(b'"params"') != count - [request.params for request in requests].count(UNSET)
    ):
        return None
    for name in ids:
        if type(name) is str and (len(name) > REQUEST_ID_BYTES_MAX or not name.isascii()):
            return None
    return requests


def read_frame(frame: bytes, *, closed: bool = False) -> Frame:
    """What ``frame``, one line without its end, is; a ``Failure`` is what to answer if it is refused.

    ``closed`` refuses members that JSON-RPC does not know instead of ignoring them.
    """
    if (refusal := _unreadable(frame)) is not None:
        return refusal
    if frame[:1] == b"[":
        return _read_batch(frame, closed)
    return _read_request(frame, closed)


def has_unsafe_integer(text: bytes) -> bool:
    """Whether valid JSON ``text`` holds an integer beyond ``SAFE_INTEGER_MAX`` outside of strings."""
    if _LONG_NUMBER not in text.translate(_DIGITS):
        return False
    for token in _NUMBER.findall(_outside_strings(text)):
        digits = token.removeprefix(b"-")
        if digits.isdigit() and (len(digits) > len(_LONG_NUMBER) or int(digits) > SAFE_INTEGER_MAX):
            return True
    return False


def _read_batch(frame: bytes, closed: bool) -> Batch | Failure:
    try:
        items = _ITEMS.decode(frame)
    except msgspec.DecodeError as exc:
        return refuse(None, error_object("parse_error", f"the frame is not JSON: {exc}"))
    if not items:
        return refuse(None, error_object("invalid_request", "a batch has at least one member"))
    if len(items) > BATCH_MAX:
        message = f"a batch has at most {BATCH_MAX} members, this one has {len(items)}"
        return refuse(None, error_object("batch_too_large", message, hint="Send several batches."))
    return Batch(tuple(_member(_read_request(bytes(item), closed)) for item in items))


def _member(frame: Request | Failure | Stray) -> Request | Failure:
    if isinstance(frame, Stray):
        return refuse(None, error_object("invalid_request", "a batch member is an answer, not a request"))
    return frame


def _read_request(frame: bytes, closed: bool) -> Request | Failure | Stray:
    try:
        request = _REQUEST.decode(frame)
        rest = _without_params(frame, request)
    except msgspec.DecodeError:
        request, rest = None, frame
    members: list[tuple[str, Any]] = _members(rest)
    if request is None or len(members) != len(dict(members)) or not _is_id(request.id):
        return _read_loose(members, frame, closed)
    if request.params is not UNSET and has_unsafe_integer(bytes(request.params)):
        return _unsafe(request.id)
    return request


def _read_loose(members: list[tuple[str, Any]], frame: bytes, closed: bool) -> Request | Failure | Stray:
    """Read what is not plainly a request: say what is wrong with it, or leave out what is to be ignored."""
    if not members:
        return refuse(None, error_object("invalid_request", "a request is an object with jsonrpc, method and id"))
    envelope = dict(members)
    repeated = _repeated(members)
    request_id = envelope.get("id", UNSET)
    if not _is_id(request_id) or "id" in repeated:
        message = _ID_RULE if "id" not in repeated else "id is named twice"
        return refuse(None, error_object("invalid_request", message))
    answer_id = None if request_id is UNSET else request_id
    if repeated:
        return refuse(answer_id, error_object("invalid_request", f"{repeated[0]!r} is named twice"))
    if "method" not in envelope and ("result" in envelope or "error" in envelope):
        return Stray()
    if (problem := _envelope_problem(envelope, closed)) is not None:
        return refuse(answer_id, error_object("invalid_request", problem))
    if "params" not in envelope:
        return Request("2.0", envelope["method"], request_id)
    params = msgspec.json.decode(frame, type=_Params).params
    if has_unsafe_integer(bytes(params)):
        return _unsafe(request_id)
    return Request("2.0", envelope["method"], request_id, params)


_ID_RULE: Final = f"id is an integer within ±(2^53-1), a string of at most {REQUEST_ID_BYTES_MAX} bytes, or null"


class _Params(msgspec.Struct):
    params: Raw


def _envelope_problem(envelope: dict[str, Any], closed: bool) -> str | None:
    if envelope.get("jsonrpc") != "2.0" or not isinstance(envelope["jsonrpc"], str):
        return 'jsonrpc is exactly "2.0"'
    if not isinstance(envelope.get("method"), str):
        return "method is a string"
    if not isinstance(envelope.get("params", {}), list | dict):
        return "params is an array or an object, or left out"
    if closed and (unknown := sorted(set(envelope) - set(_MEMBERS))):
        return f"{unknown[0]!r} is no member of a request"
    return None


def _unsafe(request_id: RequestId | UnsetType) -> Failure | Stray:
    if request_id is UNSET:
        return Stray()
    message = "an integer in params is beyond ±(2^53-1)"
    return refuse(request_id, error_object("invalid_params", message, hint="Send large integers as strings."))


def _is_id(value: object) -> bool:
    if value is None or value is UNSET:
        return True
    if isinstance(value, str):
        return len(value) <= REQUEST_ID_BYTES_MAX and len(value.encode()) <= REQUEST_ID_BYTES_MAX
    return type(value) is int and -SAFE_INTEGER_MAX <= value <= SAFE_INTEGER_MAX


def _unreadable(frame: bytes) -> Failure | None:
    """The refusal of a frame that is no JSON, or JSON no reader should be given."""
    if len(frame) >= _SHORT_MAX and _is_too_deep(frame):
        return refuse(
            None, error_object("parse_error", f"the frame nests deeper than {DEPTH_MAX} levels, or not at all properly")
        )
    try:
        frame.decode("utf-8")
        msgspec.json.decode(frame, type=Raw)
    except UnicodeDecodeError:
        return refuse(None, error_object("parse_error", "the frame is not UTF-8"))
    except msgspec.DecodeError as exc:
        return refuse(None, error_object("parse_error", f"the frame is not JSON: {exc}"))
    return None


def _members(text: bytes) -> list[tuple[str, Any]]:
    """The members of the object ``text``, repeated ones included; none if it is no object."""
    if text[:1] != b"{":
        return []
    pairs: list[tuple[str, Any]] = []

    def note(found: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal pairs
        pairs = found  # The outermost object ends last.
        return {}

    json.loads(text.decode(), object_pairs_hook=note, parse_int=_small_int)
    return pairs


def _repeated(members: list[tuple[str, Any]]) -> list[str]:
    if len(members) == len(dict(members)):
        return []
    return [name for name, times in Counter(name for name, _ in members).items() if times > 1]


def _small_int(digits: str) -> int | float:
    """An integer as it is; one that no reader can hold as a float, which no member may be."""
    return int(digits) if len(digits) <= len(_LONG_NUMBER) + 1 else float(digits)


def _without_params(frame: bytes, request: Request) -> bytes:
    """``frame`` with its params emptied, so that its members are read quickly; whole if they cannot be told apart."""
    if request.params is UNSET:
        return frame
    params = bytes(request.params)
    return frame.replace(params, b"{}", 1) if len(params) > _SHORT_MAX and frame.count(params) == 1 else frame


def _is_shallow(block: bytes, count: int) -> bool:
    if len(block) < _SHORT_MAX or block.count(b"{") + block.count(b"[") <= DEPTH_MAX:
        return True
    if count == 1:
        return not _is_too_deep(block)
    return max(map(len, block.split(b"\n"))) < _SHORT_MAX


def _is_too_deep(text: bytes) -> bool:
    if text.count(b"{") + text.count(b"[") <= DEPTH_MAX:
        return False
    rest = _outside_strings(text).translate(_BRACKETS, _NOT_BRACKETS)
    for _ in range(DEPTH_MAX):  # Each pass takes the innermost level away.
        shorter = rest.replace(b"()", b"")
        if len(shorter) == len(rest):
            break
        rest = shorter
    return rest.count(b"(") > 0


def _outside_strings(text: bytes) -> bytes:
    """``text`` with the insides of its strings left out."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(text.split(b'"')[::2])


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
