"""Plans of the layout ``append``: ids of calls in a window, and the time that a plan takes."""

import hashlib
import time
from collections.abc import Callable, Iterable

import pytest

from ctxd.assembly.append_planner import Planner, PlanRules
from ctxd.assembly.append_window import AppendWindow, Arrivals
from ctxd.assembly.repack_window import UNJUDGED_CUTS
from ctxd.assembly.window_references import CallFacts, EventRef, call_name
from ctxd.epochs.component_changes import Differences
from ctxd_protocol.event_types import Event, PromptEvent, ToolCallEvent, ToolResultEvent

HASHED = f"c_{hashlib.sha256(b'call_0').hexdigest()[:16]}"


def planner(window: AppendWindow, events: Iterable[Event]) -> Planner:
    placed = [((1, at), 1, event) for at, event in enumerate(events)]
    batch = Arrivals(
        number=1, turn=1, events=placed, end=(1, len(placed)), recorded=(), passed=(), outputs={}, files={}, gone=(),
        prompt=None, has_new_prompt=False, spoken=None,
    )  # fmt: skip
    return Planner(window, batch, rules=PlanRules(UNJUDGED_CUTS), differing=Differences(), tools=None)


def repeated(count: int) -> list[Event]:
    """Calls that all have the same id, each with its output."""
    events: list[Event] = [PromptEvent(text="Go.")]
    for number in range(count):
        events.append(ToolCallEvent(call="call_0", tool="bash", args={"command": f"ls {number}"}))
        events.append(ToolResultEvent(call="call_0", text="ok"))
    return events


def parallel(count: int) -> list[Event]:
    """One reply with all calls, and their outputs."""
    calls = [ToolCallEvent(call=f"call_{number}", tool="bash", args={}) for number in range(count)]
    return [PromptEvent(text="Go."), *calls, *(ToolResultEvent(call=call.call, text="ok") for call in calls)]


def names(count: int, window: AppendWindow | None = None) -> list[str]:
    planned = planner(window or AppendWindow(), repeated(count)).plan()
    return [ref.call for ref in planned.refs if isinstance(ref, EventRef) and ref.call][::2]


@pytest.mark.requirement("REQ-1")
def test_repeated_call_ids_get_the_first_free_numbers() -> None:
    numbered = [f"{HASHED}_{number}" for number in range(2, 6)]
    assert names(6) == ["call_0", HASHED, *numbered]
    window = AppendWindow()
    window.facts = {name: CallFacts("bash", "ls", "$ ls") for name in ("call_0", HASHED, numbered[1])}
    assert names(3, window) == [numbered[0], numbered[2], numbered[3]], "a repack had removed the call between them"


@pytest.mark.requirement("REQ-1")
def test_ids_of_one_hash_are_each_looked_up_once() -> None:
    class Taken(dict[str, None]):
        lookups = 0

        def __contains__(self, name: object) -> bool:
            Taken.lookups += 1
            return super().__contains__(name)

    taken, tried = Taken(), dict[str, int]()
    for _ in range(1_000):
        taken[call_name("call_0", taken, tried)] = None
    assert len(taken) == 1_000 and Taken.lookups <= 3_000


@pytest.mark.requirement("RPC-9")
@pytest.mark.parametrize("events", [repeated, parallel])
def test_a_plan_takes_time_in_proportion_to_the_calls(events: Callable[[int], list[Event]]) -> None:
    def cost(count: int) -> float:
        made = [planner(AppendWindow(), events(count)) for _ in range(3)]
        costs = []
        for each in made:
            begun = time.thread_time()
            each.plan()
            costs.append(time.thread_time() - begun)
        return min(costs)

    assert cost(4_000) < 10 * cost(800), "5 times as many calls; the square would be 25"
