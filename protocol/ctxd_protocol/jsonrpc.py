"""JSON-RPC 2.0 over a byte stream: frames of one line each, strict reading of requests, exact writing. No I/O.

A frame is one JSON text in UTF-8, terminated by a line feed. At most ``limit`` bytes of an unfinished frame are
buffered, whatever the peer sends. Parameters stay bytes (``msgspec.Raw``); this module does not know the methods. An
accepted request is valid UTF-8 JSON, nests at most ``DEPTH_MAX`` levels, has each member once, and has an id that every
JSON reader can echo.

For speed, ``BlockReader`` decodes all lines of one receive at once if cheap checks of the whole block pass; otherwise
``read_frame`` reads them one by one. Both give the same results.
"""

import json
import re
import sys
from collections import Counter
from collections.abc import Sequence
from itertools import accumulate, product
from operator import add
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType

from ctxd_protocol.error_codes import ErrorCode
from ctxd_protocol.errors import ERRORS, ErrorData, ErrorObject
from ctxd_protocol.limits import BATCH_MAX, DEPTH_MAX, REQUEST_ID_BYTES_MAX, SAFE_INTEGER_MAX

RequestId = int | str | None


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A call, or a notification if ``id`` is unset. An ``id`` of None is a call, and is echoed."""

    jsonrpc: Literal["2.0"]
    method: str
    id: int | str | None | UnsetType = UNSET
    params: Raw | UnsetType = UNSET


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The reply to a successful call."""

    jsonrpc: str
    id: RequestId
    result: Any


class Failure(msgspec.Struct, frozen=True, gc=False):
    """The reply to a failed call; ``id`` is None if the request's id could not be read."""

    jsonrpc: str
    id: RequestId
    error: ErrorObject


class Notification(msgspec.Struct, frozen=True, gc=False):
    """A message from the daemon that is not a reply."""

    jsonrpc: str
    method: str
    params: Any


class Stray(msgspec.Struct, frozen=True):
    """A frame that is dropped without a reply: an unexpected reply, or a malformed notification."""


class BatchRequest(msgspec.Struct, frozen=True):
    """The members of a batch in order; the reply is one array."""

    members: tuple[Request | Failure | Stray, ...]


Frame = Request | Failure | BatchRequest | Stray

_FOREIGN: Final = b"content-length:"
_ENCODER: Final = msgspec.json.Encoder()
_REQUEST: Final = msgspec.json.Decoder(Request)
_ITEMS: Final = msgspec.json.Decoder(list[Raw])

_SHORT_MAX: Final = 2 * DEPTH_MAX + 1
"""Bytes of the longest line that cannot nest too deep: each level takes two brackets."""

_LONG_MIN: Final = 16 * 1024
"""Bytes of the shortest line for which avoiding a full pass pays off."""

_HEAD_BYTES: Final = 4096
"""Bytes at the start of a frame whose nesting is checked first."""

_SHAPES_MAX: Final = 1024
"""Maximum number of cached shapes of lines; each has fewer than ``_SHORT_MAX`` bytes."""

_DIGITS: Final = bytes(48 if 48 <= byte < 58 else byte for byte in range(256))
_LONG_NUMBER: Final = b"0" * len(str(SAFE_INTEGER_MAX))
_EVERY_FOURTH: Final = _LONG_NUMBER[::4]
_LONG_INTEGER: Final = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{%d,}(?![0-9.eE])" % len(_LONG_NUMBER))
_BRACKETS: Final = bytes.maketrans(b"{}[]", b"()()")
_NOT_BRACKETS: Final = bytes(set(range(256)) - set(b"{}[]"))
_MEMBERS: Final = ("jsonrpc", "method", "id", "params")
_QUOTES_MIN: Final = 12
"""Quotes of a request with all four members, params without quotes, and a number as its id."""

_QUOTED_MEMBERS: Final = tuple(f'"{name}"'.encode() for name in _MEMBERS)


def error_object(code: ErrorCode, message: str, *, hint: str = "", **data: Any) -> ErrorObject:  # noqa: ANN401 - ErrorData's
    """The error object for ``code``; ``data`` gives further fields of ``ErrorData``."""
    kind = ERRORS[code]
    return ErrorObject(
        code=kind.number, message=message, data=ErrorData(code=code, hint=hint, retryable=kind.retryable, **data)
    )


