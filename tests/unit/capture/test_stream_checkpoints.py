"""Checkpoints: which deltas the events of an agent become under each policy."""

import os

import pytest

from ctxd.capture.stream_checkpoints import DEFAULT_POLICY, DELTA_BYTES_MAX, TRIGGERS, CheckpointTracker
from ctxd.formats.delta_formats import DELTA_FORMATS, count
from ctxd_protocol.event_types import (
    CompactionEvent,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

INIT = SystemEvent(kind="init")
PROMPT = PromptEvent(text="go")
THOUGHT = ThinkingEvent(text="hm")
CALL = ToolCallEvent(call="c", tool="Bash", args={"command": "ls"})
RESULT = ToolResultEvent(call="c", text="a b")
ANSWER = ResponseEvent(text="done")
METRIC = OpaqueEvent(kind="metric", data={"status": "success"})


def events_of(delta):
    return list(DELTA_FORMATS["events-v1"].events([delta]))


def tracked(tracker, *lines):
    """Trigger and events of each checkpoint; an event alone is a line of one event."""
    found = [each for line in lines for each in tracker.add(line if isinstance(line, list) else [line])]
    return [(each.trigger, events_of(each.delta)) for each in [*found, *tracker.cut("session_end")]]


@pytest.mark.requirement("CAP-3")
def test_by_default_a_turn_is_cut_before_its_tools_run_and_at_its_answer():
    found = tracked(CheckpointTracker(), INIT, PROMPT, THOUGHT, CALL, RESULT, ANSWER, METRIC)
    assert found == [
        ("turn_boundary", [INIT, PROMPT, THOUGHT, CALL]),
        ("turn_boundary", [RESULT, ANSWER]),
        ("session_end", [METRIC]),
    ]


@pytest.mark.requirement("CAP-3")
@pytest.mark.parametrize(
    ("policy", "cut"),
    [
        ({"turn_boundary"}, ["turn_boundary", "turn_boundary", "session_end"]),
        ({"tool_call"}, ["tool_call", "session_end"]),
        ({"session_end"}, ["session_end"]),
        ({"explicit"}, ["session_end"]),
        (DEFAULT_POLICY | {"tool_call"}, ["turn_boundary", "tool_call", "turn_boundary", "session_end"]),
    ],
    ids=["turns", "tools", "end", "explicit", "all"],
)
def test_the_policy_decides_where_deltas_are_cut_and_none_loses_an_event(policy, cut):
    events = [INIT, PROMPT, THOUGHT, CALL, RESULT, ANSWER, METRIC]
    found = tracked(CheckpointTracker(frozenset(policy)), *events)
    assert [trigger for trigger, _ in found] == cut
    assert [event for _, delta in found for event in delta] == events


def test_every_nth_turn_boundary():
    found = tracked(CheckpointTracker(every=3), *[ANSWER] * 7)
    assert [len(delta) for _, delta in found] == [3, 3, 1]


def test_the_blocks_of_one_line_are_cut_together():
    assert tracked(CheckpointTracker(), [THOUGHT, ANSWER, CALL]) == [("turn_boundary", [THOUGHT, ANSWER, CALL])]


def test_sub_agents_and_tools_of_the_provider_end_no_turn():
    side = ResponseEvent(text="sub", sidechain="toolu_1")
    server = ToolCallEvent(call="w", tool="web_search", meta={"server_tool": True})
    assert tracked(CheckpointTracker(), side, server) == [("session_end", [side, server])]


@pytest.mark.requirement("CAP-4")
def test_a_compaction_is_a_commit_of_its_own_behind_the_delta_before_it():
    tracker = CheckpointTracker(frozenset({"session_end"}))
    compaction = CompactionEvent(summary="x" * 20_000, tokens_before=9)
    before, itself = [each for line in (PROMPT, CALL, compaction) for each in tracker.add([line])]
    assert (before.trigger, before.is_compaction, events_of(before.delta)) == ("compaction", False, [PROMPT, CALL])
    assert (itself.trigger, itself.is_compaction, events_of(itself.delta)) == ("compaction", True, [compaction])
    assert itself.summary == "x" * 16_000
    assert (itself.messages, itself.tokens) == (1, 5000)
    (after,) = [*tracker.add([ANSWER]), *tracker.cut("session_end")]
    assert events_of(after.delta) == [ANSWER]


@pytest.mark.requirement("CMT-11")
def test_kept_messages_are_in_the_delta_of_their_compaction_as_far_as_they_fit():
    compaction, kept = CompactionEvent(summary="S"), [PromptEvent(text=f"{number}" * 300) for number in range(3)]
    tracker = CheckpointTracker(frozenset(), bytes_max=800)
    found = [*tracker.add([PROMPT]), *tracker.add([compaction], kept), *tracker.add([ANSWER]), *tracker.cut("explicit")]
    deltas = [(each.is_compaction, events_of(each.delta), each.messages) for each in found]
    assert deltas == [
        (False, [PROMPT], 1),
        (True, [compaction, *kept[:2]], 3),
        (False, [kept[2], ANSWER], 2),
    ], "a purge can remove single messages only from a delta that is in the database"


@pytest.mark.requirement("CAP-4")
@pytest.mark.parametrize(
    "event", [CompactionEvent(tokens_before=9), SystemEvent(kind="microcompact_boundary")], ids=["no summary", "micro"]
)
def test_a_compaction_without_a_summary_cuts_a_delta(event):
    assert tracked(CheckpointTracker(), PROMPT, event) == [("compaction", [PROMPT, event])]


def test_a_checkpoint_without_events_is_never_made():
    tracker = CheckpointTracker()
    assert [each for trigger in TRIGGERS for each in tracker.cut(trigger)] == []
    assert tracked(tracker, []) == []


def test_counts_are_those_of_the_delta():
    (found,) = CheckpointTracker().add([INIT, PROMPT, CALL])
    assert (found.messages, found.tokens) == count("events-v1", found.delta) == (2, 6)


@pytest.mark.requirement("CAP-1")
def test_a_delta_that_grows_too_large_is_cut_and_an_event_that_is_too_large_too():
    large = ToolResultEvent(call="c", text="y" * (3 * DELTA_BYTES_MAX), at=1000)
    raw = OpaqueEvent(kind="output", data=os.urandom(DELTA_BYTES_MAX))
    tracker = CheckpointTracker(frozenset({"session_end"}))
    events = [PROMPT, large, raw, *[ResponseEvent(text="z" * 1_000_000)] * 9]
    found = [*(each for event in events for each in tracker.add([event])), *tracker.cut("session_end")]
    assert all(len(each.delta) <= DELTA_BYTES_MAX + 200 for each in found)
    assert list(DELTA_FORMATS["events-v1"].events(each.delta for each in found)) == events
