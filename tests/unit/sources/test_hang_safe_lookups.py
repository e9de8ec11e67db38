"""Looks that hang cost no other mount anything, on threads that the test holds and lets go."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from ctxd import worker_threads
from ctxd.clock import SystemClock
from ctxd.sources import hang_safe_lookups
from ctxd.sources.hang_safe_lookups import Lookups, PathTrace
from tests.waiting import until

pytestmark = pytest.mark.anyio

MOUNTS = "1 0 8:1 / / rw - ext4 x rw\n2 1 8:2 / /slow\\040disk rw - ext4 x rw\n3 1 8:3 / /far rw - nfs x rw\n"
HANGS_S = 1.0
LOOK_S = 60.0
"""Seconds after which a look that hangs would end by itself."""

COUNT = 2


class World:
    """Paths of which those below some directories are not answered until ``let_go``."""

    def __init__(self, folder: Path, hangs_s: float = HANGS_S) -> None:
        mounts = folder / "mountinfo"
        mounts.write_text(MOUNTS)
        self.lookups = Lookups(SystemClock(), COUNT, hangs_s=hangs_s, mountinfo=str(mounts))
        self.stuck: tuple[str, ...] = ("/far/", "/etc/odd")
        self.looked: list[str] = []
        self._back = threading.Event()

    def look(self, path: str) -> str:
        self.looked.append(path)
        if path.startswith(self.stuck):
            self._back.wait(LOOK_S)
        return path.upper()

    async def ask(self, *paths: str) -> list[str]:
        return await self.lookups.each(paths, self.look, lambda path: f"{path} hangs")

    def let_go(self) -> None:
        self.stuck = ()
        self._back.set()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path)
    yield made
    made.let_go()


@pytest.mark.requirement("FS-9")
async def test_a_hanging_lookup_is_abandoned_and_the_others_complete(world: World) -> None:
    began = time.monotonic()
    assert await world.ask("/a", "/far/b", "/c", "/far/d") == ["/A", "/far/b hangs", "/C", "/far/d hangs"]
    assert time.monotonic() - began >= HANGS_S
    assert world.looked.count("/a") == 1, "what was looked at is not looked at again"
    assert "/far/d" not in world.looked


@pytest.mark.requirement("FS-9")
async def test_lookups_do_not_wait_for_another_hanging_mount(tmp_path: Path) -> None:
    # Longer than a busy machine takes for what is looked at meanwhile.
    world, given_up = World(tmp_path, hangs_s=4.0), list[str]()

    async def ask(path: str) -> None:
        given_up.extend(await world.ask(path))

    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(ask, f"/far/{number}")
        await until(lambda: len(world.looked) == COUNT)
        assert await world.ask("/slow disk/a", "/b") == ["/SLOW DISK/A", "/B"]
        assert given_up == [], "answered while the others still wait"
    assert len(world.looked) <= 2 * COUNT + 2, "besides those that have a turn, as many as take long were let into it"


@pytest.mark.requirement("FS-9")
@pytest.mark.parametrize("path", ["/far", "/far/.", "/far/x"])
async def test_a_mount_point_and_paths_below_it_share_one_lookup_limit(world: World, path: str) -> None:
    world.stuck = ("/far",)
    async with anyio.create_task_group() as group:
        for _ in range(30):
            group.start_soon(world.ask, path)
        await until(lambda: len(world.looked) >= COUNT)
        await anyio.sleep(HANGS_S / 2)
        assert len(world.looked) <= 2 * COUNT
        assert await world.ask("/near") == ["/NEAR"]
        world.let_go()


@pytest.mark.requirement("FS-9")
async def test_a_hanging_mount_is_not_retried_until_it_recovers(world: World) -> None:
    await world.ask("/far/a")
    assert await world.ask("/far/b") == ["/far/b hangs"]
    assert world.looked == ["/far/a"]
    world.let_go()
    while await world.ask("/far/c") != ["/FAR/C"]:
        await anyio.sleep(0.001)


@pytest.mark.requirement("FS-9")
async def test_on_the_root_mount_only_siblings_of_a_hanging_path_count_as_hanging(world: World) -> None:
    assert await world.ask("/etc/odd/a") == ["/etc/odd/a hangs"]
    assert await world.ask("/etc/odd/b", "/etc/a", "/home/a") == ["/etc/odd/b hangs", "/ETC/A", "/HOME/A"]


@pytest.mark.requirement("FS-9")
async def test_a_hanging_entry_of_the_root_directory_affects_only_itself(world: World) -> None:
    world.stuck = ("/odd",)
    assert await world.ask("/odd") == ["/odd hangs"]
    assert await world.ask("/odd/a", "/home/a", "/far/a", "/a") == ["/odd/a hangs", "/HOME/A", "/FAR/A", "/A"]


class Linked:
    """Directories ``home`` and ``far`` of which the latter, a mount, is not answered until ``let_go``."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, home_is_mounted: bool) -> None:
        self.home, self.far = folder / "home", folder / "far"
        self.home.mkdir()
        self.far.mkdir()
        (self.home / "link").symlink_to("../far")
        mounts = folder / "mountinfo"
        home = f"2 1 8:2 / {self.home} rw - ext4 x rw\n" if home_is_mounted else ""
        mounts.write_text(f"1 0 8:1 / / rw - ext4 x rw\n{home}3 1 8:3 / {self.far} rw - nfs x rw\n")
        self.lookups = Lookups(SystemClock(), COUNT, hangs_s=0.5, mountinfo=str(mounts))
        self.looked: list[str] = []
        self._back = threading.Event()
        self._stat, self._readlink = os.stat, os.readlink
        monkeypatch.setattr("ctxd.sources.hang_safe_lookups.os.readlink", self._read_link)

    def _read_link(self, path: str) -> str:
        self._wait_if_far(path)
        return self._readlink(path)

    def _wait_if_far(self, path: str) -> None:
        if path.startswith(f"{self.far}/"):
            self._back.wait(30)

    def _look(self, path: str) -> bool:
        self.looked.append(path)
        # Not os.path.realpath, which asks for links itself.
        for name, far in ((f"{self.home}/link", f"{self.far}"), (f"{self.home}/file", f"{self.far}/file")):
            if path == name or path.startswith(f"{name}/"):
                path = far + path[len(name) :]
        self._wait_if_far(path)
        return True

    async def ask(self, *paths: str) -> list[bool]:
        """Whether each of ``paths``, of names below ``home``, was answered."""
        return await self.lookups.each([f"{self.home}/{path}" for path in paths], self._look, lambda path: False)

    def let_go(self) -> None:
        self._back.set()


