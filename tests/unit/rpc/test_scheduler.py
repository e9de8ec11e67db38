"""Connections take turns: who has one call does not wait for those of a client that sent thousands."""

import sys

import anyio
import anyio.lowlevel
import pytest

from ctxd.rpc.listener import SharedState
from ctxd.rpc.scheduler import (
    CALLS_ALONE_MAX,
    CALLS_BESIDE_INTERACTIVE,
    CALLS_BESIDE_WRITERS,
    CALLS_SHARED,
    CALM_S,
    INTERACTIVE_S,
    ROUNDS_BESIDE_WRITERS,
    RoundRobin,
)
from ctxd_protocol.limits import IN_FLIGHT_MAX
from tests.fakes.loopback import frame, serving
from tests.unit.rpc.families import RECEIPT, Services


class Loop:
    """The part of an event loop that gives turns, one at a time when the test says so."""

    def __init__(self):
        self.soon = []
        self.later = []

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, delay, callback):
        self.later.append((delay, callback))

    def turn(self):
        due, self.soon = self.soon, []
        for callback in due:
            callback()

    def wait(self):
        due, self.later = self.later, []
        for _, callback in due:
            callback()


class Runnable:
    """Has so many calls; notes its turns in ``log``."""

    def __init__(self, name, calls, log, *, beside_writers=False):
        self.name, self.calls, self.log, self.writers = name, calls, log, beside_writers

    def beside_writers(self):
        return self.writers

    def take_turn(self, calls):
        self.log.append((self.name, min(calls, self.calls)))
        self.calls -= min(calls, self.calls)
        return self.calls > 0


@pytest.fixture
def loop():
    return Loop()


@pytest.fixture
def turns(loop):
    made = RoundRobin(loop)
    yield made
    made.close()


@pytest.mark.requirement("RPC-9")
def test_those_with_work_take_turns_a_few_calls_each_one_a_turn_of_the_loop(loop, turns):
    log = []
    turns.want(Runnable("flooder", 100, log))
    turns.want(Runnable("other", 20, log))
    for number in range(1, 5):
        loop.turn()
        assert len(log) == number
    assert log == [("flooder", CALLS_SHARED), ("other", CALLS_SHARED)] * 2


def test_who_comes_while_another_floods_is_served_after_one_short_turn(loop, turns):
    log = []
    for name in "ab":
        turns.want(Runnable(name, 10_000, log))
    for _ in range(6):
        loop.turn()
    log.clear()
    turns.want(Runnable("late", 1, log))
    for _ in range(3):
        loop.turn()
    assert ("late", 1) in log
    assert sum(calls for _, calls in log[: log.index(("late", 1))]) <= 2 * CALLS_SHARED


def test_turns_of_one_who_is_alone_grow_up_to_a_bound_and_are_short_again_in_company(loop, turns):
    log = []
    turns.want(Runnable("alone", 1_000_000, log))
    for _ in range(20):
        loop.turn()
    assert log[0][1] == CALLS_SHARED
    assert log[-1][1] == CALLS_ALONE_MAX
    log.clear()
    turns.want(Runnable("other", 20, log))
    loop.turn()
    loop.turn()
    assert log == [("alone", CALLS_SHARED), ("other", CALLS_SHARED)]


def test_turns_of_one_who_is_alone_do_not_grow_while_somebody_is_interactive(loop, turns):
    log = []
    turns.note_interactive()
    turns.want(Runnable("alone", 1_000, log))
    for _ in range(20):
        loop.turn()
    assert set(log) == {("alone", CALLS_SHARED)}


def test_turns_beside_writers_are_shorter_and_leave_the_loop_to_the_writes_between_them(loop, turns):
    log = []
    turns.want(Runnable("reader", 1_000, log, beside_writers=True))
    for _ in range(1 + ROUNDS_BESIDE_WRITERS):
        loop.turn()
    assert log == [("reader", CALLS_BESIDE_WRITERS)] * 2


def test_turns_beside_writers_are_shortest_while_somebody_is_interactive(loop, turns, monkeypatch):
    now = 100.0
    monkeypatch.setattr("ctxd.rpc.scheduler.time.perf_counter", lambda: now)
    log = []
    turns.note_interactive()
    turns.want(Runnable("flooder", 1_000, log, beside_writers=True))
    loop.turn()
    now += INTERACTIVE_S
    for _ in range(ROUNDS_BESIDE_WRITERS):
        loop.turn()
    assert log == [("flooder", CALLS_BESIDE_INTERACTIVE), ("flooder", CALLS_BESIDE_WRITERS)]


