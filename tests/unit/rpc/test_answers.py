"""Answers of a batch: gathered as they come, and bounded together."""

import msgspec
import structlog

from ctxd.rpc.in_flight_calls import BATCH_BYTES_MAX, BatchAnswers, encode_replies
from ctxd_protocol.jsonrpc import Reply

LOG = structlog.get_logger()


def answered(results: list[str]) -> tuple[bytes, list[dict]]:
    batch = BatchAnswers(len(results), LOG)
    *early, whole = [batch.add(Reply("2.0", number, result)) for number, result in enumerate(results)]
    assert early == [None] * (len(results) - 1)
    frame = encode_replies([whole], log=LOG)
    return frame, msgspec.json.decode(frame)


def test_a_batch_is_one_line_that_holds_every_answer() -> None:
    frame, members = answered(["a\nb", "c"])
    assert frame.count(b"\n") == 1
    assert [(member["id"], member["result"]) for member in members] == [(0, "a\nb"), (1, "c")]


def test_a_batch_response_is_bounded_in_bytes_and_lists_the_calls_to_send_alone() -> None:
    frame, members = answered(["x" * (BATCH_BYTES_MAX // 3)] * 9)
    assert len(frame) < BATCH_BYTES_MAX + 9 * 1024
    refused = [member["error"]["data"] for member in members if "error" in member]
    assert len(refused) == 7
    assert all(data["code"] == "too_large" and data["hint"] for data in refused)


def test_short_responses_are_delivered_beside_oversized_ones() -> None:
    _, members = answered(["x" * (BATCH_BYTES_MAX - 100), "short", "y" * BATCH_BYTES_MAX, "receipt"])
    assert [member.get("result", "refused")[:7] for member in members] == ["xxxxxxx", "short", "refused", "receipt"]


def test_a_result_that_cannot_be_encoded_costs_its_own_call_only() -> None:
    batch = BatchAnswers(2, LOG)
    with structlog.testing.capture_logs():
        batch.add(Reply("2.0", 1, object()))
        whole = batch.add(Reply("2.0", 2, "fine"))
    first, second = msgspec.json.decode(encode_replies([whole], log=LOG))
    assert first["error"]["data"]["code"] == "internal_error"
    assert second["result"] == "fine"
