"""The journal gets to the node in order and once, whatever happens on the way, and no write waits for it."""

import shutil

import anyio
import pytest

from ctxd.backends.xtdb.form import content_id, cursor_id
from ctxd.backends.xtdb.operations import Match, Put
from ctxd.errors import CtxdError
from ctxd.store.projection import past, projector, spill
from ctxd.store.projection.spill import Room
from tests.fakes.node import MemoryNode
from tests.unit.store.documents import document, sourced, write
from tests.unit.store.projection.projecting import compared, level, projecting, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def root(tmp_path):
    return tmp_path / "state"


@pytest.fixture
def node():
    return MemoryNode()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """What a node is given to recover is not waited for."""
    monkeypatch.setattr(projector, "BACKOFF_MAX_S", 0.05)
    monkeypatch.setattr(projector, "RECHECK_S", 0.02)


def fill(store, count, first=0, **rest):
    return [
        store.submit(write(document(f"t{n}", f"text {n % 7}", tool="bash", n=n), **rest))
        for n in range(first, first + count)
    ]


def versions_put(node):
    """How often each version was put by a transaction that took place."""
    done = [ops for ops, committed in zip(node.log, node._committed, strict=True) if committed]
    puts = [op for ops in done for op in ops if isinstance(op, Put) and "tx" in op.doc["payload"]]
    return [(op.doc["xt/id"], op.doc["payload"]["tx"]) for op in puts]


async def test_every_version_and_every_text_gets_to_the_node_once(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 300)
        store.submit(write(sourced("/a.py", "one"), document("segment:s1#0000000001", type="segment", z=1, a={"b": 2})))
        store.submit(write(sourced("/a.py", "two")))
        await level(store)
    assert sorted(versions_put(node)) == sorted(set(versions_put(node)))
    assert len(versions_put(node)) == 303
    found = await compared(root, node.connect)
    assert found.problems == [] and found.equal and found.seq == 302
    assert found.texts == 9


async def test_a_transaction_holds_an_entity_once_and_moves_the_cursor(root, node):
    async with projecting(root, node.connect) as store:
        for n in range(40):
            store.submit(write(document("same", f"v{n}", tool="bash")))
        await level(store)
    for ops in node.log[1:]:
        ids = [op.doc["xt/id"] for op in ops if isinstance(op, Put)]
        assert len(ids) == len(set(ids))
        assert isinstance(ops[0], Match) and ops[0].id == ids[-1] == cursor_id(store.writer)


async def test_a_text_that_is_known_to_be_there_is_not_put_again(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 7)
        await level(store)
        fill(store, 70, first=100)
        await level(store)
    puts = [op.doc["xt/id"] for ops in node.log for op in ops if isinstance(op, Put)]
    assert len([id for id in puts if id.startswith(content_id(b"")[:-1])]) == 7


async def test_a_text_above_a_mebibyte_is_kept_in_parts(root, node):
    async with projecting(root, node.connect) as store:
        store.submit(write(document("big", "ab\u00e9" * 900_000, tool="cat")))
        await level(store)
    assert (await compared(root, node.connect)).problems == []


async def test_a_restart_goes_on_from_the_cursor_with_a_higher_incarnation(root, node):
    seen = []
    for start in range(3):
        async with projecting(root, node.connect) as store:
            fill(store, 50, first=50 * start)
            await level(store)
            seen.append(store.projection._progress.cursor)
    assert [cursor.seq for cursor in seen] == [50, 100, 150]
    assert seen[0].incarnation < seen[1].incarnation < seen[2].incarnation
    assert len(versions_put(node)) == len(set(versions_put(node))) == 150
    assert (await compared(root, node.connect)).equal


async def test_a_lost_answer_is_looked_up_and_nothing_is_sent_blindly(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 10)
        await level(store)
        node.lose_reply = 3
        fill(store, 200, first=10)
        await level(store)
    assert len(versions_put(node)) == len(set(versions_put(node))) == 210
    assert (await compared(root, node.connect)).equal


async def test_what_an_earlier_life_still_sends_does_nothing(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 20)
        await level(store)
    late = [ops for ops in node.log if len(ops) > 2][0]
    async with projecting(root, node.connect) as store:
        await level(store)
        assert not await node.committed(await node.submit(late), timeout_s=1)
    assert (await compared(root, node.connect)).equal


@pytest.mark.requirement("PRJ-2")
async def test_writes_are_acknowledged_while_nobody_answers_and_are_caught_up_with(root, node):
    node.down = True
    async with projecting(root, node.connect) as store:
        for pending in fill(store, 500):
            await pending.wait()
        status = store.status().projection
        assert (status.state, status.seq, status.lag_rows) == ("unreachable", 0, 500)
        assert "nobody listens" in status.reason and status.lag_s > 0
        node.down = False
        await level(store)
        status = store.status().projection
        assert (status.state, status.reason, status.lag_rows, status.lag_s) == ("projecting", "", 0, 0.0)
    assert (await compared(root, node.connect)).equal


