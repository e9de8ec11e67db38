"""The daemon goes away and comes back: calls are made again where that is safe, with the same op_id, under their
deadline."""

import gc
import weakref

import anyio
import pytest

from ctxd_client import (
    CallFailed,
    ConnectFailed,
    ConnectionLost,
    DaemonFault,
    TimedOut,
    Unavailable,
    connect,
    connect_sync,
)
from ctxd_client.connection import AsyncConnection
from ctxd_client.errors import from_wire
from ctxd_client.retry import Retry, final_error, may_repeat, pause_s
from ctxd_client.sync_connection import BlockingConnection
from ctxd_protocol.errors import ErrorData, ErrorObject
from ctxd_protocol.methods import METHODS
from tests.fakes.daemon import HOLD, Refusal, drop, once

pytestmark = pytest.mark.anyio

RECEIPT = {"seq": 7, "chain": "c" * 64, "vt": 1, "durable": "disk"}


@pytest.mark.requirement("CLT-2")
async def test_a_write_whose_answer_was_lost_is_sent_again_with_the_same_op_id(daemon):
    daemon.script["session.append"] = once(drop, lambda seen: {"turn": 1, "receipt": RECEIPT})
    async with connect(daemon.path) as client:
        session = await client.session("s1")
        assert (await session.user("hi")).turn == 1
    first, second = daemon.of("session.append")
    assert first.peer.number != second.peer.number
    assert first.params == second.params
    assert len(first.params["op_id"]) == 32


async def test_each_write_gets_an_op_id_of_its_own_and_one_that_is_given_is_kept(daemon):
    async with connect(daemon.path) as client:
        await client.session_pause("s1")
        await client.session_pause("s1")
        await client.session_pause("s1", op_id="mine")
    ids = [seen.params["op_id"] for seen in daemon.of("session.pause")]
    assert len(set(ids)) == 3
    assert ids[2] == "mine"


async def test_the_newest_receipt_is_shown_to_the_next_daemon(daemon):
    daemon.script["session.append"] = lambda seen: {"turn": 1, "receipt": RECEIPT}
    daemon.script["session.pause"] = once(drop, lambda seen: {"session": None})
    async with connect(daemon.path) as client:
        assert daemon.of("hello")[0].params["last_receipt"] is None
        assert client.server is not None
        await (await client.session("s1")).user("hi")
        assert client.last_receipt.seq == 7
        with pytest.raises(DaemonFault):  # an answer without shape; all that matters is the second hello
            await client.session_pause("s1")
    assert daemon.of("hello")[1].params["last_receipt"] == RECEIPT
    assert daemon.of("hello")[1].params["journal"] == client.server.journal


@pytest.mark.requirement("DUR-8")
async def test_client_refuses_a_daemon_that_lost_acknowledged_data(daemon):
    def lost(seen):
        raise Refusal("data_loss", "the journal ends before receipt 7")

    daemon.script["context.current"] = drop
    async with connect(daemon.path) as client:
        daemon.script["hello"] = lost
        with pytest.raises(DaemonFault, match="receipt 7"):
            await client.context_current()


async def test_a_restart_between_two_calls_is_not_noticed_by_the_caller(daemon):
    async with connect(daemon.path) as client:
        await client.daemon_status()
        daemon.stop()
        daemon.listen()
        await client.daemon_status()
    assert len(daemon.of("hello")) == 2


async def test_a_draining_daemon_is_replaced_and_its_pending_responses_are_used(daemon):
    def draining(seen):
        raise Refusal("draining", retry_after_ms=1, outcome="not_applied")

    held = []
    daemon.script["session.get"] = lambda seen: held.append(seen) or HOLD
    daemon.script["session.append"] = once(draining, lambda seen: {"turn": 4, "receipt": None})
    errors = []

    async def wait_for_get(client):
        try:
            await client.session_get("s1")
        except CallFailed as error:
            errors.append(error)

    async with connect(daemon.path) as client, anyio.create_task_group() as group:
        group.start_soon(wait_for_get, client)
        await anyio.to_thread.run_sync(daemon.wait, "session.get")
        assert (await client.session_append("s1", [])).turn == 4
        held[0].peer.refuse(held[0].id, Refusal("session_not_found"))
    assert [seen.peer.number for seen in daemon.of("session.append")] == [0, 1]
    assert [error.code for error in errors] == ["session_not_found"], "the old connection's answer was lost"


