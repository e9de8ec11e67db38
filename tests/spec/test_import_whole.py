"""HOK-18: transcripts that an import commits whole, as the context that hooks have recorded lacks a part of them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import pytest

from ctxd_client.errors import Conflict
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import CompactionEvent, Event, PromptEvent, ResponseEvent, ToolCallEvent
from tests.client.running import Running
from tests.spec.harness_files import Thread
from tests.spec.imported_contexts import head, kept, narrative
from tests.spec.test_import import commits, here, imported, labels, text
from tests.spec.test_import_opencode import Opencode


def record(client: SyncClient, harness: str, native: str, events: Sequence[Event]) -> None:
    """Record events as hooks do, up to the end of the session."""
    session = here(harness, native)
    try:
        client.session_create(harness, session=session, checkpoint="turn")
    except Conflict:
        client.session_resume(session)
    client.session_append(session, events=list(events))
    client.session_pause(session)
    client.context_current(session=session)


def said(client: SyncClient, session: str) -> str:
    """The texts in the newest context of a session, by their labels."""
    content = str(client.commit_materialize(head(client, session), stop="root", format="narrative-v1").content)
    return "".join(re.findall(r"text (\w)", content))


def turn(one: str, other: str) -> list[Event]:
    return [PromptEvent(text=f"text {one}"), ResponseEvent(text=f"text {other}")]


def rollouts(folder: Path) -> tuple[Thread, Thread]:
    """A rollout of codex, and a fork of it by reference that lacks the last turn."""
    origin = Thread(history_mode="paginated")
    origin.turn("a", "b")
    origin.turn("c", "d")
    end, count = len(origin.bytes()), len(origin.records)
    origin.turn("e", "f")
    base = {"thread_id": origin.thread, "end_ordinal_exclusive": count, "end_byte_offset": end}
    fork = Thread(hour=4, history_mode="paginated", forked_from_id=origin.thread, history_base=base)
    fork.turn("x", "y")
    for each in (origin, fork):
        each.write(folder)
    return origin, fork


@pytest.mark.requirement("HOK-18")
def test_a_fork_by_reference_that_hooks_record_is_completed_with_the_commits_of_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    origin, fork = rollouts(tmp_path)
    record(client, "codex", fork.thread, turn("x", "y"))
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, fork.id)) == "mabcdmxy"
    own = "".join(labels(client, commit) for commit in [*commits(client, origin.id)][-1:])
    assert own and "x" not in own
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


@pytest.mark.requirement("HOK-18")
@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_hooked", [True, False])
def test_a_fork_by_reference_of_a_session_that_hooks_record_has_the_lines_of_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, is_hooked: bool
) -> None:
    origin, fork = rollouts(tmp_path)
    record(client, "codex", origin.thread, [*turn("a", "b"), *turn("c", "d"), *turn("e", "f")])
    if is_hooked:
        record(client, "codex", fork.thread, turn("x", "y"))
    before = head(client, origin.id)
    found = imported(daemon, "codex", tmp_path)
    assert (found["recorded"] > 0, head(client, origin.id)) == (True, before)
    assert labels(client, head(client, fork.id)) == "mabcdmxy"
    assert imported(daemon, "codex", tmp_path)["commits"] == 0
    # A fork of the fork, and what follows in it.
    base = {"thread_id": fork.thread, "end_ordinal_exclusive": 99, "end_byte_offset": len(fork.bytes())}
    second = Thread(hour=5, history_mode="paginated", forked_from_id=fork.thread, history_base=base)
    second.turn("p", "q")
    second.write(tmp_path)
    fork.turn("v", "w")
    fork.write(tmp_path)
    if is_hooked:
        record(client, "codex", fork.thread, turn("v", "w"))
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, second.id)) == "mabcdmxympq"
    assert said(client, fork.id) == "abcdxyvw"
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-4")
def test_a_sub_agent_starting_at_a_byte_of_its_caller_continues_without_a_copy_of_it(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    caller, fork = rollouts(tmp_path)
    spawn = {"subagent": {"thread_spawn": {"parent_thread_id": caller.thread, "depth": 1}}}
    fork.records[0]["payload"]["source"] = spawn
    fork.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    fork.turn("v", "w")
    fork.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert labels(client, head(client, fork.id)) == "mabcdmxyvw"
    assert set(kept(client, fork.id).values()) == {1}
    assert "a" not in "".join(json.loads(line)["label"] for line in kept(client, fork.id))


@pytest.mark.requirement("HOK-18")
@pytest.mark.requirement("HOK-15")
@pytest.mark.parametrize("is_refused", [True, False])
def test_a_call_or_an_output_that_hooks_have_not_seen_is_in_the_context_after_an_import(
    daemon: Running, client: SyncClient, tmp_path: Path, is_refused: bool
) -> None:
    def ask(prompt: str, call: str, output: str, answer: str) -> list[Event]:
        thread.begin()
        thread.ask(prompt)
        thread.add(call, type="function_call", name="shell", arguments=f'{{"cmd":"text {call}"}}', call_id=call)
        thread.add(output, type="function_call_output", call_id=call, output=f"text {output}")
        thread.answer(answer)
        thread.end()
        prompted, answered = turn(prompt, answer)
        seen = [] if is_refused else [ToolCallEvent(call=call, tool="Bash", args={"cmd": f"text {call}"})]
        return [prompted, *seen, answered]

    thread = Thread()
    thread.turn("a", "b")
    record(client, "codex", thread.thread, [*turn("a", "b"), *ask("c", "d", "e", "f")])
    imported(daemon, "codex", thread.write(tmp_path))
    assert said(client, thread.id) == "abcdef"
    # What follows continues this chain, and another such call.
    thread.turn("g", "h")
    record(client, "codex", thread.thread, turn("g", "h"))
    imported(daemon, "codex", thread.write(tmp_path))
    assert said(client, thread.id) == "abcdefgh"
    record(client, "codex", thread.thread, ask("i", "j", "k", "l"))
    imported(daemon, "codex", thread.write(tmp_path))
    assert said(client, thread.id) == "abcdefghijkl"
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


@pytest.mark.requirement("HOK-18")
@pytest.mark.parametrize("summary", ["summary X", ""])
@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("is_recorded", [False, True])
def test_a_compaction_that_hooks_have_not_seen_is_in_the_context_after_an_import(
    daemon: Running, client: SyncClient, tmp_path: Path, is_recorded: bool, is_last: bool, summary: str
) -> None:
    thread = Thread()
    thread.turn("a", "b")
    thread.turn("c", "d")
    thread.compact("X", "c")
    thread.records[-2]["payload"]["message"] = summary  # Without one, codex keeps an encrypted item.
    history = thread.records[-2]["payload"]["replacement_history"]
    compaction = [CompactionEvent(summary=summary, meta={"replacement_history": history})] if is_recorded else []
    record(client, "codex", thread.thread, [*turn("a", "b"), *turn("c", "d"), *compaction])
    if not is_last:
        thread.turn("e", "f")
        record(client, "codex", thread.thread, turn("e", "f"))
    imported(daemon, "codex", thread.write(tmp_path))

    def seen() -> str:
        return "".join(re.findall(r"text (\w)", narrative(client, thread.id)))

    wanted = "c" if is_last else "cef"
    assert seen() == wanted
    assert narrative(client, thread.id).count("summary X") == bool(summary)
    assert imported(daemon, "codex", tmp_path)["commits"] == 0
    thread.turn("g", "h")
    record(client, "codex", thread.thread, turn("g", "h"))
    imported(daemon, "codex", thread.write(tmp_path))
    assert seen() == f"{wanted}gh"


@pytest.mark.requirement("HOK-18")
def test_a_compaction_of_turns_without_hooks_needs_no_whole_import(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    thread = Thread()
    thread.turn("a", "b")
    record(client, "codex", thread.thread, turn("a", "b"))
    thread.turn("c", "d")
    thread.compact("X", "ac")
    thread.turn("e", "f")
    imported(daemon, "codex", thread.write(tmp_path))
    tips = client.commit_list(session=thread.id, tips=True, limit=10).commits
    contexts = [str(client.commit_materialize(each.commit, format="narrative-v1").content) for each in tips]
    assert [*"acef"] in [re.findall(r"text (\w)", context) for context in contexts]
    # The prompt of the turn that hooks have recorded is in no commit of the import.
    assert not any(b'"label":"a"' in line for line in kept(client, thread.id))


class Stored(Opencode):
    """A database of opencode with one session."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder / "opencode.db")
        self.native = f"ses_{uuid4().hex[:20]}"
        self.session = here("opencode", self.native)
        # A column that changes, as every session has one.
        self.add("session", id=self.native, directory="/srv", revert={})

    def turn(self, one: str, other: str, *, size: int = 0) -> None:
        for label, role in ((one, "user"), (other, "assistant")):
            told = {"type": "text", "text": f"text {label}" + "." * size}
            self.message(self.native, f"{self.native}-{label}", role, told)