def refuse(request_id: RequestId, error: ErrorObject) -> Failure:
    """The error reply to the request ``request_id``."""
    return Failure("2.0", request_id, error)


def encode(message: Reply | Failure | Notification | Sequence[Reply | Failure | msgspec.Raw]) -> bytes:
    """``message`` as one frame; a list becomes a batch reply, and its members may be encoded already."""
    return _ENCODER.encode(message) + b"\n"


encode_all: Final = _ENCODER.encode_lines
"""Encodes each message of a list as a frame."""


class FrameFault(Exception):
    """Base of framing errors: the byte stream can no longer be split, and the connection must end.

    ``code`` is the symbolic error code for the reply, ``hint`` the remedy for the peer.
    """

    code: ErrorCode = "invalid_request"
    hint = ""


class FrameTooLarge(FrameFault):
    """A line that is longer than the limit."""

    code: ErrorCode = "frame_too_large"
    hint = "Send larger text as several calls."

    def __init__(self, limit: int) -> None:
        super().__init__(f"a frame is longer than {limit} bytes")
        self.limit = limit


class WrongFraming(FrameFault):
    """Framing by headers, as in the Language Server Protocol."""

    hint = "Send one JSON text per line, ended by a line feed, without headers."

    def __init__(self) -> None:
        super().__init__("frames with a Content-Length header are not supported")


class FrameDecoder:
    """Splitter of received bytes into frames.

    ``fault`` is set once the stream can no longer be split; frames before the fault are still returned. ``tail`` is the
    start of an incomplete line, None without one.
    """

    __slots__ = ("_limit", "fault", "tail")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.tail: bytearray | None = None
        self.fault: FrameFault | None = None

    @property
    def pending(self) -> int:
        """Number of buffered bytes of an incomplete frame."""
        return 0 if self.tail is None else len(self.tail)

    def feed(self, data: bytes) -> list[bytes]:
        """Add ``data`` and return the frames it completes, without line ends and without blank lines.

        Raises: the fault, once no frame precedes it.
        """
        frames = self.split(self.take(data))
        if self.fault is not None and not frames:
            raise self.fault
        return frames

    def take(self, data: bytes) -> bytes:
        """Add ``data`` and return all complete lines as one block, line ends included. May set ``fault``."""
        if self.fault is not None:
            return b""
        tail = self.tail
        if tail is None and data.endswith(b"\n"):
            return data
        end = data.rfind(b"\n") + 1
        block = b""
        if end:
            block, data = data[:end], data[end:]
            if tail is not None:
                block, tail = bytes(tail) + block, None
        self.tail = self._hold(tail, data)
        return block

    def split(self, block: bytes) -> list[bytes]:
        """Split a result of ``take`` into frames, without line ends and blank lines. May set ``fault``."""
        frames: list[bytes] = []
        limit = self._limit
        # Finding the end of a single line takes a tenth of the time of splitting at it.
        is_single = block.find(b"\n") == len(block) - 1
        for line in (block[:-1],) if is_single else block.split(b"\n"):
            frame = line.strip(b" \t\r")
            if not frame:
                continue
            if len(line) > limit and len(line) - line.endswith(b"\r") > limit:
                self.fault = FrameTooLarge(limit)
                return frames
            if frame[:1] in b"Cc" and frame[: len(_FOREIGN)].lower() == _FOREIGN:
                self.fault = WrongFraming()
                return frames
            frames.append(frame)
        return frames

    def _hold(self, tail: bytearray | None, data: bytes) -> bytearray | None:
        held = len(data) if tail is None else len(tail) + len(data)
        if held > self._limit and not (held == self._limit + 1 and data.endswith(b"\r")):
            self.fault = FrameTooLarge(self._limit)
            return None
        if not data:
            return tail
        if tail is None:
            return bytearray(data)
        tail += data
        return tail


