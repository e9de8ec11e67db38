"""Estimates of requests, calibrated by the usage that a provider billed."""

import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.assembly_record import read_record
from ctxd.assembly.token_calibration import CalibrationSample, ContentMeasures, calibrated, measure_text
from ctxd.assembly.usage_operations import usage_of
from ctxd.assembly.window_loading import ReadBound
from ctxd.clock import SystemClock
from ctxd.objects.generated_ids import assembly_id
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.stored_session import RecordUsage
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import PromptEvent, ResponseEvent
from tests.unit.assembly.stored_sessions import MODELS, Household, TestClock, household
from tests.unit.assembly.test_repacked_windows import BUDGET, append, call
from tests.unit.assembly.test_request_states import ask

WORDS = "the of return def import value index {} () [] == 0 1 42 1999 \n \n    é ü".split(" ")


class Provider:
    """Billing of a tokenizer that nobody here knows: so many tokens for items, and for three classes of text."""

    def __init__(self, *weights: float, overhead: int = 3_000) -> None:
        self.weights, self.overhead = weights, overhead

    def tokens(self, outside: ContentMeasures, reply: ContentMeasures) -> int:
        both = outside + reply
        return self.overhead + int(sum(term * w for term, w in zip(both.terms, self.weights, strict=True)))


def requests(rng: random.Random, number: int) -> list[CalibrationSample]:
    """Requests of one window that grows by texts of all kinds."""
    found, outside, reply = [], ContentMeasures(), ContentMeasures()
    for n in range(1, number + 1):
        words = rng.choices(WORDS, k=rng.choice((5, 60, 900)))
        outside += ContentMeasures(rng.choice((1, 1, 3)), *measure_text(" ".join(words)))
        found.append(CalibrationSample(n, 1, "f", "m", outside, reply))
        reply += ContentMeasures(2, *measure_text(" ".join(rng.choices(WORDS, k=40))))
    return found


def billed(provider: Provider, rows: list[CalibrationSample]) -> dict[int, RecordUsage]:
    usage = {}
    for row, later in zip(rows, [*rows[1:], rows[-1]], strict=True):
        output = provider.tokens(ContentMeasures(), later.reply) - provider.tokens(ContentMeasures(), row.reply)
        usage[row.number] = RecordUsage(row.number, "m", provider.tokens(row.outside, row.reply), 0, (), output)
    return usage


