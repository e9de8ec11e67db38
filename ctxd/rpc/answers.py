"""Answers on their way out: those of a batch gathered, all of them encoded.

Promise: an answer that cannot be encoded costs its own call only.
"""

from typing import Any

from structlog.typing import FilteringBoundLogger

from ctxd.rpc.faults import error_of
from ctxd_protocol.jsonrpc import Failure, Reply, RequestId, encode, encode_all, refuse

Answer = Reply | Failure | list[Reply | Failure]


class BatchAnswer:
    """Gathers the answers of one batch; ``add`` gives the array once the last member has its own."""

    __slots__ = ("_answers", "_open", "ids")

    def __init__(self, members: int) -> None:
        self._open = members
        self._answers: list[Reply | Failure] = []
        self.ids: set[RequestId] = set()

    def add(self, answer: Reply | Failure | None) -> list[Reply | Failure] | None:
        """Note a member's answer, null for a notification; the whole array when it was the last and there is one."""
        if answer is not None:
            self._answers.append(answer)
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
        error = error_of(exc, method="", log=log)
        members = answer if isinstance(answer, list) else [answer]
        failures = [refuse(member.id, error) for member in members]
        return encode(failures) if isinstance(answer, list) else encode(failures[0])
