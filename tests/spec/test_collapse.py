"""Auto-collapse as a harness meets it: which tool calls a session's window holds after each step.

The expectation is built here from the sentence alone, and compared after every request of a random walk.
"""

import random
from collections.abc import Callable, Sequence

import pytest

from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.session_types import Collapse

Start = Callable[..., SyncSession]


class Window:
    """The rule, taken literally: for each tool call its turn, and which are active, pinned or were asked for."""

    def __init__(self, per_turn: int = 5, turns: int = 3) -> None:
        self.per_turn, self.turns, self.turn = per_turn, turns, 0
        self.called: dict[str, int] = {}
        self.active: set[str] = set()
        self.pinned: set[str] = set()
        self.asked: dict[str, int] = {}

    def call(self, id: str) -> None:
        self.called[id] = self.turn
        self.active.add(id)
        self.collapse()

    def user(self) -> None:
        self.turn += 1
        self.collapse()

    def activate(self, id: str) -> None:
        self.active.add(id)
        self.asked[id] = self.turn

    def deactivate(self, id: str) -> None:
        self.active.discard(id)
        self.asked.pop(id, None)

    def collapse(self) -> None:
        for id in sorted(self.active - self.pinned):
            if not self.stays(id):
                self.deactivate(id)

    def stays(self, id: str) -> bool:
        if id in self.asked:
            return self.asked[id] > self.turn - self.turns
        of_its_turn = [each for each, turn in self.called.items() if turn == self.called[id]]
        return (
            self.called[id] > self.turn - self.turns and id in of_its_turn[max(0, len(of_its_turn) - self.per_turn) :]
        )


def record(s: SyncSession, turn: int, count: int) -> list[str]:
    """``count`` tool calls; their ids name the session, for others may have used the plain ones."""
    ids = [f"{s.id}-t{turn}-c{n}" for n in range(count)]
    for id in ids:
        s.tool("bash", {}, output=f"output of {id}\n", id=id)
    return ids


def active(s: SyncSession) -> list[str]:
    return list(s.view().session.active_set)


def shown(s: SyncSession) -> list[str | None]:
    """Ids shown in full to the model."""
    return [block.object for block in s.assemble().blocks if block.section == "active_content"]


@pytest.mark.requirement("COL-1")
def test_the_newest_five_of_each_of_the_newest_three_turns_are_active_and_shown(s: SyncSession) -> None:
    turns: list[list[str]] = []
    for turn in range(1, 6):
        s.user(f"turn {turn}")
        turns.append(record(s, turn, 7))
        expected = [id for ids in turns[-3:] for id in ids[-5:]]
        assert active(s) == expected
        assert shown(s) == expected
    assert list(s.view().session.metadata_pool) == [id for ids in turns for id in ids], "collapsed is not forgotten"


@pytest.mark.requirement("COL-1")
def test_a_new_tool_call_is_active_at_once_and_names_the_one_it_displaced(s: SyncSession) -> None:
    s.user("go")
    results = [s.record(f"{s.id}-c{n}", "bash", "out\n") for n in range(6)]
    assert [result.collapsed for result in results] == [(), (), (), (), (), (f"{s.id}-c0",)]
    assert active(s) == [f"{s.id}-c{n}" for n in range(1, 6)]


@pytest.mark.requirement("COL-1")
def test_a_user_message_alone_takes_the_oldest_turn_out_of_the_window(s: SyncSession) -> None:
    s.user("one")
    first = record(s, 1, 2)
    s.user("two")
    s.assistant("an assistant's message starts no turn")
    s.user("three")
    assert active(s) == first
    s.user("four")
    assert active(s) == []


@pytest.mark.requirement("COL-2")
def test_pinned_tool_calls_and_files_stay_however_much_comes_after_them(s: SyncSession, tree) -> None:
    (tree / "a.py").write_text("print(1)\n")
    s.user("go")
    file = s.read("a.py").object
    (kept,) = record(s, 0, 1)
    s.pin(kept)
    for turn in range(1, 6):
        s.user("more")
        record(s, turn, 8)
    now = active(s)
    assert now[:2] == [file, kept]
    assert len(now) == 2 + 3 * 5
    s.unpin(kept)
    s.user("and more")
    assert kept not in active(s)
    assert file in active(s)


