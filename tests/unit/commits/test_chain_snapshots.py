"""Contexts of chains with snapshots: the same as without, from few reads, and gone with a purge."""

from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import cbor2
import msgspec
import pytest

from ctxd import sqlite_file
from ctxd.commits import chain_walk, snapshot_making
from ctxd.commits.materialize import Materializer
from ctxd.failpoints import armed
from ctxd.objects.commit_document import entity_id
from ctxd.store import chain_snapshots
from ctxd.store.chain_snapshots import ChainSnapshot, ChainSnapshots, SnapshotGone, SnapshotPart
from ctxd.store.verify import search
from tests.fakes.no_threads import no_threads
from tests.unit.commits.test_commits import committing
from tests.unit.sessions.world import CALLER, World, code_of

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_making, "SNAPSHOT_COMMITS_MIN", 4)
    monkeypatch.setattr("ctxd.commits.materialize.SNAPSHOT_COMMITS_MIN", 4)
    monkeypatch.setattr("ctxd.commits.materialize._SNAPSHOT_EVERY", 8)
    monkeypatch.setattr(chain_walk, "_BATCH", 3)


@asynccontextmanager
async def snapshotting(root: Path) -> AsyncIterator[World]:
    """A world in which snapshots are made."""
    async with committing(root) as made, anyio.create_task_group() as group:
        await group.start(materializer(made).run)
        yield made
        group.cancel_scope.cancel()


def materializer(made: World) -> Materializer:
    """The materializer behind the handlers."""
    found: Materializer = made.handlers["commit.materialize"].__self__._materializer  # type: ignore[attr-defined]
    return found


async def commit(made: World, number: int, parent: str | None, **params: Any) -> str:
    """A commit of the ``number``-th delta of a chain, whose formats take turns every ten commits."""
    if number // 10 % 2:
        given = {"format": "claude-code-v1", "delta": f'{{"type":"user","message":{{"content":"text {number}"}}}}'}
    else:
        event = {"type": "response", "timestamp": number, "response": {"content": f"text {number}"}}
        delta = b64encode(cbor2.dumps([event], canonical=True)).decode()
        given = {"format": "events-v1", "delta_base64": delta}
    return str((await made.call("commit.checkpoint", parent=parent, **given, **params)).commit.commit)


async def chain(made: World, number: int, parent: str | None = None, *, boundary: int = -1, **params: Any) -> list[str]:
    """Commits that follow each other; the one at ``boundary`` is a compaction."""
    ids: list[str] = []
    for each in range(number):
        kind = {"commit_type": "compaction"} if each == boundary else {}
        ids.append(await commit(made, each, ids[-1] if ids else parent, **kind, **params))
    return ids


async def settled(made: World) -> None:
    """Return once no snapshot is wanted."""
    waiting = materializer(made)
    with anyio.fail_after(30):
        while waiting._wanted:
            await made.store.wait_for_writes()
            await anyio.sleep(0.002)


async def contexts(made: World, tips: list[str], stops: list[str]) -> list[Any]:
    """The context of each tip to each stop in each format, made anew."""
    materializer(made)._cache.clear()
    found = []
    for tip in tips:
        for stop in stops:
            for format in (None, "events-v1", "claude-code-v1", "bureau-agent-v1", "narrative-v1", "raw-v1"):
                found.append(await made.call("commit.materialize", commit=tip, stop=stop, format=format))
    return found


def files(root: Path) -> list[str]:
    """The names of the files of snapshots."""
    return sorted(path.name for path in (root / "snapshots").glob("*"))


@pytest.mark.requirement("SVC-16")
async def test_a_snapshot_without_a_free_thread_is_made_later(tmp_path: Path) -> None:
    async with snapshotting(tmp_path) as made:
        ids = await chain(made, 7)
        with no_threads() as refused:
            materializer(made)._want_snapshot(entity_id(ids[-1]), "root")
            await settled(made)
            assert refused
        assert files(tmp_path) == []
        materializer(made)._want_snapshot(entity_id(ids[-1]), "root")
        await settled(made)
        assert files(tmp_path) != []


