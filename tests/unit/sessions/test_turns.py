"""Turns found by number, distance and time, and the journal sequence at the end of each."""

from pathlib import Path

import pytest

from ctxd.objects.document import AsOf
from ctxd.objects.generated_ids import segment_id
from tests.unit.sessions.world import World, code_of, record, say, world

pytestmark = pytest.mark.anyio


async def turn(w: World, **params: object) -> tuple[int, int | None]:
    """The turn that ``session.turn`` finds in session ``s``, and the sequence at its end."""
    found = await w.call("session.turn", session="s", **params)
    return found.turn, found.tx


async def heads(w: World, tx: int | None) -> list[str]:
    """The ids of the tool calls of the session as of ``tx``."""
    return list((await w.call("session.get", session="s", tx=tx)).session.session_index)


@pytest.mark.requirement("REV-3")
async def test_a_turn_ends_before_the_next_begins_despite_writes_between(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        assert await turn(w) == (0, None), "the newest turn has no end"
        calls = []
        for number in range(1, 6):
            await say(w, "s", ("user", f"question {number}"))
            await say(w, "s", ("assistant", f"answer {number}"))
            calls.append((await record(w, "s", f"call-{number}")).object)
        assert await turn(w) == (5, None)
        assert await heads(w, None) == calls
        for number in range(5):
            found, tx = await turn(w, turn=number)
            assert found == number and tx is not None
            assert await heads(w, tx) == calls[:number], "calls after the turn's last message belong to it"
            assert (await w.call("session.get", session="s", tx=tx)).session.turn_count == number
        assert [(await turn(w, back=back))[0] for back in range(6)] == [5, 4, 3, 2, 1, 0]
        assert await turn(w, turn=4, back=2) == await turn(w, turn=2)


@pytest.mark.requirement("REV-3")
async def test_turns_of_one_write_end_with_it(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        texts = [{"role": "user", "content": str(number)} for number in range(3)]
        await w.call("session.append", session="s", messages=texts)
        live = await w.sessions.live("s")
        await say(w, "s", ("user", "next"))
        written = live.seqs[live.state.pages.segment(0)]
        assert [await turn(w, turn=number) for number in (1, 2)] == [(1, written), (2, written)]
        assert (await turn(w, turn=0))[1] == written - 1 and (await turn(w, turn=3))[1] == live.seqs[-1] - 1


@pytest.mark.requirement("REV-3")
async def test_the_turn_at_a_time_is_the_one_running_then(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        for number in range(20):
            await say(w, "s", ("user", f"question {number}"))
            await say(w, "s", ("assistant", "answer"))
        live = await w.sessions.live("s")
        begun: list[tuple[int, int]] = []
        for number in range(len(live.state.pages)):
            segment = live.state.pages.segment(number)
            stored = await w.store.get(segment_id("s", segment), AsOf(tx=live.seqs[segment]))
            assert stored is not None
            begun.append((stored.valid_time, live.state.pages.first(number)[0]))
        created = live.settings.created_at
        for time in sorted(
            {created, *(each + more for each, _ in begun for more in (-1, 0, 1) if each + more > created)}
        ):
            expected = max((number for each, number in begun if each <= time), default=0)
            assert (await turn(w, valid_time=time))[0] == expected
        assert (await turn(w, valid_time=2**52))[0] == 20
        assert (await turn(w, valid_time=2**52, back=3))[0] == 17


@pytest.mark.requirement("REV-3")
async def test_a_turn_that_does_not_exist_is_not_found(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "hi"))
        created = (await w.call("session.get", session="s")).session.created_at
        missing: list[dict[str, int]] = [{"turn": 2}, {"back": 2}, {"turn": 1, "back": 2}, {"valid_time": created - 1}]
        for params in missing:
            assert await code_of(w.call("session.turn", session="s", **params)) == "turn_not_found"
        assert await code_of(w.call("session.turn", session="s", turn=1, valid_time=1)) == "invalid_params"
        assert await code_of(w.call("session.turn", session="nobody")) == "session_not_found"


@pytest.mark.requirement("REV-3")
async def test_finding_a_turn_reads_no_messages_and_few_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        for number in range(300):
            await say(w, "s", ("user", f"question {number}"))
        live = await w.sessions.live("s")
        reads: list[str] = []
        get = w.store.get

        async def counted(id: str, *args, **options):
            reads.append(id)
            return await get(id, *args, **options)

        monkeypatch.setattr(w.store, "get", counted)
        await turn(w, turn=17)
        assert reads == []
        await turn(w, valid_time=live.updated_at)
        assert 0 < len(reads) <= 10, "halving of 300 pages"


@pytest.mark.requirement("REV-3")
async def test_turns_are_found_the_same_after_a_purge_and_a_reload(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        for number in range(6):
            await say(w, "s", ("user", f"secret {number}"))
            await record(w, "s", f"call-{number}")
        live = await w.sessions.live("s")
        times = []
        for segment in (live.state.pages.segment(number) for number in range(6)):
            stored = await w.store.get(segment_id("s", segment))
            assert stored is not None
            times.append(stored.valid_time)

        async def found() -> list[tuple[int, int | None]]:
            by_time = [await turn(w, valid_time=time) for time in times]
            return by_time + [await turn(w, turn=number) for number in range(7)]

        before = await found()
        assert (await w.call("object.purge", object="chat:s", turns=(2, 3))).complete
        assert await found() == before
        w.sessions.unload("s")
        assert await found() == before
        assert [number for number, _ in before][6:] == list(range(7))
