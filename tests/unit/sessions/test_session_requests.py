"""Which requests a session takes, and what the window does to tool calls."""

import pytest

from ctxd.errors import CtxdError
from ctxd.sessions import activation_operations, chat_operations, file_operations, id_resolution, toolcall_operations
from ctxd.sessions.session_state import SessionState, apply
from ctxd.sessions.stored_session import NOTHING, DiscoverObjects, RecordCalls
from ctxd_protocol.event_types import Event, PromptEvent, ToolResultEvent, event_of
from ctxd_protocol.methods.toolcalls import ToolcallRecordParams
from ctxd_protocol.session_types import Collapse, Message

WINDOW = Collapse()
FILE = "ab" * 32


def user(state: SessionState, window: Collapse = WINDOW) -> None:
    apply(state, chat_operations.append_delta(state, "s", [PromptEvent(text="go")], window))


def record(state: SessionState, *ids: str, window: Collapse = WINDOW) -> None:
    for id in ids:
        apply(state, toolcall_operations.call_delta(state, id, window))


def code_of(decide, *args) -> str:
    with pytest.raises(CtxdError) as caught:
        decide(*args)
    return caught.value.code


@pytest.mark.requirement("COL-1")
def test_five_newest_tool_calls_of_each_of_three_turns_stay_active() -> None:
    state = SessionState()
    for turn in range(6):
        user(state)
        record(state, *(f"call-{turn}-{n}" for n in range(7)))
    assert list(state.active) == [f"call-{turn}-{n}" for turn in (3, 4, 5) for n in range(2, 7)]


def test_a_turn_that_leaves_the_window_takes_its_tool_calls_along_without_a_new_one() -> None:
    state = SessionState()
    user(state)
    record(state, "call-a")
    user(state)
    user(state)
    assert "call-a" in state.active
    user(state)
    assert "call-a" not in state.active
    assert "call-a" in state.pool


@pytest.mark.requirement("COL-2")
def test_pinned_tool_calls_never_collapse_and_do_once_unpinned() -> None:
    state = SessionState()
    user(state)
    record(state, "call-pinned")
    apply(state, activation_operations.pin_delta(state, "call-pinned"))
    for _ in range(5):
        user(state)
    assert "call-pinned" in state.active
    apply(state, activation_operations.unpin_delta(state, "call-pinned"))
    record(state, "call-new")
    assert list(state.active) == ["call-new"]


@pytest.mark.requirement("COL-2")
def test_files_never_collapse() -> None:
    state = SessionState()
    apply(state, file_operations.read_delta(state, FILE))
    for _ in range(9):
        user(state)
        record(state, *(f"call-{state.turn}-{n}" for n in range(9)))
    assert FILE in state.active


@pytest.mark.requirement("COL-3")
def test_an_explicit_deactivation_persists() -> None:
    state = SessionState()
    user(state)
    record(state, "call-1")
    apply(state, activation_operations.deactivate_delta(state, "call-1"))
    record(state, "call-2")
    user(state)
    assert list(state.active) == ["call-2"]


@pytest.mark.requirement("COL-3")
def test_an_explicit_activate_counts_as_recent_until_the_window_passes() -> None:
    state = SessionState()
    user(state)
    record(state, "call-old")
    for _ in range(5):
        user(state)
    apply(state, activation_operations.activate_delta(state, "call-old"))
    record(state, *(f"call-{n}" for n in range(20)))
    user(state)
    user(state)
    assert "call-old" in state.active
    user(state)
    assert "call-old" not in state.active


def test_activating_a_recent_tool_call_keeps_it_past_five_newer_ones() -> None:
    state = SessionState()
    user(state)
    record(state, "call-kept")
    apply(state, activation_operations.activate_delta(state, "call-kept"))
    assert activation_operations.activate_delta(state, "call-kept") == NOTHING
    record(state, *(f"call-{n}" for n in range(9)))
    assert "call-kept" in state.active


def test_a_window_of_zero_shows_no_tool_call() -> None:
    state = SessionState()
    record(state, "call-1", window=Collapse(per_turn=0))
    assert list(state.pool) == ["call-1"]
    assert not state.active


def test_the_cost_of_a_tool_call_does_not_grow_with_the_session() -> None:
    """Counted, not timed: what the window has to look at stays the same."""
    state = SessionState()
    sizes = set()
    for turn in range(400):
        user(state)
        record(state, *(f"call-{turn}-{n}" for n in range(10)))
        if turn > 3:
            sizes.add(len(state.warm) + sum(map(len, state.chosen_calls.values())))
    assert sizes == {15}


