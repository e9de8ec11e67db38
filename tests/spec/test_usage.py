"""Usage that providers bill: recorded in their own forms, corrected, priced, and read as of earlier times."""

from collections.abc import Callable
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.assembly.pricing import priced
from ctxd.assembly.usage_operations import TOKENS_MAX, usage_of
from ctxd.errors import CtxdError
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.context_types import AssembledContext
from tests.client.running import Running
from tests.spec.refusal import refused

MODEL = "claude-sonnet-4-5"
ANTHROPIC = {
    "input_tokens": 12,
    "cache_read_input_tokens": 18_000,
    "cache_creation_input_tokens": 900,
    "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 300},
    "output_tokens": 240,
    "service_tier": "standard",
    "server_tool_use": {"web_search_requests": 2},
}
RESPONSES = {
    "input_tokens": 9_000,
    "input_tokens_details": {"cached_tokens": 8_000, "cache_write_tokens": 0},
    "output_tokens": 300,
    "output_tokens_details": {"reasoning_tokens": 120},
    "total_tokens": 9_300,
}
CHAT = {
    "prompt_tokens": 9_000,
    "completion_tokens": 300,
    "total_tokens": 9_300,
    "prompt_tokens_details": {"cached_tokens": 8_000, "audio_tokens": 0},
    "completion_tokens_details": {"reasoning_tokens": 120, "accepted_prediction_tokens": 0},
}

Start = Callable[..., SyncSession]


def request(s: SyncSession, text: str = "hi", model: str = MODEL) -> AssembledContext:
    s.user(text)
    return s.assemble(format="anthropic-messages", model=model)


@pytest.mark.requirement("USE-1")
def test_the_usage_object_of_each_provider_is_taken_as_it_is(s: SyncSession) -> None:
    made = request(s)
    kept = s.usage(ANTHROPIC).usage
    assert (kept.number, kept.context_id, kept.model) == (made.number, made.context_id, MODEL)
    assert (kept.input, kept.cache_read, kept.output, kept.reasoning) == (12, 18_000, 240, None)
    assert kept.cache_write == {"300": 600, "3600": 300}
    assert kept.other == {"service_tier": "standard", "server_tool_use": {"web_search_requests": 2}}
    for usage in (RESPONSES, CHAT):
        kept = s.usage(usage, model="gpt-5").usage
        assert (kept.input, kept.cache_read, kept.cache_write) == (1_000, 8_000, {})
        assert (kept.output, kept.reasoning, kept.model) == (300, 120, "gpt-5")
    assert kept.other == {
        "prompt_tokens_details": {"audio_tokens": 0},
        "completion_tokens_details": {"accepted_prediction_tokens": 0},
    }
    plain = {"input": 1, "cache_read": 2, "cache_write": {"3600": 3}, "output": 4, "reasoning": 2}
    kept = s.usage(plain).usage
    assert (kept.input, kept.cache_read, kept.cache_write, kept.output, kept.reasoning) == (1, 2, {"3600": 3}, 4, 2)


@pytest.mark.requirement("USE-1")
def test_cache_writes_without_a_lifetime_count_as_anthropics_five_minutes() -> None:
    given = {"input_tokens": 1, "cache_creation_input_tokens": 7, "cache_read_input_tokens": None, "output_tokens": 2}
    assert usage_of(1, MODEL, given).cache_write == ((300, 7),)


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({}, "usage.input"),
    ({"input": -1, "output": 1}, "usage.input"),
    ({"input": True, "output": 1}, "usage.input"),
    ({"input": 1.5, "output": 1}, "usage.input"),
    ({"input": 1, "output": TOKENS_MAX + 1}, "usage.output"),
    ({"input": 1, "output": 1, "cached": 1}, "usage.cached"),
    ({"input": 1, "output": 1, "cache_write": {"soon": 1}}, "'?soon"),
    ({"input": 1, "output": 1, "reasoning": 2}, "reasoning"),
    ({**ANTHROPIC, "cache_creation_input_tokens": 901}, "cache_creation"),
    ({**ANTHROPIC, "cache_read_input_tokens": "many"}, "cache_read_input_tokens"),
    ({**ANTHROPIC, "more": "x" * 5_000}, "further members"),
    ({**RESPONSES, "total_tokens": 9_301}, "total_tokens"),
    ({**RESPONSES, "input_tokens_details": {"cached_tokens": 9_001}}, "input_tokens"),
    ({**CHAT, "completion_tokens_details": {"reasoning_tokens": 301}}, "reasoning"),
    ({**CHAT, "prompt_tokens_details": 3}, "prompt_tokens_details"),
)


@pytest.mark.requirement("USE-2")
@pytest.mark.parametrize(("given", "named"), WRONG)
def test_contradicting_and_impossible_numbers_are_refused_by_name(given: dict[str, Any], named: str) -> None:
    with pytest.raises(CtxdError, match=named) as caught:
        usage_of(1, MODEL, given)
    assert caught.value.code == "invalid_params"
    assert caught.value.hint


@pytest.mark.requirement("USE-2")
def test_usage_without_a_request_is_rejected(s: SyncSession) -> None:
    with refused("assembly_not_found"):
        s.usage(ANTHROPIC)
    s.user("hi")
    s.assemble()
    with refused("invalid_params"):
        s.usage(ANTHROPIC)
    with refused("assembly_not_found"):
        s.usage(ANTHROPIC, context_id="ctx:0000", model=MODEL)
    assert s.usage_totals().total.requests == 0
    assert s.usage(ANTHROPIC, model=MODEL).usage.number == 1, "text was assembled, and the model is given"


