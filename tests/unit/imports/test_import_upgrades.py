"""Import of what another version of ctxd has imported, which ended deltas elsewhere: those that are there stay."""

import json
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any
from uuid import uuid4

import anyio
import pytest

from ctxd.imports import (
    changed_sources,
    importer,
    plan_types,
    source_reading,
    spawning_calls,
    transcript_branch,
    transcript_plan,
)
from ctxd.imports.import_result import ImportResult
from ctxd.imports.importer import TranscriptImport
from ctxd.transcripts import codex, discovery, opencode_storage
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.opencode_storage import StoredSession
from ctxd.transcripts.record_decoding import Record
from ctxd.transcripts.source_lines import SourceLine
from ctxd_client import connect, connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import Event, PromptEvent
from tests.client.running import Running
from tests.spec.claude_records import compaction, fork_of, forked, newest
from tests.spec.harness_files import Thread
from tests.spec.imported_contexts import window
from tests.spec.test_import import Claude, append, commits, here, labels, write
from tests.spec.test_import_opencode import Opencode

_PROMPT = transcript_plan.turn_in


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as running:
        yield running


@pytest.fixture
def client(daemon: Running) -> Iterator[SyncClient]:
    with connect_sync(daemon.socket) as client:
        yield client


def imported(daemon: Running, place: Path, harness: HarnessCommand = "claude") -> ImportResult:
    """The result of an import in this process, whose plan a test may change."""

    async def run() -> ImportResult:
        async with connect(daemon.socket) as client:
            return await TranscriptImport(client, harness, progress=lambda _: None).run([place])

    return anyio.run(run)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """Another version: for it a text with tags was no prompt, and a sub-agent's call ended no delta."""

    def no_tags(events: list[Event]) -> PromptEvent | None:
        found = _PROMPT(events)
        return None if found is not None and found.text.startswith("<") else found

    for module in (changed_sources, importer, source_reading):
        monkeypatch.setattr(module, "PLAN_VERSION", plan_types.PLAN_VERSION - 1)
    for module in (transcript_branch, transcript_plan):
        monkeypatch.setattr(module, "turn_in", no_tags)
    monkeypatch.setattr(spawning_calls, "_SPAWNING", frozenset())
    yield monkeypatch


def tagged(claude: Claude, one: str, other: str) -> list[dict[str, Any]]:
    prompt, answer = claude.turn(one, other)
    prompt["message"]["content"] = f"<plan>text {one}</plan>"
    block = {"type": "tool_use", "id": f"call-{one}", "name": "Task", "input": {}}
    call = claude(f"{one}{one}", "assistant")
    call["message"]["content"] = [block]
    return [prompt, answer, call]


@pytest.mark.requirement("IMP-2")
def test_imports_of_another_version_are_not_committed_again(
    daemon: Running, client: SyncClient, tmp_path: Path, old: pytest.MonkeyPatch
) -> None:
    claude = Claude()
    records = [*claude.turn("a", "b"), *tagged(claude, "c", "d"), *tagged(claude, "e", "f"), *claude.turn("g", "h")]
    path = write(tmp_path / "sources" / f"{claude.session}.jsonl", records)
    assert imported(daemon, path.parent).commits == 2
    before = newest(client, claude.id)
    append(path, *claude.turn("i", "j"))
    imported(daemon, path.parent)
    old.undo()
    # Read anew, as what a session is called may be read otherwise too.
    found = imported(daemon, path.parent)
    assert (found.commits, found.imported, found.unchanged, found.rewritten) == (0, 0, 1, 0)
    assert imported(daemon, path.parent).unchanged == 1
    # What is added continues the chain, with the cuts of the new version.
    append(path, *tagged(claude, "k", "l"), *tagged(claude, "m", "n"))
    assert imported(daemon, path.parent).commits == 2
    tip = newest(client, claude.id)
    assert labels(client, tip.commit) == "abcdccefeeghijklkkmnmm"
    assert before.commit in {each.commit for each in client.commit_history(tip.commit, depth=100).commits}
    append(path, *claude.turn("o", "p"))
    assert imported(daemon, path.parent).commits == 1
    assert client.commit_list(session=claude.id, tips=True).commits == (newest(client, claude.id),)


