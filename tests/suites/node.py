"""Promises of a node to the projection, for every implementation. Subclasses give ``fresh_node``, which makes one
that may hold others' entities, and ``anyio_backend``."""

import itertools
import uuid

import pytest

from ctxd.backends.xtdb.documents import NEWEST_VALID_TIME
from ctxd.backends.xtdb.messages import Behind, Delete, Match, PutDoc, Refused, Unreachable

WAIT_S = 30
FAR = 4_000_000_000_000


def doc(id: str, **payload: object) -> dict:
    return {"xt/id": id, "type": "t", "payload": payload}


@pytest.mark.anyio
class NodeSuite:
    @pytest.fixture
    def name(self):
        """Unique ids."""
        run, number = uuid.uuid4().hex, itertools.count()
        return lambda: f"suite/{run}/{next(number):03d}"

    async def done(self, node, ops) -> bool:
        return await node.committed(await node.submit(ops), timeout_s=WAIT_S)

    async def test_a_put_document_exists_from_its_valid_time_on(self, fresh_node, name):
        async with fresh_node() as node:
            id = name()
            assert await self.done(node, [PutDoc(doc(id, n=1, deep={"b": [1, None, "~x"]}), 1_000)])
            assert await self.done(node, [PutDoc(doc(id, n=2), 2_000)])
            assert await node.entity(id, valid_time=999) is None
            assert await node.entity(id, valid_time=1_999) == doc(id, n=1, deep={"b": [1, None, "~x"]})
            assert await node.entities([id, name()], valid_time=FAR) == {id: doc(id, n=2)}

    async def test_a_transaction_whose_match_fails_does_nothing(self, fresh_node, name):
        async with fresh_node() as node:
            cursor, id = name(), name()
            absent = Match(cursor, None, NEWEST_VALID_TIME)
            assert await self.done(node, [absent, PutDoc(doc(cursor, n=1), 1_001)])
            moved = [
                Match(cursor, doc(cursor, n=1), NEWEST_VALID_TIME),
                PutDoc(doc(id), 5_000),
                PutDoc(doc(cursor, n=2), 1_002),
            ]
            assert await self.done(node, moved)
            assert not await self.done(node, moved)
            assert not await self.done(node, [absent, PutDoc(doc(id, late=True), 6_000)])
            assert len(await node.history(id)) == 1
            assert await node.entity(cursor, valid_time=NEWEST_VALID_TIME) == doc(cursor, n=2)

    async def test_transactions_submitted_one_after_the_other_each_see_the_one_before(self, fresh_node, name):
        async with fresh_node() as node:
            cursor = name()
            sent = [await node.submit([PutDoc(doc(cursor, n=0), 1_000)])]
            for n in range(5):
                match = Match(cursor, doc(cursor, n=n), NEWEST_VALID_TIME)
                sent.append(await node.submit([match, PutDoc(doc(cursor, n=n + 1), 1_001 + n)]))
            assert [await node.committed(tx_id, timeout_s=WAIT_S) for tx_id in sent] == [True] * 6

    async def test_a_read_as_of_a_transaction_does_not_see_later_ones(self, fresh_node, name):
        async with fresh_node() as node:
            id = name()
            first = await node.submit([PutDoc(doc(id, n=1), 1_000)])
            assert await node.committed(first, timeout_s=WAIT_S)
            assert await self.done(node, [PutDoc(doc(id, n=2), 2_000)])
            assert await node.entity(id, valid_time=FAR, tx_id=first) == doc(id, n=1)
            assert [row.valid_time for row in await node.history(id, tx_id=first)] == [1_000]

    async def test_a_transaction_beyond_the_node_is_no_valid_basis(self, fresh_node, name):
        async with fresh_node() as node:
            tx_id = await node.submit([PutDoc(doc(name()), 1_000)])
            assert await node.committed(tx_id, timeout_s=WAIT_S)
            with pytest.raises(Behind):
                await node.entities([name()], valid_time=FAR, tx_id=tx_id + 1_000_000)

    async def test_a_history_is_cut_and_ordered_by_valid_time(self, fresh_node, name):
        async with fresh_node() as node:
            id = name()
            for vt in (1_000, 2_000, 3_000):
                assert await self.done(node, [PutDoc(doc(id, at=vt), vt)])
            assert await self.done(node, [Delete(id, 4_000)])
            rows = await node.history(id)
            assert [(row.valid_time, row.doc and row.doc["payload"]["at"]) for row in rows] == [
                (1_000, 1_000), (2_000, 2_000), (3_000, 3_000), (4_000, None),
            ]  # fmt: skip
            assert await node.history(id, valid_time=2_000) == rows[:2]

    async def test_ids_are_listed_by_prefix_in_order(self, fresh_node, name):
        async with fresh_node() as node:
            ids = [name() for _ in range(4)]
            assert await self.done(node, [PutDoc(doc(id), 1_000) for id in reversed(ids)])
            prefix = ids[0].rpartition("/")[0]
            assert await node.ids(prefix, valid_time=FAR) == ids
            assert await node.ids(prefix, after=ids[0], limit=2, valid_time=FAR) == ids[1:3]
            mine = {"xt/id": f"{prefix}/mine", "type": "test", "writer": prefix, "payload": {}}
            assert await self.done(node, [PutDoc(mine, 1_000)])
            assert await node.ids("", writer=prefix, valid_time=FAR) == [f"{prefix}/mine"]

    async def test_ids_of_more_than_224_bytes_are_not_listed(self, fresh_node, name):
        async with fresh_node() as node:
            prefix = name()
            ids = [prefix.ljust(length, "x") for length in (224, 225)]
            assert await self.done(node, [PutDoc(doc(id), 1_000) for id in ids])
            assert await node.ids(prefix, valid_time=FAR) == ids[:1]
            assert (await node.entities(ids, valid_time=FAR)).keys() == set(ids)

    async def test_an_invalid_document_is_rejected(self, fresh_node):
        async with fresh_node() as node:
            with pytest.raises(Refused):
                await node.submit([PutDoc({"xt/id": 7, "type": "t"}, 1_000)])

    async def test_an_indexing_node_reports_no_ingester_failure(self, fresh_node):
        async with fresh_node() as node:
            assert not (await node.status()).ingester_failed

    async def test_a_connection_that_was_closed_is_unreachable(self, fresh_node, name):
        async with fresh_node() as node:
            await node.status()
        with pytest.raises(Unreachable):
            await node.entity(name(), valid_time=FAR)
        with pytest.raises(Unreachable):
            await node.submit([PutDoc(doc(name()), 1_000)])
