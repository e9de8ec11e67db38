"""What a crash or damage left of packs and index is found, named, and mended by the next start."""

import random
import sqlite3
import threading
from contextlib import closing

import pytest
from blake3 import blake3

from ctxd import failpoints, sqlite_file
from ctxd.artifacts import fsck, index_recovery, packs
from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.chunking import CHUNK_BYTES_MAX, cut
from ctxd.artifacts.fsck import faults
from ctxd.artifacts.packs import PackRecord, Packs, records
from ctxd.errors import CtxdError
from tests.unit.artifacts.stores import LARGE, again, change, files, in_small_packs, live, reads, the_pack


@pytest.mark.requirement("ART-3")
def test_an_index_that_is_missing_damaged_or_of_another_version_is_rebuilt_from_the_packs(store, root, monkeypatch):
    monkeypatch.setattr(packs, "PACK_BYTES", 300_000)
    datas = [b"small", b"", LARGE, LARGE[::-1]]
    kept = [store.keep(data) for data in datas]
    gone = store.keep(LARGE[:400_000])
    ref = gone.ref
    del gone
    store.remove_unused(store.claim_removal([ref]), ())
    store.close()
    assert len(list((root / "packs").iterdir())) > 1
    for damage in ("missing", "damaged", "version"):
        index = root / "index.db"
        if damage == "missing":
            index.unlink()
        elif damage == "damaged":
            index.write_bytes(b"no database" * 1000)
        else:
            with closing(sqlite3.connect(index)) as opened:
                opened.execute("PRAGMA user_version=77")
        store = ArtifactStore(root)
        store.create()
        assert sorted(store.names()) == sorted(artifact.ref for artifact in kept)
        assert [store.read(artifact.ref) for artifact in kept] == datas and list(faults(store)) == []
        store.close()


@pytest.mark.requirement("ART-3")
def test_artifacts_lost_from_the_index_are_reindexed_and_a_torn_end_is_truncated(store, root):
    first = store.keep(b"first")
    store.close()
    before = (root / "index.db").read_bytes()
    store = ArtifactStore(root)
    store.create()
    second = store.keep(LARGE)
    store.close()
    (root / "index.db").write_bytes(before)
    with the_pack(root).open("ab") as file:
        file.write(b"CTXP a torn record")
    store = ArtifactStore(root)
    store.create()
    assert (store.read(first.ref), store.read(second.ref)) == (b"first", LARGE) and list(faults(store)) == []
    assert store.read(store.keep(b"third").ref) == b"third" and list(faults(store)) == []


def test_damage_in_the_middle_of_a_pack_costs_one_record_when_the_index_is_rebuilt(store, root):
    kept = [store.keep(data) for data in (b"one", b"two", b"three")]
    (_, second, _) = records(the_pack(root))
    assert isinstance(second, PackRecord)
    change(the_pack(root), second.location.at + 20)
    store.close()
    (root / "index.db").unlink()
    store = ArtifactStore(root)
    store.create()
    assert sorted(store.names()) == sorted((kept[0].ref, kept[2].ref))


@pytest.mark.requirement("DUR-11")
def test_artifacts_of_an_earlier_version_are_moved_into_packs(tmp_path):
    root = tmp_path / "artifacts"
    refs = {blake3(data).hexdigest(): data for data in (b"old", LARGE)}
    wrong = blake3(b"wrong").hexdigest()
    for ref, data in (*refs.items(), (wrong, b"damaged")):
        path = root / ref[:2] / ref
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(0o400)
    reader = ArtifactStore(root)
    assert {ref: reader.read(ref) for ref in refs} == refs and sorted(reader.names()) == sorted((*refs, wrong))
    with failpoints.armed("art.index=error:EIO*1@2"), pytest.raises(sqlite_file.DiskFailed):
        ArtifactStore(root).create()
    with failpoints.armed("art.write=error:ENOSPC"):
        store = ArtifactStore(root)
        assert "1 artifact of an earlier version" in str(store.create())
        assert {ref: store.read(ref) for ref in refs} == refs, "on a full disk those that are left are read as they are"
        store.close()
    store = ArtifactStore(root)
    assert store.create() is None
    assert {ref: store.read(ref) for ref in refs} == refs
    assert [path.name for path in root.rglob("*") if path.name in (*refs, wrong)] == [wrong], "what is damaged stays"
    with pytest.raises(CtxdError, match="hash"):
        store.read(wrong)


