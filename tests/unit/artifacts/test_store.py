"""The artifact store keeps bytes under their hash, and never hands out others."""

import errno
import os
import random
import sqlite3
import stat
import threading
from contextlib import closing

import pytest
from blake3 import blake3

from ctxd import dbfile, failpoints
from ctxd.artifacts import packs
from ctxd.artifacts.chunking import CHUNK_BYTES_MAX, Chunker, cut
from ctxd.artifacts.index import Index
from ctxd.artifacts.packs import PackRecord, Packs, records
from ctxd.artifacts.store import ArtifactStore
from ctxd.errors import CtxdError

LARGE = random.Random(13).randbytes(1_000_000)


@pytest.fixture
def root(tmp_path):
    return tmp_path / "artifacts"


@pytest.fixture
def store(root):
    store = ArtifactStore(root)
    store.create()
    return store


def again(store, root):
    """The store after a restart."""
    store.close()
    store = ArtifactStore(root)
    store.create()
    return store


def the_pack(root):
    (path,) = (root / "packs").iterdir()
    return path


def change(path, at, data=None):
    """Write ``data`` at offset ``at``; without it, flip a bit there."""
    with path.open("r+b") as file:
        file.seek(at)
        data = data or bytes([file.read(1)[0] ^ 1])
        file.seek(at)
        file.write(data)


def live(root):
    return [record.data for path in sorted((root / "packs").iterdir()) for record in records(path) if record.data]


@pytest.mark.requirement("ART-1")
@pytest.mark.parametrize("data", [b"", b"some bytes", bytes(CHUNK_BYTES_MAX), bytes(CHUNK_BYTES_MAX + 1), LARGE])
def test_what_was_written_is_read_under_its_hash(store, root, data):
    ref = store.keep(data).ref
    assert ref == blake3(data).hexdigest()
    assert (store.read(ref), store.size(ref), list(store.names())) == (data, len(data), [ref])
    store = again(store, root)
    assert (store.read(ref), store.size(ref), list(store.faults())) == (data, len(data), [])


@pytest.mark.requirement("ART-1")
def test_a_range_is_read_as_it_was_written(store):
    ref = store.keep(LARGE).ref
    for first, end in ((0, 0), (0, 1), (5, 500_000), (65_535, 65_537), (999_999, None), (0, None), (10**6, 10**7)):
        assert b"".join(store.pieces(ref, first, end)) == LARGE[first:end]


def test_files_are_ours_alone(store, root):
    store.keep(b"x")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, root / "packs")} == {0o700}
    assert stat.S_IMODE(the_pack(root).stat().st_mode) == 0o600


def test_the_same_bytes_are_kept_once(store, root):
    ref = store.keep(LARGE).ref
    size = the_pack(root).stat().st_size
    assert store.keep(LARGE).ref == ref and the_pack(root).stat().st_size == size


def test_bytes_that_come_in_pieces_are_cut_as_those_that_come_at_once(store):
    chunker = Chunker()
    found = [chunk for at in range(0, len(LARGE), 777) for chunk in chunker.cut(LARGE[at : at + 777])]
    assert [*found, *chunker.end()] == cut(LARGE)
    with store.writer() as writer:
        for at in range(0, len(LARGE), 777):
            writer.write(LARGE[at : at + 777])
        assert writer.finish().ref == blake3(LARGE).hexdigest()


@pytest.mark.requirement("ART-2")
def test_the_places_of_cuts_are_frozen():
    assert [len(chunk) for chunk in cut(LARGE)][:4] == [10_214, 6_452, 18_605, 22_908]


@pytest.mark.requirement("ART-2")
@pytest.mark.parametrize("change", ["prepend", "insert", "append", "remove"])
def test_contents_that_resemble_each_other_share_their_chunks(store, root, change):
    store.keep(LARGE)
    before, middle = the_pack(root).stat().st_size, len(LARGE) // 2
    other = {
        "prepend": b"x" + LARGE,
        "insert": LARGE[:middle] + b"x" + LARGE[middle:],
        "append": LARGE + b"x",
        "remove": LARGE[:middle] + LARGE[middle + 1 :],
    }[change]
    ref = store.keep(other).ref
    assert the_pack(root).stat().st_size - before < 2 * CHUNK_BYTES_MAX + 10_000
    assert store.read(ref) == other


@pytest.mark.requirement("ART-2")
def test_what_compresses_takes_less_room_and_what_does_not_takes_no_more(store, root):
    text = b"a line of a long output\n" * 50_000
    store.keep(text)
    assert the_pack(root).stat().st_size < len(text) / 20
    store.keep(LARGE)
    assert the_pack(root).stat().st_size < len(text) / 20 + len(LARGE) * 1.02


