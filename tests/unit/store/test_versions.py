"""The version store: what is accepted is seen at once, what is acknowledged is durable, what failed is gone."""

import anyio
import anyio.lowlevel
import pytest

from ctxd import failpoints, limits, sqlite_file
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Page
from ctxd.store.idempotency import Resend
from ctxd.store.write_types import NOT_CACHED, PurgeRequest
from tests.unit.store.documents import document, sourced, write
from tests.unit.store.running import SteppingClock, put, running, verified
from tests.waiting import until

pytestmark = pytest.mark.anyio
SESSION = "0192f0c1-2345-7abc-8def-0123456789ab"


async def test_an_acknowledged_write_is_there_after_a_restart(root):
    async with running(root) as store:
        receipt = await store.submit(write(document("t1", "text", tool="bash"))).wait()
        first = store.incarnation
    async with running(root) as store:
        found = await store.get("t1", content=True)
        assert found is not None
        assert found.document == document("t1", "text", tool="bash")
        assert (found.tx, found.valid_time) == (receipt.seq, receipt.vt)
        assert store.head() == receipt
        assert store.incarnation == first + 1


async def test_a_head_is_seen_before_it_is_durable(root):
    async with running(root) as store:
        pending = store.submit(write(document("t1", "text")))
        assert not pending.done
        head = store.peek("t1")
        assert (head.tx, head.valid_time, head.document.content) == (pending.seq, pending.vt, None)
        assert (await store.heads(["t1"]))["t1"] == head
        assert (await store.get("t1", content=True)).document.content == "text"


async def test_the_cache_reports_an_unknown_head_as_not_cached(root):
    async with running(root) as store:
        await store.submit(write(document("t1"))).wait()
    async with running(root) as store:
        assert store.peek("t1") is NOT_CACHED
        heads = await store.heads(["t1", "t2"])
        assert heads["t1"].tx == 1 and heads["t2"] is None
        assert store.peek("t1") == heads["t1"] and store.peek("t2") is None


async def test_an_unwritten_id_is_soon_known_as_absent_without_a_read(root):
    async with running(root) as store:
        for n in range(100):
            store.submit(write(document(f"t{n}"), op_id=f"op{n}", request=b"q"))
        await store.drain()
    async with running(root) as store:
        await until(lambda: store.peek("unheard of") is not NOT_CACHED)
        assert all(store.peek(f"t{n}") is NOT_CACHED for n in range(100))
        with anyio.CancelScope() as scope:
            scope.cancel()
            # Cancelled at the first wait: so there is none.
            assert (
                await store.replay(("host", "new op"), Resend("toolcall.record", "s1", b"q"), heads=["new id"]) is None
            )
            assert await store.heads(["new id"]) == {"new id": None}
        assert all([await store.replay(("host", f"op{n}"), Resend("toolcall.record", "s1", b"q")) for n in range(100)])


async def test_a_logged_entity_is_kept_in_the_database_alone_and_found_all_the_same(root):
    segment = document("segment:s1#0000000000", "a bundle", type="segment")
    async with running(root) as store:
        store.submit(write(document("t1"), segment))
        accepted = await store.get(segment.id, content=True)
        assert accepted is not None and accepted.document == segment
        assert (await store.heads(("t1", segment.id))).keys() == {"t1", segment.id}
        assert store.cached == 1 and store.peek(segment.id) is NOT_CACHED
        await until(lambda: store.peek("unheard of") is not NOT_CACHED)
        assert (await store.heads(("segment:s1#0000000001",)))["segment:s1#0000000001"] is None
        store.submit(write(document("segment:s1#0000000001", type="segment")))
        assert await store.get("segment:s1#0000000001") is not None, "that there was none was not remembered"


async def test_a_typed_listener_is_called_only_for_commits_with_its_types(root):
    async with running(root) as store:
        told = []
        store.on_durable(lambda landed: told.append(("chats", len(landed))), types=("chat", "session"))
        store.on_durable(lambda landed: told.append(("all", len(landed))))
        await store.submit(write(document("t1"))).wait()
        await store.submit(write(document("t2"), document("session:s1", type="session"))).wait()
        await store.submit(write(purge=PurgeRequest(("t1",), lambda hashed: hashed))).wait()
        assert told == [("all", 1), ("chats", 1), ("all", 1), ("chats", 1), ("all", 1)]


async def test_reads_see_earlier_accepted_writes(root):
    async with running(root) as store:
        puts = [document(f"segment:s1#{n:010d}", type="segment", n=n) for n in range(20)]
        for put in puts:
            store.submit(write(put, knows=("t1",)))
        assert [stored.document for stored in await store.scan("segment:s1#")] == puts
        assert await store.knowing("t1") == ["s1"]
        assert len(await store.changes(after=0, limit=100)) == 20


