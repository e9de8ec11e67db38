"""The artifact store keeps bytes under their hash, and never hands out others."""

import errno
import os
import stat
from pathlib import Path

import pytest
from blake3 import blake3

from ctxd import dbfile, failpoints
from ctxd.artifacts import store as artifacts
from ctxd.artifacts.store import ArtifactStore
from ctxd.errors import CtxdError


@pytest.fixture
def store(tmp_path):
    store = ArtifactStore(tmp_path / "artifacts")
    store.create()
    return store


def test_what_was_written_is_read_under_its_hash(store):
    ref = store.keep(b"some bytes").ref
    assert ref == blake3(b"some bytes").hexdigest()
    assert store.read(ref) == b"some bytes"
    assert list(store.names()) == [ref]


def test_files_are_read_only_and_folders_are_ours_alone(store):
    path = store.path(store.keep(b"x").ref)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700


def test_the_same_bytes_are_kept_once(store):
    ref = store.keep(b"x" * 100).ref
    inode = store.path(ref).stat().st_ino
    assert store.keep(b"x" * 100).ref == ref
    assert store.path(ref).stat().st_ino == inode


def test_a_damaged_artifact_is_an_error_and_writing_it_again_heals_it(store):
    ref = store.keep(b"right").ref
    path = store.path(ref)
    path.chmod(0o600)
    path.write_bytes(b"wrong")
    with pytest.raises(CtxdError) as caught:
        store.read(ref)
    assert caught.value.code == "corrupt"
    assert store.keep(b"right").ref == ref
    assert store.read(ref) == b"right"


def test_a_missing_artifact_is_an_error(store):
    with pytest.raises(CtxdError) as caught:
        store.read("0" * 64)
    assert caught.value.code == "corrupt"


@pytest.mark.parametrize("place", ["art.write", "art.fsync", "art.link"])
def test_a_write_that_fails_leaves_no_file(store, place):
    with failpoints.armed(f"{place}=error:ENOSPC"), pytest.raises(OSError, match="failpoint"):
        store.keep(b"x")
    assert list(store.names()) == []
    assert store.read(store.keep(b"x").ref) == b"x"


def test_a_filesystem_without_nameless_files_is_served_by_a_temporary_name(store, monkeypatch):
    monkeypatch.setattr(artifacts.os, "O_TMPFILE", artifacts.os.O_DIRECTORY)  # refused as EISDIR with O_WRONLY
    ref = store.keep(b"x").ref
    assert store.read(ref) == b"x"
    assert [path.name for path in store.path(ref).parent.iterdir()] == [ref]


def test_an_artifact_on_a_bad_sector_is_replaced(store, monkeypatch):
    ref, read = store.keep(b"right").ref, Path.read_bytes
    bad = store.path(ref).with_name("bad")
    os.link(store.path(ref), bad)

    def failing(path):
        if path.exists() and path.samefile(bad):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    with monkeypatch.context() as patched, pytest.raises(CtxdError, match="Input/output error"):
        patched.setattr(Path, "read_bytes", failing)
        store.read(ref)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "read_bytes", failing)
        assert store.keep(b"right").ref == ref
    assert not store.path(ref).samefile(bad) and store.read(ref) == b"right"


def test_want_of_descriptors_is_no_damage(store, monkeypatch):
    ref = store.keep(b"right").ref

    def failing(path):
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched, pytest.raises(dbfile.DiskFull):
        patched.setattr(Path, "read_bytes", failing)
        store.read(ref)
