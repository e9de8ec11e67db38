"""Slices of received work: bounded, one after the other, whoever sends how much of what."""

import math
from time import perf_counter

import anyio
import pytest

from ctxd.rpc.in_flight_calls import WRITE_WINDOW
from ctxd.rpc.listener_state import SharedState
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd.rpc.scheduler import (
    CALLS_BESIDE_INTERACTIVE,
    INTERACTIVE_S,
    LINE_BYTES,
    ROUNDS_BESIDE_WRITES,
    SLICE_LINES,
    ConnectionGroup,
    RoundRobin,
)
from ctxd_protocol.limits import IN_FLIGHT_MAX
from ctxd_protocol.sandbox_types import Quota
from tests.fakes.loopback import frame, serving
from tests.fakes.socketless_connections import Edge, Loop
from tests.unit.rpc.families import RECEIPT, Services

JUNK = {
    "blank": b"\n",
    "spaces": b"  \r\n",
    "stray response": b'{"jsonrpc":"2.0","id":1,"result":{}}\n',
    "malformed": b"{]\n",
    "not an object": b"17\n",
    "notification without a method": b'{"jsonrpc":"2.0","method":"no.such","params":{}}\n',
}
CALL = frame("context.current", id=1)


class Member:
    """Work for so many slices."""

    def __init__(self, name, slices, log):
        self.name, self.slices, self.log = name, slices, log

    def run_slice(self):
        self.log.append(self.name)
        self.slices -= 1
        return self.slices > 0


@pytest.fixture
def services():
    return Services()


@pytest.mark.requirement("RPC-9")
def test_members_have_one_slice_each_in_turn_and_the_loop_iterates_between():
    loop, log = Loop(), []
    scheduler = RoundRobin(loop)
    for name in "abc":
        scheduler.add(Member(name, 3, log))
    for number in range(1, 10):
        loop.turn()
        assert len(log) == number
    assert log == list("abcabcabc")
    assert not loop.turn()


def test_a_member_runs_at_once_while_no_other_is_ready_and_after_those_that_are():
    loop, log = Loop(), []
    scheduler = RoundRobin(loop)
    scheduler.run(Member("alone", 1, log))
    assert log == ["alone"]
    scheduler.run(Member("first", 3, log))
    scheduler.run(Member("second", 1, log))
    loop.turns()
    assert log == ["alone", "first", "first", "second", "first"]


@pytest.mark.requirement("BOX-5")
def test_a_group_has_one_slice_in_each_round_however_many_members_it_has():
    loop, log = Loop(), []
    scheduler = RoundRobin(loop)
    crowd, other = (ConnectionGroup(scheduler, loop, lambda: 0.0) for _ in range(2))
    for number in range(8):
        crowd.run(Member(f"crowd {number}", 100, log))
    other.run(Member("other", 100, log))
    scheduler.add(Member("host", 100, log))
    for _ in range(24):
        loop.turn()
    assert [log.count(name) for name in ("other", "host")] == [8, 8]
    assert sorted(name for name in log if name.startswith("crowd")) == [f"crowd {number}" for number in range(8)]


def interactive(edge):
    """A connection that has sent each call after the answer to the one before."""
    connection, answered = edge.connect()
    for _ in range(3):
        connection.data_received(CALL)
        edge.loop.turns()
    return connection, answered


@pytest.mark.requirement("RPC-9")
def test_slices_have_few_calls_while_a_connection_is_interactive_and_many_otherwise(services, monkeypatch):
    monkeypatch.setattr("ctxd.rpc.connection.SLICE_S", 60.0)
    monkeypatch.setattr("ctxd.rpc.connection.INTERACTIVE_S", 3600.0)
    with Edge(services.handlers()) as edge:
        flooding, _ = edge.connect()
        flooding.data_received(CALL * 50)
        assert len(services.calls) == 50, "one slice is enough"
        edge.loop.turns()
        interactive(edge)
        before = len(services.calls)
        flooding.data_received(CALL * 50)
        assert len(services.calls) == before + CALLS_BESIDE_INTERACTIVE
        assert edge.loop.turns() >= 50 // CALLS_BESIDE_INTERACTIVE
        assert len(services.calls) == before + 50


@pytest.mark.requirement("RPC-9")
def test_the_call_of_an_interactive_client_does_not_wait_for_the_floods_before_it(services, monkeypatch):
    monkeypatch.setattr("ctxd.rpc.connection.SLICE_S", 60.0)
    monkeypatch.setattr("ctxd.rpc.connection.INTERACTIVE_S", 3600.0)
    with Edge(services.handlers()) as edge:
        asking, answered = interactive(edge)
        floods = [edge.connect()[0] for _ in range(4)]
        for flooding in floods:
            flooding.data_received(CALL * 50)
        before = answered.written.count(b"\n")
        asking.data_received(CALL)
        assert answered.written.count(b"\n") == before + 1
        asking.data_received(CALL * 50)
        asking.data_received(CALL)
        assert answered.written.count(b"\n") <= before + 1 + CALLS_BESIDE_INTERACTIVE, "a flood has its turn"