async def test_wait_for_writes_returns_after_accepted_writes_are_durable_or_lost(root):
    async with running(root) as store:
        await store.wait_for_writes()
        pendings = [store.submit(write(document(f"t{n}"))) for n in range(20)]
        await store.wait_for_writes()
        assert all(pending.receipt is not None for pending in pendings)
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            lost = store.submit(write(document("t")))
            await store.wait_for_writes()
        assert lost.error is not None


@pytest.mark.requirement("DUR-2")
async def test_receipts_form_the_chain_and_times_do_not_decrease(root):
    async with running(root) as store:
        pendings = [store.submit(write(document(f"t{n % 3}", str(n)))) for n in range(50)]
        receipts = [await pending.wait() for pending in pendings]
        assert [receipt.seq for receipt in receipts] == list(range(1, 51))
        assert len({receipt.chain for receipt in receipts}) == 50
        assert [receipt.vt for receipt in receipts] == sorted(receipt.vt for receipt in receipts)
        history = await store.history("t0")
        assert len({stored.valid_time for stored in history}) == len(history) == 17


async def test_a_write_s_floor_is_kept(root):
    async with running(root) as store:
        future = 2**42
        assert (await store.submit(write(document("t1"), floor_vt=future)).wait()).vt == future
        assert (await store.submit(write(document("t2"))).wait()).vt == future
        status = store.status()
        assert status.state == "ok" and "ahead of the host's clock" in status.reason


@pytest.mark.requirement("VER-4")
async def test_a_clock_that_steps_back_neither_stops_nor_reorders_writes(root):
    clock = SteppingClock(1_000_000)
    async with running(root, clock) as store:
        first = await store.submit(write(document("t1", "a"))).wait()
        clock.wall = 5
        second = await store.submit(write(document("t1", "b"))).wait()
        assert second.vt == first.vt + 1
    async with running(root, clock) as store:
        third = await store.submit(write(document("t1", "c"))).wait()
        assert third.vt == second.vt + 1
        texts = [stored.document.payload for stored in await store.history("t1")]
        assert len(texts) == 3
        assert (await store.get("t1", content=True)).document.content == "c"
        assert (await store.get("t1", AsOf(valid_time=first.vt), content=True)).document.content == "a"
        assert (await store.get("t1", AsOf(tx=second.seq), content=True)).document.content == "b"


@pytest.mark.requirement("VER-3")
async def test_history_is_paged_in_both_orders(root):
    async with running(root) as store:
        for n in range(5):
            store.submit(write(document("t1", str(n))))
        everything = await store.history("t1")
        first = await store.history("t1", page=Page(limit=2))
        rest = await store.history("t1", page=Page(after=(first[-1].valid_time, first[-1].tx)))
        assert first + rest == everything
        assert await store.history("t1", page=Page(ascending=False)) == everything[::-1]
        assert await store.history("t1", AsOf(tx=everything[1].tx)) == everything[:2]


async def test_bulk_keeps_the_requested_order_and_omits_missing_ids(root):
    async with running(root) as store:
        for id in ("a", "b", "c"):
            last = await store.submit(write(document(id, id))).wait()
        assert list(await store.bulk(["c", "x", "a"])) == ["c", "a"]
        assert list(await store.bulk(["c", "x", "a"], AsOf(tx=last.seq - 1))) == ["a"]
        assert (await store.bulk(["b"], content=True))["b"].document.content == "b"


async def test_scan_newest_descends_from_an_id(root):
    async with running(root) as store:
        for n in range(5):
            store.submit(write(document(f"assembly:s1#{n:010d}", type="assembly")))
        found = await store.scan("assembly:s1#", page=Page(after="assembly:s1#0000000003", limit=2, ascending=False))
        assert [stored.document.id[-1] for stored in found] == ["2", "1"]
        assert (await store.scan("assembly:s1#", page=Page(limit=1, ascending=False)))[0].document.id[-1] == "4"


async def test_signatures_keep_the_last_one(root):
    async with running(root) as store:
        store.submit(write(document("f1"), signatures={"f1": b"1"}))
        store.submit(write(document("f1", "x"), signatures={"f1": b"2", "f2": b"3"}))
        assert await store.signatures(["f1", "f2", "f3"]) == {"f1": b"2", "f2": b"3"}


async def test_changes_have_their_author_objects_and_time(root):
    async with running(root) as store:
        receipt = await store.submit(write(document("a"), document("b"), kind="file.index", session="s9")).wait()
        (change,) = await store.changes(after=0, limit=10)
        assert (change.seq, change.kind, change.session, change.principal) == (receipt.seq, "file.index", "s9", "host")
        assert change.puts == (("a", receipt.vt), ("b", receipt.vt))
        assert await store.changes(after=receipt.seq, limit=10) == []