@pytest.mark.requirement("COL-3")
def test_deactivated_objects_stay_inactive_and_activated_ones_stay_for_their_window(s: SyncSession) -> None:
    s.user("one")
    old = record(s, 1, 7)
    s.deactivate(old[6])
    record(s, 11, 1)
    assert old[6] not in active(s)
    s.activate(old[0])
    for turn in (2, 3):
        s.user("more")
        record(s, turn, 7)
        assert old[0] in active(s), "asked for in turn 1: recent until turn 3 has ended"
    s.user("the window has passed")
    assert old[0] not in active(s)
    assert old[6] not in active(s)


@pytest.mark.requirement("COL-3")
def test_activating_again_renews_the_window(s: SyncSession) -> None:
    s.user("one")
    first = record(s, 1, 7)[0]
    s.activate(first)
    for turn in (2, 3):
        s.user("more")
        record(s, turn, 7)
    s.activate(first)
    s.user("the first window has passed")
    record(s, 4, 7)
    assert first in active(s)


@pytest.mark.requirement("COL-4")
def test_both_figures_are_each_sessions_own_and_can_be_changed(start: Start) -> None:
    small = start(collapse=Collapse(per_turn=2, turns=1))
    large = start(collapse=Collapse(per_turn=7, turns=4))
    for turn in range(1, 5):
        for s in (small, large):
            s.user("go")
            record(s, turn, 8)
    assert active(small) == [f"{small.id}-t4-c{n}" for n in (6, 7)]
    assert active(large) == [f"{large.id}-t{turn}-c{n}" for turn in range(1, 5) for n in range(1, 8)]
    large.configure(collapse=Collapse(per_turn=1, turns=2))
    large.user("the new window counts from the next step on")
    assert active(large) == [f"{large.id}-t4-c7"]
    none = start(collapse=Collapse(per_turn=0, turns=1))
    record(none, 0, 2)
    assert active(none) == []


def walk(rng: random.Random, s: SyncSession, model: Window, steps: int) -> None:
    """Ask for random things and hold the session's active set to the model's after each."""
    for step in range(steps):
        known = sorted(model.called)
        kind = rng.choices(["call", "user", "activate", "deactivate", "pin", "unpin"], [10, 3, 3, 2, 1, 1])[0]
        id = rng.choice(choices) if (choices := _fit(kind, known, model)) else ""
        if kind == "user":
            s.user(f"step {step}")
            model.user()
        elif kind == "call" or not id:
            id = f"{s.id}-{step}"
            s.record(id, "bash", "out\n")
            model.call(id)
        else:
            getattr(s, kind)(id)
            {
                "activate": model.activate,
                "deactivate": model.deactivate,
                "pin": model.pinned.add,
                "unpin": model.pinned.discard,
            }[kind](id)
        assert set(active(s)) == model.active, f"after step {step}, {kind} {id}"


def _fit(kind: str, known: Sequence[str], model: Window) -> Sequence[str]:
    if kind == "deactivate":
        return sorted(model.active)
    if kind == "unpin":
        return sorted(model.pinned)
    return known


@pytest.mark.requirement("COL-1", "COL-2", "COL-3", "COL-4")
@pytest.mark.parametrize(("seed", "per_turn", "turns"), [(1, 5, 3), (2, 2, 2), (3, 1, 3), (4, 0, 1), (5, 3, 1)])
def test_random_operations_keep_the_window_consistent_with_the_rule(
    start: Start, client: SyncClient, seed: int, per_turn: int, turns: int
) -> None:
    s = start(collapse=Collapse(per_turn=per_turn, turns=turns))
    walk(random.Random(seed), s, Window(per_turn, turns), 80)
