"""What every watcher promises. A subclass gives ``yard``: the watcher, and hands to change what it watches."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Protocol

import anyio
import pytest

from ctxd.trackers.watcher_interface import Changed, Event, Watcher, WatchLost

WAIT_S_MAX = 20.0


class Yard(Protocol):
    """Directories of files. Names are relative to it."""

    watcher: Watcher

    def path(self, name: str) -> str: ...
    def mkdir(self, name: str) -> None: ...
    def write(self, name: str) -> None: ...
    def append(self, name: str) -> None: ...
    def replace(self, name: str) -> None:
        """Write another file and rename it over this one."""

    def rename(self, old: str, new: str) -> None: ...
    def remove(self, name: str) -> None:
        """Remove a file, or a directory with all that is in it."""

    def link(self, name: str, target: str) -> None:
        """Make a symlink to a directory."""


class Told:
    """What a watcher has told so far."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self._more = anyio.Event()

    def deliver(self, events: Sequence[Event]) -> None:
        self.events.extend(events)
        self._more.set()
        self._more = anyio.Event()

    def has(self, directory: str, name: str) -> bool:
        return any(isinstance(e, Changed) and (e.directory, e.name) == (directory, name) for e in self.events)

    async def of(self, path: str, *, gone: bool = False) -> None:
        """Return once the entry at ``path`` was told of; ``gone``: as gone."""
        directory, _, name = path.rpartition("/")
        with anyio.fail_after(WAIT_S_MAX):
            while not any(
                isinstance(e, Changed) and (e.directory, e.name) == (directory, name) and (not gone or e.hint == "gone")
                for e in self.events
            ):
                await self._more.wait()

    async def loss_of(self, watcher: Watcher, directory: str) -> None:
        """Return once it is known that ``directory`` is watched no more."""
        with anyio.fail_after(WAIT_S_MAX):
            while not any(isinstance(e, WatchLost) and e.directory == directory for e in self.events):
                if directory in await watcher.verify():
                    return
                with anyio.move_on_after(0.05):
                    await self._more.wait()


@asynccontextmanager
async def running(watcher: Watcher) -> AsyncIterator[Told]:
    """The watcher, running."""
    told = Told()
    async with anyio.create_task_group() as tasks:
        await tasks.start(watcher.run, told.deliver)
        yield told
        tasks.cancel_scope.cancel()


