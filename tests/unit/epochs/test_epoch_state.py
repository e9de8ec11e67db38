"""The pure fold: for any schedule of changes, failures and lost races, it holds what was sent."""

import hashlib
import random
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ctxd.epochs.component import Component, combined
from ctxd.epochs.component_changes import Blocked, Components, differences
from ctxd.epochs.component_loading import EntryValue
from ctxd.epochs.epoch_state import (
    ComponentChange,
    ComponentText,
    EpochCause,
    EpochEvent,
    EpochHead,
    EpochState,
    LostRace,
    append,
    apply_event,
    begin_epoch,
    replay_events,
)
from ctxd.errors import CtxdError
from tests.unit.epochs.scripted import Number, Scripted, Word, read

SEED = 20261123
KEYS = ("core/a", "core/b", "files/x", "files/y", "api/e")
BEGINS: tuple[EpochCause, ...] = ("compaction", "repack", "model", "provider")


def address(text: ComponentText) -> str:
    return hashlib.sha256(msgspec.json.encode(text)).hexdigest()


def components(states: dict[str, int | None]) -> Components:
    made = {key: Scripted(key, state, speaks=key != "core/b") for key, state in states.items()}
    return {key: (component, component.loaded()) for key, component in made.items()}


@dataclass
class Session:
    """A session as its store holds it: events by turn, texts, and the window that is sent."""

    events: list[tuple[int, EpochEvent]] = field(default_factory=list)
    texts: dict[str, ComponentText] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    number: int = 0

    @property
    def state(self) -> EpochState:
        return replay_events(event for _, event in self.events)

    def values(self, state: EpochState | None = None) -> dict[str, int]:
        """The belief by key, without texts that are gone."""
        state = state or self.state
        return {
            key: msgspec.json.decode(self.texts[at].value)["n"]
            for key, at in state.believed.items()
            if at in self.texts
        }

    def decide(
        self, states: dict[str, int | None], begins: EpochCause | None
    ) -> tuple[EpochHead, EpochEvent | None, dict]:
        """The event of the next request, with its texts. Raises: Blocked."""
        state = self.state
        found = differences(state, self.texts, components(states), address, first=not state.epoch)
        event: EpochEvent | None = None
        if not state.epoch:
            event = begin_epoch(state, "first", found.changes)
        elif begins is not None:
            event = begin_epoch(state, begins, found.changes)
        elif found.changes:
            event = EpochEvent(epoch=state.epoch, changes=found.changes)
        return EpochHead(self.number, state.epoch), event, dict(found.texts)

    def commit(self, expected: EpochHead, event: EpochEvent | None, texts: dict[str, ComponentText], turn: int) -> None:
        """Append, and show what the event says. Raises: LostRace, and nothing changed."""
        append(self.state, EpochHead(self.number, self.state.epoch), expected, event)
        self.number += 1
        self.texts |= texts
        if event is None:
            return
        self.events.append((turn, event))
        if event.begins is not None:
            self.sent = []
        self.sent += [self.texts[change.address].text(change.part) for change in event.changes]


def changed(rng: random.Random, states: dict[str, int | None]) -> None:
    """One step of the world: a component changes, fails, comes back, goes, or comes."""
    key = rng.choice(KEYS)
    match rng.randrange(4):
        case 0:
            states[key] = None
        case 1:
            states.pop(key, None)
        case _:
            states[key] = rng.randrange(4)


@pytest.mark.requirement("EPO-10")
@pytest.mark.parametrize("schedules", [500, pytest.param(2_000, marks=pytest.mark.slow)])
def test_the_fold_equals_the_sent_texts_in_random_schedules(schedules: int) -> None:
    counts = dict.fromkeys(("sent", "blocked", "lost", "crashed"), 0)
    for nth in range(schedules):
        rng, session, states, turn = random.Random(SEED + nth), Session(), {}, 0
        for _ in range(30):
            changed(rng, states)
            turn += rng.random() < 0.4
            begins = rng.choice(BEGINS) if rng.random() < 0.15 else None
            try:
                expected, event, texts = session.decide(states, begins)
            except Blocked as blocked:
                counts["blocked"] += 1
                assert session.number == 0 and states[blocked.key] is None
                continue
            if rng.random() < 0.15:
                # The process ends between the decision and its write: nothing of it is left.
                counts["crashed"] += 1
                continue
            if rng.random() < 0.2:
                # Another process was faster: the one that lost observes everything again.
                changed(rng, states)
                try:
                    session.commit(*session.decide(states, None), turn)
                except Blocked:
                    continue
                with pytest.raises(LostRace):
                    session.commit(expected, event, texts, turn)
                counts["lost"] += 1
                expected, event, texts = session.decide(states, begins)
            session.commit(expected, event, texts, turn)
            counts["sent"] += 1
            assert read("\n".join(session.sent)) == session.values(), (nth, session.events)
            known = {key: value for key, value in states.items() if value is not None}
            assert known.items() <= session.values().items()
    assert min(counts.values()) > schedules // 2, counts


def run(seed: int, steps: int = 25) -> Session:
    rng, session, states = random.Random(seed), Session(), dict.fromkeys(KEYS, 0)
    for turn in range(steps):
        session.commit(*session.decide(states, rng.choice(BEGINS) if rng.random() < 0.2 else None), turn)
        changed(rng, states)
    return session