@pytest.fixture(params=[False, True], ids=["on the root's mount", "on a mount of its own"])
def linked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Linked]:
    made = Linked(tmp_path.resolve(), monkeypatch, home_is_mounted=request.param)
    yield made
    made.let_go()


@pytest.mark.requirement("FS-9")
@pytest.mark.parametrize("form", ["link/d{}", "link/d{}/.", "link/d{}/file"])
async def test_a_hung_symlink_target_is_probed_once(linked: Linked, form: str) -> None:
    running = threading.active_count()
    siblings = [form.format(number) for number in range(10)]
    assert await linked.ask(*siblings, "beside", "near/file") == [False] * 10 + [True, True]
    assert len(linked.looked) == 3
    assert threading.active_count() - running < len(siblings), "not one thread for each that hangs"
    assert linked.lookups.hanging() == (f"{linked.home}/link",)


@pytest.mark.requirement("FS-9")
async def test_symlinks_into_a_hanging_mount_are_not_followed(linked: Linked) -> None:
    names = ["file", *(f"file{number}" for number in range(10))]
    for name in names:
        (linked.home / name).symlink_to(linked.far / "file")
    (linked.home / "near").symlink_to("beside")
    assert await linked.ask(*names, "near", "beside") == [False] * len(names) + [True, True]
    assert [os.path.basename(path) for path in linked.looked] == ["file", "near", "beside"]


