"""What every source promises, and every source of files. A subclass gives ``tree``: the source, and hands to make the
world it looks at."""

import errno
from typing import Any, Protocol

import pytest

from ctxd.objects.hashing import source_hash
from ctxd.sources.host_files import HostFiles, Regular
from ctxd.sources.source_interface import (
    FINGERPRINT_BYTES,
    Missing,
    OverLimit,
    Present,
    SourceAdapter,
    Special,
    Unreadable,
    size_of,
)
from ctxd_protocol.limits import FILE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource, Source


class Tree(Protocol):
    """Sources of one kind, by names."""

    @property
    def source(self) -> SourceAdapter[Any]: ...

    def bound(self, name: str) -> Source: ...
    def write(self, name: str, raw: bytes) -> None: ...
    def write_sparse(self, name: str, size_bytes: int) -> None: ...
    def remove(self, name: str) -> None: ...


class FilesTree(Protocol):
    """A directory of files. Names are relative to it."""

    @property
    def source(self) -> HostFiles: ...

    def bound(self, name: str) -> FilesystemSource: ...
    def path(self, name: str) -> str: ...
    def write(self, name: str, raw: bytes) -> None: ...
    def write_sparse(self, name: str, size_bytes: int) -> None: ...
    def mkdir(self, name: str) -> None: ...
    def fifo(self, name: str) -> None: ...
    def symlink(self, name: str, target: str) -> None: ...
    def remove(self, name: str) -> None: ...


class SourceSuite:
    """Run by every implementation of ``ctxd.sources.source_interface.SourceAdapter``."""

    @pytest.mark.anyio
    async def test_a_text_is_read_whole_with_the_hash_of_its_bytes(self, tree: Tree) -> None:
        tree.write("a.txt", "héllo\r\n".encode())
        reading = await tree.source.read(tree.bound("a.txt"))
        assert isinstance(reading, Present)
        assert (reading.kind, reading.text, reading.raw) == ("text", "héllo\r\n", "héllo\r\n".encode())
        assert reading.source_hash == source_hash(reading.raw)

    @pytest.mark.anyio
    async def test_an_empty_file_is_a_text(self, tree: Tree) -> None:
        tree.write("empty", b"")
        reading = await tree.source.read(tree.bound("empty"))
        assert isinstance(reading, Present)
        assert reading.text == ""

    @pytest.mark.anyio
    @pytest.mark.requirement("FS-7")
    @pytest.mark.parametrize("raw", [b"a\0b", b"\xff\xfe", "é".encode("latin-1"), b"\xed\xa0\x80"])
    async def test_content_that_is_not_text_is_binary_and_hashed(self, tree: Tree, raw: bytes) -> None:
        tree.write("a.bin", raw)
        reading = await tree.source.read(tree.bound("a.bin"))
        assert isinstance(reading, Present)
        assert (reading.kind, reading.text, reading.source_hash) == ("binary", None, source_hash(raw))

    @pytest.mark.anyio
    @pytest.mark.requirement("FS-7")
    async def test_a_huge_file_is_known_by_its_size(self, tree: Tree) -> None:
        tree.write_sparse("huge", 5_000_000_000)
        reading = await tree.source.read(tree.bound("huge"))
        assert isinstance(reading, OverLimit)
        assert reading.size_bytes == 5_000_000_000

    @pytest.mark.anyio
    async def test_the_bound_itself_is_still_read(self, tree: Tree) -> None:
        tree.write("max", b"x" * FILE_BYTES_MAX)
        tree.write("more", b"x" * (FILE_BYTES_MAX + 1))
        largest, larger = await tree.source.read_many([tree.bound("max"), tree.bound("more")])
        assert isinstance(largest, Present)
        assert len(largest.raw) == FILE_BYTES_MAX
        assert isinstance(larger, OverLimit)

    @pytest.mark.anyio
    async def test_an_empty_request_gives_an_empty_result(self, tree: Tree) -> None:
        assert await tree.source.read_many([]) == []
        assert await tree.source.fingerprint([]) == []

    @pytest.mark.anyio
    async def test_another_content_of_another_size_has_another_fingerprint(self, tree: Tree) -> None:
        tree.write("a", b"text")
        before = await tree.source.fingerprint([tree.bound("a")])
        tree.write("a", b"another")
        assert await tree.source.fingerprint([tree.bound("a")]) != before

    @pytest.mark.anyio
    async def test_an_absence_is_confirmed_and_names_the_volume_that_the_source_was_read_from(self, tree: Tree) -> None:
        tree.write("a", b"")
        present = await tree.source.read(tree.bound("a"))
        tree.remove("a")
        assert isinstance(present, Present)
        assert await tree.source.read(tree.bound("a")) == Missing(True, present.stamp.volume)

    @pytest.mark.anyio
    async def test_results_are_in_the_order_of_the_bindings(self, tree: Tree) -> None:
        tree.write("one", b"1")
        tree.write("two", b"2")
        bindings = [tree.bound("two"), tree.bound("none"), tree.bound("one")]
        readings = await tree.source.read_many(bindings)
        assert [reading.raw if isinstance(reading, Present) else None for reading in readings] == [b"2", None, b"1"]
        fingerprints = await tree.source.fingerprint(bindings)
        assert [fingerprint is None for fingerprint in fingerprints] == [False, True, False]

    @pytest.mark.anyio
    async def test_a_reading_has_the_fingerprint_of_its_source_with_its_size(self, tree: Tree) -> None:
        tree.write("a", b"text")
        reading = await tree.source.read(tree.bound("a"))
        assert isinstance(reading, Present)
        assert await tree.source.fingerprint([tree.bound("a")]) == [reading.stamp.fingerprint]
        assert len(reading.stamp.fingerprint) == FINGERPRINT_BYTES
        assert size_of(reading.stamp.fingerprint) == len(b"text")


