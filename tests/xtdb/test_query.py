"""Datalog over the store's documents at a live node: as of both times, bounded in time and rows."""

import json
import shlex
import subprocess
import sys
import uuid
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from ctxd.backends import xtdb
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf
from ctxd.projection.node_connection import connect
from ctxd_client import CallFailed, connect_sync
from tests.crash.daemon import daemon_process
from tests.unit.projection.projecting import level, projecting
from tests.unit.store.documents import document, write

pytestmark = pytest.mark.anyio

README = Path(xtdb.__file__).with_name("README.md")

BY_TOOL = "{:find [e] :in [tool] :where [[e :tool tool]]}"
SLOW = "{:find [a b c d] :where [[a :xt/id] [b :xt/id] [c :xt/id] [d :xt/id]] :order-by [[a :asc] [d :desc]]}"


@pytest.fixture
async def store(memory_node, tmp_path):
    """A store with three tool calls, a row each, at the node."""
    async with projecting(tmp_path / "state", connect, memory_node.url) as store:
        store.tool = uuid.uuid4().hex
        for n in range(3):
            call = document(f"{store.tool}-{n}", f"output {n}", tool=store.tool, chat_ref="chat:s1", n=n)
            await store.submit(write(call)).wait()
            # Rows of one millisecond cannot be distinguished at the node.
            await anyio.sleep(0.002)
        await level(store)
        yield store


def ids(found, tool):
    return sorted(row[0].removeprefix(f"{tool}-") for row in found.rows)


@pytest.mark.requirement("XTB-10")
async def test_rows_are_those_as_of_both_times(store):
    async def found(**at):
        return ids(await store.query(BY_TOOL, [store.tool], AsOf(**at), limit=10, timeout_s=10), store.tool)

    assert await found() == ["0", "1", "2"]
    assert await found(tx=2) == ["0", "1"]
    first = (await store.get(f"{store.tool}-0")).valid_time
    assert await found(valid_time=first) == ["0"]
    assert await found(valid_time=first - 1) == []
    assert await found(valid_time=first, tx=3) == ["0"]


@pytest.mark.requirement("XTB-10")
@pytest.mark.requirement("VER-6")
async def test_a_query_at_a_transaction_does_not_see_later_writes_at_a_past_time(store):
    first = (await store.get(f"{store.tool}-0")).valid_time
    late = document(f"{store.tool}-3", "imported", tool=store.tool)
    await store.submit(write(late, valid_times={late.id: first})).wait()
    await level(store)
    with pytest.raises(CtxdError, match="row 4 wrote at a past valid time") as refused:
        await store.query(BY_TOOL, [store.tool], AsOf(tx=2), limit=10, timeout_s=10)
    assert refused.value.code == "invalid_params" and "tx 4" in refused.value.hint
    earlier = await store.query(BY_TOOL, [store.tool], AsOf(first - 1, 2), limit=10, timeout_s=10)
    assert ids(earlier, store.tool) == []
    newest = await store.query(BY_TOOL, [store.tool], AsOf(first), limit=10, timeout_s=10)
    assert ids(newest, store.tool) == ["0", "3"]


@pytest.mark.requirement("XTB-10")
async def test_documents_are_returned_as_json_values(store):
    query = '{:find [(pull e [*])] :in [tool] :where [[e :tool tool] [e :session "s1"]] :order-by [[e :asc]]}'
    found = await store.query(query.replace("[(pull e [*])]", "[e (pull e [*])]"), [store.tool], limit=1, timeout_s=10)
    ((id, doc),) = found.rows
    assert not found.complete and found.tx == 3
    assert (id, doc["type"], doc["payload"]["fields"]["n"]) == (f"{store.tool}-0", "toolcall", 0)


@pytest.mark.requirement("XTB-10")
async def test_a_query_is_bounded_in_rows_and_time(store):
    found = await store.query(BY_TOOL, [store.tool], limit=2, timeout_s=10)
    assert len(found.rows) == 2 and not found.complete
    assert (await store.query(BY_TOOL, [store.tool], limit=3, timeout_s=10)).complete
    with pytest.raises(CtxdError) as slow:
        await store.query(SLOW, limit=1, timeout_s=0.2)
    assert slow.value.code == "timeout"
    assert (await store.query(BY_TOOL, [store.tool], limit=3, timeout_s=10)).complete, "the node goes on"


