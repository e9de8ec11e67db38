"""Assemblies while others write: what was recorded is always what the store gives as of the record."""

import random
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import anyio
import msgspec
import pytest

from ctxd import failpoints
from ctxd.assembly import spec_layout
from ctxd.errors import CtxdError
from ctxd.sessions import chat_operations, file_operations
from ctxd.sessions.compaction_kept_messages import kept_events
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import CompactionEvent, Event, PromptEvent
from ctxd_protocol.session_types import Message
from tests.unit.assembly.parsing import parse
from tests.unit.assembly.reference import ChatText
from tests.unit.assembly.stored_sessions import Household, household
from tests.waiting import until


async def work(home: Household, live: LiveSession, seed: int, made: list[AssembledContext]) -> None:
    rng = random.Random(seed)
    for step in range(40):
        path = home.files / f"f{rng.randint(0, 5)}.py"
        match rng.randint(0, 5):
            case 0:
                path.write_text(f"by {seed} in step {step}\n" * rng.randint(0, 5))
            case 1 if path.exists():
                async with live.lock:
                    await home.read(live, path)
            case 2:
                async with live.lock:
                    await home.discover(live, [path])
            case 3:
                async with live.lock:
                    home.append(live, Message(role="user", content=f"{seed}: {step}"))
            case 4:
                async with live.lock:
                    home.record(live, f"{live.session}-{step}", "out " * step)
            case _:
                made.append(await home.assemble(live))


@pytest.mark.anyio
@pytest.mark.parametrize("seed", range(4))
async def test_sessions_sharing_files_each_record_the_state_at_their_time(tmp_path: Path, seed: int) -> None:
    made: list[AssembledContext] = []
    async with household(tmp_path) as home:
        with anyio.fail_after(60):
            async with anyio.create_task_group() as group:
                for n in range(5):
                    live = await home.create(f"s{n}", budget_tokens=200 if n == 4 else None)
                    group.start_soon(work, home, live, seed * 100 + n, made)
        for one in made:
            shown = (await home.archive.show(one.session, number=one.number)).context
            # A repeat tells the plan of now, which files that are left out may have changed since the record.
            assert shown == (msgspec.structs.replace(one, plan=shown.plan) if one.session == "s4" else one)
    assert len(made) > 20


