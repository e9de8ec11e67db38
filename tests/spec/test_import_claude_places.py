"""IMP: working directories and titles that Claude Code keeps apart from the messages of a session."""

import os
from pathlib import Path

import anyio
import msgspec
import pytest

from ctxd_client.sync import SyncClient
from tests.client.running import Running
from tests.spec.test_import import Claude, Record, append, imported, write
from tests.spec.test_import_watch import importing


def relocated(claude: Claude, directory: object) -> Record:
    """The record of a move of the session to another directory."""
    return {"type": "relocated", "relocatedCwd": directory, "sessionId": claude.session}


def project(client: SyncClient, claude: Claude) -> str:
    found = client.session_get(claude.id).session.project
    return "" if found is None else found.directory


# --- directories ---


@pytest.mark.requirement("LST-11")
def test_a_session_that_was_moved_has_the_last_directory(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    moves = [relocated(claude, place) for place in ("/srv/first", "/srv/second", "", None)]
    records = [*claude.turn("a", "b"), *moves, {**claude("c"), "relocatedCwd": "/srv/other"}]
    imported(daemon, "claude", write(tmp_path / f"{claude.session}.jsonl", records))
    assert (client.session_get(claude.id).session.workdir, project(client, claude)) == ("/srv/second", "/srv/second")


@pytest.mark.requirement("LST-11")
def test_a_move_far_into_a_transcript_counts(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    records = [record for number in range(40) for record in claude.turn(f"a{number}", f"b{number}")]
    imported(daemon, "claude", write(tmp_path / f"{claude.session}.jsonl", [*records, relocated(claude, "/srv/moved")]))
    assert project(client, claude) == "/srv/moved"


@pytest.mark.requirement("LST-11")
@pytest.mark.parametrize("place", ["/srv/moved", r"C:\srv\moved", "/../srv/moved/../moved"])
def test_a_move_after_an_import_sets_the_project_once(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, place: str
) -> None:
    first = write(tmp_path / "old" / f"{claude.session}.jsonl", claude.turn("a", "b"))
    imported(daemon, "claude", tmp_path)
    assert project(client, claude) == "/srv/app"
    # Claude Code moves the transcript to the folder of the other directory.
    path = tmp_path / "new" / first.name
    path.parent.mkdir()
    first.rename(path)
    append(path, relocated(claude, place))
    found = imported(daemon, "claude", tmp_path)
    assert (found["skipped"], found["lines"]) == ([], 1)
    assert project(client, claude) == ("/mnt/c/srv/moved" if place.startswith("C") else "/srv/moved")
    # The user's own correction stays, although Claude Code repeats the record.
    client.session_annotate(claude.id, directory="/srv/corrected")
    append(path, *claude.turn("c", "d"), relocated(claude, place))
    imported(daemon, "claude", tmp_path)
    assert project(client, claude) == "/srv/corrected"
    append(path, relocated(claude, "/srv/again"))
    imported(daemon, "claude", tmp_path)
    assert project(client, claude) == "/srv/again"


@pytest.mark.requirement("IMP-9", "LST-11")
def test_a_watch_follows_a_move(daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def watch() -> list[str]:
        found = []
        async with importing(daemon, watch=True) as watching:
            await watching.run([tmp_path])
            for place in ("/srv/moved", "/srv/moved", "/srv/again"):
                append(path, *claude.turn("c", "d"), relocated(claude, place))
                await watching.run([tmp_path])
                found.append(await anyio.to_thread.run_sync(project, client, claude))
                client.session_annotate(claude.id, directory="/srv/corrected")
        return found

    assert anyio.run(watch) == ["/srv/moved", "/srv/corrected", "/srv/again"]


@pytest.mark.requirement("LST-11")
def test_an_invalid_directory_is_ignored(daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    imported(daemon, "claude", tmp_path)
    for place in ("moved", "/" + "ü" * 3000, "/srv\0moved", 7):
        append(path, relocated(claude, place))
        assert imported(daemon, "claude", tmp_path)["skipped"] == []
        assert project(client, claude) == "/srv/app"


# --- titles ---


def title(client: SyncClient, claude: Claude) -> str:
    return client.session_get(claude.id).session.title


def named(claude: Claude, text: str) -> Record:
    """The title of the user in a transcript."""
    return {"type": "custom-title", "customTitle": text, "sessionId": claude.session}


def beside(path: Path, content: object) -> Path:
    """Write the file of the title beside a transcript. Returns: its path."""
    file = path.with_suffix("") / "custom-title.json"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else msgspec.json.encode(content))
    return file


@pytest.mark.requirement("LST-11")
@pytest.mark.parametrize(
    ("sidecar", "expected"),
    [
        ({"customTitle": "Beside"}, "Beside"),
        ({"customTitle": "  Bes\u0007i\tde\u0085  "}, "Beside"),
        ({"customTitle": "Beside", "by": "user", "at": "2026-01-02T03:05:00.000Z"}, "Beside"),
        ({"customTitle": "Beside", "by": "user", "at": "2026-01-02T03:04:01.000Z"}, "Inside"),
        ({"customTitle": "Beside", "by": "user", "at": "yesterday"}, "Beside"),
        ({"customTitle": " \t"}, "Inside"),
        ({"customTitle": ["Beside"]}, "Inside"),
        (["Beside"], "Inside"),
        (b'{"customTitle": "Bes', "Inside"),
        (b"[" * 9000, "Inside"),
        (b'{"customTitle": "Beside"}' + b" " * 65536, "Inside"),
    ],
    ids=["plain", "controls", "newer", "older", "no time", "blank", "list", "array", "cut", "nested", "long"],
)
def test_the_title_beside_a_transcript_counts_unless_that_in_it_is_newer(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, sidecar: object, expected: str
) -> None:
    records = [*claude.turn("a", "b"), named(claude, "Inside"), {"type": "ai-title", "aiTitle": "Guessed"}]
    path = write(tmp_path / f"{claude.session}.jsonl", records)
    beside(path, sidecar)
    assert imported(daemon, "claude", tmp_path)["skipped"] == []
    assert title(client, claude) == expected


@pytest.mark.requirement("LST-11")
def test_without_a_time_the_title_beside_a_transcript_is_as_old_as_its_file(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", [*claude.turn("a", "b"), named(claude, "Inside")])
    os.utime(beside(path, {"customTitle": "Beside"}), (1_700_000_000, 1_700_000_000))
    imported(daemon, "claude", tmp_path)
    assert title(client, claude) == "Inside"


@pytest.mark.requirement("LST-11")
@pytest.mark.parametrize("kind", ["pipe", "folder", "broken link"])
def test_a_title_file_that_is_not_a_regular_file_is_ignored(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path, kind: str
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    file = beside(path, {})
    file.unlink()
    if kind == "pipe":
        os.mkfifo(file)
    elif kind == "folder":
        file.mkdir()
    else:
        file.symlink_to("gone")
    assert imported(daemon, "claude", tmp_path)["skipped"] == []
    assert title(client, claude) == "text a"


@pytest.mark.requirement("LST-11")
def test_a_sub_agent_has_no_title_beside_it(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    agent = [{**each, "isSidechain": True, "agentId": "k1"} for each in Claude(claude.session).turn("x", "y")]
    write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    beside(write(tmp_path / "agent-k1.jsonl", agent), {"customTitle": "Of the agent"})
    imported(daemon, "claude", tmp_path)
    assert title(client, claude) == "text a"


@pytest.mark.requirement("IMP-9", "LST-11")
def test_a_watch_follows_titles_beside_and_in_a_transcript(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))

    async def watch() -> list[str]:
        found = []
        async with importing(daemon, watch=True) as watching:
            for sidecar, minute, inside in (
                ("First", 0, ""),
                ("Second", 1, ""),
                ("Second", 1, "Third"),
                ("Last", 3, ""),
            ):
                beside(path, {"customTitle": sidecar, "by": "user", "at": f"2026-01-02T03:{minute:02}:00.000Z"})
                message = {**claude("c"), "timestamp": f"2026-01-02T03:{minute + 1:02}:00.000Z"}
                append(path, message, *([named(claude, inside)] if inside else []))
                await watching.run([tmp_path])
                found.append(await anyio.to_thread.run_sync(title, client, claude))
        return found

    assert anyio.run(watch) == ["First", "Second", "Third", "Last"]
