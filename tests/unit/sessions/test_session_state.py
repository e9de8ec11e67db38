"""A session's sets, held against the plainest model of them, over any sequence of changes."""

from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from ctxd.errors import CtxdError
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.sessions import activation_operations, chat_operations, file_operations, toolcall_operations
from ctxd.sessions.session_state import SessionState, apply, check, replay_deltas, snapshot
from ctxd.sessions.stored_session import (
    NOTHING,
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    RecordUsage,
    SessionDelta,
    ShowObjects,
    read_segment,
    segment_document,
)
from ctxd_protocol.event_types import event_of
from ctxd_protocol.session_types import Collapse, Message

FILES = [f"{n:064x}" for n in range(6)]
# Some tool calls have ids in the form of a file's: only what brought an object in tells its kind.
calls = st.integers(0, 40).map(lambda n: f"{n:064x}" if n % 3 == 2 and n > len(FILES) else f"call-{n}")
objects = st.sampled_from(FILES) | calls


@dataclass
class Model:
    """The rules, by lists and full scans."""

    index: list = field(default_factory=list)
    pool: list = field(default_factory=list)
    active: list = field(default_factory=list)
    pinned: list = field(default_factory=list)
    turns: list = field(default_factory=lambda: [[]])
    made: dict = field(default_factory=dict)
    chosen: dict = field(default_factory=dict)

    def add(self, name: str, id: str) -> None:
        if id not in getattr(self, name):
            getattr(self, name).append(id)

    def drop(self, name: str, id: str) -> None:
        if id in getattr(self, name):
            getattr(self, name).remove(id)

    def rest(self, id: str) -> None:
        self.drop("active", id)
        self.chosen.pop(id, None)

    def collapse(self, window: Collapse) -> None:
        now = len(self.turns) - 1
        for id in list(self.active):
            if id in FILES or id in self.pinned:
                continue
            if id in self.chosen:
                stays = now - self.chosen[id] < window.turns
            else:
                turn = self.made[id]
                siblings = [other for other, made in self.made.items() if made == turn]
                stays = now - turn < window.turns and len(siblings) - siblings.index(id) <= window.per_turn
            if not stays:
                self.rest(id)