class BlockReader:
    """Reader of all lines of one receive at once, if cheap checks show that no line needs a full check.

    The checks depend only on a line's shape: the line with all digits replaced by the same one. Clients repeat few
    shapes, so a bounded number of plain shapes is cached.
    """

    __slots__ = ("_plain",)

    def __init__(self) -> None:
        self._plain = {b""}  # the rest after the last line end

    def read(self, block: bytes) -> list[Request] | None:
        """The requests of ``block``, which has complete lines with line ends; None if ``read_frame`` must read them."""
        if block.find(b"\n", 0, _SHORT_MAX) < 0:
            return None  # The first line is too long to be plain. This check avoids a pass over a long line.
        count = block.count(b"\n")
        if len(block) > _SHORT_MAX * count:
            return None  # At least one line is too long to be plain.
        shapes = set(block.translate(_DIGITS).split(b"\n"))
        if not shapes <= self._plain:
            if not all(map(_is_plain, shapes)):
                return None
            if len(self._plain) + len(shapes) > _SHAPES_MAX:
                self._plain = {b""}
            self._plain |= shapes
        try:
            requests = _REQUEST.decode_lines(block)
        except msgspec.DecodeError:
            return None
        # Every line starts and ends like an object, so none spans a line end; equal counts mean one request per line.
        return requests if len(requests) == count else None


def _is_plain(shape: bytes) -> bool:
    """True if every line of this shape that decodes as a request conforms to all rules."""
    return not shape or (
        len(shape) < _SHORT_MAX
        and shape.startswith(b"{")
        and shape.endswith((b"}", b"}\r"))
        and shape.isascii()
        and b"\\" not in shape
        and _LONG_NUMBER not in shape
        and max(map(shape.count, _QUOTED_MEMBERS)) <= 1
    )


def read_frame(frame: bytes, *, closed: bool = False) -> Frame:
    """Read ``frame``, one line without its end; a ``Failure`` is the reply to an invalid frame.

    ``closed`` refuses members that JSON-RPC does not define instead of ignoring them.
    """
    has_many_brackets = len(frame) >= _SHORT_MAX and (
        frame.count(b"{") + frame.count(b"[") > DEPTH_MAX if len(frame) < _LONG_MIN else _has_many_brackets(frame)
    )
    if has_many_brackets and _is_too_deep(frame):
        message = f"the frame nests deeper than {DEPTH_MAX} levels, or its brackets do not match"
        return refuse(None, error_object("parse_error", message))
    if not frame.isascii() and not _is_utf8(frame):
        return refuse(None, error_object("parse_error", "the frame is not UTF-8"))
    return _read_batch(frame, closed) if frame[:1] == b"[" else _read_request(frame, closed)


def _has_many_brackets(frame: bytes) -> bool:
    """True if ``frame`` has more than ``DEPTH_MAX`` opening brackets. Searching for the next one is thirty times as
    fast as counting all."""
    left = DEPTH_MAX
    for bracket in (b"{", b"["):
        place = frame.find(bracket)
        while place >= 0:
            left -= 1
            if left < 0:
                return True
            place = frame.find(bracket, place + 1)
    return False


def _read_request(frame: bytes, closed: bool) -> Request | Failure | Stray:
    """Read one request, a frame or a member of a batch; its encoding and depth are checked already."""
    try:
        request = _REQUEST.decode(frame)
    except msgspec.DecodeError:
        return _read_loose(frame, closed)
    params = b"" if request.params is UNSET else bytes(request.params)
    size, rest = len(params), frame  # The frame with its params emptied, if they can be located.
    if size > _SHORT_MAX and 2 * size > len(frame) and frame.endswith(params, 0, -1):
        # Params are last, as in most clients, and too long to occur twice.
        rest = frame[: -1 - size] + b"{}}"
    elif size > _SHORT_MAX:
        rest = _emptied(frame, params)
    # Without backslashes, all four members once make a fixed number of quotes, and a repeated one makes more.
    kind = type(request.id)
    quotes = _QUOTES_MIN if kind is int else _QUOTES_MIN + 2 if kind is str else 0
    if not size or b"\\" in rest or rest.count(b'"') != quotes:
        may_repeat = b"\\" in rest or max(map(rest.count, _QUOTED_MEMBERS)) > 1
        if may_repeat and closed and len(rest) > _ENVELOPE_BYTES_CLOSED_MAX:
            return _wide_envelope(frame)
        if may_repeat and _repeated(_members(rest)):
            return _read_loose(frame, closed)
    plain = type(request.id) is int and -SAFE_INTEGER_MAX <= request.id <= SAFE_INTEGER_MAX
    if not plain and not _is_id(request.id):
        return _read_loose(frame, closed)
    return _unsafe(request.id) if has_unsafe_integer(params) else request


