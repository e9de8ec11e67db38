"""The host's files: the suite, and what only a real kernel does."""

import errno
import os
import shutil
import socket
import stat
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.sources.host_files import RACY_NS, HostFiles, Regular
from ctxd.sources.source_interface import Missing, OverLimit, Present, Reading, Special, Unreadable
from ctxd_protocol.object_types import FilesystemSource
from tests.fakes.source import at
from tests.suites.source import FilesSuite

NOBODY = 65534


class SetClock:
    """Wall time as the test sets it."""

    def __init__(self) -> None:
        self.now_ms = 0

    def wall_ms(self) -> int:
        return self.now_ms

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError("a source does not sleep")


class RealTree:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = SetClock()
        self.source: HostFiles = HostFiles(self.clock)

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def write(self, name: str, raw: bytes) -> None:
        place = self.root / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(raw)

    def write_sparse(self, name: str, size_bytes: int) -> None:
        with open(self.root / name, "wb") as file:
            file.truncate(size_bytes)

    def bound(self, name: str) -> FilesystemSource:
        return at(self.path(name))

    def mkdir(self, name: str) -> None:
        (self.root / name).mkdir()

    def fifo(self, name: str) -> None:
        os.mkfifo(self.root / name)

    def symlink(self, name: str, target: str) -> None:
        os.symlink(target, self.root / name)

    def remove(self, name: str) -> None:
        place = self.root / name
        if place.is_dir():
            shutil.rmtree(place)
        else:
            place.unlink()

    async def read(self, name: str) -> Reading:
        with anyio.fail_after(30):
            return await self.source.read(self.bound(name))


@pytest.fixture
def tree(tmp_path: Path) -> RealTree:
    return RealTree(tmp_path)


class TestHostFiles(FilesSuite):
    """The suite, over a directory of this host."""


@pytest.fixture
def open_tree() -> Iterator[RealTree]:
    """A tree that other users may enter."""
    root = Path(tempfile.mkdtemp())
    root.chmod(0o755)
    yield RealTree(root)
    shutil.rmtree(root)


@pytest.mark.anyio
@pytest.mark.requirement("FS-7")
async def test_a_file_that_the_daemon_may_not_read_is_unreadable(open_tree: RealTree) -> None:
    open_tree.write("secret", b"x")
    open_tree.write("locked/a", b"x")
    os.chmod(open_tree.path("secret"), 0)
    os.chmod(open_tree.path("locked"), 0)
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        assert await open_tree.read("secret") == Unreadable(errno.EACCES)
        assert await open_tree.read("locked/a") == Unreadable(errno.EACCES)
        assert await open_tree.read("locked/none") == Unreadable(errno.EACCES)
        assert await open_tree.source.look_many([open_tree.path("locked/a")]) == [Unreadable(errno.EACCES)]
    finally:
        if root:
            os.seteuid(0)
        os.chmod(open_tree.path("locked"), 0o700)


@pytest.mark.anyio
@pytest.mark.requirement("FS-7")
async def test_devices_and_sockets_are_special(tree: RealTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree.root)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        assert await tree.read("socket") == Special("socket")
    assert await tree.source.read(at("/dev/zero")) == Special("character_device")
    assert await tree.source.read(at("/dev/tty")) == Special("character_device")


@pytest.mark.anyio
async def test_a_block_device_is_special(tree: RealTree) -> None:
    try:
        os.mknod(tree.path("disk"), stat.S_IFBLK | 0o600, os.makedev(7, 200))
    except PermissionError:
        pytest.skip("only root may make a device node")
    assert await tree.read("disk") == Special("block_device")


@pytest.mark.anyio
@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("name", [b"caf\xe9.txt", b"two\nlines", b" ", b"x" * 255])
async def test_any_name_that_a_file_can_have_is_read(tree: RealTree, name: bytes) -> None:
    path = os.fsencode(tree.root) + b"/" + name
    with open(path, "wb") as file:
        file.write(b"text")
    reading = await tree.source.read(at(path))
    assert isinstance(reading, Present)
    assert reading.text == "text"


