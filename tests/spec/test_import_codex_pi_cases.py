"""IMP: rollouts of codex and session files of pi as the harnesses write them, in each form that changes what the model
sees next: compactions, rollbacks, forks, sub-agents, edits, and the versions of the files."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Usage
from ctxd_protocol.methods.commits import StartContext
from tests.client.running import Running
from tests.spec.harness_files import Pi, Thread
from tests.spec.imported_contexts import head, kept, narrative, spent, window
from tests.spec.test_import import Record, append, commits, imported, labels, text, views, write

# --- codex ---


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("has_history", [True, False])
def test_a_compaction_of_codex_leaves_what_codex_sends_next(
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
    again = kept(client, rollout.id) - Counter(rollout.bytes().splitlines())
    assert sorted(json.loads(line)["label"] for line in again) == ([] if has_history else ["a", "c"])


@pytest.mark.requirement("IMP-3")
def test_beside_a_summary_alone_codex_repeats_no_more_than_fits(
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
def test_a_copied_fork_goes_on_from_its_origin_and_can_be_rolled_back_into_the_copy(
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
def test_a_thread_that_was_reverted_twice_goes_on_in_the_newest_of_its_files(
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
def test_a_sub_agent_of_codex_has_no_copy_of_what_it_was_given_from_its_caller(
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


# --- pi ---


@pytest.fixture
def pi() -> Pi:
    return Pi()


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("version", [None, 2, 3])
def test_each_version_of_pi_keeps_what_its_compactions_keep(
    daemon: Running, client: SyncClient, tmp_path: Path, version: int | None
) -> None:
    pi = Pi(version=version)
    # The first version counts entries, the header too.
    kept_from = {"firstKeptEntryIndex": 4} if version is None else {"firstKeptEntryId": pi.entry("c")}
    role = "custom" if version == 3 else "hookMessage"
    records = [
        *pi.turn("a", "b"), pi.says("q", role, customType="todo", display=True), *pi.turn("c", "d"),
        pi("k", "compaction", summary="summary k", tokensBefore=5000, **kept_from), *pi.turn("e", "f"),
    ]  # fmt: skip
    path = pi.write(tmp_path, *records)
    found = imported(daemon, "pi", path)
    assert found["events"] == {"opaque": 1, "prompt": 3, "response": 3, "system": 1, "compaction": 1}
    assert window(client, pi.id) == "cdkef"
    assert [len(client.commit_list(session=pi.id, tips=True).commits), found["commits"]] == [1, 4]
    assert client.commit_materialize(head(client, pi.id), content=False).message_count == 5
    again = imported(daemon, "pi", path)
    assert (again["unchanged"], again["commits"]) == (1, 0)


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize(
    "entry",
    [
        lambda pi: pi("l", "label", after="b", targetId=pi.entry("a")),
        lambda pi: pi("l", "session_info", after="b", name="Tabs"),
        lambda pi: pi("l", "thinking_level_change", after="b", thinkingLevel="high"),
    ],
    ids=["label", "session_info", "thinking_level_change"],
)
def test_the_last_entry_of_pi_is_where_the_session_goes_on_whatever_it_is(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi, entry: Callable[[Pi], Record]
) -> None:
    records = [*pi.turn("a", "b"), *pi.turn("c", "d")]
    path = pi.write(tmp_path, *records)
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "habcd"
    append(path, entry(pi))
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "habl"
    append(path, *pi.turn("e", "f"))
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "hablef" and views(client, pi.id) == ["habcd", "hablef"]
    assert set(kept(client, pi.id).values()) == {1}


@pytest.mark.requirement("IMP-3")
def test_a_second_root_of_pi_goes_on_alone_and_an_orphan_is_a_root(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    path = pi.write(tmp_path, *pi.turn("a", "b"), *pi.turn("c", "d", after=None))
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "cd" and views(client, pi.id) == ["cd", "hab"]
    append(path, *pi.turn("e", "f", after="never-written"))
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "ef" and views(client, pi.id) == ["cd", "ef", "hab"]
    assert set(kept(client, pi.id).values()) == {1}


@pytest.mark.requirement("IMP-3")
def test_edits_of_a_message_stand_behind_it_in_their_order_also_beyond_a_compaction(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    records = [
        *pi.turn("a", "b"),
        pi("n", "context_edit", targetId=pi.entry("b"), replacement=None),
        *pi.turn("c", "d"),
        pi("r", "context_edit", targetId=pi.entry("b"), replacement={"content": [{"type": "text", "text": "shorter"}]}),
    ]
    path = pi.write(tmp_path, *records)
    found = imported(daemon, "pi", path)
    assert found["events"]["opaque"] == 3 and labels(client, head(client, pi.id)) == "habncdr"
    append(path, pi("k", "compaction", summary="s", firstKeptEntryId=pi.entry("b"), tokensBefore=9), *pi.turn("e", "f"))
    imported(daemon, "pi", path)
    assert window(client, pi.id) == "bncdrkef" and len(client.commit_list(session=pi.id, tips=True).commits) == 1
    lines = str(client.commit_materialize(head(client, pi.id)).content).splitlines()
    assert [json.loads(line) for line in lines][1] == records[2], "as it was written"


@pytest.mark.requirement("IMP-13")
def test_the_newest_edit_of_an_entry_of_pi_is_what_another_model_reads(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    def edit(label: str, target: str, replacement: Any, **more: Any) -> Any:
        return pi(label, "context_edit", targetId=pi.entry(target), replacement=replacement, **more)

    path = pi.write(
        tmp_path, *pi.turn("a", "b"), edit("m", "a", {"content": "first"}), edit("n", "b", None), *pi.turn("c", "d"),
        pi("u", "custom_message", customType="x", content="text u", display=True),
        edit("o", "a", {"content": [{"type": "text", "text": "edited a"}]}), edit("p", "d", {"unknown": 1}),
    )  # fmt: skip
    imported(daemon, "pi", path)
    told = narrative(client, pi.id)
    found = [text in told for text in ("text a", "first", "edited a", "text b", "text c", "text d", "text u")]
    assert found == [False, False, True, False, True, True, True]
    assert set(kept(client, pi.id).values()) == {1}, "as they were written"
    # Of another branch the edits are not.
    append(path, *pi.turn("e", "f", after="d"))
    imported(daemon, "pi", path)
    told = narrative(client, pi.id)
    found = [text in told for text in ("edited a", "first", "text b", "text u", "text e")]
    assert found == [False, True, False, False, True]
    # An edit behind a compaction, of what that has kept.
    compaction = pi("k", "compaction", summary="so far", firstKeptEntryId=pi.entry("e"), tokensBefore=9)
    append(path, compaction, *pi.turn("g", "h"), edit("q", "e", {"content": "edited e"}))
    imported(daemon, "pi", path)
    told = narrative(client, pi.id)
    found = [text in told for text in ("so far", "edited e", "text e", "text f", "text h")]
    assert found == [True, True, False, True, True]
    session = client.session_create(context=StartContext(commit=head(client, pi.id))).session
    assert "edited e" in client.session(session.session).assemble().text


@pytest.mark.requirement("IMP-6")
@pytest.mark.parametrize("what", ["long", "bad byte", "long edit"])
def test_a_long_or_damaged_entry_of_pi_is_read_whole_and_has_its_children(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi, what: str
) -> None:
    more = [{"type": "text", "text": "word " * (1 << 20) * (2 if what == "long" else 0) + "end"}]
    records = [*pi.turn("a", "b"), pi.says("c", content=more), *pi.turn("d", "e")]
    if what == "long edit":
        edited = [{"type": "text", "text": "word " * (2 << 20) + "edited a"}]
        records += [pi("f", "context_edit", targetId=pi.entry("a"), replacement={"content": edited}), pi.says("g")]
    path = pi.write(tmp_path, *records)
    if what == "bad byte":
        path.write_bytes(path.read_bytes().replace(b'"end"', b'"\xffend"'))
    imported(daemon, "pi", path)
    assert len(client.commit_list(session=pi.id, tips=True).commits) == 1
    told = narrative(client, pi.id)
    found = [text in told for text in ("text a", "text b", "end\n", "text d", "text e", "edited a")]
    assert found == [what != "long edit", True, True, True, True, what == "long edit"]
    assert ("\ufffdend" in told) == (what == "bad byte")


@pytest.mark.requirement("IMP-3")
def test_a_compaction_of_pi_that_keeps_nothing_leaves_its_summary_alone(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    system = {"role": "system", "content": "", "sections": {"preamble": "be brief"}}
    compaction = {"summary": "so far", "firstKeptEntryId": pi.entry("k"), "tokensBefore": 9, "systemMessage": system}
    imported(daemon, "pi", pi.write(tmp_path, *pi.turn("a", "b"), pi("k", "compaction", **compaction)))
    assert window(client, pi.id) == "k"
    (made,) = [each for each in commits(client, pi.id).values() if each.commit_type == "compaction"]
    assert (made.commit, made.summary, labels(client, made.parent)) == (head(client, pi.id), "so far", "hab")
    told = narrative(client, pi.id)
    assert "so far" in told and "text a" not in told


@pytest.mark.requirement("IMP-3")
def test_a_compaction_of_pi_that_keeps_lines_from_before_an_older_one_has_its_own_summary_alone(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    kept_from = {"firstKeptEntryId": pi.entry("c"), "tokensBefore": 9}
    records = [*pi.turn("a", "b"), *pi.turn("c", "d"), pi("k", "compaction", summary="Summary: one", **kept_from)]
    path = pi.write(tmp_path, *records, *pi.turn("e", "f"), pi("l", "compaction", summary="Summary: two", **kept_from))
    imported(daemon, "pi", path)
    assert window(client, pi.id) == "cdefl"
    append(path, *pi.turn("g", "h"))
    imported(daemon, "pi", path)
    told = narrative(client, pi.id)
    assert window(client, pi.id) == "cdeflgh" and "Summary: two" in told and "Summary: one" not in told


@pytest.mark.requirement("IMP-4")
def test_a_compaction_in_a_fork_of_pi_keeps_the_lines_of_the_fork(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    records = pi.turn("a", "b")
    origin = pi.write(tmp_path, *records)
    fork = Pi(parentSession=str(origin))
    fork.native, fork.last = pi.native, pi.last
    own = [
        *fork.turn("c", "d"),
        fork("k", "compaction", summary="s", firstKeptEntryId=pi.entry("c"), tokensBefore=9),
        *fork.turn("e", "f"),
    ]
    write(tmp_path / "z_fork.jsonl", [fork.header, *records, *own])
    found = imported(daemon, "pi", tmp_path)
    assert found["copied"] == 2
    assert labels(client, head(client, fork.id)) == "habhcdef" and window(client, fork.id) == "cdkef"
    assert labels(client, head(client, pi.id)) == "hab"


@pytest.mark.requirement("IMP-4")
def test_a_fork_of_a_fork_of_pi_goes_on_from_that(daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi) -> None:
    records, origin, forks = pi.turn("a", "b"), pi, [pi]
    for one, other in ("cd", "ef"):
        path = origin.write(tmp_path, *records)
        origin = Pi(parentSession=str(path))
        origin.last, forks = forks[-1].last, [*forks, origin]
        records += origin.turn(one, other)
    origin.write(tmp_path, *records)
    assert imported(daemon, "pi", tmp_path)["copied"] == 6
    assert [labels(client, head(client, each.id)).replace("h", "") for each in forks] == ["ab", "abcd", "abcdef"]


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize(("first", "left"), [("b", "bcdk"), ("c", "cdk")], ids=["in the copy", "behind it"])
def test_a_compaction_in_a_fork_keeps_lines_of_its_origin_too(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi, first: str, left: str
) -> None:
    records = [*pi.turn("a", "b"), *pi.turn("v", "w")]
    origin = pi.write(tmp_path, *records)
    fork = Pi(parentSession=str(origin))
    fork.native = pi.native
    own = fork.turn("c", "d", after="b")
    compaction = fork("k", "compaction", summary="s", firstKeptEntryId=pi.entry(first), tokensBefore=9)
    write(tmp_path / "z_fork.jsonl", [fork.header, *records[:2], *own, compaction])
    imported(daemon, "pi", tmp_path)
    assert labels(client, head(client, fork.id)) == "habhcd" and window(client, fork.id) == left
    assert labels(client, head(client, pi.id)) == "habvw"


@pytest.mark.requirement("IMP-3")
def test_a_compaction_in_a_branch_keeps_the_entries_before_it_that_a_longer_commit_has_too(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    path = pi.write(tmp_path, *pi.turn("a", "b"), *pi.turn("c", "d"))
    imported(daemon, "pi", path)
    compaction = {"summary": "s", "firstKeptEntryId": pi.entry("c"), "tokensBefore": 9}
    later = {**compaction, "firstKeptEntryId": pi.entry("b")}
    append(path, pi.says("x", "assistant", after="c"), pi("k", "compaction", **compaction), *pi.turn("e", "f"))
    imported(daemon, "pi", path)
    assert labels(client, head(client, pi.id)) == "habcxef" and window(client, pi.id) == "cxkef"
    append(path, pi("l", "compaction", **later))
    imported(daemon, "pi", path)
    assert window(client, pi.id) == "bcxefl"


@pytest.mark.requirement("IMP-1")
def test_patches_of_the_system_prompt_of_pi_are_kept_with_their_sections_and_tools(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    tool = {"name": "read", "description": "Reads a file.", "parameters": {"type": "object"}}
    sections = {"preamble": "You are pi.", "cwd": "/srv"}
    patch = {"sections": {"cwd": None, "skills": "None."}, "toolsRemoved": ["read"]}
    records = [
        pi.says("s", "system", content="", sections=sections, toolsAdded=[tool]), *pi.turn("a", "b"),
        pi.says("p", "system", content="", **patch), *pi.turn("c", "d"),
    ]  # fmt: skip
    found = imported(daemon, "pi", pi.write(tmp_path, *records))
    assert found["events"] == {"opaque": 1, "system": 2, "prompt": 2, "response": 2}
    made = client.commit_materialize(head(client, pi.id), stop="root")
    assert [json.loads(line) for line in str(made.content).splitlines()][1:] == records
    assert made.message_count == 4, "a system prompt is no message"
    told = narrative(client, pi.id)
    assert "You are pi." in told and told.index("You are pi.") < told.index("text a") < told.index("None.")


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("left", ["d", "b", "root"], ids=["the leaf", "the parent", "nothing"])
def test_a_summary_of_a_branch_of_pi_follows_its_parent_whatever_it_says_it_is_from(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi, left: str
) -> None:
    records = [
        *pi.turn("a", "b"), *pi.turn("c", "d"),
        pi("s", "branch_summary", after="b", fromId=pi.entry(left), summary="It was tried in vain."),
        *pi.turn("e", "f"),
    ]  # fmt: skip
    imported(daemon, "pi", pi.write(tmp_path, *records))
    assert labels(client, head(client, pi.id)) == "habsef" and views(client, pi.id) == ["habcd", "habsef"]
    assert "It was tried in vain." in narrative(client, pi.id) and "text c" not in narrative(client, pi.id)
    assert set(kept(client, pi.id).values()) == {1}


@pytest.mark.requirement("IMP-3")
def test_a_model_reads_what_extensions_and_commands_of_pi_show_it_and_nothing_else(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    def bash(label: str, **more: Any) -> Record:
        ran = {"command": "ls", "output": f"output of {label}", "exitCode": 0, "cancelled": False, "truncated": False}
        return pi(label, "message", message={"role": "bashExecution", "timestamp": 1, **ran, **more})

    records = [
        *pi.turn("a", "b"),
        pi("s", "custom_message", customType="todo", content="for the model", display=False),
        pi("c", "custom", customType="todo", data={"text": "state of an extension"}),
        bash("v"),
        bash("x", excludeFromContext=True),
        pi("u", "usage", kind="summary", provider="p", model="m", usage={"input": 5, "output": 5}),
        *pi.turn("d", "e"),
    ]
    found = imported(daemon, "pi", pi.write(tmp_path, *records))
    assert found["events"] == {"opaque": 4, "prompt": 2, "response": 2, "system": 2}
    assert labels(client, head(client, pi.id)) == "habscvxude" and len(views(client, pi.id)) == 1
    told = narrative(client, pi.id)
    assert "for the model" in told and "output of v" in told
    assert "state of an extension" not in told and "output of x" not in told
    assert "output of x" in text(client, head(client, pi.id)), "it is kept"
    assert spent(client, pi.id) == Usage(input=23, output=13, cache_read=2, cache_write=4), "usage entries too"
