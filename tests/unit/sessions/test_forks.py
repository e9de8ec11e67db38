"""Forks: a session that goes on from a moment of another has what that had then, and neither sees the other from then
on."""

import random
from pathlib import Path
from typing import Any

import pytest

from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf
from ctxd.objects.generated_ids import entry_id
from ctxd.sessions.session_state import check
from ctxd.sessions.sessions_elsewhere import MovedSession
from ctxd.sessions.stored_session import RUN
from tests.unit.sessions.world import World, code_of, record, say, world
from tests.unit.store.running import verified

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SES-28")]

MOVES = ("activate", "deactivate", "pin", "unpin", "pool_add", "pool_remove")


async def whole(w: World, session: str, at: AsOf | None = None) -> tuple[Any, ...]:
    """The sets, the outline of the chat and its texts: now, or as of a time."""
    live = await (w.sessions.live(session) if at is None else w.sessions.as_of(session, at))
    check(live.state)
    view = live.view()
    sets = (view.session_index, view.metadata_pool, view.active_set, view.pinned_set)
    prompt = await w.sessions.store.get(view.system_prompt_ref, at or AsOf(), content=True)
    assert prompt is not None
    state = live.state
    marks = (state.turns, dict(state.calls), dict(state.recency), dict(state.read), state.segments)
    return sets, marks, list(live.seqs), view.labels, view.entries, prompt.document.content


async def said(w: World, session: str) -> list[Any]:
    found: list[Any] = []
    first = 0
    while True:
        page = await w.call("session.chat", session=session, first_turn=first, limit=1000)
        found += [(turn.number, turn.messages) for turn in page.turns]
        if page.next_turn is None:
            return found
        first = page.next_turn


async def step(w: World, rng: random.Random, session: str, number: int) -> None:
    """One random write into ``session``."""
    live = await w.sessions.live(session)
    match rng.randrange(8):
        case 0 | 1 | 2:
            await record(w, session, f"{session}-{number}", f"output {number} of {session}")
        case 3 | 4:
            await say(w, session, ("user", f"turn {number} of {session}"), ("assistant", "well"))
        case 5:
            await w.call("session.configure", session=session, labels={"n": str(number)})
        case _ if live.state.index:
            move = rng.choice(MOVES)
            try:
                await w.call(f"session.{move}", session=session, object=rng.choice(list(live.state.index)))
            except CtxdError as error:
                assert error.code in ("not_active", "not_pinned", "not_in_pool"), error
        case _:
            await w.call("session.set_system_prompt", session=session, content=f"prompt {number}")