class Sessions(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.state, self.model, self.deltas, self.refused = SessionState(), Model(), [], None

    @initialize(per_turn=st.integers(0, 3), turns=st.integers(1, 3))
    def configure(self, per_turn: int, turns: int) -> None:
        self.window = Collapse(per_turn=per_turn, turns=turns)

    def do(self, delta: SessionDelta) -> None:
        if delta == NOTHING:
            return
        self.deltas.append(delta)
        apply(self.state, read_segment(segment_document("segment:s#0000000000", delta)))

    def refuses(self, code: str, decide, *args) -> None:
        with pytest.raises(CtxdError) as caught:
            decide(self.state, *args)
        assert caught.value.code == code

    @rule(id=st.sampled_from(FILES))
    def read(self, id: str) -> None:
        self.do(file_operations.read_delta(self.state, id))
        for name in ("index", "pool", "active"):
            self.model.add(name, id)

    @rule(ids=st.lists(st.sampled_from(FILES), max_size=4))
    def discover(self, ids: list) -> None:
        self.do(file_operations.discover_delta(self.state, ids))
        for id in ids:
            self.model.add("index", id)
            self.model.add("pool", id)

    @rule(id=calls)
    def call(self, id: str) -> None:
        if id in self.model.index:
            return
        self.do(toolcall_operations.call_delta(self.state, id, self.window))
        for name in ("index", "pool", "active"):
            self.model.add(name, id)
        self.model.made[id] = len(self.model.turns) - 1
        self.model.collapse(self.window)

    @rule(roles=st.lists(st.sampled_from(["user", "assistant"]), min_size=1, max_size=3))
    def say(self, roles: list) -> None:
        messages = [Message(role=role, content=role) for role in roles]
        self.do(chat_operations.append_delta(self.state, "s", list(map(event_of, messages)), self.window))
        for message in messages:
            if message.role == "user":
                self.model.turns.append([])
            self.model.turns[-1].append(Message(role=message.role))
        if "user" in roles:
            self.model.collapse(self.window)

    @rule(id=objects)
    def activate(self, id: str) -> None:
        if id not in self.model.index:
            return
        self.do(activation_operations.activate_delta(self.state, id))
        self.model.add("pool", id)
        self.model.add("active", id)
        self.model.chosen[id] = len(self.model.turns) - 1

    @rule(id=objects)
    def deactivate(self, id: str) -> None:
        if id not in self.model.active:
            return self.refuses("not_active", activation_operations.deactivate_delta, id)
        self.do(activation_operations.deactivate_delta(self.state, id))
        self.model.rest(id)

    @rule(id=objects)
    def pin(self, id: str) -> None:
        if id not in self.model.pool:
            return self.refuses("not_in_pool", activation_operations.pin_delta, id)
        self.do(activation_operations.pin_delta(self.state, id))
        self.model.add("pinned", id)

    @rule(id=objects)
    def unpin(self, id: str) -> None:
        if id not in self.model.pinned:
            return self.refuses("not_pinned", activation_operations.unpin_delta, id)
        self.do(activation_operations.unpin_delta(self.state, id))
        self.model.drop("pinned", id)

    @rule(id=objects)
    def pool_add(self, id: str) -> None:
        if id in self.model.index:
            self.do(activation_operations.show_delta(self.state, id))
            self.model.add("pool", id)

    @rule(id=objects)
    def pool_remove(self, id: str) -> None:
        if id not in self.model.pool:
            return self.refuses("not_in_pool", activation_operations.hide_delta, id)
        self.do(activation_operations.hide_delta(self.state, id))
        self.model.rest(id)
        self.model.drop("pool", id)
        self.model.drop("pinned", id)

    @rule(assembly=st.integers(1, 3), tokens=st.integers(0, 9))
    def bill(self, assembly: int, tokens: int) -> None:
        usage = RecordUsage(assembly, "m", tokens, 2, ((300, 4),), 5, None, {"service_tier": "standard"})
        self.do((usage,))
        assert self.state.usage[assembly] == usage

    @rule()
    def carry_a_snapshot(self) -> None:
        self.do((snapshot(self.state), AppendChat((event_of(Message(role="assistant", content=".")),))))
        self.model.turns[-1].append(Message(role="assistant"))

    @invariant()
    def sets_are_those_of_the_model_in_its_order(self) -> None:
        for name in ("index", "pool", "active", "pinned"):
            assert list(getattr(self.state, name)) == getattr(self.model, name), name
        assert self.state.files(self.state.index) == [id for id in self.model.index if id in FILES]
        assert self.state.turns == self.model.turns
        check(self.state)

    @invariant()
    def segments_fold_to_the_very_state(self) -> None:
        assert replay_deltas(self.deltas) == self.state
        assert (
            replay_deltas([read_segment(segment_document("segment:s#0000000000", delta)) for delta in self.deltas])
            == self.state
        )


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


@pytest.mark.requirement("SES-2")
@pytest.mark.requirement("SES-3")
class TestAnySequenceOfChanges(Sessions.TestCase):
    """Whatever is asked of a session, its sets are those of the rules."""


def test_a_snapshot_is_due_once_the_changes_since_the_last_outweigh_the_sets() -> None:
    state = SessionState()
    apply(state, (ReadObjects(tuple(FILES)),))
    for _ in range(130):
        apply(state, (DeactivateObjects((FILES[0],)),))
        apply(state, (ActivateObjects((FILES[0],)),))
    assert state.snapshot_due
    apply(state, (snapshot(state), PinObjects((FILES[0],))))
    assert not state.snapshot_due


def test_growth_alone_writes_no_snapshots() -> None:
    state = SessionState()
    for n in range(2000):
        apply(state, toolcall_operations.call_delta(state, f"call-{n}", Collapse()))
        assert not state.snapshot_due or len(state.index) < 260


def test_a_segment_is_stored_as_tagged_operations_in_order_with_its_version() -> None:
    document = segment_document("segment:s#0000000000", (RecordCalls(("call-1",)), CollapseCalls(("call-0",))))
    assert msgspec.json.encode(document.payload) == b'{"ops":[["call",["call-1"]],["collapse",["call-0"]]],"v":2}'


@pytest.mark.parametrize(
    "delta",
    [
        (RecordCalls(("call é|1",)), CollapseCalls(("call-0", FILES[0]))),
        (AppendChat((event_of(Message(role="user", content="hi", meta={"cost": 1.5, "ü": [1, None]})),)),),
        (snapshot(replay_deltas([(ReadObjects(tuple(FILES)), RecordCalls(("call-1",)))])), ShowObjects((FILES[0],))),
    ],
)
def test_a_segments_hashes_are_those_of_every_other_document(delta: SessionDelta) -> None:
    document = segment_document("segment:s#0000000007", delta)
    stored = msgspec.json.decode(msgspec.json.encode(document.payload))
    assert document.content_hash == content_hash(stored, None)
    assert document.identity_hash == identity_hash("segment", None, document.id)
    assert read_segment(msgspec.structs.replace(document, payload=stored)) == delta
