"""A call cancelled at each of its awaits leaves the connection whole and forgets nothing."""

import math

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ctxd_client import connect
from ctxd_client.connection import AsyncConnection
from ctxd_client.wire import Call
from ctxd_protocol.limits import Limits
from ctxd_protocol.methods.chat import SystemPromptParams
from ctxd_protocol.methods.declaration import Nothing, WriteResult
from ctxd_protocol.status_types import DaemonStatus
from tests.fakes.daemon import HELLO, HOLD, WAIT_S

pytestmark = pytest.mark.anyio


def transport(client):
    return client._transport


async def begin(group, call, *args):
    """Start ``call`` in a scope of its own and let it run until it waits."""
    scope = anyio.CancelScope()

    async def run():
        with scope:
            await call(*args)

    group.start_soon(run)
    await anyio.wait_all_tasks_blocked()
    return scope


async def test_a_call_cancelled_in_flight_sends_a_cancellation_and_takes_no_other_response(daemon):
    held = []
    daemon.script["daemon.status"] = lambda seen: held.append(seen) or HOLD
    async with connect(daemon.path) as client, anyio.create_task_group() as group:
        scope = await begin(group, client.daemon_status)
        await anyio.to_thread.run_sync(daemon.wait, "daemon.status")
        scope.cancel()
        (cancel,) = await anyio.to_thread.run_sync(daemon.wait, "$/cancelRequest")
        assert cancel.params == {"id": held[0].id}
        connection = transport(client)._connection
        assert connection.unanswered == 1, "the daemon still owes an answer, which counts against its limit"
        held[0].peer.answer(held[0].id, {"late": True})
        assert (await client.context_current()).turn == 1
        assert connection.unanswered == 0
        assert "0 waiting, 0 abandoned" in repr(connection)


async def test_a_call_cancelled_while_it_waits_for_its_turn_was_never_sent(daemon):
    held = []
    daemon.script["hello"] = lambda seen: HELLO.__class__(
        **{name: getattr(HELLO, name) for name in HELLO.__struct_fields__ if name != "limits"},
        limits=Limits(in_flight=1),
    )
    daemon.script["daemon.status"] = lambda seen: held.append(seen) or HOLD
    async with connect(daemon.path) as client, anyio.create_task_group() as group:
        first = await begin(group, client.daemon_status)
        await anyio.to_thread.run_sync(daemon.wait, "daemon.status")
        second = await begin(group, client.session_get, "s1")
        second.cancel()
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        await anyio.to_thread.run_sync(daemon.wait, "$/cancelRequest")
        held[0].peer.answer(held[0].id, {})
        await client.context_current()
        assert daemon.of("session.get") == []


async def test_a_call_cancelled_during_hello_leaves_no_connection_behind_and_the_next_one_connects(daemon):
    async with connect(daemon.path, deadline_s=30) as client, anyio.create_task_group() as group:
        daemon.stop()
        daemon.listen()
        daemon.script["hello"] = lambda seen: HOLD
        scope = await begin(group, client.daemon_status)
        await anyio.to_thread.run_sync(daemon.wait, "hello", 2)
        scope.cancel()
        await anyio.wait_all_tasks_blocked()
        daemon.script["hello"] = lambda seen: HELLO
        await client.daemon_status()
        assert await anyio.to_thread.run_sync(daemon.peers[1].ended.wait, WAIT_S)
        assert not daemon.peers[2].ended.is_set()


async def test_callers_waiting_for_a_reconnect_take_over_when_it_is_cancelled(daemon):
    async with connect(daemon.path, deadline_s=30) as client, anyio.create_task_group() as group:
        daemon.stop()
        daemon.listen()
        held = []
        daemon.script["hello"] = lambda seen: held.append(seen) or (HOLD if len(held) == 1 else HELLO)
        first = await begin(group, client.daemon_status)
        await anyio.to_thread.run_sync(daemon.wait, "hello", 2)
        done = anyio.Event()

        async def second():
            await client.context_current()
            done.set()

        group.start_soon(second)
        await anyio.wait_all_tasks_blocked()
        first.cancel()
        with anyio.fail_after(30):
            await done.wait()


