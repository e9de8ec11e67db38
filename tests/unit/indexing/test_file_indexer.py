"""Indexing one file, over fakes."""

import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from ctxd.clock import SystemClock
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed, Indexer
from ctxd.indexing.stale_files import INLINE_BYTES_MAX, OVERTAKEN_RETRIES
from ctxd.indexing.stub_discovery import discover
from ctxd.objects.document import AsOf, Document, file_text
from ctxd.objects.hashing import source_hash
from ctxd.objects.version_state import state_of
from ctxd.sources.hang_safe_lookups import Lookups
from ctxd.sources.host_files import HostFiles
from ctxd.store.purge import purged_document
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource
from tests.unit.indexing.memory import BOX, HOST, MOUNTS, ON_HOST, MemoryVersions, World

pytestmark = pytest.mark.anyio

T = TypeVar("T")


class CountedLookups(Lookups):
    """Lookups that count their trips to threads."""

    trips = 0

    async def each(self, paths: Sequence[str], look: Callable[[str], T], hung: Callable[[str], T]) -> list[T]:
        self.trips += 1
        return await super().each(paths, look, hung)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.requirement("IDX-1")
async def test_a_new_file_becomes_an_object_bound_to_its_canonical_place(world: World) -> None:
    world.files.write("/src/a.py", b"print()\n")
    indexed = await world.read("/w/a.py")
    assert (indexed.outcome, indexed.kind, indexed.char_count) == ("created", "text", 8)
    assert indexed.source == FilesystemSource(HOST, "/src/a.py")
    document = world.versions.head(indexed.object)
    assert (document.content, document.source_hash) == ("print()\n", source_hash(b"print()\n"))


@pytest.mark.requirement("OBJ-1")
async def test_a_sandboxed_agent_and_one_on_the_host_share_one_object(world: World) -> None:
    world.files.write("/src/a.py", b"x")
    sandboxed = await world.read("a.py")
    on_host = await world.indexer.index(ON_HOST, "/", "/src/a.py")
    assert on_host.object == sandboxed.object
    assert on_host.outcome == "unchanged"


@pytest.mark.requirement("IDX-2")
async def test_an_unchanged_file_costs_one_reading_and_one_lookup_and_writes_nothing(world: World) -> None:
    world.files.write("/src/a.py", b"x")
    await world.read("/w/a.py")
    world.versions.forget()
    lookups, reads = world.versions.lookups, world.files.reads
    again = await world.indexer.index(MOUNTS, "/w", "/w/a.py")
    assert (again.outcome, again.document, again.char_count) == ("unchanged", None, 1)
    assert again.source_hash == source_hash(b"x")
    assert (world.versions.lookups - lookups, world.files.reads - reads) == (1, 1)


