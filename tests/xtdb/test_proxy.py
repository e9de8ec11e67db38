"""The proxy of the chaos tests does each harm that it names, and none else."""

import asyncio
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.xtdb.proxy import HARMFUL, ChaosProxy, Fault, Schedule, read_request, reply

BODY = b'["^ ","~:xtdb.api/tx-id",7]'
pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


class Node:
    """Answers every request alike, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []

    async def serve(self, reader, writer):
        while (request := await read_request(reader)) is not None:
            self.asked.append(request.body)
            writer.write(reply(202, BODY))
            await writer.drain()
            if b"Connection: close" in request.head:
                break
        writer.close()


@asynccontextmanager
async def proxied(tmp_path, *faults):
    node = Node()
    server = await asyncio.start_unix_server(node.serve, tmp_path / "node")
    proxy = ChaosProxy(tmp_path / "proxy", tmp_path / "node", Schedule(1, 1.0 if faults else 0.0, faults or HARMFUL))
    connector = aiohttp.UnixConnector(str(tmp_path / "proxy"))
    async with proxy.running(), aiohttp.ClientSession(connector=connector) as session:
        yield node, session, proxy
    server.close()


async def submit(session, body=b"tx"):
    async with session.post("http://node/_xtdb/submit-tx", data=body) as answer:
        return answer.status, answer.content_type, await answer.read()


async def test_without_a_fault_a_request_is_forwarded_once_and_its_reply_returned(tmp_path):
    async with proxied(tmp_path) as (node, session, _):
        assert await submit(session) == (202, "application/transit+json", BODY)
        assert await submit(session, b"second") == (202, "application/transit+json", BODY)
    assert node.asked == [b"tx", b"second"]


@pytest.mark.parametrize(
    ("fault", "times"),
    [(Fault.DROP_REQUEST, 0), (Fault.DROP_REPLY, 1), (Fault.TRUNCATE, 1), (Fault.RESET, 1)],
)
async def test_a_lost_reply_is_an_error_whether_or_not_the_request_arrived(tmp_path, fault, times):
    async with proxied(tmp_path, fault) as (node, session, _):
        with pytest.raises(aiohttp.ClientError):
            await submit(session)
        # aiohttp may send a request again that got no reply on a connection it had used before: this one was new.
        assert len(node.asked) == times


@pytest.mark.parametrize(
    ("fault", "times", "seen"),
    [
        (Fault.DUPLICATE, 2, lambda status, kind, body: status == 202 and body == BODY),
        (Fault.ERROR_BEFORE, 0, lambda status, kind, body: status >= 400),
        (Fault.ERROR_AFTER, 1, lambda status, kind, body: status >= 400),
        (Fault.EMPTY, 1, lambda status, kind, body: status == 200 and body == b""),
        (Fault.GARBAGE, 1, lambda status, kind, body: status == 200 and body != BODY),
        (Fault.WRONG_TYPE, 1, lambda status, kind, body: kind == "text/html"),
        (Fault.LIE, 0, lambda status, kind, body: status == 202 and body != BODY),
        (Fault.DRIP, 1, lambda status, kind, body: status == 202 and body == BODY),
        (Fault.DELAY, 1, lambda status, kind, body: status == 202 and body == BODY),
        (Fault.REORDER, 1, lambda status, kind, body: status == 202 and body == BODY),
        (Fault.CLOSE_AFTER, 1, lambda status, kind, body: status == 202 and body == BODY),
    ],
)
async def test_each_fault_has_its_documented_effect(tmp_path, fault, times, seen):
    async with proxied(tmp_path, fault) as (node, session, _):
        assert seen(*await submit(session))
        assert len(node.asked) == times


async def test_a_held_request_arrives_after_the_one_that_overtook_it(tmp_path):
    async with proxied(tmp_path, Fault.REORDER) as (node, session, proxy):
        held = asyncio.create_task(submit(session, b"held"))
        while not proxy.schedule.struck[Fault.REORDER]:
            await asyncio.sleep(0)
        proxy.schedule.heal()
        await submit(session, b"passes")
        await held
        assert node.asked == [b"passes", b"held"]


async def test_the_schedule_is_deterministic_per_seed(tmp_path):
    first, again, other = Schedule(3, 0.5), Schedule(3, 0.5), Schedule(4, 0.5)
    drawn = [first.next() for _ in range(200)]
    assert drawn == [again.next() for _ in range(200)]
    assert drawn != [other.next() for _ in range(200)]


async def test_a_healed_proxy_injects_no_faults(tmp_path):
    async with proxied(tmp_path, Fault.GARBAGE) as (node, session, proxy):
        proxy.schedule.heal()
        assert await submit(session) == (202, "application/transit+json", BODY)