class FilesSuite(SourceSuite):
    """Run by every implementation of ``ctxd.sources.host_files.HostFiles``."""

    @pytest.mark.anyio
    @pytest.mark.requirement("FS-7")
    async def test_special_files_are_not_opened(self, tree: FilesTree) -> None:
        tree.mkdir("dir")
        tree.fifo("pipe")
        assert await tree.source.read(tree.bound("dir")) == Special("directory")
        assert await tree.source.read(tree.bound("pipe")) == Special("fifo")
        assert await tree.source.look_many([tree.path("dir"), tree.path("pipe")]) == [
            Special("directory"),
            Special("fifo"),
        ]

    @pytest.mark.anyio
    @pytest.mark.requirement("IDX-7")
    async def test_a_missing_file_is_confirmed_only_if_its_directory_exists(self, tree: FilesTree) -> None:
        tree.write("dir/a", b"")
        present = await tree.source.read(tree.bound("dir/a"))
        tree.remove("dir/a")
        gone = await tree.source.read(tree.bound("dir/a"))
        assert isinstance(gone, Missing)
        assert gone.confirmed
        assert isinstance(present, Present)
        assert gone.volume == present.stamp.volume
        tree.remove("dir")
        unreachable = await tree.source.read(tree.bound("dir/a"))
        assert isinstance(unreachable, Missing)
        assert not unreachable.confirmed

    @pytest.mark.anyio
    async def test_a_path_is_on_the_device_of_the_nearest_directory_above_it(self, tree: FilesTree) -> None:
        tree.write("dir/a", b"")
        present = await tree.source.read(tree.bound("dir/a"))
        assert isinstance(present, Present)
        names = ["dir/a", "dir/none", "dir/none/deeper/x", "dir/a/through", "dir/" + "x" * 300 + "/a"]
        devices = await tree.source.devices_of([tree.path(name) for name in names])
        assert devices == [present.stamp.volume] * len(names)
        assert len(await tree.source.devices_of(["/", "/none/none"])) == 2
        assert await tree.source.devices_of([]) == []

    @pytest.mark.anyio
    async def test_a_path_through_a_file_is_not_a_deletion(self, tree: FilesTree) -> None:
        tree.write("a", b"")
        for found in (await tree.source.read(tree.bound("a/b")), *await tree.source.look_many([tree.path("a/b")])):
            assert isinstance(found, Missing)
            assert not found.confirmed

    @pytest.mark.anyio
    async def test_looks_are_in_the_order_of_the_paths(self, tree: FilesTree) -> None:
        tree.write("one", b"1")
        tree.write("two", b"2")
        looks = await tree.source.look_many([tree.path("two"), tree.path("none"), tree.path("one")])
        assert [isinstance(look, Regular) for look in looks] == [True, False, True]

    @pytest.mark.anyio
    async def test_a_look_has_the_fingerprint_of_the_file(self, tree: FilesTree) -> None:
        tree.write("a", b"text")
        (look,) = await tree.source.look_many([tree.path("a")])
        assert isinstance(look, Regular)
        assert [look.stamp.fingerprint] == await tree.source.fingerprint([tree.bound("a")])

    @pytest.mark.anyio
    async def test_only_regular_files_have_a_fingerprint(self, tree: FilesTree) -> None:
        tree.mkdir("dir")
        tree.fifo("pipe")
        assert await tree.source.fingerprint([tree.bound("dir"), tree.bound("pipe"), tree.bound("none")]) == [None] * 3

    @pytest.mark.anyio
    @pytest.mark.requirement("FS-7")
    async def test_a_name_that_no_file_can_have_is_unreadable(self, tree: FilesTree) -> None:
        for found in await tree.source.read_many([tree.bound("x" * 256), tree.bound("a\0b")]):
            assert isinstance(found, Unreadable)
        for look in await tree.source.look_many([tree.path("x" * 256), tree.path("a\0b")]):
            assert isinstance(look, Unreadable)

    @pytest.mark.anyio
    async def test_a_symlink_out_of_a_confined_directory_is_not_followed(self, tree: FilesTree) -> None:
        tree.write("box/inside", b"own")
        tree.write("box2/outside", b"secret")
        tree.symlink("box/in", tree.path("box/inside"))
        tree.symlink("box/out", tree.path("box2/outside"))
        tree.symlink("link", tree.path("box2/outside"))
        tree.source.confinement.confine(tree.path("box"))
        assert await tree.source.read(tree.bound("box/out")) == Unreadable(errno.EXDEV)
        for name, raw in {"box/inside": b"own", "box/in": b"own", "box2/outside": b"secret", "link": b"secret"}.items():
            reading = await tree.source.read(tree.bound(name))
            assert isinstance(reading, Present)
            assert reading.raw == raw

    @pytest.mark.anyio
    async def test_a_look_does_not_follow_a_symlink_out_of_a_confined_directory_either(self, tree: FilesTree) -> None:
        tree.write("box/inside", b"own")
        tree.write("outside", b"secret")
        tree.symlink("box/in", tree.path("box/inside"))
        tree.symlink("box/out", tree.path("outside"))
        tree.source.confinement.confine(tree.path("box"))
        inside, through, out = await tree.source.look_many(
            [tree.path("box/inside"), tree.path("box/in"), tree.path("box/out")]
        )
        assert isinstance(inside, Regular)
        assert through == inside
        assert out == Unreadable(errno.EXDEV)

    @pytest.mark.anyio
    @pytest.mark.requirement("OBJ-12")
    async def test_a_path_is_resolved_and_one_out_of_a_confined_directory_is_not(self, tree: FilesTree) -> None:
        tree.write("box/inside", b"own")
        tree.write("outside", b"secret")
        for name, target in {"box/in": "box/inside", "box/out": "outside", "link": "outside"}.items():
            tree.symlink(name, tree.path(target))
        tree.source.confinement.confine(tree.path("box"))
        expected = {"box/in": "box/inside", "box/out": "box/out", "link": "outside", "box/none": "box/none"}
        resolved = await tree.source.resolve_many([tree.path(name) for name in expected])
        assert resolved == [tree.path(name) for name in expected.values()]

    @pytest.mark.anyio
    async def test_only_a_path_without_symlinks_and_confinement_is_read_as_plain(self, tree: FilesTree) -> None:
        tree.write("plain", b"text")
        tree.write("box/inside", b"own")
        tree.symlink("link", tree.path("plain"))
        tree.source.confinement.confine(tree.path("box"))
        plain = await tree.source.read_plain(tree.path("plain"))
        assert isinstance(plain, Present)
        assert plain.raw == b"text"
        assert await tree.source.read_plain(tree.path("none")) == await tree.source.read(
            FilesystemSource("host", tree.path("none"))
        )
        assert await tree.source.read_plain(tree.path("link")) is None
        assert await tree.source.read_plain(tree.path("box/inside")) is None
