"""Discovery: names to stubs, over fakes."""

import errno

import pytest

from ctxd.objects.kinds import is_unread, state_of
from tests.unit.indexing.memory import MOUNTS, World

pytestmark = pytest.mark.anyio


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement("IDX-8")
async def test_an_existing_file_becomes_an_unread_stub(world: World) -> None:
    world.files.write("/src/a.TS", b"x")
    (found,) = await world.indexer.discover(MOUNTS, "/w", ["a.TS"])
    assert (found.path, found.outcome) == ("a.TS", "created")
    assert found.document is not None
    assert is_unread(found.document)
    assert found.document.payload == {"file_type": "ts", "char_count": 0}
    assert found.object == found.document.id
    assert world.files.reads == 0


@pytest.mark.requirement("IDX-8")
async def test_a_version_that_was_read_is_never_touched(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.write("/src/a", b"changed")
    (found,) = await world.indexer.discover(MOUNTS, "/w", ["/w/a"])
    assert (found.outcome, found.object, found.document) == ("unchanged", known.object, None)


async def test_a_stub_is_made_once(world: World) -> None:
    world.files.write("/src/a", b"x")
    (first,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert first.document is not None
    world.versions.put(first.document)
    (second,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert (second.outcome, second.document) == ("unchanged", None)


async def test_several_names_of_one_file_make_one_stub(world: World) -> None:
    world.files.write("/src/a", b"x")
    found = await world.indexer.discover(MOUNTS, "/w", ["a", "./a", "/w/lib/../a"])
    assert [one.outcome for one in found] == ["created", "unchanged", "unchanged"]
    assert len({one.object for one in found}) == 1


async def test_a_deleted_file_that_is_back_becomes_unread(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.remove("/src/a")
    gone = world.versions.take(await world.indexer.index(MOUNTS, "/w", "a", cause="check"))
    world.files.write("/src/a", b"y")
    (back,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert back.document is not None
    assert (back.outcome, back.object) == ("created", known.object)
    assert back.floor_vt > gone.floor_vt
    world.versions.put(back.document, floor_vt=back.floor_vt)
    assert state_of(world.versions.head(known.object)) == "unread"


@pytest.mark.requirement("DIS-2")
async def test_what_is_no_regular_file_is_named_with_its_reason(world: World) -> None:
    world.files.mkdir("/src/dir")
    world.files.special("/src/pipe", "fifo")
    world.files.write("/src/locked", b"x")
    world.files.deny("/src/locked", errno.EACCES)
    paths = ["dir", "pipe", "locked", "none", "no/dir/none", "/tmp/inside", "/../up", "a\0b"]
    found = await world.indexer.discover(MOUNTS, "/w", paths)
    assert [one.path for one in found] == paths
    assert {one.outcome for one in found} == {"ignored"}
    assert all(one.object is None and one.document is None for one in found)
    reasons = [one.reason or "" for one in found]
    assert reasons[:6] == [
        "directory", "fifo", "cannot be looked at", "no such file", "no such file", "not on the host's filesystem",
    ]  # fmt: skip
    assert "climbs above" in reasons[6]
    assert "NUL" in reasons[7]


@pytest.mark.requirement("DIS-2")
async def test_a_known_file_that_is_gone_is_ignored(world: World) -> None:
    world.files.write("/src/a", b"x")
    await world.read("/w/a")
    world.files.remove("/src/a")
    (found,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert (found.outcome, found.object) == ("ignored", None)


async def test_a_file_inside_the_sandbox_counts_if_its_object_exists(world: World) -> None:
    known = await world.read("/tmp/a", b"sent")
    (found,) = await world.indexer.discover(MOUNTS, "/w", ["/tmp/a"])
    assert (found.outcome, found.object) == ("unchanged", known.object)


async def test_a_stub_that_another_session_makes_meanwhile_is_seen(world: World) -> None:
    world.files.write("/src/a", b"x")
    (first,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert first.document is not None
    world.versions.forget()
    heads = world.versions.heads
    stub = first.document

    async def overtaken(ids):  # type: ignore[no-untyped-def]
        found = await heads(ids)
        world.versions.put(stub)
        return found

    world.versions.heads = overtaken  # type: ignore[method-assign]
    (second,) = await world.indexer.discover(MOUNTS, "/w", ["a"])
    assert (second.outcome, second.document) == ("unchanged", None)


@pytest.mark.parametrize("count", [0, 3000])
async def test_many_paths_cost_one_lookup_and_one_stat_each(world: World, count: int) -> None:
    for number in range(count):
        world.files.write(f"/src/{number}", b"x")
    found = await world.indexer.discover(MOUNTS, "/w", [str(number) for number in range(count)])
    assert len(found) == count
    assert {one.outcome for one in found} <= {"created"}
    assert (world.versions.lookups, world.files.stats) == (1, count)
