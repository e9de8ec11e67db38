"""A write request on its way: who asks for what, under which operation id, and the answer to one that came before."""

from typing import Any, Final, TypeVar

import msgspec
from blake3 import blake3

from ctxd.store.answers import Replay
from ctxd.store.writes import Accepted

_encode: Final = msgspec.msgpack.Encoder().encode
_encode_result: Final = msgspec.json.Encoder().encode

R = TypeVar("R", bound=msgspec.Struct)


class Call(msgspec.Struct, frozen=True):
    """``kind`` is the method's name; ``request`` a digest of it and its parameters, empty without ``op_id``."""

    kind: str
    principal: str
    op_id: str | None = None
    request: bytes = b""


def call_of(kind: str, principal: str, params: Any) -> Call:  # noqa: ANN401 - any write's params: they have an op_id
    """The call that ``params`` are of."""
    if params.op_id is None:
        return Call(kind, principal)
    # Methods share forms of parameters: without the name, an unpin would be answered as the pin before it was.
    digest = blake3(_encode((kind, msgspec.structs.replace(params, op_id=None)))).digest()
    return Call(kind, principal, params.op_id, digest)


def kept_result(call: Call, result: msgspec.Struct) -> bytes:
    """``result``, still without receipt, as it is kept for a resend; empty if none can come."""
    return b"" if call.op_id is None else _encode_result(result)


def with_receipt(result: R, replay: Replay) -> Accepted:
    """``result`` with the receipt of the write that ``replay`` found, once that is durable."""
    if replay.pending is not None:
        return Accepted(replay.pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))
    return Accepted(None, lambda _: msgspec.structs.replace(result, receipt=replay.receipt))


def again(replay: Replay, result: type[R]) -> Accepted:
    """The first answer to a write that comes again."""
    return with_receipt(msgspec.json.decode(replay.result, type=result), replay)
