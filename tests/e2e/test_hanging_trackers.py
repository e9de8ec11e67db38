"""A file system that does not respond keeps no tracker of another one, and its own are attached once it does."""

import os
from pathlib import Path

import anyio
import pytest

from ctxd_client import Client, connect
from ctxd_protocol.session_types import Mount
from ctxd_protocol.tracker_types import Tracker
from tests.crash.daemon import daemon_process
from tests.e2e.hanging import hanging
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(170)]

READS_S = 2.0
"""Seconds after which nothing is read any more of files that were attached."""
ENDS_S_MAX = 30.0
"""Seconds that a daemon may take to end on a busy machine; one that waits for what hangs never ends."""

WAIT_S_MAX = 60.0
"""Seconds until a file system that does not respond is reported, or is followed again."""


async def trackers_of(client: Client) -> dict[str, Tracker]:
    return {os.path.basename(tracker.path): tracker for tracker in (await client.tracker_list()).trackers}


@pytest.mark.slow
@pytest.mark.requirement("TRK-9")
async def test_a_hanging_mount_is_logged_and_its_files_recover(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    for name in ("near", "far"):
        (root / name).mkdir()
    for name in ("near/n", "far/f", "far/target"):
        (root / name).write_text("1")
    (root / "near" / "link").symlink_to("../far/target")
    with daemon_process(root) as daemon:
        await daemon.start()
        async with connect(daemon.socket, deadline_s=60) as client:
            mounts = (Mount(agent_prefix="/w", canonical_prefix=str(root)),)
            await client.session_create("a", session="s", filesystem_id="b" * 64, mounts=mounts)
            for name in ("near/n", "near/link", "far/f"):
                await client.file_index("s", f"/w/{name}")

            async def all_attached() -> bool:
                found = await trackers_of(client)
                return len(found) == 3 and all(each.state != "orphaned" for each in found.values())

            async def far_is_told() -> bool:
                found = await trackers_of(client)
                return {found[name].reason for name in ("f", "target")} == {"its file system does not respond"}

            await until(all_attached, WAIT_S_MAX)
            # What is read while the mount goes away is the source's to give up, not the trackers'.
            await anyio.sleep(READS_S)
            with hanging(root / "far"):
                await until(far_is_told, WAIT_S_MAX)
                assert {found.state for found in (await trackers_of(client)).values()} == {"attached", "orphaned"}
                for number in range(3):
                    before = (await client.tracker_list()).watching.versions
                    (root / "near" / "n").write_text(f"changed {number}")

                    async def stored(before: int = before) -> bool:
                        return (await client.tracker_list()).watching.versions > before

                    await until(stored, WAIT_S_MAX)
            await until(all_attached, WAIT_S_MAX)
            stored_before = (await client.tracker_list()).watching.versions
            (root / "far" / "f").write_text("after it came back")

            async def f_is_stored() -> bool:
                return (await client.tracker_list()).watching.versions > stored_before

            await until(f_is_stored, WAIT_S_MAX)
            with hanging(root / "far"):
                await until(far_is_told, WAIT_S_MAX)
                with anyio.fail_after(ENDS_S_MAX):
                    assert await daemon.stop() == 0, daemon.said()
        said = daemon.said()
    assert said.count("tracker.hung") == 2, said
    assert said.count("tracker.recovered") == 1, said
