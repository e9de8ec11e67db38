"""Commits over a real store: what only another program can have written, and what a rebuild makes of the index."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import apsw
import cbor2
import msgspec
import pytest

from ctxd.clock import SystemClock
from ctxd.commits.artifact_operations import Artifacts
from ctxd.commits.commit_import import CommitImports
from ctxd.commits.commit_operations import Commits
from ctxd.commits.delta_scan import delta_captured
from ctxd.commits.materialize import Materializer
from ctxd.formats.cbor_array import array_head, items, joined
from ctxd.formats.events_v1 import encoded_items, events
from ctxd.objects.commit_document import entity_id
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers.commits import CommitCalls
from ctxd.secrets.redaction import Capture, ephemeral_guard
from ctxd.store import commit_index
from ctxd.store.backup import backup, restore
from ctxd.store.commit_index import CommitFilter
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.verify import search, verified
from ctxd.store.write_types import Write
from ctxd.worker_threads import in_thread
from ctxd_protocol.event_types import OpaqueEvent, PromptEvent
from tests.unit.sessions.world import World, code_of, world

pytestmark = pytest.mark.anyio

TEXT = '{"n":1}\n'


@asynccontextmanager
async def committing(root: Path) -> AsyncIterator[World]:
    async with world(root) as made:
        commits = Commits(made.sessions, SystemClock(), machine="m", policy="flag")
        made.handlers |= bound(
            CommitCalls(
                commits,
                CommitImports(made.sessions, commits),
                Materializer(commits),
                Artifacts(made.sessions, SystemClock(), policy="flag"),
            )
        )
        with closing(commits):
            yield made


async def checkpoint(made: World, text: str, **params: Any) -> str:
    answer = await made.call("commit.checkpoint", format="claude-code-v1", delta=text, **params)
    return str(answer.commit.commit)


@pytest.mark.requirement("CMT-9")
@pytest.mark.parametrize("name", ["HEAD", "ctx-01234567", "ctx-" + "a" * 64])
async def test_a_commit_name_is_not_a_valid_new_tag_but_an_old_one_can_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    async with committing(tmp_path) as made:
        commit = await checkpoint(made, TEXT)
        assert await code_of(made.call("commit.tag", commit=commit, tag=name)) == "invalid_params"
        with monkeypatch.context() as earlier:
            earlier.setattr("ctxd.commits.commit_operations.names_commit", lambda _: False)
            assert (await made.call("commit.tag", commit=commit, tag=name)).commit.tags == (name,)
        assert (await made.call("commit.tag", commit=commit, tag=name, remove=True)).commit.tags == ()
        for tag in ("head", "ctx-0123", "ctx-parser", "ctx-01234567/a"):
            assert tag in (await made.call("commit.tag", commit=commit, tag=tag)).commit.tags


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
        before = dict(await made.store.read_index(commit_index.rows))
    assert len(before) == 2
    rebuild_tables(tmp_path / "state.db", lambda _: None)
    async with committing(tmp_path) as made:
        assert dict(await made.store.read_index(commit_index.rows)) == before
        tagged = await made.call("commit.list", tag="a")
        assert [each.commit for each in tagged.commits] == [tip]
        assert (await made.call("commit.show", commit=root)).commit.tags == ("b",)


@pytest.mark.requirement("CMT-7")
@pytest.mark.parametrize("shared", [False, True])
async def test_the_index_equals_the_store_after_a_purge_a_rebuild_and_a_restore(tmp_path: Path, shared: bool) -> None:
    async with committing(tmp_path / "state") as made:
        root = await checkpoint(made, TEXT * 9, summary="found")
        tip = await checkpoint(made, TEXT, parent=root, summary="done", commit_type="compaction")
        same = await checkpoint(made, TEXT * 9, parent=tip, summary="again")
        for commit, tag in ((root, "a"), (root, "b"), (tip, "a"), (same, "c")):
            await made.call("commit.tag", commit=commit, tag=tag)
        await made.call("object.purge", object=entity_id(root if shared else tip))
        before = dict(await made.store.read_index(commit_index.rows))
        silent = {each.commit for each in (await made.call("commit.list", without_summary=True)).commits}
        assert silent == ({root, same} if shared else {tip})
    assert verified(tmp_path / "state", lambda *_: None).worst is None
    backup(tmp_path / "state", tmp_path / "copy")
    restore(tmp_path / "copy", tmp_path / "restored")
    assert verified(tmp_path / "restored", lambda *_: None).worst is None
    for state in ("state", "restored"):
        rebuild_tables(tmp_path / state / "state.db", lambda _: None)
        assert verified(tmp_path / state, lambda *_: None).worst is None
        async with committing(tmp_path / state) as made:
            assert dict(await made.store.read_index(commit_index.rows)) == before


@pytest.mark.requirement("CMT-7")
@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE context_commit SET summarised=1-summarised",
        "UPDATE context_commit SET at=at+1",
        "UPDATE context_commit SET parent=NULL",
        "UPDATE context_commit SET principal='other'",
        "DELETE FROM commit_tag",
        "INSERT INTO context_commit SELECT n, NULL, 'x', NULL, NULL, 1, 0, 0 FROM entity WHERE id='session:s1'",
    ],
)
async def test_an_index_differing_from_the_commits_is_damage_repaired_by_a_rebuild(tmp_path: Path, damage: str) -> None:
    async with committing(tmp_path) as made:
        await made.call("session.create", session="s1", agent="a")
        root = await checkpoint(made, TEXT, session="s1")
        await made.call("commit.tag", commit=await checkpoint(made, TEXT, parent=root), tag="a")
    database = apsw.Connection(str(tmp_path / "state.db"))
    database.execute(damage)
    database.close()
    assert verified(tmp_path, lambda *_: None).worst == "damage"
    rebuild_tables(tmp_path / "state.db", lambda _: None)
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-19")
@pytest.mark.parametrize("size", [10, 200_000])
@pytest.mark.parametrize("change", ["commit.annotate", "commit.tag"])
async def test_a_change_beside_a_purge_does_not_bring_the_content_back(tmp_path: Path, size: int, change: str) -> None:
    async with committing(tmp_path) as made:
        id = await checkpoint(made, '{"key":"the-leaked-value"}\n' * size)
        holder = await checkpoint(made, TEXT)
        await made.call("commit.tag", commit=holder, tag="a")
        async with anyio.create_task_group() as group:
            given = {"summary": "new"} if change == "commit.annotate" else {"tag": "a"}
            group.start_soon(partial(made.call, "object.purge", object=entity_id(id)))
            while not made.store.status().pending_writes:
                await anyio.lowlevel.checkpoint()
            await made.call(change, commit=id, **given)
        assert await code_of(made.call("commit.materialize", commit=id)) == "purged"
        assert await in_thread(search, tmp_path, [b"the-leaked-value"], lambda *_: None) == []
        shown = (await made.call("commit.show", commit=id)).commit
        assert (shown.artifact_ref, shown.summary or shown.tags) == (None, "new" if "summary" in given else ("a",))
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-19")
async def test_a_summary_given_after_a_purge_is_purged_too(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        id = await checkpoint(made, TEXT, summary="the-first-words")
        for words in (b"the-first-words", b"the-second-words"):
            await made.call("object.purge", object=entity_id(id))
            assert await in_thread(search, tmp_path, [words], lambda *_: None) == []
            await made.call("commit.annotate", commit=id, summary="the-second-words")
            assert (await made.call("commit.show", commit=id)).commit.summary == "the-second-words"
        await made.call("object.purge", object=entity_id(id))
        assert await in_thread(search, tmp_path, [b"the-second-words"], lambda *_: None) == []
    assert verified(tmp_path, lambda *_: None).worst is None


@pytest.mark.requirement("CMT-5")
async def test_a_resend_gets_the_first_answer_also_where_nothing_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = SystemClock().wall_ms()
    monkeypatch.setattr(SystemClock, "wall_ms", lambda _: now)  # Both are of one second.
    async with committing(tmp_path) as made:
        first = await checkpoint(made, TEXT, op_id="one")
        second = await made.call("commit.checkpoint", format="claude-code-v1", delta=TEXT, op_id="two")
        assert (second.commit.commit, second.receipt) == (first, None)
        await made.call("commit.tag", commit=first, tag="a")
        await made.call("commit.tag", commit=first, tag="a", op_id="three")
        await made.call("commit.annotate", commit=first, summary="", op_id="four")
        other = await checkpoint(made, TEXT * 2)
        await made.call("commit.tag", commit=other, tag="a")
        await made.call("commit.annotate", commit=first, summary="later")
        monkeypatch.setattr(SystemClock, "wall_ms", lambda _: now + 5_000)
        for delta, op_id in ((TEXT, "one"), (TEXT, "two")):
            again = await made.call("commit.checkpoint", format="claude-code-v1", delta=delta, op_id=op_id)
            assert again.commit.commit == first
        await made.call("commit.tag", commit=first, tag="a", op_id="three")
        await made.call("commit.annotate", commit=first, summary="", op_id="four")
        found = {each.commit: (each.tags, each.summary) for each in (await made.call("commit.list")).commits}
        assert found == {first: ((), "later"), other: (("a",), "")}


@pytest.mark.requirement("CMT-5")
async def test_hashes_of_commits_of_an_earlier_version_are_verified_over_their_content(tmp_path: Path) -> None:
    for text, worst in ((TEXT, None), (TEXT * 2, "damage")):
        state = tmp_path / str(worst)
        async with committing(state) as made:
            stored = await made.store.get(entity_id(await checkpoint(made, TEXT)))
            assert stored is not None
            payload = {**stored.document.payload, "up": "ctx-00000000"}
            old = msgspec.structs.replace(
                stored.document, id=entity_id("ctx-00000001"), payload=payload, content=TEXT,
                content_hash=content_hash(payload, text),
                identity_hash=identity_hash("commit", None, entity_id("ctx-00000001")),
            )  # fmt: skip
            await made.store.submit(Write(kind="commit.checkpoint", principal="host", puts=(old,))).wait()
        assert verified(state, lambda *_: None).worst == worst


@pytest.mark.requirement("CMT-8")
async def test_earlier_summaries_are_read_as_of_then(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        id = await checkpoint(made, TEXT, summary="first")
        await made.call("commit.annotate", commit=id, summary="second")
        history = await made.store.history(entity_id(id), content=True)
        assert [each.document.payload.get("summary") for each in history] == ["first", "second"]
        assert {each.document.content for each in history} == {TEXT}


async def test_an_entity_of_another_type_with_a_commit_prefix_is_no_commit(tmp_path: Path) -> None:
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
async def test_a_commit_missing_from_the_index_is_damage_repaired_by_a_rebuild(tmp_path: Path) -> None:
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


KEY = b"AKIAIOSFODNN7EXAMPLQ"


def redacted(content: bytes) -> bytes:
    found = delta_captured(Capture(ephemeral_guard(), "redact"), "events-v1", content)
    assert isinstance(found, bytes)
    return found


@pytest.mark.requirement("CMT-13")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "output", "output": {"raw": b"plain " + KEY}},
        {"type": "output", "output": {"raw": b'{"broken": "' + KEY + b'"'}},
        {"type": "output", "output": {"raw": b"\xff not UTF-8 " + KEY + b" \xfe"}},
        {KEY.decode(): 1},
        {b"x " + KEY: 1},
        cbor2.CBORTag(4711, b"x " + KEY),
    ],
)
async def test_a_secret_in_bytes_that_are_not_json_is_redacted(item: Any) -> None:
    kept = redacted(joined([cbor2.dumps(item, canonical=True)]))
    assert KEY not in kept
    assert b"[REDACTED:" in kept
    assert len(list(items(kept))) == 1
    assert (b"\xff not UTF-8 " in kept and b" \xfe" in kept) == ("UTF-8" in repr(item))


@pytest.mark.requirement("CMT-13")
async def test_a_secret_in_an_event_in_parts_is_redacted_and_the_event_is_whole() -> None:
    text = f"{'word ' * 50}{KEY.decode()}{' word' * 50}"
    for size in range(40, 120):
        parts = encoded_items(PromptEvent(text=text), size)
        assert len(parts) > 3
        assert any(KEY in part for part in parts)
        (event,) = events(items(redacted(joined(parts))))
        assert isinstance(event, PromptEvent)
        assert KEY.decode() not in event.text
        assert event.text.startswith("word word ")
        assert event.text.endswith(" word word")
        assert "[REDACTED:" in event.text


@pytest.mark.requirement("CMT-13")
async def test_a_secret_in_a_single_part_of_an_event_is_redacted() -> None:
    parts = encoded_items(PromptEvent(text=f"{'word ' * 50}{KEY.decode()}{' word' * 50}"), 100)
    for part in parts:
        kept = redacted(array_head(1) + part)
        assert KEY not in kept
        assert (b"[REDACTED:" in kept) == (KEY in part)


async def test_bytes_without_a_space_are_divided_and_joined_again() -> None:
    event = OpaqueEvent(kind="events-v1", data={"type": "x", "x": b"\x00" * 20_000})
    assert list(events(items(joined(encoded_items(event, 6_000))))) == [event]


@pytest.mark.requirement("CMT-7")
@pytest.mark.parametrize(
    "wanted",
    [
        CommitFilter(principal="p", until=5),
        CommitFilter(session="s", before=(5, 1)),
        CommitFilter(until=5),
        CommitFilter(before=(5, 1)),
        CommitFilter(without_summary=True),
        CommitFilter(template="t"),
    ],
    ids=["principal", "session", "until", "before", "without summary", "template"],
)
async def test_listings_and_look_ups_follow_an_index(tmp_path: Path, wanted: CommitFilter) -> None:
    async with committing(tmp_path) as made:
        await checkpoint(made, TEXT)
    with explained(tmp_path) as (connection, plans):
        assert commit_index.list_commits(connection, wanted, 10) == []
        assert commit_index.newest(connection, wanted) is None
    assert len(plans) == 2
    assert [plan for plan in plans if "TEMP B-TREE" in plan] == []


@pytest.mark.requirement("IMP-10")
async def test_an_import_looks_its_commits_up_by_their_content_alone(tmp_path: Path) -> None:
    async with committing(tmp_path) as made:
        await checkpoint(made, TEXT)
    with explained(tmp_path) as (connection, plans):
        assert commit_index.holding(connection, "s", [f"{number:064x}" for number in range(200)]) == []
    assert len(plans) == 1 and "version_content (content=?)" in plans[0]
    # A session may have a hundred thousand commits.
    assert "session=?" not in plans[0] and "SCAN" not in plans[0]


@contextmanager
def explained(folder: Path) -> Iterator[tuple[Any, list[str]]]:
    """A connection to the database in ``folder`` that runs no query, and the plans of those that it was given."""
    database = apsw.Connection(str(folder / "state.db"))
    plans: list[str] = []

    class Explained:
        def execute(self, query: str, values: Any) -> Iterator[Any]:
            plans.append(str(database.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall()))
            return iter(())

    yield Explained(), plans
    database.close()
