"""How many files are followed on disk for a sandbox: as many as its quota says, for all its sessions together."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.sandboxes import Quota
from ctxd_protocol.sessions import Mount
from tests.client.running import Running

WAIT_S_MAX = 30.0


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A daemon that follows files."""
    with Running(tmp_path_factory.mktemp("ctxd"), watcher="auto") as running:
        yield running


def followed(client: SyncClient, session: str, count: int) -> set[str]:
    """The files of ``session`` that are followed, once there are at least ``count``."""
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        found = {each.path for each in client.tracker_list(session=session).trackers if each.state != "orphaned"}
        if len(found) >= count:
            return found
        assert time.monotonic() < deadline, found
        time.sleep(0.02)


@pytest.mark.requirement("BOX-5")
def test_a_sandbox_has_no_more_files_followed_than_its_quota_says_and_none_is_shown_stale(
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
