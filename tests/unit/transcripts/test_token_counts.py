"""Tokens of the providers' requests: each counted once, however often and in whatever form a harness writes them."""

import pytest

from ctxd.transcripts import claude_code, codex
from ctxd.transcripts.record_decoding import total_usage
from ctxd_protocol.event_types import Usage
from tests.unit.transcripts.test_readers import numbered


def counted(input, cached, output):
    total = {"input_tokens": input, "cached_input_tokens": cached, "output_tokens": output}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": {"total_token_usage": total}}}


def test_codex_tokens_are_differences_of_totals():
    records = [
        counted(1000, 800, 50),
        counted(1000, 800, 50),
        {"type": "event_msg", "payload": {"type": "token_count", "info": None}},
        counted(3000, 2500, 90),
        counted(400, 0, 10),
    ]
    found = list(codex.read_rollout(numbered(*records)))
    assert total_usage(found) == Usage(input=200 + 300 + 400, output=50 + 40 + 10, cache_read=2500)


def answered(response, input, output):
    usage = {"input_tokens": input, "cached_input_tokens": 0, "output_tokens": output}
    return {"type": "token_usage_record", "payload": {"response_id": response, "usage": usage}}


def test_the_output_of_a_headless_run_is_that_of_its_result():
    def said(id, output):
        usage = {"input_tokens": 10, "output_tokens": output}
        message = {"id": id, "role": "assistant", "content": [{"type": "text", "text": "x"}], "usage": usage}
        return {"type": "assistant", "session_id": "S", "message": message}

    def result(output):
        return {"type": "result", "session_id": "S", "usage": {"input_tokens": 20, "output_tokens": output}}

    records = [
        said("m1", 1),
        said("m1", 1),
        said("m2", 3),
        result(224),
        said("m3", 5),
        result(5),
        said("m4", 9),
        result(2),
    ]
    found = list(claude_code.read_session(numbered(*records)))
    assert total_usage(found) == Usage(input=40, output=224 + 5 + 9)


@pytest.mark.parametrize("is_whole", [True, False])
@pytest.mark.parametrize("writes", ["records", "totals", "both"])
def test_codex_tokens_are_counted_once_whether_it_writes_them_for_a_response_or_in_total(writes, is_whole):
    meta = {"type": "session_meta", "payload": {"id": "T"}}
    last = {"last_token_usage": {"input_tokens": 1000, "output_tokens": 5}}
    first, second = counted(1000, 0, 5), counted(2500, 0, 9)
    first["payload"]["info"] |= last
    records = [answered("r1", 1000, 5), first, answered("r1", 1000, 5), answered("r2", 1500, 4), second]
    left_out = {"records": "event_msg", "totals": "token_usage_record", "both": ""}[writes]
    records = [each for each in records if each["type"] != left_out]
    found = list(codex.read_rollout(numbered(*([meta] if is_whole else []), *records)))
    assert total_usage(found) == Usage(input=2500, output=9)
