"""Contexts in pieces, over several batches of deltas, in memory and in files, and the bounds of their cache."""

import errno
import os
from base64 import b64encode
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import cbor2
import msgspec
import pytest

from ctxd.commits import context_cache, materialize
from ctxd.commits.context_cache import CachedContext, ContextCache, ContextContent
from ctxd.fd_passing import PassedFile
from ctxd.formats import events_v1
from ctxd.objects.commit_document import entity_id
from ctxd_protocol.event_types import ToolResultEvent
from tests.unit.commits.test_commits import TEXT, checkpoint, committing
from tests.unit.sessions.world import CALLER, World, code_of

pytestmark = pytest.mark.anyio


async def chain(made: World, number: int, text: str = '{"n":%d,"text":"é€😀"}\n') -> list[str]:
    """A chain of deltas that differ."""
    ids: list[str] = []
    for each in range(number):
        ids.append(await checkpoint(made, text % each, parent=ids[-1] if ids else None))
    return ids


async def pieces(made: World, commit: str, limit: int, **params: Any) -> list[Any]:
    """Every piece of a context, up to its end."""
    found = [await made.call("commit.materialize", commit=commit, limit=limit, **params)]
    while (offset := found[-1].next_offset) is not None:
        found.append(await made.call("commit.materialize", commit=commit, limit=limit, offset=offset, **params))
    return found


@pytest.mark.requirement("CMT-30")
@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
async def test_the_pieces_of_a_context_are_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool
) -> None:
    if in_file:
        monkeypatch.setattr(context_cache, "_SHORT_BYTES", 10)
    async with committing(tmp_path) as made:
        tip = (await chain(made, 20))[-1]
        whole = await made.call("commit.materialize", commit=tip)
        assert whole.content == "".join(f'{{"n":{each},"text":"é€😀"}}\n' for each in range(20))
        for limit in (1, 7, whole.size - 1, whole.size, whole.size + 1):
            found = await pieces(made, tip, limit)
            assert b"".join(each.content_base64 for each in found) == whole.content.encode()
            assert {(each.artifact_ref, each.size, each.content) for each in found} == {
                (whole.artifact_ref, whole.size, None)
            }
            assert len(found) == -(-whole.size // limit)
        beyond = await made.call("commit.materialize", commit=tip, limit=10, offset=whole.size + 5)
        assert (beyond.content_base64, beyond.next_offset) == (b"", None)
        names = {path.name for path in tmp_path.iterdir() if not path.name.startswith("state.db")}
        assert names <= {"LOCK", "artifacts", "head", "secrets.key"}, "a context has no name there"


@pytest.mark.requirement("RPC-12")
@pytest.mark.parametrize("in_file", [False, True], ids=["memory", "file"])
async def test_a_long_context_is_returned_as_an_immutable_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool
) -> None:
    if in_file:
        monkeypatch.setattr(context_cache, "_SHORT_BYTES", 10)
    async with committing(tmp_path) as made:
        commit = await checkpoint(made, '{"n":"%s"}\n' % ("é" * 40_000))
        whole = await made.call("commit.materialize", commit=commit)
        passed = await made.call("commit.materialize", commit=commit, descriptor=True)
        figures = msgspec.structs.replace(whole, cached=True, content=None, descriptor="content")
        assert passed.brief == figures
        assert passed.whole() == msgspec.structs.replace(whole, cached=True)
        assert os.pread(passed.descriptor, whole.size + 1, 0).decode() == whole.content
        for change in (partial(os.write, passed.descriptor, b"x"), partial(os.ftruncate, passed.descriptor, 1)):
            with pytest.raises(OSError):
                change()
        assert os.pread(passed.descriptor, whole.size + 1, 0).decode() == whole.content
        other = await made.call("commit.materialize", commit=commit, descriptor=True)
        os.lseek(passed.descriptor, 7, os.SEEK_SET)
        assert os.lseek(other.descriptor, 0, os.SEEK_CUR) == 0, "each has its own place"