class WatcherSuite:
    """Run by every implementation of ``ctxd.trackers.watcher_interface.Watcher``."""

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-1")
    async def test_creation_change_replacement_and_removal_are_each_reported(self, yard: Yard) -> None:
        yard.mkdir("d")
        path = yard.path("d/a")
        async with running(yard.watcher) as told:
            assert await yard.watcher.watch([yard.path("d")]) == [None]
            for change in (yard.write, yard.write, yard.append, yard.replace):
                told.events.clear()
                change("d/a")
                await told.of(path)
            told.events.clear()
            yard.remove("d/a")
            await told.of(path, gone=True)

    @pytest.mark.anyio
    async def test_both_ends_of_a_rename_are_reported(self, yard: Yard) -> None:
        yard.mkdir("d")
        yard.write("d/a")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d")])
            yard.rename("d/a", "d/b")
            await told.of(yard.path("d/a"), gone=True)
            await told.of(yard.path("d/b"))

    @pytest.mark.anyio
    async def test_only_entries_of_watched_directories_are_reported(self, yard: Yard) -> None:
        yard.mkdir("d/below")
        yard.mkdir("other")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d")])
            yard.write("d/below/a")
            yard.write("other/a")
            yard.write("d/last")
            await told.of(yard.path("d/last"))
            assert not told.has(yard.path("d/below"), "a")
            assert not told.has(yard.path("other"), "a")

    @pytest.mark.anyio
    async def test_an_unwatched_directory_is_no_longer_reported(self, yard: Yard) -> None:
        yard.mkdir("d")
        yard.mkdir("e")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d"), yard.path("e")])
            await yard.watcher.unwatch([yard.path("d"), yard.path("never")])
            yard.write("d/a")
            yard.write("e/last")
            await told.of(yard.path("e/last"))
            assert not told.has(yard.path("d"), "a")

    @pytest.mark.anyio
    async def test_a_path_that_is_no_directory_is_missing_and_the_others_are_watched(self, yard: Yard) -> None:
        yard.mkdir("d")
        yard.write("file")
        async with running(yard.watcher) as told:
            answers = await yard.watcher.watch([yard.path("none"), yard.path("d"), yard.path("file")])
            assert [refused and refused.cause for refused in answers] == ["missing", None, "missing"]
            yard.write("d/a")
            await told.of(yard.path("d/a"))

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-4")
    @pytest.mark.parametrize("loss", ["deleted", "moved", "replaced", "above moved"])
    async def test_a_directory_that_is_lost_is_known_to_be_and_can_be_watched_again(
        self, yard: Yard, loss: str
    ) -> None:
        yard.mkdir("top/d")
        yard.write("top/d/a")
        directory = yard.path("top/d")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([directory])
            if loss == "deleted":
                yard.remove("top/d")
            elif loss == "above moved":
                yard.rename("top", "away")
            else:
                yard.rename("top/d", "top/old")
            if loss == "replaced":
                yard.mkdir("top/d")
            await told.loss_of(yard.watcher, directory)
            yard.mkdir("top/d")
            await yard.watcher.unwatch([directory])
            assert await yard.watcher.watch([directory]) == [None]
            told.events.clear()
            yard.write("top/d/b")
            await told.of(yard.path("top/d/b"))
            assert await yard.watcher.verify() == {}

    @pytest.mark.anyio
    async def test_a_directory_moved_away_and_back_can_be_watched_as_before(self, yard: Yard) -> None:
        yard.mkdir("top/d")
        directory = yard.path("top/d")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([directory])
            yard.rename("top", "away")
            await told.loss_of(yard.watcher, directory)
            yard.rename("away", "top")
            await yard.watcher.unwatch([directory])
            await yard.watcher.watch([directory])
            yard.write("top/d/a")
            await told.of(yard.path("top/d/a"))

    @pytest.mark.anyio
    @pytest.mark.requirement("TRK-2")
    async def test_watching_twice_takes_one_watch_and_unwatching_once_ends_it(self, yard: Yard) -> None:
        yard.mkdir("d")
        yard.mkdir("e")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d"), yard.path("e")])
            before = yard.watcher.watches
            assert await yard.watcher.watch([yard.path("d")]) == [None]
            named_twice = [yard.path("d"), yard.path("none"), yard.path("d"), yard.path("none")]
            answers = await yard.watcher.watch(named_twice)
            assert [answer is None for answer in answers] == [True, False, True, False]
            assert yard.watcher.watches == before
            yard.write("d/a")
            await told.of(yard.path("d/a"))
            await yard.watcher.unwatch([yard.path("d")])
            told.events.clear()
            yard.write("d/b")
            yard.write("e/last")
            await told.of(yard.path("e/last"))
            assert not told.has(yard.path("d"), "b")

    @pytest.mark.anyio
    async def test_two_paths_to_one_directory_are_both_reported_until_unwatched(self, yard: Yard) -> None:
        yard.mkdir("d")
        yard.link("l", "d")
        async with running(yard.watcher) as told:
            assert await yard.watcher.watch([yard.path("d"), yard.path("l")]) == [None, None]
            yard.write("l/a")
            yard.write("d/a")
            await told.of(yard.path("d/a"))
            await told.of(yard.path("l/a"))
            await yard.watcher.unwatch([yard.path("d")])
            yard.write("l/b")
            await told.of(yard.path("l/b"))

    @pytest.mark.anyio
    @pytest.mark.parametrize("name", ["\udcff\udcfe", "a\nb", "x" * 255, "\U0001f600", "a b'\"\\"])
    async def test_unusual_names_do_not_stop_the_watcher(self, yard: Yard, name: str) -> None:
        yard.mkdir("d")
        async with running(yard.watcher) as told:
            await yard.watcher.watch([yard.path("d")])
            yard.write(f"d/{name}")
            yard.write("d/after")
            await told.of(yard.path("d/after"))
            yard.remove(f"d/{name}")
            told.events.clear()
            yard.write("d/after")
            await told.of(yard.path("d/after"))

    @pytest.mark.anyio
    async def test_many_directories_are_reported_individually(self, yard: Yard) -> None:
        names = [f"d{number}" for number in range(150)]
        for name in names:
            yard.mkdir(name)
        async with running(yard.watcher) as told:
            assert await yard.watcher.watch([yard.path(name) for name in names[:100]]) == [None] * 100
            for name in names[100:]:
                assert await yard.watcher.watch([yard.path(name)]) == [None]
            await yard.watcher.unwatch([yard.path(name) for name in names[:90]])
            for name in names[90:]:
                yard.write(f"{name}/a")
            for name in names[90:]:
                await told.of(yard.path(f"{name}/a"))

    @pytest.mark.anyio
    async def test_an_empty_request_gives_an_empty_result(self, yard: Yard) -> None:
        async with running(yard.watcher):
            assert await yard.watcher.watch([]) == []
            await yard.watcher.unwatch([])
            assert await yard.watcher.verify() == {}
