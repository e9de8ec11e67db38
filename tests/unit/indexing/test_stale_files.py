"""Freshness of many files, over fakes."""

import errno

import pytest

from ctxd.indexing import stale_files
from ctxd.indexing.stale_files import READ_BATCH, SLICE_FILES_MAX, RefreshResult
from ctxd.indexing.stub_discovery import discover
from ctxd.objects.document import file_text, toolcall
from ctxd.objects.hashing import source_hash
from ctxd.objects.version_state import state_of
from tests.unit.indexing.memory import MOUNTS, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


async def known(world: World, *names: str) -> list[str]:
    """Index files of these names, each holding its name."""
    for name in names:
        world.files.write(f"/src/{name}", name.encode())
    return [(await world.read(f"/w/{name}")).object for name in names]


async def refresh(world: World, ids: list[str]) -> RefreshResult:
    return await world.refresh(MOUNTS, ids)


async def test_unchanged_files_cost_one_stat_each_and_no_reading(world: World) -> None:
    ids = await known(world, *(f"{number}" for number in range(1000)))
    reads, stats, lookups = world.files.reads, world.files.stats, world.versions.lookups
    assert await refresh(world, ids) == RefreshResult(unchanged=1000)
    assert world.files.reads == reads
    assert world.files.stats - stats == 1000
    assert world.versions.lookups - lookups == 1


async def test_after_a_restart_the_stored_signatures_spare_the_reading(world: World) -> None:
    ids = await known(world, "a", "b")
    world.restart()
    reads = world.files.reads
    assert await refresh(world, ids) == RefreshResult(unchanged=2)
    assert world.files.reads == reads


async def test_a_missing_signature_is_looked_up_once(world: World) -> None:
    world.files.settled = False
    ids = await known(world, "a")
    world.restart()
    await refresh(world, ids)
    await refresh(world, ids)
    assert world.versions.asked_signatures == 1


@pytest.mark.requirement("CTX-8")
async def test_only_changed_files_are_read_and_get_a_version(world: World) -> None:
    ids = await known(world, "a", "b", "c")
    world.files.write("/src/b", b"changed")
    reads = world.files.reads
    fresh = await refresh(world, ids)
    assert (fresh.updated, fresh.unchanged) == ((ids[1],), 2)
    assert world.files.reads - reads == 1
    assert world.versions.head(ids[1]).content == "changed"
    assert await refresh(world, ids) == RefreshResult(unchanged=3)


async def test_a_touched_file_is_read_once_and_not_again(world: World) -> None:
    ids = await known(world, "a")
    world.files.write("/src/a", b"a")
    reads = world.files.reads
    assert (await refresh(world, ids)).unchanged == 1
    assert (await refresh(world, ids)).unchanged == 1
    assert world.files.reads - reads == 1


async def test_an_unsettled_stamp_is_not_trusted(world: World) -> None:
    world.files.settled = False
    ids = await known(world, "a")
    reads = world.files.reads
    await refresh(world, ids)
    await refresh(world, ids)
    assert world.files.reads - reads == 2
    world.files.settled = True
    await refresh(world, ids)
    await refresh(world, ids)
    assert world.files.reads - reads == 3


async def test_a_signature_of_an_older_version_does_not_vouch_for_a_newer_one(world: World) -> None:
    """A client sends content that is not what is on disk: the disk wins at the next look."""
    ids = await known(world, "a")
    assert (await world.read("/w/a", b"sent")).outcome == "updated"
    fresh = await refresh(world, ids)
    assert fresh.updated == (ids[0],)
    assert world.versions.head(ids[0]).content == "a"


