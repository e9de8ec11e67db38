"""Commits over a real store: what only another program can have written, and what a rebuild makes of the index."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import msgspec
import pytest

from ctxd.clock import SystemClock
from ctxd.commits.commit_operations import Commits
from ctxd.objects.commit_fields import entity_id
from ctxd.objects.hashing import content_hash
from ctxd.offload import in_thread
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers.commits import CommitCalls
from ctxd.store import commit_index
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.verify import search, verified
from ctxd.store.writes import Write
from tests.unit.sessions.world import World, code_of, world

pytestmark = pytest.mark.anyio

TEXT = '{"n":1}\n'


@asynccontextmanager
async def committing(root: Path) -> AsyncIterator[World]:
    async with world(root) as made:
        commits = Commits(made.sessions, SystemClock(), machine="m", policy="flag")
        made.handlers |= bound(CommitCalls(commits))
        yield made


async def checkpoint(made: World, text: str, **params: Any) -> str:
    answer = await made.call("commit.checkpoint", format="claude-code-v1", delta=text, **params)
    return str(answer.commit.commit)


@pytest.mark.requirement("CMT-15")
async def test_a_commit_of_a_newer_writer_is_read_continued_and_not_changed(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        old = await checkpoint(made, TEXT)
        stored = await made.store.get(entity_id(old))
        assert stored is not None
        new = "ctx-0123456789ab"
        payload = {**stored.document.payload, "version": 2, "mood": "bright", "type": "merge"}
        theirs = msgspec.structs.replace(
            stored.document, id=entity_id(new), payload=payload, content=TEXT, content_hash=content_hash(payload, TEXT)
        )
        await made.store.submit(Write(kind="commit.checkpoint", principal="host", puts=(theirs,))).wait()
        shown = (await made.call("commit.show", commit=new)).commit
        assert (shown.version, shown.commit_type) == (2, "merge")
        for method, change in (("commit.annotate", {"summary": "x"}), ("commit.tag", {"tag": "x"})):
            assert await code_of(made.call(method, commit=new, **change)) == "unsupported"
        after = await checkpoint(made, TEXT, parent=new)
        assert (await made.call("commit.materialize", commit=after)).content == TEXT + TEXT
        kept = await made.store.get(entity_id(new))
        assert kept is not None
        assert kept.document.payload == payload


@pytest.mark.requirement("CMT-7")
async def test_a_rebuild_makes_the_same_index_again(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        root = await checkpoint(made, TEXT)
        tip = await checkpoint(made, TEXT, parent=root, summary="done", commit_type="compaction")
        await made.call("commit.tag", commit=root, tag="a")
        await made.call("commit.tag", commit=root, tag="b")
        await made.call("commit.tag", commit=tip, tag="a")
        before = await made.store.commits(lambda connection: [*commit_index.rows(connection)])
    assert len(before) == 2
    rebuild_tables(tmp_path / "state.db", lambda _: None)
    async with committing(tmp_path) as made:
        assert await made.store.commits(lambda connection: [*commit_index.rows(connection)]) == before
        tagged = await made.call("commit.list", tag="a")
        assert [each.commit for each in tagged.commits] == [tip]
        assert (await made.call("commit.show", commit=root)).commit.tags == ("b",)


@pytest.mark.requirement("CMT-8")
async def test_earlier_summaries_are_read_as_of_then(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        id = await checkpoint(made, TEXT, summary="first")
        await made.call("commit.annotate", commit=id, summary="second")
        history = await made.store.history(entity_id(id), content=True)
        assert [each.document.payload.get("summary") for each in history] == ["first", "second"]
        assert {each.document.content for each in history} == {TEXT}


async def test_an_entity_of_another_type_with_the_prefix_of_commits_is_none(tmp_path: Path) -> None:
    """A tool call of an earlier version may have such an id."""
    async with committing(tmp_path) as made:
        called = await made.store.get(entity_id(await checkpoint(made, TEXT)))
        assert called is not None
        id = "ctx-00000000"
        strange = msgspec.structs.replace(called.document, id=entity_id(id), type="toolcall", payload={"tool": "t"})
        await made.store.submit(Write(kind="toolcall.record", principal="host", puts=(strange,))).wait()
        assert await code_of(made.call("commit.show", commit=id)) == "commit_not_found"
        assert len((await made.call("commit.list")).commits) == 1


@pytest.mark.requirement("CMT-5")
async def test_deltas_are_compressed_and_damage_to_one_is_found(tmp_path: Path) -> None:
    text = TEXT * 2_000
    async with committing(tmp_path) as made:
        id = await checkpoint(made, text)
    database = apsw.Connection(str(tmp_path / "state.db"))
    ((size, stored),) = database.execute("SELECT size, bytes FROM content").fetchall()
    assert size == len(text)
    assert len(stored) < size / 50
    assert verified(tmp_path, lambda *_: None).worst is None
    async with committing(tmp_path) as made:
        assert (await made.call("commit.materialize", commit=id)).content == text
    for damaged in (stored[:-9], stored[:20] + b"x" + stored[21:], b"\0" * len(stored)):
        database.execute("UPDATE content SET bytes=?", (damaged,))
        assert verified(tmp_path, lambda *_: None).worst == "damage"
        async with committing(tmp_path) as made:
            assert await code_of(made.call("commit.materialize", commit=id)) == "corrupt"
    database.close()


@pytest.mark.requirement("CMT-7")
async def test_a_commit_that_the_index_lacks_is_damage_that_a_rebuild_mends(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        await checkpoint(made, TEXT)
    database = apsw.Connection(str(tmp_path / "state.db"))
    database.execute("DELETE FROM context_commit")
    database.close()
    assert verified(tmp_path, lambda *_: None).worst == "damage"
    rebuild_tables(tmp_path / "state.db", lambda _: None)
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-11")
async def test_a_context_that_does_not_fit_into_memory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ctxd.commits.materialize.CONTEXT_BYTES_MAX", 2 * len(TEXT))
    async with committing(tmp_path) as made:
        root = await checkpoint(made, TEXT)
        second = await checkpoint(made, TEXT, parent=root)
        third = await checkpoint(made, TEXT, parent=second)
        assert (await made.call("commit.materialize", commit=second)).content == TEXT + TEXT
        assert await code_of(made.call("commit.materialize", commit=third)) == "too_large"
        assert (await made.call("commit.materialize", commit=third, stop=second)).content == TEXT + TEXT


@pytest.mark.requirement("CMT-19")
async def test_the_index_is_made_again_over_a_purged_commit(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        root = await checkpoint(made, TEXT, summary="found")
        await checkpoint(made, TEXT * 2, parent=root)
        leaked = await checkpoint(made, '{"key":"the-leaked-value"}\n' * 20, parent=root)
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == ["state.db"]
        await made.call("object.purge", object=entity_id(leaked))
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == []
        await made.call("object.purge", object=entity_id(root))
        assert await code_of(made.call("commit.materialize", commit=root)) == "purged"
    rebuild_tables(tmp_path / "state.db", lambda _: None)
    assert verified(tmp_path, lambda *_: None).worst is None
    async with committing(tmp_path) as made:
        assert (await made.call("commit.show", commit=root)).commit.summary == ""
        assert len((await made.call("commit.list")).commits) == 3
