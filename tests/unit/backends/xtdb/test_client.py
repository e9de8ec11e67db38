"""Failing nodes: the client never guesses whether a transaction was applied, and no wait is without end."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from ctxd.backends.xtdb.client import Delete, Evict, Match, PutDoc, XtdbClient
from ctxd.backends.xtdb.http_connections import CONNECTIONS_MAX, FAILURES_TOLERATED, HttpConnections
from ctxd.backends.xtdb.messages import Behind, Refused, Unknown, Unreachable, XtdbFailure
from ctxd.clock import SystemClock
from tests.fakes.misbehaving import TRANSIT, answer, babble, drip, hang, misbehaving, unending, vanish

pytestmark = pytest.mark.anyio

SUBMITTED = b'["^ ","~:xtdb.api/tx-id",7,"~:xtdb.api/tx-time","~m5"]'
REFUSED = (
    b'["^ ","~:xtdb.error/error-type","~:illegal-argument","~:xtdb.error/error-key","~:invalid-tx-op",'
    b'"~:xtdb.error/message","invalid entity id","~:op",["~:xtdb.api/delete",["a"]]]'
)
MALFORMED = b'["^ ","~:error","Malformed \\"application/transit+json\\" request."]'
OUT_OF_SYNC = b'["^ ","~:type","exception","~:class","xtdb.api.NodeOutOfSyncException","~:message","out of sync"]'
TIMEOUT = b'["^ ","~:type","exception","~:class","java.util.concurrent.TimeoutException","~:message",""]'
BROKEN = b'["^ ","~:type","exception","~:class","java.io.IOException","~:message","disk"]'
ABSENT = b'["^ ","~:error","a entity not found"]'
OPS = [PutDoc({"xt/id": "a", "type": "t", "payload": {}}, 5)]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def server(tmp_path):
    async with misbehaving(tmp_path) as server:
        yield server


@pytest.fixture
async def client(server):
    async with XtdbClient(server.url, answer_s=20) as client:
        yield client


CALLS: dict[str, Callable[[XtdbClient], Awaitable[Any]]] = {
    "submit": lambda client: client.submit(OPS),
    "committed": lambda client: client.committed(3, timeout_s=0.2),
    "entity": lambda client: client.entity("a", valid_time=1),
    "entities": lambda client: client.entities(["a"], valid_time=1),
    "many": lambda client: client.entities([str(n) for n in range(5_000)], valid_time=1),
    "history": lambda client: client.history("a"),
    "ids": lambda client: client.ids("a", valid_time=1),
    "status": lambda client: client.status(),
    "latest_completed": lambda client: client.latest_completed(),
    "sync": lambda client: client.sync(0.1),
}
SUCCESS = {"submit": 202}
UNTRUSTED = {
    "empty": lambda status: answer(status, b""),
    "truncated": lambda status: answer(status, SUBMITTED[:20], length=len(SUBMITTED)),
    "broken off": lambda status: unending(SUBMITTED[:20]),
    "cut short but whole": lambda status: answer(status, SUBMITTED[:20]),
    "garbage": lambda status: answer(status, b"\xff\xfe garbage"),
    "something else": lambda status: answer(status, b'["^ ","~:hello",["world"]]'),
    "of another kind": lambda status: answer(status, b'"~m5"'),
    "HTML": lambda status: answer(status, SUBMITTED, media_type="text/html"),
    "of no type": lambda status: answer(status, SUBMITTED, media_type=""),
    "another success": lambda status: answer(204 if status == 200 else 200, SUBMITTED),
    "moved": lambda status: answer(301, SUBMITTED),
    "no such page": lambda status: answer(404, b"<html>", media_type="text/html"),
    "a gateway's": lambda status: answer(502, b"bad gateway", media_type="text/plain"),
    "refused by somebody else": lambda status: answer(400, b"no", media_type="text/plain"),
    "an exception": lambda status: answer(500, BROKEN),
    "no HTTP": lambda status: babble,
    "none": lambda status: vanish,
    "late": lambda status: hang,
    "slow": lambda status: drip,
}


ENDLESS = ("late", "slow")
UNREAD = ("sync", "something else")
"""Of a sync nothing is read but that it is an answer."""


@pytest.mark.parametrize(
    ("call", "what"),
    [(call, what) for call in CALLS for what in UNTRUSTED if (call, what) != UNREAD and what not in ENDLESS],
)
@pytest.mark.requirement("XTB-3")
async def test_an_answer_that_cannot_be_trusted_leaves_the_outcome_unknown(server, client, call, what):
    server.behave = lambda asked: UNTRUSTED[what](SUCCESS.get(call, 200))
    with pytest.raises(Unknown):
        await CALLS[call](client)


@pytest.mark.parametrize("call", ["submit", "committed", "entity", "many"])
@pytest.mark.parametrize("what", ENDLESS)
@pytest.mark.requirement("XTB-4")
async def test_an_endless_response_times_out(server, call, what):
    server.behave = lambda asked: UNTRUSTED[what](SUCCESS.get(call, 200))
    async with XtdbClient(server.url, answer_s=0.2) as client:
        with anyio.fail_after(20), pytest.raises(Unknown) as unknown:
            await CALLS[call](client)
    assert unknown.value.kind == "timeout"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.requirement("XTB-3")
async def test_a_missing_node_socket_is_unreachable(tmp_path, call):
    async with XtdbClient(f"unix:{tmp_path}/nobody.sock") as client:
        with pytest.raises(Unreachable):
            await CALLS[call](client)


async def test_a_port_without_a_listener_is_unreachable_too(free_tcp_port):
    async with XtdbClient(f"http://127.0.0.1:{free_tcp_port}") as client:
        with pytest.raises(Unreachable):
            await client.submit(OPS)


def test_an_address_of_another_kind_is_refused():
    with pytest.raises(ValueError, match="neither"):
        XtdbClient("ftp://x")


async def test_a_rejection_by_the_node_is_final(server, client):
    server.behave = lambda asked: answer(400, REFUSED)
    with pytest.raises(Refused) as refused:
        await client.submit(OPS)
    assert (refused.value.kind, refused.value.message) == ("invalid-tx-op", "invalid entity id")
    assert refused.value.op == ["xtdb.api/delete", ["a"]]


async def test_a_damaged_request_was_not_applied_and_may_be_repeated(server, client):
    server.behave = lambda asked: answer(400, MALFORMED)
    with pytest.raises(Unreachable, match="damaged"):
        await client.submit(OPS)


async def test_an_exception_names_its_class(server, client):
    server.behave = lambda asked: answer(500, BROKEN)
    with pytest.raises(Unknown) as unknown:
        await client.submit(OPS)
    assert (unknown.value.kind, unknown.value.message, unknown.value.status) == ("java.io.IOException", "disk", 500)


@pytest.mark.parametrize("status", [400, 500])
async def test_a_node_behind_the_transaction_raises_behind(server, client, status):
    server.behave = lambda asked: answer(status, OUT_OF_SYNC)
    with pytest.raises(Behind):
        await client.entity("a", valid_time=1, tx_id=9)


async def test_a_transaction_that_the_node_has_lost_is_unknown(server, client):
    server.behave = lambda asked: answer(200, SUBMITTED) if asked.path == "await-tx" else answer(400, OUT_OF_SYNC)
    with pytest.raises(Unknown, match="lost"):
        await client.committed(7, timeout_s=1)


async def test_an_absent_entity_is_not_a_failure(server, client):
    server.behave = lambda asked: answer(404, ABSENT)
    assert await client.entity("a", valid_time=1) is None
    assert await client.latest_completed() is None


@pytest.mark.parametrize(
    "op",
    [
        PutDoc({"xt/id": "a", "other": 1}, 5),
        PutDoc({"type": "t"}, 5),
        PutDoc({"xt/id": 5}, 5),
        PutDoc({"xt/id": "a", "payload": {"a": float("nan")}}, 5),
        Delete("\ud800", 5),
    ],
)
async def test_unencodable_operations_are_rejected_before_sending(server, client, op):
    with pytest.raises(Refused) as refused:
        await client.submit([*OPS, op])
    assert (refused.value.op, server.asked) == (op, [])


async def test_a_transaction_is_written_as_xtdb_reads_it(server, client):
    server.behave = lambda asked: answer(202, SUBMITTED)
    doc = {"xt/id": "~a", "type": "t", "payload": {"^k": ["`", 2**60]}}
    assert (
        await client.submit([Match("a", None, 1), Match("a", doc, 1), PutDoc(doc, 2), Delete("b", 4), Evict("c")]) == 7
    )
    spelled = b'{"~:xt/id":"~~a","~:type":"t","~:payload":{"~^k":["~`","~i1152921504606846976"]}}'
    assert server.asked[0].body == (
        b'{"~:tx-ops":[["~:xtdb.api/match","a",null,"~m1"],["~:xtdb.api/match","a",%s,"~m1"],'
        b'["~:xtdb.api/put",%s,"~m2"],["~:xtdb.api/delete","b","~m4"],["~:xtdb.api/evict","c"]]}'
    ) % (spelled, spelled)


async def test_a_slow_await_is_repeated_until_its_timeout(server, client):
    answers = {"await-tx": answer(500, TIMEOUT), "latest-completed-tx": answer(200, SUBMITTED)}
    server.behave = lambda asked: answers[asked.path]
    with pytest.raises(Unknown) as unknown:
        await client.committed(8, timeout_s=0.1)
    assert unknown.value.kind == "timeout"
    assert client.breaker.state == "closed"


async def test_connections_are_limited_under_many_concurrent_calls(server, client):
    server.behave = lambda asked: answer(404, ABSENT)
    async with anyio.create_task_group() as group:
        for n in range(100):
            group.start_soon(lambda n=n: client.entity(str(n), valid_time=1))
    assert len(server.asked) == 100
    assert server.busiest <= 16


async def test_a_cancelled_request_does_not_leak_its_connection(server, client):
    for _ in range(40):
        with anyio.move_on_after(0.005):
            await client.entity("a", valid_time=1)
    server.behave = lambda asked: answer(404, ABSENT)
    assert await client.entity("a", valid_time=1) is None


@pytest.mark.requirement("XTB-3")
async def test_pending_calls_of_a_closed_client_fail_and_are_not_cancelled(server):
    failed: list[XtdbFailure] = []
    all_taken = anyio.Event()

    def behave(asked):
        if len(server.asked) == CONNECTIONS_MAX:
            all_taken.set()
        return hang

    server.behave = behave

    async def ask(client):
        with pytest.raises(XtdbFailure) as failure:
            await client.entity("a", valid_time=1)
        failed.append(failure.value)

    async with anyio.create_task_group() as group:
        async with XtdbClient(server.url) as client:
            # More than there are connections: the rest wait for one.
            for _ in range(2 * CONNECTIONS_MAX):
                group.start_soon(ask, client)
            with anyio.fail_after(20):
                await all_taken.wait()
    assert len(failed) == 2 * CONNECTIONS_MAX


@pytest.mark.requirement("XTB-3")
async def test_a_request_that_comes_while_a_client_is_closing_finds_it_closed(server):
    server.behave = lambda asked: answer(404, ABSENT)
    exchange = await HttpConnections(server.url).__aenter__()

    async def ask():
        with pytest.raises(Unreachable, match="closed"):
            await exchange.request("status", {}, timeout_s=5)

    # One connection is kept, and has to be closed.
    await exchange.request("status", {}, timeout_s=5)
    async with anyio.create_task_group() as group:
        group.start_soon(exchange.__aexit__, None, None, None)
        for _ in range(20):
            await anyio.lowlevel.checkpoint()
            group.start_soon(ask)
    assert len(server.asked) == 1


class StandingClock(SystemClock):
    now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.mark.requirement("XTB-4")
async def test_a_node_that_keeps_failing_is_left_alone_and_tried_again(server):
    clock = StandingClock()
    async with XtdbClient(server.url, clock=clock) as client:
        server.behave = lambda asked: vanish
        for _ in range(FAILURES_TOLERATED):
            with pytest.raises(Unknown):
                await client.submit(OPS)
        sent = len(server.asked)
        with pytest.raises(Unreachable):
            await client.submit(OPS)
        assert (client.breaker.retry_in_s, len(server.asked), client.breaker.state) == (1.0, sent, "open")
        clock.now += 1
        server.behave = lambda asked: answer(202, SUBMITTED)
        assert client.breaker.state == "half-open"
        assert await client.submit(OPS) == 7
        assert client.breaker.state == "closed"


async def test_a_bulk_read_that_fails_in_one_part_fails(server, client):
    def behave(asked):
        return answer(500, BROKEN) if b'"4000"' in asked.body else answer(200, b"[]")

    server.behave = behave
    with pytest.raises(Unknown, match="disk"):
        await client.entities([str(n) for n in range(5_000)], valid_time=1)


@pytest.mark.parametrize(
    "body",
    [
        b'[["a",["^ ","~:xt/id","b"]]]',
        b'[["a",["^ ","~:type","t"]]]',
        b'[["a"]]',
        b'[["a",5]]',
        b'["^ ","a",1]',
    ],
)
async def test_an_invalid_row_makes_the_response_unexpected(server, client, body):
    server.behave = lambda asked: answer(200, body)
    with pytest.raises(Unknown, match="unexpected response"):
        await client.entities(["a"], valid_time=1)


@pytest.mark.parametrize(
    ("call", "body"),
    [
        ("entity", b'["^ ","~:xt/id","b"]'),
        ("entities", b'[["b",["^ ","~:xt/id","b"]]]'),
        ("many", b'[["5000",["^ ","~:xt/id","5000"]]]'),
        (
            "history",
            b'[["^ ","~:xtdb.api/tx-id",1,"~:xtdb.api/tx-time","~m1","~:xtdb.api/valid-time","~m1",'
            b'"~:xtdb.api/content-hash","1","~:xtdb.api/doc",["^ ","~:xt/id","b"]]]',
        ),
    ],
)
@pytest.mark.requirement("XTB-3")
async def test_a_row_about_another_entity_makes_the_response_unexpected(server, client, call, body):
    server.behave = lambda asked: answer(200, body)
    with pytest.raises(Unknown, match="unexpected response"):
        await CALLS[call](client)


async def test_a_version_without_its_document_makes_the_response_unexpected(server, client):
    row = b'["^ ","~:xtdb.api/tx-id",1,"~:xtdb.api/tx-time","~m1","~:xtdb.api/valid-time","~m1",'
    hashed = b'"~:xtdb.api/content-hash",["~#xtdb/oid","%s"],"~:xtdb.api/doc",null]'
    server.behave = lambda asked: answer(200, b"[" + row + hashed % (b"1" * 40) + b"]")
    with pytest.raises(Unknown):
        await client.history("a")
    server.behave = lambda asked: answer(200, b"[" + row + hashed % (b"0" * 40) + b"]")
    assert [(found.present, found.doc) for found in await client.history("a")] == [(False, None)]


async def test_a_version_that_another_node_has_evicted_is_left_out_of_a_history(server, client):
    row = (
        b'["^ ","~:xtdb.api/tx-id",1,"~:xtdb.api/tx-time","~m1","~:xtdb.api/valid-time","~m1",'
        b'"~:xtdb.api/content-hash","1","~:xtdb.api/doc",%s]'
    )
    # XTDB names the entity of a tombstone by its hash.
    tombstone = b'["^ ","~:xt/id",["~#xtdb/oid","%s"],"~:xtdb.api/evicted?",true]' % (b"2" * 40)
    kept = b'["^ ","~:xt/id","a"]'
    server.behave = lambda asked: answer(200, b"[%s,%s]" % (row % tombstone, row % kept))
    assert [found.doc for found in await client.history("a")] == [{"xt/id": "a"}]


@pytest.mark.requirement("XTB-3")
async def test_a_history_page_without_progress_is_an_unexpected_response(server, client):
    row = b'["^ ","~:xtdb.api/tx-id",%d,"~:xtdb.api/tx-time","~m1","~:xtdb.api/valid-time","~m%d",'
    row += b'"~:xtdb.api/content-hash","1","~:xtdb.api/doc",["^ ","~:xt/id","a"]]'
    for body in (b"[" + row % (1, 5) + b"]", b"[]"):
        server.behave = lambda asked, body=body: answer(206, body)
        with anyio.fail_after(10), pytest.raises(Unknown):
            await client.history("a")


@pytest.mark.parametrize("media_type", [f"{TRANSIT};charset=utf-8", f"{TRANSIT}; charset=UTF-8"])
async def test_a_character_set_behind_the_type_changes_nothing(server, client, media_type):
    server.behave = lambda asked: answer(202, SUBMITTED, media_type=media_type)
    assert await client.submit(OPS) == 7


async def test_a_parameter_without_a_value_is_left_out(server):
    server.behave = lambda asked: answer(404, ABSENT)
    async with HttpConnections(server.url) as connections:
        await connections.request("status", {"tx-id": 3, "timeout": None}, timeout_s=20)
    assert [each.parameters for each in server.asked] == [{"tx-id": "3"}]
