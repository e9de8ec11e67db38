"""What one client does or leaves undone costs nobody else anything."""

import asyncio
import gc
import json
import os
import tracemalloc

import anyio
import pytest

from ctxd.rpc.listener_state import Timing
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.limits import Limits
from tests.fakes.loopback import frame, serving
from tests.unit.rpc.families import Services

pytestmark = pytest.mark.anyio

CALL = frame("context.current")


async def large(caller, params):
    return CurrentContext(context_id="x" * 200_000, session=None, turn=0, assembly=0)


async def assert_served(server):
    async with server.connected() as other:
        assert (await other.call("context.current"))["result"]["turn"] == 0


async def test_a_client_that_vanishes_in_a_frame_leaves_nothing_behind(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server:
        async with server.connected() as wire:
            await wire.send(CALL[:20])
            await server.until(lambda: server.server.connections == 1)
        await server.until(lambda: server.server.connections == 0)
        await assert_served(server)


async def test_an_unfinished_frame_is_never_carried_out(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as wire:
            await wire.send(CALL.strip())
            wire.writer.write_eof()
            assert await wire.closed()
        assert services.calls == []


async def test_a_frame_that_is_not_completed_in_time_ends_the_connection(tmp_path):
    async with serving(tmp_path, Services().handlers(), timing=Timing(frame_s=0.05)) as server:
        async with server.connected() as wire:
            await wire.send(CALL + CALL[:20])
            assert "result" in await wire.answer()
            assert (await wire.answer())["error"]["data"]["code"] == "timeout"
            assert await wire.closed()
        await assert_served(server)


async def test_an_idle_connection_is_not_timed(tmp_path):
    async with serving(tmp_path, Services().handlers(), timing=Timing(frame_s=0.02)) as server:
        async with server.connected() as wire, server.connected() as slow:
            assert "result" in await wire.call("context.current")
            await slow.send(b"{")
            assert (await slow.answer())["error"]["data"]["code"] == "timeout"
            assert "result" in await wire.call("context.current")


async def test_a_client_that_reads_nothing_is_closed_and_its_calls_are_not_buffered_without_bound(tmp_path):
    made = 0

    async def counted(caller, params):
        nonlocal made
        made += 1
        return await large(caller, params)

    timing = Timing(stall_s=0.1, write_buffer_bytes=300_000)
    async with serving(tmp_path, {"context.current": counted}, timing=timing) as server:
        async with server.connected() as wire:
            wire.writer.transport.pause_reading()
            wire.writer.write(CALL * 2000)
            await server.until(lambda: server.server.connections == 0)
        assert 0 < made < 500


async def test_late_responses_are_not_encoded_for_a_client_that_does_not_read(tmp_path):
    services, shared = Services(), "x" * 2_000_000
    services.plan = lambda caller, params: slow_and_large(services, shared)
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"".join(frame("context.plan", {"session": "s"}, id=number) for number in range(32)))
        await server.until(lambda: server.server.in_flight == 32)
        tracemalloc.start()
        services.gate.set()
        await server.until(lambda: server.server.in_flight == 0)
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 5 * len(shared)
        # The client has closed its sending side: every answer is owed to it all the same.
        wire.writer.write_eof()
        lines = (await read_all(wire)).splitlines()
        assert sorted(json.loads(line)["id"] for line in lines) == list(range(32))


async def slow_and_large(services, shared):
    await services.gate.wait()
    return CurrentContext(context_id=shared, session=None, turn=0, assembly=0)


async def read_all(wire):
    with anyio.fail_after(30):
        return await wire.reader.read()


async def test_a_slow_reader_gets_every_answer_once_it_reads(tmp_path):
    timing = Timing(write_buffer_bytes=300_000)
    async with serving(tmp_path, {"context.current": large}, timing=timing) as server, server.connected() as wire:
        wire.writer.transport.pause_reading()
        wire.writer.write(b"".join(frame("context.current", id=number) for number in range(200)))
        wire.reader._limit = 1 << 20
        await server.until(lambda: server.server.requests)
        wire.writer.transport.resume_reading()
        assert [(await wire.answer())["id"] for _ in range(200)] == list(range(200))


async def test_a_flood_is_served_completely_and_in_order(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server, server.connected() as wire:
        wire.writer.write(b"".join(frame("context.current", id=number) for number in range(20_000)))
        assert [(await wire.answer())["id"] for _ in range(20_000)] == list(range(20_000))
        await assert_served(server)


@pytest.mark.requirement("RPC-8")
async def test_no_more_calls_are_open_than_the_bound_and_the_rest_follow(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(b"".join(frame("context.plan", {"session": "s"}, id=number) for number in range(50)))
        await server.until(lambda: len(services.calls) == 32)
        await assert_served(server)
        assert (len(services.calls) - 1, server.server.in_flight) == (32, 32)
        services.gate.set()
        assert sorted([(await wire.answer())["id"] for _ in range(50)]) == list(range(50))
        assert server.server.in_flight == 0


@pytest.mark.requirement("RPC-8")
async def test_a_frame_beyond_the_limit_is_refused_and_the_connection_ended(tmp_path):
    async with serving(tmp_path, Services().handlers(), limits=Limits(frame_bytes=1000)) as server:
        fits = CALL.strip().ljust(1000) + b"\n"
        async with server.connected() as wire:
            await wire.send(fits + CALL + b"x" * 1001)
            assert "result" in await wire.answer()
            assert "result" in await wire.answer()
            assert (await wire.answer())["error"]["data"]["code"] == "frame_too_large"
            assert await wire.closed()
        async with server.connected() as wire:
            await wire.send(CALL.strip().ljust(1001) + b"\n" + CALL)
            assert (await wire.answer())["error"]["data"]["code"] == "frame_too_large"
            assert await wire.closed()


async def test_header_framing_gets_a_clear_answer(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server, server.connected() as wire:
        await wire.send(b"Content-Length: 52\r\n\r\n")
        assert "one JSON text per line" in (await wire.answer())["error"]["data"]["hint"]
        assert await wire.closed()


@pytest.mark.parametrize(
    "garbage",
    [b"\x00\n", b"\xff\xfe{\x00}\x00\n", b"{" * 100 + b"\n", b"GET / HTTP/1.1\r\n", b"[" * 100_000 + b"\n", b"nul\n"],
)
@pytest.mark.requirement("RPC-2")
async def test_garbage_is_rejected_and_the_connection_continues(tmp_path, garbage):
    async with serving(tmp_path, Services().handlers()) as server, server.connected() as wire:
        await wire.send(garbage + CALL)
        assert (await wire.answer())["error"]["code"] == -32700
        assert "result" in await wire.answer()


async def test_connections_beyond_the_cap_are_refused_politely(tmp_path):
    async with serving(tmp_path, Services().handlers(), connections_max=2) as server:
        async with server.connected() as one, server.connected() as two:
            for wire in (one, two):
                assert "result" in await wire.call("context.current")
            async with server.connected() as third:
                refusal = (await third.answer())["error"]["data"]
                assert (refusal["code"], refusal["retryable"], refusal["retry_after_ms"]) == (
                    "rate_limited",
                    True,
                    1000,
                )
                assert await third.closed()
        await server.until(lambda: server.server.connections == 0)
        await assert_served(server)


async def test_a_client_that_only_closes_its_sending_side_gets_its_answers(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server, server.connected() as wire:
        await wire.send(frame("context.plan", {"session": "s"}) + frame("context.current", id=2))
        wire.writer.write_eof()
        assert (await wire.answer())["id"] == 2
        services.gate.set()
        assert (await wire.answer())["id"] == 1
        assert await wire.closed()


async def test_hostile_clients_leak_no_task_and_no_descriptor(tmp_path):
    services = Services()
    async with serving(tmp_path, services.handlers()) as server:
        async with server.connected() as wire:
            await wire.send(frame("context.plan", {"session": "s"}) * 2)
            await server.until(lambda: server.server.in_flight)
        await assert_served(server)
        await server.until(lambda: server.server.connections == server.server.in_flight == 0)
        gc.collect()  # Descriptors that earlier tests left to the collector would go meanwhile.
        descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
        for data in (
            b"{",
            b"\xff\n",
            CALL * 50,
            frame("context.plan", {"session": "s"}),
            b"Content-Length: 1\r\n",
            b"",
        ):
            for _ in range(20):
                async with server.connected() as wire:
                    await wire.send(data)
        await server.until(lambda: server.server.connections == 0 and len(asyncio.all_tasks()) == tasks)
        assert len(os.listdir("/proc/self/fd")) == descriptors
        assert server.server.in_flight == 0
        await assert_served(server)


async def test_ending_the_server_ends_connections_calls_and_the_socket(tmp_path):
    services = Services()
    with anyio.fail_after(30):
        async with serving(tmp_path, services.handlers()) as server:
            reader, writer = await asyncio.open_unix_connection(server.path)
            writer.write(frame("context.plan", {"session": "s"}))
            await services.entered.wait()
        assert await reader.read() == b""
    writer.close()
    assert services.cancelled == ["context.plan"]
    assert not server.path.exists()