@pytest.mark.anyio
async def test_a_file_of_proc_is_read_though_its_size_is_zero(tree: RealTree) -> None:
    reading = await tree.source.read(at(f"/proc/{os.getppid()}/status"))
    assert isinstance(reading, Present)
    assert reading.text is not None
    assert reading.text.startswith("Name:")


@pytest.mark.anyio
async def test_a_file_reporting_too_small_a_size_is_still_bounded(tree: RealTree) -> None:
    small = HostFiles(tree.clock, bytes_max=100)
    assert isinstance(await small.read(at(f"/proc/{os.getppid()}/status")), OverLimit)


@pytest.mark.anyio
async def test_a_directory_swapped_for_a_symlink_is_not_followed(tree: RealTree) -> None:
    tree.write("outside/a", b"secret")
    tree.write("box/dir/a", b"own")
    tree.source.confinement.confine(tree.path("box"))
    assert isinstance(await tree.read("box/dir/a"), Present)
    os.rename(tree.path("box/dir"), tree.path("box/old"))
    os.symlink("../outside", tree.path("box/dir"))
    assert await tree.read("box/dir/a") == Unreadable(errno.EXDEV)


@pytest.mark.anyio
async def test_a_confined_directory_may_itself_be_reached_by_a_symlink(tree: RealTree) -> None:
    tree.write("real/a", b"own")
    os.symlink("real", tree.path("alias"))
    tree.source.confinement.confine(tree.path("alias"))
    reading = await tree.read("alias/a")
    assert isinstance(reading, Present)


@pytest.mark.anyio
async def test_symlinks_are_followed(tree: RealTree) -> None:
    tree.write("a", b"text")
    os.symlink("a", tree.path("link"))
    reading = await tree.read("link")
    assert isinstance(reading, Present)
    assert await tree.source.fingerprint([tree.bound("link")]) == [reading.stamp.fingerprint]


@pytest.mark.anyio
@pytest.mark.requirement("IDX-7")
async def test_a_dangling_symlink_is_not_a_deletion(tree: RealTree) -> None:
    os.symlink("nowhere", tree.path("dangling"))
    assert await tree.read("dangling") == Missing(False)


@pytest.mark.anyio
@pytest.mark.requirement("FS-7")
async def test_a_symlink_loop_is_unreadable(tree: RealTree) -> None:
    os.symlink("two", tree.path("one"))
    os.symlink("one", tree.path("two"))
    assert await tree.read("one") == Unreadable(errno.ELOOP)
    assert await tree.read("one/below") == Unreadable(errno.ELOOP)


@pytest.mark.anyio
async def test_the_same_size_and_mtime_with_other_content_has_another_signature(tree: RealTree) -> None:
    tree.write("a", b"text")
    os.utime(tree.path("a"), ns=(1, 1))
    before = await tree.source.fingerprint([tree.bound("a")])
    # The kernel's file times advance in ticks: write until the new change has one of its own.
    while os.stat(tree.path("a")).st_ctime_ns == ctime_in(before[0]):
        tree.write("a", b"next")
        os.utime(tree.path("a"), ns=(1, 1))
    assert await tree.source.fingerprint([tree.bound("a")]) != before


def ctime_in(signature: bytes | None) -> int:
    assert signature is not None
    return int.from_bytes(signature[32:], "little")


@pytest.mark.anyio
async def test_a_stamp_is_settled_only_two_seconds_after_the_change(tree: RealTree) -> None:
    tree.write("a", b"text")
    os.utime(tree.path("a"), ns=(1, 1))
    changed_ns = os.stat(tree.path("a")).st_ctime_ns
    settled = []
    for now_ns in (changed_ns, changed_ns + RACY_NS - 1_000_000, changed_ns + RACY_NS + 1_000_000):
        tree.clock.now_ms = now_ns // 1_000_000
        reading = await tree.read("a")
        assert isinstance(reading, Present)
        settled.append(reading.stamp.settled)
    assert settled == [False, False, True]


@pytest.mark.anyio
async def test_a_file_with_a_time_in_the_future_never_settles(tree: RealTree) -> None:
    tree.write("a", b"text")
    tree.clock.now_ms = os.stat(tree.path("a")).st_ctime_ns // 1_000_000 + 60_000
    os.utime(tree.path("a"), ns=(0, tree.clock.now_ms * 1_000_000 + 3_600_000_000_000))
    reading = await tree.read("a")
    assert isinstance(reading, Present)
    assert not reading.stamp.settled


