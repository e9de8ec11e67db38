"""Files followed on disk: changes that nobody reports, and how each file is followed."""

import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.session_types import Mount, Notice
from ctxd_protocol.tracker_types import Tracker
from tests.client.running import Running
from tests.waiting import block_until

Start = Callable[..., SyncSession]


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    """A daemon of the test's own that follows files, as daemons do by default."""
    with Running(tmp_path, watcher="auto") as running:
        yield running


def row(client: SyncClient, s: SyncSession, path: Path) -> Tracker:
    (found,) = [each for each in client.tracker_list(session=s.id).trackers if each.path == str(path)]
    return found


def followed(client: SyncClient, s: SyncSession, *paths: Path) -> None:
    """Wait until the files are followed."""
    block_until(lambda: all(row(client, s, path).state != "orphaned" for path in paths))


def notices(s: SyncSession, count: int) -> tuple[Notice, ...]:
    """All notices to a session, once there are so many."""
    block_until(lambda: len(s.notices().notices) >= count)
    return s.notices().notices


def replaced(file: Path, text: str) -> None:
    """Put ``text`` at ``file`` in one step, as editors do: a file that is written in place is empty for a moment."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    os.replace(new, file)


@pytest.mark.requirement("TRK-1")
def test_every_change_of_a_file_makes_a_version_and_a_notice_without_a_call(
    client: SyncClient, start: Start, tree: Path
) -> None:
    file = tree / "a.py"
    file.write_text("1\n")
    inside = start(mounts=[Mount(agent_prefix="/w", canonical_prefix=str(tree))], workdir="/w")
    beside = start()
    id = inside.read("a.py").object
    assert beside.read("a.py").object == id
    followed(client, inside, file)
    followed(client, beside, file)
    replaced(file, "2, by an editor\n")
    (notice,) = notices(inside, 1)
    version = client.object_get(id).object
    assert version.payload["content"] == "2, by an editor\n"
    assert (notice.seq, notice.object, notice.path, notice.change) == (version.tx, id, "/w/a.py", "updated")
    assert (notice.by_session, notice.content_hash) == (None, version.content_hash)
    assert [each.seq for each in notices(beside, 1)] == [version.tx]
    replaced(file, "3, renamed over it\n")
    assert [each.change for each in notices(inside, 2)] == ["updated", "updated"]
    assert client.object_get(id).object.payload["content"] == "3, renamed over it\n"
    file.unlink()
    assert [each.change for each in notices(inside, 3)][-1] == "deleted"
    replaced(file, "4, back again\n")
    assert [each.change for each in notices(inside, 4)][-1] == "updated"
    assert [each.seq for each in notices(beside, 4)] == [each.seq for each in inside.notices().notices]


@pytest.mark.requirement("TRK-1")
def test_following_changes_no_set_and_merely_named_files_are_not_followed(
    client: SyncClient, start: Start, tree: Path
) -> None:
    for name in ("read", "named"):
        (tree / name).write_text("1\n")
    s = start()
    read = s.read("read").object
    s.discover(["named"])
    s.deactivate(read)
    before = s.view().session
    followed(client, s, tree / "read")
    (tree / "named").write_text("2\n")
    replaced(tree / "read", "2\n")
    notices(s, 1)
    after = s.view().session
    assert (after.session_index, after.metadata_pool, after.active_set) == (
        before.session_index,
        before.metadata_pool,
        before.active_set,
    )
    assert [each.path for each in client.tracker_list(session=s.id).trackers] == [str(tree / "read")]
    assert [each.object for each in s.notices().notices] == [read]


@pytest.mark.requirement("TRK-2")
def test_a_directory_takes_one_watch_however_many_files_and_sessions_it_is_for(
    client: SyncClient, start: Start, tree: Path
) -> None:
    before = client.tracker_list().watching
    files = [tree / f"d{directory}" / name for directory in range(5) for name in ("a", "b", "c")]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("1\n")
    readers = [start() for _ in range(4)]
    for s in readers:
        for file in files:
            s.read(str(file))
    for s in readers:
        followed(client, s, *files)
    after = client.tracker_list().watching
    assert after.watches - before.watches == after.directories - before.directories == 5
    assert after.files - before.files == 15
    assert row(client, readers[0], files[0]).sessions == 4
    for s in readers:
        s.close()
    block_until(lambda: client.tracker_list().watching.watches == before.watches)


@pytest.mark.requirement("TRK-5")
@pytest.mark.requirement("OPS-3")
def test_daemon_status_includes_the_watching_counters(client: SyncClient, start: Start, tree: Path) -> None:
    file = tree / "a.py"
    file.write_text("1\n")
    s = start()
    id = s.read("a.py").object
    followed(client, s, file)
    before = client.daemon_status().tracking
    assert (before.watcher, before.polled) == ("inotify" if sys.platform == "linux" else "native", 0)
    assert before.files >= before.directories >= before.watches > 0
    replaced(file, "2, by an editor\n")
    block_until(lambda: len(client.object_history(id).versions) == 2)
    block_until(lambda: client.daemon_status().tracking.versions == before.versions + 1)
    after = client.daemon_status().tracking
    assert after.events > before.events
    block_until(lambda: client.daemon_status().tracking == client.tracker_list().watching)


@pytest.mark.requirement("TRK-3")
def test_a_thousand_writes_of_one_file_are_few_versions_and_the_last_is_one(
    client: SyncClient, start: Start, tree: Path
) -> None:
    file = tree / "a.log"
    file.write_text("0\n")
    s = start()
    id = s.read("a.log").object
    followed(client, s, file)
    began = time.monotonic()
    for number in range(1_000):
        file.write_text(f"write {number}\n")
        time.sleep(max(0.0, began + number / 1_000 - time.monotonic()))
    block_until(lambda: client.object_get(id).object.payload["content"] == "write 999\n")
    assert 1 < len(client.object_history(id, limit=1_000).versions) <= 100


@pytest.mark.requirement("TRK-4", "TRK-5")
def test_a_removed_directory_orphans_its_files_and_resumes_them_on_return(
    client: SyncClient, start: Start, tree: Path
) -> None:
    place, away = tree / "project" / "src", tree / "away"
    place.mkdir(parents=True)
    file = place / "a.py"
    file.write_text("1\n")
    s = start()
    id = s.read(str(file)).object
    followed(client, s, file)
    attached = row(client, s, file)
    assert (attached.state, attached.reason) == ("attached", "")
    read_at = client.object_get(id).object.tx_time
    assert abs(attached.since - read_at) < 60_000, "since is a time in ms"
    os.rename(tree / "project", away)
    block_until(lambda: row(client, s, file).state == "orphaned")
    found = row(client, s, file)
    assert (found.by, found.object, found.sessions) == (None, id, 1)
    assert found.since > attached.since, "since when it is in this state"
    assert found.reason
    assert client.object_get(id).object.payload["content"] == "1\n", "what cannot be reached is not deleted"
    (away / "src" / "a.py").write_text("2, while it was away\n")
    os.rename(away, tree / "project")
    block_until(lambda: client.object_get(id).object.payload["content"] == "2, while it was away\n")
    block_until(lambda: row(client, s, file).state == "resumed")
    shutil.rmtree(tree / "project")
    block_until(lambda: row(client, s, file).state == "orphaned")
    place.mkdir(parents=True)
    file.write_text("3, another tree\n")
    block_until(lambda: client.object_get(id).object.payload["content"] == "3, another tree\n")
    file.write_text("4\n")
    block_until(lambda: client.object_get(id).object.payload["content"] == "4\n")


@pytest.mark.requirement("TRK-5")
def test_followed_files_are_listed_by_path_in_pages_by_state_and_by_session(
    client: SyncClient, start: Start, tree: Path
) -> None:
    files = [tree / name for name in ("a", "b", "c", "d")]
    for file in files:
        file.write_text("1\n")
    s, other = start(), start()
    for file in files[:3]:
        s.read(str(file))
    other.read(str(files[3]))
    followed(client, s, *files[:3])
    followed(client, other, files[3])
    files[1].unlink()
    block_until(lambda: row(client, s, files[1]).reason == "the file is deleted")
    paths: list[str] = []
    cursor = None
    while True:
        page = client.tracker_list(limit=2, cursor=cursor)
        paths += [each.path for each in page.trackers]
        cursor = page.next_cursor
        if cursor is None:
            break
    assert paths == sorted(paths)
    assert [path for path in paths if path.startswith(str(tree))] == [str(file) for file in files]
    assert [each.path for each in client.tracker_list(session=s.id, state="orphaned").trackers] == [str(files[1])]
    assert [each.path for each in client.tracker_list(session=s.id, state="attached").trackers] == [
        str(files[0]),
        str(files[2]),
    ]
    assert [each.path for each in client.tracker_list(session=other.id).trackers] == [str(files[3])]


@pytest.mark.requirement("TRK-6")
def test_files_are_followed_while_their_session_is_in_use_and_after_a_restart_from_its_next_use_on(
    tmp_path: Path, tree: Path
) -> None:
    file = tree / "a.py"
    file.write_text("1\n")
    with Running(tmp_path, keep_state=True, watcher="auto") as daemon, connect_sync(daemon.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree))
        id = s.read("a.py").object
        followed(client, s, file)
        s.pause()
        block_until(lambda: client.tracker_list().watching.watches == 0)
        assert (row(client, s, file).state, row(client, s, file).reason) == ("orphaned", "the session is paused")
        s.resume()
        followed(client, s, file)
        assert row(client, s, file).state == "resumed"
        daemon.kill()
        file.write_text("2, while the daemon was down\n")
        daemon.start()
        assert client.tracker_list().watching.files == 0, "nobody has asked for the session yet"
        s.view()
        block_until(lambda: client.object_get(id).object.payload["content"] == "2, while the daemon was down\n")
        block_until(lambda: row(client, s, file).state == "resumed")
        replaced(file, "3\n")
        block_until(lambda: client.object_get(id).object.payload["content"] == "3\n")
        assert [notice.change for notice in s.notices().notices] == ["updated", "updated"]
        s.close()
        block_until(lambda: client.tracker_list().watching.files == 0)


@pytest.mark.requirement("TRK-7")
def test_sandbox_only_files_and_files_behind_outward_links_are_not_watched(
    client: SyncClient, start: Start, tree: Path
) -> None:
    mounted, outside = tree / "mounted", tree / "outside"
    mounted.mkdir()
    outside.mkdir()
    (mounted / "own").write_text("1\n")
    (outside / "secret").write_text("1\n")
    os.symlink(outside, mounted / "door")
    before = client.tracker_list().watching.watches
    s = start(filesystem_id="b" * 64, workdir="/w", mounts=[Mount(agent_prefix="/w", canonical_prefix=str(mounted))])
    s.read("own")
    s.read("/etc/inside", content="its own\n")
    s.read("door/secret", content="as the sandbox says\n")
    followed(client, s, mounted / "own")
    rows = {each.path: each for each in client.tracker_list(session=s.id).trackers}
    block_until(lambda: "symlink" in row(client, s, mounted / "door" / "secret").reason)
    assert rows["/etc/inside"].state == "orphaned"
    assert rows["/etc/inside"].reason == "only its own agent can look at it"
    assert row(client, s, mounted / "door" / "secret").state == "orphaned"
    assert client.tracker_list().watching.watches - before == 1