@pytest.mark.requirement("XTB-10")
@pytest.mark.parametrize(
    "query",
    [
        "[:find e :where [e :xt/id]]",
        "{:find [e] :where [[e :xt/id]] :limit 5}",
        "{:find [e] :where [[e :xt/id]]} {}",
        '{:find [e] :where [[e :xt/id "]]}',
        "{:find [e]",
        "{:find [e] :where [[x :xt/id]]}",
        '{:find [x] :where [[(slurp "/etc/hostname") x]]}',
    ],
)
async def test_a_query_that_is_wrong_or_not_bounded_is_refused(store, query):
    for _ in range(4):
        with pytest.raises(CtxdError) as refused:
            await store.query(query, limit=5, timeout_s=10)
        assert refused.value.code == "invalid_params"
    assert store.projection.status().state == "projecting", "queries of others do not stop the projection"


async def test_a_node_without_the_rows_is_not_queried(store):
    store.projection._progress.purged = 4
    with pytest.raises(CtxdError) as behind:
        await store.query(BY_TOOL, [store.tool], limit=5, timeout_s=10)
    assert behind.value.code == "store_unavailable"


@pytest.mark.requirement("XTB-10")
async def test_a_host_client_queries_and_a_sandbox_has_no_such_method(memory_node, tmp_path):
    env = {"CTXD_STORE_BACKEND": "xtdb", "CTXD_STORE_URL": memory_node.url}
    with daemon_process(tmp_path, env=env) as daemon:
        await daemon.start()
        await run_sync(_query_as_host_and_inside, daemon.socket, tmp_path)
        await run_sync(_query_from_the_shell, daemon.socket)


def _query_as_host_and_inside(socket: Path, tree: Path) -> None:
    with connect_sync(str(socket)) as client:
        session = client.session(f"s{uuid.uuid4().hex}", agent="test", workdir="/w", filesystem_id=uuid.uuid4().hex)
        call = client.toolcall_record(session.id, "call-1", "bash", "file\n")
        while (projected := client.daemon_status().store.projection) is None or projected.seq < call.receipt.seq:
            pass
        by_session = "{:find [e tool] :in [session] :where [[e :session session] [e :tool tool]]}"
        found = client.object_query(by_session, args=[session.id])
        assert found.rows == ((call.object, "bash"),) and found.complete and found.tx >= call.receipt.seq
        assert client.object_query(by_session, args=[session.id], tx=call.receipt.seq - 1).rows == ()
        box = client.sandbox_register([session.id]).sandbox
        with connect_sync(box.socket) as inside, pytest.raises(CallFailed) as unknown:
            inside.object_query(by_session, args=[session.id])
        assert unknown.value.code == "method_not_found"


def _query_from_the_shell(socket: Path) -> None:
    def ctx(*words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        command = [str(Path(sys.executable).with_name("ctx")), "--socket", str(socket), "query", *words]
        return subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)

    by_tool = "{:find [tool] :in [id] :where [[e :xt/id id] [e :tool tool]]}"
    assert ctx(by_tool, '"call-1"').stdout == '["bash"]\n'
    assert json.loads(ctx("--json", text='{:find [e] :where [[e :tool "bash"] [e :xt/id "call-1"]]}').stdout) == {
        "rows": [["call-1"]],
        "complete": True,
        "tx": json.loads(ctx("--json", by_tool, '"call-1"').stdout)["tx"],
    }
    examples = [shlex.split(line)[3:] for line in README.read_text().splitlines() if line.startswith("$ ctx query")]
    assert len(examples) == 3
    for example in examples:
        done = ctx(*example)
        assert done.returncode == 0, done.stderr
    wrong = ctx(by_tool, "call-1")
    assert wrong.returncode == 2 and "is not a JSON value" in wrong.stderr
    refused = ctx("[:find e]")
    assert refused.returncode != 0 and "{:find [e]" in refused.stderr, refused.stderr
