"""Files that change without a word: of the kernel, and of programs that make up a file system."""

import os
import sys
from pathlib import Path

import pytest

from ctxd.clock import SystemClock
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.watch_modes import Filesystems
from tests.suites.watcher import running
from tests.unit.trackers.following import following, make_file_trackers
from tests.unit.trackers.following import running as tracking

pytestmark = pytest.mark.anyio
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

NAME = "/proc/self/comm"
MOUNTINFO = """\
1 0 254:0 / / rw - ext4 /dev/vda rw
2 1 0:60 / /a rw - fuse server rw
3 1 0:61 / /b rw - fuse.unheard-of server rw
4 1 0:62 / /c rw - fuse.gocryptfs server rw
5 1 0:63 / /d rw - cgroup2 cgroup2 rw
6 1 0:64 / /e rw - tracefs tracefs rw
"""


@pytest.mark.requirement("TRK-10")
def test_silent_filesystems_are_distinguished_from_reporting_ones(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    filesystems = Filesystems(Lookups(SystemClock(), mountinfo=str(table)))
    causes = {number: filesystems.refused(os.makedev(0, number)) for number in range(60, 65)}
    assert {number: refused and refused.cause for number, refused in causes.items()} == {
        60: "remote", 61: "remote", 62: None, 63: "remote", 64: "side_effects"
    }  # fmt: skip
    assert filesystems.refused(os.makedev(254, 0)) is None
    silent = [number for number in range(60, 65) if filesystems.silent(os.makedev(0, number))]
    assert silent == [63]


@on_linux
@pytest.mark.requirement("TRK-10")
async def test_a_kernel_file_is_polled_with_a_reason_even_through_a_symlink(tmp_path: Path) -> None:
    directory = os.path.realpath("/proc/self")
    link = tmp_path.resolve() / "link"
    link.symlink_to(f"{directory}/comm")
    before = Path(NAME).read_text()
    paths = {"direct": f"{directory}/comm", "link": str(link)}
    trackers = make_file_trackers()
    try:
        async with tracking(trackers, paths) as handed:
            await following(trackers, handed)
            files = trackers.tracked.files
            assert {files[key].state for key in files} == {"attached"}
            assert trackers.tracked.directories[directory].mode == "polled"
            assert files["direct"].reason == "changes that the system makes on proc are not reported"
            # The kernel's own name for this thread: it tells no watcher, and the file keeps its times.
            Path(NAME).write_text("renamed")
            await handed.last("direct", "renamed\n")
            await handed.last("link", "renamed\n")
    finally:
        Path(NAME).write_text(before.strip())


@on_linux
@pytest.mark.requirement("TRK-10")
async def test_a_file_with_constant_times_is_reported_only_when_its_content_changes() -> None:
    directory, before = os.path.realpath("/proc/self"), Path(NAME).read_text()
    watcher = PollingWatcher(
        SystemClock(), lambda directory: ["comm", "version_of_nothing"], Lookups(SystemClock()), interval_s=0.02
    )
    try:
        async with running(watcher) as told:
            assert await watcher.watch([directory]) == [None]
            Path(NAME).write_text("renamed")
            await told.of(f"{directory}/comm")
            assert len(told.events) == 1
    finally:
        Path(NAME).write_text(before.strip())
