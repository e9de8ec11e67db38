"""The node program answers XTDB's protocol, ends every wait, says why it fails, and lets nobody else in."""

import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import aiohttp
import anyio
import pytest

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.answers import named
from ctxd.backends.xtdb.node.ask import ask
from ctxd.backends.xtdb.node.failures import NodeFailure
from ctxd.backends.xtdb.node.launch import Launch, command, environment, find_config
from tests.xtdb.running import QUICK, START_S_MAX, installation, node, postgres

TYPE = "application/transit+json"
LIMITS = "{:query-ms 700 :max-await-ms 1500 :max-awaits 4 :max-body-bytes 200000 :max-rows 1000}"
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


class Http:
    """Requests to a node by its socket, and what is answered: status, and value by names, or text if not transit."""

    def __init__(self, path):
        self._path = path

    async def __aenter__(self):
        self._session = aiohttp.ClientSession(connector=aiohttp.UnixConnector(self._path, limit=100))
        return self

    async def __aexit__(self, *error):
        await self._session.close()

    async def send(self, method, operation, params=None, *, body=None, type=TYPE):
        headers = {"Content-Type": type} if body is not None else {}
        async with self._session.request(
            method, f"http://node/_xtdb/{operation}", params=params, data=body, headers=headers
        ) as answer:
            content = await answer.read()
            if answer.content_type != TYPE:
                return answer.status, content.decode()
            value = transit.decode(content)
            return answer.status, named(value) if isinstance(value, dict) else value

    async def get(self, operation, **params):
        return await self.send("GET", operation, {name.replace("_", "-"): value for name, value in params.items()})

    async def submit(self, *ops):
        body = json.dumps({"~:tx-ops": [[f"~:xtdb.api/{op[0]}", *op[1:]] for op in ops]}).encode()
        return await self.send("POST", "submit-tx", body=body)

    async def put(self, id, at="~m1000", **fields):
        status, told = await self.submit(["put", {"~:xt/id": id, **{f"~:{key}": fields[key] for key in fields}}, at])
        assert status == 202, told
        return told["tx-id"]

    async def committed(self, *ops):
        status, told = await self.submit(*ops)
        assert status == 202, told
        tx_id = told["tx-id"]
        status, told = await self.get("tx-committed", tx_id=tx_id, await_tx_id=tx_id)
        assert status == 200, told
        return told["tx-committed?"]

    async def query(self, query, *args):
        return await self.send("POST", "query", body=json.dumps({"~:query": query, "~:in-args": args}).encode())


def explained(told, operation, kind=None):
    """Whether a failure says its class, its message and its operation."""
    assert told["class"] and told["message"], told
    assert told["operation"] == operation
    assert kind is None or kind in told["class"], told
    return True


async def test_status_tells_version_ingester_and_how_the_stores_are_kept(http):
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
        return [(named(row)["valid-time"], named(named(row)["doc"])["n"]) for row in rows]

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
async def test_entity_tx_tells_the_transaction_of_a_version(http):
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
    assert [(id, named(doc)["n"]) for id, doc in rows] == [("q1", "q1"), ("q2", "q2")]
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
async def test_whether_it_committed_is_not_said_of_a_transaction_to_come(http):
    status, told = await http.get("tx-committed", tx_id=10**9)
    assert status == 400
    assert explained(told, "GET /_xtdb/tx-committed", "NodeOutOfSyncException")
    assert told["error-type"] == "node-out-of-sync"


async def test_a_basis_that_is_not_indexed_yet_is_refused(http):
    status, told = await http.get("entity", eid="m", tx_id=10**9)
    assert status == 400
    assert explained(told, "GET /_xtdb/entity", "NodeOutOfSyncException")


@pytest.mark.requirement("XDB-1")
async def test_the_latest_transactions_and_the_log_are_told(http):
    tx_id = await http.put("log")
    assert (await http.get("await-tx", tx_id=tx_id))[1]["tx-id"] >= tx_id
    assert (await http.get("latest-completed-tx"))[1]["tx-id"] == tx_id
    assert (await http.get("latest-submitted-tx"))[1]["tx-id"] == tx_id
    assert (await http.get("sync", timeout=1000))[0] == 200
    status, log = await http.send("GET", "tx-log", {"after-tx-id": tx_id - 1, "with-ops?": "true"})
    assert (status, [named(tx)["tx-id"] for tx in log]) == (200, [tx_id])
    (op,) = named(log[0])["tx-ops"]
    assert (str(op[0]), op[1]["xt/id"], op[2]) == ("xtdb.api/put", "log", 1000)


