"""The client against a real node: what it asks for is what the node does."""

import uuid
from typing import Any

import anyio
import pytest

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb import client as client_module
from ctxd.backends.xtdb import documents as xtdb_documents
from ctxd.backends.xtdb import messages
from ctxd.backends.xtdb.client import BULK_IDS, Delete, Evict, Match, PutDoc, XtdbClient
from ctxd.backends.xtdb.http_connections import HttpConnections
from ctxd.backends.xtdb.messages import Behind, Refused, Unknown, Unreachable
from ctxd.objects.document import Document, encode_document
from tests.xtdb.running import node

pytestmark = pytest.mark.anyio

FAR = 2**62


@pytest.fixture
async def client(memory_node):
    async with XtdbClient(memory_node.url) as client:
        yield client


@pytest.fixture
def name():
    """A prefix of ids that no other test uses."""
    return f"{uuid.uuid4().hex}~"


def doc(id, **payload):
    return {"xt/id": id, "type": "test", "payload": payload}


async def done(client, *ops):
    return await client.committed(await client.submit(ops), timeout_s=30)


@pytest.mark.requirement("XTB-2")
async def test_a_document_round_trips(client, name):
    payload = {"": None, "~k": ["^ ", "`", "~", "\0\U0001f600"], "ints": [2**53, -(2**63), 2**64], "f": [1.0, 5e-324]}
    assert await done(client, PutDoc(doc(name, **payload), 5))
    assert await client.entity(name, valid_time=FAR) == doc(name, **payload)
    assert await client.entities([name, name + "no"], valid_time=5) == {name: doc(name, **payload)}
    assert await client.entities([name], valid_time=4) == {}


async def test_a_failed_match_aborts_the_whole_transaction(client, name):
    assert await done(client, Match(name, None, 5), PutDoc(doc(name, n=1), 5))
    assert not await done(client, Match(name, None, 5), PutDoc(doc(name, n=2), 5))
    assert not await done(client, Match(name, doc(name, n=2), 5), PutDoc(doc(name + "x"), 5))
    assert await done(client, Match(name, doc(name, n=1), 5), PutDoc(doc(name, n=3), 5))
    assert await client.entity(name, valid_time=5) == doc(name, n=3)
    assert await client.entity(name + "x", valid_time=5) is None


async def test_a_match_accepts_a_document_read_back_from_the_node(client, name):
    first = doc(name, a={"z": 1.5, "b": [2**60, None, "~"]}, n=2**53)
    assert await done(client, PutDoc(first, 5))
    found = await client.entity(name, valid_time=5)
    assert await done(client, Match(name, found, 5), PutDoc(doc(name, n=2), 6))


async def test_history_has_inclusive_bounds_and_corrections(client, name):
    for n in range(5):
        assert await done(client, PutDoc(doc(name, n=n), n * 10))
    assert await done(client, PutDoc(doc(name, n=-1), 20))
    assert await done(client, Delete(name, 50))

    async def rows(**options):
        found = await client.history(name, **options)
        return [(row.valid_time, row.doc["payload"]["n"] if row.doc else None) for row in found]

    assert await rows() == [(0, 0), (10, 1), (20, 2), (20, -1), (30, 3), (40, 4), (50, None)]
    assert await rows(valid_time=15) == [(0, 0), (10, 1)]
    assert [row.present for row in await client.history(name)] == [True] * 6 + [False]
    assert await client.history(name + "no") == []


@pytest.mark.requirement("XDB-10")
async def test_a_history_above_the_bound_of_an_answer_is_read_in_pages(name, monkeypatch):
    # Twelve corrections at one time are more than a page as well.
    places = [(n, 10 if 3 <= n < 15 else 1_000 + n) for n in range(30)]
    with node("memory", limits="{:max-rows-bytes 250000}") as small:
        async with XtdbClient(small.url) as client:
            for n, at in places:
                tx_id = await client.submit([PutDoc(doc(name, n=n, text=str(n) * 15_000), at)])
            assert await client.committed(tx_id, timeout_s=30)
            statuses: list[int] = []
            request = HttpConnections.request

            async def counted(connections, *args, **options):
                answer = await request(connections, *args, **options)
                statuses.append(answer.status)
                return answer

            monkeypatch.setattr(HttpConnections, "request", counted)
            rows = await client.history(name)
            assert [(row.doc["payload"]["n"], row.valid_time) for row in rows] == sorted(
                places, key=lambda place: (place[1], place[0])
            )
            assert statuses.count(206) >= 6 and statuses.count(200) >= 2
            some = await client.history(name, valid_time=1_001, tx_id=rows[1].tx_id)
            assert [row.doc["payload"]["n"] for row in some] == [3, 4, 0, 1]
            huge = await client.submit([PutDoc(doc(name + "one", text="x" * 200_000), 10)])
            assert await client.committed(huge, timeout_s=30)
            assert len(await client.history(name + "one")) == 1


async def test_ids_are_in_order_of_code_points(client, name):
    ids = [name + end for end in ("a", "ab", "b", "\ud7ff", "\uffee", "\U0001f600", "")]
    assert await done(client, *(PutDoc(doc(id), 5) for id in ids), Delete(name + "b", 7))
    assert await client.ids(name, valid_time=5) == sorted(ids)
    assert await client.ids(name, valid_time=5, after=name + "b", limit=2) == [name + "\ud7ff", name + "\uffee"]
    assert await client.ids(name + "a", valid_time=5) == [name + "a", name + "ab"]
    assert name + "b" not in await client.ids(name, valid_time=7)
    assert await client.ids(name, valid_time=4) == []


