"""The trackers over a watcher: what becomes of a followed file is handed on, to its end."""

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.trackers import tracker
from ctxd.trackers.tracker import Followed, WatchModes
from ctxd.trackers.watcher_interface import WatcherChoice
from tests.unit.trackers.following import followed, following, make_file_trackers, meddled, on_linux, running


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
async def test_every_change_of_a_followed_file_is_delivered(tmp_path: Path, choice: WatcherChoice) -> None:
    file, other = tmp_path / "a", tmp_path / "beside"
    file.write_text("1")
    trackers = make_file_trackers(choice=choice)
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        other.write_text("nobody's")
        file.write_text("22")
        await handed.last("a", "22")
        (tmp_path / "a.new").write_text("333")
        os.replace(tmp_path / "a.new", file)
        await handed.last("a", "333")
        file.unlink()
        await handed.last("a", None)
        assert (trackers.tracked.files["a"].state, trackers.tracked.files["a"].reason) == (
            "orphaned",
            "the file is deleted",
        )
        file.write_text("4444")
        await handed.last("a", "4444")
        await handed.until(lambda: trackers.tracked.files["a"].state == "resumed")


@pytest.mark.anyio
async def test_a_change_before_the_watch_exists_is_delivered_too(tmp_path: Path, choice: WatcherChoice) -> None:
    (tmp_path / "a").write_text("1")
    trackers = make_file_trackers(choice=choice)
    async with running(trackers, {"a": str(tmp_path / "a")}) as handed:
        trackers.lease("s", followed(handed.paths))
        (tmp_path / "a").write_text("2, at once")
        await handed.last("a", "2, at once")


@pytest.mark.anyio
async def test_only_files_possibly_changed_since_their_read_are_delivered_at_first(tmp_path: Path) -> None:
    for name in ("old", "new"):
        (tmp_path / name).write_text("1")
    long_after = SystemClock().wall_ms() + 60_000
    paths = {name: str(tmp_path / name) for name in ("old", "new", "none")}
    trackers = make_file_trackers()
    async with running(trackers, paths) as handed:
        read = {name: Followed(path, long_after) for name, path in paths.items()} | {"new": Followed(paths["new"], 1)}
        trackers.lease("s", read)
        await handed.last("new", "1")
        (tmp_path / "none").write_text("1")
        await handed.last("none", "1")
        assert handed.of("old") == []


@pytest.mark.anyio
async def test_one_file_is_attached_at_once_and_those_that_come_soon_after_are_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "GATHER_S", 600.0)
    attachings: list[WatchModes] = []
    give_up = WatchModes.give_up
    # Each attaching begins with it.
    monkeypatch.setattr(WatchModes, "give_up", lambda self: attachings.append(self) or give_up(self))
    paths = {f"{number}": str(tmp_path / f"{number}") for number in range(100)}
    for path in paths.values():
        Path(path).write_text("1")
    trackers = make_file_trackers(choice="polling")
    async with running(trackers, paths):
        trackers.lease("s", followed({"0": paths["0"]}))
        # It would not settle within the limit of a test if the first file waited for others.
        await trackers.wait_until_attached()
        attachings.clear()
        monkeypatch.setattr(tracker, "GATHER_S", 3.0)
        for key, path in paths.items():
            trackers.lease("s", followed({key: path}))
            await anyio.sleep(0.002)
        await trackers.wait_until_attached()
        assert 1 <= len(attachings) <= 3, "one, and others if all this took long"
        assert all(trackers.tracked.files[key].places for key in paths)


@pytest.mark.anyio
async def test_files_that_come_while_others_are_attached_are_gathered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracker, "GATHER_S", 600.0)
    paths = {f"{number}": str(tmp_path / f"{number}" / "file") for number in range(6)}
    for path in paths.values():
        Path(path).parent.mkdir()
        Path(path).write_text("1")
    trackers = make_file_trackers(choice="polling")
    left = dict(paths)
    watch = WatchModes.watch

    def lease_one() -> None:
        if left:
            key, path = left.popitem()
            trackers.lease("s", followed({key: path}))

    # A stream of files: the next one comes while the one before is attached.
    monkeypatch.setattr(WatchModes, "watch", lambda self, added: lease_one() or watch(self, added))
    async with running(trackers, paths):
        attached = trackers._settled
        lease_one()
        await attached.wait()
        assert len(trackers.tracked.files) == 2
        assert sum(bool(file.places) for file in trackers.tracked.files.values()) == 1


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-3")
@pytest.mark.parametrize(
    "editor",
    [
        "write",
        "append twice",
        "vim with a backup",
        "emacs with a lock",
        "sed -i",
        "git checkout",
        "truncate, then write",
    ],
)
async def test_an_editors_save_causes_at_most_one_look_before_the_last(tmp_path: Path, editor: str) -> None:
    file = tmp_path / "a"
    file.write_text("before")
    trackers = make_file_trackers(choice="inotify")
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        save(editor, file)
        await handed.last("a", "after")
        assert len(handed.of("a")) <= 2
        assert None not in handed.of("a"), "nobody looks while the name is away"