def grow_during_reading(monkeypatch: pytest.MonkeyPatch, path: str, times: int) -> None:
    """Have another program append to ``path`` in the middle of the next ``times`` readings."""
    left = [times]
    read = os.read

    def interrupted(file: int, size: int) -> bytes:
        raw = read(file, size)
        if left[0] and raw:
            left[0] -= 1
            with open(path, "ab") as writer:
                writer.write(b"+")
        return raw

    monkeypatch.setattr(os, "read", interrupted)


@pytest.mark.anyio
async def test_a_file_that_changes_while_it_is_read_is_read_again(
    tree: RealTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("a", b"text")
    grow_during_reading(monkeypatch, tree.path("a"), 3)
    reading = await tree.read("a")
    assert isinstance(reading, Present)
    assert reading.raw == b"text+++"


@pytest.mark.anyio
async def test_a_constantly_changing_file_is_reported_as_busy(tree: RealTree, monkeypatch: pytest.MonkeyPatch) -> None:
    tree.write("a", b"text")
    grow_during_reading(monkeypatch, tree.path("a"), 1000)
    assert await tree.read("a") == Unreadable(errno.EAGAIN)


@pytest.mark.anyio
async def test_a_cancelled_reader_does_not_wait_for_a_mount_that_hangs(tree: RealTree) -> None:
    release = threading.Event()
    entered = anyio.Event()
    token = anyio.lowlevel.current_token()

    class Stuck(SetClock):
        def wall_ms(self) -> int:
            anyio.from_thread.run_sync(entered.set, token=token)
            release.wait(5)
            return 0

    tree.write("a", b"text")
    source = HostFiles(Stuck())
    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(source.read, tree.bound("a"))
                await entered.wait()
                tasks.cancel_scope.cancel()
        assert not release.is_set()
    finally:
        release.set()


@pytest.mark.anyio
@pytest.mark.requirement("FS-9")
async def test_a_directory_on_a_hanging_mount_does_not_affect_its_neighbours(
    tree: RealTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree.write("near/a", b"text")
    release, stat_of = threading.Event(), os.stat

    def hanging(path: Any, **how: Any) -> os.stat_result:
        if str(path).startswith(tree.path("far")):
            release.wait(30)
        return stat_of(path, **how)

    mounts = tree.root / "mountinfo"
    mounts.write_text("1 0 8:1 / / rw - ext4 x rw\n")
    clock = SystemClock()
    source = HostFiles(clock, lookups=Lookups(clock, 2, hangs_s=0.3, mountinfo=str(mounts)))
    tree.mkdir("far")
    monkeypatch.setattr("ctxd.sources.host_files.os.stat", hanging)
    try:
        assert await source.devices_of([tree.path("far/a")]) == [None]
        assert await source.devices_of([tree.path("far/b"), tree.path("near/a")]) == [None, stat_of(tree.root).st_dev]
        assert isinstance(await source.read(tree.bound("near/a")), Present)
    finally:
        release.set()


@pytest.mark.anyio
@pytest.mark.requirement("EPO-22")
async def test_a_listing_has_the_first_names_of_a_directory_and_follows_no_link_out(tmp_path: Path) -> None:
    files = HostFiles(SetClock())
    (tmp_path / "in").mkdir()
    for name in ("b", "a", "c"):
        (tmp_path / "in" / name).touch()
    (tmp_path / os.fsdecode(b"in/\xff")).touch()
    (tmp_path / "box").mkdir()
    (tmp_path / "box/link").symlink_to(tmp_path / "in")
    paths = [str(tmp_path / name) for name in ("in", "in/a", "none", "box/link")]
    found = await files.list_many(paths, 2)
    assert found[0] == found[3] == ("a", "b")
    assert isinstance(found[1], Regular) and found[2] == Missing(True, os.stat(tmp_path).st_dev)
    assert await files.list_many(paths[:1], 9) == [("a", "b", "c")]
    files.confinement.confine(str(tmp_path / "box"))
    assert await files.list_many(paths[3:], 9) == [Unreadable(errno.EXDEV)]
