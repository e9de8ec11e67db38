"""A session that is loaded again is the one that was in memory."""

import random
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd import sqlite_file
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Stored
from ctxd.objects.generated_ids import segment_id
from ctxd.sessions.session_loading import load
from ctxd.sessions.session_state import check
from ctxd.worker_threads import Lane
from tests.unit.sessions.world import HOST, code_of, filled, record, say, world

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("SES-11")
async def test_a_reloaded_session_is_identical(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await filled(w, "s1", tmp_path)
        before = await w.call("session.get", session="s1")
        chat = await w.call("session.chat", session="s1")
        state = (await w.sessions.live("s1")).state
        listed = await w.call("session.list")
    async with world(tmp_path / "state") as w:
        assert w.sessions.live_count == 0
        after = await w.call("session.get", session="s1")
        assert after.session == before.session
        assert await w.call("session.chat", session="s1") == chat
        assert (await w.sessions.live("s1")).state == state
        assert await w.call("session.list") == listed


@pytest.mark.requirement("DUR-10")
@pytest.mark.parametrize("number", [0, 3])
async def test_a_session_whose_segment_has_no_version_is_corrupt_and_not_shorter(tmp_path: Path, number: int) -> None:
    root = tmp_path / "state"
    async with world(root) as w:
        await w.call("session.create", agent="a", session="s1")
        for n in range(4):
            await record(w, "s1", f"call-{n}")
    connection = sqlite_file.open_writer(root / "state.db")
    entity = "(SELECT n FROM entity WHERE id=?)"
    connection.execute(f"DELETE FROM version WHERE entity={entity}", (segment_id("s1", number),)).fetchall()
    connection.close()
    async with world(root) as w:
        for method in ("session.get", "session.chat"):
            assert await code_of(w.call(method, session="s1")) == "corrupt"


async def test_a_long_session_is_the_same_out_of_its_bundles_and_out_of_its_segments(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        last = None
        for n in range(600):
            if n % 7 == 0:
                text = "long " * (2000 if n % 70 == 0 else 1)
                last = await w.begin("session.append", session="s1", messages=[{"role": "user", "content": text}])
            else:
                last = await w.begin("toolcall.record", session="s1", id=f"call-{n}", tool="t", content=str(n))
        receipt = await last.pending.wait()
        live = await w.sessions.live("s1")
        view = live.view()
    async with world(tmp_path / "state") as w:
        again = await w.sessions.live("s1")
        assert (again.state, again.seqs, again.view()) == (live.state, live.seqs, view)
        past = await w.sessions.as_of("s1", AsOf(tx=receipt.seq))
        assert (past.state, past.seqs, past.view()) == (live.state, live.seqs, view)
        for n in range(600, 1300):
            last = await w.begin("toolcall.record", session="s1", id=f"call-{n}", tool="t", content=str(n))
        await last.pending.wait()
    async with world(tmp_path / "state") as w:
        assert (await w.sessions.live("s1")).state == again.state


async def test_the_segments_after_the_last_bundle_are_read_at_once_unless_they_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        for n in range(40):
            await say(w, "s1", ("user", f"{n} " + "x" * 1000))
        state = (await w.sessions.live("s1")).state
        scans: list[int] = []
        scan = w.store.scan

        async def counted(*arguments: Any, **options: Any) -> list[Stored]:
            found = await scan(*arguments, **options)
            scans.append(len(found))
            return found

        monkeypatch.setattr(w.store, "scan", counted)
        w.sessions.unload("s1")
        assert (await w.sessions.live("s1")).state == state
        assert scans == [1, 40]
        scans.clear()
        monkeypatch.setattr("ctxd.sessions.session_loading.PAGE_BYTES", 10_000)
        w.sessions.unload("s1")
        assert (await w.sessions.live("s1")).state == state
        assert scans[0] == 1 and sum(scans[1:]) == 40 and 2 <= max(scans) <= 10


async def test_a_session_growing_during_a_read_is_read_consistently(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w, anyio.create_task_group() as group:
        await w.call("session.create", agent="a", session="s1")
        turns = 0

        async def go_on() -> None:
            nonlocal turns
            while True:
                await say(w, "s1", ("user", "on"))
                turns += 1

        group.start_soon(go_on)
        for _ in range(20):
            before = turns
            read = await w.sessions.as_of("s1")
            assert before <= read.state.turn <= turns + 1
        group.cancel_scope.cancel()


async def test_idle_sessions_are_unloaded_and_come_back_equal(tmp_path: Path) -> None:
    async with world(tmp_path / "state", live_max=2) as w:
        for n in range(6):
            await w.call("session.create", agent="a", session=f"s{n}")
            await record(w, f"s{n}", f"call-{n}")
        assert w.sessions.live_count == 2
        for n in range(6):
            view = (await w.call("session.get", session=f"s{n}")).session
            assert view.active_set == (f"call-{n}",)
        assert w.sessions.live_count == 2


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.requirement("SES-11")
async def test_a_reloaded_session_equals_the_live_one_after_random_requests(tmp_path: Path, seed: int) -> None:
    """Requests at random, refused ones among them; what is in memory is held against what is stored."""
    rng = random.Random(seed)
    methods = ["activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove"]
    async with world(tmp_path / "state", live_max=2) as w:
        names = ["s0", "s1", "s2"]
        for name in names:
            await w.call("session.create", agent="a", session=name, collapse={"per_turn": 2, "turns": 2})
        refused = 0
        for n in range(400):
            name = rng.choice(names)
            try:
                if rng.random() < 0.3:
                    await w.begin(
                        "toolcall.record", session=name, id=f"call-{rng.randrange(40)}", tool="t", content="x"
                    )
                elif rng.random() < 0.1:
                    await w.begin("session.append", session=name, messages=[{"role": "user", "content": str(n)}])
                else:
                    target = f"call-{rng.randrange(40)}"
                    await w.begin(f"session.{rng.choice(methods)}", session=name, object=target)
            except CtxdError:
                refused += 1
            if n % 20 == 0:
                live = await w.sessions.live(name)
                if live.barrier is not None:
                    await live.barrier.wait()
                stored = await w.sessions.as_of(name)
                check(stored.state)
                assert (stored.state, stored.view(), stored.seqs) == (live.state, live.view(), live.seqs)
        assert 0 < refused < 350


async def test_a_reference_to_an_unloaded_session_cannot_write(tmp_path: Path) -> None:
    async with world(tmp_path / "state", live_max=1) as w:
        await w.call("session.create", agent="a", session="s0")
        live = await w.sessions.live("s0")
        await w.call("session.create", agent="a", session="s1")
        with pytest.raises(CtxdError, match="was unloaded"):
            live.require_current()
        assert await w.sessions.live("s0") is not live
        assert await w.sessions.live("s0") is await w.sessions.live("s0"), "the newest stays"


async def test_no_more_idle_sessions_are_unloaded_than_there_are_too_many(tmp_path: Path) -> None:
    async with world(tmp_path / "state", live_max=2) as w:
        lives = []
        for n in range(3):
            await w.call("session.create", agent="a", session=f"s{n}")
            lives.append(await w.sessions.live(f"s{n}"))
        assert [live.lost for live in lives] == [True, False, False]


async def test_a_session_at_work_is_not_unloaded(tmp_path: Path) -> None:
    async with world(tmp_path / "state", live_max=1) as w:
        await w.call("session.create", agent="a", session="s0")
        busy = await w.sessions.live("s0")
        async with busy.lock:
            await w.call("session.create", agent="a", session="s1")
            assert await w.sessions.live("s0") is busy
            assert not busy.lost


async def test_a_session_of_an_earlier_time_has_the_turns_that_it_had_then(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        created = (await w.call("session.create", agent="a", session="s")).receipt
        known = [(created.seq, created.vt, 0)]
        for text in ("one", "three", "x"):
            receipt = (await say(w, "s", ("user", text), ("assistant", "yes"))).receipt
            known.append((receipt.seq, receipt.vt, (await w.sessions.live("s")).state.turn))
        for seq, valid_time, turns in known:
            past = await load(
                w.store,
                "s",
                AsOf(tx=seq),
                host_filesystem_id=HOST,
                lane=Lane("test", 1),
                lineage=w.sessions.lineage("s"),
            )
            assert past is not None
            assert (past.state.turn, past.updated_at) == (turns, valid_time)
        assert [turns for *_, turns in known] == [0, 1, 2, 3]