async def test_a_node_that_indexes_nothing_is_given_no_more_than_a_few_transactions(root, node):
    async with projecting(root, node.connect) as store:
        fill(store, 1)
        await level(store)
        node.hold = anyio.Event()
        before = len(node.log)
        for first in range(10, 410, 10):
            for pending in fill(store, 10, first=first):
                await pending.wait()
            store.submit(write(document("same", f"v{first}", tool="x")))
        await until(lambda: len(node.log) - before >= 4)
        await anyio.sleep(0.1)
        assert len(node.log) - before == 4
        node.hold.set()
        await level(store)
    assert (await compared(root, node.connect)).equal


async def test_an_ingester_that_failed_is_said_and_waited_for(root, node):
    node.ingester_failed = True
    async with projecting(root, node.connect) as store:
        fill(store, 5)
        await until(lambda: store.status().projection.state == "failed")
        assert "restart the node" in store.status().projection.reason
        node.ingester_failed = False
        await level(store)


class TestPoison:
    @pytest.mark.requirement("PRJ-4")
    async def test_the_one_row_that_is_refused_is_left_out_and_said_and_the_rest_flows(self, root, node):
        node.refuses = lambda op: isinstance(op, Put) and op.doc["xt/id"] in ("t137", "t200")
        async with projecting(root, node.connect) as store:
            fill(store, 300)
            await level(store)
            assert store.status().projection.quarantined == (138, 201)
            assert "2 rows are left out: 138 (invalid tx-op)" in store.status().projection.reason
            assert [said["seq"] for said in store.heard("projection.quarantined")] == [138, 201]
            assert (await store.get("t137", tx=300)).tx == 138
        found = await compared(root, node.connect)
        assert found.equal and found.worst == "warning"
        assert [problem.severity for problem in found.problems] == ["warning"] * 2

    async def test_it_is_still_said_why_after_a_restart(self, root, node):
        node.refuses = lambda op: isinstance(op, Put) and op.doc["xt/id"] == "t1"
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
        async with projecting(root, node.connect) as store:
            await level(store)
            assert "2 (invalid tx-op)" in store.status().projection.reason

    async def test_a_node_that_refuses_everything_makes_no_row_left_out(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            node.refuses = lambda op: True
            fill(store, 5)
            await until(lambda: store.status().projection.reason == "invalid tx-op")
            node.refuses = lambda op: False
            await level(store)
            assert store.status().projection.quarantined == ()
        assert (await compared(root, node.connect)).equal

    async def test_a_refusal_by_accident_leaves_nothing_out(self, root, node):
        chances = iter([True])
        node.refuses = lambda op: isinstance(op, Put) and op.doc["xt/id"] == "t1" and next(chances, False)
        async with projecting(root, node.connect) as store:
            fill(store, 1)
            await level(store)
            fill(store, 1, first=1)
            await level(store)
            assert store.status().projection.quarantined == ()

    async def test_an_abort_that_the_cursor_does_not_explain_is_narrowed_down_to_a_row(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            taken = node._take

            def take(ops):
                node.abort = int(any(isinstance(op, Put) and op.doc["xt/id"] == "t5" for op in ops))
                return taken(ops)

            node._take = take
            fill(store, 20)
            await level(store)
            assert store.status().projection.quarantined == (6,)
        assert (await compared(root, node.connect)).equal

    async def test_a_row_alone_that_is_aborted_by_accident_is_not_left_out(self, root, node):
        async with projecting(root, node.connect) as store:
            await level(store)
            taken, accidents = node._take, iter(range(projector.DOUBTS_MAX - 1))

            def take(ops):
                strikes = any(isinstance(op, Put) and op.doc["xt/id"] == "t0" for op in ops)
                node.abort = int(strikes and next(accidents, None) is not None)
                return taken(ops)

            node._take = take
            fill(store, 1)
            await level(store)
            assert store.status().projection.quarantined == ()
        assert (await compared(root, node.connect)).equal

    async def test_a_text_that_is_damaged_leaves_its_row_out(self, root, node):
        node.down = True
        async with projecting(root, node.connect) as store:
            store.submit(write(document("good", "fine", tool="x")))
            await store.submit(write(document("bad", "x" * 1_500_000, tool="x"))).wait()
            for path in (root / "artifacts").rglob("*"):
                if path.is_file():
                    path.chmod(0o600)
                    path.write_bytes(b"rot")
            node.down = False
            await level(store)
            assert store.status().projection.quarantined == (2,)


class TestOtherNodes:
    async def test_a_node_whose_data_is_gone_is_noticed_and_gets_everything_again(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 100)
            await level(store)
            node.wipe()
            fill(store, 10, first=100)
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 100, "from": 0}]
        assert (await compared(root, node.connect)).equal

    async def test_a_node_that_went_back_to_an_older_copy_gets_what_it_lacks(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 50)
            await level(store)
        older = node.copy()
        async with projecting(root, node.connect) as store:
            fill(store, 50, first=50)
            await level(store)
            node.become(older)
            fill(store, 1, first=100)
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 50, "from": 50}]
        assert (await compared(root, node.connect)).equal

    async def test_that_it_happened_while_nobody_ran_is_noticed_too(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 30)
            await level(store)
        node.wipe()
        async with projecting(root, node.connect) as store:
            await level(store)
            assert store.heard("projection.lost") == [{"rows": 30, "from": 0}]

    @pytest.mark.requirement("PRJ-3")
    async def test_a_journal_that_is_behind_its_node_stops_and_says_what_helps(self, root, node, tmp_path):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        shutil.copytree(root, tmp_path / "copy")
        async with projecting(root, node.connect) as store:
            fill(store, 10, first=10)
            await level(store)
        async with projecting(tmp_path / "copy", node.connect) as store:
            await until(lambda: store.status().projection.state == "stopped")
            assert "rebuild-xtdb" in store.status().projection.reason
            await store.submit(write(document("other"))).wait()
            assert (await store.get("t3", tx=5)).tx == 4
        assert [problem.severity for problem in (await compared(tmp_path / "copy", node.connect)).problems] == [
            "data_loss"
        ]

    async def test_of_two_daemons_on_copies_of_a_journal_the_later_one_projects(self, root, node, tmp_path):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        shutil.copytree(root, tmp_path / "copy")
        async with projecting(root, node.connect) as first:
            await level(first)
            async with projecting(tmp_path / "copy", node.connect) as second:
                await level(second)
                fill(first, 3, first=100)
                await until(lambda: first.status().projection.state == "stopped")
                assert "copy" in first.status().projection.reason
                fill(second, 2, first=200)
                await level(second)
        assert (await compared(tmp_path / "copy", node.connect)).equal