def test_nothing_is_left_to_do_once_no_work_is_held(loop, turns):
    log = []
    turns.want(Runnable("a", 1, log))
    loop.turn()
    assert (log, loop.soon) == ([("a", 1)], [])


def test_threads_wait_less_while_work_is_held_and_as_before_when_it_is_calm(loop, turns):
    before = sys.getswitchinterval()
    turns.want(Runnable("a", 1, []))
    assert sys.getswitchinterval() < before
    loop.turn()
    assert [delay for delay, _ in loop.later] == [CALM_S]
    loop.wait()
    assert sys.getswitchinterval() < before
    loop.wait()
    assert sys.getswitchinterval() == pytest.approx(before)
    assert loop.later == []


def test_threads_wait_as_before_once_the_last_listener_has_ended(loop, turns):
    before = sys.getswitchinterval()
    other = RoundRobin(loop)
    turns.want(Runnable("a", 100, []))
    other.want(Runnable("b", 100, []))
    other.close()
    assert sys.getswitchinterval() < before
    turns.close()
    assert sys.getswitchinterval() == pytest.approx(before)
    loop.turn()
    loop.wait()
    assert (loop.soon, loop.later) == ([], [])


# --- on a connection


def current(number):
    return frame("context.current", {"session": "flood"}, id=number)


def append(number):
    return frame("session.append", {"session": "s", "messages": [{"role": "user", "content": "x"}]}, id=number)


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
async def test_one_call_is_answered_while_floods_of_others_have_hardly_begun(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two, server.connected() as other:
            await other.call("context.current")
            services.calls.clear()
            for flooder in (one, two):
                flooder.writer.write(b"".join(map(current, range(2000))))
            await server.until(lambda: len(services.calls) >= 2 * CALLS_SHARED)
            assert "result" in await other.call("context.current", {"session": "other"})
            names = [params.session for _, params in services.calls]
            assert names.index("other") < 1000
            for flooder in (one, two):
                assert [(await flooder.answer())["id"] for _ in range(2000)] == list(range(2000))


async def resolved(services, count):
    """Resolve writes as they are begun, until so many were."""
    with anyio.fail_after(5):
        for number in range(count):
            while len(services.pending) <= number:
                await anyio.lowlevel.checkpoint()
            services.pending[number].resolve(RECEIPT)


@pytest.mark.anyio
async def test_who_writes_alone_may_have_as_many_writes_undecided_as_calls_open(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"".join(map(append, range(40))))
        await server.until(lambda: len(services.pending) == IN_FLIGHT_MAX)
        await resolved(services, 40)
        assert [(await wire.answer())["id"] for _ in range(40)] == list(range(40))


@pytest.mark.anyio
async def test_those_who_write_at_once_share_the_next_transaction_and_their_reads_go_on(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two:
            await one.send(append("first"))
            await server.until(lambda: services.pending)
            await two.send(b"".join(map(append, range(20))))
            await server.until(lambda: len(services.pending) == 1 + IN_FLIGHT_MAX // 4)
            assert (await one.call("context.current", id=2))["id"] == 2
            assert len(services.pending) == 1 + IN_FLIGHT_MAX // 4
            await resolved(services, 21)
            assert (await one.answer())["id"] == "first"
            assert [(await two.answer())["id"] for _ in range(20)] == list(range(20))


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
async def test_who_waits_for_each_answer_shares_the_next_transaction_with_few_writes(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two:
            for number in range(3):
                assert (await one.call("context.current", id=number))["id"] == number
            await one.send(append("first"))
            await server.until(lambda: services.pending)
            await two.send(b"".join(map(append, range(20))))
            await server.until(lambda: len(services.pending) == 6)
            assert (await one.call("context.current", id=3))["id"] == 3
            assert len(services.pending) == 6
            await resolved(services, 21)
            assert (await one.answer())["id"] == "first"
            assert [(await two.answer())["id"] for _ in range(20)] == list(range(20))


@pytest.mark.anyio
@pytest.mark.parametrize("calls", [1, 2])
async def test_interactive_is_who_sends_one_call_at_a_time_and_not_two(tmp_path, calls):
    floor = SharedState()
    async with serving(tmp_path, Services().handlers(), floor=floor) as server, server.connected() as wire:
        for _ in range(9):
            await wire.send(b"".join(map(current, range(calls))))
            assert [(await wire.answer())["id"] for _ in range(calls)] == list(range(calls))
        assert floor.turns.beside_interactive == (calls == 1)
    floor.close()


@pytest.mark.anyio
async def test_a_cancelled_write_counts_until_it_is_decided(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as one, server.connected() as two:
            await one.send(append("first"))
            await server.until(lambda: services.pending)
            share = IN_FLIGHT_MAX // 4
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
