"""A journal row's place among a node's transactions is found whatever numbers the node gives them."""

from contextlib import contextmanager

import pytest

from ctxd.backends.port import Change, Version
from ctxd.backends.xtdb.backend import XtdbBackend
from ctxd.backends.xtdb.basis import NOTHING, Bases, Basis
from ctxd.backends.xtdb.client import VALID_TIME_MAX, XtdbClient
from ctxd.backends.xtdb.form import cursor_id
from tests.xtdb.running import node, postgres

pytestmark = pytest.mark.anyio

WRITER = "ab" * 16


class Cursors:
    """A node of which only the cursor is asked: ``moves`` has the row that each transaction came to."""

    def __init__(self, moves: dict[int, int]) -> None:
        self.moves = moves
        self.asked = 0

    async def latest_completed(self) -> int | None:
        return max(self.moves, default=None)

    async def entity(self, id, *, valid_time, tx_id=None):
        assert id == cursor_id(WRITER)
        self.asked += 1
        seqs = [seq for tx, seq in self.moves.items() if tx <= tx_id]
        return {"xt/id": id, "payload": {"seq": max(seqs)}} if seqs else None


def expected(moves: dict[int, int], seq: int) -> tuple[int, int | None]:
    """The row that the lower transaction came to, and the upper transaction."""
    reached = max((s for s in moves.values() if s <= seq), default=0)
    above = [tx for tx, s in moves.items() if s > seq]
    return reached, (None if reached == seq or not above else min(above))


@pytest.mark.parametrize(
    "moves", [{}, {0: 1}, {5: 3, 6: 4, 40: 10, 41: 11, 1000: 500}, {n * 3: n * 2 for n in range(1, 300)}]
)
async def test_every_row_is_found_at_the_transaction_that_shows_it(moves):
    client = Cursors(moves)
    bases = Bases(client, WRITER)
    for seq in [*range(0, 30), 499, 500, 501, 7, 3, 10_000]:
        basis = await bases.find(seq)
        shown = 0 if basis.lower == NOTHING else await bases.seq_at(basis.lower)
        assert (shown, basis.upper) == expected(moves, seq)


async def test_a_place_that_was_found_is_found_again_with_few_questions():
    client = Cursors({n * 2: n for n in range(1, 100_000)})
    bases = Bases(client, WRITER)
    await bases.find(50_000)
    assert client.asked <= 20
    client.asked = 0
    await bases.find(50_000)
    assert client.asked <= 3


async def test_a_node_that_was_replaced_is_not_answered_for_from_memory():
    client = Cursors({n: n for n in range(1, 100)})
    bases = Bases(client, WRITER)
    for seq in (10, 50, 90):
        await bases.find(seq)
    client.moves = {n: n * 10 for n in range(1, 10)}
    assert await bases.find(50) == Basis(5)
    client.moves = {}
    assert await bases.find(50) == Basis(NOTHING)


@contextmanager
def sharing_postgres():
    with postgres() as database, node("postgres", environ=database.environ) as running:
        yield running


async def test_numbers_with_gaps_between_them_are_searched_too():
    """A log in PostgreSQL numbers documents and transactions alike, so there are transactions that are none."""
    with sharing_postgres() as running:
        async with XtdbClient(running.url) as client:
            backend = XtdbBackend(client, WRITER)
            for seq in range(1, 12):
                await backend.apply(seq, seq, [Change("a", seq, b"%d" % seq), Change(f"e{seq}", seq, b"x")])
            fresh = XtdbBackend(client, WRITER)
            newest = await client.latest_completed()
            assert newest is not None and newest > 11
            for seq in range(12):
                found = [Version("a", seq, seq, seq, b"%d" % seq)] if seq else []
                assert await fresh.as_of(["a"], tx=seq) == found
                assert [row.tx for row in await fresh.history("a", tx=seq)] == list(range(1, seq + 1))
            assert len(await client.ids("e", valid_time=VALID_TIME_MAX)) == 11