def _emptied(frame: bytes, params: bytes) -> bytes:
    """``frame`` with its ``params`` emptied, if they can be located. Searching for a long text takes many times as long
    as comparing it, so if params are most of the frame, they are compared at each offset near its end."""
    size, last = len(params), len(frame) - 1 - len(params)
    if 2 * size > len(frame):
        places = range(last, max(-1, last - _ENVELOPE_SEARCHED), -1)
        if (start := next((place for place in places if frame.startswith(params, place)), -1)) >= 0:
            return frame[:start] + b"{}" + frame[start + size :]
    return frame.replace(params, b"{}", 1) if frame.count(params) == 1 else frame


def has_unsafe_integer(text: bytes) -> bool:
    """True if valid JSON ``text`` has an integer beyond ``SAFE_INTEGER_MAX`` outside of strings."""
    # Without escapes, the contents of strings, such as base64, are removed first: digits in them need no check.
    is_outside = len(text) >= _LONG_MIN and b"\\" not in text
    if is_outside:
        text = _outside_strings(text)
    # A number as long as ``_LONG_NUMBER`` has four in a row of every fourth byte, which is a quarter of the work.
    if _EVERY_FOURTH not in text[::4].translate(_DIGITS) or _LONG_NUMBER not in text.translate(_DIGITS):
        return False
    return any(
        len(digits := token.removeprefix(b"-")) > len(_LONG_NUMBER) or int(digits) > SAFE_INTEGER_MAX
        for token in _LONG_INTEGER.findall(text if is_outside else _outside_strings(text))
    )


def _read_batch(frame: bytes, closed: bool) -> BatchRequest | Failure:
    try:
        items = _ITEMS.decode(frame)
    except msgspec.DecodeError as exc:
        return refuse(None, error_object("parse_error", f"the frame is not JSON: {exc}"))
    if not items:
        return refuse(None, error_object("invalid_request", "a batch has at least one member"))
    if len(items) > BATCH_MAX:
        message = f"a batch has at most {BATCH_MAX} members, this one has {len(items)}"
        return refuse(None, error_object("batch_too_large", message, hint="Send several batches."))
    return BatchRequest(tuple(_read_request(bytes(item), closed) for item in items))


def _read_loose(frame: bytes, closed: bool) -> Request | Failure | Stray:
    """Read a frame that failed the strict reading: report its fault, or drop members that may be ignored."""
    try:
        msgspec.json.decode(frame, type=Raw)
    except msgspec.DecodeError as exc:
        return _not_json(frame, exc, closed)
    if closed and len(frame) > _ENVELOPE_BYTES_CLOSED_MAX:
        return _wide_envelope(frame)
    members = _members(frame)
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


def _not_json(frame: bytes, reason: msgspec.DecodeError, closed: bool) -> Failure:
    """A parse error; with the request's id if lone surrogates, which JavaScript can produce, are the only fault."""
    error = error_object("parse_error", f"the frame is not JSON: {reason}")
    # All connections wait while a malformed frame is diagnosed, so a long one is refused without a diagnosis.
    if len(frame) > (_MENDED_BYTES_CLOSED_MAX if closed else _MENDED_BYTES_MAX):
        return refuse(None, error)
    mended = _HALF.sub(rb"\1\\ufffd", frame)
    if mended == frame:
        return refuse(None, error)
    error = error_object("parse_error", f"half of a surrogate pair is not a character: {reason}", hint=_WHOLE)
    try:
        request_id = msgspec.json.decode(mended, type=_Numbered).id
    except msgspec.DecodeError:
        return refuse(None, error)
    return refuse(request_id if _is_id(request_id) else None, error)


_HIGH: Final = rb"\\u[dD][89abAB][0-9a-fA-F]{2}"
_LOW: Final = rb"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_HALF: Final = re.compile(rb"(?<!\\)((?:\\\\)*)(?:%b(?!%b)|(?<!%b)%b)" % (_HIGH, _LOW, _HIGH, _LOW))
"""A lone surrogate, after escaped backslashes."""

