"""IMP: ``ctx import --watch``: what is written while it runs."""

import json
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
import watchfiles
from watchfiles import Change

from ctxd.cli import import_command
from ctxd.cli.main import run
from ctxd.clock import SystemClock
from ctxd.imports.importer import TranscriptImport
from ctxd.imports.whole_import_check import WholeImportCheck
from ctxd_client import connect
from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.claude_records import once
from tests.spec.test_exactly_once import Session
from tests.spec.test_import import CTX, Claude, append, views, write


@asynccontextmanager
async def importing(daemon: Running, *, watch: bool) -> AsyncIterator[TranscriptImport]:
    """An import, or a ``watch``, whose runs the test makes."""
    async with connect(daemon.socket) as connected:
        yield TranscriptImport(connected, "claude", watch=watch, progress=lambda _: None)


@pytest.mark.requirement("IMP-9")
def test_a_watch_imports_new_lines_until_it_is_interrupted(daemon: Running, client: SyncClient, tmp_path: Path) -> None:
    claude = Claude()
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    environ = {**os.environ, "CTXD_SOCKET": daemon.socket}
    command = [CTX, "import", "claude", str(tmp_path), "--watch", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as watch:
        assert watch.stdout is not None
        try:
            assert json.loads(watch.stdout.readline())["events"] == {"prompt": 1, "response": 1}
            append(path, *claude.turn("c", "d"))
            grown = json.loads(watch.stdout.readline())
            assert (grown["lines"], grown["commits"], grown["rewritten"]) == (2, 1, 0)
            other = Claude()
            write(tmp_path / "folder" / f"{other.session}.jsonl", other.turn("x", "y"))
            assert json.loads(watch.stdout.readline())["sessions"] == [other.id]
            write(tmp_path / "new", claude.turn("e", "f")).rename(path)
            assert json.loads(watch.stdout.readline())["rewritten"] == 1
        finally:
            watch.send_signal(signal.SIGINT)
        assert watch.wait(30) == 130
    assert sorted(views(client, claude.id)) == ["abcd", "ef"] and views(client, other.id) == ["xy"]


@pytest.mark.requirement("IMP-9")
def test_a_watch_reads_a_new_folder_whole_as_a_file_may_be_there_before_the_folder_is_watched(
    daemon: Running, client: SyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claude = Claude()

    async def only_of_folders(*_: object, **__: object) -> AsyncIterator[set[tuple[Change, str]]]:
        yield set()
        path = write(tmp_path / "folder" / f"{claude.session}.jsonl", claude.turn("a", "b"))
        yield {(Change.added, str(path.parent))}

    monkeypatch.setattr(watchfiles, "awatch", only_of_folders)
    monkeypatch.setenv("CTXD_SOCKET", daemon.socket)
    assert run(["import", "claude", str(tmp_path), "--watch"]) == 0
    assert views(client, claude.id) == ["ab"]


@pytest.mark.requirement("IMP-9")
def test_a_watch_waits_for_the_folder_of_a_harness_without_sessions(
    daemon: Running,
    client: SyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    claude = Claude()
    waited: list[float] = []

    async def begun(_: SystemClock, seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 2:
            write(tmp_path / "projects" / "srv" / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def ended(*_: object, **__: object) -> AsyncIterator[set[tuple[Change, str]]]:
        yield set()

    monkeypatch.setattr(watchfiles, "awatch", ended)
    monkeypatch.setattr(SystemClock, "sleep", begun)
    monkeypatch.setenv("CTXD_SOCKET", daemon.socket)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
    assert run(["import", "claude", "--watch"]) == 0
    assert views(client, claude.id) == ["ab"]
    assert capsys.readouterr().err.count("claude has no sessions in") == 1


@pytest.mark.requirement("IMP-2")
def test_an_import_after_a_watch_counts_its_imports_as_unchanged(daemon: Running, tmp_path: Path) -> None:
    claude = Claude()
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def imports() -> list[tuple[int, int, int]]:
        async with importing(daemon, watch=True) as watch:
            await watch.run([tmp_path])
            append(path, *claude.turn("c", "d"))
            await watch.run([tmp_path])
            await watch.save(when_due=False)
        found = []
        for _ in range(2):
            async with importing(daemon, watch=False) as once:
                result = await once.run([tmp_path])
                found.append((result.sources, result.imported, result.unchanged))
        return found

    assert anyio.run(imports) == [(1, 0, 1)] * 2


@pytest.mark.requirement("IMP-9")
def test_a_watch_rescans_where_files_cannot_be_watched(
    daemon: Running,
    client: SyncClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    claude = Claude()
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def without_inotify(*_: object, **__: object) -> AsyncIterator[set[tuple[Change, str]]]:
        raise RuntimeError("Error creating recommended watcher: Too many open files (os error 24)")
        yield set()

    class Ended(Exception):
        """Ends the watch."""

    async def grown(_: SystemClock, seconds: float) -> None:
        if views(client, claude.id) == ["abc"]:
            raise Ended
        append(path, claude("c"))

    monkeypatch.setattr(watchfiles, "awatch", without_inotify)
    monkeypatch.setattr(import_command, "_RESCAN_TIMEOUTS", 0)
    monkeypatch.setattr(SystemClock, "sleep", grown)
    monkeypatch.setenv("CTXD_SOCKET", daemon.socket)
    with pytest.raises(Ended):
        run(["import", "claude", str(tmp_path), "--watch"])
    assert "rescans only" in capsys.readouterr().err


@pytest.mark.requirement("IMP-9")
def test_a_watch_reads_only_the_new_lines_of_a_session_with_hooks(
    daemon: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(daemon, tmp_path / "home")
    session.turn("a")
    session.hook("SessionEnd", reason="other")
    read: list[int] = []
    add = WholeImportCheck.add
    monkeypatch.setattr(WholeImportCheck, "add", lambda check, line: (read.append(line.end), add(check, line)))

    async def watched() -> None:
        async with importing(daemon, watch=True) as watch:
            for label in "bcd":
                await watch.run([session.file.parent])
                session.turn(label, hooked=False)
            await watch.run([session.file.parent])

    anyio.run(watched)
    assert read == sorted(set(read)) and read[-1] == session.file.stat().st_size


@pytest.mark.requirement("IMP-9")
def test_a_file_that_grows_elsewhere_and_comes_back_is_stored_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    here, there = (tmp_path / name / f"{claude.session}.jsonl" for name in ("here", "there"))
    write(here, claude.turn("a", "b"))
    there.parent.mkdir()

    async def watched() -> None:
        async with importing(daemon, watch=True) as watch:
            await watch.run([tmp_path])
            append(here, claude("c"))
            await watch.run([tmp_path])
            for label, source, target in (("d", here, there), ("e", there, there), ("f", there, here)):
                source.rename(target)
                append(target, claude(label, "assistant"))
                await watch.run([tmp_path])

    anyio.run(watched)
    assert once(client, claude.id) == "abcdef"
    assert views(client, claude.id) == ["abcdef"]


@pytest.mark.requirement("IMP-9")
def test_a_watch_takes_over_commits_of_a_concurrent_import(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def watched() -> None:
        async with importing(daemon, watch=True) as watch:
            await watch.run([tmp_path])
            append(path, claude("c"))
            await watch.run([tmp_path])
            append(path, claude("d", "assistant"))
            async with importing(daemon, watch=False) as other:
                await other.run([tmp_path])
            await watch.save(when_due=False)
            # No prompt, before which every import would end a delta.
            append(path, claude("e", "assistant"), claude("f", "assistant"))
            await watch.run([tmp_path])
            await watch.save(when_due=False)

    anyio.run(watched)
    assert once(client, claude.id) == "abcdef"
    assert views(client, claude.id) == ["abcdef"]