@pytest.mark.requirement("XDB-1")
async def test_an_empty_node_has_no_latest_transaction():
    with node("memory") as empty:
        for operation in ("latest-completed-tx", "latest-submitted-tx"):
            status, told = ask(empty.url, operation)
            assert status == 404
            assert explained(named(told), f"GET /_xtdb/{operation}", "absent")
        assert ask(empty.url, "tx-log") == (200, [])
        assert named(ask(empty.url, "sync")[1]) == {"tx-time": None}


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(
    ("operation", "params"),
    [
        ("await-tx", {"tx-id": 10**9, "timeout": 50}),
        ("await-tx-time", {"tx-time": "2100-01-01", "timeout": 50}),
        ("entity", {"eid": "m", "await-tx-id": 10**9, "await-tx-timeout": 50}),
        ("entity", {"eid": "m", "await-tx-time": "2100-01-01", "await-tx-timeout": 50}),
        ("entity-tx", {"eid": "m", "awaitTxId": 10**9, "awaitTxTimeout": 50}),
        ("tx-committed", {"tx-id": 0, "await-tx-id": 10**9, "await-tx-timeout": 50}),
        ("latest-completed-tx", {"await-tx-id": 10**9, "await-tx-timeout": 50}),
        ("status", {"await-tx-id": 10**9, "await-tx-timeout": 50}),
    ],
)
async def test_a_wait_ends_when_it_was_asked_to(http, operation, params):
    with anyio.fail_after(1.4):
        status, told = await http.send("GET", operation, params)
    assert status == 500
    assert explained(told, f"GET /_xtdb/{operation}", "java.util.concurrent.TimeoutException")


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize("timeout", [{}, {"timeout": 10**12}])
async def test_a_wait_has_a_bound_whatever_was_asked(http, timeout):
    with anyio.fail_after(10):
        status, told = await http.send("GET", "await-tx", {"tx-id": 10**9} | timeout)
    assert (status, told["class"]) == (500, "java.util.concurrent.TimeoutException")


@pytest.mark.requirement("XDB-2")
async def test_many_waits_do_not_keep_others_from_being_answered(http):
    statuses = []

    async def wait():
        statuses.append((await http.get("await-tx", tx_id=10**9, timeout=1400))[0])

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for _ in range(40):
                tasks.start_soon(wait)
            while len(statuses) < 36:
                assert (await http.get("latest-submitted-tx"))[0] == 200
    assert (statuses.count(503), statuses.count(500)) == (36, 4)


@pytest.mark.requirement("XDB-2")
async def test_a_query_that_takes_too_long_ends_and_says_so(http):
    with anyio.fail_after(8):
        status, told = await http.query(FOR_EVER, *MANY)
    assert status == 500
    assert explained(told, "POST /_xtdb/query", "java.util.concurrent.TimeoutException")


@pytest.mark.requirement("XDB-2")
async def test_queries_that_took_too_long_leave_nothing_running_behind(http):
    async def one():
        assert (await http.query(FOR_EVER, *MANY))[0] == 500

    for _ in range(2):
        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(one)
    with anyio.fail_after(5):
        assert await http.query("{:find [a] :in [a]}", 1) == (200, [[1]])


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize("query", ["{:find [x] ", "nothing", "{:find [x]}", ""])
async def test_a_query_that_is_none_is_the_callers_fault(http, query):
    status, told = await http.query(query)
    assert (status, told["error-type"]) == (400, "illegal-argument")


@pytest.mark.requirement("XDB-2")
async def test_an_answer_of_more_rows_than_the_limit_is_refused_before_it_is_sent(http):
    status, told = await http.query("{:find [a b] :in [[a ...] [b ...]]}", list(range(40)), list(range(40)))
    assert (status, told["error-key"]) == (400, "too-many-rows")


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
async def test_a_body_that_is_no_transaction_is_refused_and_the_node_goes_on(http, body, kind):
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
    assert named(told["op"][1]) == {"n": "at fault"}


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
async def test_a_parameter_that_is_missing_or_makes_no_sense_is_the_callers_fault(http, params):
    status, told = await http.send("GET", "entity", params)
    assert (status, told["error-type"]) == (400, "illegal-argument")
    assert explained(told, "GET /_xtdb/entity")


@pytest.mark.requirement("XDB-1")
async def test_what_is_no_operation_is_not_taken_for_an_entity_that_is_absent(http):
    assert await http.get("nothing") == (404, "no such operation: GET /_xtdb/nothing\n")
    assert await http.send("DELETE", "entity") == (405, "method not allowed: DELETE /_xtdb/entity\n")
    assert (await http.get("submit-tx"))[0] == 405


async def test_a_request_line_beyond_the_limit_is_refused_with_a_reason(http):
    status, told = await http.get("entity", eid="x" * 70_000)
    assert (status, told["message"]) == (414, "URI Too Long")


@pytest.mark.requirement("XDB-4")
async def test_the_socket_is_for_its_owner_only(shared):
    assert stat.S_IMODE(os.stat(shared.socket).st_mode) == 0o600


@pytest.mark.requirement("XDB-4")
async def test_a_live_socket_is_refused_and_goes_on_answering(shared, tmp_path):
    ended = run(Launch(find_config("memory"), tmp_path / "data", Path(shared.socket)))
    assert ended.returncode == 69
    assert f"another node holds {shared.socket}" in ended.stderr
    assert ask(shared.url, "status")[0] == 200