@pytest.mark.requirement("USE-5")
def test_replies_of_which_a_streams_first_count_was_recorded_do_not_calibrate() -> None:
    provider, reasoning = Provider(0.5, 1.4, 0.9, 1.2), 2_000
    for seed in range(5):
        rows = requests(random.Random(seed), 16)
        # The reply to every second request begins with reasoning, which stays in the window.
        usage = {
            n: msgspec.structs.replace(row, input=row.input + reasoning * (n // 2), output=3 if n % 2 else row.output)
            for n, row in billed(provider, rows).items()
        }
        for row in rows[12::2]:
            before = rows[: row.number - 1]
            known = calibrated(before, {each.number: usage[each.number] for each in before}, "f", "m")
            assert known is not None
            tokens, increase = known.estimate(row).tokens, usage[row.number].input - usage[row.number - 1].input
            assert abs(tokens - usage[row.number].input) <= max(15, 0.03 * increase)


@pytest.mark.requirement("USE-5")
@pytest.mark.parametrize("weights", [(1, 1, 1, 1), (0.5, 1.4, 0.9, 1.2), (2, 0.7, 1.5, 2), (1.2, 2, 2, 2)])
def test_the_weights_of_an_unknown_tokenizer_are_found_within_ten_requests(weights: tuple[float, ...]) -> None:
    for seed in range(5):
        rows = requests(random.Random(seed), 16)
        usage = billed(Provider(*weights), rows)
        for row in rows[11:]:
            before = rows[: row.number - 1]
            known = calibrated(before, {each.number: usage[each.number] for each in before}, "f", "m")
            assert known is not None
            found, tokens = known.estimate(row), usage[row.number].tokens_in
            increase = tokens - usage[row.number - 1].tokens_in
            assert abs(found.tokens - tokens) <= max(15, 0.03 * increase)


@pytest.mark.requirement("USE-5")
@given(st.lists(st.integers(0, 10**9), min_size=2, max_size=40), st.integers(0, 10**6))
def test_estimates_are_bounded_and_deterministic_for_any_billing(tokens: list[int], output: int) -> None:
    rows = requests(random.Random(1), len(tokens))
    usage = {row.number: RecordUsage(row.number, "m", n, 0, (), output) for row, n in zip(rows, tokens, strict=True)}
    known = calibrated(rows, usage, "f", "m")
    assert known == calibrated(rows, usage, "f", "m")
    if known is None:
        assert not any(tokens)
        return
    assert all(0 < weight <= 12 for weight in known.weights)
    assert 0 <= known.error <= 0.3
    grown = msgspec.structs.replace(rows[-1], number=99, outside=rows[-1].outside + ContentMeasures(1, 100, 100, 100))
    assert known.estimate(grown).tokens >= known.billed.tokens_in


def test_one_absurd_record_does_not_spoil_the_estimate() -> None:
    rows = requests(random.Random(3), 30)
    usage = billed(Provider(1, 1.4, 1.2, 0.9), rows)
    usage[12] = msgspec.structs.replace(usage[12], input=usage[12].input + 50_000)
    known = calibrated(rows[:29], usage, "f", "m")
    assert known is not None
    found = known.estimate(rows[29]).tokens
    assert abs(found - usage[30].tokens_in) <= 0.05 * (usage[30].tokens_in - usage[29].tokens_in) + 2


def test_usage_of_another_model_or_format_calibrates_nothing() -> None:
    rows = requests(random.Random(4), 5)
    usage = billed(Provider(1, 1, 1, 1), rows)
    assert calibrated(rows, usage, "f", "other") is None
    assert calibrated(rows, usage, "other", "m") is None
    assert calibrated(rows, {}, "f", "m") is None
    assert calibrated([], usage, "f", "m") is None


async def bill(live: LiveSession, made: AssembledContext, factor: float) -> int:
    """Record that the provider counted ``factor`` times the bytes / 4 of the request."""
    tokens = int(made.bytes / 4 * factor)
    usage = usage_of(made.number, "m", {"input_tokens": tokens, "output_tokens": 60})
    await live.submit(WriteRequest("session.usage", "p"), (usage,)).wait()
    return tokens


async def lived(home: Household, session: str, rounds: int, *, bills: float | None) -> list[AssembledContext]:
    live = await home.sessions.live(session)
    made = []
    for nth in range(rounds):
        append(live, PromptEvent(text=f"Next {nth}"))
        call(live, home, f"{session}-{nth}", f"/src/{nth}.py", f"line {nth} of it\n" * 40)
        append(live, ResponseEvent(text="I see.", model="m"))
        made.append(await ask(home, live, "anthropic-messages"))
        if bills is not None:
            await bill(live, made[-1], bills)
    return made


@pytest.mark.anyio
@pytest.mark.requirement("USE-5", "WIN-4")
async def test_the_budget_holds_for_the_providers_token_count(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall = 1_700_000_000_000
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=5_000)
        made = await lived(home, "s", 40, bills=2.0)
        for each in made[1:]:
            assert each.cost is not None and each.cost.reserve is not None
            assert each.tokens == each.cost.tokens
            assert each.tokens + each.cost.reserve <= 5_000
            assert each.plan.over_by == 0
        assert {each.repacked for each in made} >= {"budget"}
        counted = sorted(each.bytes / 4 * 2 for each in made[5:])
        assert counted[len(counted) * 9 // 10 - 1] <= 5_000, "nine of ten also by the provider's own count"
        assert counted[-1] <= 5_000 * 1.03
        record = read_record((await home.store.heads((assembly_id("s", made[-1].number),)))[assembly_id("s", 40)])  # type: ignore[arg-type]
        assert record.window is not None and record.window.figures.budget is not None
        assert record.window.figures.budget < 5_000, "the policy was given less, and the record has it"
        assert live.assembly == 40


@pytest.mark.anyio
@pytest.mark.requirement("USE-5")
async def test_estimates_after_a_restart_are_those_that_would_have_been_made_without_one(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall = 1_700_000_000_000
    async with household(tmp_path, clock) as home:
        await home.create(budget_tokens=BUDGET)
        await lived(home, "s", 20, bills=1.6)
        live = await home.sessions.live("s")
        append(live, PromptEvent(text="Now " + "what? " * 200))
        fresh = Assembler(home.store, home.sessions, home.indexer, home.archive, MODELS, SystemClock(), providers={})
        kept = home.assembler._cache.get(live)
        assert kept is not None and kept.window is not None
        await fresh._append._recall_window(again := fresh._cache.of(live), ReadBound("s", None))
        assert again.window is not None
        assert list(again.window.requests) == list(kept.window.requests)
        made = await ask(home, live, "anthropic-messages")
        shown = (await home.archive.show("s", number=made.number)).context
        assert (shown.cost, shown.tokens, shown.request) == (made.cost, made.tokens, made.request)


@pytest.mark.anyio
@pytest.mark.requirement("USE-5")
async def test_without_usage_the_estimate_is_that_of_the_items(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        await home.create(budget_tokens=BUDGET)
        for each in await lived(home, "s", 8, bills=None):
            assert each.cost is not None and each.cost.reserve is None
            tokens, entries = sum(part.tokens for part in each.sections), sum(part.entries for part in each.sections)
            assert each.tokens <= tokens <= each.tokens + entries
