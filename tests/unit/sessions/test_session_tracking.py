"""Files followed for sessions: who is the author of a change, and what happens when the store takes none."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd import failpoints
from ctxd.clock import SystemClock
from ctxd.sessions import file_operations
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.session_tracking import BUSY_S, KIND, Tracking
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.trackers.polling_watcher import PollingWatcher
from ctxd.trackers.tracked_files import TrackedFiles
from ctxd.trackers.tracker import FILES_MAX, FileTrackers
from ctxd_protocol.methods.events import NoticeEvent
from tests.fakes.watcher import FakeWatcher
from tests.unit.sessions.world import World
from tests.unit.sessions.world import world as running
from tests.unit.trackers.following import make_file_trackers, make_trackers
from tests.waiting import until


async def until_versions(world: World, id: str, count: int) -> None:
    """Return once ``id`` has ``count`` versions."""

    async def there_are() -> bool:
        return len(await world.store.history(id)) >= count

    await until(there_are)


EDIT = WriteRequest("file.index", "host")


@asynccontextmanager
async def tracking(world: World, trackers: FileTrackers) -> AsyncIterator[Tracking]:
    made = Tracking(
        world.sessions, world.indexer, trackers, SystemClock(), room=lambda session: FILES_MAX, failed=failing
    )
    async with anyio.create_task_group() as tasks:
        await tasks.start(made.run)
        yield made
        tasks.cancel_scope.cancel()


def failing(error: Exception) -> None:
    raise error


async def followed(made: Tracking, *ids: str) -> None:
    await until(lambda: all(id in made.trackers.tracked.files for id in ids))
    await made.trackers.wait_until_attached()


async def authors(world: World, id: str) -> list[tuple[str, str | None]]:
    """Kind and session of the writes that made the versions of ``id``."""
    await world.store.wait_for_writes()
    found = []
    for stored in await world.store.history(id):
        (change,) = await world.store.changes(after=stored.tx - 1, limit=1)
        found.append((change.kind, change.session))
    return found


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
async def test_a_session_at_work_reports_its_own_change_before_a_tracker_does(tmp_path: Path) -> None:
    file, marker = tmp_path / "a", tmp_path / "marker"
    file.write_text("1")
    marker.write_text("1")
    fake, tracked = FakeWatcher(), TrackedFiles()
    fake.mkdir(str(tmp_path))
    polling = PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock()))
    trackers = make_trackers(tracked, fake, polling, hold_s=60.0)
    async with running(tmp_path / "state") as world, tracking(world, trackers) as made:
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        await world.call("session.create", session="other", agent="a", workdir=str(tmp_path))
        id, other = await world.read("s", file), await world.read("other", marker)
        await followed(made, id, other)
        live = await world.sessions.live("s")
        # No look at the files is under way that began before the session was at work.
        await made.trackers.wait_until_attached()
        async with live.lock:
            file.write_text("2, its own")
            fake.write(str(file))
            marker.write_text("2")
            fake.write(str(marker))
            # The tracker has dealt with what came after, so it has let this be.
            await until_versions(world, other, 2)
            indexed = await world.indexer.index(live.mounts, "/", str(file), cause="edit")
            assert indexed.outcome == "updated"
            delta = file_operations.read_delta(live.state, indexed.object)
            live.submit(EDIT, delta, puts=indexed.puts, signatures=indexed.signatures, floor_vt=indexed.floor_vt)
        file.write_text("3, nobody's")
        fake.write(str(file))
        await until_versions(world, id, 3)
        assert (await authors(world, id))[1:] == [("file.index", "s"), (KIND, None)]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
async def test_a_session_whose_write_is_of_a_file_alone_is_at_work(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    fake, tracked = FakeWatcher(), TrackedFiles()
    fake.mkdir(str(tmp_path))
    trackers = make_trackers(tracked, fake, PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock())))
    async with running(tmp_path / "state") as world, tracking(world, trackers) as made:
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        id = await world.read("s", file)
        await followed(made, id)
        made.trackers.release("s")
        file.write_text("2, its own")
        edited = await world.call("file.index", session="s", path=str(file), cause="edit")
        assert edited.outcome == "updated"
        (change,) = await world.store.changes(after=edited.receipt.seq - 1, limit=1)
        assert [put[0] for put in change.puts] == [id], "it changes no set"
        assert "s" in tracked.leases, "whoever is at work again is followed again"


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
async def test_files_that_wait_for_a_lease_are_not_copied_by_later_reads(tmp_path: Path) -> None:
    fake, tracked = FakeWatcher(), TrackedFiles()
    trackers = make_trackers(tracked, fake, PollingWatcher(SystemClock(), tracked.polled_names, Lookups(SystemClock())))
    async with running(tmp_path / "state") as world:
        # It is not run, so all files wait.
        made = Tracking(
            world.sessions, world.indexer, trackers, SystemClock(), room=lambda session: FILES_MAX, failed=failing
        )
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        ids: list[str] = []
        mappings = []
        for name in ("a", "b", "c"):
            (tmp_path / name).write_text("1")
            ids.append(await world.read("s", tmp_path / name))
            await world.store.wait_for_writes()
            mappings.append(made._wanted["s"])
            assert list(mappings[0]) == ids and mappings[-1] is mappings[0]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
async def test_a_session_is_followed_over_a_change_of_its_settings_and_not_once_it_is_paused(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    async with running(tmp_path / "state") as world, tracking(world, make_file_trackers()) as made:
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        id = await world.read("s", file)
        await followed(made, id)
        await world.call("session.configure", session="s", labels={"a": "b"})
        assert "s" in made.trackers.tracked.leases
        await followed(made, id)
        await world.call("session.pause", session="s")
        assert "s" not in made.trackers.tracked.leases


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
async def test_files_that_are_looked_up_while_their_session_is_closed_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    async with running(tmp_path / "state") as world, tracking(world, make_file_trackers()) as made:
        visibility, begun, go_on = world.indexer.visibility, anyio.Event(), anyio.Event()
        readable = visibility.readable

        async def late(*given: Any) -> Any:
            found = await readable(*given)
            begun.set()
            await go_on.wait()
            return found

        monkeypatch.setattr(visibility, "readable", late)
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        await world.read("s", file)
        await begun.wait()
        await world.call("session.close", session="s")
        go_on.set()
        await anyio.wait_all_tasks_blocked()
        assert not made.trackers.tracked.leases and not made.trackers.tracked.files


@asynccontextmanager
async def found_by_a_tracker(tmp_path: Path, *readers: str) -> AsyncIterator[tuple[World, Path, str]]:
    """A file that ``readers`` read and of which a tracker stored the second version; nothing is at work."""
    file = tmp_path / "a"
    file.write_text("1")
    async with running(tmp_path / "state") as world, tracking(world, make_file_trackers()) as made:
        for name in readers:
            await world.call("session.create", session=name, agent="a", workdir=str(tmp_path))
            id = await world.read(name, file)
        await followed(made, id)
        await anyio.sleep(2 * BUSY_S)
        # In one step: a file that is written in place is empty for a moment, which would be a version of its own.
        (tmp_path / "new").write_text("2")
        (tmp_path / "new").replace(file)
        await until_versions(world, id, 2)
        assert (await authors(world, id))[-1] == (KIND, None)
        yield world, file, id


async def told(world: World, session: str) -> list[tuple[int, str | None]]:
    """Sequence and author of the notices to ``session``."""
    await world.store.wait_for_writes()
    return [(each.seq, each.by_session) for each in (await world.call("session.notices", session=session)).notices]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
@pytest.mark.requirement("NOT-2")
async def test_a_late_edit_report_makes_the_change_its_authors_and_notifies_readers(tmp_path: Path) -> None:
    async with found_by_a_tracker(tmp_path, "writer", "reader") as (world, file, id):
        heard: list[tuple[int, str | None]] = []

        def notify(method: str, event: NoticeEvent) -> bool:
            heard.append((event.notice.seq, event.notice.by_session))
            return True

        (await world.notices.subscribe("reader", 0, notify, confined=False)).release()
        assert [by for _, by in await told(world, "writer")] == [None], "it has not said so yet"
        first, second = await world.store.history(id)
        edited = await world.call("file.index", session="writer", path=str(file), cause="edit")
        assert edited.outcome == "updated"
        assert (await authors(world, id))[1:] == [(KIND, None), ("file.index", "writer")]
        claim = (await world.store.history(id))[-1]
        assert claim.document == second.document != first.document
        assert claim.content_ref == second.content_ref
        assert await told(world, "writer") == []
        assert await told(world, "reader") == [(claim.tx, "writer")]
        assert heard == [(second.tx, None), (claim.tx, "writer")]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-8")
async def test_only_the_first_session_to_report_an_edit_is_its_author(tmp_path: Path) -> None:
    async with found_by_a_tracker(tmp_path, "writer", "reader", "other") as (world, file, id):
        for cause in ("read", "check"):
            seen = await world.call("file.index", session="reader", path=str(file), cause=cause)
            assert seen.outcome == "unchanged", "who looks has not written"
        for session, outcome in (("writer", "updated"), ("writer", "unchanged"), ("other", "unchanged")):
            edited = await world.call("file.index", session=session, path=str(file), cause="edit")
            assert edited.outcome == outcome
        assert (await authors(world, id))[-2:] == [(KIND, None), ("file.index", "writer")]
        assert [by for _, by in await told(world, "other")] == ["writer"]


@pytest.mark.anyio
@pytest.mark.requirement("TRK-1")
async def test_a_change_that_the_store_could_not_take_is_stored_once_it_can(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_text("1")
    async with running(tmp_path / "state") as world, tracking(world, make_file_trackers()) as made:
        await world.call("session.create", session="s", agent="a", workdir=str(tmp_path))
        id = await world.read("s", file)
        await followed(made, id)
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            file.write_text("2")
            await until_versions(world, id, 2)
            assert await authors(world, id) == [("file.index", "s"), (KIND, None)]