@pytest.mark.requirement("XTB-6")
async def test_ids_are_read_in_pages(client, name, monkeypatch):
    ids = [f"{name}{n:04d}" for n in range(2_345)]
    for first in range(0, len(ids), 1000):
        tx_id = await client.submit([PutDoc(doc(id), 5) for id in ids[first : first + 1000]])
    assert await client.committed(tx_id, timeout_s=60)
    sizes: list[int] = []
    query = client._query

    async def counted(*asked):
        found = await query(*asked)
        sizes.append(len(found))
        return found

    monkeypatch.setattr(client, "_query", counted)
    monkeypatch.setattr(client_module, "IDS_PAGE", 500)
    assert await client.ids(name, valid_time=5) == ids
    assert sizes == [500] * 4 + [345]
    assert await client.ids(name, valid_time=5, after=ids[99], limit=700) == ids[100:800]
    assert sizes[5:] == [500, 200]


@pytest.mark.requirement("XTB-6")
async def test_ids_of_one_journal_are_read_without_those_of_others(client, name):
    mine = [{"xt/id": f"{name}{n}", "type": "t", "writer": name, "payload": {}} for n in range(5)]
    assert await done(client, *(PutDoc(one, 5) for one in mine), *(PutDoc(doc(f"{name}x{n}"), 5) for n in range(5)))
    assert await client.ids("", writer=name, valid_time=5) == [one["xt/id"] for one in mine]


@pytest.mark.requirement("XTB-7")
@pytest.mark.requirement("XTB-8")
async def test_queries_find_every_document_by_type_and_by_its_lookup_fields(client, name):
    look_alike = "1a2354d7d0e832355d4cd42424aa6c903d46990e7369f598adcbfff109f2bf9f"

    def call(number: int, payload: dict[str, Any]) -> PutDoc:
        fields = {"tool": name, "chat_ref": f"chat:{name}", **payload}
        document = Document(
            id=f"{name}{number}", type="toolcall", identity_hash=look_alike, content_hash=look_alike, payload=fields
        )
        version = Version(document.id, 5, number, 5, encode_document(document))
        return PutDoc(xtdb_documents.to_doc(version, name), 5)

    assert await done(client, call(0, {}), call(1, {"args": {"x": -0.0}}))
    for key in (":tool", ":session", ":writer"):
        query = f'{{:find [e] :in [value] :where [[e :type "toolcall"] [e {key} value]]}}'
        found = await client._query(query, [name], messages.to_ids, 5, None)
        assert sorted(found) == [f"{name}0", f"{name}1"], key


async def test_a_bulk_read_of_several_chunks_is_whole(client, name):
    ids = [f"{name}{n}" for n in range(2 * BULK_IDS + 7)]
    for first in range(0, len(ids), 1000):
        tx_id = await client.submit([PutDoc(doc(id, n=id), 5) for id in ids[first : first + 1000]])
    assert await client.committed(tx_id, timeout_s=60)
    found = await client.entities([*ids, *ids, "nobody"], valid_time=5, tx_id=tx_id)
    assert found == {id: doc(id, n=id) for id in ids}


async def test_a_future_transaction_raises_behind(client):
    await client.sync(30)
    newest = await client.latest_completed()
    with pytest.raises(Behind):
        await client.entity("a", valid_time=5, tx_id=(newest or 0) + 1000)
    with pytest.raises(Unknown):
        await client.committed((newest or 0) + 1000, timeout_s=0.2)


@pytest.mark.parametrize(
    ("body", "certainty", "named"),
    [
        (b'{"~:tx-ops":[["~:xtdb.api/put",{"~:a":1}]]}', Refused, True),
        (b'{"~:tx-ops":[["~:put",{"~:xt/id":"a"}]]}', Refused, True),
        (b'{"~:tx-ops":[["~:xtdb.api/put"', Unreachable, False),
    ],
)
async def test_a_rejection_by_the_node_raises_its_exception(memory_node, body, certainty, named):
    """The client writes none of these: so they are sent past it."""
    async with HttpConnections(memory_node.url) as exchange:
        answer = await exchange.request("submit-tx", {}, body=body, timeout_s=20)
    failure = messages.failure(answer.status, answer.media_type, answer.body)
    assert type(failure) is certainty
    assert (getattr(failure, "op", None) is not None) == named


async def test_an_evicted_entity_has_no_history(client, name):
    assert await done(client, PutDoc(doc(name), 5))
    assert await done(client, Evict(name))
    assert await client.history(name) == []


async def test_many_transactions_are_waited_for_at_once(client, name):
    submitted = [await client.submit([PutDoc(doc(name, n=n), n)]) for n in range(50)]
    ends = []

    async def wait(tx_id):
        ends.append(await client.committed(tx_id, timeout_s=30))

    async with anyio.create_task_group() as group:
        for tx_id in submitted:
            group.start_soon(wait, tx_id)
    assert ends == [True] * 50


async def test_a_synced_node_reports_a_healthy_status(client, name):
    assert await done(client, PutDoc(doc(name), 5))
    await client.sync(30)
    status = await client.status()
    assert (status.version, status.ingester_failed, status.index_version) == ("1.24.5", False, 22)


async def test_a_killed_node_is_unreachable_and_a_stopped_one_unknown():
    with node("memory") as running:
        # The first answers of a node take it longest.
        async with XtdbClient(running.url) as client:
            assert await client.latest_completed() is None
            assert await client.entities(["a"], valid_time=5) == {}
            assert await client.history("a") == []
        running.pause()
        async with XtdbClient(running.url, answer_s=0.5) as client:
            with pytest.raises(Unknown):
                await client.submit([PutDoc(doc("a"), 5)])
            running.cont()
            running.kill()
            with pytest.raises((Unreachable, Unknown)):
                await client.submit([PutDoc(doc("a"), 5)])
            with pytest.raises(Unreachable):
                await client.submit([PutDoc(doc("a"), 5)])
