"""The token budget: what is left out, in which order, and that nothing but the rendering changes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.session_types import Collapse, SessionView

Start = Callable[..., SyncSession]

OLDEST_CALL = "oldest tool call"
OLDEST_FILE = "file activated longest ago"


@pytest.fixture
def laden(start: Start, tree: Path) -> SyncSession:
    """A session with three files and five tool calls in its window, of each kind one pinned, of different sizes."""
    s = start(system_prompt="Be brief.", collapse=Collapse(per_turn=10, turns=3))
    s.user("go")
    for number, name in enumerate(("f0", "f1", "f2")):
        (tree / name).write_text(f"{name} é\n" * (40 + number))
        s.read(name)
    for number in range(5):
        s.record(f"{s.id}-c{number}", "bash", f"output {number}\n" * (30 - 5 * number))
    s.pin(f"{s.id}-c1")
    s.pin(s.resolve("f0").object)
    return s


def sizes(context: AssembledContext) -> dict[str, int]:
    """Bytes of each active object's block."""
    return {b.object or "": len(b.text.encode()) for b in context.blocks if b.section == "active_content"}


def leaving(context: AssembledContext, view: SessionView) -> list[tuple[str, str]]:
    """What may go and why, in the order in which it has to: unpinned tool calls, then unpinned files, oldest first."""
    loose = [id for id in sizes(context) if id not in view.pinned_set]
    calls = [(id, OLDEST_CALL) for id in loose if id.startswith("spec-")]
    return calls + [(id, OLDEST_FILE) for id in loose if not id.startswith("spec-")]


def expected(context: AssembledContext, view: SessionView, budget: int) -> tuple[list[tuple[str, str]], int]:
    """Objects left out with their reasons, and the tokens that remain: as few as make the context fit."""
    left, dropped = context.bytes, []
    for id, reason in leaving(context, view):
        if -(-left // 4) <= budget:
            break
        left -= sizes(context)[id] + len("\n\n")
        dropped.append((id, reason))
    return dropped, -(-left // 4)


def budgets(context: AssembledContext) -> Iterator[int]:
    yield from (1, context.tokens - 1, context.tokens, context.tokens + 1, 10**9)
    yield from range(10, context.tokens, 17)


@pytest.mark.requirement("BUD-1")
def test_an_over_budget_context_drops_the_oldest_tool_calls_first_and_never_pinned_ones(
    laden: SyncSession,
) -> None:
    whole = laden.assemble()
    view = laden.view().session
    assert whole.plan.dropped == ()
    for number, budget in enumerate(budgets(whole)):
        laden.configure(budget_tokens=budget)
        laden.set_system_prompt(f"{number:09}")  # as long as the one before: another context of the same size
        context = laden.assemble()
        dropped, after = expected(whole, view, budget)
        assert [(each.object, each.reason) for each in context.plan.dropped] == dropped
        assert list(sizes(context)) == [id for id in sizes(whole) if id not in dict(dropped)]
        assert context.tokens == context.plan.tokens_after == after == -(-len(context.text.encode()) // 4)
        assert context.plan.over_by == max(0, after - budget)
        for each in context.plan.dropped:
            assert each.tokens == -(-sizes(whole)[each.object] // 4)
            assert f"\nid={each.object} type=" in context.text, "its metadata line stays"
    assert set(view.pinned_set) <= set(sizes(laden.assemble()))


@pytest.mark.requirement("BUD-1")
def test_dropping_starts_with_the_oldest_tool_call_then_the_earliest_activated_file(laden: SyncSession) -> None:
    laden.configure(budget_tokens=1)
    plan = laden.assemble().plan
    assert [(each.object, each.reason) for each in plan.dropped] == [
        (f"{laden.id}-c0", OLDEST_CALL),
        (f"{laden.id}-c2", OLDEST_CALL),
        (f"{laden.id}-c3", OLDEST_CALL),
        (f"{laden.id}-c4", OLDEST_CALL),
        (laden.resolve("f1").object, OLDEST_FILE),
        (laden.resolve("f2").object, OLDEST_FILE),
    ]


@pytest.mark.requirement("BUD-1", "CTX-6")
def test_a_new_budget_is_applied_even_if_the_text_is_unchanged(laden: SyncSession) -> None:
    whole = laden.assemble()
    laden.configure(budget_tokens=10**6)
    assert laden.assemble().plan == laden.plan().plan == msgspec.structs.replace(whole.plan, budget_tokens=10**6)
    assert laden.assemble().number == whole.number
    for budget in (1, 2):
        laden.configure(budget_tokens=budget)
        plan = laden.assemble().plan
        assert (plan.budget_tokens, plan.over_by) == (budget, plan.tokens_after - budget)


@pytest.mark.own_daemon
@pytest.mark.requirement("BUD-2")
def test_the_plan_for_any_budget_is_computed_without_assembling_or_writing(
    client: SyncClient, laden: SyncSession
) -> None:
    whole = laden.assemble()
    view = laden.view().session
    head = client.daemon_status().store.head_seq
    for budget in budgets(whole):
        plan = laden.plan(budget_tokens=budget).plan
        dropped, after = expected(whole, view, budget)
        assert [(each.object, each.reason) for each in plan.dropped] == dropped
        assert (plan.budget_tokens, plan.tokens, plan.tokens_after) == (budget, whole.tokens, after)
    assert laden.plan().plan == whole.plan
    assert client.daemon_status().store.head_seq == head
    assert [each.number for each in laden.assemblies().assemblies] == [whole.number]
    laden.configure(budget_tokens=100)
    assert laden.plan().plan == laden.plan(budget_tokens=100).plan == laden.assemble().plan


@pytest.mark.requirement("BUD-2")
def test_a_plan_is_available_for_a_session_without_assemblies(laden: SyncSession) -> None:
    plan = laden.plan(budget_tokens=1).plan
    assert len(plan.dropped) == 6
    assert laden.assemblies().assemblies == ()


@pytest.mark.requirement("BUD-3")
def test_dropping_changes_no_set_and_dropped_content_returns_when_there_is_room(laden: SyncSession) -> None:
    whole = laden.assemble()
    before = laden.view().session
    laden.configure(budget_tokens=1)
    assert len(sizes(laden.assemble())) == 2
    after = laden.view().session
    for name in ("session_index", "metadata_pool", "active_set", "pinned_set"):
        assert getattr(after, name) == getattr(before, name)
    laden.configure(budget_tokens=0)
    assert laden.assemble().text == whole.text
