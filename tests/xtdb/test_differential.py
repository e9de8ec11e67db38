"""Random transactions against a live node, SQLite and the plain reading of the algebra: all three answer alike."""

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ctxd import dbfile
from ctxd.backends import documents
from ctxd.backends.port import Change, Version
from ctxd.backends.sqlite.backend import SqliteBackend
from ctxd.backends.xtdb import form
from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.operations import Delete, Op, Put
from ctxd.objects.document import Document
from ctxd_protocol.objects import FilesystemSource
from tests.fakes.backend import MemoryBackend
from tests.suites.backend import Awaited, everything
from tests.xtdb.apart import Apart

pytestmark = pytest.mark.anyio

ENTITIES = ("a", "ab", "segment:s#0000000001", "toolcall:~x", "^y", "b\u00e9\ud7ff", "session:\U0001f600")
VALUES: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    2**53 - 1,
    1.0,
    -0.0,
    0.1,
    5e-324,
    1.7976931348623157e308,
    "",
    "~:a",
    "^ ",
    "`x",
    "\0\ud7ff\U0001f600\n",
    "x" * 300,
    [],
    {},
    [None, [[]], {"": {}}],
    {"z": 1, "a": {"~#b": 2, "^1": [{"q": 1, "p": "~m0"}]}, "\U0001f600": 3, "\uffee": 4},
)
WORLDS = 100
WORLD_TRANSACTIONS = 20


def body(dice: random.Random) -> bytes:
    payload = {dice.choice(("", "b", "a", "~k", "\U0001f600", "fields")): dice.choice(VALUES) for _ in range(3)}
    source = FilesystemSource("f" * 64, "/~p\u00e9") if dice.random() < 0.5 else None
    return documents.encode(
        Document(
            id="x",
            type="file",
            source=source,
            identity_hash="a" * 64,
            source_hash=None if source is None else f"{dice.getrandbits(256):064x}",
            content_hash=f"{dice.getrandbits(256):064x}",
            payload=payload,
        )
    )


def changes(dice: random.Random) -> list[Change]:
    made = []
    for _ in range(dice.randint(1, 5)):
        start = dice.randint(0, 12)
        content = dice.randbytes(32) if dice.random() < 0.3 else None
        deletes = dice.random() < 0.2
        end = start + dice.randint(0, 6) if dice.random() < 0.3 else None
        made.append(Change(dice.choice(ENTITIES), start, None if deletes else body(dice), content, end))
    # XTDB's deletions name no content.
    return [
        change if change.body is not None else Change(change.id, change.start, None, None, change.end)
        for change in made
    ]


async def answers(backend: Any, dice: random.Random, txs: int) -> list[Any]:
    """Questions that the dice choose, and what they are answered: the same dice ask everybody the same."""
    told: list[Any] = []

    def at() -> dict[str, int]:
        asked: dict[str, int] = {}
        if dice.random() < 0.8:
            asked["valid_time"] = dice.randint(0, 20)
        if dice.random() < 0.8:
            asked["tx"] = dice.randint(0, txs + 1)
        return asked

    for _ in range(12):
        options: dict[str, Any] = at() | {"ascending": dice.random() < 0.5, "corrections": dice.random() < 0.5}
        if dice.random() < 0.4:
            options["limit"] = dice.randint(1, 5)
        if dice.random() < 0.4:
            options["after"] = (dice.randint(0, 12), dice.randint(0, txs))
        id = dice.choice(ENTITIES)
        told.append(("history", id, options, await backend.history(id, **options)))
    for _ in range(8):
        options = at()
        ids = dice.sample(ENTITIES, dice.randint(1, len(ENTITIES)))
        found = await backend.as_of(ids, **options)
        told.append(("as of", ids, options, sorted(found, key=lambda version: version.id)))
    for _ in range(4):
        options = at() | {"ascending": dice.random() < 0.5}
        if dice.random() < 0.5:
            options["limit"] = dice.randint(1, 4)
        prefix = dice.choice(("", "a", "s", "b\u00e9"))
        told.append(("scan", prefix, options, await backend.scan(prefix, **options)))
    rows = await everything(backend)
    told.append(("everything", sorted(rows, key=lambda row: (row.id, row.valid_time, row.tx))))
    return told


