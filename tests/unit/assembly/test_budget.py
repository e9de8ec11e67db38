import random

from ctxd.assembly.measure import Droppable, plan, size_bytes, tokens_of
from ctxd.assembly.render import ActiveContent, Context, render, render_active


def candidate(id: str, size: int, *, call: bool = False, pinned: bool = False) -> Droppable:
    return Droppable(id=id, size=size, is_toolcall=call, is_pinned=pinned)


def test_nothing_is_left_out_without_a_budget_or_within_it() -> None:
    for budget in (None, 100):
        made = plan([candidate("a", 398)], total_bytes=400, budget_tokens=budget)
        assert (made.dropped, made.tokens, made.tokens_after, made.over_by) == ((), 100, 100, 0)


def test_tool_calls_go_first_and_the_oldest_of_them_before_the_others() -> None:
    made = plan(
        [
            candidate("file-1", 400),
            candidate("call-1", 400, call=True),
            candidate("call-2", 400, call=True),
            candidate("file-2", 400),
        ],
        total_bytes=1608,
        budget_tokens=10,
    )
    assert [drop.object for drop in made.dropped] == ["call-1", "call-2", "file-1", "file-2"]
    assert [drop.reason for drop in made.dropped] == ["oldest tool call"] * 2 + ["file activated longest ago"] * 2


def test_no_more_is_left_out_than_is_needed() -> None:
    made = plan([candidate("a", 400, call=True), candidate("b", 400, call=True)], total_bytes=1000, budget_tokens=150)
    assert [drop.object for drop in made.dropped] == ["a"]
    assert made.tokens_after == tokens_of(1000 - 402)


def test_pinned_objects_stay_and_the_rest_is_reported_as_too_much() -> None:
    made = plan([candidate("a", 4000, pinned=True), candidate("b", 40)], total_bytes=4044, budget_tokens=100)
    assert [drop.object for drop in made.dropped] == ["b"]
    assert made.over_by == made.tokens_after - 100 == tokens_of(4002) - 100


def test_a_plan_says_exactly_what_the_rendering_without_the_dropped_weighs() -> None:
    rng = random.Random(3)
    for _ in range(300):
        active = tuple(ActiveContent(id=str(n), content="é" * rng.randint(0, 90)) for n in range(rng.randint(0, 6)))
        prompt = rng.choice(("", "system"))
        whole = Context(system_prompt=prompt, active=active)
        candidates = [
            candidate(a.id, size_bytes(render_active(a)), call=rng.random() < 0.5, pinned=rng.random() < 0.2)
            for a in active
        ]
        budget = rng.randint(1, 120)
        made = plan(candidates, total_bytes=size_bytes(render(whole)), budget_tokens=budget)
        gone = {drop.object for drop in made.dropped}
        rest = Context(system_prompt=prompt, active=tuple(a for a in active if a.id not in gone))
        assert made.tokens_after == tokens_of(size_bytes(render(rest)))
        assert made.tokens_after <= budget or gone == {c.id for c in candidates if not c.is_pinned}


def test_tokens_are_a_quarter_of_the_utf8_bytes_rounded_up() -> None:
    assert [tokens_of(n) for n in (0, 1, 4, 5)] == [0, 1, 1, 2]
    assert size_bytes("a😀é") == 7