async def test_deleted_orphaned_unread_and_foreign_objects_are_distinguished(world: World) -> None:
    gone, lost, denied = await known(world, "gone", "dir/lost", "denied")
    inside = (await world.read("/tmp/inside", b"x")).object
    world.files.write("/src/stub", b"x")
    (stub,) = await discover(world.indexer, MOUNTS, "/w", ["stub"])
    assert stub.document is not None
    world.versions.put(stub.document)
    world.versions.put(toolcall("call", tool="t", args={}, content="", chat_ref="chat:s"))
    world.files.remove("/src/gone")
    world.files.remove("/src/dir")
    world.files.deny("/src/denied", errno.EACCES)
    fresh = await refresh(world, [gone, lost, denied, inside, stub.document.id, "call", "0" * 64])
    assert fresh.deleted == (gone,)
    assert set(fresh.orphaned) == {lost, denied, inside}
    assert (fresh.unread, fresh.unchanged, fresh.updated) == (1, 0, ())
    assert state_of(world.versions.head(gone)) == "deleted"
    assert (await refresh(world, [gone])).unchanged == 1


async def test_a_deleted_file_that_is_back_is_read(world: World) -> None:
    (id,) = await known(world, "a")
    world.files.remove("/src/a")
    await refresh(world, [id])
    world.files.write("/src/a", b"back")
    assert (await refresh(world, [id])).updated == (id,)
    assert world.versions.head(id).content == "back"


async def test_a_disk_that_is_not_mounted_deletes_nothing(world: World) -> None:
    ids = await known(world, "a", "b")
    world.files.remove("/src")
    world.files.mkdir("/src")
    world.files.remount("/src", 99)
    fresh = await refresh(world, ids)
    assert (fresh.deleted, fresh.orphaned) == ((), tuple(ids))


async def test_more_changes_than_fit_one_batch_are_all_found(world: World) -> None:
    ids = await known(world, *(f"{number}" for number in range(2 * READ_BATCH + 1)))
    for number in range(len(ids)):
        world.files.write(f"/src/{number}", b"new")
    fresh = await refresh(world, ids)
    assert fresh.updated == tuple(ids)
    assert fresh.signatures.keys() == set(ids)


async def test_changed_files_are_split_into_slices_of_bounded_bytes(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stale_files, "SLICE_BYTES_MAX", 10)
    ids = await known(world, "a", "b", "c", "d", "e")
    for name, size in zip("abcde", (4, 6, 4, 99, 1), strict=True):
        world.files.write(f"/src/{name}", b"x" * size)
    a, b, c, d, e = ids
    assert (await world.indexer.stale_files.compare(MOUNTS, ids)).slices == ((a, b), (c,), (d,), (e,))
    assert (await refresh(world, ids)).updated == tuple(ids)


async def test_changed_files_are_split_into_slices_of_a_bounded_count(world: World) -> None:
    ids = await known(world, *(f"{number}" for number in range(SLICE_FILES_MAX + 1)))
    for number in range(len(ids)):
        world.files.write(f"/src/{number}", b"")
    slices = (await world.indexer.stale_files.compare(MOUNTS, ids)).slices
    assert [len(one) for one in slices] == [SLICE_FILES_MAX, 1]


async def test_a_version_that_comes_in_after_the_comparison_is_the_one_decided_on(world: World) -> None:
    """While an earlier slice was written, another session read and wrote what this one would."""
    (id,) = await known(world, "a")
    world.files.write("/src/a", b"new")
    ((slice_id,),) = (await world.indexer.stale_files.compare(MOUNTS, [id])).slices
    assert (await world.read("/w/a")).outcome == "updated"
    assert await world.indexer.stale_files.read_slice([slice_id]) == RefreshResult(unchanged=1)


async def test_a_version_that_comes_in_during_the_reading_is_not_written_over(world: World) -> None:
    """Between the reading of ``old`` and the answer, another session reads and writes ``newest``."""
    (id,) = await known(world, "a")
    source = world.versions.head(id).source
    assert source is not None
    world.files.write("/src/a", b"old")
    racing = [True]

    def race(path: str) -> None:
        if racing:
            racing.clear()
            world.files.write(path, b"newest")
            world.versions.put(file_text(id, source, "newest", source_hash(b"newest")), floor_vt=100)

    world.files.after_read = race
    fresh = await world.refresh(MOUNTS, [id])
    assert fresh == RefreshResult(unchanged=1)


async def test_an_empty_refresh_makes_no_lookup(world: World) -> None:
    assert await refresh(world, []) == RefreshResult()
    assert world.files.stats == 0
