"""IMP: what Claude Code writes: steps, compactions and damage, each imported as it is."""

import json
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import uuid4

import anyio
import pytest

from ctxd.imports import importer
from ctxd.imports.importer import TranscriptImport
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.source_lines import SourceLine
from ctxd_client import connect
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Usage
from tests.client.running import Running
from tests.spec.claude_records import (
    answers,
    append_bytes,
    calls,
    compaction,
    fork_of,
    forked,
    newest,
    once,
    returns,
    snapshot,
)  # fmt: skip
from tests.spec.imported_contexts import spent, window
from tests.spec.test_import import Claude, Record, append, commits, ctx, imported, labels, text, views, write
from tests.spec.test_import_again import lines
from tests.spec.test_search import found

# --- the beginning ---


@pytest.mark.requirement("IMP-2")
@pytest.mark.requirement("LST-1")
@pytest.mark.parametrize("kind", ["queue-operation", "permission-mode"])
def test_an_import_that_saw_only_settings_is_continued_with_the_conversation(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, kind: str
) -> None:
    settings = [{"type": kind, "sessionId": claude.session, "operation": "enqueue", "label": each} for each in "pq"]
    path = write(tmp_path / f"{claude.session}.jsonl", settings)
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    at = datetime.now(UTC).isoformat()
    append(path, *({**each, "timestamp": at} for each in claude.turn("a", "b")))
    again = imported(daemon, "claude", tmp_path)
    assert (again["commits"], again["lines"]) == (1, 2)
    assert views(client, claude.id) == ["pqab"] and labels(client, newest(client, claude.id).commit) == "pqab"
    assert {each.thread_id for each in commits(client, claude.id).values()} == {""}
    session = client.session_get(claude.id).session
    assert session.title == "text a" and session.project is not None and session.project.directory == "/srv/app"
    assert imported(daemon, "claude", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-3")
def test_many_summaries_before_a_conversation_are_not_its_title(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    others = [{"type": "summary", "summary": f"Topic {n}", "leafUuid": str(uuid4()), "label": "s"} for n in range(99)]
    write(tmp_path / f"{claude.session}.jsonl", [*others, *claude.turn("a", "b")])
    imported(daemon, "claude", tmp_path)
    session = client.session_get(claude.id).session
    assert (session.title, session.workdir) == ("text a", "/srv/app")
    assert views(client, claude.id) == ["s" * 99 + "ab"]


# --- one step ---


@pytest.mark.requirement("IMP-3")
def test_an_answer_in_several_lines_with_parallel_calls_is_one_step_that_is_billed_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    thinking = {"type": "thinking", "thinking": "I look.", "signature": "Eq=="}
    read = {"type": "tool_use", "name": "Read", "input": {"file_path": "/p.py"}}
    records = [
        claude("a"),
        answers(claude, "b", "msg_9", thinking, output_tokens=1),
        answers(claude, "c", "msg_9", {"type": "text", "text": "Both files."}, output_tokens=1),
        answers(claude, "d", "msg_9", {**read, "id": "t1"}, output_tokens=90),
        returns(claude, "e", "t1", "one", after="d"),
        answers(claude, "f", "msg_9", {**read, "id": "t2"}, after="d"),
        {**claude("p", after="f"), "type": "progress"},
        returns(claude, "g", "t2", "two", after="f"),
        answers(claude, "h", "msg_10", {"type": "text", "text": "Done."}),
        claude("i"),
    ]
    write(tmp_path / f"{claude.session}.jsonl", records)
    counted = imported(daemon, "claude", tmp_path)["events"]
    assert counted == {"prompt": 2, "thinking": 1, "response": 2, "tool_call": 2, "tool_result": 2, "opaque": 1}
    assert views(client, claude.id) == ["abcdefpghi"] and once(client, claude.id) == "abcdefghip"
    assert labels(client, newest(client, claude.id).commit) == "abcdefpghi"
    assert spent(client, claude.id) == Usage(input=8, output=420, cache_read=36_000, cache_write=1_800)


@pytest.mark.requirement("IMP-1")
@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("def {word}", True),
        (
            [
                {"type": "text", "text": "def {word}"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                {"type": "tool_reference", "tool_name": "Grep"},
            ],
            True,
        ),
        (None, False),
    ],
    ids=["string", "array", "null"],
)
def test_the_output_of_a_call_in_each_form_is_its_result_and_is_found(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, content: object, told: bool
) -> None:
    word = f"w{uuid4().hex}"
    output = json.loads(json.dumps(content).replace("{word}", word))
    records = [claude("a"), calls(claude, "b", "t1"), returns(claude, "c", "t1", output), claude("d", "assistant")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    assert imported(daemon, "claude", tmp_path)["events"] == {
        "prompt": 1, "tool_call": 1, "tool_result": 1, "response": 1,
    }  # fmt: skip
    last = newest(client, claude.id)
    assert text(client, last.commit) == path.read_text() and last.message_count == 4
    story = str(client.commit_materialize(last.commit, format="narrative-v1").content)
    assert story.count("## Tool result") == 1 and story.count(word) == told
    assert bool(found(client, word)) == told


WRAPPED: dict[str, tuple[str, dict[str, Any]]] = {
    "slash": ("<command-message>review</command-message>\n<command-name>/review</command-name>", {}),
    "command": ("<command-name>/model</command-name>\n<command-args>x</command-args>", {}),
    "output": ("<local-command-stdout>Set model</local-command-stdout>", {}),
    "error": ("<local-command-stderr>No</local-command-stderr>", {}),
    "caveat": ("<local-command-caveat>Caveat: these were run</local-command-caveat>", {}),
    "bash": ("<bash-input>ls</bash-input>", {}),
    "stdout": ("<bash-stdout>a.py</bash-stdout><bash-stderr></bash-stderr>", {}),
    "stderr": ("<bash-stderr>no</bash-stderr>", {}),
    "notification": ("<task-notification>\n<task-id>k1</task-id></task-notification>", {}),
    "teammate": ('<teammate-message teammate_id="lead">Go</teammate-message>', {}),
    "another session": ("Another Claude session sent a message:\n<agent-message>Go</agent-message>", {}),
    "plugin": ("The x plugin sent a message:\nGo", {"origin": {"kind": "plugin", "name": "x"}}),
    "continuation": ("Goal set: go", {"origin": {"kind": "auto-continuation"}, "promptSource": "system"}),
    "editor": ("<ide_opened_file>The user opened a.go.</ide_opened_file>", {}),
    "reminder": ("<system-reminder>Mind it.</system-reminder>", {}),
    "meta": ("Base directory for this skill: /srv/skills/review", {"isMeta": True}),
    "interrupt": ("[Request interrupted by user for tool use]", {}),
}


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("form", [str, list])
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_harness_text_in_the_user_role_is_no_prompt_and_starts_no_turn(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, wrapped: str, form: type
) -> None:
    words, more = WRAPPED[wrapped]
    content = words if form is str else [{"type": "text", "text": words}]

    def written(label: str) -> Record:
        return {**claude(label, **more), "message": {"role": "user", "content": content}}

    records = [written("w"), *claude.turn("a", "b"), written("v"), claude("c", "assistant")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    done = imported(daemon, "claude", tmp_path)
    assert done["events"] == {"system": 2, "prompt": 1, "response": 2} and done["commits"] == 1
    assert labels(client, newest(client, claude.id).commit) == "wabvc"
    session = client.session_get(claude.id).session
    assert session.recorded is not None and session.recorded.prompt == "text a"


@pytest.mark.requirement("IMP-3")
def test_a_result_with_text_is_both_and_a_summary_is_neither_prompt_nor_notice(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [claude("a"), calls(claude, "b", "t1"), returns(claude, "c", "t1", "out", isMeta=True)]
    records[2]["message"]["content"].append({"type": "text", "text": "[Request interrupted by user]"})
    summary = compaction(claude, "k", "K", logical="c")
    summary[1]["isMeta"] = True
    write(tmp_path / f"{claude.session}.jsonl", [*records, *summary, claude("d")])
    assert imported(daemon, "claude", tmp_path)["events"] == {
        "prompt": 2, "tool_call": 1, "tool_result": 1, "system": 2, "compaction": 1,
    }  # fmt: skip
    assert window(client, claude.id) == "kKd"


# --- compactions ---


@pytest.mark.requirement("IMP-3")
def test_compactions_with_and_without_a_logical_parent_continue_the_conversation(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [
        *claude.turn("a", "b"), *compaction(claude, "k", "K", logical="b"), *claude.turn("c", "d"),
        *compaction(claude, "l", "L"), *claude.turn("e", "f"),
    ]  # fmt: skip
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id) == "KLabcdefkl"
    last = newest(client, claude.id)
    assert (labels(client, last.commit), window(client, claude.id)) == ("abcdef", "lLef")
    kinds = [each.commit_type for each in client.commit_history(last.commit).commits]
    assert kinds == ["delta", "compaction", "delta", "compaction", "delta"]
    summaries = {each.summary for each in commits(client, claude.id).values() if each.commit_type == "compaction"}
    assert summaries == {"text K", "text L"}


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("follows", ["K", "f"], ids=["summary", "tail"])
@pytest.mark.parametrize("recorded", ["segment", "both"])
def test_the_messages_that_a_compaction_preserves_stay_in_its_window(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, follows: str, recorded: str
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    anchor = str(uuid4())
    preserved: Record = {
        "preservedSegment": {"headUuid": claude.ids["d"], "anchorUuid": anchor, "tailUuid": claude.ids["f"]}
    }
    if recorded == "both":
        kept = [claude.ids[each] for each in "def"]
        preserved["preservedMessages"] = {"anchorUuid": anchor, "uuids": kept, "allUuids": kept}
    pair = compaction(claude, "k", "K", logical="f", **preserved)
    pair[1]["uuid"] = claude.ids["K"] = anchor
    write(tmp_path / f"{claude.session}.jsonl", [*records, *pair, claude("g", after=follows), claude("h", "assistant")])
    imported(daemon, "claude", tmp_path)
    assert len(client.commit_list(session=claude.id, tips=True).commits) == 1
    last = newest(client, claude.id)
    assert window(client, claude.id) == "defkKgh"
    assert labels(client, last.commit) == "abcdefgh", "each once in the whole history"
    assert lines(client, claude.id) == Counter("abcdefghdefkK")


@pytest.mark.requirement("HND-7", "IMP-2")
@pytest.mark.parametrize("imports", [[7], [4, 7], [5, 7], [6, 7], [1, 2, 3, 4, 5, 6, 7]])
@pytest.mark.parametrize("recorded", ["segment", "messages"])
def test_a_session_that_is_handed_over_has_the_messages_that_its_compaction_preserved(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, imports: list[int], recorded: str
) -> None:
    """Also if an import ends between the boundary, line 5, and the summary."""
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    anchor = str(uuid4())
    preserved: Record = {
        "preservedSegment": {"headUuid": claude.ids["c"], "anchorUuid": anchor, "tailUuid": claude.ids["d"]}
    }
    if recorded == "messages":
        preserved = {"preservedMessages": {"anchorUuid": anchor, "uuids": [claude.ids["c"], claude.ids["d"]]}}
    records += [*compaction(claude, "k", "K", logical="d", **preserved), claude("e")]
    for number in imports:
        write(tmp_path / "there" / f"{claude.session}.jsonl", records[:number])
        imported(daemon, "claude", tmp_path / "there")
    assert window(client, claude.id) == "cdkKe"
    assert lines(client, claude.id) == Counter("abcdkKecd" + "k" * (5 in imports))
    words = ("resume", newest(client, claude.id).commit, "--in", "claude", "--cwd", str(tmp_path), "--json")
    done = ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path))
    file = Path(json.loads(done.stdout)["file"])
    said = [json.loads(line)["message"]["content"] for line in file.read_text().splitlines() if '"message"' in line]
    texts = [each if isinstance(each, str) else each[0]["text"] for each in said]
    assert texts == ["text K", "text c", "text d", "text e"]


@pytest.mark.requirement("IMP-3")
def test_a_file_over_5_mb_is_imported_from_before_its_last_boundary(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    word = f"w{uuid4().hex}"
    first = claude("a")
    first["message"]["content"] = f"Begin with {word}"
    records = [first]
    for number in range(60):
        records.append(calls(claude, "b", f"t{number}"))
        records.append(returns(claude, "c", f"t{number}", f"{number} " * 32_000))
    pair = compaction(claude, "k", "K", logical="c")
    records += [*pair, *claude.turn("d", "e")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    assert path.stat().st_size > 5 << 20
    assert imported(daemon, "claude", tmp_path)["lines"] == len(records)
    last = newest(client, claude.id)
    assert window(client, claude.id) == "kKde"
    size = client.commit_materialize(last.commit, stop="root", content=False).size
    boundary = sum(len(json.dumps(each)) + 1 for each in pair)
    assert size == path.stat().st_size - boundary, "every byte, before the boundary too"
    assert {hit.kind for hit in found(client, word)} == {"prompt"}


# --- damaged trees ---


@pytest.mark.requirement("IMP-3")
def test_records_naming_a_prompts_earlier_id_have_the_rewritten_prompt_as_parent(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), claude("c"), claude("d", "assistant"), *claude.turn("e", "f")]
    earlier = records[2]["uuid"]
    records[2] |= {"sentAsUuid": earlier, "uuid": str(uuid4())}
    other = Claude(claude.session)("g") | {"parentUuid": earlier}
    write(tmp_path / f"{claude.session}.jsonl", [*records, other])
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcdef", "abcg"]


@pytest.mark.requirement("IMP-3")
def test_a_parent_that_was_never_written_is_the_record_before(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    records[0]["parentUuid"], records[2]["parentUuid"], records[5]["parentUuid"] = (str(uuid4()) for _ in range(3))
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcdef"] and once(client, claude.id) == "abcdef"
    assert labels(client, newest(client, claude.id).commit) == "abcdef"


@pytest.mark.requirement("IMP-3")
def test_a_cycle_aborts_no_import_and_loses_no_line(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), claude("e")]
    records[0]["parentUuid"] = claude.ids["d"]
    records[2]["parentUuid"] = claude.ids["c"]
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["abcde"] and once(client, claude.id) == "abcde"
    assert imported(daemon, "claude", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("typed", ["x", "<command-message>review</command-message>", "<bash-input>ls</bash-input>"])
def test_two_windows_that_write_one_file_are_two_branches(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, typed: str
) -> None:
    records = [*claude.turn("a", "b"), claude("c"), claude("x", after="b")]
    records[-1]["message"]["content"] = typed
    records += [calls(claude, "d", "t1", after="c"), snapshot("s"), claude("y", "assistant", after="x")]
    records += [returns(claude, "e", "t1", "out", after="d"), claude("z", after="y"), claude("f", after="e")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id) == "abcdefsxyz"
    assert [each.replace("s", "") for each in views(client, claude.id)] == ["abcdef", "abxyz"]
    assert labels(client, newest(client, claude.id).commit).replace("s", "") == "abcdef", "written last"


# --- files ---


@pytest.mark.requirement("IMP-6")
def test_a_copy_of_the_beginning_of_a_session_is_not_a_transcript(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    write(tmp_path / claude.session / "resume-head.jsonl", [{"sha256": "0" * 64}, *records[2:]])
    outcome = imported(daemon, "claude", tmp_path)
    assert [each["reason"] for each in outcome["skipped"]] == ["Claude Code's copy of the beginning of a session"]
    assert once(client, claude.id) == "abcd" and views(client, claude.id) == ["abcd"]


@pytest.mark.requirement("IMP-2")
def test_a_torn_tail_is_deferred_and_lines_written_after_it_are_kept(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    torn = json.dumps(claude("c")).encode()[:-9]
    append_bytes(path, torn)
    assert imported(daemon, "claude", tmp_path)["lines"] == 2 and views(client, claude.id) == ["ab"]
    # The harness was killed. Resumed, it appends behind the torn line, which is no line of its own.
    append(path, claude("d", "assistant"), *claude.turn("e", "f"))
    assert imported(daemon, "claude", tmp_path)["lines"] == 3
    last = newest(client, claude.id).commit
    assert views(client, claude.id) == ["abef"]
    kept = [json.loads(line) for line in text(client, last).splitlines()]
    assert kept[2]["type"] == "damaged" and kept[2]["text"].startswith(torn.decode()) and "text d" in kept[2]["text"]


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("folder", ["a", "z"], ids=["fork first", "origin first"])
def test_an_import_repeated_changes_nothing_of_trees_compactions_forks_and_agents(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, folder: str
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), claude("x", after="b"), claude("y", "assistant")]
    segment = {"headUuid": claude.ids["x"], "anchorUuid": str(uuid4()), "tailUuid": claude.ids["y"]}
    records += [*compaction(claude, "k", "K", logical="y", preservedSegment=segment), claude("e")]
    path = write(tmp_path / "m" / f"{claude.session}.jsonl", records)
    side = Claude(claude.session)
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn("u", "v")]
    write(tmp_path / "m" / claude.session / "subagents" / "agent-k1.jsonl", agent)
    fork = fork_of(claude, "d")
    copy = write(tmp_path / folder / f"{fork.session}.jsonl", [*forked(records[:4], fork.session), fork("f")])
    imported(daemon, "claude", tmp_path)
    before = {**commits(client, claude.id), **commits(client, fork.id)}
    again = imported(daemon, "claude", tmp_path)
    assert (again["unchanged"], again["commits"], again["events"]) == (3, 0, {})
    for each in (path, copy):
        each.write_bytes(each.read_bytes())
    assert imported(daemon, "claude", tmp_path)["commits"] == 0
    assert {**commits(client, claude.id), **commits(client, fork.id)} == before


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("goes_on", [True, False], ids=["watch", "again"])
def test_imports_of_a_file_that_grows_while_it_is_read_have_each_line_once_in_one_chain(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, goes_on: bool
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", [claude("(0)")])
    names = [f"({number})" for number in range(1, 120)]
    records = [claude(name, "user" if number % 3 else "assistant") for number, name in enumerate(names)]
    data = b"".join(json.dumps(record).encode() + b"\n" for record in records)
    pieces = [data[start : start + 150] for start in range(0, len(data), 150)]

    def growing(source: Transcript, start: int = 0) -> Iterator[SourceLine]:
        with path.open("ab", buffering=0) as file:
            for line in lines_of(source, start):
                file.write(pieces.pop(0) if pieces else b"")
                yield line

    monkeypatch.setattr(importer, "lines_of", growing)

    async def run() -> None:
        async with connect(daemon.socket) as connected:
            work = TranscriptImport(connected, "claude", watch=True, progress=lambda _: None)
            while pieces:
                if not goes_on:
                    work = TranscriptImport(connected, "claude", progress=lambda _: None)
                read = len(pieces)
                await work.run([tmp_path])
                if len(pieces) == read:
                    append_bytes(path, pieces.pop(0))
            await work.run([tmp_path])

    anyio.run(run)
    assert lines(client, claude.id) == Counter(["(0)", *names])
    assert views(client, claude.id) == ["".join(["(0)", *names])]
    assert path.read_bytes().endswith(data)


@pytest.mark.requirement("IMP-2")
def test_a_line_deleted_from_the_file_stays_in_imported_commits(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    title = {"type": "ai-title", "aiTitle": "Old", "sessionId": claude.session, "label": "t"}
    records = [title, *claude.turn("a", "b"), *claude.turn("c", "d"), *claude.turn("e", "f")]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    # An answer that was broken off is removed in place, and its successor is linked anew.
    without = [each for each in records if each["label"] != "d"]
    without[4]["parentUuid"] = claude.ids["c"]
    path.write_bytes(b"".join(json.dumps(each).encode() + b"\n" for each in without))
    assert imported(daemon, "claude", tmp_path)["rewritten"] == 1
    assert views(client, claude.id) == ["tabcdef", "tabcef"]
    last = newest(client, claude.id)
    assert labels(client, last.commit) == "tabcef", "as the file is now"
    assert imported(daemon, "claude", tmp_path)["commits"] == 0
    append(path, *claude.turn("g", "h"))
    imported(daemon, "claude", tmp_path)
    assert views(client, claude.id) == ["tabcdef", "tabcefgh"]


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("is_later", [False, True])
def test_a_branch_may_begin_with_lines_not_typed_by_the_user(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, is_later: bool
) -> None:
    path = tmp_path / f"{claude.session}.jsonl"
    left = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    caveat = claude("v", after="b", isMeta=True)
    command = claude("w")
    command["message"]["content"] = "<command-name>/model</command-name>"
    output = claude("x", "system", subtype="local_command", content="<local-command-stdout>set</local-command-stdout>")
    del output["message"]
    if is_later:
        # The lines before the prompt are already in a commit.
        write(path, [*left, caveat, command, output])
        imported(daemon, "claude", tmp_path)
    write(path, [*left, caveat, command, output, *claude.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    assert labels(client, newest(client, claude.id).commit) == "abvwxef"
    assert "abcd" in [each[:4] for each in views(client, claude.id)]
    assert is_later or once(client, claude.id) == "abcdefvwx"
    assert imported(daemon, "claude", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-3")
def test_a_message_that_a_compaction_keeps_may_be_written_after_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    before = [*claude.turn("a", "b"), claude("c")]
    late = str(uuid4())
    kept = {"uuids": [claude.ids["b"], claude.ids["c"], late]}
    compact = compaction(claude, "k", "s", logical="c", preservedMessages=kept)
    answer = {**claude("d", "assistant"), "uuid": late}
    claude.last = late
    write(tmp_path / f"{claude.session}.jsonl", [*before, *compact, answer, *claude.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    assert window(client, claude.id) == "bcksdef"
    assert len(views(client, claude.id)) == 1, "it is no branch"


def rewind(claude: Claude, label: str | None, **more: object) -> Record:
    """The line that Claude Code writes when the user goes back to the message ``label``, or to the beginning."""
    leaf = None if label is None else claude.ids[label]
    return {"type": "last-prompt", "leafUuid": leaf, "sessionId": claude.session, "label": "!", **more}


@pytest.mark.requirement("IMP-17")
@pytest.mark.parametrize(
    ("back_to", "marks", "newest_view"),
    [
        ("b", {"explicit": True}, "ab!"),
        ("b", {"explicit": True, "rewound": True}, "ab!"),
        (None, {"explicit": True}, "!"),
        ("b", {}, "abcd!"),
        ("d", {"explicit": True}, "abcd!"),
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
def test_a_rewind_ends_the_newest_context_where_the_user_went_back_to(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path,
    back_to: str | None, marks: Record, newest_view: str, goes_on: bool,
) -> None:  # fmt: skip
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), rewind(claude, back_to, **marks)]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    if goes_on:
        claude.last = claude.ids.get(back_to or "") if marks else claude.ids["d"]
        append(path, *claude.turn("e", "f"))
    imported(daemon, "claude", tmp_path)
    assert labels(client, newest(client, claude.id).commit) == newest_view + ("ef" if goes_on else "")
    assert once(client, claude.id) == ("!abcdef" if goes_on else "!abcd")
    branches = 2 if len(newest_view) < 5 else 1
    assert len(views(client, claude.id)) == branches and any("d" in view for view in views(client, claude.id))
    assert imported(daemon, "claude", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-17")
def test_two_rewinds_to_one_message_are_branches_of_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", [*claude.turn("a", "b"), *claude.turn("c", "d")])
    for one, other in ("ef", "gh"):
        append(path, rewind(claude, "b", explicit=True))
        claude.last = claude.ids["b"]
        append(path, *claude.turn(one, other))
        imported(daemon, "claude", tmp_path)
    assert sorted(view.replace("!", "") for view in views(client, claude.id)) == ["abcd", "abef", "abgh"]
    append(path, rewind(claude, "d", explicit=True))
    imported(daemon, "claude", tmp_path)
    assert labels(client, newest(client, claude.id).commit).replace("!", "") == "abcd"


@pytest.mark.requirement("IMP-17")
def test_the_newest_of_several_rewinds_counts(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), rewind(claude, "b", explicit=True)]
    write(tmp_path / f"{claude.session}.jsonl", [*records, rewind(claude, None, explicit=True)])
    imported(daemon, "claude", tmp_path)
    assert labels(client, newest(client, claude.id).commit) == "!"


@pytest.mark.requirement("IMP-17")
def test_an_undone_rewind_precedes_later_turns(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    records += [rewind(claude, "b", explicit=True), rewind(claude, "d", explicit=True)]
    claude.last = claude.ids["d"]
    records += [*claude.turn("e", "f"), *compaction(claude, "k", "s", logical="f")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    assert newest(client, claude.id).commit_type == "compaction"
