"""Who hears of a change, that nobody hears of it twice, and that a restart loses none."""

from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from ctxd import failpoints
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored, select_visible_versions
from ctxd.sessions import change_notices as module
from ctxd.sessions import later_versions
from ctxd.store.version_store import VersionStore
from ctxd_protocol.methods.events import NoticeEvent
from ctxd_protocol.session_types import Notice
from tests.unit.sessions.world import World, world
from tests.waiting import until

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
async def test_a_reader_of_a_file_is_notified_of_changes_by_others(tmp_path: Path) -> None:
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


async def test_a_deletion_found_by_another_session_is_notified(tmp_path: Path) -> None:
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


class Heard:
    """A connection's queue with room for ``room`` notices."""

    def __init__(self, room: int = 10_000) -> None:
        self.room = room
        self.notices: list[Notice] = []
        self.missed: list[bool] = []

    def notify(self, method: str, event: NoticeEvent) -> bool:
        assert method == "events.notice"
        if self.room == 0:
            return False
        self.room -= 1
        self.notices.append(event.notice)
        self.missed.append(event.missed)
        return True


@pytest.mark.requirement("NOT-3")
async def test_a_subscription_joins_backlog_and_live_without_loss_or_repeat(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Writes go on while the backlog is read in small pages, and until the subscription is released."""
    monkeypatch.setattr(module, "PAGE", 2)
    monkeypatch.setattr(later_versions, "READ_MAX", 7)
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        path, other = tmp_path / "f.txt", tmp_path / "other.txt"
        await edit(w, "reader", path, "start")
        await edit(w, "reader", other, "start")
        for n in range(20):
            await edit(w, "writer", path, f"before {n}")
        heard = Heard()

        async def write() -> None:
            for n in range(40):
                await edit(w, "writer", path, f"during {n}")

        async with anyio.create_task_group() as group:
            group.start_soon(write)
            subscription = await w.notices.subscribe("reader", 0, heard.notify, confined=False)
            await edit(w, "writer", other, "held")
            assert heard.notices == []
            subscription.release()
        assert heard.notices == await told(w, "reader")
        assert len(heard.notices) == 61 and not any(heard.missed)
        w.notices.unsubscribe(subscription)
        await edit(w, "writer", path, "after")
        assert len(heard.notices) == 61
        assert len(await told(w, "reader")) == 62


@pytest.mark.parametrize("page", [2, 1_000])
async def test_notices_beyond_those_held_are_followed_by_the_newest_marked_as_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 3)
    monkeypatch.setattr(module, "PAGE", page)
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        path = tmp_path / "f.txt"
        await edit(w, "reader", path, "start")
        for n in range(7):
            await edit(w, "writer", path, f"before {n}")
        whole = await told(w, "reader")
        heard = Heard()
        subscription = await w.notices.subscribe("reader", 0, heard.notify, confined=False)
        subscription.release()
        assert heard.notices == [*whole[:3], whole[-1]]
        assert heard.missed == [False, False, False, True]
        await edit(w, "writer", path, "more")
        assert (len(heard.notices), heard.missed[-1]) == (5, False)


def notice(seq: int) -> Notice:
    return Notice(
        seq=seq, session="reader", object="f", path=None, change="updated", by_session="writer", content_hash="",
        valid_time=seq,
    )  # fmt: skip


@pytest.mark.requirement("NOT-3")
@pytest.mark.parametrize(("upto", "sent"), [(9, [(9, False)]), (4, [(4, False), (5, False), (9, True)])])
async def test_a_notice_that_is_dropped_before_the_backlog_is_read_is_missed_only_if_the_backlog_lacks_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, upto: int, sent: list[tuple[int, bool]]
) -> None:
    monkeypatch.setattr(module, "HELD_MAX", 2)
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader")
        heard = Heard()
        live = await w.sessions.live("reader")
        subscription = module.Subscription(1, live, 0, heard.notify, confined=False)
        for seq in (4, 5, 9):
            subscription.take(notice(seq))
        subscription.precede([notice(upto)], upto)
        subscription.release()
        assert [(each.seq, missed) for each, missed in zip(heard.notices, heard.missed, strict=True)] == sent


async def test_a_change_not_sent_to_a_full_sandbox_is_sent_later(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        path = tmp_path / "f.txt"
        await edit(w, "reader", path, "start")
        heard = Heard(room=1)
        subscription = await w.notices.subscribe("reader", None, heard.notify, confined=True)
        subscription.release()
        for n in range(3):
            await edit(w, "writer", path, f"text {n}")
        heard.room = 5
        subscription.catch_up()
        seqs = [notice.seq for notice in await told(w, "reader")]
        assert [notice.seq for notice in heard.notices] == [seqs[0], seqs[2]]
        assert heard.missed == [False, True]
        subscription.catch_up()
        assert len(heard.notices) == 2


async def test_a_subscription_covers_files_read_after_its_start(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        heard = Heard()
        (await w.notices.subscribe("reader", None, heard.notify, confined=False)).release()
        path = tmp_path / "f.txt"
        await edit(w, "writer", path, "one")
        assert heard.notices == []
        await w.read("reader", path)
        await edit(w, "writer", path, "two")
        await edit(w, "reader", path, "three")
        assert [notice.by_session for notice in heard.notices] == ["writer"]
        assert heard.notices == await told(w, "reader")


@pytest.mark.requirement("NOT-1")
@pytest.mark.requirement("VER-6")
async def test_a_version_of_a_past_time_is_a_notice_only_where_it_is_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(later_versions, "READ_MAX", 2)
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "importer")
        heard = Heard()

        async def index(session: str, valid_time: int) -> int:
            text = f"{session} {valid_time}"
            done = await w.call("file.index", session=session, path="/a.py", content=text, valid_time=valid_time)
            return int(done.receipt.seq)

        await index("reader", 50)
        (await w.notices.subscribe("reader", None, heard.notify, confined=False)).release()
        seqs = {time: await index("importer", time) for time in (40, 60, 55, 30, 70, 65, 20)}
        assert [(notice.seq, notice.valid_time) for notice in heard.notices] == [(seqs[60], 60), (seqs[70], 70)]
        assert heard.notices == await told(w, "reader")


async def test_a_lost_read_causes_no_notices(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        heard = Heard()
        (await w.notices.subscribe("reader", None, heard.notify, confined=False)).release()
        path = tmp_path / "f.txt"
        await edit(w, "writer", path, "one")
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            with pytest.raises(CtxdError):
                await w.read("reader", path)
        await until(lambda: w.store.status().state == "ok")
        await edit(w, "writer", path, "two")
        assert heard.notices == await told(w, "reader") == []


async def test_subscribing_to_an_unknown_session_leaves_nothing_behind(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        with pytest.raises(CtxdError) as caught:
            await w.notices.subscribe("nobody", 0, Heard().notify, confined=False)
        assert caught.value.code == "session_not_found"


@pytest.mark.requirement("NOT-3")
async def test_a_subscription_that_is_cancelled_during_its_last_read_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        path = tmp_path / "a"
        await sessions(w, "reader", "writer")
        await edit(w, "writer", path, "one")
        await w.read("reader", path)
        await edit(w, "writer", path, "two")
        heard = Heard()
        read = module.NoticeFeeds.since

        with anyio.CancelScope() as scope:

            async def since(*given: Any, **more: Any) -> Any:
                found = await read(*given, **more)
                scope.cancel()
                return found

            monkeypatch.setattr(module.NoticeFeeds, "since", since)
            await w.notices.subscribe("reader", 0, heard.notify, confined=False)
        assert scope.cancelled_caught
        assert (await w.sessions.live("reader")).watched == 0


@pytest.mark.requirement("NOT-3")
async def test_a_page_of_notices_reads_about_as_many_versions_as_it_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader", "writer")
        for number in range(150):
            for path in ("/a.py", "/b.py"):
                session = "writer" if number else "reader"
                await w.call("file.index", session=session, path=path, content=f"{number}")
        read: list[int] = []
        history = VersionStore.history

        async def counted(*args: Any, **options: Any) -> list[Stored]:
            found = await history(*args, **options)
            read.append(len(found))
            return found

        monkeypatch.setattr(VersionStore, "history", counted)
        found: list[Notice] = []
        after, is_last = 0, False
        while not is_last:
            page = await w.call("session.notices", session="reader", after=after, limit=10)
            found += page.notices
            after, is_last = page.next_after, len(page.notices) < 10
            assert sum(read) <= 60
            read.clear()
        monkeypatch.undo()
        assert found == list((await w.call("session.notices", session="reader", limit=1_000)).notices)
        assert len(found) == 2 * 149


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.requirement("NOT-1")
@pytest.mark.requirement("VER-6")
async def test_pages_have_the_versions_that_were_the_newest_when_they_were_written(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    async with world(tmp_path / "state") as w:
        await sessions(w, "reader")
        paths = [f"/{number}.py" for number in range(4)]
        ids = []
        for path in paths:
            done = await w.call("file.index", session="reader", path=path, content="", valid_time=500)
            ids.append(done.object)
        for number in range(40):
            at = None if random.random() < 0.1 else random.randrange(1, 2_000)
            path = random.choice(paths)
            await w.call("file.index", session="reader", path=path, content=f"{number}", valid_time=at)
        store = w.sessions.store
        upto = store.head().seq
        histories = [select_visible_versions(await store.history(id, corrections=True)) for id in ids]
        for after in range(0, upto - 3, 9):
            expected = sorted(
                (stored for visible in histories for stored in visible if after < stored.tx <= upto - 3),
                key=lambda stored: stored.tx,
            )
            floors = dict.fromkeys(ids, after)
            found = [later async for later in later_versions.later_versions(store, floors, upto - 3)]
            assert [each.stored for each in found] == expected
            for each in found:
                rest = [s for s in expected if s.document.id == each.stored.document.id and s.tx > each.stored.tx]
                assert each.successor == (rest[0] if rest else None)