@pytest.mark.requirement("XDB-4")
async def test_a_socket_on_which_another_program_answers_is_refused(tmp_path):
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        other.listen()
        ended = run(Launch(find_config("memory"), tmp_path / "data", path))
    assert ended.returncode == 69
    assert path.is_socket()


@pytest.mark.requirement("XDB-4")
async def test_a_file_in_the_sockets_place_is_left_alone(tmp_path):
    (tmp_path / "s").write_text("precious")
    ended = run(Launch(find_config("memory"), tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == 73
    assert (tmp_path / "s").read_text() == "precious"


@pytest.mark.requirement("XDB-4")
@pytest.mark.requirement("XDB-5")
async def test_killed_it_starts_again_in_the_place_of_its_stale_socket_with_all_it_answered(tmp_path):
    with node("rocksdb", tmp_path) as running:
        async with Http(running.socket) as http:
            assert (await http.get("status"))[1]["synced?"] is True
            for n in range(20):
                tx_id = await http.put(f"d{n}", n=n)
            assert stat.S_IMODE(running.data.stat().st_mode) == 0o700
        running.kill()
        assert Path(running.socket).is_socket()
        running.start()
        async with Http(running.socket) as http:
            assert (await http.get("latest-submitted-tx"))[1]["tx-id"] == tx_id
            assert (await http.get("entity", eid="d19", await_tx_id=tx_id))[1]["n"] == 19
        running.stop()
        assert not Path(running.socket).exists()


@pytest.mark.requirement("XDB-5")
async def test_an_index_that_is_gone_is_made_again_from_log_and_documents(tmp_path):
    with node("rocksdb", tmp_path) as running:
        async with Http(running.socket) as http:
            tx_id = await http.put("kept", n=1)
            assert (await http.get("entity", eid="kept", await_tx_id=tx_id))[1]["n"] == 1
        running.stop()
        for file in sorted((running.data / "index").iterdir()):
            file.unlink()
        running.start()
        async with Http(running.socket) as http:
            assert (await http.get("entity", eid="kept", await_tx_id=tx_id))[1]["n"] == 1


async def test_paused_it_answers_nothing_and_then_everything(tmp_path):
    with node("memory", tmp_path) as running:
        running.pause()
        with pytest.raises(NodeFailure):
            ask(running.url, "status", timeout_s=0.3)
        running.cont()
        assert ask(running.url, "status")[0] == 200


@pytest.mark.requirement("XDB-6")
async def test_two_nodes_on_one_postgresql_see_each_others_writes(tmp_path):
    with (
        postgres() as database,
        node("postgres", tmp_path / "a", environ=database.environ) as one,
        node("postgres", tmp_path / "b", environ=database.environ) as other,
    ):
        async with Http(one.socket) as writer, Http(other.socket) as reader:
            assert (await writer.get("status"))[1]["synced?"] is True
            tx_id = await writer.put("both", n=1)
            assert (await reader.get("entity", eid="both", await_tx_id=tx_id))[1]["n"] == 1


@pytest.mark.requirement("XDB-2")
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{:a", "EOF while reading"),
        ('{:a #ctxd/env "CTXD_NOT_SET"}', "the environment variable CTXD_NOT_SET is not set"),
    ],
)
async def test_a_configuration_that_cannot_be_read_ends_it_with_the_reason(tmp_path, text, reason):
    (tmp_path / "node.edn").write_text(text)
    ended = run(Launch(tmp_path / "node.edn", tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == os.EX_CONFIG
    assert f"{tmp_path}/node.edn cannot be read: {reason}" in ended.stderr


async def test_without_its_database_it_ends_in_a_way_that_may_be_tried_again(tmp_path, monkeypatch):
    monkeypatch.setenv("CTXD_XTDB_PG_PORT", "1")
    ended = run(Launch(find_config("postgres"), tmp_path / "data", tmp_path / "s"))
    assert ended.returncode == 1
    assert "Connection to 127.0.0.1:1 refused" in ended.stderr


async def test_on_a_port_it_listens_only_where_it_was_told_to(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with node("memory", tmp_path, tcp=f"127.0.0.1:{port}") as running:
        assert running.url == f"http://127.0.0.1:{port}"
        assert ask(running.url, "status")[0] == 200
        assert not Path(running._launch.socket).exists()
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.2", port), timeout=2)


def run(launch):
    """A node that is expected to refuse to start."""
    arguments = command(
        installation(), Launch(**{**vars_of(launch), "heap": "256m", "java_options": QUICK}), os.environ
    )
    return subprocess.run(
        arguments, env=environment(os.environ), capture_output=True, text=True, timeout=START_S_MAX, check=False
    )


def vars_of(launch):
    return {name: getattr(launch, name) for name in launch.__slots__}
