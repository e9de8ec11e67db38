"""Which files are followed on disk for a sandbox: as many as its quota says, and none where a path leads it out."""

import contextlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctxd_client import CallFailed, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.sandbox_types import Quota, SandboxView
from ctxd_protocol.session_types import Mount
from ctxd_protocol.tracker_types import Tracker
from tests.client.running import Running
from tests.suites.sandboxed_paths import OWN, VECTORS, make_tree, placed
from tests.waiting import block_until


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    """A daemon of the test's own that follows files, as daemons do by default."""
    with Running(tmp_path, watcher="auto") as running:
        yield running


def followed(client: SyncClient, session: str, count: int) -> set[str]:
    """The files of ``session`` that are followed, once there are at least ``count``."""

    def look() -> set[str]:
        found = {each.path for each in client.tracker_list(session=session).trackers if each.state != "orphaned"}
        return found if len(found) >= count else set()

    return block_until(look)


@pytest.mark.requirement("BOX-5")
def test_a_sandbox_follows_files_up_to_its_quota_and_never_shows_stale_content(
    client: SyncClient, start: Callable[..., SyncSession], tree: Path
) -> None:
    names = ["a.py", "b.py", "c.py"]
    for name in names:
        (tree / name).write_text(f"{name} before\n")
    mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(tree)),)
    one, two = (start(filesystem_id="b" * 64, mounts=mounts, workdir="/workspace").id for _ in range(2))
    box = client.sandbox_register([one, two], quota=Quota(tracked_files=2), ttl_s=600).sandbox
    with connect_sync(box.socket) as agent:
        agent.file_index(one, "a.py")
        assert len(followed(client, one, 1)) == 1
        agent.file_index(two, "b.py")
        assert len(followed(client, two, 1)) == 1
        agent.file_index(two, "c.py")
        neighbour = start()
        for name in names:
            neighbour.read(name)
        assert len(followed(client, neighbour.id, 3)) == 3, "a neighbour has all of its own"
        assert len(followed(client, one, 1)) == 1
        assert len(followed(client, two, 1)) == 1, "there was no room for a third"
        (tree / "c.py").write_text("c.py after\n")
        assert "c.py after" in agent.context_assemble(two).text
    client.sandbox_release(box.sandbox)


def watched(pid: int) -> set[int]:
    """The inodes of the directories that a process watches, as reported by the kernel."""
    told = ""
    for each in os.scandir(f"/proc/{pid}/fdinfo"):
        with contextlib.suppress(FileNotFoundError):
            told += Path(each.path).read_text()
    return {int(inode, 16) for inode in re.findall(r"^inotify wd:\w+ ino:(\w+)", told, re.MULTILINE)}


@pytest.mark.requirement("BOX-7", "TRK-7")
@pytest.mark.skipif(sys.platform != "linux", reason="inotify is Linux's")
def test_no_path_has_the_daemon_watch_a_directory_that_the_sandbox_has_not_mounted(
    client: SyncClient, boxed: Callable[..., SandboxView], start: Callable[..., SyncSession], tmp_path: Path
) -> None:
    root = tmp_path.resolve() / "host"
    own = start(filesystem_id=OWN, mounts=make_tree(root), workdir="/workspace")
    box = boxed(own)
    pid = client.daemon_status().pid
    before = watched(pid)
    said = 0
    with connect_sync(box.socket) as agent:
        for vector in VECTORS:
            path = placed(vector["path"], root)
            with contextlib.suppress(CallFailed):
                agent.file_index(own.id, path)
            with contextlib.suppress(CallFailed):
                # What its harness says that a file holds is to be followed though the daemon did not read it.
                client.file_index(own.id, path, content="said\n")
                said += 1
        (root / "project/last").write_text("1\n")
        agent.file_index(own.id, "last")
    block_until(lambda: any(each.path.endswith("/last") and each.state == "attached" for each in rows(client, own.id)))
    mounted = [root / name for name in ("project", "data", "other")]
    inside = {place.stat().st_ino for top in mounted for place in (top, *top.rglob("*")) if place.is_dir()}
    now = watched(pid) - before
    assert said >= 40
    assert root.joinpath("project/dir").stat().st_ino in now, (
        "what leads nowhere else is watched",
        rows(client, own.id),
    )
    assert now <= inside


def rows(client: SyncClient, session: str) -> tuple[Tracker, ...]:
    return client.tracker_list(session=session, limit=1000).trackers
