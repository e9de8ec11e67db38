"""Checkpoints by policy: turns and tool calls that the daemon commits by itself."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from tests.unit.commits.test_session_checkpoints import Household, household
from tests.unit.sessions.world import record, say
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("SES-30")]


@asynccontextmanager
async def running(root: Path) -> AsyncIterator[Household]:
    """A household whose checkpoints run."""
    async with household(root) as home, anyio.create_task_group() as group:
        await group.start(home.checkpoints.run)
        yield home
        group.cancel_scope.cancel()


async def committed(home: Household, count: int, session: str = "s") -> list[tuple[str, int]]:
    """The triggers and counts of messages of the commits of ``session`` once there are ``count``."""
    found: list[tuple[str, int]] = []

    async def there() -> bool:
        found[:] = [(each.checkpoint, each.message_count) for each in await home.commits() if each.session == session]
        return len(found) >= count

    await until(there)
    assert len(found) == count
    return found


async def test_each_turn_is_committed_when_the_next_one_begins_and_the_last_one_at_a_pause(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s", checkpoint="turn")
        await w.call("session.create", agent="a", session="plain")
        for n in range(3):
            for session in ("s", "plain"):
                await say(w, session, ("user", f"question {n}"), ("assistant", f"answer {n}"))
                await record(w, session, f"{session}-{n}")
            if n:
                await committed(home, n)
        await w.call("session.pause", session="s")
        assert await committed(home, 3) == [("turn_boundary", 2), ("turn_boundary", 2), ("explicit", 2)]
        one, two, three = await home.commits()
        assert (one.parent, two.parent, three.parent) == (None, one.commit, two.commit)
        assert (one.template, one.format) == ("a", "events-v1")
        text = await home.narrative(three.commit)
        assert [text.count(f"{word} {n}") for word in ("question", "answer") for n in range(3)] == [1] * 6
        assert not [each for each in await home.commits() if each.session == "plain"]


async def test_turns_that_ended_before_the_daemon_did_are_committed_at_its_next_start_once(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s", checkpoint="turn")
        for n in range(3):
            await say(w, "s", ("user", f"question {n}"), ("assistant", "answer"))
        assert await home.commits() == [], "nothing runs"
    for _ in range(2):
        async with running(tmp_path) as home:
            assert await committed(home, 1) == [("turn_boundary", 4)]
            (only,) = await home.commits()
    async with running(tmp_path) as home:
        await say(home.world, "s", ("user", "question 3"))
        await committed(home, 2)
        _, second = await home.commits()
        assert (second.parent, second.message_count) == (only.commit, 2)


async def test_tool_calls_are_committed_in_batches_and_a_policy_may_change(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "go"))
        await w.call("session.configure", session="s", checkpoint="tool")
        for n in range(50):
            await record(w, "s", f"c{n}")

        async def all_in() -> bool:
            newest = home.checkpoints._newest.get("s")
            return newest is not None and newest.position.objects == 50

        await until(all_in)
        assert len(await home.commits()) < 50
        assert {each.checkpoint for each in await home.commits()} == {"tool_call"}
        await w.call("session.configure", session="s", checkpoint="none")
        count = len(await home.commits())
        await say(w, "s", ("user", "next"), ("user", "and next"))
        await w.call("session.pause", session="s")
        assert len(await home.commits()) == count
        assert (await w.call("session.get", session="s")).session.checkpoint == "none"


async def test_a_fork_continues_the_chain_of_its_parent_where_it_began(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s", checkpoint="turn")
        for n in range(3):
            await say(w, "s", ("user", f"question {n}"), ("assistant", f"answer {n}"))
            if n:
                await committed(home, n)
        first, second = await home.commits()
        await w.call("session.fork", session="s", fork="f", commit=first.commit)
        await say(w, "f", ("user", "another way"), ("assistant", "Fine."))
        await say(w, "f", ("user", "later"))
        await committed(home, 1, "f")
        (own,) = [each for each in await home.commits() if each.session == "f"]
        assert own.parent == first.commit
        text = await home.narrative(own.commit)
        found = [text.count(each) for each in ("question 0", "question 1", "another way", "later")]
        assert found == [1, 0, 1, 0], "the commit is of the turn before the one under way"
        await say(w, "s", ("user", "question 3"))
        await committed(home, 3)
        third = (await home.commits())[-1]
        assert (third.session, third.parent) == ("s", second.commit)
        assert await home.current("f") != await home.current("s")


async def test_compactions_are_committed_also_those_before_a_kill_and_turns_are_not(tmp_path: Path) -> None:
    async with running(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s", checkpoint="compaction")
        await say(w, "s", ("user", "one"), ("assistant", "yes"), ("user", "two"))
        await w.call("session.append", session="s", events=[{"event": "compaction", "summary": "All was read."}])
        assert await committed(home, 2) == [("compaction", 3), ("compaction", 1)]
        await say(w, "s", ("user", "three"), ("user", "four"))
        await w.call("session.create", agent="a", session="t", checkpoint="turn")
        await say(w, "t", ("user", "one"), ("user", "two"))
        await committed(home, 1, "t")
        assert len(await committed(home, 2)) == 2, "turns are not committed"
    async with household(tmp_path) as home:
        await home.world.call("session.append", session="s", events=[{"event": "compaction", "summary": "Again."}])
    async with running(tmp_path) as home:
        assert (await committed(home, 4))[2:] == [("compaction", 2), ("compaction", 1)]
        await say(home.world, "s", ("user", "five"))
    async with running(tmp_path) as home:
        await home.world.call("session.pause", session="s")
        assert (await committed(home, 5))[4:] == [("explicit", 1)], "a pause is no compaction"


@pytest.mark.parametrize("policy", ["turn", "tool", "compaction"])
async def test_the_checkpoint_at_the_end_of_a_session_names_that_end(tmp_path: Path, policy: str) -> None:
    async with running(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s", checkpoint=policy)
        await say(w, "s", ("user", "one"), ("assistant", "yes"))
        await w.call("session.pause", session="s")
        await committed(home, 1)
        await w.call("session.resume", session="s")
        await say(w, "s", ("user", "two"), ("assistant", "no"))
        await w.call("session.close", session="s")
        assert await committed(home, 2) == [("explicit", 2), ("session_end", 2)]
    async with running(tmp_path) as home:
        await home.world.call("session.create", agent="a", session="t")
        assert len(await home.commits()) == 2, "nothing is left to commit"
