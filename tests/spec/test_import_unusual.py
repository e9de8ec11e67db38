"""IMP: transcripts of unusual forms."""

import json
import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.harness_files import Pi, Thread
from tests.spec.imported_contexts import head
from tests.spec.test_import import Claude, Codex, ctx, here, imported, labels, text, views, write
from tests.spec.test_import_again import lines

KEY = "AKIA" + "IOSFODNN7Q2WERTY"


@pytest.mark.requirement("IMP-6")
def test_a_transcript_is_known_by_its_records_behind_a_mark_garbage_and_a_long_line(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    claude = Claude()
    records = claude.turn("a", "b")
    records[0]["message"]["content"] = "word " * 1_400_000
    path = write(tmp_path / f"{claude.session}.jsonl", [*records, claude("c")])
    path.write_bytes(b"\xef\xbb\xbf" + b"garbage\r\n" * 50 + path.read_bytes())
    rollout = Codex()
    rollout.turn("a", "b")
    file = rollout.write(tmp_path / "codex")
    file.write_bytes(b"\xef\xbb\xbf" + file.read_bytes().replace(b"\n", b"\r\n"))
    assert imported(daemon, "claude", path)["sessions"] == [claude.id]
    (tip,) = client.commit_list(session=claude.id, tips=True).commits
    assert client.commit_materialize(tip.commit, stop="root", format="narrative-v1", content=False).message_count == 3
    assert imported(daemon, "codex", file)["sessions"] == [rollout.id]
    assert views(client, rollout.id) == ["mab"]


@pytest.mark.requirement("IMP-6")
def test_a_file_of_pi_with_a_damaged_header_is_of_the_session_that_its_name_has(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    pi = Pi()
    path = pi.write(tmp_path, *pi.turn("a", "b"))
    path.write_bytes(path.read_bytes()[9:])
    assert imported(daemon, "pi", path)["sessions"] == [pi.id]
    tip = client.commit_resolve(session=pi.id).commit
    assert tip is not None and labels(client, tip.commit) == "ab"
    damaged = client.commit_materialize(tip.commit, stop="root").content
    assert '"type":"damaged"' in damaged, "the header, as it is"


@pytest.mark.requirement("IMP-3")
def test_neither_records_before_the_first_message_nor_roots_without_a_time_are_the_newest_commit(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    claude = Claude()
    settings = {"type": "permission-mode", "permissionMode": "default", "sessionId": claude.session}
    conversation = [settings, *claude.turn("a", "b"), *claude.turn("c", "d")]
    undated = {"type": "attachment", "uuid": "x", "parentUuid": None, "sessionId": claude.session}
    path = write(tmp_path / f"{claude.session}.jsonl", [*conversation, undated, *claude.turn("e", "f")])
    imported(daemon, "claude", path)
    newest = client.commit_resolve(session=claude.id).commit
    assert newest is not None
    assert labels(client, newest.commit) == "abcdef"
    assert len(client.commit_list(session=claude.id, tips=True).commits) == 2


@pytest.mark.requirement("IMP-4")
def test_a_thread_of_codex_has_nothing_twice_that_a_fork_of_it_had_before(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    origin = Thread()
    origin.turn("a", "b")
    fork = Thread(hour=4, forked_from_id=origin.thread)
    fork.copies(origin, *{each["label"] for each in origin.records})
    fork.turn("c", "d")
    imported(daemon, "codex", fork.write(tmp_path))
    origin.turn("e", "f")
    origin.write(tmp_path)
    imported(daemon, "codex", tmp_path)
    assert views(client, fork.id) == ["mmabcd"]
    assert [sum(lines(client, each.id)[label] for each in (origin, fork)) for label in "abcdef"] == [1] * 6
    tip = client.commit_resolve(session=origin.id).commit
    assert tip is not None and labels(client, tip.commit) == "mmabmef"


@pytest.mark.requirement("IMP-6")
@pytest.mark.parametrize("form", ["array", "indented array", "lines"])
def test_headless_output_in_a_json_file_is_an_array_or_lines(
    daemon: Running, client: SyncClient, tmp_path: Path, form: str
) -> None:
    session = str(uuid4())
    said = {"role": "assistant", "id": "m1", "content": [{"type": "text", "text": "Tabs work."}]}
    records = [
        {"type": "system", "subtype": "init", "cwd": "/srv/app", "session_id": session},
        {"type": "assistant", "message": said, "session_id": session, "uuid": str(uuid4())},
        {"type": "result", "subtype": "success", "session_id": session},
    ]
    lines = "".join(json.dumps(each) + "\n" for each in records)
    path = tmp_path / "output.json"
    path.write_text(lines if form == "lines" else json.dumps(records, indent=2 if form == "indented array" else None))
    found = imported(daemon, "claude", path)
    assert (found["skipped"], found["lines"]) == ([], 3)
    newest = client.commit_resolve(session=here("claude-code", session)).commit
    assert newest is not None and "Tabs work." in text(client, newest.commit)
    assert imported(daemon, "claude", path)["commits"] == 0
    path.write_text(json.dumps(records)[:-30])
    cut = ctx(daemon, "import", "claude", str(path), "--json")
    assert cut.returncode == 1 and "not imported" in cut.stderr, "a document that is cut off"


@pytest.mark.requirement("IMP-6")
def test_a_transcript_of_another_harness_is_skipped_with_the_command_that_imports_it(
    daemon: Running, tmp_path: Path
) -> None:
    path = Codex().write(tmp_path)
    (skipped,) = imported(daemon, "claude", tmp_path)["skipped"]
    assert (skipped["path"], skipped["reason"]) == (str(path), "a transcript of codex (codex): use ctx import codex")


@pytest.mark.requirement("IMP-6")
def test_a_pipe_is_rejected(daemon: Running, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jsonl")
    done = ctx(daemon, "import", "claude", str(tmp_path / "pipe.jsonl"))
    assert done.returncode == 1 and "pipe.jsonl was not imported: not a regular file" in done.stderr


@pytest.mark.requirement("IMP-6")
@pytest.mark.parametrize("inner", ["1", '"\\ud83d"', "12345678901234567890"])
def test_no_depth_of_a_record_ends_an_import_or_hides_another_line(
    daemon: Running, client: SyncClient, tmp_path: Path, inner: str
) -> None:
    deep = {levels: Claude() for levels in (70, 600, 900, 5000)}
    for levels, claude in deep.items():
        records = [*claude.turn("a", "b"), claude("c", permissionMode="DEEP"), *claude.turn("d", "e")]
        path = write(tmp_path / f"{claude.session}.jsonl", records)
        path.write_text(path.read_text().replace('"DEEP"', "[" * levels + inner + "]" * levels))
    found = imported(daemon, "claude", tmp_path)
    assert found["sessions"] == sorted(claude.id for claude in deep.values()) and found["skipped"] == []
    for levels, claude in deep.items():
        (tip,) = client.commit_list(session=claude.id, tips=True).commits
        assert inner.strip('\\"') in text(client, tip.commit), levels


@pytest.mark.requirement("IMP-1")
def test_arguments_with_values_that_no_session_accepts_are_imported(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    rollout = Thread()
    rollout.turn("a", "b")
    rollout.begin()
    rollout.ask("c")
    given = r'{"command": "echo \ud83d", "limit": 9007199254740993, "wait": Infinity}'
    rollout.add("d", type="function_call", name="shell", arguments=given, call_id="c1")
    rollout.answer("e")
    found = imported(daemon, "codex", rollout.write(tmp_path))
    assert (found["skipped"], found["events"]["tool_call"]) == ([], 1)
    assert labels(client, head(client, rollout.id)) == "mabcde"


@pytest.mark.requirement("IMP-5")
@pytest.mark.parametrize("left", [0, 2, 9, 100])
def test_a_secret_at_the_place_where_a_long_line_is_split_is_handled(
    daemon: Running, client: SyncClient, tmp_path: Path, left: int
) -> None:
    claude = Claude()
    client.session_create("claude-code", session=claude.id, secrets="redact")
    records = claude.turn("a", "b")
    begin = json.dumps(records[0]).index("text a")
    # A line is split below 2 MiB, after the last word that ends there.
    records[0]["message"]["content"] = "x" * (2 * 1024 * 1024 - begin - 2 - left) + f"\n{KEY}\n" + "word " * 1_400_000
    imported(daemon, "claude", write(tmp_path / f"{claude.session}.jsonl", records))
    tip = client.commit_resolve(session=claude.id).commit
    assert tip is not None
    kept = text(client, tip.commit)
    assert KEY not in kept and "[REDACTED:aws-access-key:" in kept


@pytest.mark.requirement("SES-40")
def test_no_session_begins_with_a_context_that_is_nested_too_deeply(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    nested: Any = "text"
    for _ in range(250):
        nested = [{"type": "tool_result", "tool_use_id": "t", "content": nested}]
    claude = Claude()
    imported(daemon, "claude", write(tmp_path / "deep.jsonl", [claude("a"), claude("b", message={"content": nested})]))
    tip = client.commit_resolve(session=claude.id).commit
    assert tip is not None
    refused = ctx(daemon, "resume", tip.commit, "--in", "pi", "--cwd", str(tmp_path), HOME=str(tmp_path))
    assert refused.returncode == 1 and f"no session can begin with the context of {tip.commit}" in refused.stderr


@pytest.mark.requirement("LST-11")
@pytest.mark.parametrize(
    ("cwd", "directory"),
    [
        (r"C:\Users\ann\parser", "/mnt/c/Users/ann/parser"),
        ("d:/parser/", "/mnt/d/parser"),
        (r"\\server\share\parser", "/"),
        ("parser", "/"),
    ],
)
def test_a_directory_on_a_windows_drive_is_a_project_by_its_place_in_wsl(
    daemon: Running, client: SyncClient, tmp_path: Path, cwd: str, directory: str
) -> None:
    claude = Claude()
    records = [{**record, "cwd": cwd} for record in claude.turn("a", "b")]
    imported(daemon, "claude", write(tmp_path / f"{claude.session}.jsonl", records))
    view = client.session_get(claude.id).session
    assert view.workdir == directory
    assert (view.project is None) == (directory == "/")
    listed = client.session_list(project="parser", limit=1000).sessions
    assert (claude.id in [row.session for row in listed]) == (directory != "/")