@pytest.mark.requirement("ART-4")
@pytest.mark.parametrize("data", [b"right", LARGE])
def test_a_damaged_artifact_is_an_error_and_writing_it_again_heals_it(store, root, data):
    ref = store.keep(data).ref
    for record in records(the_pack(root)):
        change(the_pack(root), record.location.end - 1)
    with pytest.raises(CtxdError) as caught:
        store.read(ref)
    assert caught.value.code == "corrupt"
    assert store.keep(data).ref == ref
    assert store.read(ref) == data
    assert list(store.faults()) == [], "what was damaged is overwritten"


def test_a_missing_artifact_is_an_error(store):
    with pytest.raises(CtxdError) as caught:
        store.read("0" * 64)
    assert caught.value.code == "corrupt"


@pytest.mark.parametrize("data", [b"x", LARGE])
@pytest.mark.parametrize("place", ["art.write", "art.write@2", "art.dirsync", "art.fsync", "art.index"])
def test_a_write_that_fails_leaves_no_artifact(store, root, place, data):
    name, _, nth = place.partition("@")
    if nth and data == b"x":
        pytest.skip("one record is one write")
    with failpoints.armed(f"{name}=error:ENOSPC*1@{nth or 1}"), pytest.raises(OSError, match="failpoint"):
        store.keep(data)
    assert list(store.names()) == []
    store = again(store, root)
    for ref in store.names():  # A flush or an index that failed: the record was there all the same.
        store.remove_unused(store.claim_removal([ref]), ())
    assert live(root) == []
    assert store.read(store.keep(data).ref) == data
    assert list(store.faults()) == []


def test_an_artifact_on_a_bad_sector_is_replaced(store, root, monkeypatch):
    artifact = store.keep(b"right")
    read, erase = Packs.read, Packs.erase

    def failing(self, location):
        if location.at == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(self, location)

    def refusing(self, locations):
        if any(location.at == 0 for location in locations):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return erase(self, locations)

    monkeypatch.setattr(Packs, "read", failing)
    monkeypatch.setattr(Packs, "erase", refusing)
    with pytest.raises(CtxdError, match="Input/output error"):
        store.read(artifact.ref)
    assert store.keep(b"right").ref == artifact.ref
    assert store.read(artifact.ref) == b"right"


def test_want_of_descriptors_is_no_damage(store, monkeypatch):
    ref = store.keep(b"right").ref

    def failing(self, location):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(dbfile.DiskFull):
        patched.setattr(Packs, "read", failing)
        store.read(ref)


@pytest.mark.requirement("ART-5")
def test_what_is_removed_is_overwritten_but_for_the_chunks_of_others(store, root):
    kept, removed = store.keep(LARGE), store.keep(LARGE + b"the end of another")
    refs = kept.ref, removed.ref
    del removed
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == [refs[0]] and store.read(refs[0]) == LARGE
    assert not any(b"the end of another" in data for data in live(root)) and list(store.faults()) == []
    del kept
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == live(root) == [] and list(store.faults()) == []


def test_chunks_of_a_writer_that_gives_up_are_removed_but_for_those_that_another_one_uses(store, root):
    with store.writer() as given_up:
        given_up.write(LARGE + b"an end of its own" * 10_000)
        artifact = store.keep(LARGE)
    assert store.read(artifact.ref) == LARGE
    assert not any(b"an end of its own" in data for data in live(root)) and list(store.faults()) == []


def test_chunks_of_a_writer_that_goes_on_outlive_the_artifact_that_had_them(store):
    first = store.keep(LARGE)
    with store.writer() as writer:
        writer.write(LARGE)
        ref = first.ref
        del first
        store.remove_unused(store.claim_removal([ref]), ())
        artifact = writer.finish()
    assert store.read(artifact.ref) == LARGE and list(store.faults()) == []


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
        assert [store.read(artifact.ref) for artifact in kept] == datas and list(store.faults()) == []
        store.close()


@pytest.mark.requirement("ART-3")
def test_what_the_index_lost_in_a_power_cut_is_taken_in_again_and_a_torn_end_is_cut_off(store, root):
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
    assert (store.read(first.ref), store.read(second.ref)) == (b"first", LARGE) and list(store.faults()) == []
    assert store.read(store.keep(b"third").ref) == b"third" and list(store.faults()) == []


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
    with failpoints.armed("art.index=error:EIO*1@2"), pytest.raises(dbfile.DiskFailed):
        ArtifactStore(root).create()
    store = ArtifactStore(root)
    store.create()
    assert {ref: store.read(ref) for ref in refs} == refs
    assert [path.name for path in root.rglob("*") if path.name in (*refs, wrong)] == [wrong], "what is damaged stays"
    with pytest.raises(CtxdError, match="hash"):
        store.read(wrong)


