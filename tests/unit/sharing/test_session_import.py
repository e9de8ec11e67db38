"""A session of one journal becomes one of another, or of the same under another name: the same sets, chat and bytes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.objects.document import encode_content, toolcall
from ctxd.projection.ownership_checks import Fence, Fences
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.purge_operations import purge
from ctxd.sessions.stored_session import RUN, RecordUsage
from ctxd.sharing.session_import import LocalSession, import_session, read_destination, read_history
from ctxd.sharing.session_rewriter import ROW_CHARS_MAX
from ctxd.store.backup import backup, restore
from ctxd.store.write_types import Write
from tests.unit.assembly.stored_sessions import MODELS
from tests.unit.sessions.world import World, code_of, filled, record, say, world
from tests.unit.store.running import SteppingClock, verified

pytestmark = pytest.mark.anyio


class Host:
    """A world that also assembles."""

    def __init__(self, w: World) -> None:
        self.w = w
        self.origin = LocalSession(w.store)
        self.fences = Fences()
        self.archive = Archive(w.store, w.sessions, spec, estimate_tokens, MODELS)
        self.assembler = Assembler(w.store, w.sessions, w.indexer, self.archive, MODELS, SystemClock(), providers={})

    async def assemble(self, session: str = "s1") -> str:
        live = await self.w.sessions.live(session)
        return (await self.assembler.assemble(live, WriteRequest("context.assemble", "host"))).context.text

    async def shown(self, session: str = "s1") -> list[str]:
        """Every recorded assembly, rendered again."""
        numbers = [each.number for each in await self.archive.records(session)]
        return [(await self.archive.show(session, number=number)).context.text for number in numbers]

    async def take(
        self, other: "Host", session: str = "s1", name: str | None = None, kind: str = "session.adopt", state=None
    ):
        past = await read_history(other.origin, session)
        ordinal = self.w.sessions.next_ordinal()
        here = await read_destination(
            self.w.store, past, name or session, self.fences, ordinal=ordinal, filesystem="a" * 64, state=state
        )
        await (await import_session(self.w.store, other.origin, past, here, kind=kind, principal="host")).wait()
        self.w.sessions.unload(name or session)
        return past, here


@asynccontextmanager
async def host(root: Path) -> AsyncIterator[Host]:
    async with world(root) as w:
        yield Host(w)


@asynccontextmanager
async def two(tmp_path: Path) -> AsyncIterator[tuple[Host, Host]]:
    async with host(tmp_path / "a") as a, host(tmp_path / "b") as b:
        yield a, b


async def lived(a: Host, folder: Path) -> list[str]:
    """A session whose files changed between its assemblies; the texts of those."""
    folder.mkdir()
    await filled(a.w, "s1", folder)
    texts = [await a.assemble()]
    for change in range(3):
        (folder / "1.txt").write_text(f"changed {change}")
        await say(a.w, "s1", ("user", f"again {change}"), ("assistant", "yes"))
        texts.append(await a.assemble())
    await a.w.call("session.configure", session="s1", budget_tokens=200)
    await say(a.w, "s1", ("user", "tight"))
    texts.append(await a.assemble())
    return texts


def state_of(view):
    return {name: getattr(view, name) for name in view.__struct_fields__ if name not in ("updated_at",)}


@pytest.mark.requirement("HST-1")
async def test_a_session_taken_in_has_the_same_sets_chat_and_bytes(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        texts = await lived(a, tmp_path / "files")
        await b.w.call("session.create", agent="other", session="other")
        await b.take(a)
        before, after = [(await each.w.call("session.get", session="s1")).session for each in (a, b)]
        assert state_of(after) == state_of(before)
        assert (await b.w.call("session.chat", session="s1")) == (await a.w.call("session.chat", session="s1"))
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
        assert await b.shown() == await a.shown() == texts
        assert len(set(texts)) > 2
        assert {row.session for row in (await b.w.call("session.list")).sessions} == {"s1", "other"}
        file = next(id for id in after.session_index if len(id) == 64)
        rows = [await each.w.call("object.history", object=file) for each in (a, b)]
        assert [r.content_hash for r in rows[1].versions] == [r.content_hash for r in rows[0].versions]
    verified(tmp_path / "a")
    verified(tmp_path / "b")


async def test_a_long_session_keeps_its_bundles_and_continues(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(600):
            await a.w.begin("toolcall.record", session="s1", id=f"t{n}", tool="bash", content=f"out {n % 7}")
            if n % 150 == 0:
                await a.assemble()
        text = await a.assemble()
        await b.take(a)
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
        assert (await b.shown())[-1] == text
        await record(b.w, "s1", "next")
        b.w.sessions.unload("s1")
        live = await b.w.sessions.live("s1")
        assert live.state.segments == 601
        assert live.seqs == sorted(live.seqs)
    verified(tmp_path / "b")


@pytest.mark.requirement("VER-6")
async def test_a_file_arrives_as_its_versions_were_shown_though_others_were_written_at_past_times(tmp_path):
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1", filesystem_id="f" * 64)

        async def index(text: str, valid_time: int) -> str:
            done = await a.w.call(
                "file.index", session="s1", path=str(tmp_path / "gone" / "x.py"), content=text, valid_time=valid_time
            )
            return done.object

        texts = []
        for text, valid_time in (("two", 2), ("one", 1), ("two, corrected", 2), ("three", 3), ("none", 1)):
            id = await index(text, valid_time)
            texts.append(await a.assemble())
        await b.take(a)
        assert await b.shown() == await a.shown() == list(dict.fromkeys(texts))
        assert (await b.w.store.get(id, content=True)).document.content == "three"


@pytest.mark.requirement("HST-1")
async def test_typed_events_come_along_with_the_results_of_renamed_tool_calls(tmp_path: Path) -> None:
    events = [
        {"event": "prompt", "text": "go", "at": 5},
        {"event": "thinking", "text": "hm", "signature": "c2ln"},
        {"event": "tool_call", "call": "c", "tool": "bash", "args": {"command": "ls"}},
        {"event": "tool_result", "call": "c", "object": "c"},
        {"event": "compaction", "summary": "all done", "sidechain": "a1"},
    ]
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await record(a.w, "s1", "c", "made on a")
        await a.w.call("session.append", session="s1", events=events)
        billed = RecordUsage(1, "m", 10, 20, ((300, 30),), 40)
        await (await a.w.sessions.live("s1")).submit(WriteRequest("session.usage", "host"), (billed,)).wait()
        await b.w.call("session.create", agent="b", session="other")
        await record(b.w, "other", "c", "made on b")
        await b.take(a)
        there = (await a.w.call("session.events", session="s1")).events
        here = (await b.w.call("session.events", session="s1")).events
        (renamed,) = (await b.w.sessions.live("s1")).state.index
        assert renamed != "c" and here[3].event.object == renamed
        moved = [msgspec.structs.replace(row.event, object="c") if n == 3 else row.event for n, row in enumerate(here)]
        assert moved == [row.event for row in there]
        assert (await b.w.sessions.live("s1")).state.usage == {1: billed}
        assert [(row.turn, row.place) for row in here] == [(row.turn, row.place) for row in there]
    verified(tmp_path / "b")


class Forgetful(LocalSession):
    """An origin from which a purge has taken some texts."""

    def __init__(self, host: Host, *gone: str) -> None:
        super().__init__(host.w.store)
        self._gone = gone
        self.asked = 0
        self.contents = self._contents

    async def _contents(self, refs):
        self.asked += 1
        found = await self._store.contents(refs)
        return {ref: text for ref, text in found.items() if text not in self._gone}


@pytest.mark.requirement("HST-9")
async def test_an_object_whose_text_was_purged_elsewhere_is_purged_and_the_rest_is_whole(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(300):
            await a.w.begin("toolcall.record", session="s1", id=f"t{n}", tool="bash", content=f"out {n}")
        await a.assemble()
        a.origin = Forgetful(a, "out 3", "out 70", "out 299")
        await b.take(a)
        for n, purged in ((2, False), (3, True), (69, False), (70, True), (298, False), (299, True)):
            payload = (await b.w.call("object.get", session="s1", object=f"t{n}")).object.payload
            assert payload.get("content") == (None if purged else f"out {n}")
            assert payload.get("purged", False) is purged
        assert a.origin.asked < 10
        assert "out 298" in await b.assemble()
    verified(tmp_path / "b")


async def test_a_session_continues_on_another_host_and_comes_back(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        texts = await lived(a, tmp_path / "files")
        await b.take(a)
        await say(b.w, "s1", ("user", "on b"))
        await record(b.w, "s1", "b-call", "made on b")
        texts.append(await b.assemble())
        await a.take(b)
        assert (await a.w.sessions.live("s1")).state == (await b.w.sessions.live("s1")).state
        assert await a.shown() == texts
        await record(a.w, "s1", "a-call")
        again = await a.assemble()
        assert "a-call" in again
        assert "id=b-call " in again
    verified(tmp_path / "a")


async def test_a_session_that_has_a_bundle_can_be_loaded_after_its_return(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(RUN + 4):
            await a.w.begin("toolcall.record", session="s1", id=f"t{n}", tool="bash", content="out")
        await b.take(a)
        await a.take(b)
        assert (await a.w.sessions.live("s1")).state == (await b.w.sessions.live("s1")).state
    verified(tmp_path / "a")


async def test_local_writes_during_an_absence_do_not_survive_a_return(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await lived(a, tmp_path / "files")
        await b.take(a)
        for n in range(20):
            await record(a.w, "s1", f"late-{n}")
            await a.assemble()
        await record(b.w, "s1", "b-call")
        await a.take(b)
        assert (await a.w.sessions.live("s1")).state == (await b.w.sessions.live("s1")).state
        assert await a.shown() == await b.shown()
        assert "late-3" not in (await a.w.sessions.live("s1")).state.index
    verified(tmp_path / "a")


@pytest.mark.requirement("HST-4")
async def test_a_branch_has_all_that_its_session_had(tmp_path: Path) -> None:
    async with host(tmp_path / "a") as a:
        texts = await lived(a, tmp_path / "files")
        await a.take(a, name="s1@branch", kind="session.branch")
        one, other = [(await a.w.sessions.live(name)).state for name in ("s1", "s1@branch")]
        assert one == other
        assert await a.shown("s1@branch") == texts
        await say(a.w, "s1@branch", ("user", "on the branch"))
        assert "on the branch" not in await a.assemble("s1")
    verified(tmp_path / "a")


@pytest.mark.requirement("HST-6")
async def test_a_tool_call_with_a_taken_id_gets_another_id_and_is_shown_as_before(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await say(a.w, "s1", ("user", "go"))
        await record(a.w, "s1", "call-1", "of a")
        await a.w.call("session.append", session="s1", messages=[{"role": "toolcall", "toolcall": "call-1"}])
        await a.w.call("session.pin", session="s1", object="call-1")
        text = await a.assemble()
        await b.w.call("session.create", agent="b", session="mine")
        await record(b.w, "mine", "call-1", "of b")
        mine = await b.assemble("mine")
        await b.take(a)
        assert await b.shown() == [text]
        assert await b.assemble() == text
        assert await b.assemble("mine") == mine
        live = await b.w.sessions.live("s1")
        assert list(live.state.index) == ["toolcall:s1:call-1"]
        got = await b.w.call("object.get", session="s1", object="call-1")
        assert got.object.payload["content"] == "of a"
        again = await record(b.w, "s1", "call-1", "of a")
        assert again.outcome == "unchanged"
        await a.take(b)
        assert await a.assemble() == text
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-1")
async def test_a_partially_imported_session_is_not_listed_and_can_be_imported_again(
    tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("ctxd.sharing.prefetched_texts.TEXTS_AHEAD", 1)
    monkeypatch.setattr("ctxd.sharing.prefetched_texts.TEXTS_AHEAD_MAX", 1)
    async with two(tmp_path) as (a, b):
        texts = await lived(a, tmp_path / "files")
        past = await read_history(a.origin, "s1")
        for stop in (1, 5, 9):
            here = await read_destination(
                b.w.store, past, "s1", Fences(), ordinal=b.w.sessions.next_ordinal(), filesystem="a" * 64
            )
            with pytest.raises(InterruptedError):
                await import_session(
                    b.w.store, _Breaking(a.origin, stop), past, here, kind="session.adopt", principal="host"
                )
            await b.w.store.wait_for_writes()
            assert await code_of(b.w.call("session.get", session="s1")) == "session_not_found"
            assert (await b.w.call("session.list")).sessions == ()
    async with host(tmp_path / "a") as a, host(tmp_path / "b") as b:
        assert (await b.w.call("session.list")).sessions == ()
        await b.take(a)
        assert await b.shown() == texts
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-1")
async def test_a_record_shows_the_versions_it_saw_also_if_another_session_writes_the_file_meanwhile(tmp_path) -> None:
    path = "/shared/f"

    async def read(each: Host, session: str, content: str) -> None:
        await each.w.call("file.index", session=session, path=path, content=content)

    async with two(tmp_path) as (a, b):
        for each, session in ((a, "s1"), (b, "other")):
            await each.w.call("session.create", agent="a", session=session, filesystem_id="nfs-1")
            await read(each, session, "as both know it")
        await record(a.w, "s1", "t1", "a text that the other host lacks")
        texts = [await a.assemble()]
        await record(a.w, "s1", "t2", "another one")
        texts.append(await a.assemble())

        class Meddling(LocalSession):
            async def _contents(self, refs):
                await read(b, "other", f"newer: {len(read_now)}")
                read_now.append(1)
                return await a.w.store.contents(refs)

        read_now: list[int] = []
        a.origin = Meddling(a.w.store)
        a.origin.contents = a.origin._contents
        await b.take(a)
        assert read_now
        assert await b.shown() == texts
        # What the other session wrote since is current again.
        assert "newer" in await b.assemble("other")
    verified(tmp_path / "b")


async def rows_of(each: Host) -> int:
    return each.w.store.status().head_seq


@pytest.mark.requirement("HST-11")
async def test_a_returning_session_is_copied_from_its_point_of_departure(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await lived(a, tmp_path / "files")
        for n in range(200):
            await say(a.w, "s1", ("user", f"message {n}"))
        before = await rows_of(b)
        await b.take(a)
        assert await rows_of(b) - before < 30
        for turn in range(5):
            one, other = (b, a) if turn % 2 == 0 else (a, b)
            await record(one.w, "s1", f"turn-{turn}")
            text = await one.assemble()
            before = await rows_of(other)
            await other.take(one)
            assert await rows_of(other) - before <= 4
            assert (await other.shown())[-1] == text
            assert (await other.w.sessions.live("s1")).state == (await one.w.sessions.live("s1")).state
    verified(tmp_path / "a")
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-11")
async def test_a_row_takes_texts_up_to_its_limit_for_any_number_of_objects(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(60):
            await record(a.w, "s1", f"t{n}", f"{n} ".ljust(ROW_CHARS_MAX // 32))
        before = await rows_of(b)
        await b.take(a)
        assert await rows_of(b) - before <= 4
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-11")
async def test_versions_of_a_shared_file_that_the_session_never_saw_are_not_copied(tmp_path: Path) -> None:
    async def read(session: str, content: str) -> None:
        await a.w.call("file.index", session=session, path="/shared/f", content=content)

    async with two(tmp_path) as (a, b):
        for session in ("s1", "other"):
            await a.w.call("session.create", agent="a", session=session, filesystem_id="nfs-1")
            await read(session, "as both know it")
        texts = []
        for turn in range(3):
            for n in range(50):
                await read("other", f"turn {turn}, version {n}")
            texts.append(await a.assemble())
        await read("other", "the newest")
        await b.take(a)
        assert await rows_of(b) < 15
        assert await b.shown() == await a.shown() == texts
        assert len(set(texts)) == 3
        assert "the newest" in await b.assemble()
        before = await rows_of(a)
        await a.take(a, name="s1@branch", kind="session.branch")
        assert await rows_of(a) - before < 15
        assert await a.shown("s1@branch") == texts
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-11")
async def test_an_import_that_is_begun_again_copies_nothing_twice(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("ctxd.sharing.session_rewriter.ROW_DOCUMENTS_MAX", 2)
    monkeypatch.setattr("ctxd.sharing.prefetched_texts.TEXTS_AHEAD", 1)
    monkeypatch.setattr("ctxd.sharing.prefetched_texts.TEXTS_AHEAD_MAX", 1)
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(40):
            await record(a.w, "s1", f"t{n}", f"out {n}")
        history = await read_history(a.origin, "s1")
        for stop in (5, 5, 5):
            here = await read_destination(b.w.store, history, "s1", Fences(), ordinal=1)
            with pytest.raises(InterruptedError):
                await import_session(
                    b.w.store, _Breaking(a.origin, stop), history, here, kind="session.adopt", principal="host"
                )
            await b.w.store.wait_for_writes()
        await b.take(a)
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
        # A row of one call each, one for each break, and the last.
        assert await rows_of(b) <= 40 + 3 + 2
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-4")
async def test_fenced_rows_are_written_again_even_if_the_other_host_wrote_the_same(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await record(a.w, "s1", "t0")
        await b.take(a)
        # Both read one file, one of them too late: the rows of that one are not at the node.
        for each in (a, b):
            await each.w.call("file.index", session="s1", path="/shared/f", content="equal")
        late = await rows_of(b)
        b.fences.add(Fence(session="s1", first=late, branch=None, host="a", token=1), late + 1)
        await b.take(a)
        segments = {stored.document.id: stored.tx for stored in await b.origin.scan("segment:s1#")}
        assert [tx > late for tx in segments.values()] == [False, True]
        assert (await b.w.sessions.live("s1")).state == (await a.w.sessions.live("s1")).state
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-9")
@pytest.mark.parametrize("purging", ["here", "there"])
async def test_a_tool_call_that_one_host_purged_keeps_its_id_when_the_session_comes_back(tmp_path, purging) -> None:
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        for n in range(3):
            await record(a.w, "s1", f"t{n}", f"out {n}")
        await b.take(a)
        w = (a if purging == "here" else b).w
        await purge(w.sessions, WriteRequest("object.purge", "host"), "t1")
        await record(b.w, "s1", "t3", "out 3")
        await a.take(b)
        view = (await a.w.call("session.get", session="s1")).session
        assert view.session_index == ("t0", "t1", "t2", "t3")
        assert (await a.w.call("object.get", session="s1", object="t1")).object.payload["purged"] is True
        assert (await a.w.call("object.get", session="s1", object="t2")).object.payload["content"] == "out 2"
    verified(tmp_path / "a")


class _Breaking:
    """An origin that fails at its n-th text."""

    def __init__(self, origin: LocalSession, after: int) -> None:
        self._origin = origin
        self._left = after

    def __getattr__(self, name):
        return getattr(self._origin, name)

    async def contents(self, refs):
        self._left -= 1
        if self._left < 0:
            raise InterruptedError
        return await self._origin.contents(refs)


@pytest.mark.requirement("HST-5")
async def test_valid_times_here_are_above_those_of_a_clock_that_is_ahead(tmp_path: Path, monkeypatch) -> None:
    ahead = SystemClock().wall_ms() + 600_000
    async with two(tmp_path) as (a, b):
        a.w.store._clock = SteppingClock(ahead)
        await lived(a, tmp_path / "files")
        await b.take(a)
        newest = max(stored.valid_time for stored in await a.origin.scan(""))
        oldest = min(stored.valid_time for stored in await b.origin.scan(""))
        assert newest >= ahead
        assert oldest > newest
        assert await b.shown() == await a.shown()


async def test_a_session_with_a_segment_missing_is_refused_whole(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        await lived(a, tmp_path / "files")
        origin = _Lacking(a.origin)
        past = await read_history(origin, "s1")
        here = await read_destination(b.w.store, past, "s1", Fences(), ordinal=1)
        with pytest.raises(CtxdError, match="segment 3 of session s1 is missing"):
            await import_session(b.w.store, origin, past, here, kind="session.adopt", principal="host")
        assert await b.origin.scan("") == []


class _Lacking:
    def __init__(self, origin: LocalSession) -> None:
        self._origin = origin

    def __getattr__(self, name):
        return getattr(self._origin, name)

    async def scan(self, prefix, *, first=None):
        found = await self._origin.scan(prefix, first=first)
        return [stored for stored in found if not stored.document.id.endswith("#0000000003")]


@pytest.mark.requirement("HST-6")
async def test_a_tool_call_with_an_id_in_the_form_of_a_files_stays_a_tool_call(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        (tmp_path / "a.txt").write_text("in the file")
        await a.w.call("session.create", agent="a", session="s1")
        await say(a.w, "s1", ("user", "go"))
        file = await a.w.read("s1", tmp_path / "a.txt")
        for id in (file, "0" * 64, "0" * 63 + "1"):
            await record(a.w, "s1", id, f"output of {id}")
        text = await a.assemble()
        assert (await a.w.call("session.resume", session="s1")).reconciled.unchanged == 1
        # Here one of the ids is another session's tool call, of another content.
        await b.w.call("session.create", agent="b", session="s0")
        await record(b.w, "s0", "toolcall:s1:" + "0" * 64, "another")
        await b.take(a)
        assert await b.shown() == [text]
        before, after = [(await each.w.sessions.live("s1")).state for each in (a, b)]
        assert after == before
        assert after.files(after.index) == [file]
        assert [kind for id, kind in after.index.items() if id != file] == ["toolcall"] * 3
        await b.take(b, name="s2")
        assert (await b.w.sessions.live("s2")).state.files(after.index) == [file]
        assert (await b.w.call("session.resume", session="s2")).reconciled.unchanged == 1
    verified(tmp_path / "b")


async def test_a_file_whose_id_is_a_tool_calls_here_is_refused(tmp_path: Path) -> None:
    async with two(tmp_path) as (a, b):
        (tmp_path / "a.txt").write_text("in the file")
        await a.w.call("session.create", agent="a", session="s1")
        file = await a.w.read("s1", tmp_path / "a.txt")
        puts = (toolcall(file, tool="bash", args={}, content="out", chat_ref="chat:s0"),)
        await b.w.store.submit(Write(kind="toolcall.record", principal="host", puts=puts)).wait()
        assert await code_of(b.take(a)) == "toolcall_conflict"


@pytest.mark.requirement("FS-10")
async def test_an_image_comes_with_its_session(tmp_path: Path) -> None:
    small, large = b"\x89PNG\r\n\x1a\n\xff\0", b"\x89PNG\r\n\x1a\n" + b"\xff\0" * 700_000
    async with two(tmp_path) as (a, b):
        await a.w.call("session.create", agent="a", session="s1")
        await say(a.w, "s1", ("user", "look"))
        ids = []
        for name, raw in (("small.png", small), ("large.png", large), ("nul", b"\0a text but for this")):
            (tmp_path / name).write_bytes(raw)
            ids.append(await a.w.read("s1", tmp_path / name))
        text = await a.assemble()
        await b.take(a)
        assert await b.shown() == [text]
        found = await b.w.store.bulk(ids, content=True)
        assert [encode_content(stored.document.content) for stored in found.values()][:2] == [small, large]
        shown = [(await each.w.call("object.get", object=ids[2])).object for each in (a, b)]
        assert shown[0].content_hash == shown[1].content_hash
        assert shown[0].payload["content"] == shown[1].payload["content"]
    for root in (tmp_path / "a", tmp_path / "b"):
        async with host(root) as again:
            stored = await again.w.store.get(ids[1], content=True)
            assert stored is not None and stored.document.content == large
        verified(root)
        backup(root, root.with_suffix(".copy"))
        assert restore(root.with_suffix(".copy"), root.with_suffix(".back")).problems == []
