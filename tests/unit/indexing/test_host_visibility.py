"""Filesystems that are told apart by device, over fakes."""

import pytest

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed
from ctxd.indexing.stub_discovery import discover
from ctxd.mounts.filesystem_id import Devices
from ctxd.mounts.mapping import MountTable
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.session_types import Mount
from tests.unit.indexing.memory import BOX, HOST, MOUNTS, ON_HOST, World

pytestmark = pytest.mark.anyio

STICK = 42
STICK_ID = Devices(HOST).filesystem_id(STICK)
SRC = Mount(agent_prefix="/w", canonical_prefix="/src")
IN_BOX = Mount(agent_prefix="/box", canonical_prefix="/", filesystem_id=BOX)
BY_DEVICE = MountTable([SRC, IN_BOX], filesystem_id=HOST, host_filesystem_id=HOST, by_device=True)


@pytest.fixture
def world() -> World:
    """/stick lies on a device of its own, everything else on the host's."""
    made = World()
    made.files.write("/home/a", b"home")
    made.files.write("/stick/lib/a", b"stick")
    made.files.remount("/stick", STICK)
    return made


async def read(world: World, path: str, mounts: MountTable = BY_DEVICE, content: bytes | None = None) -> Indexed:
    return world.versions.take(await world.indexer.index(mounts, "/stick", path, content=content))


@pytest.mark.requirement("FS-8")
async def test_an_unmounted_path_is_on_the_filesystem_of_its_device(world: World) -> None:
    on_stick = await read(world, "lib/a")
    assert on_stick.source == FilesystemSource(STICK_ID, "/stick/lib/a")
    assert (on_stick.outcome, world.versions.head(on_stick.object).content) == ("created", "stick")
    assert (await read(world, "/home/a")).source == FilesystemSource(HOST, "/home/a")
    assert BY_DEVICE.display(on_stick.source) == "/stick/lib/a"


async def test_host_devices_do_not_affect_sessions_without_detection(world: World) -> None:
    assert (await read(world, "/home/a")).object == (await read(world, "/home/a", ON_HOST)).object
    assert (await read(world, "/stick/lib/a", ON_HOST)).source.filesystem_id == HOST


@pytest.mark.requirement("FS-8")
async def test_a_mount_takes_precedence_over_the_device(world: World) -> None:
    world.files.write("/src/a", b"x")
    world.files.remount("/src", STICK)
    assert (await read(world, "/w/a")).source == FilesystemSource(HOST, "/src/a")
    assert (await read(world, "/w/a", MOUNTS)).outcome == "unchanged"
    with pytest.raises(CtxdError, match="not at that path of the host"):
        await read(world, "/box/home/a")
    assert (await read(world, "/box/home/a", content=b"sent")).source == FilesystemSource(BOX, "/home/a")


async def test_a_missing_file_is_on_the_filesystem_of_its_nearest_directory(world: World) -> None:
    id, source = await world.indexer.resolve(BY_DEVICE, "/stick", "new/deep/b")
    assert source.filesystem_id == STICK_ID
    world.files.write("/stick/new/deep/b", b"b")
    assert (await read(world, "new/deep/b")).object == id


async def test_files_on_another_device_are_discovered_and_read_on_activation(world: World) -> None:
    found = await discover(world.indexer, BY_DEVICE, "/stick/lib", ["a", "none", "/home/a", "/box/home/a", "../.."])
    assert [one.outcome for one in found] == ["created", "ignored", "created", "ignored", "ignored"]
    assert [one.reason for one in found[1:]] == ["no such file", None, "not on the host's filesystem", "directory"]
    stub = found[0].document
    assert stub is not None and stub.source == FilesystemSource(STICK_ID, "/stick/lib/a")
    world.versions.put(stub)
    activated = world.versions.take(await world.indexer.index_object(BY_DEVICE, stub.id, cause="read"))
    assert (activated.outcome, activated.char_count) == ("updated", 5)


@pytest.mark.requirement("FS-8")
async def test_files_on_another_device_are_refreshed_also_after_a_restart(world: World) -> None:
    id = (await read(world, "lib/a")).object
    world.restart()
    reads = world.files.reads
    assert (await world.refresh(BY_DEVICE, [id])).unchanged == 1
    assert world.files.reads == reads, "the stored mark vouches for it"
    world.files.write("/stick/lib/a", b"changed")
    fresh = await world.refresh(BY_DEVICE, [id])
    assert (fresh.updated, [document.content for document in fresh.documents]) == ((id,), ["changed"])
    world.files.remove("/stick/lib/a")
    assert (await world.refresh(BY_DEVICE, [id])).deleted == (id,)


@pytest.mark.requirement("FS-8")
@pytest.mark.parametrize("number", [STICK + 1, None])
async def test_a_file_whose_device_has_another_number_now_is_orphaned(world: World, number: int | None) -> None:
    id = (await read(world, "lib/a")).object
    world.restart()
    if number is None:
        world.files.remove("/stick")
    else:
        world.files.remount("/stick", number)
    assert (await world.refresh(BY_DEVICE, [id])).orphaned == (id,)
    checked = await world.indexer.index_object(BY_DEVICE, id)
    assert (checked.outcome, checked.document) == ("orphaned", None)
    with pytest.raises(CtxdError) as caught:
        await world.indexer.index_object(BY_DEVICE, id, cause="read")
    assert caught.value.code == "source_unreachable"


async def test_sessions_without_detection_have_no_device_lookups(world: World) -> None:
    id = (await read(world, "lib/a")).object
    assert (await world.refresh(MOUNTS, [id])).orphaned == (id,)
    assert (await world.refresh(ON_HOST, [id])).orphaned == (id,)
