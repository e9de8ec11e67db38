"""Answers on their way out: those of a batch gathered, all of them encoded.

Promise: an answer that cannot be encoded costs its own call only, and a batch's answer is no longer than
``BATCH_BYTES_MAX`` and what its small members have.
"""

from typing import Any, Final

import msgspec
from structlog.typing import FilteringBoundLogger

from ctxd.rpc.faults import error_of
from ctxd_protocol.jsonrpc import Failure, Reply, RequestId, encode, encode_all, error_object, refuse

Answer = Reply | Failure | list[msgspec.Raw]

BATCH_BYTES_MAX: Final = 16 * 1024 * 1024
"""Bytes of a batch's answer: as much as a frame may hold that a client sends. Further long members are refused."""

MEMBER_BYTES_SMALL: Final = 64 * 1024
"""Bytes of a member's answer that is never refused for its length: what a write answers is shorter."""


class BatchAnswer:
    """Gathers the answers of one batch; ``add`` gives the array once the last member has its own."""

    __slots__ = ("_answers", "_log", "_open", "_size", "ids")

    def __init__(self, members: int, log: FilteringBoundLogger) -> None:
        self._open = members
        self._log = log
        self._size = 0
        self._answers: list[msgspec.Raw] = []
        self.ids: set[RequestId] = set()

    def add(self, answer: Reply | Failure | None) -> list[msgspec.Raw] | None:
        """Note a member's answer, null for a notification; the whole array when it was the last and there is one."""
        if answer is not None:
            encoded = _encode_one(answer, self._log)[:-1]
            if len(encoded) > MEMBER_BYTES_SMALL and self._size + len(encoded) > BATCH_BYTES_MAX:
                message = f"with this answer the batch's would be longer than {BATCH_BYTES_MAX} bytes"
                hint = "Send this call by itself, or fewer in one batch."
                encoded = encode(refuse(answer.id, error_object("too_large", message, hint=hint)))[:-1]
            self._size += len(encoded)
            self._answers.append(msgspec.Raw(encoded))
        self._open -= 1
        return self._answers if self._open == 0 and self._answers else None


def encode_answers(answers: list[Any], *, log: FilteringBoundLogger) -> bytes:
    """``answers`` as frames. What cannot be encoded becomes an error, and is logged."""
    try:
        return encode_all(answers)
    except Exception:  # noqa: BLE001 - a result that cannot be encoded fails its own call only
        return b"".join(_encode_one(answer, log) for answer in answers)


def _encode_one(answer: Answer, log: FilteringBoundLogger) -> bytes:
    try:
        return encode(answer)
    except Exception as exc:  # noqa: BLE001 - see encode_answers
        assert not isinstance(answer, list), "a batch's members are encoded already"
        return encode(refuse(answer.id, error_of(exc, method="", log=log)))
