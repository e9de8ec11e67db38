"""Many files that changed are brought up to date slice by slice: no more is held than one."""

from pathlib import Path

import pytest

from ctxd import failpoints, limits
from ctxd.errors import CtxdError
from ctxd.indexing import stale_files
from tests.unit.assembly.stored_sessions import household
from tests.unit.sessions.world import World, world
from tests.waiting import until

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def one_file_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stale_files, "SLICE_BYTES_MAX", 1)
    monkeypatch.setattr(limits, "PROBE_S", 0.05)


async def read_and_left(w: World, folder: Path, *, state: str) -> list[str]:
    """A session that read three files, which changed since."""
    await w.call("session.create", agent="a", session="s")
    paths = [folder / name for name in "abc"]
    for path in paths:
        path.write_text("one")
    ids = [await w.read("s", path) for path in paths]
    if state == "paused":
        await w.call("session.pause", session="s")
    for path in paths:
        path.write_text("another")
    return ids


@pytest.mark.parametrize("state", ["active", "paused"])
async def test_a_resume_reports_all_slices_and_a_repeat_returns_the_same(tmp_path: Path, state: str) -> None:
    async with world(tmp_path / "state") as w:
        ids = await read_and_left(w, tmp_path, state=state)
        resumed = await w.call("session.resume", session="s", op_id="op")
        assert resumed.reconciled.updated == tuple(ids)
        assert len({(await w.store.get(id)).tx for id in ids}) == 3
        assert resumed.receipt.seq == (await w.store.get(ids[-1])).tx
        assert await w.call("session.resume", session="s", op_id="op") == resumed


async def test_each_slice_is_on_the_disk_before_the_next_is_read(tmp_path: Path) -> None:
    """The second write fails: the first stands, nothing comes after it, and the resend does the rest."""
    async with world(tmp_path / "state") as w:
        ids = await read_and_left(w, tmp_path, state="paused")
        with failpoints.armed("journal.commit=error:ENOSPC*1@2"):
            with pytest.raises(CtxdError) as caught:
                await w.call("session.resume", session="s", op_id="op")
        assert (caught.value.code, caught.value.outcome) == ("disk_full", "not_applied")
        texts = [(await w.store.get(id, content=True)).document.content for id in ids]
        assert texts == ["another", "one", "one"]
        await until(lambda: w.store.status().state == "ok")
        assert (await w.call("session.get", session="s")).session.state == "paused"
        resumed = await w.call("session.resume", session="s", op_id="op")
        assert (resumed.reconciled.updated, resumed.reconciled.unchanged) == (tuple(ids[1:]), 1)
        assert resumed.session.state == "active"


async def test_an_assembly_shows_every_slice_as_it_is_now(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        paths = [home.files / name for name in "abc"]
        for path in paths:
            path.write_text("one")
            await home.read(live, path)
        for path in paths:
            path.write_text(f"another of {path.name}")
        text = (await home.assemble()).text
        assert all(f"another of {path.name}" in text for path in paths)
        assert (await home.assemble()).text == text
