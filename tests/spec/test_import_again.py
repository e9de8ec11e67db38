"""IMP: imports of one transcript that know nothing of each other, of files that have moved, and without a daemon."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.imports.import_result import ImportResult
from ctxd.imports.importer import TranscriptImport
from ctxd_client import CallFailed, connect, connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import PromptEvent
from ctxd_protocol.methods.commits import CommitListResult
from tests.client.running import Running
from tests.spec.secrecy import TOKEN
from tests.spec.test_hooks import Harness
from tests.spec.test_import import CTX, Claude, Codex, Record, append, commits, ctx, imported, labels, write
from tests.waiting import block_until


def lines(client: SyncClient, session: str) -> Counter[str]:
    """How often each line of a transcript is in the commits of its session."""
    ids = list(commits(client, session))
    data = b"".join(each.data or b"" for each in client.commit_deltas(ids).deltas) if ids else b""
    return Counter(json.loads(line).get("label", "") for line in data.splitlines())


@contextmanager
def watching(daemon: Running, folder: Path, *more: str) -> Iterator["subprocess.Popen[bytes]"]:
    words = [CTX, "import", "claude", str(folder), "--watch", "--json", *more]
    environ = {**os.environ, "CTXD_SOCKET": daemon.socket}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("end", [None, signal.SIGINT, signal.SIGKILL])
def test_an_import_continues_after_the_commits_of_another_import(
    daemon: Running, client: SyncClient, tmp_path: Path, end: signal.Signals | None
) -> None:
    claude = Claude()
    file = write(tmp_path / f"{claude.session}.jsonl", [claude("a")])
    with watching(daemon, tmp_path) as watch:
        block_until(lambda: lines_or_none(client, claude.id) == "a")
        for label in "bc":
            append(file, claude(label, "assistant"))
            block_until(lambda label=label: label in lines_or_none(client, claude.id))
        if end is not None:
            watch.send_signal(end)
            watch.wait(30)
        assert imported(daemon, "claude", tmp_path)["commits"] == 0
        append(file, claude("d", "assistant"))
        imported(daemon, "claude", tmp_path)
        append(file, *claude.turn("e", "f"))
        imported(daemon, "claude", tmp_path)
    assert lines(client, claude.id) == Counter("abcdef")
    assert len(client.commit_list(session=claude.id, tips=True).commits) == 1


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("known", [False, True])
def test_the_commits_of_a_session_are_listed_once_for_all_of_its_sub_agents(
    daemon: Running, tmp_path: Path, known: bool
) -> None:
    claude = Claude()
    write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    added: list[tuple[Path, Record]] = []
    for number in range(9):
        path = tmp_path / claude.session / "subagents" / f"agent-k{number}.jsonl"
        side = Claude(claude.session)
        records = [{**each, "isSidechain": True, "agentId": f"k{number}"} for each in (*side.turn("u", "v"), side("w"))]
        write(path, records[:2] if known else records)
        added.append((path, records[-1]))
    if known:
        imported(daemon, "claude", tmp_path)
        for path, record in added:
            append(path, record)
    listed: list[str | None] = []

    async def run() -> ImportResult:
        async with connect(daemon.socket) as client:
            work = TranscriptImport(client, "claude", progress=lambda _: None)
            list_commits = client.commit_list

            async def counted(**params: Any) -> CommitListResult:
                listed.append(params["session"])
                return await list_commits(**params)

            client.commit_list = counted  # type: ignore[assignment]
            return await work.run([tmp_path])

    assert anyio.run(run).commits == (9 if known else 10)
    assert listed == [claude.id]


@pytest.mark.requirement("IMP-4", "IMP-9")
@pytest.mark.parametrize("is_watch", [True, False])
def test_a_fork_that_is_read_while_it_is_written_is_that_of_the_whole_file(
    daemon: Running, client: SyncClient, tmp_path: Path, is_watch: bool
) -> None:
    claude, fork = Claude(), Claude()
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    write(tmp_path / f"{claude.session}.jsonl", records)
    fork.ids, fork.last = {**claude.ids}, claude.last
    aside = [{"type": "mode", "mode": "plan", "sessionId": fork.session, "label": label} for label in "mn"]
    copied = [{**each, "sessionId": fork.session} for each in records]
    whole = [aside[0], *copied, aside[1], *fork.turn("e", "f")]

    async def run() -> None:
        async with connect(daemon.socket) as connected:
            work = TranscriptImport(connected, "claude", watch=is_watch, progress=lambda _: None)
            await work.run([tmp_path])
            for end in (3, 4, 6, 8):
                write(tmp_path / f"{fork.session}.jsonl", whole[:end])
                await work.run([tmp_path])
            last = TranscriptImport(connected, "claude", progress=lambda _: None)
            os.utime(tmp_path / f"{fork.session}.jsonl")
            assert (await last.run([tmp_path])).commits == 0

    anyio.run(run)
    newest = client.commit_resolve(session=fork.id).commit
    assert newest is not None
    assert sorted(labels(client, newest.commit)) == sorted("abcdmnef")
    stored = lines(client, fork.id)
    # The line beside the messages is stored again, with its place in the copy, whenever the copy has grown.
    assert [stored[label] for label in "abdefn"] == [0, 0, 0, 1, 1, 1]


@pytest.mark.requirement("IMP-9")
def test_a_watch_reads_an_origin_again_and_its_order_outlives_it(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    fork, claude = sorted((Claude(), Claude()), key=lambda each: each.session)
    records = claude.turn("a", "b")
    origin = write(tmp_path / f"{claude.session}.jsonl", records)
    copied = [{**each, "sessionId": fork.session} for each in records]
    made: list[int] = []

    async def run() -> None:
        async with connect(daemon.socket) as connected:
            watch = TranscriptImport(connected, "claude", watch=True, progress=lambda _: None)
            made.append((await watch.run([tmp_path])).commits)
            fork.ids, fork.last = {**claude.ids}, claude.last
            copy = write(tmp_path / f"{fork.session}.jsonl", [*copied, *fork.turn("c", "d")])
            made.append((await watch.run([copy])).commits)
            append(origin, *claude.turn("e", "f"))
            made.append((await watch.run([origin])).commits)
            killed = TranscriptImport(connected, "claude", progress=lambda _: None)
            made.append((await killed.run([tmp_path])).commits)

    anyio.run(run)
    assert made == [1, 1, 1, 0]
    assert lines(client, claude.id) + lines(client, fork.id) == Counter("abcdef")


def lines_or_none(client: SyncClient, session: str) -> str:
    """The labels of the lines that are there, in order of their names; nothing without a session."""
    try:
        return "".join(sorted(lines(client, session)))
    except CallFailed:
        return ""


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("compressed", [False, True])
def test_a_transcript_that_was_moved_or_compressed_is_imported_once_and_stays_purged(
    daemon: Running, client: SyncClient, tmp_path: Path, compressed: bool
) -> None:
    rollout = Codex()
    rollout.turn("a", "b")
    file = rollout.write(tmp_path / "sessions")
    imported(daemon, "codex", file)
    rollout.turn("c", "d")
    file = rollout.write(tmp_path / "sessions")
    imported(daemon, "codex", file)
    before = set(commits(client, rollout.id))
    for commit in before:
        client.object_purge(f"commit:{commit}")
    (tmp_path / "archived_sessions").mkdir()
    moved = file.rename(tmp_path / "archived_sessions" / file.name)
    if compressed:
        packed = moved.with_name(f"{moved.name}.zst")
        packed.write_bytes(zstd.compress(moved.read_bytes()))
        moved.unlink()
    assert imported(daemon, "codex", tmp_path)["commits"] == 0
    assert set(commits(client, rollout.id)) == before


@pytest.mark.requirement("IMP-9")
def test_a_line_overwritten_during_a_watch_is_imported_again(
    daemon: Running, client: SyncClient, tmp_path: Path
) -> None:
    claude = Claude()
    file = write(tmp_path / f"{claude.session}.jsonl", [*claude.turn("a", "b"), claude("c")])
    with watching(daemon, tmp_path):
        block_until(lambda: lines_or_none(client, claude.id) == "abc")
        whole = file.read_bytes()
        file.write_bytes(whole.replace(b"text b", b"text B"))
        append(file, claude("d", "assistant"))
        block_until(lambda: "d" in lines_or_none(client, claude.id))
    newest = client.commit_resolve(session=claude.id).commit
    assert newest is not None
    assert "text B" in str(client.commit_materialize(newest.commit, stop="root").content)


@pytest.mark.requirement("IMP-2")
@pytest.mark.parametrize("is_watched", [True, False])
def test_a_rewritten_file_is_imported_once_it_is_complete(
    daemon: Running, client: SyncClient, tmp_path: Path, is_watched: bool
) -> None:
    claude = Claude()
    file = write(tmp_path / f"{claude.session}.jsonl", [*claude.turn("a", "b"), claude("c", "assistant")])
    whole = file.read_bytes()
    half = whole[: whole.rindex(b"\n", 0, -1) + 1]
    with watching(daemon, tmp_path) if is_watched else nullcontext(), ThreadPoolExecutor() as threads:
        if not is_watched:
            imported(daemon, "claude", tmp_path)
        block_until(lambda: lines_or_none(client, claude.id) == "abc")
        os.truncate(file, len(half))
        again = None if is_watched else threads.submit(imported, daemon, "claude", tmp_path)
        time.sleep(0.7)
        with file.open("ab") as writer:
            writer.write(whole[len(half) :])
        assert again is None or again.result()["commits"] == 0
        append(file, claude("d", "assistant"))
        if not is_watched:
            imported(daemon, "claude", tmp_path)
        block_until(lambda: "d" in lines_or_none(client, claude.id))
    assert lines(client, claude.id) == Counter("abcd")
    if not is_watched:
        os.truncate(file, len(half))
        assert imported(daemon, "claude", tmp_path)["rewritten"] == 1, "one that stays short is taken as it is"


@pytest.mark.requirement("IMP-10")
def test_an_import_without_a_daemon_fails_with_one_line_and_continues_when_repeated(tmp_path: Path) -> None:
    folder = tmp_path / "transcripts"
    claudes = [Claude() for _ in range(150)]
    for claude in claudes:
        write(folder / f"{claude.session}.jsonl", [*claude.turn("a", "b"), *claude.turn("c", "d")])
    with Running(tmp_path, keep_state=True) as daemon:
        words = [CTX, "import", "claude", str(folder), "--json", "--timeout", "2"]
        environ = {**os.environ, "CTXD_SOCKET": daemon.socket}
        process = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with connect_sync(daemon.socket) as client:
            block_until(lambda: bool(client.session_list(limit=1).sessions))
        daemon.kill()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (5, b"")
        # A note that the client tries again comes first if the import was between two calls.
        error: dict[str, Any] = json.loads(err.splitlines()[-1])
        assert "no daemon" in error["error"]["message"]
        daemon.start()
        imported(daemon, "claude", folder)
        with connect_sync(daemon.socket) as client:
            assert all(lines(client, each.id) == Counter("abcd") for each in claudes)


@pytest.mark.requirement("IMP-9")
def test_a_watch_continues_once_its_daemon_is_back(tmp_path: Path) -> None:
    claude = Claude()
    file = write(tmp_path / "transcripts" / f"{claude.session}.jsonl", [claude("a")])
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client, watching(daemon, file.parent, "--timeout", "1") as watch:
            block_until(lambda: lines_or_none(client, claude.id) == "a")
            daemon.kill()
            append(file, claude("b", "assistant"))
            assert watch.stderr is not None
            assert b"trying again" in watch.stderr.readline()
            daemon.start()
            block_until(lambda: lines_or_none(client, claude.id) == "ab")
            assert watch.poll() is None


if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


@pytest.mark.requirement("HOK-14")
def test_a_redacted_prompt_of_hooks_is_known_and_unusable_rules_skip_the_source_alone(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    session = client.session_create("claude-code", session=claude.id, secrets="redact").session.session
    client.session_append(session, events=(PromptEvent(text=f"use {TOKEN}"),))
    client.session_pause(session)
    other = Claude()
    records = claude.turn("a", "b")
    records[0]["message"]["content"] = f"use {TOKEN}"
    write(tmp_path / f"{claude.session}.jsonl", records)
    write(tmp_path / f"{other.session}.jsonl", other.turn("a", "b"))
    rules = tmp_path / "rules.toml"
    rules.write_text("not = [a rule")
    done = ctx(daemon, "import", "claude", str(tmp_path), "--json", CTXD_SECRETS_RULES=str(rules))
    found = json.loads(done.stdout)
    assert found["sessions"] == [other.id] and len(found["skipped"]) == 1, done.stderr
    assert "rules for secrets" in found["skipped"][0]["reason"] and str(rules) in found["skipped"][0]["reason"]
    assert imported(daemon, "claude", tmp_path)["recorded"] == 1


@pytest.mark.requirement("IMP-2")
def test_a_dry_run_commits_no_pending_events_and_delivers_no_waiting_ones(
    harness: Harness, claude: Claude, tmp_path: Path
) -> None:
    daemon = harness.daemon
    records = [*claude.turn("a", "b"), *claude.turn("c", "d")]
    records[0]["message"]["content"] = "a"
    write(tmp_path / "transcripts" / f"{claude.session}.jsonl", records)
    with connect_sync(daemon.socket) as client:
        client.session_create("claude-code", session=claude.id)
        client.session_append(claude.id, events=(PromptEvent(text="a"),))
        client.session_pause(claude.id)
    daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    daemon.start()
    environ = {"HOME": str(harness.home), "XDG_STATE_HOME": ""}
    words = ("import", "claude", str(tmp_path / "transcripts"), "--json")
    with connect_sync(daemon.socket) as client:
        head = client.daemon_status().store.head_seq
        dry = json.loads(ctx(daemon, *words, "--dry-run", **environ).stdout)
        assert client.daemon_status().store.head_seq == head and commits(client, claude.id) == {}
        assert len(harness.waiting()) == 1
        assert json.loads(ctx(daemon, *words, **environ).stdout) == {**dry, "dry_run": False}
        assert harness.waiting() == [] and len(commits(client, claude.id)) > 1


@pytest.mark.requirement("IMP-2")
def test_an_unchanged_import_delivers_spooled_events_without_loading_event_loop_or_readers(
    harness: Harness, claude: Claude, tmp_path: Path
) -> None:
    daemon, folder = harness.daemon, tmp_path / "transcripts"
    write(folder / f"{claude.session}.jsonl", claude.turn("a", "b"))
    (folder / "other.jsonl").symlink_to("nowhere")
    assert imported(daemon, "claude", folder)["commits"] == 1
    daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    daemon.start()
    program = (
        "import sys\nfrom ctxd.cli.main import run\nassert run(sys.argv[1:]) == 0\n"
        "heavy = {'asyncio', 'ctxd.imports.importer', 'ctxd.transcripts.discovery'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    environ = {**os.environ, "CTXD_SOCKET": daemon.socket, "HOME": str(harness.home), "XDG_STATE_HOME": ""}
    words = ("import", "claude", str(folder), "--json")
    done = subprocess.run(
        [sys.executable, "-c", program, *words], env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    result = json.loads(done.stdout)
    assert (result["unchanged"], result["imported"], result["commits"]) == (1, 0, 0)
    assert [each["path"] for each in result["skipped"]] == [str(folder / "other.jsonl")]
    assert harness.waiting() == []


@pytest.mark.requirement("IMP-10")
def test_imports_that_overlap_take_turns(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    path = write(tmp_path / "transcripts" / f"{claude.session}.jsonl", claude.turn("a", "b"))
    noted: list[str] = []

    async def run() -> None:
        async with (
            connect(daemon.socket) as first,
            connect(daemon.socket) as second,
            anyio.create_task_group() as group,
        ):
            reading, other = anyio.Event(), anyio.Event()
            create = first.session_create

            async def slow(*words: Any, **params: Any) -> Any:
                reading.set()
                await other.wait()
                append(path, *claude.turn("c", "d"))
                return await create(*words, **params)

            def note(text: str) -> None:
                noted.append(text)
                other.set()

            first.session_create = slow  # type: ignore[method-assign]
            begun = TranscriptImport(first, "claude", progress=lambda _: None)
            group.start_soon(begun.run, [path.parent])
            await reading.wait()
            await TranscriptImport(second, "claude", progress=note).run([path.parent])

    anyio.run(run)
    assert noted[0] == "waiting for another import of claude"
    assert lines(client, claude.id) == Counter("abcd")
    assert [*(tmp_path / "state" / "ctx-import").iterdir()] == []


@pytest.mark.requirement("IMP-10")
def test_an_import_without_a_place_for_its_lock_runs_all_the_same(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    write(tmp_path / "transcripts" / f"{claude.session}.jsonl", claude.turn("a", "b"))
    (tmp_path / "state").write_text("a file")
    done = ctx(daemon, "import", "claude", str(tmp_path / "transcripts"), XDG_STATE_HOME=str(tmp_path / "state"))
    assert done.returncode == 0 and lines(client, claude.id) == Counter("ab")


@pytest.mark.requirement("IMP-6")
@pytest.mark.parametrize("place", ["file", "folder"])
def test_a_path_that_is_not_utf_8_is_listed_and_keeps_no_other_file_from_its_record(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, place: str
) -> None:
    write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    odd = os.fsencode(tmp_path) + (b"/caf\xe9.jsonl" if place == "file" else b"/caf\xe9/x.jsonl")
    os.makedirs(os.path.dirname(odd), exist_ok=True)
    with open(odd, "wb") as file:
        file.write(b"{}\n")
    for commits_made in (1, 0):
        found = imported(daemon, "claude", tmp_path)
        assert found["commits"] == commits_made and found["unchanged"] == 1 - commits_made
        (skipped,) = found["skipped"]
        assert "caf\\xe9" in skipped["path"] and "not UTF-8" in skipped["reason"]


def test_a_name_that_is_too_long_is_an_error_of_one_line(daemon: Running, tmp_path: Path) -> None:
    for words in (("import", "claude"), ("scan",), ("capture", "--from")):
        done = ctx(daemon, *words, str(tmp_path / ("x" * 300)))
        assert done.returncode in (1, 2, 3) and done.stderr.count("\n") == 1 and "too long" in done.stderr, done.stderr
