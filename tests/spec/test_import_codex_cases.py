"""IMP: rollouts of codex as it writes them, in each form that changes what the model sees next: compactions, rollbacks,
forks and sub-agents."""

import json
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from ctxd.imports import changed_sources
from ctxd.imports.import_result import ImportResult
from ctxd.imports.import_state import SourceState
from ctxd.imports.importer import TranscriptImport
from ctxd.transcripts.discovery import Transcript
from ctxd.transcripts.format_detection import Format
from ctxd_client import connect
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Usage
from tests.client.running import Running
from tests.spec.claude_records import once
from tests.spec.harness_files import Thread
from tests.spec.imported_contexts import head, kept, narrative, spent, window
from tests.spec.test_import import Codex, Record, commits, ctx, imported, labels, views


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("has_history", [True, False])
def test_a_codex_compaction_keeps_the_messages_that_codex_sends_next(
    daemon: Running, client: SyncClient, tmp_path: Path, has_history: bool
) -> None:
    rollout = Thread(history_mode="legacy")
    rollout.turn("a", "b")
    rollout.begin()
    rollout.ask("c")
    rollout.compact("k", "ac" if has_history else None)
    rollout.answer("d")
    rollout.end()
    rollout.turn("e", "f")
    found = imported(daemon, "codex", rollout.write(tmp_path))
    assert found["events"]["prompt"] == 3 and found["events"]["compaction"] == 1
    assert window(client, rollout.id) == ("kdef" if has_history else "ackdef"), (
        "a summary alone stands with the prompts"
    )
    (made,) = [each for each in commits(client, rollout.id).values() if each.commit_type == "compaction"]
    assert made.summary == "summary k"
    assert len(client.commit_list(session=rollout.id, tips=True).commits) == 1
    assert labels(client, made.parent) == "mabc"
    told = narrative(client, rollout.id)
    assert ("text c" in told, told.count("text a")) == (True, 1), "the summary and what it keeps"
    assert told.index("summary k") < told.index("text c")
    again = kept(client, rollout.id) - Counter(rollout.bytes().splitlines())
    assert sorted(json.loads(line)["label"] for line in again) == ([] if has_history else ["a", "c"])


@pytest.mark.requirement("IMP-3")
def test_a_codex_summary_without_history_keeps_only_prompts_that_fit(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    for one, other, size in (("a", "b", 10), ("c", "d", 62_000), ("e", "f", 19_000)):
        rollout.turn(one, other)
        rollout.records[-5]["payload"]["content"][0]["text"] = "x" * size
    rollout.compact("k")
    imported(daemon, "codex", rollout.write(tmp_path))
    assert window(client, rollout.id) == "ek"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize(
    ("place", "left"),
    [("within", "mabrgh"), ("before", "mabrgh"), ("alone", "krgh")],
)
def test_a_rollback_of_two_turns_takes_back_a_compaction_in_them(
    daemon: Running, client: SyncClient, tmp_path: Path, place: str, left: str
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.begin()
    if place != "within":
        rollout.compact("k", "a")
    if place == "alone":
        rollout.end()
        rollout.begin()
    rollout.ask("c")
    if place == "within":
        rollout.compact("k", "ac")
    rollout.answer("d")
    rollout.end()
    rollout.turn("e", "f")
    path = rollout.write(tmp_path)
    imported(daemon, "codex", path)
    before = head(client, rollout.id)
    rollout.event("thread_rolled_back", "r", num_turns=2)
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert window(client, rollout.id) == left.removesuffix("gh"), "as soon as it is rolled back"
    rollout.turn("g", "h")
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert window(client, rollout.id) == left and labels(client, head(client, rollout.id)) == "mabrgh"
    assert "ef" in labels(client, before), "what was taken back is still there"
    assert set(kept(client, rollout.id)) == set(rollout.bytes().splitlines())
    assert set(kept(client, rollout.id).values()) == {1}
    again = imported(daemon, "codex", path)
    assert (again["unchanged"], again["commits"]) == (1, 0)


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_copied_fork_continues_from_its_origin_and_can_be_rolled_back_into_the_copy(
    daemon: Running, client: SyncClient, tmp_path: Path, is_marked: bool
) -> None:
    origin = Thread()
    origin.turn("a", "b")
    origin.turn("c", "d")
    origin.write(tmp_path)
    fork = Thread(hour=4, **({"forked_from_id": origin.thread} if is_marked else {}))
    fork.copies(origin, *{each["label"] for each in origin.records})
    fork.turn("v", "w")
    path = fork.write(tmp_path)
    found = imported(daemon, "codex", tmp_path)
    assert found["copied"] == len(origin.records)
    assert labels(client, head(client, fork.id)) == "mabcdmvw"
    fork.event("thread_rolled_back", "r", num_turns=2)
    fork.turn("x", "y")
    fork.write(tmp_path)
    imported(daemon, "codex", path)
    assert labels(client, head(client, fork.id)) == "mabrxy", "the copied turn is taken back too"
    fork.compact("k")
    fork.write(tmp_path)
    imported(daemon, "codex", path)
    assert window(client, fork.id) == "axk", "the prompts, of the copy too"
    assert labels(client, head(client, origin.id)) == "mabcd" and set(kept(client, origin.id).values()) == {1}
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_compacted", [True, False])
def test_a_fork_of_a_fork_keeps_its_history_while_the_first_thread_grows(
    daemon: Running, client: SyncClient, tmp_path: Path, is_compacted: bool
) -> None:
    """The two that have changed have no origin in common that has: they are imported at the same time."""
    first = Thread()
    first.turn("a", "b")
    second = Thread(hour=4, forked_from_id=first.thread)
    second.copies(first, *"mab")
    second.turn("c", "d")
    third = Thread(hour=5, forked_from_id=second.thread)
    third.copies(second, *"mabcd")
    third.turn("e", "f")
    if is_compacted:
        third.compact("k", "x")
    third.turn("g", "h")
    for each in (first, second, third):
        each.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    before = labels(client, head(client, third.id))
    first.turn("y", "z")
    third.event("thread_rolled_back", "r", num_turns=1)
    for each in (first, third):
        each.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, third.id)) == before.removesuffix("gh") + "r"
    assert set(kept(client, third.id).values()) == {1}, "no line twice"


