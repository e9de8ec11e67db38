"""The node program speaks XTDB's protocol, ends every wait and query, explains failures, and runs nothing as code."""

import anyio
import pytest

from ctxd.backends.xtdb.messages import strip_namespaces
from ctxd.backends.xtdb.node.launch import request
from tests.xtdb.asking import Http, explained
from tests.xtdb.running import node

LIMITS = "{:query-ms 700 :max-await-ms 1500 :max-awaits 4 :max-body-bytes 200000 :max-rows 1000 :max-rows-bytes 250000}"
FOR_EVER = "{:find [(count a)] :in [[a ...] [b ...] [c ...] [d ...]]}"
MANY = [list(range(400))] * 4

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend():
    return "asyncio"


@pytest.fixture(scope="module")
def shared():
    with node("memory", limits=LIMITS) as running:
        yield running


@pytest.fixture
async def http(shared):
    async with Http(shared.socket) as http:
        yield http


async def test_status_reports_version_ingester_sync_and_functions(http):
    status, told = await http.get("status")
    assert (status, told["version"], told["ingester-failed?"]) == (200, "1.24.5", False)
    assert told["index-version"] == 22
    assert told["synced?"] is False
    assert told["functions-off?"] is True


@pytest.mark.requirement("XDB-1")
async def test_a_document_is_read_at_its_valid_time_and_not_before(http):
    tx_id = await http.put("read", at="~m2000", body={"a": [1, None, "x"]})
    status, told = await http.get("entity", eid="read", await_tx_id=tx_id)
    assert (status, told["body"]) == (200, {"a": [1, None, "x"]})
    status, told = await http.get("entity", eid="read", valid_time="1970-01-01T00:00:01.999Z")
    assert status == 404
    assert explained(told, "GET /_xtdb/entity", "absent")


@pytest.mark.requirement("XDB-1")
async def test_a_history_has_ascending_and_descending_order_corrections_and_documents(http):
    await http.put("h", at="~m1000", n=1)
    await http.put("h", at="~m2000", n=2)
    tx_id = await http.put("h", at="~m1000", n=3)

    async def rows(**params):
        status, rows = await http.get("entity", eid="h", history="true", with_docs="true", await_tx_id=tx_id, **params)
        assert status == 200, rows
        return [
            (strip_namespaces(row)["valid-time"], strip_namespaces(strip_namespaces(row)["doc"])["n"]) for row in rows
        ]

    assert await rows(sort_order="asc") == [(1000, 3), (2000, 2)]
    assert await rows(sort_order="desc") == [(2000, 2), (1000, 3)]
    assert await rows(sort_order="asc", with_corrections="true") == [(1000, 1), (1000, 3), (2000, 2)]
    assert await rows(sort_order="asc", end_valid_time="1970-01-01T00:00:02Z") == [(1000, 3)]
    assert await http.get("entity", eid="never", history="true", sort_order="asc") == (200, [])


async def test_a_history_without_an_order_is_refused(http):
    status, told = await http.get("entity", eid="h", history="true")
    assert status == 400
    assert explained(told, "GET /_xtdb/entity") and "sort-order" in told["message"]


@pytest.mark.requirement("XDB-1")
async def test_entity_tx_returns_the_transaction_of_a_version(http):
    tx_id = await http.put("etx")
    status, told = await http.get("entity-tx", eid="etx", await_tx_id=tx_id)
    assert (status, told["tx-id"], told["valid-time"]) == (200, tx_id, 1000)
    assert len(told["content-hash"]) == 40
    assert (await http.get("entity-tx", eid="never"))[0] == 404


@pytest.mark.requirement("XDB-1")
async def test_a_query_reads_many_documents_at_once(http):
    for id in ("q1", "q2"):
        tx_id = await http.put(id, n=id)
    await http.get("await-tx", tx_id=tx_id)
    query = "{:find [e (pull e [:n])] :in [[e ...]] :where [[e :xt/id]] :order-by [[e :asc]]}"
    status, rows = await http.query(query, ["q2", "missing", "q1"])
    assert status == 200
    assert [(id, strip_namespaces(doc)["n"]) for id, doc in rows] == [("q1", "q1"), ("q2", "q2")]
    assert await http.query('{:find [e] :where [[e :xt/id] [(>= e "q1")] [(< e "q2")]]}') == (200, [["q1"]])
    assert await http.query("{:find [e] :in [e] :where [[e :nothing]]}", "q1") == (200, [])