@pytest.mark.parametrize("size", [0, 1_000, 1024 * 1024, 1024 * 1024 + 1, 3 * 1024 * 1024])
async def test_text_of_any_size_round_trips(root, size):
    text = ("\u00e4" + "x" * 999) * (size // 1_000) + "y" * (size % 1_000)
    async with running(root) as store:
        await (await put(store, document("t1", text))).wait()
    assert any(ArtifactStore(root / "artifacts").names()) == (len(text.encode()) > 1024 * 1024)
    async with running(root) as store:
        assert (await store.get("t1", content=True)).document.content == text


async def test_equal_text_is_kept_once(root):
    async with running(root) as store:
        for n in range(100):
            store.submit(write(document(f"t{n}", "same" * 5_000)))
        await store.drain()
    assert (root / "state.db").stat().st_size < 200_000


async def test_an_ephemeral_store_leaves_nothing_behind():
    async with running(None) as store:
        await store.submit(write(document("t1", "x"))).wait()
        folder = store.root
        assert folder.is_dir()
    assert not folder.exists()


async def test_heads_stay_bounded_but_never_drop_pending_ones(root, monkeypatch):
    monkeypatch.setattr(limits, "HEADS_CACHED_MAX", 10)
    async with running(root) as store:
        pendings = [store.submit(write(document(f"t{n}", str(n)))) for n in range(300)]
        assert all(store.peek(f"t{n}") is not NOT_CACHED for n in range(100))
        await pendings[-1].wait()
        assert sum(store.peek(f"t{n}") is not NOT_CACHED for n in range(100)) <= 10
        heads = await store.heads([f"t{n}" for n in range(100)])
        assert [head.tx for head in heads.values()] == list(range(1, 101))


async def test_a_head_read_while_a_newer_one_is_accepted_does_not_replace_it(root, monkeypatch):
    async with running(root) as store:
        await store.submit(write(document("t1", "old"))).wait()
    async with running(root) as store:
        async with anyio.create_task_group() as group:
            for n in range(30):
                group.start_soon(store.heads, ["t1", f"other{n}"])
                await anyio.lowlevel.checkpoint()
                pending = store.submit(write(document("t1", f"new{n}")))
                assert (await store.heads(["t1"]))["t1"].tx >= pending.seq
        assert store.peek("t1").tx == pending.seq


async def test_an_entity_put_twice_in_one_write_has_its_last_content(root):
    async with running(root) as store:
        receipt = await store.submit(write(document("t1", "a"), document("t2"), document("t1", "b"))).wait()
        assert (await store.get("t1", content=True)).document.content == "b"
        (change,) = await store.changes(after=0, limit=10)
        assert change.puts == (("t1", receipt.vt), ("t2", receipt.vt))
    verified(root)


async def test_a_store_that_has_ended_answers_nothing(root):
    async with running(root) as store:
        await store.submit(write(document("t1"))).wait()
    for question in (
        store.heads(["t2"]),
        store.get("t1"),
        store.scan("t"),
        store.replay(("host", "op"), Resend("toolcall.record", "s1", b"")),
    ):
        with pytest.raises(CtxdError) as caught:
            await question
        assert caught.value.code == "draining"


async def test_a_start_after_large_writes_verifies_only_so_much(root, monkeypatch):
    async with running(root) as store:
        for n in range(20):
            store.submit(write(document(f"t{n}", args="x" * 100_000)))
        await store.drain()
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute("UPDATE journal SET kind='other' WHERE seq=3").fetchall()
    connection.close()
    monkeypatch.setattr(limits, "TAIL_VERIFIED_BYTES", 500_000)
    async with running(root) as store:
        assert store.status().state == "ok"
    monkeypatch.setattr(limits, "TAIL_VERIFIED_BYTES", 5_000_000)
    async with running(root) as store:
        assert "row 3" in store.status().reason


async def test_a_thousand_small_files_take_at_most_four_times_their_bytes(root):
    count, size = 2_000, 1_024
    async with running(root) as store:
        for n in range(count):
            put = sourced(f"/home/someone/project/src/package/module_{n}.py", f"{n:06d}".ljust(size, "x"))
            delta = {"add": {"index": [put.id], "pool": [put.id], "active": [put.id]}, "turn": 1, "cause": "read"}
            segment = document(f"segment:{SESSION}#{n:010d}", type="segment", **delta)
            store.submit(
                write(
                    put,
                    segment,
                    session=SESSION,
                    kind="file.index",
                    op_id=f"{n:032x}",
                    request=bytes(32),
                    result=b'{"object":"%s","outcome":"created"}' % put.id.encode(),
                    knows=(put.id,),
                    signatures={put.id: bytes(40)},
                )
            )
        await store.drain()
    taken = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    assert taken <= 4 * count * size


@pytest.mark.requirement("XTB-10")
async def test_the_embedded_store_refuses_datalog_with_a_remedy(root):
    async with running(root) as store:
        with pytest.raises(CtxdError) as refused:
            await store.query("{:find [e] :where [[e :xt/id]]}", limit=1, timeout_s=1)
        assert refused.value.code == "unsupported" and "ctxd migrate --to xtdb" in refused.value.hint