def save(editor: str, file: Path) -> None:
    """Have ``file`` hold "after", as the editor does it."""
    match editor:
        case "write":
            file.write_text("after")
        case "append twice":
            file.write_text("af")
            with file.open("a") as opened:
                opened.write("ter")
        case "vim with a backup":
            os.rename(file, f"{file}~")
            file.write_text("after")
            os.unlink(f"{file}~")
        case "emacs with a lock":
            os.symlink("me@host.1:1", file.parent / ".#a")
            os.rename(file, f"{file}~")
            file.write_text("after")
            os.unlink(file.parent / ".#a")
        case "sed -i":
            (file.parent / "sedXYZ").write_text("after")
            os.rename(file.parent / "sedXYZ", file)
        case "git checkout":
            file.unlink()
            file.write_text("after")
        case _:
            with file.open("r+") as opened:
                opened.truncate(0)
                opened.flush()
                opened.write("after")


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-1", "TRK-3")
async def test_each_file_of_a_git_checkout_is_delivered_about_once_with_its_final_content(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        settings = ["-c", "user.name=n", "-c", "user.email=n@example.org", "-c", "gc.auto=0"]
        env = os.environ | {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        subprocess.run(["git", *settings, *words], cwd=tmp_path, env=env, check=True, capture_output=True, timeout=60)

    files = {f"{place}/{name}": str(tmp_path / f"d{place}" / f"f{name}") for place in range(20) for name in range(20)}
    git("init", "-q", "-b", "main")
    for branch in ("main", "side"):
        if branch == "side":
            git("checkout", "-q", "-b", branch)
        for key, path in files.items():
            Path(path).parent.mkdir(exist_ok=True)
            if branch == "side" and key.endswith("/0"):
                Path(path).unlink()
            else:
                Path(path).write_text(f"{key} of {branch}")
        git("add", "-A")
        git("commit", "-q", "-m", branch)
    trackers = make_file_trackers(choice="inotify")
    async with running(trackers, files) as handed:
        await following(trackers, handed)
        for branch in ("main", "side"):
            handed.seen.clear()
            await anyio.to_thread.run_sync(git, "checkout", "-q", branch)
            for key in files:
                gone = branch == "side" and key.endswith("/0")
                await handed.last(key, None if gone else f"{key} of {branch}")
            assert len(handed.seen) <= 1.1 * len(files)


@pytest.mark.anyio
@pytest.mark.requirement("TRK-3")
async def test_a_thousand_writes_are_a_few_looks_and_one_at_the_last(tmp_path: Path, choice: WatcherChoice) -> None:
    file = tmp_path / "a"
    file.write_text("0")
    trackers = make_file_trackers(choice=choice)
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)

        def write_often() -> None:
            for number in range(1_000):
                file.write_text(f"write {number:04}")

        await anyio.to_thread.run_sync(write_often)
        await handed.last("a", "write 0999")
        assert len(handed.of("a")) <= 100


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-1")
async def test_writes_through_a_symlink_target_or_another_hard_link_are_delivered(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "d").mkdir()
    target, other = tmp_path / "far" / "target", tmp_path / "far" / "other"
    target.write_text("1")
    other.write_text("1")
    os.symlink(target, tmp_path / "d" / "link")
    os.link(other, tmp_path / "d" / "hard")
    trackers = make_file_trackers(choice="inotify")
    async with running(
        trackers, {"link": str(tmp_path / "d" / "link"), "hard": str(tmp_path / "d" / "hard")}
    ) as handed:
        await following(trackers, handed)
        target.write_text("22")
        await handed.last("link", "22")
        other.write_text("22")
        await handed.last("hard", "22")
        (tmp_path / "far" / "second").write_text("333")
        os.symlink(tmp_path / "far" / "second", tmp_path / "d" / "new")
        os.replace(tmp_path / "d" / "new", tmp_path / "d" / "link")
        await handed.last("link", "333")
        (tmp_path / "far" / "second").write_text("4444")
        await handed.last("link", "4444")


@pytest.mark.anyio
@on_linux
@pytest.mark.requirement("TRK-1")
async def test_sibling_hard_links_leased_together_are_each_followed(tmp_path: Path) -> None:
    (tmp_path / "far").mkdir()
    (tmp_path / "d").mkdir()
    for name in ("one", "two"):
        (tmp_path / "far" / name).write_text("1")
        os.link(tmp_path / "far" / name, tmp_path / "d" / name)
    (tmp_path / "d" / "plain").write_text("1")
    paths = {name: str(tmp_path / "d" / name) for name in ("plain", "one", "two")}
    trackers = make_file_trackers(choice="inotify")
    async with running(trackers, paths) as handed:
        trackers.lease("s", followed({"plain": paths["plain"]}))
        await trackers.wait_until_attached()
        await following(trackers, handed, session="t")
        for name in ("one", "two"):
            (tmp_path / "far" / name).write_text("22")
            await handed.last(name, "22")


@pytest.mark.anyio
async def test_a_change_whose_handler_failed_is_delivered_again(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    trackers = make_file_trackers()
    async with running(trackers, {"a": str(file)}) as handed:
        await following(trackers, handed)
        handed.refusing = 1
        file.write_text("2")
        await handed.last("a", "2")
        assert handed.refusing == 0


def read_long_ago(path: Path) -> Followed:
    """``path``, changed ten seconds ago and read five seconds later."""
    now_ms = SystemClock().wall_ms()
    os.utime(path, ns=((now_ms - 10_000) * 1_000_000,) * 2)
    return Followed(str(path), now_ms + 5_000)


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
@pytest.mark.parametrize("change", ["written", "deleted"])
async def test_a_change_between_the_look_at_a_file_and_its_watch_is_delivered(tmp_path: Path, change: str) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    read = read_long_ago(file)

    def meanwhile() -> None:
        if change == "deleted":
            file.unlink()
        else:
            file.write_text("2, in between")
            os.utime(file, ns=((read.read_at + 1) * 1_000_000,) * 2)

    async with running(trackers := meddled(tmp_path, meanwhile), {"a": str(file)}) as handed:
        trackers.lease("s", {"a": read})
        await handed.last("a", None if change == "deleted" else "2, in between")