@given(st.integers(0, 10**6))
def test_a_state_is_the_same_from_the_beginning_of_its_epoch(seed: int) -> None:
    session = run(seed)
    events = [event for _, event in session.events]
    since = max(n for n, event in enumerate(events) if event.begins is not None)
    assert replay_events(events[since:]) == msgspec.structs.replace(
        session.state, tools=replay_events(events[since:]).tools
    )


@given(st.integers(0, 10**6))
def test_a_new_epoch_has_the_belief_as_its_baseline_and_no_updates(seed: int) -> None:
    state = run(seed).state
    after = apply_event(state, begin_epoch(state, "compaction"))
    assert (after.baseline, after.believed, after.updates, after.gone) == (state.believed, state.believed, (), ())
    assert after.epoch == state.epoch + 1


@given(st.integers(0, 10**6), st.integers(0, 24))
def test_a_fork_has_the_beliefs_of_its_origin_at_that_time(seed: int, turn: int) -> None:
    there = replay_events(event for at, event in run(seed).events if at <= turn)
    child = replay_events([begin_epoch(there, "fork")])
    assert (child.baseline, child.believed, child.updates) == (there.believed, there.believed, ())


def test_a_session_that_moved_gets_the_differences_as_updates() -> None:
    session = Session()
    session.commit(*session.decide({"core/a": 1, "files/x": 1}, None), 0)
    session.commit(*session.decide({"core/a": 2, "files/y": 1}, None), 1)
    assert session.sent == ["[core/a is 1]", "[files/x is 1]", "[core/a now 2]", "[files/y is 1]", "[files/x gone]"]


def test_an_unknown_epoch_is_initialised_without_a_baseline() -> None:
    state = EpochState()
    found = differences(state, {}, components({"core/a": 1, "core/b": None}), address, first=False)
    after = apply_event(state, begin_epoch(state, "unknown", found.changes))
    assert (after.baseline, list(after.believed), [change.part for change in after.updates]) == (
        {},
        ["core/a"],
        ["new"],
    )


def test_a_removal_is_announced_once_and_a_returning_component_is_new() -> None:
    session = Session()
    for states in ({"core/a": 1}, {}, {}, {"core/a": 1}):
        session.commit(*session.decide(states, None), 0)
    assert session.sent == ["[core/a is 1]", "[core/a gone]", "[core/a is 1]"]
    assert session.state.gone == ()


def test_a_component_without_a_removal_text_is_kept() -> None:
    session = Session()
    session.commit(*session.decide({"core/b": 1}, None), 0)
    session.commit(*session.decide({}, None), 0)
    assert session.values() == {"core/b": 1}


def test_a_folder_that_cannot_be_listed_keeps_all_that_is_in_it() -> None:
    session = Session()
    session.commit(*session.decide({"files/x": 1, "core/a": 1}, None), 0)
    session.commit(*session.decide({"files/": None}, None), 0)
    assert session.values() == {"files/x": 1}


def test_a_value_that_cannot_be_decoded_or_was_purged_is_new() -> None:
    session = Session()
    session.commit(*session.decide({"core/a": 1}, None), 0)
    at = session.state.believed["core/a"]
    old = msgspec.structs.replace(session.texts[at], value=msgspec.json.encode(Word("one")).decode())
    for texts in ({at: old}, {}):
        found = differences(session.state, texts, components({"core/a": 2}), address, first=False)
        assert [change.part for change in found.changes] == ["new"]
    # A purged component that is gone has no text to say so.
    assert differences(session.state, {}, {}, address, first=False).changes == ()


def test_an_unavailable_component_blocks_only_the_first_baseline() -> None:
    session = Session()
    with pytest.raises(Blocked, match="core/a is unavailable: scripted"):
        session.decide({"core/a": None}, None)
    session.commit(*session.decide({"core/a": 1}, None), 0)
    assert session.decide({"core/a": None, "core/b": None}, None)[1] is None


def test_events_that_contradict_the_fold_are_refused() -> None:
    state = replay_events([begin_epoch(EpochState(), "first")])
    with pytest.raises(ValueError, match="epoch 3 follows epoch 1"):
        apply_event(state, EpochEvent(epoch=3))
    for part in ("changed", "removed", "baseline"):
        with pytest.raises(ValueError, match="core/a cannot be"):
            apply_event(state, EpochEvent(epoch=1, changes=(ComponentChange("core/a", part, "0"),)))


def test_keys_are_unique_and_of_a_bounded_length() -> None:
    one: Component[Number] = Scripted("core/a", 1)
    assert combined([one], [Scripted("core/b", 1)]).keys() == {"core/a", "core/b"}
    for key in ("core/a", "", "x" * 1025):
        with pytest.raises(CtxdError, match="duplicated or malformed"):
            combined([one], [Scripted(key, 2)])


@given(
    st.recursive(st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(), st.lists, max_leaves=5)
)
def test_a_codec_round_trips_every_value(value: object) -> None:
    class Any_(Scripted):
        value_type = EntryValue

    component = Any_("core/a", 1)
    assert component.decode(component.encode(EntryValue(value))) == EntryValue(value)  # type: ignore[arg-type]