@pytest.mark.requirement("IMP-4")
def test_a_fork_by_reference_begins_within_a_turn_of_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    origin = Thread(history_mode="paginated")
    origin.begin()
    origin.ask("a")
    origin.add("b", type="function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id="c1")
    origin.add("c", type="function_call_output", call_id="c1", output="p.py")
    end, count = len(origin.bytes()), len(origin.records)
    origin.answer("d")
    origin.end()
    origin.write(tmp_path)
    base = {"thread_id": origin.thread, "end_ordinal_exclusive": count, "end_byte_offset": end}
    fork = Thread(hour=4, history_mode="paginated", forked_from_id=origin.thread, history_base=base)
    fork.turn("x", "y")
    fork.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, origin.id)) == "mabcd"
    assert labels(client, head(client, fork.id)) == window(client, fork.id) == "mabcmxy"
    assert client.commit_materialize(head(client, fork.id), stop="root", content=False).message_count == 5
    again = imported(daemon, "codex", tmp_path)
    assert (again["unchanged"], again["commits"]) == (2, 0)


@pytest.mark.requirement("IMP-4")
def test_a_twice_reverted_thread_continues_in_its_newest_file(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    first = Thread(history_mode="paginated")
    first.turn("a", "b")
    end, count = len(first.bytes()), len(first.records)
    first.turn("c", "d")
    first.write(tmp_path)

    def reverted(hour: int, end: int, count: int) -> Thread:
        base = {"thread_id": first.thread, "end_ordinal_exclusive": count, "end_byte_offset": end}
        thread = Thread(hour=hour, history_mode="paginated", history_base=base)
        thread.thread = thread.records[0]["payload"]["id"] = first.thread
        return thread

    second = reverted(4, end, count)
    second.turn("e", "f")
    end, count = len(second.bytes()), count + len(second.records)
    second.turn("g", "h")
    second.write(tmp_path, f"_{uuid4()}")
    third = reverted(5, end, count)
    third.turn("x", "y")
    third.write(tmp_path, f"_{uuid4()}")
    found = imported(daemon, "codex", tmp_path)
    assert found["sessions"] == [first.id]
    assert labels(client, head(client, first.id)) == "mabmefmxy"
    assert views(client, first.id) == ["mabcd", "mabmefgh", "mabmefmxy"]
    assert set(kept(client, first.id).values()) == {1}
    assert imported(daemon, "codex", tmp_path)["unchanged"] == 3


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("has_parent", [True, False])
def test_a_codex_sub_agent_has_no_copy_of_its_callers_history(
    daemon: Running, client: SyncClient, tmp_path: Path, has_parent: bool
) -> None:
    caller = Thread()
    caller.begin()
    caller.ask("a")
    caller.add("t", type="reasoning", summary=[{"type": "summary_text", "text": "look"}], encrypted_content="gAAA")
    caller.answer("b")
    caller.add("s", type="function_call", name="spawn_agent", arguments='{"task_name":"x"}', call_id="c1")
    agent = Thread(
        hour=4,
        source={
            "subagent": {"thread_spawn": {"parent_thread_id": caller.thread, "depth": 1, "agent_role": "explorer"}}
        },
    )
    caller.add("o", type="function_call_output", call_id="c1", output=json.dumps({"agent_id": agent.thread}))
    caller.answer("c")
    if has_parent:
        caller.write(tmp_path)
    # The reasoning and the calls of the caller stay behind.
    agent.copies(caller, "m", "a", "b")
    agent.records[0]["payload"]["subagent_history_start_ordinal"] = len(agent.records)
    agent.turn("x", "y")
    agent.write(tmp_path)
    found = imported(daemon, "codex", tmp_path)
    assert found["copied"] == (3 if has_parent else 0)
    assert labels(client, head(client, agent.id)) == ("matbmxy" if has_parent else "mmabxy")
    own = Counter(json.loads(line)["label"] for line in kept(client, agent.id).elements())
    # Its first commit repeats the turn of its caller, within which it begins.
    assert own - Counter([""] * 99) == Counter("atbmxy" if has_parent else "mmabxy"), "each line once"
    if has_parent:
        assert labels(client, head(client, caller.id)) == "matbsoc"
        assert commits(client, agent.id).keys().isdisjoint(commits(client, caller.id))
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("is_marked", [True, False], ids=["forked_from_id", "session_meta"])
def test_a_sub_agent_of_codex_that_was_given_the_whole_history_does_not_have_it_twice(
    daemon: Running, client: SyncClient, tmp_path: Path, is_marked: bool
) -> None:
    caller = Thread()
    caller.turn("a", "b")
    spawn: Record = {"parent_thread_id": caller.thread, "depth": 1}
    agent = Thread(hour=4, source={"subagent": {"thread_spawn": spawn}})
    if is_marked:
        spawn["forked_from_id"] = "item-1"
    copied = caller.records[1 if is_marked else 0 :]
    agent.records += [{**each, "timestamp": agent.records[-1]["timestamp"]} for each in copied]
    agent.turn("x", "y")
    caller.add("s", type="function_call", name="spawn_agent", arguments="{}", call_id="c1")
    caller.add("o", type="function_call_output", call_id="c1", output=json.dumps({"agent_id": agent.thread}))
    caller.write(tmp_path)
    agent.write(tmp_path)
    assert imported(daemon, "codex", tmp_path)["copied"] == len(copied)
    assert window(client, agent.id).replace("m", "") == "abxy"
    assert window(client, caller.id).replace("m", "") == "abso"


@pytest.mark.requirement("HND-1")
def test_messages_between_agents_of_codex_are_messages_for_other_harnesses(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    said = {"type": "input_text", "text": "There are 3 retries"}
    rollout.add("", type="agent_message", author="/root/child", recipient="/root", content=[said])
    encrypted = {"type": "encrypted_content", "encrypted_content": "gAAA"}
    rollout.add("", type="agent_message", author="/root/other", recipient="/root", content=[encrypted])
    rollout.turn("c", "d")
    imported(daemon, "codex", rollout.write(tmp_path))
    told = narrative(client, rollout.id)
    assert told.count("[/root/child to /root]\nThere are 3 retries") == 1 and "/root/other" not in told
    words = ("resume", head(client, rollout.id), "--in", "claude", "--cwd", str(tmp_path), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    assert "There are 3 retries" in Path(made["file"]).read_text()


@pytest.mark.requirement("IMP-3")
def test_a_narrative_has_the_messages_that_a_compaction_of_codex_kept(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.compact("k", "a")
    rollout.turn("c", "d")
    imported(daemon, "codex", rollout.write(tmp_path))
    told = narrative(client, rollout.id)
    assert [told.count(f"text {each}") for each in "abcd"] == [1, 0, 1, 1] and "summary k" in told
    whole = client.commit_materialize(head(client, rollout.id), format="narrative-v1", stop="root").content
    assert str(whole).count("text a") == 1, "not a second time after the conversation itself"


@pytest.mark.requirement("IMP-11")
@pytest.mark.parametrize(
    ("source", "hidden"),
    [
        ({"subagent": {"other": "guardian"}}, "guardian"),
        ({"subagent": "review"}, "review"),
        ({"subagent": "memory_consolidation"}, "memory_consolidation"),
        ({"internal": "memory_consolidation"}, "memory_consolidation"),
        ({"subagent": {"thread_spawn": {"parent_thread_id": "gone", "depth": 1}}}, None),
        ("exec", None),
    ],
    ids=str,
)
def test_threads_that_codex_hides_are_left_out_of_lists_and_kept(
    daemon: Running, client: SyncClient, tmp_path: Path, source: Any, hidden: str | None
) -> None:
    rollout = Thread(source=source)
    rollout.turn("a", "b")
    path = rollout.write(tmp_path)
    imported(daemon, "codex", path)

    def listed(archived: bool = False) -> list[str]:
        found = client.session_list(label=f"native_session={rollout.thread}", archived=archived)
        return [each.session for each in found.sessions]

    assert (listed(), listed(archived=True)) == (([], [rollout.id]) if hidden else ([rollout.id], []))
    made = client.session_get(rollout.id).session
    assert made.labels.get("hidden") == hidden
    # An import that is killed leaves it neither open nor listed.
    written = min(version.tx for version in client.object_history(f"session:{rollout.id}").versions)
    first = client.session_get(rollout.id, tx=written).session
    assert (first.state, first.archived) == ("paused", hidden is not None)
    rollout.turn("c", "d")
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert labels(client, head(client, rollout.id)) == "mabcd" and len(listed(archived=True)) == bool(hidden)
    client.session_annotate(rollout.id, archived=False)
    rollout.turn("e", "f")
    rollout.write(tmp_path)
    imported(daemon, "codex", path)
    assert listed() == [rollout.id], "whoever lists it wants to see it"


@pytest.mark.requirement("IMP-1")
def test_tokens_of_codex_are_those_of_each_request_over_repeats_resets_and_compactions(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()

    def count(total: tuple[int, int, int] | None, last: tuple[int, int, int] | None = None) -> None:
        def usage(found: tuple[int, int, int]) -> Record:
            return dict(zip(("input_tokens", "cached_input_tokens", "output_tokens"), found, strict=True))

        info = None if total is None else {"total_token_usage": usage(total), "last_token_usage": usage(last or total)}
        rollout.event("token_count", info=info, rate_limits=None)

    rollout.turn("a", "b")
    count(None)
    count((1000, 800, 50))
    count((1000, 800, 50))
    rollout.turn("c", "d")
    count((3000, 2500, 90), (2000, 1700, 40))
    rollout.compact("k", "ac")
    rollout.turn("e", "f")
    count((3600, 2500, 100), (600, 0, 10))
    count((400, 0, 10))
    imported(daemon, "codex", rollout.write(tmp_path))
    assert spent(client, rollout.id) == Usage(input=200 + 300 + 600 + 400, output=50 + 40 + 10 + 10, cache_read=2500)
    assert spent(client, rollout.id, stop="compaction") == Usage(input=600 + 400, output=10 + 10), "since then alone"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("named", ["activity", "spawn end", "path", "nowhere"])
def test_a_codex_sub_agent_begins_after_its_call_under_every_name(
    daemon: Running, client: SyncClient, tmp_path: Path, named: str
) -> None:
    caller = Thread()
    caller.turn("a", "b")
    path = "/root/look" if named == "path" else "/root/other"
    agent = Thread(
        source={"subagent": {"thread_spawn": {"parent_thread_id": caller.thread, "depth": 1, "agent_path": path}}}
    )
    caller.begin()
    caller.ask("c")
    caller.add("s", type="function_call", name="spawn_agent", arguments="{}", call_id="c1")
    if named == "activity":
        caller.event("sub_agent_activity", event_id="c1", agent_thread_id=agent.thread, agent_path=path)
        caller.records[-1]["payload"]["kind"] = "started"
    elif named == "spawn end":
        caller.event("collab_agent_spawn_end", call_id="c1", new_thread_id=agent.thread)
    called_at = caller.records[-1]["timestamp"]
    caller.add("o", type="function_call_output", call_id="c1", output='{"task_name":"/root/look"}')
    caller.answer("d")
    caller.end()
    caller.turn("e", "f")
    agent.turn("x", "y")
    agent.records[0]["payload"]["timestamp"] = called_at
    caller.write(tmp_path)
    agent.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, agent.id)) == "mabcsmxy"
    assert labels(client, head(client, caller.id)) == "mabcsodef"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("outside", [{}, {"a": "2020-01-01T00:00:00.000Z", "g": "2099-01-01T00:00:00.000Z"}])
def test_sub_agents_of_codex_that_have_one_name_begin_after_their_own_calls(
    daemon: Running, client: SyncClient, tmp_path: Path, outside: dict[str, str]
) -> None:
    caller, path = Thread(), "/root/worker"
    spawned = {"thread_spawn": {"parent_thread_id": caller.thread, "depth": 1, "agent_path": path}}
    agents = [Thread(source={"subagent": spawned}) for _ in range(3)]
    for label, agent in zip("adg", agents, strict=True):
        caller.begin()
        caller.ask(label)
        caller.add("s", type="function_call", name="spawn_agent", arguments="{}", call_id=f"c{label}")
        called_at = outside.get(label, caller.records[-1]["timestamp"])
        caller.add("o", type="function_call_output", call_id=f"c{label}", output=f'{{"task_name":"{path}"}}')
        if label != "g":
            caller.answer("z")
            caller.end()
        agent.turn("x", "y")
        agent.records[0]["payload"]["timestamp"] = called_at
        agent.write(tmp_path)
    caller.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert [labels(client, head(client, agent.id)) for agent in agents] == ["masmxy", "masozdsmxy", "masozdsozgsmxy"]


@pytest.mark.requirement("IMP-3")
def test_a_review_begins_where_codex_entered_it(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    caller = Thread()
    caller.turn("a", "b")
    caller.event("entered_review_mode", "r", target={"type": "uncommittedChanges"})
    review = Thread(source={"subagent": "review"}, parent_thread_id=caller.thread)
    review.turn("x", "y")
    review.records[0]["payload"]["timestamp"] = caller.records[-1]["timestamp"]
    caller.event("exited_review_mode", "q")
    caller.turn("c", "d")
    caller.write(tmp_path)
    review.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, review.id)) == "mabrqmxy"


@pytest.mark.requirement("IMP-18")
@pytest.mark.parametrize("is_seen_before", [False, True], ids=["whole", "after its first lines"])
def test_a_rollout_whose_conversation_is_in_its_events_has_it_like_any_other(
    daemon: Running, client: SyncClient, tmp_path: Path, is_seen_before: bool
) -> None:
    rollout = Thread()
    if is_seen_before:
        rollout.event("task_started", turn_id="t")
        rollout.write(tmp_path)
        imported(daemon, "codex", tmp_path)
    for one, other in ("ab", "cd"):
        rollout.begin()
        rollout.event("user_message", one, message=f"text {one}", images=["data:image/png;base64,aGk="])
        rollout.event("agent_reasoning", text="hm")
        rollout.add("i", type="function_call", name="shell", arguments='{"cmd":"ls"}', call_id=f"call-{one}")
        rollout.add("o", type="function_call_output", call_id=f"call-{one}", output="a.py")
        rollout.event("agent_message", other, message=f"text {other}")
        rollout.end()
    path = rollout.write(tmp_path)
    found = imported(daemon, "codex", tmp_path)
    counted = {kind: found["events"][kind] for kind in ("prompt", "response", "thinking", "tool_call", "tool_result")}
    assert set(counted.values()) == {2}
    assert [each.title for each in client.session_list(limit=1000).sessions if each.session == rollout.id] == ["text a"]
    tip = client.commit_show(head(client, rollout.id)).commit
    assert tip.format == "codex-events-v1" and tip.message_count == 5
    assert client.commit_materialize(tip.commit, stop="root").content == path.read_text()
    told = narrative(client, rollout.id)
    assert [told.count(f"text {label}") for label in "abcd"] == [1] * 4
    # With the next version of codex, its messages are items: each is there once, whichever comes first.
    rollout.turn("e", "f")
    rollout.begin()
    rollout.event("user_message", message="text g")
    rollout.add("g", type="message", role="user", content=[{"type": "input_text", "text": "text g"}])
    rollout.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    told = narrative(client, rollout.id)
    assert [told.count(f"text {label}") for label in "abcdefg"] == [1] * 7
    formats = {each.format for each in commits(client, rollout.id).values()}
    assert formats == {"codex-events-v1", *(["codex-v1"] if is_seen_before else [])}
    assert imported(daemon, "codex", tmp_path)["commits"] == 0
    words = ("resume", head(client, rollout.id), "--in", "codex", "--cwd", str(tmp_path), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path)).stdout)
    items = [json.loads(line)["payload"] for line in Path(made["file"]).read_text().splitlines()]
    texts = [item["content"][0]["text"] for item in items if item.get("type") == "message"]
    assert [text for text in texts if text.startswith("text ")] == [f"text {label}" for label in "abcdefg"]


