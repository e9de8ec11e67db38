import random

from ctxd.assembly.spec_rendering import render_active
from ctxd.assembly.token_budget import DropReason, Piece, estimate_tokens, plan, size_bytes
from ctxd_protocol.context_types import BudgetPlan
from tests.unit.assembly.reference import ActiveContent, Context, render


def piece(id: str, text: str, *, call: bool = False, pinned: bool = False) -> Piece:
    drop: DropReason | None = "oldest tool call" if call else "file activated longest ago"
    return Piece(
        key=id,
        section="active_content",
        text=text,
        size=size_bytes(text),
        tokens=estimate_tokens(text),
        reason="read",
        object=id,
        drop=None if pinned else drop,
    )


def candidate(id: str, size: int, *, call: bool = False, pinned: bool = False) -> Piece:
    return piece(id, "x" * size, call=call, pinned=pinned)


def planned(pieces: list[Piece], budget: int | None) -> BudgetPlan:
    return plan(pieces, budget, estimate_tokens)


def test_nothing_is_left_out_without_a_budget_or_within_it() -> None:
    for budget in (None, 100):
        made = planned([candidate("a", 398)], budget)
        assert (made.dropped, made.tokens, made.tokens_after, made.over_by) == ((), 100, 100, 0)


def test_tool_calls_are_dropped_first_oldest_before_newest() -> None:
    made = planned(
        [
            candidate("file-1", 400),
            candidate("call-1", 400, call=True),
            candidate("call-2", 400, call=True),
            candidate("file-2", 400),
        ],
        10,
    )
    assert [drop.object for drop in made.dropped] == ["call-1", "call-2", "file-1", "file-2"]
    assert [drop.reason for drop in made.dropped] == ["oldest tool call"] * 2 + ["file activated longest ago"] * 2


def test_no_more_is_dropped_than_needed() -> None:
    made = planned(
        [candidate("a", 400, call=True), candidate("b", 400, call=True), candidate("c", 196, pinned=True)], 150
    )
    assert [drop.object for drop in made.dropped] == ["a"]
    assert (made.tokens, made.tokens_after) == (250, 150)


def test_pinned_objects_stay_and_the_excess_is_reported() -> None:
    made = planned([candidate("a", 4000, pinned=True), candidate("b", 40)], 100)
    assert [drop.object for drop in made.dropped] == ["b"]
    assert made.over_by == made.tokens_after - 100 == 900


def test_a_plan_gives_the_exact_tokens_of_the_rendering_without_the_dropped() -> None:
    rng = random.Random(3)
    for _ in range(300):
        active = tuple(ActiveContent(id=str(n), content="é" * rng.randint(0, 90)) for n in range(rng.randint(0, 6)))
        pieces = [
            piece(a.id, render_active(a.id, a.content), call=rng.random() < 0.5, pinned=rng.random() < 0.2)
            for a in active
        ]
        if prompt := rng.choice(("", "system")):
            pieces.insert(0, piece("prompt", prompt, pinned=True))
        budget = rng.randint(1, 120)
        made = planned(pieces, budget)
        gone = {drop.object for drop in made.dropped}
        rest = Context(system_prompt=prompt, active=tuple(a for a in active if a.id not in gone))
        assert made.tokens_after == -(-size_bytes(render(rest)) // 4)
        assert made.tokens_after <= budget or gone == {each.key for each in pieces if each.drop}


def test_estimated_tokens_are_a_quarter_of_the_utf8_bytes() -> None:
    assert [estimate_tokens("x" * n) for n in (0, 1, 4, 5)] == [0, 0.25, 1, 1.25]
    assert size_bytes("a😀é") == 7
