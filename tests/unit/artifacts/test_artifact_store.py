"""The artifact store keeps bytes under their hash, and never hands out others."""

import errno
import os
import random
import stat
import threading

import pytest
from blake3 import blake3

from ctxd import failpoints, file_writes, sqlite_file
from ctxd.artifacts import pack_index, packs
from ctxd.artifacts.chunking import CHUNK_BYTES_MAX, Chunker, cut
from ctxd.artifacts.fsck import faults
from ctxd.artifacts.pack_index import Index
from ctxd.artifacts.packs import PackRecord, Packs, records
from ctxd.errors import CtxdError
from tests.unit.artifacts.stores import LARGE, again, change, in_small_packs, live, the_pack


@pytest.mark.requirement("ART-1")
@pytest.mark.parametrize("data", [b"", b"some bytes", bytes(CHUNK_BYTES_MAX), bytes(CHUNK_BYTES_MAX + 1), LARGE])
def test_stored_data_is_read_by_its_hash(store, root, data):
    ref = store.keep(data).ref
    assert ref == blake3(data).hexdigest()
    assert (store.read(ref), store.size(ref), list(store.names())) == (data, len(data), [ref])
    store = again(store, root)
    assert (store.read(ref), store.size(ref), list(faults(store))) == (data, len(data), [])


@pytest.mark.requirement("ART-1")
def test_a_range_is_read_as_it_was_written(store):
    ref = store.keep(LARGE).ref
    for first, end in ((0, 0), (0, 1), (5, 500_000), (65_535, 65_537), (999_999, None), (0, None), (10**6, 10**7)):
        assert b"".join(store.pieces(ref, first, end)) == LARGE[first:end]


def test_files_are_accessible_only_to_their_owner(store, root):
    store.keep(b"x")
    assert {stat.S_IMODE(path.stat().st_mode) for path in (root, root / "packs")} == {0o700}
    assert stat.S_IMODE(the_pack(root).stat().st_mode) == 0o600


def test_the_same_bytes_are_kept_once(store, root):
    ref = store.keep(LARGE).ref
    size = the_pack(root).stat().st_size
    assert store.keep(LARGE).ref == ref and the_pack(root).stat().st_size == size


def test_chunk_boundaries_do_not_depend_on_write_sizes(store):
    chunker = Chunker()
    found = [chunk for at in range(0, len(LARGE), 777) for chunk in chunker.cut(LARGE[at : at + 777])]
    assert [*found, *chunker.end()] == cut(LARGE)
    with store.writer() as writer:
        for at in range(0, len(LARGE), 777):
            writer.write(LARGE[at : at + 777])
        assert writer.finish().ref == blake3(LARGE).hexdigest()


@pytest.mark.requirement("ART-2")
def test_chunk_boundaries_are_frozen():
    assert [len(chunk) for chunk in cut(LARGE)][:4] == [10_214, 6_452, 18_605, 22_908]


@pytest.mark.requirement("ART-2")
@pytest.mark.parametrize("change", ["prepend", "insert", "append", "remove"])
def test_similar_contents_share_chunks(store, root, change):
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
def test_compressible_data_shrinks_and_incompressible_data_barely_grows(store, root):
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
    assert list(faults(store)) == [], "what was damaged is overwritten"


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
    assert list(faults(store)) == []


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


def test_descriptor_exhaustion_is_not_reported_as_damage(store, monkeypatch):
    ref = store.keep(b"right").ref

    def failing(self, location):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(sqlite_file.DiskFull):
        patched.setattr(Packs, "read", failing)
        store.read(ref)


@pytest.mark.requirement("ART-5")
def test_removed_artifacts_are_overwritten_except_for_shared_chunks(store, root):
    kept, removed = store.keep(LARGE), store.keep(LARGE + b"the end of another")
    refs = kept.ref, removed.ref
    del removed
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == [refs[0]] and store.read(refs[0]) == LARGE
    assert not any(b"the end of another" in data for data in live(root)) and list(faults(store)) == []
    del kept
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == live(root) == [] and list(faults(store)) == []


def test_chunks_of_an_abandoned_writer_are_removed_unless_shared(store, root):
    with store.writer() as given_up:
        given_up.write(LARGE + b"an end of its own" * 10_000)
        artifact = store.keep(LARGE)
    assert store.read(artifact.ref) == LARGE
    assert not any(b"an end of its own" in data for data in live(root)) and list(faults(store)) == []


def test_chunks_of_an_open_writer_outlive_the_artifact_they_came_from(store):
    first = store.keep(LARGE)
    with store.writer() as writer:
        writer.write(LARGE)
        ref = first.ref
        del first
        store.remove_unused(store.claim_removal([ref]), ())
        artifact = writer.finish()
    assert store.read(artifact.ref) == LARGE and list(faults(store)) == []


