"""Filesystems told apart by device, over a real store, real files and a device that is not the host's."""

import os
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ctxd.errors import CtxdError
from ctxd.mounts.filesystem_id import Devices, host_devices
from tests.unit.sessions.world import HOST, World, world

SHM = Path("/dev/shm")

pytestmark = pytest.mark.anyio


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """A directory on a device of its own."""
    if not os.access(SHM, os.W_OK) or SHM.stat().st_dev in host_devices():
        pytest.skip(f"{SHM} is not a device of its own here, or cannot be written")
    with tempfile.TemporaryDirectory(dir=SHM) as made:
        yield Path(made)


@asynccontextmanager
async def daemon(tmp_path: Path) -> AsyncIterator[World]:
    """One run of a daemon on the same state."""
    async with world(tmp_path / "state") as made:
        yield made


@pytest.mark.requirement("FS-8")
async def test_files_on_another_device_are_indexed_discovered_and_checked_across_a_restart(
    tmp_path: Path, elsewhere: Path
) -> None:
    device_id = Devices(HOST).filesystem_id(elsewhere.stat().st_dev)
    for name in ("same", "changed", "gone", "seen"):
        (elsewhere / name).write_text(name)
    (tmp_path / "own").write_text("own")
    async with daemon(tmp_path) as run:
        made = await run.call(
            "session.create", agent="a", session="s", workdir=str(elsewhere), detect_filesystems=True
        )  # fmt: skip
        assert (made.session.detect_filesystems, made.session.filesystem_id) == (True, HOST)
        read = {name: await run.call("file.index", session="s", path=name) for name in ("same", "changed", "gone")}
        assert [(one.outcome, one.kind) for one in read.values()] == [("created", "text")] * 3
        place = await run.call("file.resolve", session="s", path="same")
        assert (place.object, place.filesystem_id) == (read["same"].object, device_id)
        assert place.display_path == place.canonical_path == f"{elsewhere}/same"
        own = await run.call("file.resolve", session="s", path=f"{tmp_path}/own")
        assert own.filesystem_id == HOST
        (seen,) = (await run.call("file.discover", session="s", paths=["seen"])).objects
        assert seen.outcome == "created"
        assert (await run.call("session.activate", session="s", object=seen.object)).level == "active"
    (elsewhere / "changed").write_text("otherwise")
    (elsewhere / "gone").unlink()
    async with daemon(tmp_path) as run:
        resumed = await run.call("session.resume", session="s")
        assert resumed.session.detect_filesystems
        assert resumed.reconciled.unchanged == 2
        assert resumed.reconciled.updated == (read["changed"].object,)
        assert resumed.reconciled.deleted == (read["gone"].object,)
        assert (await run.call("file.resolve", session="s", path="same")).object == read["same"].object


@pytest.mark.requirement("FS-8")
async def test_a_file_is_orphaned_while_another_device_is_at_its_path(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "a").write_text("on the disk")
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "a").write_text("below the mount point")
    async with daemon(tmp_path) as run:
        await run.call("session.create", agent="a", session="s", workdir=str(tmp_path), detect_filesystems=True)
        read = await run.call("file.index", session="s", path=f"{elsewhere}/a")
        away = elsewhere.rename(f"{elsewhere}-away")
        elsewhere.symlink_to(tmp_path / "bare")
        assert (await run.call("session.resume", session="s")).reconciled.orphaned == (read.object,)
        elsewhere.unlink()
        away.rename(elsewhere)
        resumed = await run.call("session.resume", session="s")
        assert (resumed.reconciled.unchanged, resumed.reconciled.orphaned) == (1, ())


async def test_without_the_setting_a_path_is_on_the_host_for_every_device(tmp_path: Path, elsewhere: Path) -> None:
    (elsewhere / "a").write_text("a")
    async with daemon(tmp_path) as run:
        made = await run.call("session.create", agent="a", session="s", workdir=str(elsewhere))
        assert not made.session.detect_filesystems
        assert (await run.call("file.index", session="s", path="a")).outcome == "created"
        assert (await run.call("file.resolve", session="s", path="a")).filesystem_id == HOST


async def test_a_sandboxed_agents_paths_are_not_looked_up_on_the_host(tmp_path: Path) -> None:
    async with daemon(tmp_path) as run:
        with pytest.raises(CtxdError, match="exclude each other"):
            await run.call(
                "session.create", agent="a", session="s", filesystem_id="b" * 64, detect_filesystems=True
            )  # fmt: skip