@asynccontextmanager
async def three(url: str) -> AsyncIterator[tuple[Apart, Awaited, Awaited]]:
    connection = dbfile.open_writer(":memory:")
    try:
        embedded = SqliteBackend(connection)
        embedded.create()
        async with XtdbClient(url) as client:
            yield Apart(client), Awaited(embedded), Awaited(MemoryBackend())
    finally:
        connection.close()


async def differences(url: str, seed: int, transactions: int) -> list[str]:
    dice = random.Random(seed)
    found = []
    async with three(url) as (node, embedded, reference):
        for tx in range(1, transactions + 1):
            made = changes(dice)
            for backend in (node, embedded, reference):
                await backend.apply(tx, tx * 1000, made)
            if tx % 5 == 0:
                asked = dice.getrandbits(64)
                expected = await answers(reference, random.Random(asked), tx)
                for name, backend in (("node", node), ("SQLite", embedded)):
                    said = await answers(backend, random.Random(asked), tx)
                    found += [
                        f"seed {seed}, tx {tx}, {name}: {mine} instead of {its}"
                        for mine, its in zip(said, expected, strict=True)
                        if mine != its
                    ]
    return found


@pytest.mark.requirement("VER-2")
@pytest.mark.requirement("VER-3")
@pytest.mark.parametrize("first", range(0, WORLDS, WORLDS // 10))
@pytest.mark.requirement("XTB-1")
async def test_a_node_answers_as_the_embedded_tables_and_the_algebra(memory_node, first):
    for seed in range(first, first + WORLDS // 10):
        assert await differences(memory_node.url, seed, WORLD_TRANSACTIONS) == []


def journal(dice: random.Random, rows: int) -> list[list[Version]]:
    """What a daemon writes: valid times only grow, and no entity has one twice."""
    made: list[list[Version]] = []
    valid_time = 0
    for tx in range(1, rows + 1):
        valid_time += dice.randint(1, 3)
        ids = dice.sample(ENTITIES, dice.randint(1, 3))
        bodies = [None if dice.random() < 0.2 else body(dice) for _ in ids]
        made.append([Version(id, valid_time, tx, tx * 1000, each) for id, each in zip(ids, bodies, strict=True)])
    return made


def batches(dice: random.Random, rows: list[list[Version]]) -> list[list[list[Version]]]:
    """Rows that share a transaction of the node: of one entity at most one version in each."""
    made: list[list[list[Version]]] = []
    for row in rows:
        taken = {version.id for earlier in (made[-1] if made else []) for version in earlier}
        if not made or dice.random() < 0.3 or taken & {version.id for version in row}:
            made.append([])
        made[-1].append(row)
    return made


async def project(node: Apart, client: XtdbClient, batch: list[list[Version]]) -> None:
    versions = [version for row in batch for version in node.there(row)]
    seq = versions[-1].tx
    ops: list[Op] = []
    for version in versions:
        if version.body is None:
            ops.append(Delete(version.id, version.valid_time))
        else:
            ops.append(Put(form.to_doc(version, node.writer), version.valid_time))
    if deleted := {version.id: (version.tx, version.tx_time) for version in versions if version.body is None}:
        ops.append(Put(form.deletions_doc(node.writer, seq, deleted), form.deletions_time(seq)))
    cursor = {"xt/id": form.cursor_id(node.writer), "type": "cursor", "payload": {"seq": seq}}
    tx_id = await client.submit([*ops, Put(cursor, form.FIXED_VALID_TIME)])
    assert await client.committed(tx_id, timeout_s=30)


@pytest.mark.requirement("VER-2")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.requirement("XTB-1")
async def test_rows_projected_many_at_a_time_are_told_apart(memory_node, seed):
    dice = random.Random(seed)
    rows = journal(dice, WORLD_TRANSACTIONS)
    reference = MemoryBackend()
    for row in rows:
        reference.append(row)
    async with XtdbClient(memory_node.url) as client:
        node = Apart(client)
        for batch in batches(dice, rows):
            await project(node, client, batch)
        for tx in range(0, len(rows) + 1, 2):
            asked = dice.getrandbits(64)
            expected = await answers(Awaited(reference), random.Random(asked), tx)
            assert await answers(node, random.Random(asked), tx) == expected