@pytest.mark.requirement("IMP-2")
def test_a_record_written_before_its_parent_keeps_the_chains_of_an_older_version(
    daemon: Running, client: SyncClient, tmp_path: Path, old: pytest.MonkeyPatch
) -> None:
    old.setattr(transcript_plan.LineIds, "early_child", lambda _ids, _id: None)
    claude = Claude()
    a, b, c, d = (*claude.turn("a", "b"), *claude.turn("c", "d"))
    path = write(tmp_path / "sources" / f"{claude.session}.jsonl", [a, b, d, c])
    imported(daemon, path.parent)
    tips = client.commit_list(session=claude.id, tips=True).commits
    assert sorted(labels(client, tip.commit) for tip in tips) == ["abc", "abd"]
    old.undo()
    assert imported(daemon, path.parent).commits == 0
    e, f = claude.turn("e", "f")
    g, h = claude.turn("g", "h")
    append(path, e, f, h, g)
    imported(daemon, path.parent)
    assert labels(client, newest(client, claude.id).commit) == "abdefhg"


@pytest.mark.requirement("IMP-2")
def test_branches_compactions_and_forks_keep_their_places_in_a_new_version(
    daemon: Running, client: SyncClient, tmp_path: Path, old: pytest.MonkeyPatch
) -> None:
    claude = Claude()
    records = [*tagged(claude, "a", "b"), *tagged(claude, "c", "d"), claude("x", after="b"), claude("y", "assistant")]
    records += [*compaction(claude, "k", "K", logical="y"), *tagged(claude, "m", "n")]
    path = write(tmp_path / "sources" / f"{claude.session}.jsonl", records)
    made = imported(daemon, path.parent).commits
    assert made > 3
    old.undo()
    fork = fork_of(claude, "n")
    chain = [each for each in records if each["label"] in ("a", "b", "x", "y", "k", "K", "m", "n")]
    write(tmp_path / "sources" / f"{fork.session}.jsonl", [*forked(chain, fork.session), fork("o")])
    found = imported(daemon, path.parent)
    assert (found.commits, found.copied) == (1, len(chain))
    assert len(commits(client, claude.id)) == made
    parent = newest(client, fork.id).parent
    assert parent is not None and client.commit_show(parent).commit.session == claude.id


@pytest.mark.requirement("IMP-2")
def test_a_rewritten_file_is_planned_again(
    daemon: Running, client: SyncClient, tmp_path: Path, old: pytest.MonkeyPatch
) -> None:
    claude = Claude()
    records = [*claude.turn("a", "b"), *tagged(claude, "c", "d"), *claude.turn("e", "f")]
    path = write(tmp_path / "sources" / f"{claude.session}.jsonl", records)
    imported(daemon, path.parent)
    old.undo()
    records[3]["message"]["content"] = [{"type": "text", "text": json.dumps("other")}]
    write(path, records)
    found = imported(daemon, path.parent)
    assert found.rewritten == 1 and labels(client, newest(client, claude.id).commit) == "abcdccef"


