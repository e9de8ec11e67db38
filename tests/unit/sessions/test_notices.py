"""Who hears of a change, that nobody hears of it twice, and that a restart loses none."""

from pathlib import Path

import anyio
import pytest

from ctxd import failpoints
from ctxd.errors import CtxdError
from ctxd.sessions import notices as module
from ctxd_protocol.sessions import Notice
from tests.unit.sessions.world import World, world

pytestmark = pytest.mark.anyio


async def sessions(w: World, *names: str) -> None:
    for name in names:
        await w.call("session.create", agent="a", session=name)


async def told(w: World, session: str, after: int = 0) -> list[Notice]:
    return list((await w.call("session.notices", session=session, after=after)).notices)


async def edit(w: World, session: str, path: Path, text: str) -> str:
    path.write_text(text)
    return await w.read(session, path)


@pytest.mark.requirement("NOT-1")
@pytest.mark.requirement("NOT-2")
async def test_who_read_a_file_is_told_when_another_changes_it(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer", "stranger", "lister", "late")
        path = tmp_path / "f.txt"
        id = await edit(w, "reader", path, "one")
        await w.discover("lister", path)
        await edit(w, "writer", path, "two")
        await w.read("late", path)
        (notice,) = await told(w, "reader")
        assert (notice.object, notice.change, notice.by_session, notice.path) == (id, "updated", "writer", str(path))
        version = (await w.call("object.get", object=id)).object
        assert (notice.seq, notice.content_hash, notice.valid_time) == (
            version.tx, version.content_hash, version.valid_time,
        )  # fmt: skip
        for name in ("writer", "stranger", "lister", "late"):
            assert await told(w, name) == []
        assert await told(w, "reader", notice.seq) == []


async def test_a_deletion_found_by_another_is_told(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "other")
        path = tmp_path / "f.txt"
        await edit(w, "reader", path, "one")
        await w.read("other", path)
        path.unlink()
        await w.call("session.resume", session="other")
        (notice,) = await told(w, "reader")
        assert (notice.change, notice.by_session, notice.content_hash) == ("deleted", "other", None)
        assert await told(w, "other") == []


@pytest.mark.requirement("NOT-3")
async def test_notices_come_in_pages_and_again_after_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        paths = [tmp_path / f"{n}.txt" for n in range(6)]
        for path in paths:
            await edit(w, "reader", path, "one")
        for path in paths:
            await edit(w, "writer", path, "two")
            await edit(w, "reader", path, "mine")
        whole = await told(w, "reader")
        assert [notice.path for notice in whole] == [str(path) for path in paths]
    async with world(tmp_path / "state") as w:
        found: list[Notice] = []
        after = 0
        for _ in range(12):
            page = await w.call("session.notices", session="reader", after=after, limit=2)
            found += page.notices
            after = page.next_after
        assert found == whole


@pytest.mark.requirement("NOT-3")
async def test_a_subscription_joins_backlog_and_live_without_loss_or_repeat(tmp_path: Path) -> None:
    """Writes go on while the backlog is read, with a buffer so small that it overflows again and again."""
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        path = tmp_path / "f.txt"
        await edit(w, "reader", path, "start")
        for n in range(20):
            await edit(w, "writer", path, f"before {n}")
        heard: list[Notice] = []
        enough = anyio.Event()

        def hear(notice: Notice) -> None:
            heard.append(notice)
            if len(heard) == 60:
                enough.set()

        async def write() -> None:
            for n in range(40):
                await edit(w, "writer", path, f"during {n}")

        small, module.BUFFERED_MAX, module._VERSIONS = (module.BUFFERED_MAX, module._VERSIONS), 2, 7
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(write)
                subscription = await w.notices.subscribe("reader", 0, hear, confined=False)
                await enough.wait()
        finally:
            module.BUFFERED_MAX, module._VERSIONS = small
        assert heard == await told(w, "reader")
        subscription.close()
        await edit(w, "writer", path, "after")
        assert len(heard) == 60
        assert len(await told(w, "reader")) == 61


async def test_a_subscription_hears_of_what_is_read_after_it_began(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        heard: list[Notice] = []
        await w.notices.subscribe("reader", None, heard.append, confined=False)
        path = tmp_path / "f.txt"
        await edit(w, "writer", path, "one")
        assert heard == []
        await w.read("reader", path)
        await edit(w, "writer", path, "two")
        await edit(w, "reader", path, "three")
        assert [notice.by_session for notice in heard] == ["writer"]
        assert heard == await told(w, "reader")


async def test_a_read_that_was_lost_is_not_told_of(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        heard: list[Notice] = []
        await w.notices.subscribe("reader", None, heard.append, confined=False)
        path = tmp_path / "f.txt"
        await edit(w, "writer", path, "one")
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            with pytest.raises(CtxdError):
                await w.read("reader", path)
        with anyio.fail_after(10):
            while w.store.status().state != "ok":
                await anyio.sleep(0.01)
        await edit(w, "writer", path, "two")
        assert heard == await told(w, "reader") == []


async def test_subscribing_to_an_unknown_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        with pytest.raises(CtxdError) as caught:
            await w.notices.subscribe("nobody", 0, print, confined=False)
        assert caught.value.code == "session_not_found"