async def test_a_call_cancelled_while_it_pauses_between_attempts_ends_at_once(daemon):
    async with connect(daemon.path, deadline_s=None) as client, anyio.create_task_group() as group:
        daemon.stop()
        scope = await begin(group, client.daemon_status)
        scope.cancel()


class StuckStream:
    """A stream whose other side reads nothing: ``send`` waits until released; ``receive`` until closed."""

    def __init__(self):
        self.sent = []
        self.sending = anyio.Event()
        self.release = anyio.Event()
        self.closed = anyio.Event()

    async def send(self, data):
        self.sending.set()
        await self.release.wait()
        self.sent.append(data)

    async def receive_fds(self, msglen, maxfds):
        await self.closed.wait()
        raise anyio.EndOfStream

    async def aclose(self):
        self.closed.set()
        await checkpoint()


async def test_a_call_cancelled_while_its_line_is_sent_never_leaves_a_partial_line():
    stream = StuckStream()
    connection = AsyncConnection(stream)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        first = await begin(group, connection.call, Call("daemon.status", Nothing(), DaemonStatus), math.inf)
        await stream.sending.wait()
        second = await begin(group, connection.call, Call("rpc.discover", Nothing(), dict), math.inf)
        second.cancel()
        first.cancel()
        await anyio.wait_all_tasks_blocked()
        stream.release.set()
        await anyio.wait_all_tasks_blocked()
        sent = b"".join(stream.sent)
        assert [b"daemon.status" in line for line in sent.splitlines()] == [True, False]
        assert sent.endswith(b"\n")
        assert b"rpc.discover" not in sent, "a line that still waited is taken back"
        assert b"$/cancelRequest" in sent.splitlines()[1]
        connection.close()


async def test_a_call_behind_a_large_cancelled_one_is_sent_as_soon_as_the_daemon_reads_on():
    stream = StuckStream()
    connection = AsyncConnection(stream)
    large = Call("session.set_system_prompt", SystemPromptParams(session="s1", content="x" * 2**20), WriteResult)
    async with anyio.create_task_group() as group:
        group.start_soon(connection.run)
        await begin(group, connection.call, Call("daemon.status", Nothing(), DaemonStatus), math.inf)
        await stream.sending.wait()
        cancelled = await begin(group, connection.call, large, math.inf)
        await begin(group, connection.call, Call("rpc.discover", Nothing(), dict), math.inf)
        cancelled.cancel()
        await anyio.wait_all_tasks_blocked()
        stream.release.set()
        await anyio.wait_all_tasks_blocked()
        sent = b"".join(stream.sent)
        group.cancel_scope.cancel()
    assert b"set_system_prompt" not in sent
    assert b"rpc.discover" in sent


async def test_closing_the_client_ends_its_waiting_calls(daemon):
    daemon.script["daemon.status"] = lambda seen: HOLD
    outcome = []

    async def wait(client):
        try:
            await client.daemon_status()
        except BaseException as error:
            outcome.append(error)
            raise

    with anyio.fail_after(30):
        async with connect(daemon.path) as client, anyio.create_task_group() as group:
            group.start_soon(wait, client)
            await anyio.to_thread.run_sync(daemon.wait, "daemon.status")
            group.cancel_scope.cancel()
    assert isinstance(outcome[0], anyio.get_cancelled_exc_class())


@pytest.mark.parametrize("steps", range(12))
async def test_a_write_cancelled_at_any_step_leaves_the_connection_usable(daemon, steps):
    async with connect(daemon.path, deadline_s=30) as client:
        for _ in range(5):
            async with anyio.create_task_group() as group:
                group.start_soon(client.session_pause, "s1")
                for _ in range(steps):
                    await checkpoint()
                group.cancel_scope.cancel()
            assert (await client.session_get("s2")).session.session == "s2"
        connection = transport(client)._connection
        with anyio.fail_after(30):
            while connection.unanswered:  # the answers to cancelled calls are still on their way
                await client.daemon_status()
    assert len(daemon.of("hello")) == 1
