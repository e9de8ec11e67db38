"""IMP: session files of pi as it writes them, in each form that changes what the model sees next: compactions,
branches, forks, edits, and the versions of the files."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Usage
from ctxd_protocol.methods.commits import StartContext
from tests.client.running import Running
from tests.spec.harness_files import Pi
from tests.spec.imported_contexts import head, kept, narrative, spent, window
from tests.spec.test_import import Record, append, commits, ctx, imported, labels, text, views, write


@pytest.fixture
def pi() -> Pi:
    return Pi()


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize("version", [None, 2, 3])
def test_compactions_of_each_pi_version_keep_their_entries(
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


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize(("version", "role"), [(2, "hookMessage"), (3, "custom")])
def test_an_extension_message_in_an_old_pi_file_is_handed_over_to_pi(
    daemon: Running, client: SyncClient, tmp_path: Path, version: int, role: str
) -> None:
    pi = Pi(version=version)
    path = pi.write(tmp_path, *pi.turn("a", "b"), pi.says("q", role, customType="todo", display=True), pi.says("c"))
    imported(daemon, "pi", path)
    words = ("resume", head(client, pi.id), "--in", "pi", "--cwd", str(tmp_path), "--json")
    made = json.loads(ctx(daemon, *words, HOME=str(tmp_path), TMPDIR=str(tmp_path)).stdout)
    (entry,) = (each for each in map(json.loads, Path(made["file"]).read_text().splitlines()) if "text q" in str(each))
    assert (entry["type"], entry["customType"], entry["display"]) == ("custom_message", "todo", True)


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
def test_a_pi_session_continues_from_its_last_entry_of_any_kind(
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
def test_a_second_pi_root_continues_alone_and_an_orphan_is_a_root(
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
def test_the_newest_edit_of_a_pi_entry_is_handed_over(
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
@pytest.mark.parametrize("is_apart", [True, False])
def test_a_branch_of_the_first_version_of_pi_continues_from_its_origin(
    daemon: Running, client: SyncClient, tmp_path: Path, is_apart: bool
) -> None:
    origin = Pi(version=None)
    records = [*origin.turn("a", "b"), *origin.turn("c", "d")]
    path = origin.write(tmp_path / "origin", *records)
    branch = Pi(version=None, branchedFrom=f"/home/u/{path.name}")
    branch.number = origin.number
    branch.write(tmp_path / "branch", *records[:2], *branch.turn("e", "f"))
    found = imported(daemon, "pi", tmp_path / "origin" if is_apart else tmp_path)
    if is_apart:
        found = imported(daemon, "pi", tmp_path / "branch")
    assert found["copied"] == 2
    assert labels(client, head(client, branch.id)).replace("h", "") == "abef"
    assert labels(client, head(client, origin.id)) == "habcd"
    assert sum(kept(client, branch.id).values()) == 3, "its header, and what it does not share"
    assert imported(daemon, "pi", tmp_path)["commits"] == 0


@pytest.mark.requirement("IMP-4")
def test_a_pi_fork_of_a_fork_continues_from_the_first_fork(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
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
def test_a_fork_of_pi_without_lines_of_its_own_has_the_whole_copy_if_an_import_saw_part_of_it(
    daemon: Running, client: SyncClient, tmp_path: Path, pi: Pi
) -> None:
    lines = [*pi.turn("a", "b"), *pi.turn("c", "d")]
    origin = pi.write(tmp_path, *lines)
    fork = Pi(parentSession=str(origin))
    for number in (2, 4):
        fork.write(tmp_path, *lines[:number])
        imported(daemon, "pi", tmp_path)
    assert labels(client, head(client, fork.id)).replace("h", "") == "abcd"
    fork.last = pi.last
    fork.write(tmp_path, *lines, *fork.turn("e", "f"))
    imported(daemon, "pi", tmp_path)
    assert labels(client, head(client, fork.id)).replace("h", "") == "abcdef"
    assert imported(daemon, "pi", tmp_path)["commits"] == 0


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
def test_a_pi_branch_summary_follows_its_parent_and_not_its_from_id(
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
def test_a_model_reads_only_displayed_output_of_pi_extensions_and_commands(
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
