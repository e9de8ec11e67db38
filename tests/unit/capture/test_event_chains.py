"""Chains of commits of whole transcripts: each event once and in order, sub-agents where they were spawned."""

import os
import shutil
from collections import defaultdict
from pathlib import Path

import pytest

from ctxd.capture.event_chains import EventChains
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.transcripts.format_detection import read
from ctxd_protocol.event_types import (
    CompactionEvent,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    ToolCallEvent,
    ToolResultEvent,
)

ROOT = Path(os.environ.get("CTXD_TRANSCRIPTS") or Path(__file__).resolve().parents[4] / "shared/data/transcripts")
FILES = sorted(path for path in ROOT.rglob("*") if path.suffix in {".jsonl", ".json", ".db"})


def events_of(commits):
    return list(DELTA_FORMATS["events-v1"].events([commit.checkpoint.delta for commit in commits]))


def planned(*events, **options):
    return list(EventChains(**options).commits(events))


def shape(commits):
    return [(commit.number, commit.parent, commit.sidechain) for commit in commits]


def call(id, **more):
    return ToolCallEvent(call=id, tool="Task", args={}, **more)


def prompt(text="go", **more):
    return PromptEvent(text=text, **more)


@pytest.mark.requirement("CAP-10")
def test_a_conversation_is_one_chain():
    commits = planned(prompt(), ResponseEvent(text="a"), prompt(), ResponseEvent(text="b"), prompt())
    assert shape(commits) == [(1, None, None), (2, 1, None), (3, 2, None)]
    assert [commit.checkpoint.trigger for commit in commits] == ["turn_boundary", "turn_boundary", "session_end"]


@pytest.mark.requirement("CAP-10")
def test_a_sub_agent_that_is_named_by_its_call_begins_at_the_commit_with_the_call():
    side = {"sidechain": "c1"}
    commits = planned(
        prompt(), call("c1"), call("c2"), prompt(**side), ResponseEvent(text="x", **side), ToolResultEvent(call="c1"),
        ResponseEvent(text="done"),
    )  # fmt: skip
    assert shape(commits) == [(1, None, None), (2, 1, None), (3, 1, "c1"), (4, 2, None)]


@pytest.mark.requirement("CAP-10")
def test_the_spawning_call_is_committed_first_under_every_policy():
    side = {"sidechain": "c1"}
    commits = planned(prompt(), call("c1"), prompt(**side), ToolResultEvent(call="c1"), policy={"session_end"})
    assert shape(commits) == [(1, None, None), (2, 1, None), (3, 1, "c1")]
    assert [commit.checkpoint.trigger for commit in commits] == ["explicit", "session_end", "session_end"]


@pytest.mark.requirement("CAP-10")
def test_a_sub_agent_in_a_file_of_its_own_is_found_by_the_result_of_its_call():
    result = ToolResultEvent(call="c1", meta={"toolUseResult": {"agentId": "a9"}})
    side = {"sidechain": "a9"}
    commits = planned(prompt(), call("c1"), result, ResponseEvent(text="done"), prompt(**side))
    assert shape(commits) == [(1, None, None), (2, 1, None), (3, 1, "a9")]


@pytest.mark.requirement("CAP-10")
def test_sub_agents_of_sub_agents_and_those_without_a_known_call():
    one, two, alone = {"sidechain": "c1"}, {"sidechain": "c2"}, {"sidechain": "who"}
    commits = planned(prompt(), call("c1"), call("c2", **one), prompt(**two), prompt(**alone))
    assert shape(commits) == [(1, None, None), (2, 1, "c1"), (3, 2, "c2"), (4, 1, "who")]
    assert shape(planned(prompt(**alone))) == [(1, None, "who")]


@pytest.mark.requirement("CAP-10")
def test_a_compaction_is_of_the_chain_it_happened_in():
    side = {"sidechain": "c1"}
    commits = planned(
        prompt(), call("c1"), prompt(**side), CompactionEvent(summary="s", **side), ResponseEvent(text="x", **side)
    )
    assert [(commit.sidechain, commit.checkpoint.is_compaction) for commit in commits] == [
        (None, False), ("c1", False), ("c1", True), ("c1", False),
    ]  # fmt: skip


@pytest.mark.requirement("CAP-10")
def test_each_session_of_a_file_is_a_conversation_of_its_own():
    start = [OpaqueEvent(kind="session", data={"id": name}) for name in "ab"]
    commits = planned(start[0], prompt(), start[1], prompt("two"))
    assert [commit.parent for commit in commits] == [None, None]
    assert [len(events_of([commit])) for commit in commits] == [2, 2]


@pytest.mark.requirement("CAP-10")
def test_times_never_decrease():
    commits = planned(*(ResponseEvent(text="x", at=at) for at in (5, 3, None, 9)))
    assert [commit.at for commit in commits] == [5, 5, 5, 9]


@pytest.mark.requirement("CAP-10")
@pytest.mark.skipif(not FILES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("path", FILES, ids=lambda path: "/".join(path.relative_to(ROOT).parts[0::2]))
def test_every_event_of_a_real_transcript_is_in_one_commit_in_order(path, tmp_path):
    if path.suffix == ".db":
        for each in path.parent.glob("opencode.db*"):
            shutil.copy(each, tmp_path)
        path = tmp_path / path.name
    found = [entry.event for entry in read(path)[1]]
    commits = planned(*found)
    by_chain = defaultdict(list)
    for event in found:
        by_chain[event.sidechain].append(event)
    chains = defaultdict(list)
    for commit in commits:
        chains[commit.sidechain].append(commit)
        assert commit.parent is None or commit.parent < commit.number
    for name, chain in chains.items():
        assert events_of(chain) == by_chain[name]
    assert chains.keys() == by_chain.keys()
    calls = {
        event.call: commit.number
        for commit in commits
        for event in events_of([commit])
        if isinstance(event, ToolCallEvent)
    }
    for name in chains.keys() & calls.keys():
        assert chains[name][0].parent == calls[name]