@pytest.mark.requirement("IMP-18")
def test_a_message_among_the_events_is_not_an_item(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    rollout = Thread()
    rollout.event("message", role="user", content=[{"type": "input_text", "text": "text a"}])
    rollout.event("user_message", "a", message="text a")
    rollout.event("agent_message", "b", message="text b")
    rollout.write(tmp_path)
    counted = imported(daemon, "codex", tmp_path)["events"]
    assert (counted["prompt"], counted["response"]) == (1, 1)
    assert [narrative(client, rollout.id).count(f"text {label}") for label in "ab"] == [1, 1]


@pytest.mark.requirement("IMP-2", "IMP-18")
def test_a_rollout_of_events_that_an_earlier_version_has_imported_keeps_its_commits(
    daemon: Running, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def import_it() -> int:
        async with connect(daemon.socket, client="ctx") as connected:
            work = TranscriptImport(connected, "codex", progress=lambda _: None)
            return (await work.run([tmp_path])).commits

    rollout = Thread()
    rollout.event("user_message", "a", message="text a")
    path = rollout.write(tmp_path)
    with monkeypatch.context() as earlier:
        earlier.setattr(changed_sources, "_rollout_format", lambda source, known: "")
        assert anyio.run(import_it) == 1
    rollout.event("agent_message", "b", message="text b")
    rollout.write(tmp_path)
    assert anyio.run(import_it) == 1
    tip = client.commit_show(head(client, rollout.id)).commit
    assert (tip.format, tip.depth) == ("codex-v1", 1)
    assert client.commit_materialize(tip.commit, stop="root").content == path.read_text()


@pytest.mark.requirement("IMP-6", "IMP-18")
def test_a_rollout_that_is_gone_before_it_is_read_is_skipped(
    daemon: Running, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = Thread(), Thread()
    for each in (first, second):
        each.turn("a", "b")
        each.write(tmp_path)
    find = changed_sources._rollout_format

    def then_gone(source: Transcript, known: SourceState) -> Format:
        if source.session == first.id:
            source.file.unlink()
        return find(source, known)

    monkeypatch.setattr(changed_sources, "_rollout_format", then_gone)

    async def run() -> ImportResult:
        async with connect(daemon.socket, client="ctx") as connected:
            return await TranscriptImport(connected, "codex", progress=lambda _: None).run([tmp_path])

    result = anyio.run(run)
    assert [each.reason for each in result.skipped] == ["No such file or directory"]
    assert result.sessions == [second.id]


@pytest.mark.requirement("IMP-4")
def test_a_second_file_of_a_session_continues_once_the_first_is_deleted(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Codex()
    rollout.turn("a", "b")
    first = rollout.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    rollout.turn("c", "d")
    rollout.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    second = first.with_name(first.name.replace("rollout-", "rollout-2026-01-01T00-00-00-", 1))
    second.write_bytes(first.read_bytes())
    imported(daemon, "codex", tmp_path)
    first.unlink()
    rollout.turn("e", "f")
    second.write_bytes(rollout.bytes())
    imported(daemon, "codex", tmp_path)
    assert once(client, rollout.id) == "abcdefm" and views(client, rollout.id) == ["mabcdef"]