@pytest.mark.own_daemon
@pytest.mark.requirement("USE-3")
def test_a_later_record_corrects_and_an_equal_one_writes_nothing(client: SyncClient, s: SyncSession) -> None:
    first, second = request(s), request(s, "more")
    wrong = s.usage({**ANTHROPIC, "output_tokens": 1}, context_id=first.context_id).receipt
    assert wrong is not None
    s.usage(RESPONSES, op_id="op-1")
    right = s.usage(ANTHROPIC, context_id=first.context_id)
    assert right.usage.number == first.number != second.number
    head = client.daemon_status().store.head_seq
    assert s.usage(ANTHROPIC, context_id=first.context_id).receipt is None
    again = s.usage(RESPONSES, op_id="op-1")
    assert again.receipt is not None and again.usage.number == second.number
    assert client.daemon_status().store.head_seq == head, "nothing was written"
    with refused("idempotency_mismatch"):
        s.usage(CHAT, op_id="op-1")
    total = s.usage_totals().total
    assert (total.requests, total.output, total.reasoning) == (2, 540, 120)
    assert s.usage_totals(tx=wrong.seq).total.output == 1, "as it was known then"


@pytest.mark.requirement("USE-3")
def test_usage_survives_a_kill_and_is_exported(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a")
        for text in ("one", "two", "three"):
            request(s, text)
            s.usage(ANTHROPIC)
        before = s.usage_totals()
        kept.kill()
        kept.start()
        s = client.session("s")
        assert s.usage_totals() == before
        records, cursor = [], None
        while True:
            page = s.export(limit=2, cursor=cursor)
            records += [record for record in page.records if record["record"] == "usage"]
            if (cursor := page.next_cursor) is None:
                break
    assert [record["assembly"] for record in records] == [1, 2, 3]
    assert records[0]["cache_write"] == {"300": 600, "3600": 300}


@pytest.mark.requirement("USE-4")
def test_prices_are_micro_dollars_of_the_table_and_sums_add_up(s: SyncSession) -> None:
    request(s)
    price = s.usage(ANTHROPIC).usage.price
    assert price is not None
    assert (price.input, price.cache_read, price.output) == (36, 5_400, 3_600)
    assert price.cache_write == {"300": 2_250, "3600": 1_800}
    assert price.total == 36 + 5_400 + 3_600 + 2_250 + 1_800
    request(s, "more")
    assert s.usage(RESPONSES, model="nobody-knows-it").usage.price is None
    totals = s.usage_totals()
    assert (totals.total.requests, totals.total.unpriced, totals.total.price) == (2, 1, price)
    assert list(totals.models) == [MODEL, "nobody-knows-it"]
    assert totals.models[MODEL].input == 12


@pytest.mark.requirement("USE-4")
@given(st.integers(0, TOKENS_MAX), st.integers(0, 10**9))
def test_a_price_is_the_nearest_integer_half_up(tokens: int, price: int) -> None:
    assert 0 <= 2 * 10**6 * priced(tokens, price) - (2 * tokens * price - 10**6) <= 2 * 10**6
    assert priced(1, 500_000) == 1
    assert priced(1, 499_999) == 0


@pytest.mark.requirement("USE-3")
@pytest.mark.parametrize("layout", ["spec", "append"])
def test_usage_without_a_context_belongs_to_the_newest_request(
    s: SyncSession, layout: Literal["spec", "append"]
) -> None:
    request(s, "first")
    made = request(s, "second")
    looks = [s.assemble(layout=layout).number]
    s.user("third")
    looks.append(s.assemble(layout=layout).number)
    assert looks == [made.number + 1, made.number + 2], "each look is recorded"
    kept = s.usage(ANTHROPIC).usage
    assert (kept.number, kept.context_id, kept.model) == (made.number, made.context_id, MODEL)
    again = s.usage(ANTHROPIC, context_id=s.show(number=looks[1]).context_id, model=MODEL).usage
    assert again.number == looks[1], "the context that is named wins"


@pytest.mark.requirement("USE-2")
@pytest.mark.parametrize("wrong", [-7, TOKENS_MAX + 1, "7", 1.5, True])
@pytest.mark.parametrize("name", ["thinking_tokens", "reasoning_tokens"])
def test_reasoning_tokens_that_are_no_count_are_rejected_in_every_format(name: str, wrong: object) -> None:
    details = {"output_tokens_details": {name: wrong}}
    forms: list[dict[str, Any]] = [{"input_tokens": 5, "output_tokens": 3, **details}]
    if name == "reasoning_tokens":
        forms.append({**RESPONSES, **details})
        forms.append({**CHAT, "completion_tokens_details": {name: wrong}})
        forms.append({"input": 5, "output": 3, "reasoning": wrong})
    for form in forms:
        with pytest.raises(CtxdError, match=r"usage\.[a-z_.]+ is .*, not a number from 0 to 1,000,000,000"):
            usage_of(1, MODEL, form)
    good = {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {name: 2}}
    assert usage_of(1, MODEL, good).reasoning == 2
