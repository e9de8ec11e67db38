"""A document is stored once, in its journal row, and read from there wherever a version is read."""

import msgspec
import pytest

from ctxd import sqlite_file
from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf
from ctxd.objects.version_state import is_purged
from ctxd.store.purge import KIND
from ctxd.store.rebuild import rebuild_tables
from ctxd.store.write_types import PurgeRequest, Write
from tests.unit.store.documents import document, write
from tests.unit.store.running import running, verified

pytestmark = pytest.mark.anyio
MARK = "a-payload-that-nothing-else-has"


def stored(root, query="SELECT tx, typeof(body) FROM version ORDER BY tx, rowid"):
    connection = sqlite_file.open_reader(root / "state.db")
    rows = connection.execute(query).fetchall()
    connection.close()
    return rows


def change(root, statement, *values):
    connection = sqlite_file.open_writer(root / "state.db")
    connection.execute(statement, values).fetchall()
    connection.close()


async def fill(root, versions=3):
    async with running(root) as store:
        for n in range(versions):
            puts = (document("a", f"text {n}", tool="bash", args=f"{MARK} {n}"), document("b", tool="cat", n=n))
            await store.submit(write(*puts)).wait()


async def read(root):
    async with running(root) as store:
        first, *_ = history = await store.history("a", content=True)
        past = await store.get("a", AsOf(tx=2), content=True)
        return history, past, await store.get("b"), await store.get("a", AsOf(valid_time=first.valid_time))


async def test_a_document_is_in_the_files_once(tmp_path):
    await fill(tmp_path / "state")
    data = b"".join(path.read_bytes() for path in (tmp_path / "state").glob("state.db*"))
    assert [data.count(f"{MARK} {n}".encode()) for n in range(3)] == [1, 1, 1]
    history, past, other, first = await read(tmp_path / "state")
    assert [each.document.payload["args"] for each in history] == [f"{MARK} {n}" for n in range(3)]
    assert [each.document.content for each in history] == ["text 0", "text 1", "text 2"]
    assert past == history[1] and other.document.payload["n"] == 2 and first.tx == 1
    verified(tmp_path / "state")


async def test_versions_that_hold_their_documents_themselves_are_read_beside_those_that_do_not(tmp_path):
    """Earlier versions of this program wrote them so."""
    root = tmp_path / "state"
    await fill(root)
    before = await read(root)
    connection = sqlite_file.open_writer(root / "state.db")
    rows = connection.execute("SELECT v.rowid, v.body, j.body FROM version AS v JOIN journal AS j ON j.seq=v.tx")
    for rowid, place, body in rows.fetchall()[:3]:
        whole = msgspec.msgpack.decode(body)[4][place][1]
        connection.execute("UPDATE version SET body=? WHERE rowid=?", (whole, rowid)).fetchall()
    connection.close()
    assert {kind for _, kind in stored(root)} == {"blob", "integer"}
    assert await read(root) == before
    report = verified(root)
    async with running(root) as store:
        await store.submit(Write(kind=KIND, principal="p", purge=PurgeRequest(("a",), lambda hashed: hashed))).wait()
        assert await store.purge_residue() == ()
        assert all(is_purged(each.document) for each in await store.history("a"))
        assert (await store.get("b")) == before[2]
    assert not any(MARK.encode() in path.read_bytes() for path in root.rglob("*") if path.is_file())
    assert verified(root).versions == report.versions
    assert [row for row in stored(root) if row[1] == "blob"] == [(1, "blob")], "that of b, which is not purged"


async def test_a_small_document_of_a_large_row_is_stored_with_its_version_too(tmp_path):
    """To read it from the row would cost what all of the row does, each time."""
    root = tmp_path / "state"
    async with running(root) as store:
        await store.submit(write(document("large", args="x" * 100_000), document("small", n=1))).wait()
        await store.submit(write(*(document(f"m{n}", text="y" * 100) for n in range(200)))).wait()
    kinds = stored(root)
    assert kinds[:2] == [(1, "integer"), (1, "blob")] and set(kinds[2:]) == {(2, "blob")}
    verified(root)


async def test_a_deletion_is_neither(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        await store.submit(write(document("a", n=1))).wait()
        await store.submit(write(deletes=("a",))).wait()
        assert await store.get("a") is None
    assert stored(root) == [(1, "integer"), (2, "null")]
    verified(root)


@pytest.mark.parametrize("place", ["1", "9", "-1", "x'00'"])
async def test_a_wrong_place_is_damage_and_never_another_document(tmp_path, place):
    root = tmp_path / "state"
    await fill(root, 1)
    change(root, f"UPDATE version SET body={place} WHERE body=0")
    async with running(root, SystemClock()) as store:
        with pytest.raises(CtxdError) as caught:
            await store.get("a", AsOf(tx=1))
    assert caught.value.code == "corrupt"


async def test_tables_that_are_rebuilt_hold_no_document_either(tmp_path):
    root = tmp_path / "state"
    await fill(root)
    before, kinds = await read(root), stored(root)
    change(root, "DELETE FROM version WHERE tx=2")
    assert rebuild_tables(root / "state.db", lambda done: None) == 3
    assert stored(root) == kinds and await read(root) == before
    verified(root)


async def test_a_page_that_is_bounded_by_size_counts_documents_that_are_in_the_journal(tmp_path):
    root = tmp_path / "state"
    async with running(root) as store:
        for n in range(10):
            await store.submit(write(document(f"a{n}", text="x" * 1_000))).wait()
        assert [each.document.id for each in await store.scan("a", AsOf(tx=10), size=2_500)] == ["a0", "a1", "a2"]