@pytest.mark.anyio
async def test_two_assemblies_at_once_make_one_record(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.append(live, Message(role="user", content="x"))
        made: list[AssembledContext] = []

        async def one() -> None:
            made.append(await home.assemble(live))

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(one)
    assert [context.number for context in made] == [1] * 5


@pytest.mark.anyio
async def test_an_assembly_cancelled_at_any_point_leaves_the_session_usable(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        path = home.files / "a.py"
        for attempt in range(12):
            path.write_text("x" * attempt)
            home.append(live, Message(role="user", content=f"{attempt}"))
            await home.read(live, path)
            path.write_text("x" * attempt + "y")
            with anyio.CancelScope() as scope:
                async with anyio.create_task_group() as group:

                    async def give_up(scope: anyio.CancelScope = scope, attempt: int = attempt) -> None:
                        for _ in range(attempt):
                            await anyio.lowlevel.checkpoint()
                        scope.cancel()

                    group.start_soon(give_up)
                    await home.assemble(live)
        with anyio.fail_after(30):
            made = await home.assemble(live)
            assert (await home.archive.show("s")).context == made
        assert parse(made.text).active[-1].content.endswith("y")


@pytest.mark.anyio
@pytest.mark.requirement("CTX-5")
@pytest.mark.requirement("CTX-12")
async def test_an_assembly_cancelled_while_it_reads_kept_messages_loses_no_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = 0

    async def slow(
        live: LiveSession, place: EventPosition, compaction: CompactionEvent
    ) -> AsyncGenerator[tuple[EventPosition, int, Event], None]:
        nonlocal reads
        reads += 1
        await (anyio.sleep_forever() if reads == 1 else anyio.lowlevel.checkpoint())
        async with aclosing(kept_events(live, place, compaction)) as kept:
            async for each in kept:
                yield each

    monkeypatch.setattr(spec_layout, "kept_events", slow)
    async with household(tmp_path) as home:
        live = await home.create(prompt="")
        events = [
            PromptEvent(text="old"),
            PromptEvent(text="kept", id="k"),
            CompactionEvent(summary="s", kept_from="k"),
        ]
        delta = chat_operations.append_delta(live.state, "s", events, live.settings.collapse)
        live.submit(WriteRequest("session.append", "p"), delta)
        with anyio.move_on_after(0.05):
            await home.assemble(live)
        made = await home.assemble(live)
        assert reads == 2 and parse(made.text).chat == (
            ChatText(role="user", text="s"),
            ChatText(role="user", text="kept"),
        )
        assert (await home.archive.show("s")).context == made


@pytest.mark.anyio
async def test_a_record_that_was_lost_is_made_again_and_nothing_of_it_stays(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live, other, reader = await home.create(), await home.create("other"), await home.create("reader")
        home.append(live, Message(role="user", content="kept"))
        first = await home.assemble(live)
        path = home.files / "shared.py"
        path.touch()
        await home.discover(other, [path])
        known = await home.assemble(other)
        path.write_text("read, and lost")
        found = await home.indexer.index(reader.mounts, "/", str(path))
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            # Nothing from here to the commit's failure gives way to it.
            reader.submit(
                WriteRequest("file.index", "p"), file_operations.read_delta(reader.state, found.object), puts=found.puts
            )
            home.record(live, "call_1", "lost")
            home.append(other, Message(role="user", content="lost too"))
            lost = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"))
            showing = await home.assembler.assemble(other, WriteRequest("context.assemble", "p"))
            assert (lost.context.number, showing.context.number) == (2, 2)
            with pytest.raises(CtxdError) as caught:
                assert lost.pending is not None
                await lost.pending.wait()
        assert caught.value.code == "disk_full"
        assert "char_count=14" in showing.context.text
        live, other = await home.sessions.live("s"), await home.sessions.live("other")
        await writable(home)
        assert await home.assemble(live) == first
        assert (await home.assemble(other)).text == known.text
        home.append(live, Message(role="user", content="after"))
        second = await home.assemble(live)
        assert second.number == 2
        assert (await home.archive.show("s")).context == second


@pytest.mark.anyio
async def test_another_sessions_reading_shows_in_a_session_that_did_nothing_itself(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        one, other = await home.create("one"), await home.create("other")
        path = home.files / "a.py"
        path.touch()
        await home.discover(one, [path])
        for _ in range(3):
            assert "[unread]" in (await home.assemble(one)).text
        path.write_text("now it is read")
        await home.read(other, path)
        assert other.last_pending is not None
        await other.last_pending.wait()
        assert "char_count=14" in (await home.assemble(one)).text


@pytest.mark.anyio
async def test_a_record_shows_every_version_accepted_before_it_also_one_that_is_not_durable_yet(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        one, other = await home.create("one"), await home.create("other")
        active, stub = home.files / "active.py", home.files / "stub.py"
        active.write_text("old")
        stub.touch()
        await home.read(one, active)
        await home.discover(one, [stub])
        for _ in range(3):
            await home.assemble(one)
        active.write_text("new text")
        stub.write_text("stub text")
        read = [await home.indexer.index(other.mounts, "/", str(path)) for path in (active, stub)]
        with failpoints.armed("journal.flush=sleep:300ms*1"):
            for found in read:
                delta = file_operations.read_delta(other.state, found.object)
                other.submit(WriteRequest("file.index", "p"), delta, puts=found.puts, floor_vt=found.floor_vt)
            made = await home.assemble(one)
        assert made.blocks[-1].text.endswith("\nnew text")
        assert "char_count=9" in made.text
        assert (await home.archive.show("one")).context == made


@pytest.mark.anyio
async def test_a_lost_version_is_not_confused_with_the_one_reusing_its_sequence(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        onlooker, reader = await home.create("onlooker"), await home.create("reader")
        path = home.files / "a.py"
        path.touch()
        await home.discover(onlooker, [path])
        for _ in range(3):
            await home.assemble(onlooker)
        path.write_text("lost")
        found = await home.indexer.index(reader.mounts, "/", str(path))
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            pending = reader.submit(
                WriteRequest("file.index", "p"), file_operations.read_delta(reader.state, found.object), puts=found.puts
            )
            await home.assembler.plan(onlooker, None)
            with pytest.raises(CtxdError):
                await pending.wait()
        await writable(home)
        path.write_text("kept, and longer")
        reader = await home.sessions.live("reader")
        await home.read(reader, path)
        assert reader.last_pending is not None
        await reader.last_pending.wait()
        assert reader.last_pending.seq == pending.seq
        assert "char_count=16" in (await home.assemble(onlooker)).text


async def writable(home: Household) -> None:
    """Return once the store takes writes again; it tells nobody of that, so it is asked."""
    await until(lambda: home.store.status().state == "ok")


@pytest.mark.anyio
async def test_unrelated_writes_cause_no_new_version_lookups_in_an_assembly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        one, other = await home.create("one"), await home.create("other")
        paths = [home.files / f"{n}.py" for n in range(50)]
        for path in paths:
            path.touch()
        ids = set(await home.discover(one, paths))
        await home.assemble(one)
        seen: list[str] = []
        peek = home.store.peek

        def counted(id: str) -> object:
            seen.append(id)
            return peek(id)

        async def looked_at() -> int:
            assert other.last_pending is not None
            await other.last_pending.wait()
            seen.clear()
            monkeypatch.setattr(home.store, "peek", counted)
            await home.assemble(one)
            monkeypatch.undo()
            return len(ids.intersection(seen))

        home.record(other, "call-1", "output")
        assert await looked_at() == 0
        unrelated = home.files / "unrelated.py"
        unrelated.write_text("text")
        await home.read(other, unrelated)
        assert await looked_at() == 0
        paths[0].write_text("text")
        await home.read(other, paths[0])
        assert await looked_at() == len(ids)
        assert await looked_at() == 0