@pytest.mark.requirement("ART-4")
@pytest.mark.parametrize("seed", range(3))
def test_every_flipped_byte_of_a_pack_is_found_and_its_artifact_named(store, root, seed):
    kept = [store.keep(data) for data in (b"small" * 50, LARGE, b"a line\n" * 30_000)]
    gone = store.keep(b"removed" * 1000)
    store.remove_unused(store.claim_removal([(gone.ref, gone := None)[0]]), ())
    owners = {}
    for artifact in kept:
        data = store.read(artifact.ref)
        owners |= dict.fromkeys((blake3(chunk).digest() for chunk in cut(data)), artifact.ref)
        owners[bytes.fromhex(artifact.ref)] = artifact.ref
    path, chance = the_pack(root), random.Random(seed)
    whole = list(records(path))
    for record in whole:
        at = chance.randrange(record.location.at, record.location.end)
        change(path, at)
        named = [ref for ref in store.names() if not reads(store, ref)]
        found = list(faults(store))
        assert found, f"offset {at} of {record.kind!r}"
        if record.kind != packs.DEAD:
            assert named == [owners[record.hash]]
        change(path, at)
    assert list(faults(store)) == []


@pytest.mark.requirement("ART-4")
@pytest.mark.parametrize("seed", range(2))
def test_every_changed_value_of_the_index_is_found(store, root, seed):
    kept = [store.keep(data) for data in (b"small", LARGE, LARGE[:900_000])]
    chance = random.Random(seed)
    columns = {
        "artifact": "n hash size pack at length",
        "chunk": "n hash pack at length",
        "part": "artifact chunk",
        "pack": "number size",
    }
    with closing(sqlite3.connect(root / "index.db")) as opened:
        for table, names in columns.items():
            key = names.split()[0]
            for name in names.split():
                rows = opened.execute(f"SELECT {key}, {name} FROM {table} ORDER BY 1, 2").fetchall()
                if (table, name) == ("artifact", "n"):
                    # That of an artifact without chunks means nothing.
                    rows = opened.execute("SELECT DISTINCT artifact, artifact FROM part ORDER BY 1").fetchall()
                row = chance.choice(rows)
                value = row[1]
                if isinstance(value, bytes):
                    at = chance.randrange(len(value))
                    other = value[:at] + bytes([value[at] ^ 1 << chance.randrange(8)]) + value[at + 1 :]
                else:
                    # Numbers get one that none has. A pack that has fewer bytes there is read again by a start.
                    bit = 1 << chance.randrange(8) + 10 * (name in ("n", "artifact", "chunk"))
                    other = value + bit if table == "pack" else value ^ bit
                opened.execute(f"UPDATE {table} SET {name}=? WHERE {key}=? AND {name}=?", (other, row[0], value))
                opened.commit()
                missing = [artifact.ref for artifact in kept if not store.holds(artifact.ref)]
                damaged = [ref for ref in store.names() if not reads(store, ref)]
                assert [*missing, *damaged, *faults(store)], f"{table}.{name} from {value} to {other}"
                changed = other if name == key else row[0]
                opened.execute(f"UPDATE {table} SET {name}=? WHERE {key}=? AND {name}=?", (value, changed, other))
                opened.commit()
    assert list(faults(store)) == []


@pytest.mark.requirement("ART-3")
@pytest.mark.parametrize("data", [b"a small one", LARGE])
def test_a_power_cut_between_two_writers_loses_neither_artifact(store, root, monkeypatch, data):
    store.keep(b"the header of the index is on the disk").used = True
    store = again(store, root)
    at_index, go = threading.Event(), threading.Event()
    kept: list = []

    def waiting(place):
        if place == "art.index" and threading.current_thread().name == "first":
            at_index.set()
            go.wait(60)

    def second():
        kept.append(store.keep(b"the second"))
        indexes.append(files(root))

    indexes: list = []
    monkeypatch.setattr("ctxd.artifacts.artifact_store.hit", waiting)
    one = threading.Thread(target=lambda: kept.append(store.keep(data)), name="first")
    two = threading.Thread(target=second)
    one.start()
    assert at_index.wait(60)
    two.start()
    # A second writer that does not wait for the first one is through by now.
    two.join(1)
    go.set()
    one.join(60)
    two.join(60)
    for path in root.glob("index.db*"):
        path.unlink()
    for name, content in indexes[0].items():
        (root / name).write_bytes(content)
    store = ArtifactStore(root)
    store.create()
    assert {store.read(artifact.ref) for artifact in kept} == {data, b"the second"} and list(faults(store)) == []


@pytest.mark.requirement("ART-3")
def test_no_chunk_is_erased_because_the_index_lost_its_use(store, root):
    artifact = store.keep(LARGE)
    store._index._connection.execute("DELETE FROM part")
    assert store.remove_leftovers() == 0
    assert store.read(artifact.ref) == LARGE and len(list(faults(store))) == 1
    store = again(store, root)
    assert store.read(artifact.ref) == LARGE and list(faults(store)) == []