@pytest.mark.requirement("IMP-2")
def test_a_rollback_that_an_older_version_read_otherwise_is_corrected_without_a_second_copy(
    daemon: Running, client: SyncClient, tmp_path: Path, old: pytest.MonkeyPatch
) -> None:
    old.undo()
    for module in (changed_sources, importer, source_reading):
        old.setattr(module, "PLAN_VERSION", plan_types.PLAN_VERSION - 1)
    old.setattr(codex, "_context_kind", lambda _item, _text: None)
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.turn("c", "d")
    rollout.ask("e")
    told = '<hook_prompt hook_run_id="stop:0:hooks.json">Run the linter.</hook_prompt>'
    rollout.records[-2]["payload"]["content"][0]["text"] = told
    rollout.answer("f")
    rollout.event("thread_rolled_back", "r", num_turns=1)
    rollout.turn("g", "h")
    path = rollout.write(tmp_path / "sources")
    imported(daemon, path, "codex")
    assert window(client, rollout.id) == "mabcdrgh"
    old.undo()
    imported(daemon, path, "codex")
    assert window(client, rollout.id) == "mabrgh"
    found = imported(daemon, path, "codex")
    assert (found.commits, found.unchanged) == (0, 1)


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("is_folder", [True, False], ids=["JSON storage", "database"])
def test_sessions_of_opencode_with_the_stamps_of_an_older_version_are_not_committed_again(
    daemon: Running, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    place, id = tmp_path / "sources", f"ses_{uuid4().hex}"
    place.mkdir()
    if is_folder:
        for name, content in (
            (f"session/p/{id}", {"directory": "/srv"}),
            (f"message/{id}/msg_1", {"role": "user", "time": {"created": 1}}),
            ("part/msg_1/prt_1", {"type": "text", "text": "x"}),
        ):
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / f"{name}.json").write_text(json.dumps(content))
    else:
        source = Opencode(place / "opencode.db")
        source.add("session", id=id, directory="/srv")
        source.message(id, "msg_1", "user", {"type": "text", "text": "x"})
        source.add("session_v2", id=f"{id}b", directory="/srv")
        source.add("session_message", id="r", session_id=f"{id}b", type="user", seq=1, data={"text": "x"})
        source.database.close()
    new = opencode_storage._session

    def spaced(id: str, row: Record, stamp: str, records: Any) -> StoredSession:
        return new(id, row, " ".join(stamp), records)

    monkeypatch.setattr(opencode_storage, "_session", spaced)
    sessions = 1 if is_folder else 2
    assert imported(daemon, place, "opencode").commits == sessions
    monkeypatch.undo()
    os.utime(next(place.glob("*.db"), place))
    found = imported(daemon, place, "opencode")
    assert (found.commits, found.unchanged, found.rewritten, found.skipped) == (0, sessions, 0, [])
    assert len(commits(client, here("opencode", id))) == 1


@pytest.mark.parametrize("stamp", ["20 175 9", ""])
def test_the_stamp_of_a_session_is_kept_as_it_is(stamp: str) -> None:
    assert opencode_storage._session("s", {}, stamp, lambda: iter(())).stamp == stamp


@pytest.mark.requirement("IMP-2")
def test_a_long_line_keeps_its_parts_and_later_ones_split_no_escape(
    daemon: Running, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def split(claude: Claude, one: str, other: str) -> list[dict[str, Any]]:
        records = claude.turn(one, other)
        begin = json.dumps(records[0]).index(f"text {one}")
        # The last word that ends below 2 MiB ends with a line feed.
        pad = "x" * (2 * 1024 * 1024 - begin - 9)
        records[0]["message"]["content"] = f"{pad}\nkey\n" + "word " * 1_400_000
        return records

    for module in (changed_sources, importer, source_reading):
        monkeypatch.setattr(module, "PLAN_VERSION", plan_types.SPLITS_PLAN_VERSION - 1)
    monkeypatch.setattr(discovery, "source_lines", partial(_early, discovery.source_lines))
    claude = Claude()
    path = write(tmp_path / "sources" / f"{claude.session}.jsonl", [*claude.turn("a", "b"), *split(claude, "c", "d")])
    made = imported(daemon, path.parent).commits
    monkeypatch.undo()
    assert imported(daemon, path.parent).commits == 0
    append(path, *claude.turn("e", "f"), *split(claude, "g", "h"), *claude.turn("i", "j"))
    imported(daemon, path.parent)
    assert imported(daemon, path.parent).unchanged == 1
    found = commits(client, claude.id)
    assert len(client.commit_list(session=claude.id, tips=True).commits) == 1 and made < len(found)
    tip = newest(client, claude.id)
    deltas = [client.commit_deltas([each]).deltas[0].data or b"" for each in found]
    parts = [json.loads(line) for delta in deltas for line in delta.splitlines() if b'"ctxd-part"' in line]
    assert sorted(part["text"][:4] for part in parts if part["number"] == 2) == ["nwor", "word"]
    seen = client.commit_materialize(tip.commit, stop="root", format="narrative-v1", content=False)
    assert seen.message_count == 10


def _early(lines: Callable[..., Iterator[SourceLine]], file: IO[bytes], start: int = 0, _: int = 0) -> object:
    return lines(file, start, 2**60)