@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (3, 4, 5))])
async def test_a_fork_equals_its_parent_at_that_time_and_branches_are_isolated(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    wanted: dict[str, tuple[Any, ...]] = {}
    chats: dict[str, list[Any]] = {}
    async with world(tmp_path / "state", live_max=2) as w:
        await w.call("session.create", agent="a", session="s0", system_prompt="first")
        sessions = ["s0"]
        moments: list[tuple[str, int]] = []
        number = 0
        for fork in range(1, 6):
            for _ in range(rng.randrange(RUN // 2)):
                number += 1
                session = rng.choice(sessions)
                await step(w, rng, session, number)
                receipt = w.sessions.store.head()
                assert receipt is not None
                moments.append((session, receipt.seq))
            if moments and rng.random() < 0.7:
                parent, tx = rng.choice(moments)
                then = await whole(w, parent, AsOf(tx=tx))
                made = await w.call("session.fork", session=parent, fork=f"s{fork}", tx=tx)
            else:
                parent = rng.choice(sessions)
                then = await whole(w, parent)
                made = await w.call("session.fork", session=parent, fork=f"s{fork}")
                assert await said(w, f"s{fork}") == await said(w, parent)
            assert made.session == f"s{fork}"
            sessions.append(made.session)
            assert await whole(w, made.session) == then
        for session in sessions:
            wanted[session], chats[session] = await whole(w, session), await said(w, session)
        for session in sessions:
            others = {each: await whole(w, each) for each in sessions if each != session}
            for _ in range(20):
                number += 1
                await step(w, rng, session, number)
            assert {each: await whole(w, each) for each in others} == others
            assert {each: await said(w, each) for each in others} == {each: chats[each] for each in others}
            wanted[session], chats[session] = await whole(w, session), await said(w, session)
    async with world(tmp_path / "state") as w:
        for session in sessions:
            assert await whole(w, session) == wanted[session], "loaded again it is the same"
            assert await said(w, session) == chats[session]
            chat = (await w.call("object.get", object=f"chat:{session}")).object
            assert chat.payload["turn_count"] == wanted[session][1][0].__len__() - 1
    verified(tmp_path / "state")


@pytest.mark.requirement("SES-17")
async def test_a_fork_knows_renamed_calls_of_its_ancestors_by_their_own_ids(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        for session in ("other", "s0"):
            await w.call("session.create", agent="a", session=session)
            await record(w, session, "call_1", f"output of {session}")
        await w.call("session.fork", session="s0", fork="s1")
        await w.call("session.fork", session="s1", fork="s2")
        for session in ("s0", "s1", "s2"):
            moved = await w.call("session.activate", session=session, object="call_1")
            assert moved.object == "toolcall:s0:call_1"
            result = {"event": "tool_result", "call": "call_1", "object": "call_1"}
            await w.call("session.append", session=session, events=[result])


class SteppingClock(SystemClock):
    """A clock that is one second later at each reading."""

    seconds = 0

    def wall_ms(self) -> int:
        self.seconds += 1
        return 1_700_000_000_000 + 1_000 * self.seconds


async def test_a_fork_at_a_time_has_what_its_session_had_and_none_of_what_followed(tmp_path: Path) -> None:
    async with world(tmp_path / "state", clock=SteppingClock()) as w:
        await w.call("session.create", agent="a", session="s0", system_prompt="old")
        await w.call("session.set_entry", session="s0", key="mode", value="old")
        await say(w, "s0", ("user", "one"))
        turn_one, receipt = w.store.newest_valid_time, w.store.head()
        assert receipt is not None
        then = await whole(w, "s0", AsOf(tx=receipt.seq))
        await say(w, "s0", ("user", "two"))
        turn_two = w.store.newest_valid_time
        await w.call("session.set_system_prompt", session="s0", content="new")
        await w.call("session.set_entry", session="s0", key="mode", value="new")
        made = await w.call("session.fork", session="s0", fork="s1", valid_time=turn_one)
        assert (made.turn, await whole(w, "s1")) == (1, then)
        entry = await w.store.get(entry_id("s1", "mode"), content=True)
        assert entry is not None and entry.document.content == '"old"'
        await w.call("session.fork", session="s1", fork="s2", valid_time=turn_two)
        assert await whole(w, "s2") == then, "the fork never had the second turn"


async def test_a_fork_writes_as_much_of_a_long_session_as_of_a_short_one(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        sizes: list[tuple[int, int]] = []
        for name, turns in (("short", 1), ("long", 3 * RUN)):
            await w.call("session.create", agent="a", session=name, system_prompt="the prompt")
            for n in range(turns):
                await say(w, name, ("user", f"turn {n}"))
            w.sessions.unload(name)
            before = len(await w.sessions.store.changes(after=0, limit=10_000))
            await w.call("session.fork", session=name, fork=f"{name}-fork")
            changes = await w.sessions.store.changes(after=before, limit=100)
            assert w.sessions.peek(name) is None, "the parent is not loaded"
            assert w.sessions.peek(f"{name}-fork") is None
            sizes.append((len(changes), sum(len(change.puts) for change in changes)))
        assert sizes[0] == sizes[1] == (1, 2)


async def test_invalid_forks_are_rejected(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "hi"))
        assert await code_of(w.call("session.fork", session="none")) == "session_not_found"
        assert await code_of(w.call("session.fork", session="s1", fork="s1")) == "session_exists"
        assert await code_of(w.call("session.fork", session="s1", tx=0)) == "session_not_found"
        assert await code_of(w.call("session.fork", session="s1", commit="ctx-12345678")) == "commit_not_found"
        await w.call("session.remove", session="s1")
        assert await code_of(w.call("session.fork", session="s1")) == "session_removed"
        await w.call("session.restore", session="s1")
        w.sessions.moved_sessions["s1"] = MovedSession("beta", None)
        assert await code_of(w.call("session.fork", session="s1")) == "session_owned_elsewhere"


async def test_a_fork_that_is_sent_again_is_made_once(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        first = await w.call("session.fork", session="s1", op_id="once")
        assert await w.call("session.fork", session="s1", op_id="once") == first
        assert len(await w.sessions.store.scan("session:")) == 2


async def test_a_purge_reaches_every_session_that_shares_the_text(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await say(w, "s1", ("user", "the first secret"))
        await w.call("session.fork", session="s1", fork="s2")
        await say(w, "s2", ("user", "the second secret"))
        await w.call("session.fork", session="s2", fork="s3")
        for session in ("s1", "s2", "s3"):
            await said(w, session)
        await w.call("object.purge", object="chat:s3")
        for session, turns in (("s1", 1), ("s2", 2), ("s3", 2)):
            texts = [message["content"] for _, messages in await said(w, session) for message in _plain(messages)]
            assert texts == ["[purged]"] * turns
        listed = (await w.call("session.list")).sessions
        assert not any("secret" in row.preview for row in listed)
    verified(tmp_path / "state")
    raw = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    assert b"secret" not in raw


def _plain(messages: Any) -> list[dict[str, Any]]:
    return [{"content": each.content} for each in messages]


async def test_the_sessions_that_know_an_object_include_forks_that_share_it(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1")
        await record(w, "s1", "before")
        await w.call("session.fork", session="s1", fork="s2")
        await record(w, "s1", "after")
        assert await w.sessions.knowing("before") == ["s1", "s2"]
        assert await w.sessions.knowing("after") == ["s1"]


async def test_a_session_is_not_emptied_while_a_fork_of_it_is_there(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s1", system_prompt="shared prompt")
        await say(w, "s1", ("user", "shared words"))
        await record(w, "s1", "c1", "shared output")
        await w.call("session.fork", session="s1", fork="s2")
        await record(w, "s2", "c2", "output of the fork")
        await w.call("session.remove", session="s1")

        async def gc() -> dict[str, Any]:
            done = await w.call("session.gc", keep_ms=0)
            return {each.session: each.reason or each.action for each in done.sessions if each.action != "retired"}

        before = await said(w, "s2")
        assert await gc() == {"s1": "forked"}
        assert await said(w, "s2") == before
        assert (await w.call("session.get", session="s2")).session.session_index == ("c1", "c2")
        assert (await w.call("session.get", session="s2")).session.state == "removed", "it was idle for 0 ms"
        assert await gc() == {"s1": "forked", "s2": "emptied"}
        assert (await w.call("object.get", object="c2")).object.state == "purged"
        assert (await w.call("object.get", object="c1")).object.state == "present"
        assert await gc() == {"s1": "emptied"}
        assert (await w.call("object.get", object="c1")).object.state == "purged"
    verified(tmp_path / "state")
    raw = b"".join(path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file())
    for text in (b"shared", b"output of the fork"):
        assert text not in raw