@pytest.mark.requirement("ART-3")
def test_chunks_of_a_write_that_was_killed_are_removed_without_a_wait_of_the_start(store, root, monkeypatch):
    kept, killed = store.keep(LARGE), random.Random(1).randbytes(5_000_000)
    store.writer().write(killed)
    store.close(tidy=False)
    erased = []
    with monkeypatch.context() as patched:
        patched.setattr(Packs, "erase", lambda _, places: erased.extend(places))
        store = ArtifactStore(root)
        store.create()
        assert erased == []
    # A writer that comes before the removal keeps those that it has found.
    with store.writer() as writer:
        writer.write(killed[:1_000_000])
        assert store.remove_leftovers() > 100
        half = writer.finish()
    assert (store.read(kept.ref), store.read(half.ref)) == (LARGE, killed[:1_000_000])
    assert killed[-10_000:-5_000] not in (b"".join(live(root)))
    assert list(faults(store)) == [] and store.remove_leftovers() == 0


@pytest.mark.requirement("ART-3")
def test_a_start_after_a_kill_reads_the_newest_pack_alone(store, root, monkeypatch):
    kept = [*in_small_packs(store, monkeypatch, 18_000), store.keep(b"the log of the index is not empty")]
    assert len(numbers := store.packs.numbers()) > 2
    store.close(tidy=False)
    read = []

    def noted(path, at=0):
        read.append(path.name)
        return records(path, at)

    monkeypatch.setattr(index_recovery, "records", noted)
    monkeypatch.setattr(Packs, "read", None)
    store = ArtifactStore(root)
    store.create()
    assert read == [f"{numbers[-1]:08d}.pack"]
    monkeypatch.undo()
    assert all(store.read(one.ref) for one in kept)


@pytest.mark.requirement("ART-4")
def test_an_index_of_an_earlier_version_awaiting_its_rebuild_is_not_damage(store, root):
    kept = store.keep(LARGE)
    store.close()
    with closing(sqlite3.connect(root / "index.db")) as opened:
        opened.executescript("DROP TABLE part; PRAGMA user_version=1")
    reader = ArtifactStore(root)
    assert (list(faults(reader)), reader.read(kept.ref)) == ([], LARGE)
    assert sorted(path.name for path in root.iterdir() if "damaged" in path.name) == []
    store = ArtifactStore(root)
    store.create()
    assert (list(faults(store)), store.read(kept.ref)) == ([], LARGE)


@pytest.mark.requirement("ART-4")
def test_a_verification_goes_page_by_page_and_none_reads_more_than_its_bound(store, root, monkeypatch):
    monkeypatch.setattr(fsck, "PAGE_BYTES", 300_000)
    kept = [*in_small_packs(store, monkeypatch, 18_000), store.keep(LARGE)]
    pages, cursor, sizes = [], None, []
    read = Packs.read
    monkeypatch.setattr(
        Packs, "read", lambda packs, place: (found := read(packs, place), sizes.append(len(found.data)))[0]
    )
    while not pages or cursor is not None:
        sizes.clear()
        pages.append(fsck.page(store, cursor, 2))
        assert sum(sizes) <= 300_000 + 2 * CHUNK_BYTES_MAX
        cursor = pages[-1].cursor
    assert sum(page.checked for page in pages) == len(kept)
    assert sum(page.checked_bytes for page in pages) == sum(len(store.read(artifact.ref)) for artifact in kept)
    assert not any(page.damaged or page.faults for page in pages)
    assert len(pages) >= 4 + len(store.packs.numbers()) + 4
    for number in store.packs.numbers():
        change(store.packs.path(number), 40)
    found, cursor = [], None
    while not found or cursor is not None:
        found.append(fsck.page(store, cursor, 100))
        cursor = found[-1].cursor
    assert sum(bool(page.faults) for page in found) >= len(store.packs.numbers())


@pytest.mark.requirement("ART-3")
@pytest.mark.parametrize("is_reported", [False, True])
def test_every_damaged_page_of_the_index_is_repaired_by_the_next_start(store, root, tmp_path, is_reported):
    kept = [store.keep(random.Random(number).randbytes(100)) for number in range(200)]
    kept.append(store.keep(LARGE))
    store.close()
    whole = (root / "index.db").read_bytes()
    for page in range(1, len(whole) // 4096):
        for path in root.glob("index.db*"):
            path.unlink()
        (root / "index.db").write_bytes(whole)
        store = ArtifactStore(root)
        if not is_reported:
            # Killed: its log is not empty.
            store.create()
            store.keep(b"one more %d" % page).used = True
            store._index.empty_log()
            store.keep(b"and another %d" % page).used = True
            store.close(tidy=False)
        change(root / "index.db", page * 4096, b"\xff" * 4096)
        if is_reported:
            store = ArtifactStore(root)
            store.create()
            [reads(store, artifact.ref) for artifact in kept]
            list(faults(store))
            store.close()
        store = ArtifactStore(root)
        store.create()
        assert all(reads(store, artifact.ref) for artifact in kept), f"page {page}"
        assert list(faults(store)) == [], f"page {page}"
        store.close()
