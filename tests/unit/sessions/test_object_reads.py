"""Objects as sessions give them: as of any time, in lists, and to whom. A session sees its own, the host every one, and
one that is confined to nothing, nothing.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.errors import CtxdError
from ctxd.objects.document import NOW, Page
from ctxd.sessions import session_objects
from ctxd.sessions.object_reads import Objects
from ctxd.sessions.session_state import SessionState, replay_deltas
from ctxd.sessions.stored_session import SessionDelta
from ctxd_protocol.ids import chat_id, session_object_id
from ctxd_protocol.object_types import VersionRow
from tests.unit.sessions.world import CALLER, code_of, filled, record, say, world

pytestmark = pytest.mark.anyio


async def test_a_confined_read_is_limited_to_its_own_index(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.txt").write_text("b")
    async with world(tmp_path / "state") as here:
        for session in ("one", "two"):
            await here.call("session.create", session=session, agent="a", system_prompt=session)
        own = await here.read("one", tmp_path / "a.txt")
        other = await here.read("two", tmp_path / "b.txt")
        objects = Objects(here.sessions)
        everything = [own, other, "session:one", "session:two", "chat:two", "system_prompt:two"]
        wide = await objects.viewer("one", confined=False)
        assert list(await objects.versions(wide, everything, NOW, content=False)) == everything
        confined = await objects.viewer("one", confined=True)
        assert list(await objects.versions(confined, everything, NOW, content=False)) == [own, "session:one"]
        for id in (other, other[:12], "session:two", "chat:two"):
            with pytest.raises(CtxdError, match="no object"):
                await objects.version(confined, id, NOW, content=False)
        assert (await objects.version(confined, own[:12], NOW, content=True)).document.content == "a"


async def test_a_confined_read_without_a_session_sees_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="one", agent="a")
        id = await here.read("one", tmp_path / "a.txt")
        objects = Objects(here.sessions)
        nobody = await objects.viewer(None, confined=True)
        assert await objects.versions(nobody, [id, "session:one"], NOW, content=False) == {}
        with pytest.raises(CtxdError, match="no object"):
            await objects.version(nobody, id, NOW, content=False)
        anybody = await objects.viewer(None, confined=False)
        assert (await objects.version(anybody, id, NOW, content=True)).document.content == "a"


@pytest.mark.requirement("OBJ-11")
@pytest.mark.requirement("VER-2")
async def test_chat_and_session_read_as_objects_of_any_time(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        made = await w.call("session.create", agent="a", session="s1")
        first = await say(w, "s1", ("user", "one"))
        await record(w, "s1", "call-1")
        await w.call("session.append", session="s1", messages=[{"role": "toolcall", "toolcall": "call-1"}])
        chat, session = chat_id("s1"), session_object_id("s1")
        now = (await w.call("object.get", object=chat)).object
        assert now.payload["turn_count"] == 1
        assert now.payload["toolcall_refs"] == ["call-1"]
        assert [m["role"] for m in now.payload["turns"][0]["messages"]] == ["user", "toolcall"]
        then = (await w.call("object.get", object=chat, tx=first.receipt.seq)).object
        assert then.payload["toolcall_refs"] == []
        assert (then.tx, then.valid_time) == (first.receipt.seq, first.receipt.vt)
        empty = (await w.call("object.get", object=chat, tx=made.receipt.seq)).object
        assert empty.payload["turns"] == []
        assert (await w.call("object.get", object=session)).object.payload["active_set"] == ["call-1"]
        assert await code_of(w.call("object.get", object=chat, tx=0)) == "object_not_found"
        assert await code_of(w.call("object.get", object="segment:s1#0000000000")) == "object_not_found"
        versions = (await w.call("object.history", object=session)).versions
        assert [version.tx for version in versions] == [1, 2, 3, 4]
        page = await w.call("object.history", object=chat, limit=2, order="desc")
        rest = await w.call("object.history", object=chat, limit=2, order="desc", cursor=page.next_cursor)
        assert [v.tx for v in (*page.versions, *rest.versions)] == [4, 2, 1]


async def test_a_time_before_the_first_version_differs_from_a_missing_object(
    tmp_path: Path,
) -> None:
    async with world(tmp_path / "state") as w:
        made = await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "call-1")
        for session in (None, "s1"):
            with pytest.raises(CtxdError, match="had no version at sequence") as caught:
                await w.call("object.get", object="call-1", session=session, tx=made.receipt.seq)
            assert caught.value.code == "object_not_found"
        with pytest.raises(CtxdError, match="no object call-2"):
            await w.call("object.get", object="call-2", tx=made.receipt.seq)


@pytest.mark.requirement("NOT-4")
async def test_objects_are_listed_by_session_and_over_all(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await filled(w, "s1", tmp_path)
        await filled(w, "s2", tmp_path)
        index = (await w.call("session.get", session="s1")).session.session_index
        listed, cursor = [], None
        while True:
            page = await w.call("object.list", session="s1", limit=3, cursor=cursor)
            listed += [item.object for item in page.objects]
            if (cursor := page.next_cursor) is None:
                break
        assert tuple(listed) == index
        pinned = [item for item in (await w.call("object.list", session="s1")).objects if item.pinned]
        assert [(item.object, item.label) for item in pinned] == [("s1-call-1-1", "bash")]
        files = (await w.call("object.list", type="file", limit=2)).objects
        assert len(files) == 2
        everything, cursor = [], None
        while True:
            page = await w.call("object.list", limit=7, cursor=cursor)
            everything += [item.object for item in page.objects]
            if (cursor := page.next_cursor) is None:
                break
        assert len(everything) == len(set(everything)) == 15 * 2 + 5 + 3 * 2
        assert not [id for id in everything if id.startswith(("segment:", "assembly:"))]
        shared = (await w.call("object.sessions", object=files[0].object)).sessions
        assert shared == ("s1", "s2")
        for id in ("chat:s1", "session:s1", "system_prompt:s1"):
            assert (await w.call("object.get", object=id)).object.id == id
            assert (await w.call("object.sessions", object=id)).sessions == ()
        for id in ("segment:s1#0000000000", "assembly:s1#0000000001", "chat:none", "none"):
            for method in ("object.get", "object.sessions"):
                assert await code_of(w.call(method, object=id)) == "object_not_found"


@pytest.mark.requirement("SES-13")
async def test_a_connection_bound_to_a_session_sees_only_its_objects(tmp_path: Path) -> None:
    bound = msgspec.structs.replace(CALLER, capability="session", session="s1")
    async with world(tmp_path / "state") as w:
        for name in ("s1", "s2"):
            await w.call("session.create", agent="a", session=name)
            await record(w, name, f"call-of-{name}")
        mine = await w.call("object.get", caller=bound, session="s1", object="call-of-s1")
        assert mine.object.payload["content"] == "out"
        for foreign in ("call-of-s2", "chat:s2", "session:s2", "system_prompt:s2", "call-of-nobody"):
            get = w.call("object.get", caller=bound, session="s1", object=foreign)
            assert await code_of(get) == "object_not_found"
        wanted = ["call-of-s1", "call-of-s2", "chat:s1", "chat:s2"]
        bulk = await w.call("object.bulk", caller=bound, session="s1", objects=wanted)
        assert [version.id for version in bulk.objects] == ["call-of-s1", "chat:s1"]
        assert bulk.missing == ("call-of-s2", "chat:s2")


@pytest.mark.requirement("OBJ-11")
async def test_a_long_chat_is_read_in_pages_and_no_further_than_its_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        for number in range(20):
            said = {"role": "user", "content": f"{number}", "meta": {"raw": "x" * 200_000}}
            await w.call("session.append", session="s", messages=[said])
        pages: list[int] = []
        scan = w.store.scan

        async def counted(*given, **rest):
            page = await scan(*given, **rest)
            pages.append(len(page))
            return page

        monkeypatch.setattr(w.store, "scan", counted)
        objects = Objects(w.sessions)
        viewer = await objects.viewer("s", confined=True)
        for read in (
            objects.version(viewer, "chat:s", NOW, content=True, size_max=1_000_000),
            objects.versions(viewer, ["chat:s"], NOW, content=True, size_max=1_000_000),
        ):
            pages.clear()
            assert await code_of(read) == "too_large"
            assert 5 <= sum(pages) < 20
        pages.clear()
        assert len((await w.call("object.history", object="chat:s")).versions) == 21
        assert sum(pages) == 20
        assert max(pages) < 10
        whole = await objects.version(viewer, "chat:s", NOW, content=True)
        assert [turn["messages"][0]["content"] for turn in whole.document.payload["turns"]] == [
            f"{number}" for number in range(20)
        ]


@pytest.mark.requirement("OBJ-11")
async def test_an_object_that_is_named_many_times_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    versions = Objects.versions

    async def noted(objects: Objects, viewer, ids, *rest, **more):
        read.extend(ids)
        return await versions(objects, viewer, ids, *rest, **more)

    monkeypatch.setattr(Objects, "versions", noted)
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "one"))
        for content in (True, False):
            read.clear()
            found = await w.call("object.bulk", session="s1", objects=["chat:s1", "no-such"] * 500, content=content)
            assert sorted(read) == ["chat:s1", "no-such"]
            assert [each.id for each in found.objects] == ["chat:s1"] and found.missing == ("no-such",)
            nothing = await w.call("object.bulk", session="s1", objects=[], content=content)
            assert (nothing.objects, nothing.missing) == ((), ())


@pytest.mark.requirement("RPC-9")
@pytest.mark.parametrize("id", ["session:s1", "chat:s1"])
async def test_a_long_session_is_folded_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, id: str
) -> None:
    threads: list[threading.Thread] = []

    def noted(deltas: Sequence[SessionDelta]) -> SessionState:
        threads.append(threading.current_thread())
        return replay_deltas(deltas)

    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        for n in range(5):
            await say(w, "s1", ("user", f"question {n}"))
        monkeypatch.setattr(session_objects, "replay_deltas", noted)
        monkeypatch.setattr(w.sessions.folding, "inline", 3)
        assert (await w.call("object.get", session="s1", object=id)).object.id == id
    assert threads and threading.main_thread() not in threads


@pytest.mark.requirement("VER-3")
@pytest.mark.parametrize("kind", ["chat", "session"])
@pytest.mark.parametrize("ascending", [True, False])
async def test_each_page_of_the_history_of_a_long_session_reads_as_much_as_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, ascending: bool
) -> None:
    async with world(tmp_path / "state") as here:
        await here.call("session.create", session="s", agent="a")
        for number in range(120):
            await say(here, "s", ("user", f"message {number}"))
            if number % 10 == 0:
                await here.call("session.configure", session="s", labels={"at": str(number)})
        objects = Objects(here.sessions)
        viewer = await objects.viewer("s", confined=False)
        scan, read = here.store.scan, [0]

        async def counted(*args: Any, **named: Any) -> Any:
            found = await scan(*args, **named)
            read[-1] += len(found)
            return found

        monkeypatch.setattr(here.store, "scan", counted)
        rows, more, after = list[VersionRow](), True, None
        while more:
            read.append(0)
            page = Page(after=after, limit=10, ascending=ascending)
            found, more = await objects.history(viewer, f"{kind}:s", NOW, page, corrections=False)
            rows += found
            after = (rows[-1].valid_time, rows[-1].tx)
        assert max(read) <= 40 and len(read) > 10
        every, _ = await objects.history(viewer, f"{kind}:s", NOW, Page(limit=1_000), corrections=False)
        assert rows == (every if ascending else every[::-1]) and len(rows) >= 120