@pytest.mark.requirement("SES-6")
@pytest.mark.requirement("SES-7")
@pytest.mark.requirement("OBJ-11")
def test_requests_invalid_for_the_sets_are_rejected_with_a_specific_code() -> None:
    state = SessionState()
    apply(state, file_operations.discover_delta(state, [FILE]))
    assert code_of(activation_operations.deactivate_delta, state, FILE) == "not_active"
    assert code_of(activation_operations.unpin_delta, state, FILE) == "not_pinned"
    assert code_of(id_resolution.resolve, state, "s", "chat:s") == "infrastructure_object"
    assert code_of(id_resolution.resolve, state, "s", "call-unknown") == "not_in_index"
    apply(state, activation_operations.hide_delta(state, FILE))
    assert code_of(activation_operations.pin_delta, state, FILE) == "not_in_pool"
    assert code_of(activation_operations.hide_delta, state, FILE) == "not_in_pool"


@pytest.mark.requirement("SES-4")
def test_activating_an_object_that_is_only_indexed_shows_it_first() -> None:
    state = SessionState()
    apply(state, file_operations.discover_delta(state, [FILE]))
    apply(state, activation_operations.hide_delta(state, FILE))
    assert state.level(FILE) == "indexed"
    apply(state, activation_operations.activate_delta(state, FILE))
    assert FILE in state.pool
    assert state.level(FILE) == "active"


@pytest.mark.requirement("SES-14")
def test_an_object_is_found_by_eight_characters_or_by_a_tool_calls_own_id() -> None:
    state = SessionState()
    near = FILE[:10] + "0" * 54
    apply(state, (DiscoverObjects((FILE, near)), RecordCalls(("toolcall:s:chat:9",))))
    assert id_resolution.resolve(state, "s", FILE[:12]) == FILE
    assert code_of(id_resolution.resolve, state, "s", FILE[:8]) == "ambiguous_id"
    assert code_of(id_resolution.resolve, state, "s", FILE[:7]) == "not_in_index"
    apply(state, (RecordCalls(("toolcall:s:fedcba98",)),))
    assert id_resolution.resolve(state, "s", "fedcba98") == "toolcall:s:fedcba98"
    apply(state, (RecordCalls(("call_12345", "call_1234")),))
    assert id_resolution.resolve(state, "s", "call_1234") == "call_1234"


@pytest.mark.requirement("SES-8")
class Counted(dict):
    """Counts how many of its keys are gone through."""

    seen = 0

    def __iter__(self):
        for key in super().__iter__():
            self.seen += 1
            yield key


def test_many_objects_named_by_their_beginnings_are_found_without_going_through_the_index_for_each() -> None:
    state = SessionState()
    ids = [f"{n:03}{FILE}" for n in range(500)]
    apply(state, (DiscoverObjects(tuple(ids)),))
    state.index = Counted(state.index)
    assert [id_resolution.resolve(state, "s", id[:12]) for id in ids] == ids
    assert state.index.seen <= 2 * len(ids)
    apply(state, (DiscoverObjects((f"new{FILE}",)),))
    assert id_resolution.resolve(state, "s", "newababab") == f"new{FILE}"
    assert code_of(id_resolution.resolve, state, "s", "000ababb") == "not_in_index"


def test_references_that_stay_unresolved_are_compared_once_each() -> None:
    compared = 0

    class Reference(str):
        __slots__ = ()

        def __eq__(self, other):
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    refs = tuple(Reference(f"gone{n}") for n in range(500))
    params = ToolcallRecordParams(session="s", id="c", tool="Bash", content="", file_refs=tuple(map(str, refs)))
    toolcall_operations.toolcall_document(SessionState(), "s", params, None, "c", chat_ref="chat:s", unresolved=refs)
    assert compared <= 4 * len(refs)


def test_messages_keep_their_order_and_a_result_is_kept_by_its_objects_id() -> None:
    state = SessionState()
    apply(state, (RecordCalls(("toolcall:s:c1",)),))
    said = [Message(role="user", content="a"), Message(role="assistant", content="b")]
    said += [Message(role="toolcall", toolcall="c1"), Message(role="assistant", content="c")]
    apply(state, chat_operations.append_delta(state, "s", list(map(event_of, said)), WINDOW))
    assert [mark and mark.role for mark in state.turns[1]] == ["user", "assistant", "toolcall", "assistant"]
    assert state.turns[1][2].toolcall == "toolcall:s:c1"


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Message(role="toolcall", toolcall="call-never-recorded"), "not_in_index"),
        (Message(role="toolcall"), "invalid_params"),
        (Message(role="user", content="x", toolcall="call-1"), "invalid_params"),
    ],
)
def test_a_malformed_message_is_refused(message: Message, code: str) -> None:
    def append() -> None:
        chat_operations.append_delta(SessionState(), "s", chat_operations.events_from([message], []), WINDOW)

    assert code_of(append) == code


@pytest.mark.parametrize(
    ("event", "code"),
    [
        (PromptEvent(), "invalid_params"),
        (PromptEvent(sidechain="a1"), "invalid_params"),
        (ToolResultEvent(object="call-never-recorded"), "not_in_index"),
        (ToolResultEvent(object="call-1", text="its output"), "invalid_params"),
    ],
)
def test_a_malformed_event_is_refused(event: Event, code: str) -> None:
    assert code_of(chat_operations.append_delta, SessionState(), "s", [event], WINDOW) == code