def test_writers_of_the_same_and_of_similar_bytes_at_once_lose_nothing(store, root):
    datas = [LARGE, LARGE, b"x" + LARGE, LARGE[:700_000], b"small", b"small"]
    kept: list = []
    threads = [threading.Thread(target=lambda data=data: kept.append((store.keep(data), data))) for data in datas * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(kept) == len(threads)
    assert all(store.read(artifact.ref) == data for artifact, data in kept) and list(store.faults()) == []
    refs = [artifact.ref for artifact, _ in kept]
    kept.clear()
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == live(root) == [] and list(store.faults()) == []


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
        named = [ref for ref in store.names() if not _reads(store, ref)]
        faults = list(store.faults())
        assert faults, f"offset {at} of {record.kind!r}"
        if record.kind != packs.DEAD:
            assert named == [owners[record.hash]]
        change(path, at)
    assert list(store.faults()) == []


def _reads(store, ref):
    try:
        return bool(store.read(ref))
    except CtxdError:
        return False


@pytest.mark.requirement("ART-4")
@pytest.mark.parametrize("seed", range(2))
def test_every_changed_value_of_the_index_is_found(store, root, seed):
    kept = [store.keep(data) for data in (b"small", LARGE, LARGE[:900_000])]
    chance = random.Random(seed)
    columns = {"artifact": "hash size pack at length", "chunk": "hash pack at length uses", "pack": "number size"}
    with closing(sqlite3.connect(root / "index.db")) as opened:
        for table, names in columns.items():
            key = names.split()[0]
            for name in names.split():
                row = chance.choice(opened.execute(f"SELECT {key}, {name} FROM {table}").fetchall())
                value = row[1]
                if isinstance(value, bytes):
                    at = chance.randrange(len(value))
                    other = value[:at] + bytes([value[at] ^ 1 << chance.randrange(8)]) + value[at + 1 :]
                else:
                    other = value ^ 1 << chance.randrange(8)
                opened.execute(f"UPDATE {table} SET {name}=? WHERE {key}=?", (other, row[0]))
                opened.commit()
                missing = [artifact.ref for artifact in kept if not store.holds(artifact.ref)]
                damaged = [ref for ref in store.names() if not _reads(store, ref)]
                assert [*missing, *damaged, *store.faults()], f"{table}.{name} from {value} to {other}"
                changed = other if name == key else row[0]
                opened.execute(f"UPDATE {table} SET {name}=? WHERE {key}=?", (value, changed))
                opened.commit()
    assert list(store.faults()) == []


@pytest.mark.requirement("ART-8")
def test_packs_that_are_mostly_dead_are_rewritten_and_others_stay(store, root, monkeypatch):
    monkeypatch.setattr(packs, "PACK_BYTES", 200_000)
    kept = [store.keep(random.Random(number).randbytes(60_000 if number % 4 else 90_000)) for number in range(16)]
    datas = {artifact.ref: store.read(artifact.ref) for artifact in kept}
    before = len(list((root / "packs").iterdir()))
    assert store.repack() == 0 and len(list((root / "packs").iterdir())) == before
    gone = [artifact.ref for number, artifact in enumerate(kept) if number % 4]
    kept = [artifact for artifact in kept if artifact.ref not in gone]
    store.remove_unused(store.claim_removal(gone), ())
    assert store.repack() >= 3
    assert sum(path.stat().st_size for path in (root / "packs").iterdir()) < 16 * 60_000
    for again_ in range(2):
        assert {ref: store.read(ref) for ref in store.names()} == {ref: datas[ref] for ref in store.names()}
        assert sorted(store.names()) == sorted(artifact.ref for artifact in kept) and list(store.faults()) == []
        store = again(store, root) if not again_ else store


def test_a_reader_finds_what_a_repack_moves_while_it_reads(store, root, monkeypatch):
    monkeypatch.setattr(packs, "PACK_BYTES", 100_000)
    kept, gone = store.keep(LARGE[:150_000]), [store.keep(random.Random(n).randbytes(90_000)) for n in range(3)]
    refs = [artifact.ref for artifact in gone]
    extra = store.keep(LARGE[:150_000] + LARGE[500_000:900_000])
    refs.append(extra.ref)
    del gone, extra
    pieces = store.pieces(kept.ref)
    first = next(pieces)
    store.remove_unused(store.claim_removal(refs), ())
    store.repack()
    assert b"".join((first, *pieces)) == LARGE[:150_000]


def test_the_beginning_of_a_name_finds_those_that_have_it(store):
    refs = sorted(store.keep(b"%d" % number).ref for number in range(300))
    for digits in (0, 1, 2, 3, 64):
        prefix = refs[7][:digits]
        assert store.matching(prefix, 1_000) == [ref for ref in refs if ref.startswith(prefix)]
    assert store.matching("", 5) == refs[:5] and store.matching("f" * 64, 5) == []


def files(root):
    """The index as a power cut leaves it now."""
    return {path.name: path.read_bytes() for path in root.glob("index.db*") if not path.name.endswith("-shm")}


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
    monkeypatch.setattr("ctxd.artifacts.store.hit", waiting)
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
    assert {store.read(artifact.ref) for artifact in kept} == {data, b"the second"} and list(store.faults()) == []


@pytest.mark.requirement("ART-5")
@pytest.mark.parametrize("data", [b"a small one", LARGE])
def test_a_write_that_the_index_refuses_leaves_no_copy_behind(store, root, data):
    with failpoints.armed("art.index=error:ENOSPC*1"), pytest.raises(OSError, match="failpoint"):
        store.keep(data)
    ref = store.keep(data).ref
    store.remove_unused(store.claim_removal([ref]), ())
    assert live(root) == [] and list(store.faults()) == []


@pytest.mark.requirement("ART-3")
def test_a_start_erases_no_chunk_because_the_index_lost_its_use(store, root):
    artifact = store.keep(LARGE)
    for statement in ("DELETE FROM artifact", "UPDATE chunk SET uses=0"):
        store._index._connection.execute(statement)
    store.close(tidy=False)
    store = ArtifactStore(root)
    store.create()
    assert store.read(artifact.ref) == LARGE and list(store.faults()) == []


@pytest.mark.requirement("ART-3")
@pytest.mark.parametrize("is_reported", [False, True])
def test_every_damaged_page_of_the_index_is_mended_by_the_next_start(store, root, tmp_path, is_reported):
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
            [_reads(store, artifact.ref) for artifact in kept]
            store.close()
        store = ArtifactStore(root)
        store.create()
        assert all(_reads(store, artifact.ref) for artifact in kept), f"page {page}"
        assert list(store.faults()) == [], f"page {page}"
        store.close()


def in_small_packs(store, monkeypatch, size):
    """Eight artifacts in packs of some three; those of all but the first, the fifth and the last are removed."""
    monkeypatch.setattr(packs, "PACK_BYTES", size)
    kept = [store.keep(random.Random(number).randbytes(6_000)) for number in range(8)]
    gone = [artifact.ref for number, artifact in enumerate(kept) if number not in (0, 4, 7)]
    kept = [artifact for artifact in kept if artifact.ref not in gone]
    store.remove_unused(store.claim_removal(gone), ())
    return kept


@pytest.mark.requirement("ART-8")
def test_a_repack_that_was_cut_short_behind_a_removed_pack_goes_on(store, root, monkeypatch):
    kept = in_small_packs(store, monkeypatch, 18_000)

    def cut_short(self, number):
        raise KeyboardInterrupt

    for is_started_again in (False, True):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Index, "remove_pack", cut_short)
            store.repack()
        store = again(store, root) if is_started_again else store
        assert store.repack() == 2 - is_started_again * 1
        assert list(store.faults()) == [] and all(store.read(artifact.ref) for artifact in kept)
        kept = [*in_small_packs(store, monkeypatch, 18_000), *kept]


