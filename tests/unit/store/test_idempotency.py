"""An operation id stands for one write: a resend gets the first answer, and nothing is taken twice."""

import pytest

from ctxd import limits, sqlite_file
from ctxd.errors import CtxdError
from ctxd.store.idempotency import Resend
from ctxd.store.journal_writer import JournalWriter
from tests.unit.store.documents import document, write
from tests.unit.store.running import running, verified

pytestmark = pytest.mark.anyio


async def test_a_resend_gets_the_first_answer_and_its_receipt(root):
    async with running(root) as store:
        assert await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q")) is None
        receipt = await store.submit(write(document("t1"), op_id="op", request=b"q", result=b"r")).wait()
        replay = await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q"))
        assert (replay.result, replay.pending, replay.receipt) == (b"r", None, receipt)
    async with running(root) as store:
        replay = await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q"))
        assert (replay.result, replay.pending, replay.receipt) == (b"r", None, receipt)


async def test_a_resend_joins_the_first_while_it_waits(root):
    async with running(root) as store:
        pending = store.submit(write(document("t1"), op_id="op", request=b"q", result=b"r"))
        replay = await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q"))
        assert replay.pending is pending and replay.result == b"r"


@pytest.mark.parametrize("wait", [True, False])
async def test_an_operation_id_with_other_parameters_is_refused(root, wait):
    async with running(root) as store:
        pending = store.submit(write(document("t1"), op_id="op", request=b"q"))
        if wait:
            await pending.wait()
        with pytest.raises(CtxdError) as caught:
            await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"other"))
        assert caught.value.code == "idempotency_mismatch"


async def test_operation_ids_of_two_principals_are_independent(root):
    async with running(root) as store:
        await store.submit(write(document("t1"), op_id="op", request=b"q", principal="a")).wait()
        assert await store.replay(("b", "op"), Resend("toolcall.record", "s1", b"other")) is None
        await store.submit(write(document("t2"), op_id="op", request=b"other", principal="b")).wait()


@pytest.mark.parametrize("wait", [True, False])
async def test_a_repeated_write_is_never_accepted_without_a_replay(root, wait):
    async with running(root) as store:
        pending = store.submit(write(document("t1"), op_id="op"))
        if wait:
            await pending.wait()
        with pytest.raises(CtxdError) as caught:
            store.submit(write(document("t1"), op_id="op"))
        assert caught.value.outcome == "unknown"
        await store.drain()
        assert len(await store.changes(after=0, limit=10)) == 1


async def test_a_replay_loads_heads_on_the_same_trip(root):
    async with running(root) as store:
        await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q"), heads=["t1", "t2"])
        assert store.peek("t1") is None and store.peek("t2") is None


@pytest.mark.requirement("RPC-4")
@pytest.mark.parametrize("neighbours", [0, 2])
async def test_an_operation_id_that_was_used_long_after_its_look_up_is_refused_alone(root, monkeypatch, neighbours):
    """Both calls looked it up before either was submitted, and so many others ended in between that only the journal
    has it."""
    monkeypatch.setattr(limits, "OPS_CACHED_MAX", 2)
    async with running(root) as store:
        await store.submit(write(document("t1"), op_id="op", request=b"q", result=b"r")).wait()
        for n in range(3):
            await store.submit(write(document(f"other{n}"), op_id=f"other{n}")).wait()
        before = [store.submit(write(document(f"before{n}"))) for n in range(neighbours)]
        second = store.submit(write(document("t2"), op_id="op", request=b"q", result=b"r"))
        with pytest.raises(CtxdError) as caught:
            await second.wait()
        assert (caught.value.code, caught.value.outcome) == ("cancelled", "unknown")
        assert [(await pending.wait()).seq for pending in before] == [5, 6][:neighbours]
        assert store.status().state == "ok" and await store.get("t2") is None
        replay = await store.replay(("host", "op"), Resend("toolcall.record", "s1", b"q"))
        assert replay.result == b"r"
        await store.submit(write(document("t2"), op_id="op2")).wait()
    verified(root)


@pytest.mark.requirement("RPC-4")
async def test_another_violated_constraint_is_not_reported_as_made_already(root, monkeypatch):
    def violate(*_):
        raise sqlite_file.ConstraintFailed("UNIQUE constraint failed: content.hash")

    async with running(root) as store:
        with monkeypatch.context() as patched:
            patched.setattr(JournalWriter, "_insert", violate)
            with pytest.raises(CtxdError) as caught:
                await store.submit(write(document("t1"), op_id="op", request=b"q")).wait()
        assert (caught.value.code, caught.value.outcome) == ("internal_error", "not_applied")
        await store.submit(write(document("t1"), op_id="op", request=b"q")).wait()