@pytest.mark.requirement("RPC-9")
def test_concurrent_or_pipelined_calls_make_no_connection_interactive(services):
    with Edge(services.handlers()) as edge:
        connection, _ = edge.connect()
        for _ in range(5):
            connection.data_received(CALL * 2)
            edge.loop.turns()
        assert edge.listener.scheduler.interactive_until == 0
        began = perf_counter()
        interactive(edge)
        assert edge.listener.scheduler.interactive_until >= began + INTERACTIVE_S


@pytest.mark.requirement("BOX-5")
def test_a_sandbox_makes_no_client_of_the_host_take_shorter_slices(services):
    loop = Loop()
    quota = QuotaMeter(Quota(), objects=lambda: 0, now=loop.time)
    with Edge(services.handlers(), loop=loop, quota=quota) as edge:
        connection, transport = interactive(edge)
        for _ in range(10):
            connection.data_received(CALL)
            loop.turns()
        assert transport.written.count(b"\n") == 13
        assert edge.listener.shared.scheduler.interactive_until == 0


@pytest.mark.requirement("RPC-9")
def test_the_loop_iterates_several_times_between_slices_beside_the_writes_of_an_interactive_client():
    loop, log = Loop(), []
    scheduler = RoundRobin(loop)
    scheduler.writers = 1
    for name in "ab":
        scheduler.add(Member(name, 2, log))
    assert loop.turns() == 4, "nobody is interactive"
    scheduler.interactive_until = math.inf
    for name in "ab":
        scheduler.add(Member(name, 2, log))
    assert loop.turns() == 1 + 3 * ROUNDS_BESIDE_WRITES
    assert log == list("abababab")


@pytest.mark.parametrize("line", JUNK.values(), ids=JUNK)
@pytest.mark.requirement("RPC-9")
def test_lines_that_are_not_calls_are_read_in_slices_like_calls(services, line):
    lines = 20 * SLICE_LINES
    with Edge(services.handlers()) as edge:
        flooding, flooded = edge.connect()
        other, answered = edge.connect()
        flooding.data_received(line * lines + CALL)
        assert not flooded.reading, "the rest waits for further slices"
        assert not services.calls
        other.data_received(CALL)
        edge.loop.turn()
        edge.loop.turn()
        assert b'"result"' in answered.written, "the other connection waits for one slice"
        assert len(services.calls) == 1
        assert edge.loop.turns() >= lines // SLICE_LINES - 4
        assert flooded.reading and b'"result"' in flooded.written


def test_long_lines_cost_as_much_as_many_short_ones(services):
    line = b'"%b"\n' % (b"x" * LINE_BYTES * SLICE_LINES)
    with Edge(services.handlers()) as edge:
        flooding, flooded = edge.connect()
        flooding.data_received(line * 5)
        assert not flooded.reading
        assert edge.loop.turns() >= 3
        assert flooded.written.count(b"\n") == 5


@pytest.mark.parametrize("line", JUNK.values(), ids=JUNK)
@pytest.mark.requirement("BOX-5")
def test_a_sandbox_whose_lines_are_used_up_is_read_again_when_its_quota_has_room(services, line):
    loop = Loop()
    quota = QuotaMeter(Quota(requests_per_s=10), objects=lambda: 0, now=loop.time)
    with Edge(services.handlers(), loop=loop, quota=quota) as edge:
        flooding, flooded = edge.connect()
        flooding.data_received(line * 1000 + CALL)
        loop.turns()
        assert loop.timers and not flooded.reading and not services.calls
        waited = 0
        while not services.calls and waited < 100 and b"quota_exceeded" not in flooded.written:
            loop.advance(1)
            loop.turns()
            waited += 1
        assert waited >= 15, "40 lines a second, after those of two seconds at once"
        assert flooded.reading


@pytest.mark.requirement("BOX-5")
def test_lines_of_calls_that_wait_for_an_answer_to_be_sent_are_charged_to_the_quota_once(services):
    charged = []

    class Meter(QuotaMeter):
        def spend(self, lines):
            charged.append(lines)

    loop = Loop()
    quota = Meter(Quota(), objects=lambda: 0, now=loop.time)
    with Edge(services.handlers(), loop=loop, quota=quota) as edge:
        connection, transport = edge.connect()
        connection.data_received(b"".join(frame("session.chat", {"session": "x"}, id=number) for number in range(50)))
        loop.turns()
        assert transport.written.count(b"\n") == 50
        assert sum(charged) == 50


def current(number):
    return frame("context.current", {"session": "flood"}, id=number)


