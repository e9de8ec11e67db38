"""The current context: commits that the daemon makes of sessions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.clock import SystemClock
from ctxd.commits.artifact_operations import Artifacts
from ctxd.commits.commit_import import CommitImports
from ctxd.commits.commit_operations import Commits
from ctxd.commits.materialize import Materializer
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import entity_id
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers.commits import CommitCalls
from ctxd.sessions import purge_operations
from ctxd.store.verify import search, verified
from ctxd.worker_threads import in_thread
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.methods.commits import Commit
from tests.fakes.no_threads import no_threads
from tests.unit.sessions.world import World, code_of, record, say, world
from tests.waiting import until

pytestmark = pytest.mark.anyio


class Household:
    """A store with sessions, their commits and their checkpoints."""

    def __init__(self, made: World) -> None:
        self.world = made
        self.made = Commits(made.sessions, SystemClock(), machine="m", policy="flag")
        made.handlers |= bound(
            CommitCalls(
                self.made,
                CommitImports(made.sessions, self.made),
                Materializer(self.made),
                Artifacts(made.sessions, SystemClock(), policy="flag"),
            )
        )
        self.checkpoints = SessionCheckpoints(made.sessions, self.made)

    async def current(self, session: str | None = "s") -> str | None:
        """The id of the current context."""
        found = self.checkpoints.current(session)
        return (found if isinstance(found, CurrentContext) else await found).context_id

    async def commits(self) -> list[Commit]:
        """All commits, oldest first."""
        return list(reversed((await self.world.call("commit.list", limit=1000)).commits))

    async def narrative(self, commit: str | None) -> str:
        """The context of ``commit`` to read."""
        made = await self.world.call("commit.materialize", commit=commit, stop="root", format="narrative-v1")
        return str(made.content)


@asynccontextmanager
async def household(root: Path) -> AsyncIterator[Household]:
    async with world(root) as made:
        home = Household(made)
        with closing(home.made):
            yield home


@pytest.mark.requirement("CMT-20")
async def test_the_current_context_commits_pending_messages_and_polling_writes_nothing(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="coder", session="s")
        assert await home.current() is None
        assert await home.commits() == []
        await say(w, "s", ("user", "fix it"), ("assistant", "done"))
        first = await home.current()
        assert first is not None
        rows = w.store.next_seq
        for _ in range(100):
            assert isinstance(home.checkpoints.current("s"), CurrentContext), "looked up without a task"
            assert await home.current() == first
            assert await home.current(None) == first
        assert w.store.next_seq == rows
        await say(w, "s", ("user", "and now?"))
        second = await home.current()
        old, new = await home.commits()
        assert (old.commit, new.commit, new.parent) == (first, second, first)
        assert (old.message_count, new.message_count) == (2, 1)
        assert (new.principal, new.session, new.template, new.machine) == ("host", "s", "coder", "m")
        assert new.checkpoint == "tool_call", "a tool requests the current context"
        narrative = await home.narrative(second)
        assert narrative.count("fix it") == narrative.count("and now?") == 1
    async with household(tmp_path) as home:
        rows = home.world.store.next_seq
        assert await home.current() == second
        assert home.world.store.next_seq == rows, "also after a restart"
        await say(home.world, "s", ("user", "once more"))
        third = await home.current()
        narrative = await home.narrative(third)
        assert [narrative.count(text) for text in ("fix it", "and now?", "once more")] == [1, 1, 1]
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-20")
async def test_new_objects_outside_the_chat_cause_a_commit_too(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await record(w, "s", "call-1")
        first = await home.current()
        assert first is not None
        await w.call("session.pin", session="s", object="call-1")
        assert await home.current() == first, "nothing is known that was not known before"
        await record(w, "s", "call-2")
        assert await home.current() not in (None, first)


@pytest.mark.requirement("CMT-20")
async def test_a_commit_of_a_client_is_continued_and_is_the_current_one(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "one"))
        first = await home.current()
        given = {"format": "claude-code-v1", "session": "s", "parent": first}
        mine = (await w.call("commit.checkpoint", delta='{"n":1}\n', **given)).commit.commit
        assert await home.current() == mine
        old = await w.call("commit.checkpoint", delta='{"n":2}\n', valid_time=1_000, **given)
        assert old.commit.created_at_ms == 1_000
        assert await home.current() == mine, "an imported commit of the past is not the newest"
        await say(w, "s", ("user", "two"))
        last = await home.current()
        assert (await home.commits())[-1].parent == mine
        await w.call("commit.tag", commit=first, tag="x")
        assert await home.current() == last
    async with household(tmp_path) as home:
        assert await home.current() == last


@pytest.mark.requirement("CMT-20")
async def test_concurrent_questions_make_one_commit(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        await home.world.call("session.create", agent="a", session="s")
        await say(home.world, "s", ("user", "one"))
        found: list[str | None] = []

        async def ask() -> None:
            found.append(await home.current())

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(ask)
        (only,) = await home.commits()
        assert found == [only.commit] * 20


@pytest.mark.requirement("CMT-20")
async def test_a_long_chat_is_committed_in_parts_and_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxd.commits.session_checkpoints.DELTA_BYTES_MAX", 4_000)
    async with household(tmp_path) as home:
        await home.world.call("session.create", agent="a", session="s")
        for number in range(60):
            await say(home.world, "s", ("user", f"n{number:04} " + "word " * 50), ("assistant", f"a{number:04}"))
        tip = await home.current()
        assert len(await home.commits()) > 4
        narrative = await home.narrative(tip)
        assert [narrative.count(f"n{number:04} ") for number in range(60)] == [1] * 60
        assert [narrative.count(f"a{number:04}") for number in range(60)] == [1] * 60


@pytest.mark.requirement("CMT-20")
async def test_a_compaction_in_the_chat_is_a_compaction_commit(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "long story"))
        event = {"event": "compaction", "summary": "the short story"}
        await w.call("session.append", session="s", events=[event])
        await say(w, "s", ("user", "go on"))
        tip = await home.current()
        kinds = [(each.commit_type, each.summary, each.message_count) for each in await home.commits()]
        assert kinds == [("delta", "", 1), ("compaction", "the short story", 1), ("delta", "", 1)]
        made = await w.call("commit.materialize", commit=tip, format="narrative-v1")
        assert "the short story" in made.content
        assert "long story" not in made.content


@pytest.mark.requirement("CMT-11")
@pytest.mark.requirement("CMT-20")
@pytest.mark.parametrize("compaction", [{"kept_from": "k"}, {"meta": {"kept_at": [2, 0]}}])
async def test_messages_kept_by_a_compaction_are_in_its_commit_and_once_from_the_root(
    tmp_path: Path, compaction: dict[str, object]
) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "old prompt"), ("assistant", "old reply"))
        await w.call("session.append", session="s", events=[{"event": "prompt", "text": "kept prompt", "id": "k"}])
        await say(w, "s", ("assistant", "kept reply"))
        event = {"event": "compaction", "summary": "the short story", **compaction}
        side = {"event": "compaction", "summary": "an aside", "sidechain": "agent", "kept_from": "k"}
        await w.call("session.append", session="s", events=[event, side])
        await say(w, "s", ("user", "go on"))
        tip = await home.current()
        kinds = [(each.commit_type, each.message_count) for each in await home.commits()]
        assert kinds == [("delta", 4), ("compaction", 3), ("delta", 1), ("delta", 1)]
        made = await w.call("commit.materialize", commit=tip, format="narrative-v1")
        texts = ("old prompt", "the short story", "kept prompt", "kept reply", "go on")
        assert [made.content.count(text) for text in texts] == [0, 1, 1, 1, 1]
        assert made.content.index("the short story") < made.content.index("kept prompt") < made.content.index("go on")
        narrative = await home.narrative(tip)
        assert [narrative.count(text) for text in texts] == [1, 0, 1, 1, 1]


@pytest.mark.requirement("CMT-20")
@pytest.mark.parametrize("size", [1, 3_000])
async def test_a_purge_of_the_chat_removes_its_text_from_the_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("ctxd.commits.session_checkpoints.DELTA_BYTES_MAX", 4_000)
    leaked = "the-leaked-value " * size
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "before"))
        await say(w, "s", ("user", leaked))
        await w.call("session.append", session="s", events=[{"event": "compaction", "summary": leaked[:16_000]}])
        await say(w, "s", ("user", "after"))
        tip = await home.current()
        await w.call("object.purge", object="chat:s", turns=[2])
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == []
        narrative = await home.narrative(tip)
        assert "before" in narrative
        assert "after" in narrative
        assert "the-leaked" not in narrative
        await say(w, "s", ("user", "more"))
        assert await home.current() != tip
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-20")
async def test_a_purge_while_the_chat_is_committed_leaves_no_copy(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "the-leaked-value"))
        async with anyio.create_task_group() as group:
            group.start_soon(partial(w.call, "object.purge", object="chat:s", turns=[1]))
            while not w.store.status().pending_writes:
                await anyio.lowlevel.checkpoint()
            tip = await home.current()
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == []
        assert "the-leaked" not in await home.narrative(tip)


@pytest.mark.requirement("SEC-8")
async def test_a_commit_made_during_the_purge_of_a_call_has_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await record(w, "s", "c1", "the-leaked-value")
        searched = purge_operations._commits_to_restate

        async def searched_then_committed(*arguments: Any) -> list[str]:
            found = await searched(*arguments)
            await say(w, "s", ("assistant", "the-leaked-value"))
            assert found == [] and await home.current() is not None
            return found

        monkeypatch.setattr(purge_operations, "_commits_to_restate", searched_then_committed)
        assert (await w.call("object.purge", object="c1")).complete
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == []
        assert "[purged]" in await home.narrative((await home.commits())[-1].commit)
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-20")
async def test_the_current_context_of_a_session_that_is_not_loaded_has_its_newest_reply(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "one"))
        tip = await home.current()
        await say(w, "s", ("assistant", "the reply"))
        w.sessions.unload("s")
        newest = await home.current()
        assert newest != tip and "the reply" in await home.narrative(newest)
        w.sessions.unload("s")
        assert await home.current() == newest


@pytest.mark.requirement("CMT-20")
async def test_a_read_only_store_keeps_the_newest_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with household(tmp_path) as home:
        w = home.world
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "one"))
        tip = await home.current()
        await say(w, "s", ("user", "two"))

        def refuse(_: object) -> None:
            raise CtxdError("disk_full", "no room", outcome="not_applied")

        with monkeypatch.context() as patch:
            patch.setattr(w.store, "submit", refuse)
            assert await home.current() == tip
        assert await home.current() != tip
        assert await code_of(home.current("none")) == "session_not_found"


@pytest.mark.requirement("CMT-20")
async def test_a_due_checkpoint_is_made_without_blocking_calls(tmp_path: Path) -> None:
    async with household(tmp_path) as home, anyio.create_task_group() as group:
        w = home.world
        await group.start(home.checkpoints.run)
        await w.call("session.create", agent="a", session="s")
        await say(w, "s", ("user", "one"))
        home.checkpoints.note_assembled("s")
        await anyio.wait_all_tasks_blocked()
        assert await home.commits() == [], "nothing was assembled"
        await home.current()
        stored = await w.store.get(entity_id((await home.commits())[0].commit))
        assert stored is not None
        assert stored.document.payload["pos"] == [1, 1, 0, 0]
        group.cancel_scope.cancel()


@pytest.mark.requirement("SVC-16")
async def test_a_checkpoint_without_a_free_thread_is_made_with_the_next_turn(tmp_path: Path) -> None:
    async with household(tmp_path) as home, anyio.create_task_group() as group:
        w = home.world
        await group.start(home.checkpoints.run)
        await w.call("session.create", agent="a", session="s", checkpoint="turn")
        with no_threads() as refused:
            await say(w, "s", ("user", "one"), ("assistant", "two"))
            await say(w, "s", ("user", "three"))
            await until(lambda: refused)
            await anyio.wait_all_tasks_blocked()
        assert await home.commits() == []
        await say(w, "s", ("assistant", "four"), ("user", "five"))
        await until(home.commits)
        group.cancel_scope.cancel()
