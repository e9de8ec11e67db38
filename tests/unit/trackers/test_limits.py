"""What the system refuses: a real limit of watches, and filesystems that change elsewhere."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ctxd.clock import SystemClock
from ctxd.sources import hang_safe_lookups
from ctxd.sources.confinement import Confinement
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.tracker import entry_of
from ctxd.trackers.watch_modes import Filesystems, refusal

MOUNTINFO = """\
22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw
30 22 0:44 / /mnt/far rw,relatime - nfs4 host:/export rw
31 22 0:45 / /mnt/odd\\040name rw master:2 - fuse.sshfs host: rw
32 22 0:46 / /mnt/near rw - fuse.fuse-overlayfs overlay rw
"""


def in_a_namespace(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["unshare", "-Ur", *command], capture_output=True, text=True)


@pytest.mark.requirement("TRK-4")
@pytest.mark.skipif(sys.platform != "linux" or shutil.which("unshare") is None, reason="needs user namespaces")
def test_beyond_the_kernel_s_limit_directories_are_looked_at_and_watched_once_there_is_room(tmp_path: Path) -> None:
    if in_a_namespace("true").returncode != 0:
        pytest.skip("this user may make no user namespace")
    ran = in_a_namespace(sys.executable, "-m", "tests.unit.trackers.short_of_watches", str(tmp_path))
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout)
    assert found["modes"] == ["polled"] * 5 + ["watched"] * 5
    assert found["watches"] == 5
    assert [what for what, _ in found["said"]] == ["tracker.polled"] * 5 + ["tracker.watched"] * 5
    assert "no watch left" in found["said"][0][1]


@pytest.mark.requirement("TRK-4")
def test_remote_filesystems_are_distinguished_from_local_ones(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    filesystems = Filesystems(Lookups(SystemClock(), mountinfo=str(table)))
    assert filesystems.remote(os.makedev(0, 44)) == "nfs4"
    assert filesystems.remote(os.makedev(0, 45)) == "fuse.sshfs"
    for near in (os.makedev(254, 0), os.makedev(0, 46), os.makedev(9, 9)):
        assert filesystems.remote(near) is None
    table.write_text(MOUNTINFO + "40 22 0:50 / /mnt/new rw - cifs //host/share rw\n")
    assert filesystems.remote(os.makedev(0, 50)) == "cifs", "a mount that came later is found"


@pytest.mark.requirement("TRK-4", "TRK-10")
def test_the_number_of_an_unmounted_device_is_looked_up_for_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hang_safe_lookups, "MOUNTS_KNOWN_S", 0.0)
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO + "40 22 0:50 / /mnt/new rw - tmpfs tmpfs rw\n")
    filesystems = Filesystems(Lookups(SystemClock(), mountinfo=str(table)))
    assert filesystems.remote(os.makedev(0, 50)) is None
    table.write_text(MOUNTINFO + "41 22 0:50 / /mnt/new rw - fuse.sshfs host:/ rw\n")
    assert filesystems.remote(os.makedev(0, 50)) == "fuse.sshfs"


@pytest.mark.requirement("TRK-4")
def test_an_unknown_filesystem_is_looked_up_again(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    filesystems = Filesystems(Lookups(SystemClock(), mountinfo=str(table)))
    assert filesystems.remote(os.makedev(0, 44)) is None
    table.write_text(MOUNTINFO)
    assert filesystems.remote(os.makedev(0, 44)) == "nfs4"


def test_an_entry_is_watched_at_its_own_place_and_at_its_targets(tmp_path: Path) -> None:
    for name in ("plain", "target", "many"):
        (tmp_path / name).write_text("1")
    os.symlink("target", tmp_path / "link")
    os.symlink("nowhere", tmp_path / "dangling")
    os.symlink("loop", tmp_path / "loop")
    os.link(tmp_path / "many", tmp_path / "names")
    place = str(tmp_path.resolve())
    assert entry_of(f"{place}/plain", Confinement()).places == ((place, "plain"),)
    assert entry_of(f"{place}/link", Confinement()).places == ((place, "link"), (place, "target"))
    away = Confinement()
    away.leads_out = lambda path, led_to: True
    assert entry_of(f"{place}/link", away).places == ((place, "link"),)
    for name in ("dangling", "loop", "none"):
        assert entry_of(f"{place}/{name}", Confinement()).places == ((place, name),)
    os.symlink("many", tmp_path / "link to many")
    linked = {"plain": False, "many": True, "names": True, "link": False, "link to many": True}
    assert {name: entry_of(f"{place}/{name}", Confinement()).linked for name in linked} == linked
    assert entry_of(f"{place}/none", Confinement()).changed_ms is None


def test_a_bind_mounted_file_counts_as_linked(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    (tmp_path / "a b").write_text("1")
    escaped = str(tmp_path).replace(" ", "\\040") + "/a\\040b"
    table.write_text(f"22 1 254:0 / / rw - ext4 /dev/vda rw\n40 22 254:0 /x {escaped} rw - ext4 /dev/vda rw\n")
    mounted = Lookups(SystemClock(), mountinfo=str(table)).mount_points
    assert mounted == {"/", str(tmp_path / "a b")}
    assert entry_of(str(tmp_path / "a b"), Confinement(), mounted=mounted).linked
    assert not entry_of(str(tmp_path / "a b"), Confinement()).linked
    os.symlink("a b", tmp_path / "link")
    assert entry_of(str(tmp_path.resolve() / "link"), Confinement(), mounted=mounted).linked
    assert Lookups(SystemClock(), mountinfo=str(tmp_path / "none")).mount_points == frozenset()


def test_each_watch_error_has_its_cause() -> None:
    causes = {2: "missing", 20: "missing", 28: "limit", 24: "limit", 13: "denied", 5: "unsupported"}
    for number, cause in causes.items():
        assert refusal(OSError(number, os.strerror(number))).cause == cause
    assert refusal(ValueError("embedded null byte")).cause == "unsupported"