@pytest.mark.requirement("HOK-18")
@pytest.mark.parametrize("size", [0, 200_000])
def test_a_session_of_opencode_that_is_older_than_its_hooks_is_completed(
    daemon: Running, client: SyncClient, tmp_path: Path, size: int
) -> None:
    stored = Stored(tmp_path)
    stored.turn("a", "b")
    # A delta as long as this ends at once.
    stored.turn("c", "d", size=size)
    known = [PromptEvent(text="text c" + "." * size), ResponseEvent(text="text d" + "." * size)]
    record(client, "opencode", stored.native, known)
    imported(daemon, "opencode", tmp_path)
    assert said(client, stored.session) == "abcd"
    # A message that was imported changes in place, and hooks record more.
    stored.database.execute("UPDATE message SET data=json_set(data, '$.summary', 'at length') WHERE id LIKE '%-b'")
    stored.turn("e", "f")
    record(client, "opencode", stored.native, turn("e", "f"))
    imported(daemon, "opencode", tmp_path)
    assert said(client, stored.session) == "abcdef"
    told = "".join(text(client, tip.commit) for tip in client.commit_list(session=stored.session, tips=True).commits)
    assert [told.count("text e"), told.count("text f")] == [1, 1]
    assert imported(daemon, "opencode", tmp_path)["commits"] == 0


@pytest.mark.requirement("HOK-18")
def test_messages_of_hooks_that_opencode_is_about_to_remove_are_not_in_the_context(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    stored = Stored(tmp_path)
    stored.turn("a", "b")
    stored.turn("c", "d")
    record(client, "opencode", stored.native, [*turn("a", "b"), *turn("c", "d")])
    imported(daemon, "opencode", tmp_path)
    assert said(client, stored.session) == "abcd"
    stored.at += 1000
    stored.database.execute(
        "UPDATE session SET revert=?, time_updated=?",
        (json.dumps({"messageID": f"{stored.native}-c"}), stored.at),
    )  # fmt: skip
    imported(daemon, "opencode", tmp_path)
    assert said(client, stored.session) == "ab"
    assert imported(daemon, "opencode", tmp_path)["commits"] == 0