_ENVELOPE_SEARCHED: Final = 1024
"""Number of offsets near the end of a long request at which its params are compared."""

_ENVELOPE_BYTES_CLOSED_MAX: Final = 16 * 1024
"""Maximum bytes of an invalid request from a sandbox whose members are checked one by one, in some 2 ms."""

_MENDED_BYTES_CLOSED_MAX: Final = 16 * 1024
"""Maximum bytes of a malformed frame from a sandbox that is searched for lone surrogates, in some 3 ms."""

_MENDED_BYTES_MAX: Final = 1024 * 1024
"""Maximum bytes of a malformed frame that is searched for lone surrogates, in 0.2 s if it has nothing else."""

_WHOLE: Final = "Replace it before sending: toWellFormed() in JavaScript."


class _Numbered(msgspec.Struct):
    id: int | str | None = None


_ID_RULE: Final = f"id is an integer within ±(2^53-1), a string of at most {REQUEST_ID_BYTES_MAX} bytes, or null"


class _Params(msgspec.Struct):
    params: Raw


def _wide_envelope(frame: bytes) -> Failure:
    """The refusal of a large invalid request, without a diagnosis, which would block all connections."""
    message = f"a request has the members {', '.join(_MEMBERS)}, each of its type and no more than once"
    try:
        request_id = msgspec.json.decode(frame, type=_Numbered).id
    except msgspec.DecodeError:
        request_id = None
    return refuse(request_id if _is_id(request_id) else None, error_object("invalid_request", message))


def _envelope_problem(envelope: dict[str, Any], closed: bool) -> str | None:
    if envelope.get("jsonrpc") != "2.0" or not isinstance(envelope["jsonrpc"], str):
        return 'jsonrpc is exactly "2.0"'
    if not isinstance(envelope.get("method"), str):
        return "method is a string"
    if not isinstance(envelope.get("params", {}), list | dict):
        return "params is an array or an object, or left out"
    if closed and (unknown := sorted(set(envelope) - set(_MEMBERS))):
        return f"{unknown[0]!r} is not a member of a request"
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


def _members(text: bytes) -> list[tuple[str, Any]]:
    """The members of the object ``text``, repeated ones included; empty if it is not an object."""
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
    """Parse an integer; one with too many digits becomes a float, which is invalid for every member."""
    return int(digits) if len(digits) <= len(_LONG_NUMBER) + 1 else float(digits)


def _is_too_deep(text: bytes) -> bool:
    head = _outside_strings(text[:_HEAD_BYTES]).translate(_BRACKETS, _NOT_BRACKETS)
    if head.count(b"(") - head.count(b")") > DEPTH_MAX:
        return True  # A nesting bomb is recognised at its start, without the cost of a full pass.
    brackets = _outside_strings(text).translate(_BRACKETS, _NOT_BRACKETS)
    # Eight brackets at a time: every other client waits while a line of nothing but brackets is checked.
    whole = len(brackets) // 8 * 8
    words = memoryview(brackets[:whole]).cast("Q").tolist()
    starts = list(accumulate(map(_RISES.__getitem__, words), initial=0))
    peak = max(map(add, starts, map(_PEAKS.__getitem__, words)), default=0)
    depth = starts[-1]
    for bracket in brackets[whole:]:
        depth += 1 if bracket == _OPENING else -1
        peak = max(peak, depth)
    return peak > DEPTH_MAX or depth > 0


_OPENING: Final = ord("(")


def _eights() -> tuple[dict[int, int], dict[int, int]]:
    """The change of depth and the maximum depth of every sequence of eight brackets, by its bytes as an integer."""
    rises, peaks = {}, {}
    for brackets in product(b"()", repeat=8):
        levels = list(accumulate(1 if bracket == _OPENING else -1 for bracket in brackets))
        word = int.from_bytes(bytes(brackets), sys.byteorder)
        rises[word], peaks[word] = levels[-1], max(levels)
    return rises, peaks


_RISES, _PEAKS = _eights()


def _outside_strings(text: bytes) -> bytes:
    """``text`` without the contents of its strings."""
    if b"\\" in text:
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    return b'"'.join(text.split(b'"')[::2])


def _is_utf8(block: bytes) -> bool:
    try:
        block.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True