@pytest.mark.requirement("FS-9")
async def test_lookups_behind_a_symlink_do_not_make_those_beside_it_fail(linked: Linked) -> None:
    async with anyio.create_task_group() as group:
        for number in range(20):
            group.start_soon(linked.ask, f"link/d{number}/file")
        await until(lambda: len(linked.looked) >= COUNT)
        await anyio.sleep(0.1)
        assert await linked.ask("near") == [True], "once those that wait behind the link are given up"
    assert len(linked.looked) <= 2 * COUNT + 1


async def test_path_walking_resolves_symlinks_and_stops_at_loops(tmp_path: Path) -> None:
    top = tmp_path.resolve()
    (top / "a/b").mkdir(parents=True)
    (top / "a/up").symlink_to("b/../../c//./")
    (top / "c").symlink_to(top / "a/b")
    (top / "round").symlink_to("round")
    mounts = {f"{top}/a", f"{top}/a/b"}
    for name, place in (("a/up/x", "a/up"), ("c/x", "c"), ("a/x", "a"), ("c/../x", "a"), ("round/x", "round")):
        way = PathTrace(f"{top}/{name}", mounts)
        assert not way.follow()
        assert way.place == (f"{top}/c/.." if name == "c/../x" else f"{top}/{place}")
    assert PathTrace(f"{top}/c/x", mounts).follow({f"{top}/a/b"})


@pytest.mark.requirement("FS-9")
async def test_many_lookups_waiting_for_one_mount_do_not_reread_mountinfo(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    text_of = hang_safe_lookups._text_of
    monkeypatch.setattr(hang_safe_lookups, "_text_of", lambda mountinfo: asked.append(mountinfo) or text_of(mountinfo))
    began = time.monotonic()
    async with anyio.create_task_group() as group:
        for number in range(100):
            group.start_soon(world.ask, f"/far/{number}")
    assert len(asked) <= (time.monotonic() - began) / hang_safe_lookups.MOUNTS_KNOWN_S + 1


@pytest.mark.requirement("FS-9")
async def test_a_cancelled_caller_leaves_no_thread_uncounted(world: World) -> None:
    for number in range(10):
        with anyio.move_on_after(0.005):
            await world.ask(f"/far/{number}")
    assert len(world.looked) <= 2 * COUNT
    assert await world.ask("/a") == ["/A"]


class Unusual(BaseException):
    """As what ends a program, or a library of another language, raises."""


@pytest.mark.parametrize("bug", [ZeroDivisionError, Unusual])
async def test_an_exception_of_a_slow_lookup_is_raised(world: World, bug: type[BaseException]) -> None:
    def fails(path: str) -> str:
        world.look(path)
        raise bug

    async with anyio.create_task_group() as group:

        async def asked() -> None:
            with pytest.raises(bug), anyio.fail_after(30):
                await world.lookups.each(["/far/a"], fails, str)

        group.start_soon(asked)
        await until(lambda: world.looked == ["/far/a"])
        await anyio.sleep(0.05)
        world.let_go()


@pytest.mark.requirement("FS-9")
async def test_a_lookup_without_a_thread_does_not_count_as_hanging(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    world.let_go()
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        patched.setattr(worker_threads, "_POOL", worker_threads.ThreadPool())
        with pytest.raises(worker_threads.NoThread, match="no thread can be started"):
            await world.ask("/far/a")
    await anyio.sleep(HANGS_S + 0.1)
    assert world.lookups.hanging() == ()
    assert await world.ask("/far/b") == ["/FAR/B"]


@pytest.mark.requirement("FS-9")
async def test_a_lookup_cancelled_before_its_thread_starts_blocks_no_other(world: World) -> None:
    world.let_go()
    for turns in (*range(8), *range(8)):
        async with anyio.create_task_group() as group:
            group.start_soon(world.ask, "/far/a")
            for _ in range(turns):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
    assert await world.ask("/far/b") == ["/FAR/B"]
