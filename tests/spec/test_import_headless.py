"""IMP: output of headless runs: which session they are of, and what continues it."""

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.imported_contexts import narrative, spent
from tests.spec.test_import import Record, append, here, imported, write


def old_codex(*messages: Record, prompt: str) -> list[Record]:
    """The lines of a run of ``codex exec --json`` before version 0.44."""
    return [{"model": "m", "workdir": "/srv"}, {"prompt": prompt}, *({"id": "1", "msg": each} for each in messages)]


def said(text: str) -> Record:
    return {"type": "agent_message", "message": text}


@pytest.mark.requirement("IMP-1")
def test_runs_of_old_versions_of_codex_are_sessions_of_their_own_with_every_message(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    begun = {"type": "task_started"}
    write(tmp_path / "a.jsonl", old_codex(begun, said("I wait."), said("I wait."), said("Done."), prompt="Build it"))
    write(tmp_path / "b.jsonl", old_codex(begun, said("It is Rust."), prompt="Describe it"))
    named = str(uuid4())
    configured = {"type": "session_configured", "session_id": named}
    write(tmp_path / "c.jsonl", old_codex(configured, said("Yes."), prompt="Is it?"))
    found = imported(daemon, "codex", tmp_path)
    assert found["copied"] == 0 and here("codex", named) in found["sessions"] and len(found["sessions"]) == 3
    first, second = (narrative(client, here("codex", f"file-{tmp_path / name}.jsonl")) for name in "ab")
    assert (first.count("Build it"), first.count("I wait."), first.count("Done.")) == (1, 2, 1)
    assert "Describe it" in second and "It is Rust." in second and "Build it" not in second
    assert imported(daemon, "codex", tmp_path)["commits"] == 0


def claude_run(session: str, *records: Record) -> list[Record]:
    begin = {"type": "system", "subtype": "init", "cwd": "/srv", "tools": [], "model": "m"}
    return [{**each, "session_id": session, "uuid": str(uuid4())} for each in (begin, *records)]


def answer(text: str) -> Record:
    message = {"id": f"msg_{text}", "role": "assistant", "model": "m", "content": [{"type": "text", "text": text}]}
    return {"type": "assistant", "message": message}


def codex_run(session: str, text: str) -> list[Record]:
    item = {"id": "item_0", "type": "agent_message", "text": text}
    return [
        {"type": "thread.started", "thread_id": session}, {"type": "turn.started"},
        {"type": "item.completed", "item": item}, {"type": "turn.completed", "usage": {"input_tokens": len(text)}},
    ]  # fmt: skip


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("harness", ["claude", "codex"])
def test_a_run_that_resumes_a_session_continues_the_earlier_runs(
    daemon: Running, client: SyncClient, tmp_path: Path, harness: str
) -> None:
    session = str(uuid4())
    # By name the order is another one.
    for number, name in enumerate("cab"):
        text = f"Answer {number}."
        lines = codex_run(session, text) if harness == "codex" else claude_run(session, answer(text))
        os.utime(write(tmp_path / f"{name}.jsonl", lines), (1_700_000_000 + number,) * 2)
    imported(daemon, harness, tmp_path)
    id = here("codex" if harness == "codex" else "claude-code", session)
    told = narrative(client, id)
    places = [told.find(f"Answer {number}.") for number in range(3)]
    assert -1 not in places and places == sorted(places)
    assert len(client.commit_list(session=id, tips=True).commits) == 1
    assert imported(daemon, harness, tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-1")
def test_a_continued_copy_of_a_run_is_not_imported_twice(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    session = str(uuid4())
    lines = codex_run(session, "One.")
    os.utime(write(tmp_path / "a.jsonl", lines), (1_700_000_000,) * 2)
    write(tmp_path / "b.jsonl", [*lines, *codex_run(session, "Two.")[1:]])
    imported(daemon, "codex", tmp_path)
    told = narrative(client, here("codex", session))
    assert (told.count("One."), told.count("Two.")) == (1, 1)


@pytest.mark.requirement("IMP-3")
def test_a_compaction_in_the_output_of_claude_code_is_one_with_its_summary(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    session = str(uuid4())
    summary = "This session is being continued from a previous conversation. Summary: 12 files"
    boundary = {"type": "system", "subtype": "compact_boundary", "compact_metadata": {"pre_tokens": 9}}
    user: Record = {"type": "user", "isSynthetic": True, "message": {"role": "user", "content": summary}}
    write(tmp_path / "a.jsonl", claude_run(session, answer("Before."), boundary, user, answer("After.")))
    imported(daemon, "claude", tmp_path)
    told = narrative(client, here("claude-code", session))
    assert (told.count("Before."), told.count("12 files"), told.count("After.")) == (0, 1, 1)
    kinds = [each.commit_type for each in client.commit_list(session=here("claude-code", session)).commits]
    assert sorted(kinds) == ["compaction", "delta", "delta"]


@pytest.mark.requirement("IMP-1")
def test_calls_to_sub_agents_in_the_output_of_codex_are_calls_with_their_answers(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    session = str(uuid4())
    item: dict[str, Any] = {
        "id": "item_1", "type": "collab_tool_call", "tool": "wait", "prompt": None, "receiver_thread_ids": ["t"],
        "agents_states": {"t": {"status": "completed", "message": "PONG"}}, "status": "completed",
    }  # fmt: skip
    write(tmp_path / "a.jsonl", [*codex_run(session, "One."), {"type": "item.completed", "item": item}])
    events = imported(daemon, "codex", tmp_path)["events"]
    assert (events["tool_call"], events["tool_result"]) == (1, 1)
    assert "PONG" in narrative(client, here("codex", session))


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("kept", ["messages", "segment"])
def test_a_compaction_in_headless_output_leaves_the_messages_that_it_names(
    daemon: Running, client: SyncClient, tmp_path: Path, kept: str
) -> None:
    session = str(uuid4())
    records = claude_run(session, answer("One."), answer("Two."))
    ids = [records[-1]["uuid"]]
    metadata = {"trigger": "manual", "pre_tokens": 9}
    if kept == "messages":
        metadata["preserved_messages"] = {"anchor_uuid": "x", "uuids": ids}
    else:
        metadata["preserved_segment"] = {"head_uuid": ids[0], "anchor_uuid": "x", "tail_uuid": ids[0]}
    boundary = {"type": "system", "subtype": "compact_boundary", "compact_metadata": metadata}
    summary = {
        "type": "user", "isSynthetic": True,
        "message": {"role": "user", "content": "This session is being continued from a previous conversation. Sum."},
    }  # fmt: skip
    more = [{**each, "session_id": session, "uuid": str(uuid4())} for each in (boundary, summary, answer("Three."))]
    write(tmp_path / "run.jsonl", [*records, *more])
    imported(daemon, "claude", tmp_path)
    told = narrative(client, here("claude-code", session))
    assert [told.count(each) for each in ("One.", "Two.", "Sum.", "Three.")] == [0, 1, 1, 1]


@pytest.mark.requirement("IMP-8")
def test_headless_output_has_the_project_of_its_working_directory(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    session, run = str(uuid4()), str(uuid4())
    write(tmp_path / "claude.jsonl", claude_run(session, answer("One.")))
    ended = {"type": "message_end", "message": {"role": "assistant", "content": [{"type": "text", "text": "Two."}]}}
    write(tmp_path / "pi.jsonl", [{"type": "session", "id": run, "cwd": "/srv", "version": 3}, ended])
    imported(daemon, "claude", tmp_path / "claude.jsonl")
    imported(daemon, "pi", tmp_path / "pi.jsonl")
    for each in (here("claude-code", session), here("pi", run)):
        assert client.session_get(each).session.workdir == "/srv"


@pytest.mark.requirement("IMP-4")
def test_a_copy_of_pi_s_output_with_one_more_common_line_stores_no_message_twice(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    session = str(uuid4())
    records: list[dict[str, Any]] = [{"type": "session", "id": session, "cwd": "/srv", "version": 3}]
    for number in range(100):
        content = [{"type": "text", "text": f"Text {number}."}]
        records += [
            {"type": "turn_start"},
            {"type": "message_end", "message": {"role": "assistant", "content": content}},
        ]
    for name, run in (("a", records), ("b", [*records[:6], {"type": "turn_start"}, *records[6:]])):
        path = write(tmp_path / f"{name}.jsonl", run)
        os.utime(path, (1_700_000_000 + ord(name), 1_700_000_000 + ord(name)))
    imported(daemon, "pi", tmp_path)
    stored = [
        str(client.commit_materialize(each.commit, stop=each.commit, format="narrative-v1").content)
        for each in client.commit_list(session=here("pi", session), limit=1000).commits
    ]
    assert sum(text.count("Text ") for text in stored) == 100


@pytest.mark.requirement("IMP-1")
def test_codex_counts_the_tokens_of_a_resumed_run_once(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    session = str(uuid4())
    totals = [{"input_tokens": 100, "output_tokens": 5}, {"input_tokens": 250, "output_tokens": 9}]
    for number, total in enumerate(totals):
        records = [*codex_run(session, f"Run {number}.")[:-1], {"type": "turn.completed", "usage": total}]
        path = write(tmp_path / f"{number}.jsonl", records)
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
    imported(daemon, "codex", tmp_path)
    used = spent(client, here("codex", session))
    assert (used.input, used.output) == (250, 9)


@pytest.mark.requirement("IMP-1")
def test_lines_without_a_time_are_not_newer_than_those_that_follow_in_a_later_import(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    session = str(uuid4())
    first, *rest = claude_run(session, answer("One.") | {"timestamp": "2026-01-02T03:04:05.000Z"})
    path = write(tmp_path / "run.jsonl", [first])
    imported(daemon, "claude", path)
    append(path, *rest)
    imported(daemon, "claude", path)
    assert "One." in narrative(client, here("claude-code", session))