class TestRoomToWait:
    @pytest.mark.requirement("PRJ-8")
    async def test_half_full_warns_nearly_full_slows_down_and_full_refuses(self, root, node):
        async with projecting(root, node.connect, room=Room(rows=1_000)) as store:
            await level(store)
            node.down = True
            fill(store, 500)
            await store.settled()
            assert "50% of what may wait for the node does" in store.status().projection.reason
            fill(store, 300, first=500)
            await store.settled()
            with pytest.raises(CtxdError) as refused:
                fill(store, 100, first=800)
            assert (refused.value.code, refused.value.outcome) == ("rate_limited", "not_applied")
            assert 0 < refused.value.retry_after_ms <= 1_000 / spill.DRAIN_LEAST

    @pytest.mark.requirement("PRJ-8")
    async def test_a_full_backlog_refuses_writes_until_it_drains(self, root, node):
        async with projecting(root, node.connect, room=Room(rows=100)) as store:
            await level(store)
            node.down = True
            fill(store, 100)
            await store.settled()
            with pytest.raises(CtxdError) as refused:
                store.submit(write(document("over")))
            assert (refused.value.code, refused.value.outcome) == ("store_backlog_full", "not_applied")
            assert refused.value.retry_after_ms == spill.RETRY_FULL_MS
            node.down = False
            await level(store)
            await store.submit(write(document("again"))).wait()

    async def test_what_was_there_before_it_was_first_projected_refuses_nothing(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 200)
            await store.settled()
        (root / "projection.json").unlink()
        node.wipe()
        node.down = True
        async with projecting(root, node.connect, room=Room(rows=100)) as store:
            await store.submit(write(document("more"))).wait()
            assert store.status().projection.lag_rows == 201


