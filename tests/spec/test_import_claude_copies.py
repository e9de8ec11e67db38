"""IMP: files of Claude Code that begin with what another one has: forks, continuations, other machines."""

from pathlib import Path
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import (
    USAGE,
    answers,
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
from tests.spec.test_import import Claude, append, commits, imported, labels, views, write


@pytest.mark.requirement("IMP-4")
def test_a_fork_with_new_prompt_and_session_ids_repeats_nothing(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    """As Claude Code 2.1.330 writes it."""
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    for record in records[::2]:
        record["promptId"] = str(uuid4())
    write(tmp_path / f"{claude.session}.jsonl", records)
    fork = fork_of(claude, "d")
    copied = [{**each, "sessionId": fork.session} for each in records]
    for prompt, answer in zip(copied[::2], copied[1::2], strict=True):
        prompt["promptId"], answer["requestSessionId"] = str(uuid4()), claude.session
    path = write(tmp_path / f"{fork.session}.jsonl", [*copied, *fork.turn("e", "f")])
    assert imported(daemon, "claude", tmp_path)["copied"] == 4
    append(path, *fork.turn("g", "h"))
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    assert once(client, claude.id, fork.id) == "abcdefgh"
    assert labels(client, newest(client, fork.id).commit) == "abcdefgh"


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("together", [True, False])
def test_a_fork_of_one_branch_of_a_tree_repeats_nothing_of_its_origin(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, together: bool
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d"), claude("x", after="b"), claude("y", "assistant")]
    records += [*compaction(claude, "k", "K", logical="y"), claude("m")]
    records.append(answers(claude, "n", "msg_n", {"type": "text", "text": "Yes."}))
    write(tmp_path / f"{claude.session}.jsonl", [snapshot("s"), *records])
    if not together:
        imported(daemon, "claude", tmp_path)
    fork = fork_of(claude, "n")
    chain = [each for each in records if each["label"] in "abxykKmn"]
    title = {"type": "custom-title", "customTitle": "Fork", "label": "t", "sessionId": fork.session}
    own = [fork("o"), title]
    write(tmp_path / f"{fork.session}.jsonl", [*forked(chain, fork.session), *own])
    assert imported(daemon, "claude", tmp_path)["copied"] == 8
    assert once(client, claude.id, fork.id) == "Kabcdkmnostxy"
    last = newest(client, fork.id)
    assert (labels(client, last.commit), window(client, fork.id)) == ("sabxymnot", "kKmnot")
    assert last.parent in commits(client, claude.id)
    assert views(client, claude.id) == ["sabcd"], "the other branch goes on in the fork"
    assert spent(client, fork.id).output == USAGE["output_tokens"]
    assert client.session_get(fork.id).session.title == "Fork"


@pytest.mark.requirement("IMP-4")
def test_a_fork_of_a_fork_repeats_nothing_of_either(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = claude.turn("a", "b")
    write(tmp_path / f"{claude.session}.jsonl", records)
    first = fork_of(claude, "b")
    title = {"type": "custom-title", "customTitle": "Fork", "label": "t"}
    own = [title, *forked(records, first.session), *first.turn("c", "d")]
    write(tmp_path / f"{first.session}.jsonl", own)
    second = fork_of(first, "d")
    write(tmp_path / f"{second.session}.jsonl", [*forked(own[1:], second.session), *second.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id, first.id, second.id) == "abcdeft"
    assert labels(client, newest(client, second.id).commit) == "abtcdef"
    assert labels(client, newest(client, first.id).commit) == "abtcd"


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("order", ["0123", "3210", "1032", "2301"])
@pytest.mark.parametrize("is_named", [True, False])
def test_copies_of_copies_that_name_no_origin_repeat_nothing_of_each_other(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, order: str, is_named: bool
) -> None:
    chains = [[snapshot("s"), *claude.turn("a", "b"), snapshot("t")]]
    sessions = [claude]
    for own, last in (("cd", "b"), ("ef", "d"), ("gh", "d")):
        # The last one is a copy of the second one too.
        sessions.append(fork_of(sessions[-1], last))
        before = chains[1] if own == "gh" else chains[-1]
        copied = [{**each, "sessionId": sessions[-1].session} if "uuid" in each else each for each in before]
        chains.append([*(before if is_named else copied), snapshot(own.upper()[0]), *sessions[-1].turn(*own)])
    for number in map(int, order):
        write(tmp_path / f"{sessions[number].session}.jsonl", chains[number])
        imported(daemon, "claude", tmp_path)
    assert once(client, *(each.id for each in sessions)) == "CEGabcdefghst"
    assert imported(daemon, "claude", tmp_path)["unchanged"] == 4


@pytest.mark.requirement("IMP-4")
def test_a_copy_of_a_copy_without_a_line_of_the_first_continues_from_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = claude.turn("a", "b")
    write(tmp_path / f"{claude.session}.jsonl", [snapshot("s"), *records])
    first = fork_of(claude, "b")
    own = [*({**each, "sessionId": first.session} for each in records), *first.turn("c", "d")]
    write(tmp_path / f"{first.session}.jsonl", own)
    second = fork_of(first, "d")
    write(tmp_path / f"{second.session}.jsonl", [*own, *second.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id, first.id, second.id) == "abcdefs"


@pytest.mark.requirement("IMP-4")
def test_a_fork_imported_before_its_origin_is_not_changed(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    # Of the others, the one that names no origin is imported first.
    second, claude = sorted((Claude(), Claude()), key=lambda each: each.session)
    records = claude.turn("a", "b")
    first = fork_of(claude, "b")
    write(tmp_path / f"{first.session}.jsonl", [*records, *first.turn("c", "d")])
    imported(daemon, "claude", tmp_path)
    write(tmp_path / f"{claude.session}.jsonl", records)
    second.ids, second.last = {**claude.ids}, claude.ids["b"]
    copied = [{**each, "sessionId": second.session} for each in records]
    write(tmp_path / f"{second.session}.jsonl", [*copied, *second.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id, first.id, second.id) == "abcdef"


@pytest.mark.requirement("IMP-4")
def test_an_origin_that_was_renamed_is_still_the_first_one(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    origin = write(tmp_path / f"{claude.session}.jsonl", records)
    imported(daemon, "claude", tmp_path)
    first, second = fork_of(claude, "d"), fork_of(claude, "b")
    copied = [{**each, "sessionId": first.session} for each in records]
    write(tmp_path / f"{first.session}.jsonl", [*copied, *first.turn("e", "f")])
    imported(daemon, "claude", tmp_path)
    (tmp_path / "kept").mkdir()
    origin.rename(tmp_path / "kept" / origin.name)
    copied = [{**each, "sessionId": second.session} for each in records[:2]]
    write(tmp_path / f"{second.session}.jsonl", [*copied, *second.turn("g", "h")])
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    append(tmp_path / f"{first.session}.jsonl", *first.turn("i", "j"))
    assert imported(daemon, "claude", tmp_path)["commits"] == 1
    assert once(client, claude.id, first.id, second.id) == "abcdefghij"
    assert views(client, first.id) == ["abcdefij"]


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("gone", ["origin", "folder", "both"])
def test_a_copy_continues_once_its_origin_is_deleted(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, gone: str
) -> None:
    records = [snapshot("s"), *claude.turn("a", "b")]
    folder = tmp_path / "project"
    origin = write(folder / f"{claude.session}.jsonl", records)
    first = fork_of(claude, "b")
    own = [*records, *first.turn("v", "w"), first("c", after="b"), first("d", "assistant"), snapshot("t")]
    second = fork_of(first, "d")
    write(folder / f"{first.session}.jsonl", own)
    imported(daemon, "claude", folder)
    write(folder / f"{second.session}.jsonl", [*own, *second.turn("e", "f")])
    imported(daemon, "claude", folder)
    if gone in ("origin", "both"):
        origin.unlink()
    if gone in ("folder", "both"):
        folder = folder.rename(tmp_path / "renamed")
    assert imported(daemon, "claude", folder)["commits"] == 0
    for fork, labels_ in ((first, "gh"), (second, "ij"), (first, "kl")):
        append(folder / f"{fork.session}.jsonl", *fork.turn(*labels_))
        found = imported(daemon, "claude", folder)
        assert (found["commits"], found["lines"], found["copied"]) == (1, 2, 0)
    assert once(client, claude.id, first.id, second.id) == "abcdefghijklstvw"
    assert [views(client, each.id) for each in (first, second)] == [["sabcdtghkl", "sabvw"], ["sabcdtefij"]]
    append(folder / f"{second.session}.jsonl", second("x", after="d"))
    imported(daemon, "claude", folder)
    assert views(client, second.id) == ["sabcdtefij", "sabcdtx"]


@pytest.mark.requirement("IMP-4")
def test_a_branch_within_a_fork_repeats_the_lines_of_the_fork(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = claude.turn("a", "b")
    write(tmp_path / f"{claude.session}.jsonl", records)
    fork = fork_of(claude, "b")
    title = {"type": "custom-title", "customTitle": "Fork", "label": "t"}
    own = [fork("c"), fork("d", "assistant"), fork("e", "assistant"), *fork.turn("f", "g")]
    path = write(tmp_path / f"{fork.session}.jsonl", [title, *forked(records, fork.session), *own])
    imported(daemon, "claude", tmp_path)
    append(path, fork("x", after="d"))
    imported(daemon, "claude", tmp_path)
    assert views(client, fork.id) == ["abtcdefg", "abtcdx"]


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("is_gone", [False, True])
@pytest.mark.parametrize("title", ["", "t"])
def test_a_fork_imported_before_its_first_own_message_continues_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, title: str, is_gone: bool
) -> None:
    records = claude.turn("a", "b")
    origin = write(tmp_path / f"{claude.session}.jsonl", records)
    fork = fork_of(claude, "b")
    own = [{"type": "custom-title", "customTitle": "Fork", "label": "t"}] if title else []
    path = write(tmp_path / f"{fork.session}.jsonl", [*own, *forked(records, fork.session)])
    imported(daemon, "claude", tmp_path)
    if is_gone:
        origin.unlink()
    append(path, *fork.turn("c", "d"))
    imported(daemon, "claude", tmp_path)
    append(path, *fork.turn("e", "f"))
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id, fork.id) == f"abcdef{title}"
    assert views(client, fork.id) == [f"ab{title}cdef"]


@pytest.mark.requirement("IMP-4")
def test_a_compaction_of_a_fork_keeps_messages_of_its_origin(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    fork = fork_of(claude, "d")
    own = fork.turn("e", "f")
    segment = {"headUuid": fork.ids["d"], "anchorUuid": str(uuid4()), "tailUuid": fork.ids["e"]}
    own += [*compaction(fork, "k", "K", logical="f", preservedSegment=segment), fork("g")]
    write(tmp_path / f"{fork.session}.jsonl", [*forked(records, fork.session), *own])
    imported(daemon, "claude", tmp_path)
    assert window(client, fork.id) == "dekKg"


@pytest.mark.requirement("IMP-4")
def test_a_continuation_has_the_records_of_the_session_before_it_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    slug = {"slug": "bright-sunny-otter"}
    records = [snapshot("s"), *({**each, **slug} for each in claude.turn("a", "b")), snapshot("S")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    later = fork_of(claude, "b")
    own = [*compaction(later, "k", "K", logical="b"), snapshot("z"), *later.turn("c", "d")]
    write(tmp_path / f"{later.session}.jsonl", [*records, *({**each, **slug} for each in own)])
    assert imported(daemon, "claude", tmp_path)["copied"] == 4
    assert once(client, claude.id, later.id) == "KSabcdksz"
    last = newest(client, later.id)
    assert (labels(client, last.commit), window(client, later.id)) == ("sabSzcd", "kKzcd")
    assert labels(client, newest(client, claude.id).commit) == "sabS"
    assert imported(daemon, "claude", tmp_path)["unchanged"] == 2


@pytest.mark.requirement("IMP-4")
@pytest.mark.parametrize("together", [True, False])
def test_two_machines_that_have_gone_on_with_one_session_are_two_branches_of_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, together: bool
) -> None:
    records = [snapshot("s"), claude("a"), calls(claude, "b", "t1", "Task")]
    records.append(returns(claude, "c", "t1", "ok") | {"toolUseResult": {"agentId": "k1"}})
    records.append(claude("d", "assistant"))
    side = Claude(claude.session)
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in side.turn("u", "v")]
    there = Claude(claude.session)
    there.ids, there.last = {**claude.ids}, claude.last
    for name, own in (("one", claude.turn("e", "f")), ("two", [*there.turn("x", "y"), there("z")])):
        write(tmp_path / name / f"{claude.session}.jsonl", [*records, *own])
        write(tmp_path / name / claude.session / "subagents" / "agent-k1.jsonl", agent)
        if not together:
            imported(daemon, "claude", tmp_path / name)
    if together:
        imported(daemon, "claude", tmp_path)
    assert once(client, claude.id) == "abcdefsuvxyz"
    assert views(client, claude.id) == ["sabcdef", "sabcdxyz", "sabuv"]
    assert labels(client, newest(client, claude.id).commit) == "sabcdxyz", "written last"
    assert imported(daemon, "claude", tmp_path)["unchanged"] == 4


@pytest.mark.requirement("IMP-4")
def test_a_sub_agent_that_has_the_conversation_so_far_repeats_nothing_of_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [*claude.turn("a", "b"), claude("c"), calls(claude, "d", "t1", "Agent")]
    side = fork_of(claude, "b")
    side.session = claude.session
    told = [{**each, "isSidechain": True, "agentId": "k1"} for each in [*records[:2], *side.turn("x", "y")]]
    done = returns(claude, "e", "t1", "ok") | {"toolUseResult": {"agentId": "k1"}}
    write(tmp_path / f"{claude.session}.jsonl", [*records, done])
    write(tmp_path / claude.session / "subagents" / "agent-k1.jsonl", told)
    imported(daemon, "claude", tmp_path)
    assert once(client, claude.id) == "abcdexy" and views(client, claude.id) == ["abcde", "abxy"]