def append(number):
    return frame("session.append", {"session": "s", "messages": [{"role": "user", "content": "x"}]}, id=number)


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
async def test_one_call_is_served_while_floods_of_others_have_hardly_begun(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two, server.connected() as other:
            await other.call("context.current")
            services.calls.clear()
            for flooder in (one, two):
                flooder.writer.write(b"".join(map(current, range(2000))))
            await server.until(lambda: len(services.calls) >= 2)
            assert "result" in await other.call("context.current", {"session": "other"})
            names = [params.session for _, params in services.calls]
            assert names.index("other") < 2000
            for flooder in (one, two):
                assert [(await flooder.answer())["id"] for _ in range(2000)] == list(range(2000))


async def resolved(services, count):
    """Resolve writes as they are begun, until so many were."""
    with anyio.fail_after(30):
        for number in range(count):
            while len(services.pending) <= number:
                await anyio.lowlevel.checkpoint()
            services.pending[number].resolve(RECEIPT)


@pytest.mark.anyio
async def test_a_lone_writer_may_have_as_many_undecided_writes_as_open_calls(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"".join(map(append, range(40))))
        await server.until(lambda: len(services.pending) == IN_FLIGHT_MAX)
        await resolved(services, 40)
        assert [(await wire.answer())["id"] for _ in range(40)] == list(range(40))


@pytest.mark.anyio
async def test_concurrent_writers_share_the_next_transaction_and_their_reads_continue(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two:
            await one.send(append("first"))
            await server.until(lambda: services.pending)
            await two.send(b"".join(map(append, range(20))))
            await server.until(lambda: len(services.pending) == 1 + WRITE_WINDOW)
            assert (await one.call("context.current", id=2))["id"] == 2
            assert len(services.pending) == 1 + WRITE_WINDOW
            await resolved(services, 21)
            assert (await one.answer())["id"] == "first"
            assert [(await two.answer())["id"] for _ in range(20)] == list(range(20))


@pytest.mark.requirement("BOX-5")
def test_the_undecided_writes_of_a_sandbox_narrow_the_window_of_sandboxes_alone(services):
    loop = Loop()
    shared = SharedState(loop)
    quota = QuotaMeter(Quota(), objects=lambda: 0, now=loop.time)

    def begun(edge, number):
        connection, _ = edge.connect()
        before = len(services.pending)
        connection.data_received(b"".join(append(each) for each in range(number)))
        loop.turns()
        return len(services.pending) - before

    with (
        Edge(services.handlers(), shared=shared, loop=loop, quota=quota) as box,
        Edge(services.handlers(), shared=shared, loop=loop) as host,
    ):
        assert begun(box, 1) == 1
        assert begun(host, 40) == IN_FLIGHT_MAX, "beside a sandbox's writes"
        assert begun(host, 40) == WRITE_WINDOW, "beside another client's of the host"
        assert begun(box, 40) == WRITE_WINDOW
        for pending in services.pending:
            pending.resolve(RECEIPT)
        scheduler = shared.scheduler
        while scheduler.writers:
            loop.turns()
            for pending in services.pending:
                if not pending.done:
                    pending.resolve(RECEIPT)
        assert scheduler.sandbox_writers == 0


@pytest.mark.anyio
async def test_a_cancelled_write_counts_until_it_is_decided(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two:
            await one.send(append("first"))
            await server.until(lambda: services.pending)
            share = WRITE_WINDOW
            for number in range(share):
                await two.send(append(number))
                await two.send(frame("$/cancelRequest", {"id": number}, id=None).replace(b'"id": null, ', b""))
                assert (await two.answer())["error"]["data"]["code"] == "cancelled"
            assert len(services.pending) == 1 + share
            await two.send(append("more"))
            assert (await one.call("context.current", id=2))["id"] == 2
            assert len(services.pending) == 1 + share
            services.pending[1].resolve(RECEIPT)
            await server.until(lambda: len(services.pending) == 2 + share)
            for pending in services.pending:
                if not pending.done:
                    pending.resolve(RECEIPT)
            assert (await two.answer())["id"] == "more"


@pytest.mark.anyio
@pytest.mark.parametrize("started", [True, False])
async def test_a_write_cancelled_before_it_was_submitted_leaves_its_place(tmp_path, started):
    services = Services()
    prompt = frame("session.set_system_prompt", {"session": "s", "content": "x"}, id="prompt")
    cancel = frame("$/cancelRequest", {"id": "prompt"}, id=None).replace(b'"id": null, ', b"")
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        for _ in range(2 * IN_FLIGHT_MAX):
            if started:
                services.entered = anyio.Event()
                await wire.send(prompt)
                await services.entered.wait()
                await wire.send(cancel)
            else:
                await wire.send(prompt + cancel)
            assert (await wire.answer())["error"]["data"]["code"] == "cancelled"
        await wire.send(append(1))
        await resolved(services, 1)
        assert (await wire.answer())["id"] == 1