class TestPast:
    async def test_the_node_answers_about_the_past_and_says_what_the_read_model_says(self, root, node):
        async with projecting(root, node.connect) as store:
            for n in range(20):
                store.submit(write(document("t", f"v{n}", tool="x", n=n), document(f"u{n:02d}", tool="y")))
            await level(store)
            model, from_node = store._model, store._past
            for tx in (0, 1, 7, 20, 99):
                mine = await model.as_of(["t", "u03", "none"], tx=tx)
                assert await from_node.as_of(["t", "u03", "none"], tx=tx) == mine
                assert await from_node.scan("u", tx=tx, limit=5) == await model.scan("u", tx=tx, limit=5)
                for ascending in (True, False):
                    mine = await model.history("t", ascending=ascending, tx=tx, limit=3)
                    assert await from_node.history("t", ascending=ascending, tx=tx, limit=3) == mine
                    if mine:
                        after = (mine[0].valid_time, mine[0].tx)
                        mine = await model.history("t", ascending=ascending, tx=tx, after=after)
                        assert await from_node.history("t", ascending=ascending, tx=tx, after=after) == mine
            assert from_node.answered > 20 and from_node.fallen_back == 0

    @pytest.mark.requirement("PRJ-7")
    async def test_what_the_node_lacks_comes_from_the_read_model(self, root, node):
        async with projecting(root, node.connect) as store:
            for n in range(5):
                store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n}", tool="y")))
            await level(store)
            node.hold = anyio.Event()
            for n in range(5, 8):
                await store.submit(write(document("t", f"v{n}", tool="x"), document(f"u{n}", tool="y"))).wait()
            assert [one.tx for one in await store.history("t")] == list(range(1, 9))
            assert [one.tx for one in await store.history("t", order="desc", limit=4)] == [8, 7, 6, 5]
            assert [one.document.id for one in await store.scan("u", tx=7)] == [f"u{n}" for n in range(7)]
            assert (await store.get("t", tx=6)).tx == 6 and (await store.get("t", tx=3)).tx == 3
            assert store._past.answered == 5
            node.hold.set()

    async def test_another_journals_versions_of_the_same_entity_are_not_shown(self, root, node, tmp_path):
        async with projecting(tmp_path / "other", node.connect) as other:
            other.submit(write(document("t", "theirs", tool="x"), document("u9", tool="x")))
            await level(other)
            async with projecting(root, node.connect) as store:
                store.submit(write(document("t", "ours", tool="x")))
                store.submit(write(document("u1", tool="x")))
                await level(store)
                other.submit(write(document("t", "theirs again", tool="x")))
                await level(other)
                assert (await store.get("t", tx=2, content=True)).document.content == "ours"
                assert [one.tx for one in await store.history("t")] == [1]
                assert [one.document.id for one in await store.scan("u", tx=2)] == ["u1"]
                assert store._past.fallen_back == 0
        assert (await compared(root, node.connect)).equal
        assert (await compared(tmp_path / "other", node.connect)).equal

    @pytest.mark.requirement("PRJ-7")
    async def test_a_node_that_does_not_answer_is_not_waited_for_again_and_again(self, root, node, monkeypatch):
        monkeypatch.setattr(past, "ANSWER_S", 0.05)
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
            node.answers = False
            for _ in range(5):
                assert (await store.get("t1", tx=3)).tx == 2
            assert (store._past.answered, store._past.fallen_back) == (0, 1)

    async def test_a_node_that_lost_its_data_is_not_believed(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 3)
            await level(store)
            node.wipe()
            assert (await store.get("t1", tx=3)).tx == 2
            assert [one.tx for one in await store.history("t1")] == [2]
            assert store._past.answered == 0


class TestComparing:
    @pytest.mark.parametrize("fields", [{"tool": "forged", "n": 4}, {"no": "form"}])
    async def test_a_version_that_was_changed_at_the_node_is_found(self, root, node, fields):
        async with projecting(root, node.connect) as store:
            fill(store, 10)
            await level(store)
        ops = next(op for ops in node.log for op in ops if isinstance(op, Put) and op.doc["xt/id"] == "t4")
        doc = {**ops.doc, "payload": {**ops.doc["payload"], "fields": fields}}
        await node.submit([Put(doc, ops.valid_time)])
        found = await compared(root, node.connect)
        assert found.worst == "damage" and not found.equal
        assert "t4" in found.problems[0].message

    async def test_a_version_too_many_and_a_missing_text_are_found(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 2)
            await level(store)
        op = next(op for ops in node.log for op in ops if isinstance(op, Put) and op.doc["xt/id"] == "t1")
        await node.submit([Put({**op.doc, "xt/id": "planted"}, op.valid_time)])
        text = next(op for ops in node.log for op in ops if isinstance(op, Put) and op.doc["type"] == "content")
        await node.submit([Put({**text.doc, "payload": {"text": "another"}}, text.valid_time)])
        messages = [problem.message for problem in (await compared(root, node.connect)).problems]
        assert len(messages) == 2 and "planted" in messages[0] and "text" in messages[1]

    async def test_what_is_not_projected_yet_is_a_warning(self, root, node):
        async with projecting(root, node.connect) as store:
            fill(store, 5)
            await level(store)
            node.down = True
            await fill(store, 1, first=5)[0].wait()
        node.down = False
        found = await compared(root, node.connect)
        assert found.equal and [problem.severity for problem in found.problems] == ["warning"]
