"""IMP: working directories and titles that Claude Code keeps apart from the messages of a session."""

from pathlib import Path

import anyio
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
def test_a_move_far_behind_the_beginning_of_a_transcript_counts(
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
def test_a_directory_that_no_path_names_is_none(
    daemon: Running, client: SyncClient, claude: Claude, tmp_path: Path
) -> None:
    path = write(tmp_path / f"{claude.session}.jsonl", claude.turn("a", "b"))
    imported(daemon, "claude", tmp_path)
    for place in ("moved", "/" + "ü" * 3000, "/srv\0moved", 7):
        append(path, relocated(claude, place))
        assert imported(daemon, "claude", tmp_path)["skipped"] == []
        assert project(client, claude) == "/srv/app"
