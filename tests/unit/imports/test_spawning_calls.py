"""Calls that spawned sub-agents, by the names that codex gives them."""

import pytest

from ctxd.imports.spawning_calls import SpawningCalls
from ctxd_protocol.event_types import OpaqueEvent, ToolCallEvent


@pytest.mark.requirement("IMP-3")
def test_only_the_start_of_a_sub_agent_names_it():
    calls = SpawningCalls()
    calls.note([ToolCallEvent(call="c1", tool="spawn_agent", args={})], 7)
    for kind, place in (("interacted", 8), ("started", 9), ("interrupted", 10)):
        data = {"event_id": "c1", "agent_thread_id": "t1", "kind": kind}
        calls.note([OpaqueEvent(kind="event_msg.sub_agent_activity", data=data)], place)
    calls.note([OpaqueEvent(kind="event_msg.collab_agent_spawn_end", data={"new_thread_id": "t2"})], 11)
    assert (calls.line(["t1"]), calls.line(["t2"])) == (7, 11)
    assert calls.line([""]) is None, "a source without an id is not the agent of another activity"