@pytest.mark.requirement("CLT-2")
async def test_calls_in_flight_when_the_daemon_dies_all_succeed_on_the_next_one(daemon):
    daemon.script["session.append"] = lambda seen: HOLD if seen.peer.number == 0 else {"turn": 1, "receipt": None}
    turns = []

    async def append(client, number):
        turns.append((await client.session_append(f"s{number}", [])).turn)

    async with connect(daemon.path) as client:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as group:
                for number in range(8):
                    group.start_soon(append, client, number)
                await anyio.to_thread.run_sync(daemon.wait, "session.append", 8)
                daemon.stop()
                daemon.listen()
    assert turns == [1] * 8
    assert len(daemon.of("hello")) == 2, "one caller reconnects for all"


async def test_when_no_daemon_comes_back_the_deadline_ends_the_call_and_its_outcome_stays_unknown(daemon):
    def die(seen):
        daemon.stop()
        return HOLD

    daemon.script["session.append"] = die
    async with connect(daemon.path, deadline_s=0.3) as client:
        # On a busy machine the deadline may pass within an attempt.
        with pytest.raises(Unavailable) as caught:
            await client.session_append("s1", [])
    assert caught.value.outcome == "unknown"


async def test_a_call_past_its_deadline_times_out_and_is_cancelled(daemon):
    daemon.script["session.append"] = lambda seen: HOLD
    async with connect(daemon.path) as client:
        with pytest.raises(TimedOut, match=r"within 0\.1 s") as caught:
            await client.within(0.1).session_append("s1", [])
        (cancel,) = await anyio.to_thread.run_sync(daemon.wait, "$/cancelRequest")
    assert caught.value.outcome == "unknown"
    assert cancel.params == {"id": daemon.of("session.append")[0].id}


@pytest.mark.requirement("CLT-8")
@pytest.mark.parametrize("make", [connect, connect_sync])
async def test_a_deadline_that_passes_in_a_repeat_names_the_failure_before_it(daemon, monkeypatch, make):
    """The deadline is spent in the second attempt, whatever the machine takes for the first."""

    def refuse(seen):
        raise Refusal("store_unavailable", "the node is away", retry_after_ms=1, outcome="not_applied")

    daemon.script["session.resume"] = refuse
    kind = AsyncConnection if make is connect else BlockingConnection
    answered = kind.call

    def call(self, call, deadline):
        if call.method.name == "session.resume" and daemon.of("session.resume"):
            raise TimeoutError
        return answered(self, call, deadline)

    monkeypatch.setattr(kind, "call", call)
    with pytest.raises(Unavailable, match="the node is away; the next attempt had no reply when the 30 s") as caught:
        if make is connect:
            async with connect(daemon.path) as client:
                await client.session_resume("s1")
        else:
            with connect_sync(daemon.path) as client:
                client.session_resume("s1")
    error = caught.value
    assert (error.code, error.retryable, error.outcome) == ("store_unavailable", True, "unknown")
    assert len(daemon.of("session.resume")) == 1


async def test_a_call_that_was_repeated_leaves_no_cycle_that_holds_its_connection(daemon):
    daemon.script["session.append"] = once(drop, lambda seen: {"turn": 1, "receipt": None})
    gc.disable()
    try:
        with connect_sync(daemon.path) as client:
            client.session_append("s1", [])
            transport = weakref.ref(client._transport)
        del client
        assert transport() is None
    finally:
        gc.enable()