def test_writers_of_the_same_and_of_similar_bytes_at_once_lose_nothing(store, root):
    datas = [LARGE, LARGE, b"x" + LARGE, LARGE[:700_000], b"small", b"small"]
    kept: list = []
    threads = [threading.Thread(target=lambda data=data: kept.append((store.keep(data), data))) for data in datas * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(kept) == len(threads)
    assert all(store.read(artifact.ref) == data for artifact, data in kept) and list(faults(store)) == []
    refs = [artifact.ref for artifact, _ in kept]
    kept.clear()
    store.remove_unused(store.claim_removal(refs), ())
    assert list(store.names()) == live(root) == [] and list(faults(store)) == []


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
        assert sorted(store.names()) == sorted(artifact.ref for artifact in kept) and list(faults(store)) == []
        store = again(store, root) if not again_ else store


def test_a_reader_survives_a_concurrent_repack(store, root, monkeypatch):
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


def test_a_prefix_finds_all_names_with_it(store):
    refs = sorted(store.keep(b"%d" % number).ref for number in range(300))
    for digits in (0, 1, 2, 3, 64):
        prefix = refs[7][:digits]
        assert store.matching(prefix, 1_000) == [ref for ref in refs if ref.startswith(prefix)]
    assert store.matching("", 5) == refs[:5] and store.matching("f" * 64, 5) == []


@pytest.mark.requirement("ART-5")
def test_a_write_without_disk_space_leaves_the_packs_unchanged(store, root):
    kept = store.keep(LARGE[:300_000])
    size = the_pack(root).stat().st_size
    for place in ("art.write@3", "art.fsync"):
        name, _, nth = place.partition("@")
        with failpoints.armed(f"{name}=error:ENOSPC*1@{nth or 1}"), pytest.raises(OSError, match="failpoint"):
            store.keep(LARGE[300_000:])
        assert the_pack(root).stat().st_size == size
    added = store.keep(LARGE[300_000:])
    store = again(store, root)
    assert store.read(kept.ref) + store.read(added.ref) == LARGE and list(faults(store)) == []


@pytest.mark.requirement("ART-5")
@pytest.mark.parametrize("data", [b"a small one", LARGE])
def test_a_write_that_the_index_refuses_leaves_no_copy_behind(store, root, data):
    with failpoints.armed("art.index=error:ENOSPC*1"), pytest.raises(OSError, match="failpoint"):
        store.keep(data)
    ref = store.keep(data).ref
    store.remove_unused(store.claim_removal([ref]), ())
    assert live(root) == [] and list(faults(store)) == []


@pytest.mark.requirement("ART-8")
def test_a_repack_interrupted_after_removing_a_pack_continues(store, root, monkeypatch):
    kept = in_small_packs(store, monkeypatch, 18_000)

    def cut_short(self, number):
        raise KeyboardInterrupt

    for is_started_again in (False, True):
        with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
            patched.setattr(Index, "remove_pack", cut_short)
            store.repack()
        store = again(store, root) if is_started_again else store
        assert store.repack() == 2 - is_started_again * 1
        assert list(faults(store)) == [] and all(store.read(artifact.ref) for artifact in kept)
        kept = [*in_small_packs(store, monkeypatch, 18_000), *kept]


@pytest.mark.requirement("ART-5")
@pytest.mark.parametrize("is_killed", [False, True])
def test_artifacts_moved_by_a_repack_are_erased_from_a_pack_that_stays(store, root, monkeypatch, is_killed):
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
    assert store.read(other.ref) == LARGE[:500_000] and list(faults(store)) == []


def test_the_log_of_the_index_is_copied_once_for_many_writes(store, root, monkeypatch):
    monkeypatch.setattr(pack_index, "_LOG_PAGES", 64)
    store = again(store, root)
    copies, plain = [], sqlite_file.checkpoint
    monkeypatch.setattr(sqlite_file, "checkpoint", lambda *args, **named: (copies.append(1), plain(*args, **named)))
    before = 0
    for number in range(600):
        store.keep(b"%d" % number)
        before = before or (number if copies else 0)
    # The log begins again once it is copied; its file stays as long as it was.
    assert before and 2 <= len(copies) <= 1.5 * 600 / before


def test_a_long_artifact_is_handed_to_the_disk_while_it_is_written(store, monkeypatch):
    begun, flushed, pwrite, fdatasync = [], [], packs.os.pwrite, packs.os.fdatasync
    written = []
    monkeypatch.setattr(packs.os, "pwrite", lambda *args: (written.append(pwrite(*args)), written[-1])[1])
    monkeypatch.setattr(packs.os, "posix_fadvise", lambda _, at, size, __: begun.append((at, size)))
    monkeypatch.setattr(packs.os, "fdatasync", lambda fd: (flushed.append(sum(written)), fdatasync(fd)))
    store.keep(random.Random(5).randbytes(5_000_000))
    # Each write at once, and none twice.
    assert [size for _, size in begun] == written and len(written) >= 5
    assert [at for at, _ in begun] == [sum(written[:number]) for number in range(len(written))]
    assert flushed == [sum(written)]


def test_a_file_is_erased_a_piece_at_a_time(tmp_path, monkeypatch):
    path, left, fdatasync = tmp_path / "upload", [], os.fdatasync

    def flush(descriptor):
        fdatasync(descriptor)
        left.append(len(path.read_bytes().lstrip(b"\0")))

    monkeypatch.setattr(os, "fdatasync", flush)
    path.write_bytes(b"x" * (3 * 2**17 + 5))
    file_writes.erase(path)
    assert left == [2 * 2**17 + 5, 2**17 + 5, 5, 0] and not path.exists()


def test_a_filesystem_without_hints_can_store_artifacts(store, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(packs.os, "posix_fadvise", refuse)
    assert store.read(store.keep(LARGE).ref) == LARGE