@pytest.mark.requirement("CMT-40")
async def test_a_context_from_snapshots_is_that_from_its_deltas(tmp_path: Path) -> None:
    """In every format, to every kind of stop, with compactions, a branch, and formats that take turns."""
    async with committing(tmp_path) as made:
        ids = await chain(made, 45, boundary=22)
        branch = await chain(made, 6, ids[30])
        tips, stops = [ids[-1], branch[-1], ids[17], ids[22]], ["compaction", "root", ids[5], ids[16]]
        plain = await contexts(made, tips, stops)
        assert not files(tmp_path)
    async with snapshotting(tmp_path) as made:
        for tip in tips:
            for stop in ("compaction", "root"):
                await made.call("commit.materialize", commit=tip, stop=stop, content=False)
                await settled(made)
        assert len(files(tmp_path)) >= 3
    async with committing(tmp_path) as made:
        assert await contexts(made, tips, stops) == plain


async def test_snapshot_deltas_do_not_occupy_the_text_cache(tmp_path: Path) -> None:
    """A history of gigabytes is imported as chains, each delta of which is read once, for a snapshot."""
    async with snapshotting(tmp_path) as made:
        parent = None
        for number in range(24):
            parent = await commit(made, number, parent, valid_time=number + 1)
            await settled(made)
        assert files(tmp_path) and made.store._texts._size == 0


