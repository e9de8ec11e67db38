"""Filesystem ids of hosts and containers."""

import hashlib
from pathlib import Path

import pytest

from ctxd.errors import CtxdError, StateDirError
from ctxd.mounts.filesystem_id import container_filesystem_id, host_filesystem_id


@pytest.mark.requirement("FS-4")
def test_a_hosts_id_is_the_hash_of_its_machine_id_without_the_line_feed(tmp_path: Path) -> None:
    (tmp_path / "machine-id").write_text("0123456789abcdef0123456789abcdef\n")
    expected = hashlib.sha256(b"0123456789abcdef0123456789abcdef").hexdigest()
    assert host_filesystem_id([tmp_path / "machine-id"]) == expected


@pytest.mark.parametrize("first", [None, "", "\n", "uninitialized\n"])
def test_the_second_machine_id_file_is_used_if_the_first_is_unusable(tmp_path: Path, first: str | None) -> None:
    if first is not None:
        (tmp_path / "one").write_text(first)
    (tmp_path / "two").write_text("abc\n")
    assert host_filesystem_id([tmp_path / "one", tmp_path / "two"]) == hashlib.sha256(b"abc").hexdigest()


def test_a_host_without_machine_id_keeps_a_substitute(tmp_path: Path) -> None:
    first = host_filesystem_id([], substitute=tmp_path / "machine-id")
    assert host_filesystem_id([], substitute=tmp_path / "machine-id") == first
    assert host_filesystem_id([], substitute=tmp_path / "another") != first


def test_a_host_without_machine_id_and_substitute_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StateDirError, match="systemd-machine-id-setup"):
        host_filesystem_id([tmp_path / "none"])
    with pytest.raises(StateDirError, match="cannot keep"):
        host_filesystem_id([], substitute=tmp_path / "no such directory" / "machine-id")


@pytest.mark.requirement("FS-4")
def test_a_containers_id_is_taken_as_given() -> None:
    assert container_filesystem_id("0a" * 32) == "0a" * 32


@pytest.mark.parametrize("short", ["", "0a1b2c3d4e5f", "0A" * 32, "0a" * 33, "0a" * 32 + "\n"])
def test_an_id_that_may_not_be_unique_is_refused(short: str) -> None:
    with pytest.raises(CtxdError) as caught:
        container_filesystem_id(short)
    assert caught.value.code == "invalid_params"
