"""Commits and forks that go from one journal to another: ids that are taken, interruptions, and forks of forks."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.documents import to_doc
from ctxd.backends.xtdb.messages import PutDoc
from ctxd.clock import SystemClock
from ctxd.objects.commit_document import entity_id
from ctxd.objects.document import encode_document
from ctxd.objects.generated_ids import component_text_id, entry_id
from ctxd.projection.ownership_checks import Fences
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.purge_operations import purge_chat
from ctxd.sessions.session_state import check
from ctxd.sharing.session_import import LocalSession, dated, import_session, read_destination, read_history
from tests.unit.commits.test_session_checkpoints import Household, household
from tests.unit.sessions.world import record, say
from tests.unit.sharing.test_remote_session import origin_of
from tests.unit.store.documents import document
from tests.unit.store.running import SteppingClock, verified

pytestmark = pytest.mark.anyio


async def taken(here: Household, there: Household, session: str, source: Any = None) -> None:
    """Import ``session`` from ``there``."""
    source = source or LocalSession(there.world.store)
    history = await read_history(source, session)
    assert history is not None
    store, ordinal = here.world.store, here.world.sessions.next_ordinal()
    destination = await read_destination(store, history, session, Fences(), ordinal=ordinal)
    pending = await import_session(store, source, history, destination, kind="session.adopt", principal="host")
    await pending.wait()
    here.world.sessions.unload(session)


async def committed(home: Household, n: int, **fields: Any) -> str:
    made = await home.world.call("commit.checkpoint", format="claude-code-v1", delta=f'{{"n":{n}}}\n', **fields)
    return str(made.commit.commit)


async def whole(home: Household, commit: str) -> object:
    return (await home.world.call("commit.materialize", commit=commit, stop="root")).content


async def parents(home: Household, commit: str) -> Sequence[str]:
    return [each.commit for each in (await home.world.call("commit.history", commit=commit)).commits]


async def same(one: Household, other: Household, session: str) -> None:
    lives = [await each.world.sessions.live(session) for each in (one, other)]
    for live in lives:
        check(live.state)
    assert lives[0].state == lives[1].state
    chats = [await each.world.call("session.chat", session=session) for each in (one, other)]
    assert chats[0] == chats[1]


@pytest.mark.requirement("HST-14")
@pytest.mark.requirement("CMT-1")
async def test_a_commit_whose_id_is_anothers_here_gets_a_longer_one_and_its_chain_stays_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    short = iter(range(100))

    def same_first(parent: str, artifact: str, created_at: str, template: str, *, digits: int = 8) -> str:
        # The first ids of both hosts are the same.
        return "ctx-00000000" if digits == 8 and not parent else f"ctx-{next(short):0{digits}x}{artifact[:4]}"

    async with household(tmp_path / "a") as a, household(tmp_path / "b") as b:
        with monkeypatch.context() as patched:
            patched.setattr("ctxd.objects.commit_document.context_id", same_first)
            await a.world.call("session.create", agent="a", session="s")
            root = await committed(a, 1, session="s")
            other = await committed(b, 2)
            assert root == other == "ctx-00000000"
            tip = await committed(a, 3, session="s", parent=root)
        await taken(b, a, "s")
        renamed = (await parents(b, tip))[1]
        assert renamed != other and renamed.startswith("ctx-")
        assert await whole(b, tip) == '{"n":1}\n{"n":3}\n'
        assert await whole(b, other) == '{"n":2}\n'
        await say(b.world, "s", ("user", "on b"))
        newest = await b.current()
        assert newest is not None
        rows = b.world.store.next_seq
        await taken(b, a, "s")
        assert (await parents(b, newest))[1:] == [tip, renamed]
        assert b.world.store.next_seq <= rows + 2, "what is here already is not copied"
        # Back where it was made it has its own id.
        await taken(a, b, "s")
        assert await parents(a, newest) == [newest, tip, root]
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-5")
@pytest.mark.requirement("HST-14")
@pytest.mark.parametrize("ahead_ms", [-600_000, 600_000])
async def test_tags_and_summaries_move_between_hosts_with_different_clocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ahead_ms: int
) -> None:
    async with household(tmp_path / "a") as a, household(tmp_path / "b") as b:
        monkeypatch.setattr(b.world.store, "_clock", SteppingClock(SystemClock().wall_ms() + ahead_ms))
        await a.world.call("session.create", agent="a", session="s")
        commit = await committed(a, 1, session="s")
        await a.world.call("session.fork", session="s", fork="s2")
        await taken(b, a, "s")
        await a.world.call("commit.tag", commit=commit, tag="release")
        await a.world.call("commit.annotate", commit=commit, summary="on a")
        await taken(b, a, "s2")
        shown = (await b.world.call("commit.show", commit=commit)).commit
        assert (shown.tags, shown.summary) == (("release",), "on a")
        await b.world.call("commit.annotate", commit=commit, summary="on b")
        for here, there, session in ((b, a, "s2"), (a, b, "s"), (b, a, "s2")):
            await taken(here, there, session)
            assert (await b.world.call("commit.show", commit=commit)).commit.summary == "on b"
        assert (await a.world.call("commit.show", commit=commit)).commit.summary == "on b"


@pytest.mark.requirement("HST-14")
async def test_an_interrupted_import_resumes_with_each_commit_once_from_the_same_tip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxd.sharing.commit_rewriter.DELTA_TOKENS_AHEAD", 0)
    async with household(tmp_path / "a") as a, household(tmp_path / "b") as b:
        await a.world.call("session.create", agent="a", session="s")
        for n in range(12):
            await say(a.world, "s", ("user", f"question {n}"))
            await a.current()
        source = LocalSession(a.world.store)
        history = await read_history(source, "s")
        assert history is not None and len(history.commits) == 12
        for _ in range(2):
            here = await read_destination(b.world.store, history, "s", Fences(), ordinal=1)
            broken = _Ends(source, 5)
            with pytest.raises(InterruptedError):
                await import_session(b.world.store, broken, history, here, kind="session.adopt", principal="host")
            await b.world.store.wait_for_writes()
        await taken(b, a, "s")
        await same(a, b, "s")
        tip = await a.current()
        assert tip is not None and await b.current() == tip
        assert await parents(a, tip) == await parents(b, tip)
        assert await a.narrative(tip) == await b.narrative(tip)
        assert len(await b.commits()) == 12
        versions = [await b.world.store.history(entity_id(each.commit)) for each in await b.commits()]
        assert [len(each) for each in versions] == [1] * 12
    verified(tmp_path / "b")


@pytest.mark.requirement("HST-14")
async def test_the_round_trips_of_an_import_do_not_grow_with_its_commits(tmp_path: Path) -> None:
    """A trip to the node takes milliseconds: one for each delta was half a minute for a long chain."""
    trips: list[int] = []
    async with household(tmp_path / "a") as a, household(tmp_path / "b") as b, household(tmp_path / "c") as c:
        await a.world.call("session.create", agent="a", session="s")
        parent: str | None = None
        for here, more in ((b, 30), (c, 170)):
            for n in range(more):
                parent = await committed(a, n, session="s", parent=parent)
            source = _Counts(LocalSession(a.world.store))
            await taken(here, a, "s", source)
            trips.append(len(source.trips))
            commits = [id for _, ids in source.trips for id in ids if id.startswith("commit:")]
            assert sorted(commits) == sorted(set(commits)), "each is read once"
            assert parent is not None and await whole(here, parent) == await whole(a, parent)
        assert trips[1] <= trips[0] + 1, "four times as many texts are fetched the next time"
        # A long delta is fetched alone.
        long = [await committed(a, n, session="s", parent=parent, token_count=1_000_000 + n) for n in range(3)]
        source = _Counts(LocalSession(a.world.store))
        await taken(b, a, "s", source)
        sizes = [len(ids) for name, ids in source.trips if name == "contents"]
        assert len(sizes) < 10 and sizes[-3:] == [1, 1, 1]
        assert await whole(b, long[2]) == await whole(a, long[2])


class _Counts:
    """A source that counts the trips to it."""

    def __init__(self, source: LocalSession) -> None:
        self._source = source
        self.trips: list[tuple[str, list[str]]] = []

    def __getattr__(self, name: str) -> Any:
        called = getattr(self._source, name)

        def call(given: Any, *args: Any, **options: Any) -> Any:
            items = [given] if isinstance(given, str) else list(given)
            self.trips.append((name, items if name in ("newest", "contents") else []))
            return called(given if isinstance(given, str) else items, *args, **options)

        return call


class _Ends:
    """A source that ends after some reads of contents."""

    def __init__(self, source: LocalSession, reads: int) -> None:
        self._source = source
        self._left = reads

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    async def contents(self, refs: Any) -> Any:
        self._left -= 1
        if self._left < 0:
            raise InterruptedError
        return await self._source.contents(refs)


@pytest.mark.requirement("HST-15")
async def test_a_fork_of_a_fork_moves_there_and_back_with_its_shared_parts(tmp_path: Path) -> None:
    async with household(tmp_path / "a") as a, household(tmp_path / "b") as b:
        await a.world.call("session.create", agent="a", session="s", system_prompt="be good")
        for n in range(40):
            await record(a.world, "s", f"s-{n}", f"out {n}")
        await say(a.world, "s", ("user", "in all of them"))
        base = await a.current()
        await a.world.call("session.fork", session="s", fork="f")
        await record(a.world, "f", "f-0")
        await a.world.call("session.set_system_prompt", session="f", content="be better")
        await a.world.call("session.fork", session="f", fork="g")
        for session in "sfg":
            await say(a.world, session, ("user", f"only in {session}"))
        await taken(b, a, "g")
        await same(a, b, "g")
        assert list(b.world.sessions.catalog.states()) == ["g"]
        tip = await b.current("g")
        assert tip is not None and (await parents(b, tip))[1:] == [base]
        text = await b.narrative(tip)
        assert [text.count(f"only in {session}") for session in "sfg"] == [0, 0, 1]
        await say(b.world, "g", ("user", "on b"))
        head = a.world.sessions.catalog.settings("g").base
        rows = a.world.store.next_seq
        await taken(a, b, "g")
        await same(a, b, "g")
        assert a.world.sessions.catalog.settings("g").base == head, "it shares its beginning again"
        assert a.world.store.next_seq - rows < 10
        await same(a, a, "f")
        # One that was made on b goes where its ancestors are, but as others know them.
        await b.world.call("session.fork", session="g", fork="h")
        await taken(a, b, "h")
        await same(a, b, "h")
    for name in "ab":
        verified(tmp_path / name)


@pytest.mark.requirement("HST-1")
async def test_component_texts_and_entries_of_another_host_are_read() -> None:
    ids = [component_text_id("s", "f" * 32), entry_id("s", "mode")]
    puts = []
    for id in ids:
        body = encode_document(document("any", type=id.partition(":")[0]))
        puts.append(PutDoc(to_doc(Version(id, 5, 1, 1, body), "w"), 5))
    origin = await origin_of(*puts)
    for id in ids:
        assert [stored.document.id for stored in await origin.scan(f"{id.partition('#')[0]}#")] == [id]


@pytest.mark.requirement("HST-14")
async def test_a_commit_whose_summary_a_purge_erased_keeps_the_row_that_made_it(tmp_path: Path) -> None:
    async with household(tmp_path / "a") as a:
        await a.world.call("session.create", agent="a", session="s")
        await say(a.world, "s", ("user", "a secret prompt"))
        commit = await committed(a, 1, session="s")
        store, sessions = a.world.store, a.world.sessions
        id = entity_id(commit)
        made = (await store.heads((id,)))[id]
        await a.world.call("commit.annotate", commit=commit, summary="a secret prompt")
        call, live = WriteRequest("object.purge", "host"), await sessions.live("s")
        await purge_chat(sessions, call, live.session, None)
        head = (await store.heads((id,)))[id]
        assert made is not None and head is not None and "summary" not in head.document.payload
        assert [each[1] for each in await dated(LocalSession(store), [head])] == [made.tx]