@pytest.mark.requirement("XDB-1")
async def test_a_transaction_whose_match_fails_is_taken_and_not_committed(http):
    await http.put("m", v=1)
    assert await http.committed(
        ["match", "m", {"~:xt/id": "m", "~:v": 1}, "~m1000"], ["put", {"~:xt/id": "m", "~:v": 2}, "~m1001"]
    )
    assert not await http.committed(["match", "m", None, "~m1001"], ["put", {"~:xt/id": "m", "~:v": 3}, "~m1002"])
    assert (await http.get("entity", eid="m"))[1]["v"] == 2


@pytest.mark.requirement("XDB-2")
async def test_the_outcome_of_a_future_transaction_is_not_reported(http):
    status, told = await http.get("tx-committed", tx_id=10**9)
    assert status == 400
    assert explained(told, "GET /_xtdb/tx-committed", "NodeOutOfSyncException")
    assert told["error-type"] == "node-out-of-sync"


async def test_a_basis_that_is_not_indexed_yet_is_refused(http):
    status, told = await http.get("entity", eid="m", tx_id=10**9)
    assert status == 400
    assert explained(told, "GET /_xtdb/entity", "NodeOutOfSyncException")


@pytest.mark.requirement("XDB-1")
async def test_the_latest_transactions_and_the_log_are_returned(http):
    tx_id = await http.put("log")
    assert (await http.get("await-tx", tx_id=tx_id))[1]["tx-id"] >= tx_id
    assert (await http.get("latest-completed-tx"))[1]["tx-id"] == tx_id
    assert (await http.get("latest-submitted-tx"))[1]["tx-id"] == tx_id
    assert (await http.get("sync", timeout=1000))[0] == 200
    status, log = await http.send("GET", "tx-log", {"after-tx-id": tx_id - 1, "with-ops?": "true"})
    assert (status, [strip_namespaces(tx)["tx-id"] for tx in log]) == (200, [tx_id])
    (op,) = strip_namespaces(log[0])["tx-ops"]
    assert (str(op[0]), op[1]["xt/id"], op[2]) == ("xtdb.api/put", "log", 1000)


@pytest.mark.requirement("XDB-1")
async def test_an_empty_node_has_no_latest_transaction():
    with node("memory") as empty:
        for operation in ("latest-completed-tx", "latest-submitted-tx"):
            status, told = request(empty.url, operation)
            assert status == 404
            assert explained(strip_namespaces(told), f"GET /_xtdb/{operation}", "absent")
        assert request(empty.url, "tx-log") == (200, [])
        assert strip_namespaces(request(empty.url, "sync")[1]) == {"tx-time": None}


WAITS_OF_50_MS = [
    ("await-tx", {"tx-id": 10**9, "timeout": 50}),
    ("await-tx-time", {"tx-time": "2100-01-01", "timeout": 50}),
    ("entity", {"eid": "m", "await-tx-id": 10**9, "await-tx-timeout": 50}),
    ("entity", {"eid": "m", "await-tx-time": "2100-01-01", "await-tx-timeout": 50}),
    ("entity-tx", {"eid": "m", "awaitTxId": 10**9, "awaitTxTimeout": 50}),
    ("tx-committed", {"tx-id": 0, "await-tx-id": 10**9, "await-tx-timeout": 50}),
    ("latest-completed-tx", {"await-tx-id": 10**9, "await-tx-timeout": 50}),
    ("status", {"await-tx-id": 10**9, "await-tx-timeout": 50}),
]


@pytest.mark.requirement("XDB-2")
async def test_a_wait_ends_at_its_requested_timeout(http):
    """Each ends while a wait for as long as the node allows, which began before it, goes on."""
    under_way = 0

    async def wait_as_long_as_possible() -> None:
        nonlocal under_way
        under_way += 1
        await http.send("GET", "await-tx", {"tx-id": 10**9})
        under_way -= 1

    async with anyio.create_task_group() as group:
        for operation, params in WAITS_OF_50_MS:
            for _ in range(5):
                if not under_way:
                    group.start_soon(wait_as_long_as_possible)
                    await anyio.wait_all_tasks_blocked()
                status, told = await http.send("GET", operation, params)
                assert status == 500
                assert explained(told, f"GET /_xtdb/{operation}", "java.util.concurrent.TimeoutException")
                if under_way:
                    break
            else:
                pytest.fail(f"{operation} took as long as the node allows")


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize("timeout", [{}, {"timeout": 10**12}])
async def test_a_wait_is_bounded_for_every_requested_timeout(http, timeout):
    with anyio.fail_after(30):
        status, told = await http.send("GET", "await-tx", {"tx-id": 10**9} | timeout)
    assert (status, told["class"]) == (500, "java.util.concurrent.TimeoutException")