@pytest.mark.requirement("CMT-40")
async def test_the_first_read_after_a_start_reads_few_commits_however_long_the_chain_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a chain that nobody has read: snapshots are made as it grows."""
    async with snapshotting(tmp_path) as made:
        ids: list[str] = []
        for number in range(70):
            ids.append(await commit(made, number, ids[-1] if ids else None))
            await settled(made)
    read: list[int] = []
    walk = chain_walk.commit_index.chain_versions

    def counted(*args: Any, **params: Any) -> Any:
        found = walk(*args, **params)
        read.append(len(found))
        return found

    monkeypatch.setattr(chain_walk.commit_index, "chain_versions", counted)
    async with committing(tmp_path) as made:
        for tip in (ids[-1], ids[66], ids[64]):
            read.clear()
            made_of = await made.call("commit.materialize", commit=tip, stop="root")
            assert made_of.commit_count == ids.index(tip) + 1
            # At most those since the last snapshot, and what one read takes beyond.
            assert sum(read) <= 8 + 3
    assert len(files(tmp_path)) <= 7, "one takes in those before it"


@pytest.mark.requirement("CMT-40")
async def test_a_lost_or_damaged_snapshot_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxd.commits.materialize._SNAPSHOT_EVERY", 1000)
    async with snapshotting(tmp_path) as made:
        tip = (await chain(made, 20))[-1]
        plain = await made.call("commit.materialize", commit=tip, stop="root")
        await settled(made)
    for harm in ("remove", "empty", "cut", "head", "content"):
        (path,) = (tmp_path / "snapshots").glob("*")
        data = path.read_bytes()
        if harm == "remove":
            path.unlink()
        else:
            place = {"empty": 0, "cut": len(data) // 2, "head": 60, "content": len(data) - 9}[harm]
            flipped = bytes([data[place] ^ 1]) + data[place + 1 :] if harm in ("head", "content") else b""
            path.write_bytes(data[:place] + flipped)
        async with snapshotting(tmp_path) as made:
            assert await made.call("commit.materialize", commit=tip, stop="root") == plain, harm
            await settled(made)
        assert len(files(tmp_path)) == 1, "made again"


@pytest.mark.requirement("CMT-40")
async def test_a_purge_leaves_nothing_in_snapshots(tmp_path: Path) -> None:
    """Also of one that was being made meanwhile, and of those that a stopped daemon has left."""
    async with snapshotting(tmp_path) as made:
        ids = await chain(made, 20)
        await made.call("commit.materialize", commit=ids[-1], stop="root", content=False)
        await settled(made)
        held = search(tmp_path, [b"text 7"], lambda *_: None)
        assert any(path.startswith("snapshots/") for path in held), "the search looks into them"
        part = snapshot_making.plan_snapshots(await _walk(made, ids[-1]).run(made.store))
        assert not part, "all is in snapshots"
        snapshots = made.store.directory.snapshots
        drops = snapshots.drops
        walked = await _walk(made, ids[-1], plain=True).run(made.store)
        (whole,) = snapshot_making.plan_snapshots(walked)
        contents = await made.store.contents(each.content_ref for each in whole)  # type: ignore[union-attr,misc]
        purged = await made.call("object.purge", object=entity_id(ids[7]))
        assert purged.complete
        snapshot_making.keep_snapshot(snapshots, whole, contents, drops)
        assert not files(tmp_path)
        assert not search(tmp_path, [b"text 7"], lambda *_: None)
        assert await code_of(made.call("commit.materialize", commit=ids[-1], stop="root")) == "purged"
        assert await code_of(made.call("commit.materialize", commit=ids[-1])) == "purged"
        after = await made.call("commit.materialize", commit=ids[-1], stop=ids[8])
        assert after.commit_count == 12


@pytest.mark.requirement("CMT-40", "SEC-8")
@pytest.mark.parametrize("restarts", [False, True])
async def test_a_purge_while_an_earlier_one_waits_for_a_reader_erases_snapshots_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: bool
) -> None:
    monkeypatch.setattr("ctxd.limits.PURGE_WAIT_S", 0.5)
    async with snapshotting(tmp_path) as made:
        await made.call("session.create", session="s1", agent="a")
        await made.call("session.append", session="s1", messages=[{"role": "user", "content": "unrelated"}])
        ids = await chain(made, 20)
        await made.call("commit.materialize", commit=ids[-1], stop="root", content=False)
        await settled(made)
        reader = sqlite_file.open_reader(tmp_path / "state.db")
        reader.execute("BEGIN; SELECT count(*) FROM journal").fetchall()
        assert not (await made.call("object.purge", object="chat:s1")).complete
        assert files(tmp_path)
        assert not (await made.call("object.purge", object=entity_id(ids[7]))).complete
        reader.close()
        if not restarts:
            with anyio.fail_after(30):
                while await made.store.purge_residue():
                    pass
    async with snapshotting(tmp_path) as made:
        assert not files(tmp_path) and not search(tmp_path, [b"text 7"], lambda *_: None)
        assert await code_of(made.call("commit.materialize", commit=ids[-1], stop="root")) == "purged"


async def test_snapshots_that_cannot_be_erased_yet_are_residue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ctxd.limits.PURGE_WAIT_S", 0.1)
    async with snapshotting(tmp_path) as made:
        ids = await chain(made, 20)
        await made.call("commit.materialize", commit=ids[-1], stop="root", content=False)
        await settled(made)
        with armed("purge.snapshot=error:ENOSPC"):
            assert (await made.call("object.purge", object=entity_id(ids[7]))).residue == ("state.db-wal", "snapshots")
        with anyio.fail_after(30):
            while await made.store.purge_residue():
                pass
        assert not files(tmp_path)


def _walk(made: World, tip: str, *, plain: bool = False) -> chain_walk.ChainWalk:
    snapshots = None if plain else made.store.directory.snapshots
    return chain_walk.ChainWalk(entity_id(tip), "root", snapshots)


@pytest.mark.requirement("CMT-40")
async def test_a_sandbox_gets_nothing_from_a_snapshot_with_commits_of_others(tmp_path: Path) -> None:
    async with snapshotting(tmp_path) as made:
        for session in ("mine", "theirs"):
            await made.call("session.create", session=session, agent="a")
        ids: list[str] = []
        for number in range(20):
            session = "theirs" if number == 3 else "mine"
            ids.append(await commit(made, number, ids[-1] if ids else None, session=session))
        await made.call("commit.materialize", commit=ids[-1], stop="root", content=False)
        await settled(made)
        assert files(tmp_path)
        confined = msgspec.structs.replace(CALLER, capability="sandbox", session="mine")
        code = await code_of(made.call("commit.materialize", caller=confined, commit=ids[-1], stop="root"))
        assert code == "commit_not_found"
        made_of = await made.call("commit.materialize", caller=confined, commit=ids[-1], stop=ids[4])
        assert made_of.commit_count == 16


@pytest.mark.requirement("CMT-40")
async def test_the_check_of_a_chain_for_a_sandbox_reads_the_commits_of_no_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1,000 commits, half of which the session of the sandbox began with: two heads and a few queries."""
    async with snapshotting(tmp_path) as made:
        await made.call("session.create", session="first", agent="a")
        ids = await chain(made, 500, session="first")
        await made.call("session.fork", session="first", fork="mine")
        ids += await chain(made, 500, ids[-1], session="mine")
        await made.call("commit.materialize", commit=ids[-1], stop="root", content=False)
        await settled(made)
    async with committing(tmp_path) as made:
        heads: list[str] = []
        queries: list[object] = []
        read, query = made.store._loader.find, made.store.read_index

        async def read_heads(missing: Any, **params: Any) -> Any:
            heads.extend(missing)
            return await read(missing, **params)

        async def count_queries(asked: Any) -> Any:
            queries.append(asked)
            return await query(asked)

        monkeypatch.setattr(made.store._loader, "find", read_heads)
        monkeypatch.setattr(made.store, "read_index", count_queries)
        confined = msgspec.structs.replace(CALLER, capability="sandbox", session="mine")
        found = await made.call("commit.materialize", caller=confined, commit=ids[-1], stop="root")
        assert found.commit_count == len(ids) == 1000
        assert len(heads) <= 3
        assert len(queries) <= 8