@pytest.mark.requirement("ART-5")
@pytest.mark.parametrize("is_killed", [False, True])
def test_what_a_repack_moved_is_not_left_in_a_pack_that_stays(store, root, monkeypatch, is_killed):
    kept = in_small_packs(store, monkeypatch, 30_000)
    path = root / "packs" / "00000001.pack"
    damaged, moved = list(records(path))[0], kept[1]
    change(path, damaged.location.end - 1)
    if is_killed:
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Packs, "bury", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
            store.repack()
    store.repack()
    assert path.exists(), "what is damaged stays"
    data = store.read(moved.ref)
    assert data not in path.read_bytes() and sum(data in file.read_bytes() for file in path.parent.iterdir()) == 1


@pytest.mark.requirement("ART-5")
@pytest.mark.parametrize("place", ["", "art.erase"])
def test_an_artifact_with_a_damaged_manifest_is_removed_with_its_chunks(store, root, place):
    other = store.keep(LARGE[:500_000])
    ref = store.keep(LARGE).ref
    (manifest,) = (r for r in records(the_pack(root)) if isinstance(r, PackRecord) and r.hash.hex() == ref)
    change(the_pack(root), manifest.location.end - 1)
    if place:
        with failpoints.armed(f"{place}=error:EIO*1"), pytest.raises(OSError, match="failpoint"):
            store.remove_unused(store.claim_removal([ref]), ())
    store.remove_unused(store.claim_removal([ref]), ())
    named = {blake3(chunk).digest() for chunk in cut(LARGE[:500_000])} | {bytes.fromhex(other.ref)}
    assert {r.hash for r in records(the_pack(root)) if r.kind != packs.DEAD} == named
    assert store.read(other.ref) == LARGE[:500_000] and list(store.faults()) == []