async def test_a_host_file_is_resolved_and_read_in_one_trip_to_a_thread(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes(b"one")
    (tmp_path / "link.py").symlink_to("a.py")
    lookups = CountedLookups(SystemClock())
    indexer = Indexer(MemoryVersions(), HostFiles(SystemClock(), lookups=lookups), HOST)
    plain = await indexer.index(ON_HOST, "/", os.path.realpath(tmp_path / "a.py"))
    assert (plain.outcome, plain.char_count, lookups.trips) == ("created", 3, 1)
    linked = await indexer.index(ON_HOST, "/", str(tmp_path / "link.py"))
    assert (linked.object, linked.outcome) == (plain.object, "created")


@pytest.mark.requirement("IDX-3")
async def test_a_changed_file_gets_a_version_after_the_one_before(world: World) -> None:
    world.files.write("/src/a.py", b"one")
    first = await world.read("/w/a.py")
    world.files.write("/src/a.py", b"two!")
    second = await world.read("/w/a.py")
    assert (second.object, second.outcome, second.char_count) == (first.object, "updated", 4)
    assert second.floor_vt > first.floor_vt


@pytest.mark.requirement("IDX-5")
async def test_content_that_is_sent_is_taken_and_the_file_is_not_read(world: World) -> None:
    indexed = await world.read("/w/a.py", "héllo".encode())
    assert (indexed.outcome, indexed.kind, indexed.char_count) == ("created", "text", 5)
    assert (await world.read("/w/a.py", "héllo".encode())).outcome == "unchanged"
    assert world.files.reads == 0


async def test_a_file_on_the_sandboxs_own_filesystem_is_indexed_from_sent_content(world: World) -> None:
    indexed = await world.read("/tmp/a", b"x")
    assert indexed.source == FilesystemSource(BOX, "/tmp/a")
    with pytest.raises(CtxdError) as caught:
        await world.read("/tmp/a")
    assert caught.value.code == "source_unreachable"
    checked = await world.indexer.index(MOUNTS, "/", "/tmp/a", cause="check")
    assert checked.outcome == "orphaned"
    assert world.files.reads == 0


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "read"])
async def test_binary_content_is_kept_with_its_media_type(world: World, sent: bool) -> None:
    raw = b"\x89PNG\r\n\x1a\n\0"
    world.files.write("/src/a.png", raw)
    indexed = await world.read("/w/a.png", raw if sent else None)
    assert (indexed.kind, indexed.char_count, indexed.source_hash) == ("binary", 0, source_hash(raw))
    document = world.versions.head(indexed.object)
    assert (document.content, document.payload["kind"], document.payload["media_type"]) == (raw, "binary", "image/png")


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("sent", [True, False], ids=["sent", "read"])
async def test_an_oversized_file_is_known_by_its_size(world: World, sent: bool) -> None:
    world.files.write_sparse("/src/big", FILE_BYTES_MAX + 1)
    content = b"x" * (FILE_BYTES_MAX + 1) if sent else None
    indexed = await world.read("/w/big", content)
    assert (indexed.kind, indexed.char_count, indexed.source_hash) == ("too_large", 0, None)
    assert world.versions.head(indexed.object).payload["size_bytes"] == FILE_BYTES_MAX + 1
    assert (await world.read("/w/big", content)).outcome == "unchanged"
    world.files.write("/src/big", b"small")
    assert (await world.read("/w/big")).outcome == "updated"


@pytest.mark.requirement("IDX-6")
@pytest.mark.parametrize("cause", ["read", "edit", "check"])
async def test_reading_a_missing_file_fails_by_name_and_makes_no_object(world: World, cause: str) -> None:
    world.files.mkdir("/src")
    with pytest.raises(CtxdError) as caught:
        await world.indexer.index(MOUNTS, "/w", "lib/../none.py", cause=cause)  # type: ignore[arg-type]
    assert caught.value.code == "file_not_found"
    assert caught.value.message == "no file /w/none.py"
    assert world.versions.writes == 0