# --- the files ---


@pytest.mark.requirement("CMT-40")
@pytest.mark.parametrize("is_new", [False, True], ids=["before the start", "after it"])
def test_folders_and_links_among_snapshots_are_neither_read_nor_followed(tmp_path: Path, is_new: bool) -> None:
    own = tmp_path / "own"
    own.write_bytes(b"not a snapshot")
    snapshots = ChainSnapshots(tmp_path)
    if is_new:
        snapshots.keep(snapshot("a", b"a"), b"a", 0)
    folder = tmp_path / "snapshots"
    (folder / "folder.snapshot").mkdir(parents=True)
    (folder / "link.snapshot").symlink_to(own)
    (folder / "link").symlink_to(own)
    assert found(snapshots, "a") == (b"a" if is_new else None)
    snapshots.drop()
    snapshots.erase()
    assert files(tmp_path) == ["folder.snapshot"]
    assert own.read_bytes() == b"not a snapshot"


def snapshot(name: str, content: bytes, *, boundaries: int = 0) -> ChainSnapshot:
    """A snapshot of one part."""
    part = SnapshotPart("events-v1", 1, 1, len(content))
    return ChainSnapshot(f"commit:{name}", "commit:o", "", 1, boundaries, 1, (part,))


def found(snapshots: ChainSnapshots, name: str, *, across: bool = False) -> bytes | None:
    """The contents of the snapshot ``name``, None without one."""
    one = snapshots.find(f"commit:{name}", across=across)
    return None if one is None else snapshots.read(one)


@pytest.mark.requirement("CMT-40")
def test_snapshots_are_found_after_a_restart_and_evicted_least_recently_used_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = ChainSnapshots(tmp_path)
    for name in "abc":
        snapshots.keep(snapshot(name, name.encode()), name.encode(), 0)
    snapshots.keep(snapshot("a", b"across", boundaries=1), b"across", 0)
    (tmp_path / "snapshots" / "left.partial").write_bytes(b"")
    again = ChainSnapshots(tmp_path)
    assert [found(again, name) for name in "abcd"] == [b"a", b"b", b"c", None]
    assert [found(again, "a", across=True), found(again, "b", across=True)] == [b"across", b"b"]
    assert len(files(tmp_path)) == 4
    found(again, "a")
    monkeypatch.setattr(chain_snapshots, "BYTES_MAX", 4 * max(p.stat().st_size for p in tmp_path.glob("*/*")))
    again.keep(snapshot("d", b"d"), b"d", 0)
    assert (found(again, "c"), found(again, "a"), found(again, "d")) == (None, b"a", b"d")


@pytest.mark.requirement("CMT-40")
def test_a_dropped_snapshot_is_not_found_not_kept_and_erased(tmp_path: Path) -> None:
    snapshots = ChainSnapshots(tmp_path)
    snapshots.keep(snapshot("a", b"a"), b"a", 0)
    one = snapshots.find("commit:a", across=False)
    assert one is not None
    snapshots.drop()
    assert found(snapshots, "a") is None
    snapshots.keep(snapshot("b", b"b"), b"b", 0)
    assert files(tmp_path) == ["a.plain.snapshot"], "what was read before the purge is not kept"
    snapshots.keep(snapshot("c", b"c"), b"c", snapshots.drops)
    snapshots.erase()
    assert files(tmp_path) == ["c.plain.snapshot"]
    with pytest.raises(SnapshotGone):
        snapshots.read(one)