async def test_a_silent_daemon_does_not_block_connecting_past_the_deadline(daemon):
    daemon.script["hello"] = lambda seen: HOLD
    with pytest.raises(TimedOut, match=r"hello: no reply from .* within 0\.1 s"):
        async with connect(daemon.path, deadline_s=0.1):
            pass
    with pytest.raises(TimedOut, match=r"hello: no reply from .* within 0\.1 s"):
        with connect_sync(daemon.path, deadline_s=0.1):
            pass


async def test_connect_waits_for_a_daemon_that_is_about_to_start(tmp_path):
    from tests.fakes.daemon import ScriptedDaemon

    with ScriptedDaemon(tmp_path / "late.sock") as late:
        late.stop()
        async with anyio.create_task_group() as group:
            group.start_soon(anyio.to_thread.run_sync, late.listen)
            async with connect(late.path, wait_s=10) as client:
                await client.daemon_status()


def error(code, **more):
    data = ErrorData(code=code, **more)
    return from_wire(ErrorObject(code=-1, message="m", data=data), "x")


@pytest.mark.parametrize(
    ("failure", "again"),
    [
        (error("draining", retryable=True), True),
        (error("store_backlog_full", retryable=True), True),
        (error("rate_limited", retryable=True, retry_after_ms=5), True),
        (error("disk_full", retryable=True), False),
        (error("disk_full", retryable=True, retry_after_ms=5), True),
        (error("timeout", retryable=True, outcome="unknown"), True),
        (error("timeout", retryable=True), False),
        (error("source_unreachable", retryable=True), False),
        (error("session_not_found"), False),
        (error("internal_error", outcome="unknown"), False),
        (ConnectionLost("gone"), True),
        (ConnectFailed("none", path="p", hint="h"), True),
    ],
)
def test_only_transient_failures_are_retried(failure, again):
    assert may_repeat(failure, METHODS["session.append"]) is again


def test_waits_double_up_to_a_bound_and_differ_between_clients():
    retry = Retry(first_s=0.1, most_s=1.0)
    for attempt, longest in [(1, 0.1), (2, 0.2), (3, 0.4), (9, 1.0), (10_000, 1.0)]:
        waits = {retry.wait_s(attempt) for _ in range(50)}
        assert all(longest / 2 <= wait <= longest for wait in waits)
        assert len(waits) > 1


def test_retry_waits_at_least_the_daemons_retry_after():
    assert pause_s(error("draining", retry_after_ms=3000), 1, Retry()) == 3.0


def test_a_refusal_after_an_attempt_with_unknown_outcome_keeps_it_unknown():
    assert final_error(error("draining", retryable=True, outcome="not_applied"), unknown=True).outcome == "unknown"
    assert final_error(error("draining", retryable=True, outcome="not_applied"), unknown=False).outcome == "not_applied"
    assert isinstance(final_error(error("draining"), unknown=True), Unavailable)


@pytest.mark.requirement("CLT-9")
@pytest.mark.parametrize("make", [connect, connect_sync])
async def test_on_retry_is_called_for_each_retried_failure(daemon, make):
    def refuse(seen):
        if len(daemon.of("session.pause")) < 3:
            raise Refusal("store_unavailable", "the node is away", retry_after_ms=20, outcome="not_applied")
        raise Refusal("session_closed", "it is closed")

    daemon.script["session.pause"] = refuse
    told = []

    def note(failure, elapsed_s):
        told.append((failure.code, elapsed_s))

    with pytest.raises(CallFailed, match="it is closed"):
        if make is connect:
            async with connect(daemon.path, on_retry=note) as client:
                await client.within(10).session_pause("s1")
        else:
            with connect_sync(daemon.path, on_retry=note) as client:
                client.within(10).session_pause("s1")
    assert [code for code, _ in told] == ["store_unavailable"] * 2
    assert 0 <= told[0][1] < told[1][1] and told[1][1] >= 0.02