async def test_a_read_that_finds_a_known_file_gone_fails_and_leaves_its_version(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.remove("/src/a")
    with pytest.raises(CtxdError):
        await world.read("/w/a")
    assert state_of(world.versions.head(known.object)) == "present"


@pytest.mark.requirement("OBJ-10")
async def test_a_check_reports_a_deleted_file_once(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.remove("/src/a")
    checked = world.versions.take(await world.indexer.index(MOUNTS, "/w", "/w/a", cause="check"))
    assert (checked.outcome, checked.kind, checked.source_hash, checked.char_count) == ("deleted", "missing", None, 0)
    tombstone = world.versions.head(known.object)
    assert (state_of(tombstone), tombstone.content, tombstone.source) == ("deleted", None, known.source)
    again = await world.indexer.index(MOUNTS, "/w", "/w/a", cause="check")
    assert (again.outcome, again.document) == ("unchanged", None)


async def test_a_file_that_comes_back_is_the_same_object(world: World) -> None:
    world.files.write("/src/a", b"x")
    known = await world.read("/w/a")
    world.files.remove("/src/a")
    world.versions.take(await world.indexer.index(MOUNTS, "/w", "/w/a", cause="check"))
    world.files.write("/src/a", b"x")
    back = await world.read("/w/a")
    assert (back.object, back.outcome) == (known.object, "updated")


@pytest.mark.requirement("IDX-7")
async def test_a_file_without_its_directory_is_orphaned_and_keeps_its_version(world: World) -> None:
    world.files.write("/src/lib/a", b"x")
    await world.read("/w/lib/a")
    world.files.remove("/src/lib")
    checked = await world.indexer.index(MOUNTS, "/w", "/w/lib/a", cause="check")
    assert (checked.outcome, checked.kind, checked.document) == ("orphaned", "missing", None)
    assert checked.source_hash == source_hash(b"x")


@pytest.mark.requirement("IDX-7")
async def test_a_file_whose_disk_is_not_mounted_is_orphaned(world: World) -> None:
    world.files.write("/src/a", b"x")
    await world.read("/w/a")
    world.restart()
    world.files.remove("/src/a")
    world.files.mkdir("/src")
    world.files.remount("/src", 99)
    checked = await world.indexer.index(MOUNTS, "/w", "/w/a", cause="check")
    assert checked.outcome == "orphaned"


@pytest.mark.parametrize(("what", "code"), [("denied", "source_unreachable"), ("directory", "unsupported")])
async def test_an_unreadable_file_fails_a_read_and_is_orphaned_by_a_check(world: World, what: str, code: str) -> None:
    world.files.write("/src/a", b"x")
    await world.read("/w/a")
    if what == "denied":
        world.files.deny("/src/a", errno.EACCES)
    else:
        world.files.special("/src/a", "directory")
    with pytest.raises(CtxdError) as caught:
        await world.read("/w/a")
    assert caught.value.code == code
    checked = await world.indexer.index(MOUNTS, "/w", "/w/a", cause="check")
    assert (checked.outcome, checked.document) == ("orphaned", None)


async def test_an_unread_file_is_read_through_its_object(world: World) -> None:
    world.files.write("/src/a", b"text")
    (found,) = await discover(world.indexer, MOUNTS, "/w", ["a"])
    assert found.document is not None
    world.versions.put(found.document)
    indexed = await world.indexer.index_object(MOUNTS, found.document.id)
    assert (indexed.outcome, indexed.char_count) == ("updated", 4)


async def test_a_missing_object_or_one_that_is_not_a_file_cannot_be_read(world: World) -> None:
    with pytest.raises(CtxdError) as caught:
        await world.indexer.index_object(MOUNTS, "0" * 64)
    assert caught.value.code == "object_not_found"


async def test_a_sandboxs_symlink_does_not_fetch_a_file_of_the_host(world: World) -> None:
    world.files.write("/etc/shadow", b"secret")
    world.files.write("/src/a", b"own")
    known = await world.read("/w/a")
    world.files.symlink("/src/link", "/etc/shadow")
    with pytest.raises(CtxdError) as caught:
        await world.read("/w/link")
    assert caught.value.code == "path_escapes_mount"
    world.files.remove("/src/a")
    world.files.symlink("/src/a", "/etc/shadow")
    fresh = await world.refresh(MOUNTS, [known.object])
    assert (fresh.documents, fresh.orphaned) == ((), (known.object,))


async def test_a_sandboxs_symlink_to_the_outside_makes_no_stub(world: World) -> None:
    world.files.write("/etc/shadow", b"secret")
    world.files.write("/src/own", b"own")
    world.files.symlink("/src/link", "/etc/shadow")
    world.files.symlink("/src/in", "/src/own")
    found = await discover(world.indexer, MOUNTS, "/w", ["link", "in"])
    assert [(one.outcome, one.reason) for one in found] == [
        ("ignored", "it leads out of the mount, by a symlink or onto another file system"),
        ("created", None),
    ]


async def test_a_symlink_of_an_agent_on_the_host_is_followed(world: World) -> None:
    world.files.write("/opt/shared", b"text")
    world.files.symlink("/src/link", "/opt/shared")
    indexed = await world.indexer.index(ON_HOST, "/", "/src/link")
    assert (indexed.outcome, indexed.char_count) == ("created", 4)


@pytest.mark.requirement("IDX-4")
async def test_the_second_observer_of_one_change_writes_nothing(world: World) -> None:
    world.files.write("/src/a", b"one")
    await world.read("/w/a")
    world.files.write("/src/a", b"two")
    first = await world.indexer.index(MOUNTS, "/w", "/w/a")
    world.versions.take(first)
    second = await world.indexer.index(MOUNTS, "/w", "/w/a", content=b"two")
    assert (first.outcome, second.outcome) == ("updated", "unchanged")


@pytest.mark.requirement("IDX-4")
async def test_a_version_that_comes_in_during_the_reading_is_seen(world: World) -> None:
    world.files.write("/src/a", b"one")
    known = await world.read("/w/a")
    world.files.write("/src/a", b"two")
    racing = [True]

    def race(path: str) -> None:
        """Another session indexes the file while this one's reading is under way."""
        if racing:
            racing.clear()
            world.versions.put(other_version(known, b"two"), floor_vt=100)

    world.files.before_read = race
    raced = await world.indexer.index(MOUNTS, "/w", "/w/a")
    assert (raced.outcome, raced.document) == ("unchanged", None)


@pytest.mark.requirement("IDX-4")
async def test_an_observation_that_is_older_than_the_newest_version_is_made_again(world: World) -> None:
    """The file is read as ``two``; before that is written, another session reads and writes ``three``."""
    world.files.write("/src/a", b"one")
    known = await world.read("/w/a")
    world.files.write("/src/a", b"two")
    racing = [True]

    def race(path: str) -> None:
        if racing:
            racing.clear()
            world.files.write(path, b"three")
            world.versions.put(other_version(known, b"three"), floor_vt=100)

    world.files.after_read = race
    raced = await world.indexer.index(MOUNTS, "/w", "/w/a")
    assert (raced.outcome, raced.document) == ("unchanged", None)
    assert raced.source_hash == source_hash(b"three")


async def test_a_constantly_changing_file_is_stored_as_last_read(world: World) -> None:
    world.files.write("/src/a", b"0")
    known = await world.read("/w/a")
    world.files.write("/src/a", b"mine")
    count = [0]

    def race(path: str) -> None:
        count[0] += 1
        world.versions.put(other_version(known, b"%d" % count[0]), floor_vt=1000 * count[0])

    world.files.before_read = race
    raced = await world.indexer.index(MOUNTS, "/w", "/w/a")
    assert count[0] == 1 + OVERTAKEN_RETRIES
    assert raced.outcome == "updated"
    assert raced.floor_vt == 1000 * count[0] + 1


@pytest.mark.parametrize("sent", [True, False], ids=["sent", "read"])
async def test_large_text_is_hashed_off_the_loop_with_the_same_result(world: World, sent: bool) -> None:
    raw = "é".encode() * INLINE_BYTES_MAX
    world.files.write("/src/a", raw)
    indexed = await world.read("/w/a", raw if sent else None)
    assert (indexed.outcome, indexed.char_count, indexed.source_hash) == (
        "created",
        INLINE_BYTES_MAX,
        source_hash(raw),
    )
    assert (await world.read("/w/a", raw if sent else None)).outcome == "unchanged"


async def test_only_a_trusted_signature_is_stored_with_a_version(world: World) -> None:
    world.files.write("/src/a", b"x")
    world.files.settled = False
    assert (await world.read("/w/a")).signatures == {}
    world.files.write("/src/a", b"y")
    world.files.settled = True
    trusted = await world.read("/w/a")
    assert trusted.signatures.keys() == {trusted.object}
    assert (await world.read("/w/a", b"z")).signatures == {}


async def test_an_invalid_path_is_rejected(world: World) -> None:
    with pytest.raises(CtxdError) as caught:
        await world.read("/../a")
    assert caught.value.code == "invalid_path"


def other_version(known: Indexed, content: bytes) -> Document:
    return file_text(known.object, known.source, content.decode(), source_hash(content))


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("moment", ["lookup", "keep"])
async def test_a_purge_while_content_of_a_past_time_is_converted_refuses_it(
    world: World, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    content = b"secret " * INLINE_BYTES_MAX
    id = (await world.read("/w/a.py", content)).object
    keep = world.versions.keep

    def purge() -> None:
        world.versions.put(purged_document(world.versions.head(id), str), floor_vt=10)

    async def version_then(id: str, at: AsOf) -> None:
        if moment == "lookup":
            purge()

    async def purge_and_keep(document: Document) -> Document:
        if moment == "keep":
            purge()
        return await keep(document)

    monkeypatch.setattr(world.versions, "get", version_then, raising=False)
    monkeypatch.setattr(world.versions, "keep", purge_and_keep)
    with pytest.raises(CtxdError) as caught:
        await world.indexer.index_past(MOUNTS, "/w", "/w/a.py", content, 1, "flag")
    assert caught.value.code == "purged"
