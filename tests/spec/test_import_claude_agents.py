"""IMP: sub-agents of Claude Code: inline, beside the file, in a directory and in workflows, each a chain of its own."""

import json
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd.imports.importer import TranscriptImport
from ctxd.transcripts.format_detection import read
from ctxd.transcripts.record_decoding import total_usage
from ctxd_client import connect
from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import (
    USAGE,
    answers,
    calls,
    newest,
    once,
    returns,
)  # fmt: skip
from tests.spec.imported_contexts import spent
from tests.spec.test_import import Claude, Record, append, commits, ctx, imported, labels, views, write


def handed(daemon: Running, home: Path, *words: str) -> Record:
    """The outcome of a hand-over by ``words``."""
    done = ctx(daemon, *words, "--cwd", str(home), "--json", HOME=str(home))
    assert done.returncode == 0, done.stderr
    made: Record = json.loads(done.stdout)
    return made


@pytest.mark.requirement("IMP-3")
@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("place", ["inside", "beside", "directory"])
def test_a_sub_agent_is_its_own_chain_and_the_conversation_continues(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, place: str
) -> None:
    records = [claude("a"), calls(claude, "b", "t1", "Task")]
    side = Claude(claude.session)
    agent = [side("x"), calls(side, "y", "t2"), returns(side, "z", "t2", "seen")]
    done = returns(claude, "c", "t1", "ok") | {"toolUseResult": {"agentId": "k1", "status": "completed"}}
    end = answers(claude, "d", "msg_d", {"type": "text", "text": "Done."})
    for record in agent:
        record["isSidechain"] = True
    main = tmp_path / f"{claude.session}.jsonl"
    if place == "inside":
        write(main, [*records, *agent, done, end])
    else:
        write(main, [*records, done, end])
        folder = tmp_path if place == "beside" else tmp_path / claude.session / "subagents"
        write(folder / "agent-k1.jsonl", [{**each, "agentId": "k1"} for each in agent])
        (folder / "agent-k1.meta.json").write_text('{"agentType": "Explore"}')
    outcome = imported(daemon, "claude", tmp_path)
    assert not outcome["skipped"] and outcome["sessions"] == [claude.id]
    assert once(client, claude.id) == "abcdxyz" and views(client, claude.id) == ["abcd", "abxyz"]
    chains = {labels(client, each.commit) for each in commits(client, claude.id).values() if each.thread_id}
    assert chains == {"abxyz"}
    last = newest(client, claude.id)
    assert labels(client, last.commit) == "abcd" and not last.thread_id
    (agent_tip,) = [each for each in client.commit_list(session=claude.id, tips=True).commits if each.thread_id]
    for harness in ("claude", "codex"):
        made = handed(daemon, tmp_path, "resume", agent_tip.commit, "--in", harness)
        text = Path(made["file"]).read_text()
        assert [text.count(each) > 0 for each in ("text a", "text x", "seen", "Done.")] == [True, True, True, False]
        assert not any("sidechain" in part for part in made["left_out"])
    prompt = client.session_get(claude.id).session.recorded
    assert prompt is not None and prompt.prompt == "text a", "what the agent was told is no prompt of a person"
    assert spent(client, claude.id).output == 2 * USAGE["output_tokens"]


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize(("first", "second"), [("k1", "k2"), ("k2", "k1")])
def test_a_sub_agent_of_a_sub_agent_begins_behind_its_call_there(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, first: str, second: str
) -> None:
    def agent(name: str, *records: Record) -> None:
        path = tmp_path / claude.session / "subagents" / f"agent-{name}.jsonl"
        write(path, [{**each, "isSidechain": True, "agentId": name} for each in records])

    def done(side: Claude, label: str, call: str, name: str) -> Record:
        return returns(side, label, call, "ok") | {"toolUseResult": {"agentId": name, "status": "completed"}}

    main = [claude("a"), calls(claude, "b", "t1", "Task"), done(claude, "c", "t1", first), claude("d", "assistant")]
    write(tmp_path / f"{claude.session}.jsonl", main)
    outer, inner = Claude(claude.session), Claude(claude.session)
    agent(first, outer("u"), calls(outer, "v", "t2", "Task"), done(outer, "w", "t2", second), outer("x", "assistant"))
    agent(second, *inner.turn("y", "z"))
    made = imported(daemon, "claude", tmp_path)
    assert not made["skipped"] and once(client, claude.id) == "abcduvwxyz"
    assert views(client, claude.id) == ["abcd", "abuvwx", "abuvyz"]
    append(tmp_path / claude.session / "subagents" / f"agent-{second}.jsonl",
           {**inner("s"), "isSidechain": True, "agentId": second})  # fmt: skip
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcd", "abuvwx", "abuvyzs"], "its caller has not changed"
    assert labels(client, newest(client, claude.id).commit) == "abcd"