@pytest.mark.requirement("XDB-2")
async def test_many_waits_do_not_block_other_requests(http):
    statuses = []
    held = anyio.Event()

    async def wait():
        statuses.append((await http.get("await-tx", tx_id=10**9, timeout=1400))[0])
        if statuses[-1] == 503:
            held.set()

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(wait)
            await held.wait()
            assert (await http.get("latest-submitted-tx"))[0] == 200
    assert set(statuses) == {503, 500}
    assert statuses.count(500) >= 4, "more if the first had ended when the last came"


@pytest.mark.requirement("XDB-2")
async def test_a_query_that_takes_too_long_ends_with_a_timeout(http):
    with anyio.fail_after(30):
        status, told = await http.query(FOR_EVER, *MANY)
    assert status == 500
    assert explained(told, "POST /_xtdb/query", "java.util.concurrent.TimeoutException")


@pytest.mark.requirement("XDB-2")
async def test_timed_out_queries_leave_nothing_running(http):
    async def one():
        assert (await http.query(FOR_EVER, *MANY))[0] == 500

    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(one)
    with anyio.fail_after(30):
        assert await http.query("{:find [a] :in [a]}", 1) == (200, [[1]])


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize("query", ["{:find [x] ", "nothing", "{:find [x]}", ""])
async def test_a_malformed_query_is_a_client_error(http, query):
    status, told = await http.query(query)
    assert (status, told["error-type"]) == (400, "illegal-argument")


@pytest.mark.requirement("XDB-2")
async def test_an_answer_of_more_rows_than_the_limit_is_refused_before_it_is_sent(http):
    status, told = await http.query("{:find [a b] :in [[a ...] [b ...]]}", list(range(40)), list(range(40)))
    assert (status, told["error-key"]) == (400, "too-many-rows")


@pytest.mark.requirement("XDB-9")
async def test_an_answer_of_more_bytes_than_the_limit_is_refused_unless_it_is_one_row(http):
    texts = ["x" * 75_000, "y" * 75_000]
    assert await http.query("{:find [a] :in [[a ...]]}", texts[:1]) == (200, [texts[:1]])
    status, told = await http.query("{:find [a] :in [[a ...]]}", texts)
    assert (status, told["error-key"]) == (400, "too-many-bytes")
    one = "z" * 150_000
    assert await http.query("{:find [a] :in [a]}", one) == (200, [[one]])


@pytest.mark.requirement("XDB-10")
async def test_a_history_and_a_log_of_more_bytes_than_the_limit_are_refused_and_a_partial_history_is_marked(http):
    for n in range(3):
        tx_id = await http.put("wide", at=f"~m{1000 + n}", n=n, text="x" * 90_000)
    wanted = {"eid": "wide", "history": "true", "sort_order": "asc", "await_tx_id": tx_id}
    status, told = await http.get("entity", with_docs="true", **wanted)
    assert (status, told["error-key"]) == (400, "too-many-bytes")
    assert explained(told, "GET /_xtdb/entity")
    for order, first in (("asc", 0), ("desc", 2)):
        page = {**wanted, "sort_order": order, "with_docs": "true", "partial": "true"}
        status, (row,) = await http.get("entity", **page)
        assert (status, strip_namespaces(strip_namespaces(row)["doc"])["n"]) == (206, first)
    # Without documents it fits.
    status, rows = await http.get("entity", partial="true", **wanted)
    assert (status, len(rows)) == (200, 3)
    status, told = await http.send("GET", "tx-log", {"after-tx-id": tx_id - 3, "with-ops?": "true"})
    assert (status, told["error-key"]) == (400, "too-many-bytes")
    status, log = await http.send("GET", "tx-log", {"after-tx-id": tx_id - 1, "with-ops?": "true"})
    assert (status, len(log)) == (200, 1)


@pytest.mark.requirement("XDB-3")
@pytest.mark.parametrize(
    "query",
    [
        '{:find [e] :where [[e :xt/id] [(clojure.core/slurp "/etc/hostname") x]]}',
        "{:find [(clojure.core/eval e)] :where [[e :xt/id]]}",
        "{:find [e] :where [[e :xt/id] [(java.lang.System/exit 1)]]}",
        "#=(java.lang.System/exit 1)",
    ],
)
async def test_a_query_calls_no_function_of_the_machine(http, query):
    status, told = await http.query(query)
    assert status in (400, 500)
    assert explained(told, "POST /_xtdb/query")
    assert (await http.get("status"))[0] == 200