@pytest.mark.requirement("RPC-12")
async def test_a_sandbox_and_a_short_context_get_the_content_in_the_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with committing(tmp_path) as made:
        await made.call("session.create", agent="demo", session="mine")
        long = await checkpoint(made, '{"n":"%s"}\n' % ("x" * 70_000), session="mine")
        short = await checkpoint(made, TEXT)
        confined = msgspec.structs.replace(CALLER, capability="sandbox", session="mine")
        asked = {"commit": long, "descriptor": True}
        assert isinstance(await made.call("commit.materialize", **asked), PassedFile)
        whole = await made.call("commit.materialize", caller=confined, **asked)
        assert (whole.descriptor, len(whole.content)) == (None, whole.size)
        assert (await made.call("commit.materialize", commit=short, descriptor=True)).content == TEXT
        piece = await made.call("commit.materialize", limit=70_000, **asked)
        assert (piece.descriptor, len(piece.content_base64)) == (None, 70_000)
        array = b64encode(cbor2.dumps([{"type": "response", "timestamp": 1, "response": {"content": "x" * 70_000}}]))
        answer = await made.call("commit.checkpoint", format="events-v1", delta_base64=array.decode())
        counts = await made.call("commit.materialize", commit=answer.commit.commit, descriptor=True, content=False)
        assert (counts.descriptor, counts.content, counts.content_base64) == (None, None, None)
        assert "ctxd-context" not in opened(), "no copy is kept for a call that does not take it"
        monkeypatch.setattr(os, "memfd_create", _no_descriptor)
        found = await made.call("commit.materialize", commit=answer.commit.commit, descriptor=True)
        assert (found.descriptor, len(found.content_base64)) == (None, found.size)
        assert (await made.call("commit.materialize", **asked)).content == whole.content


def opened() -> str:
    """The names of the files that this process has open."""
    found = []
    for each in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # The listing itself.
            found.append(str(each.readlink()))
    return " ".join(found)


def _no_descriptor(*_: object) -> int:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


@pytest.mark.requirement("CMT-30")
async def test_deltas_are_read_a_few_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also in two passes, as an array has its length first; a delta larger than a batch is a batch of its own."""
    monkeypatch.setattr(materialize, "_BATCH_BYTES", 100)
    monkeypatch.setattr("ctxd.formats.translation._HELD_BYTES_MAX", 100)
    async with committing(tmp_path) as made:
        tip = None
        for each in range(30):
            event = {"type": "response", "timestamp": each, "response": {"content": "x" * (500 if each == 7 else 5)}}
            delta = b64encode(cbor2.dumps([event], canonical=True)).decode()
            answer = await made.call("commit.checkpoint", format="events-v1", parent=tip, delta_base64=delta)
            tip = answer.commit.commit
        asked: list[int] = []
        contents = made.store.contents

        async def counted(refs: Any) -> Any:
            found = await contents(refs)
            asked.append(len(found))
            return found

        monkeypatch.setattr(made.store, "contents", counted)
        found = await made.call("commit.materialize", commit=tip, stop="root")
    events = cbor2.loads(found.content_base64)
    assert [event["timestamp"] for event in events] == list(range(30))
    assert len(asked) > 20
    assert max(asked) <= 3


@pytest.mark.requirement("CMT-30")
async def test_an_error_in_a_later_batch_is_the_error_of_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "_BATCH_BYTES", 30)
    async with committing(tmp_path) as made:
        ids = await chain(made, 5)
        contents = made.store.contents

        async def failing(refs: Any) -> Any:
            refs = list(refs)
            found = await contents(refs)
            if any('"n":3' in text for text in found.values()):
                await made.call("object.purge", object=entity_id(ids[3]))
                return await contents(refs)
            return found

        monkeypatch.setattr(made.store, "contents", failing)
        assert await code_of(made.call("commit.materialize", commit=ids[-1])) == "purged"


@pytest.mark.requirement("CMT-30")
async def test_a_call_that_is_cancelled_ends_its_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More calls than there are threads are cancelled in a later batch, and the next one is answered."""
    monkeypatch.setattr(materialize, "_BATCH_BYTES", 30)
    async with committing(tmp_path) as made:
        tip = (await chain(made, 5))[-1]
        contents = made.store.contents
        stuck = anyio.Event()

        async def hanging(refs: Any) -> Any:
            refs = list(refs)
            found = await contents(refs)
            if any('"n":3' in text for text in found.values()):
                stuck.set()
                await anyio.sleep_forever()
            return found

        for _ in range(3):
            with monkeypatch.context() as patch:
                patch.setattr(made.store, "contents", hanging)
                stuck = anyio.Event()
                async with anyio.create_task_group() as group:
                    group.start_soon(partial(made.call, "commit.materialize", commit=tip))
                    await stuck.wait()
                    group.cancel_scope.cancel()
        assert (await made.call("commit.materialize", commit=tip)).commit_count == 5