@pytest.mark.requirement("IMP-3")
def test_a_sub_agent_in_the_file_that_runs_on_after_the_last_message_is_not_the_newest_commit(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    main = [claude("a"), calls(claude, "b", "t1", "Task"), claude("c", "assistant")]
    side = Claude(claude.session)
    inner = [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn("x", "y")]
    for number, each in enumerate(inner):
        each["timestamp"] = f"2026-01-02T04:00:0{number}.000Z"
    write(tmp_path / f"{claude.session}.jsonl", [*main, *inner])
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcxy"], "no result names the call"
    assert labels(client, newest(client, claude.id).commit) == "abc"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("goes_on", [True, False])
def test_a_long_sub_agent_in_the_file_is_not_the_newest_commit_and_its_commits_are_in_order(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, goes_on: bool
) -> None:
    main = [claude("a"), calls(claude, "b", "t1", "Task")]
    side = Claude(claude.session)
    inner = [{**each, "isSidechain": True, "agentId": "k1"} for _ in range(4) for each in side.turn("x", "y")]
    for number, each in enumerate(inner):
        each["timestamp"] = f"2026-01-02T04:00:0{number}.000Z"
        if number % 2:
            each["message"]["content"][0]["text"] = "x" * 150_000
    last = [{**claude("c", "assistant"), "timestamp": "2026-01-02T04:00:05.000Z"}] if goes_on else []
    write(tmp_path / f"{claude.session}.jsonl", [*main, *inner, *last])
    imported(daemon, "claude", tmp_path)
    assert labels(client, newest(client, claude.id).commit) == ("abc" if goes_on else "ab")
    chain = [each for each in commits(client, claude.id).values() if each.thread_id]
    times = [each.created_at_ms for each in sorted(chain, key=lambda each: each.depth)]
    assert len(times) > 1 and times == sorted(times)
    assert goes_on == (times[0] > 1767326400000), "its own time, if the conversation has gone on after it"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("meta", [{}, {"toolUseId": "t1", "agentType": "workflow"}])
def test_sub_agents_of_a_workflow_begin_behind_the_call_of_the_workflow(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, meta: Record
) -> None:
    launched = {"status": "async_launched", "taskType": "local_workflow", "runId": "wf_1", "taskId": "w1"}
    records = [claude("a"), calls(claude, "b", "t1", "Workflow")]
    records.append(returns(claude, "c", "t1", "Workflow launched") | {"toolUseResult": launched})
    records += [claude("d", "assistant"), *claude.turn("e", "f")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    folder = tmp_path / claude.session / "subagents" / "workflows" / "wf_1"
    for agent, labels_of in (("k1", "uv"), ("k2", "xy")):
        told = [{**each, "isSidechain": True, "agentId": agent} for each in Claude(claude.session).turn(*labels_of)]
        write(folder / f"agent-{agent}.jsonl", told)
        (folder / f"agent-{agent}.meta.json").write_bytes(msgspec.json.encode(meta))
    write(folder / "journal.jsonl", [{"type": "started", "key": "v2:h", "agentId": "k1"}])
    outcome = imported(daemon, "claude", tmp_path)
    (skipped,) = outcome["skipped"]
    assert "the journal of a workflow" in skipped["reason"]
    assert outcome["sessions"] == [claude.id] and once(client, claude.id) == "abcdefuvxy"
    assert views(client, claude.id) == ["abcdef", "abuv", "abxy"]


@pytest.mark.requirement("IMP-3")
def test_a_sub_agent_without_a_result_begins_behind_the_call_that_is_noted_beside_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    def agent(name: str, records: list[Record], **meta: str) -> None:
        path = tmp_path / claude.session / "subagents" / f"agent-{name}.jsonl"
        write(path, [{**each, "isSidechain": True, "agentId": name} for each in records])
        path.with_suffix(".meta.json").write_bytes(msgspec.json.encode({"agentType": "Explore", **meta}))

    write(tmp_path / f"{claude.session}.jsonl", [claude("a"), calls(claude, "b", "t1", "Task"), *claude.turn("c", "d")])
    outer = Claude(claude.session)
    agent("k2", [outer("u"), calls(outer, "v", "t2", "Task"), outer("w", "assistant")], toolUseId="t1")
    agent("k1", Claude(claude.session).turn("x", "y"), toolUseId="t2", parentAgentId="k2")
    outcome = imported(daemon, "claude", tmp_path)
    assert not outcome["skipped"] and once(client, claude.id) == "abcduvwxy"
    assert views(client, claude.id) == ["abcd", "abuvw", "abuvxy"]


@pytest.mark.requirement("IMP-3")
def test_a_sub_agent_that_a_second_call_continues_begins_behind_the_first(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [claude("a"), calls(claude, "b", "t1", "Task")]
    records.append(returns(claude, "c", "t1", "ok") | {"toolUseResult": {"agentId": "k1", "status": "completed"}})
    records += [claude("d", "assistant"), claude("e"), calls(claude, "f", "t2", "Task")]
    records.append(returns(claude, "g", "t2", "ok") | {"toolUseResult": {"agentId": "k1", "status": "completed"}})
    write(tmp_path / f"{claude.session}.jsonl", records)
    side = Claude(claude.session)
    told = [{**each, "isSidechain": True, "agentId": "k1"} for each in (*side.turn("u", "v"), *side.turn("x", "y"))]
    write(tmp_path / claude.session / "subagents" / "agent-k1.jsonl", told)
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcdefg", "abuvxy"]


@pytest.mark.requirement("IMP-3")
def test_a_session_does_not_continue_from_a_sub_agent_that_ran_on(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [claude("a"), calls(claude, "b", "t1", "Task")]
    records.append(returns(claude, "c", "t1", "started") | {"toolUseResult": {"agentId": "k1", "isAsync": True}})
    records.append(answers(claude, "d", "msg_d", {"type": "text", "text": "It runs."}))
    side = Claude(claude.session)
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn("x", "y")]
    for each in agent:
        each["timestamp"] = "2026-01-03T00:00:00.000Z"
    write(tmp_path / f"{claude.session}.jsonl", records)
    write(tmp_path / claude.session / "subagents" / "agent-k1.jsonl", agent)
    for _ in range(2):
        imported(daemon, "claude", tmp_path)
        assert labels(client, newest(client, claude.id).commit) == "abcd" and once(client, claude.id) == "abcdxy"


@pytest.mark.requirement("IMP-1")
def test_a_watch_dates_a_sub_agent_for_which_the_conversation_waits_as_it_ran(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    write(tmp_path / f"{claude.session}.jsonl", [claude("a"), calls(claude, "b", "t1", "Task")])
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in Claude(claude.session).turn("x", "y")]
    for each in agent:
        each["timestamp"] = "2026-01-03T00:00:00.000Z"
    write(tmp_path / claude.session / "subagents" / "agent-k1.jsonl", agent)

    async def run() -> None:
        async with connect(daemon.socket) as connected:
            await TranscriptImport(connected, "claude", watch=True, progress=lambda _: None).run([tmp_path])

    anyio.run(run)
    (chain,) = [each for each in commits(client, claude.id).values() if each.thread_id]
    assert chain.created_at == "2026-01-03T00:00:00Z"


class EarlierImport(TranscriptImport):
    """Records no starts of sub-agents, as earlier versions."""

    async def _record_outcome(self, planned: Any, made: int) -> None:
        await super()._record_outcome(planned, made)
        planned.done.state.start = None


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("learnt", ["result", "meta", "conversation"])
@pytest.mark.parametrize("is_earlier", [False, True], ids=["", "imported by an earlier version"])
def test_a_sub_agent_whose_call_becomes_known_later_is_imported_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, learnt: str, is_earlier: bool
) -> None:
    main, folder = tmp_path / f"{claude.session}.jsonl", tmp_path / claude.session / "subagents"
    side = Claude(claude.session)

    def told(*labels_of: str) -> list[Record]:
        return [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn(*labels_of)]

    records = [claude("a"), calls(claude, "b", "t1", "Task"), calls(claude, "c", "t2", "Task")]
    if learnt != "conversation":
        write(main, records)
    write(folder / "agent-k1.jsonl", told("u", "v"))

    async def run() -> None:
        async with connect(daemon.socket) as connected:
            version = EarlierImport if is_earlier else TranscriptImport
            await version(connected, "claude", progress=lambda _: None).run([tmp_path])

    anyio.run(run)
    if learnt == "conversation":
        write(main, records)
    elif learnt == "meta":
        (folder / "agent-k1.meta.json").write_bytes(msgspec.json.encode({"toolUseId": "t1"}))
    append(main, returns(claude, "d", "t1", "ok") | {"toolUseResult": {"agentId": "k1"}}, claude("e", "assistant"))
    late = [each | {"timestamp": "2026-01-03T00:00:00.000Z"} for each in told("x", "y")]
    append(folder / "agent-k1.jsonl", *late)
    for _ in range(2):
        imported(daemon, "claude", tmp_path)
        assert once(client, claude.id) == "abcdeuvxy"
    (chain,) = [view for view in views(client, claude.id) if "x" in view]
    assert chain.endswith("uvxy")
    if learnt != "conversation":
        assert not newest(client, claude.id).thread_id, "the session continues from its conversation"


@pytest.mark.requirement("LST-11")
def test_a_session_has_the_times_of_a_sub_agent_whose_caller_is_not_there_or_comes_later(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    call, agent = [claude("a"), calls(claude, "b", "t1", "Task")], [claude("x"), claude("y", "assistant")]
    done = returns(claude, "c", "t1", "ok") | {"toolUseResult": {"agentId": "k1", "status": "completed"}}
    records = [{**each, "isSidechain": True, "agentId": "k1", "permissionMode": "plan"} for each in agent]
    write(tmp_path / claude.session / "subagents" / "agent-k1.jsonl", records)
    imported(daemon, "claude", tmp_path)

    def listed() -> tuple[str, list[int]]:
        row = next(row for row in client.session_list(limit=1000).sessions if row.session == claude.id)
        return row.title, [at % 60_000 // 1000 for at in (row.created_at, row.updated_at)]

    assert listed() == ("", [3, 4])
    write(tmp_path / f"{claude.session}.jsonl", [*call, done])
    imported(daemon, "claude", tmp_path)
    assert listed() == ("text a", [1, 5])
    recorded = client.session_get(claude.id).session.recorded
    assert recorded is not None and recorded.permissions == {}


@pytest.mark.requirement("IMP-22")
@pytest.mark.parametrize("is_called", [True, False], ids=["by a call", "by the user"])
def test_a_fork_begins_after_the_message_that_it_names_with_the_copy_of_the_response(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, is_called: bool
) -> None:
    records = [*claude.turn("a", "b"), claude("c"), calls(claude, "d", "t1", "Agent")]
    records += [returns(claude, "e", "t1", "started"), claude("f", "assistant"), *claude.turn("g", "h")]
    side = Claude(claude.session)
    copy = [calls(side, "x", "t1", "Agent"), returns(side, "y", "t1", "that fork is you")] if is_called else []
    copy = [{**each, "message": {**each["message"], "id": "msg-d"}} if each["label"] == "x" else each for each in copy]
    task = {
        **side("z"),
        "message": {"role": "user", "content": "<fork-boilerplate>R</fork-boilerplate>\n\nYour directive: Z"},
    }
    agent = [*copy, task, answers(side, "w", "msg-w", {"type": "text", "text": "text w"})]
    pointer = {
        "type": "fork-context-ref", "agentId": "k1", "parentSessionId": claude.session, "label": "p",
        "parentLastUuid": claude.ids["c" if is_called else "b"], "contextLength": 3,
    }  # fmt: skip
    write(tmp_path / f"{claude.session}.jsonl", records)
    folder = tmp_path / claude.session / "subagents"
    write(folder / "agent-k1.jsonl", [pointer, *({**each, "isSidechain": True, "agentId": "k1"} for each in agent)])
    if is_called:
        (folder / "agent-k1.meta.json").write_text('{"agentType": "fork", "toolUseId": "t1"}')
    imported(daemon, "claude", tmp_path)
    chain = "abcpxyzw" if is_called else "abpzw"
    assert set(views(client, claude.id)) == {"abcdefgh", chain}
    (tip,) = [each for each in client.commit_list(session=claude.id, tips=True).commits if each.thread_id]
    assert "fork-boilerplate" not in (tip.summary or "")
    assert total_usage(read(folder / "agent-k1.jsonl")[1]).output == USAGE["output_tokens"], "the caller has the other"
    for harness in ("claude", "codex", "pi"):
        made = handed(daemon, tmp_path, "resume", tip.commit, "--in", harness)
        found = Path(made["file"]).read_text()
        assert found.count("that fork is you") == is_called and "This call was interrupted" not in found
        assert found.count('"t1"') == 2 * is_called and "text w" in found