@pytest.mark.requirement("XDB-3")
@pytest.mark.parametrize(
    "op",
    [
        ["fn", "f", 1],
        ["put", {"~:xt/id": "f", "~:xt/fn": "(fn [ctx] (System/exit 1))"}],
        ["put", {"~:xt/id": "f", "~:crux.db/fn": "x"}],
    ],
)
async def test_a_transaction_brings_no_code(http, op):
    status, told = await http.submit(op)
    assert (status, told["error-key"]) == (400, "transaction-function")


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(
    ("body", "kind"),
    [
        (b"", "malformed-body"),
        (b"[", "malformed-body"),
        (b'{"~:tx-ops":[["^9"]]}', None),
        (b"\xff\xfe garbage", "malformed-body"),
        (b"[" * 100_000, "malformed-body"),
        (b"null", "missing-tx-ops"),
        (b"{}", "missing-tx-ops"),
        (b'{"tx-ops":[]}', "missing-tx-ops"),
        (b'{"~:tx-ops":{}}', "missing-tx-ops"),
        (b'{"~:tx-ops":[["~:put",{"~:xt/id":"x"}]]}', "invalid-tx-op"),
        (b'{"~:tx-ops":[["~:xtdb.api/put",{"~:n":1}]]}', "invalid-tx-op"),
        (b'{"~:tx-ops":[["~:xtdb.api/put",{"~:xt/id":"x"},"today"]]}', "invalid-tx-op"),
        (b'{"~:tx-ops":[1]}', None),
    ],
)
async def test_an_invalid_transaction_body_is_rejected_and_the_node_continues(http, body, kind):
    before = await http.get("latest-submitted-tx")
    status, told = await http.send("POST", "submit-tx", body=body)
    assert explained(told, "POST /_xtdb/submit-tx")
    assert status == 400 if kind else status in (400, 500)
    assert kind is None or told["error-key"] == kind
    assert await http.get("latest-submitted-tx") == before
    assert (await http.get("status"))[1]["ingester-failed?"] is False


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(("opened", "closed"), [("[", "]"), ('{"~:k":', "}")])
async def test_a_document_so_deep_that_it_would_end_the_indexing_is_refused(http, opened, closed):
    for depth, status in ((100, 202), (300, 400), (550, 400), (900, 400)):
        value = opened * depth + '"x"' + closed * depth
        body = b'{"~:tx-ops":[["~:xtdb.api/put",{"~:xt/id":"deep","~:v":%s}]]}' % value.encode()
        answered, told = await http.send("POST", "submit-tx", body=body)
        assert answered == status, told
        assert status == 202 or explained(told, "POST /_xtdb/submit-tx")
    assert (await http.get("sync", timeout=1400))[0] == 200


async def test_a_refusal_names_the_operation_that_is_at_fault(http):
    status, told = await http.submit(["put", {"~:xt/id": "fine"}], ["put", {"~:n": "at fault"}])
    assert (status, told["error-key"]) == (400, "invalid-tx-op")
    assert strip_namespaces(told["op"][1]) == {"n": "at fault"}


@pytest.mark.requirement("XDB-2")
async def test_a_body_beyond_the_limit_or_of_another_type_is_refused(http):
    status, told = await http.send("POST", "submit-tx", body=b'{"~:tx-ops":["%s"]}' % (b"x" * 200_001))
    assert status == 413
    assert explained(told, "POST /_xtdb/submit-tx")

    async def endless():
        for _ in range(6):
            yield b"x" * 100_000

    assert (await http.send("POST", "submit-tx", body=endless()))[0] == 413
    status, told = await http.send("POST", "submit-tx", body=b'{"tx-ops":[]}', type="application/json")
    assert status == 415
    assert explained(told, "POST /_xtdb/submit-tx")


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(
    "params",
    [
        {},
        {"eid": "m", "valid-time": "yesterday"},
        {"eid": "m", "tx-id": "x"},
        {"eid": "m", "await-tx-id": "x"},
        {"eid": "m", "history": "perhaps"},
    ],
)
async def test_a_missing_or_invalid_parameter_is_a_client_error(http, params):
    status, told = await http.send("GET", "entity", params)
    assert (status, told["error-type"]) == (400, "illegal-argument")
    assert explained(told, "GET /_xtdb/entity")


@pytest.mark.requirement("XDB-1")
async def test_an_unknown_operation_differs_from_a_missing_entity(http):
    assert await http.get("nothing") == (404, "no such operation: GET /_xtdb/nothing\n")
    assert await http.send("DELETE", "entity") == (405, "method not allowed: DELETE /_xtdb/entity\n")
    assert (await http.get("submit-tx"))[0] == 405


async def test_a_request_line_beyond_the_limit_is_refused_with_a_reason(http):
    status, told = await http.get("entity", eid="x" * 70_000)
    assert (status, told["message"]) == (414, "URI Too Long")