@pytest.mark.requirement("CMT-30")
async def test_a_context_that_is_too_large_for_one_answer_is_read_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(materialize, "WHOLE_BYTES_MAX", 100)
    async with committing(tmp_path) as made:
        tip = (await chain(made, 10, '{"n":%d}\n'))[-1]
        large = (await chain(made, 20, '{"n":%d}\n'))[-1]
        assert (await made.call("commit.materialize", commit=tip)).size == 80
        assert await code_of(made.call("commit.materialize", commit=large)) == "too_large"
        found = await pieces(made, large, 4096)
        assert b"".join(each.content_base64 for each in found).count(b"\n") == 20
        assert {each.message_count for each in found} == {0}


@pytest.mark.requirement("CMT-12")
async def test_a_full_disk_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    async with committing(tmp_path) as made:
        tip = await checkpoint(made, TEXT)
        monkeypatch.setattr(ContextContent, "write", full)
        assert await code_of(made.call("commit.materialize", commit=tip)) == "disk_full"
        monkeypatch.undo()
        assert (await made.call("commit.materialize", commit=tip)).content == TEXT


def context(folder: Path, size: int) -> CachedContext[str]:
    content = ContextContent(folder)
    content.write(b"x" * size)
    return CachedContext(content, "figures")


@pytest.mark.requirement("CMT-12")
async def test_the_least_recently_used_contexts_go_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context_cache, "_SHORT_BYTES", 10)
    monkeypatch.setattr(context_cache, "MEMORY_BYTES_MAX", 25)
    monkeypatch.setattr(context_cache, "FILE_BYTES_MAX", 40)
    cache = ContextCache[str]()
    for key, size in (("a", 10), ("b", 10), ("A", 20), ("B", 20)):
        cache.put(key, context(tmp_path, size))
    assert cache.get("a") is not None
    cache.put("c", context(tmp_path, 10))
    cache.put("C", context(tmp_path, 100))
    assert [key for key in "abcABC" if cache.get(key) is not None] == ["a", "c", "C"], "the newest stays in any case"
    cache.put("c", context(tmp_path, 8))
    cache.put("d", context(tmp_path, 7))
    assert [key for key in "acd" if cache.get(key) is not None] == ["a", "c", "d"], "a replaced one counts once"
    cache.clear()
    assert [key for key in "acdC" if cache.get(key) is not None] == []


@pytest.mark.requirement("CMT-53")
async def test_more_output_than_a_context_may_have_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with committing(tmp_path) as made:
        await made.call("session.create", agent="a", session="s")
        output = (await made.call("toolcall.record", session="s", id="c", tool="t", content="x" * 600)).object
        items = [events_v1.item_of(ToolResultEvent(call="c", object=output))] * 2
        delta = b64encode(cbor2.dumps(items, canonical=True)).decode()
        tip = (await made.call("commit.checkpoint", format="events-v1", delta_base64=delta)).commit.commit
        made_of = partial(made.call, "commit.materialize", commit=tip, format="claude-code-v1")
        monkeypatch.setattr(materialize, "CONTEXT_BYTES_MAX", 1_199)
        assert await code_of(made_of()) == "too_large"
        monkeypatch.setattr(materialize, "CONTEXT_BYTES_MAX", 1_200)
        assert (await made_of()).content.count("x" * 600) == 2
