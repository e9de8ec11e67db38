"""FS: no file the agent may come upon can hurt the daemon, whatever it is, holds or is called."""

import base64
import hashlib
import os
import socket
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.limits import FILE_BYTES_MAX
from tests.spec.mounts import shown
from tests.spec.refusal import refused

ANSWERS_S_MAX = 30.0
"""Seconds within which the daemon has to answer whatever it is pointed at."""


def answered(client: SyncClient, s: SyncSession, path: str, **given: Any) -> Any:
    """``file.index`` within ``ANSWERS_S_MAX``."""
    return client.within(ANSWERS_S_MAX).file_index(s.id, path, **given)


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("raw", [b"\x00", b"PNG\xff\xfe", b"text\n\x80"], ids=["NUL", "header", "late"])
def test_a_binary_file_is_known_by_its_hash(s: SyncSession, client: SyncClient, tree: Path, raw: bytes) -> None:
    (tree / "a.bin").write_bytes(raw)
    found = answered(client, s, "a.bin")
    assert (found.outcome, found.kind, found.char_count) == ("created", "binary", 0)
    assert found.source_hash == hashlib.sha256(raw).hexdigest()
    version = client.object_get(found.object).object
    assert (version.state, version.payload["content"]) == ("present", base64.b64encode(raw).decode())
    assert (version.payload["kind"], version.payload["encoding"]) == ("binary", "base64")
    (tree / "a.bin").write_bytes(raw + b"\x00")
    assert answered(client, s, "a.bin").outcome == "updated"


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("size", [FILE_BYTES_MAX + 1, 2**43], ids=["one byte over", "8 TiB and sparse"])
def test_an_oversized_file_is_known_by_its_size_and_not_read(
    s: SyncSession, client: SyncClient, tree: Path, size: int
) -> None:
    with (tree / "large.log").open("wb") as large:
        large.truncate(size)
    found = answered(client, s, "large.log")
    assert (found.outcome, found.kind, found.source_hash, found.char_count) == ("created", "too_large", None, 0)
    payload = client.object_get(found.object).object.payload
    assert (payload["size_bytes"], payload["content"]) == (size, None)
    assert answered(client, s, "large.log").outcome == "unchanged"
    (tree / "large.log").write_text("small\n")
    assert answered(client, s, "large.log").kind == "text"


@pytest.mark.requirement("FS-7")
def test_a_file_of_the_largest_size_is_still_text(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.log").write_bytes(b"x" * FILE_BYTES_MAX)
    found = answered(client, s, "a.log")
    assert (found.kind, found.char_count) == ("text", FILE_BYTES_MAX)


@pytest.fixture
def special(tree: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """Kind of special file to the path of one."""
    monkeypatch.chdir(tree)
    os.mkfifo("fifo")
    (tree / "directory").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
        (tree / "link to fifo").symlink_to("fifo")
        found = {name: str(tree / name) for name in ("fifo", "directory", "socket", "link to fifo")}
        yield {**found, "character device": "/dev/zero", "terminal": "/dev/tty"}


SPECIAL = ("fifo", "directory", "socket", "link to fifo", "character device", "terminal")


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("kind", SPECIAL)
def test_a_special_file_is_refused_without_being_opened(
    s: SyncSession, client: SyncClient, special: dict[str, str], kind: str
) -> None:
    before = s.view()
    for cause in ("read", "edit", "check"):
        with refused("unsupported"):
            answered(client, s, special[kind], cause=cause)
    (found,) = client.within(ANSWERS_S_MAX).file_discover(s.id, [special[kind]]).objects
    assert (found.outcome, found.object) == ("ignored", None)
    assert s.view() == before
    assert not s.resolve(special[kind]).known


@pytest.mark.requirement("FS-7")
def test_a_known_file_replaced_by_a_pipe_is_orphaned(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a").write_text("text\n")
    read = s.read("a")
    (tree / "a").unlink()
    os.mkfifo(tree / "a")
    with refused("unsupported"):
        answered(client, s, "a")
    checked = answered(client, s, "a", cause="check")
    assert (checked.outcome, checked.kind) == ("orphaned", "special")
    assert client.within(ANSWERS_S_MAX).session_resume(s.id).reconciled.orphaned == (read.object,)
    assert client.object_get(read.object).object.payload["content"] == "text\n"


@pytest.mark.requirement("FS-7")
def test_a_block_device_is_refused(s: SyncSession, client: SyncClient, tree: Path) -> None:
    try:
        os.mknod(tree / "disk", stat.S_IFBLK | 0o600, os.makedev(7, 200))
    except PermissionError:
        pytest.skip("only root may make a device node")
    with refused("unsupported"):
        answered(client, s, "disk")


@pytest.mark.requirement("FS-7")
def test_a_path_that_cannot_be_followed_is_unreadable(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "loop").symlink_to("loop")
    with refused("source_unreachable"):
        answered(client, s, "loop")
    with refused("source_unreachable"):
        answered(client, s, "n" * 256)
    assert s.view().session.session_index == ()


@pytest.mark.requirement("FS-7")
def test_a_file_the_daemon_may_not_read_is_unreadable_and_keeps_its_version(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    if os.geteuid() == 0:
        pytest.skip("nothing is unreadable to root; tests/unit/sources proves it with other rights")
    (tree / "a").write_text("text\n")
    read = s.read("a")
    (tree / "a").chmod(0)
    with refused("source_unreachable"):
        answered(client, s, "a")
    checked = answered(client, s, "a", cause="check")
    assert (checked.outcome, checked.kind) == ("orphaned", "unreadable")
    assert client.object_get(read.object).object.payload["content"] == "text\n"


@pytest.mark.requirement("FS-7")
@pytest.mark.parametrize("name", ["line\nfeed", "tab\tand bell\x07", " blank ", "\u202egnp.a", "'\"\\$(x)*", "-rf"])
def test_any_name_in_utf8_is_a_files_name(s: SyncSession, client: SyncClient, tree: Path, name: str) -> None:
    (tree / name).write_text("x")
    found = answered(client, s, f"{tree}/{name}")
    assert (found.outcome, found.kind) == ("created", "text")
    version = client.object_get(found.object).object
    assert version.source is not None
    assert version.source.path == f"{tree}/{name}"
    assert shown(s, found.object) == f"{tree}/{name}"
    assert answered(client, s, f"{tree}/{name}").outcome == "unchanged"


@pytest.mark.requirement("FS-7")
def test_a_non_utf8_file_name_is_rejected_without_side_effects(s: SyncSession, client: SyncClient, tree: Path) -> None:
    raw = os.fsencode(tree) + b"/\xff\xfe.txt"
    with open(raw, "w") as file:
        file.write("x")
    (tree / "a.py").write_text("x")
    with refused("invalid_params"):
        answered(client, s, os.fsdecode(raw))
    listed = subprocess.run(["ls"], cwd=tree, capture_output=True, check=True).stdout.decode(errors="replace")
    objects = s.observe("ls", listed).objects
    assert [found.path for found in objects if found.object] == [f"{tree}/a.py"]


@pytest.mark.requirement("FS-7")
def test_unusual_files_do_not_block_the_daemon_for_others(
    s: SyncSession, client: SyncClient, tree: Path, special: dict[str, str]
) -> None:
    (tree / "a.py").write_text("x")
    for number in range(20):
        for path in special.values():
            with refused("unsupported"):
                answered(client, s, path)
        assert answered(client, s, "a.py").outcome == ("created" if number == 0 else "unchanged")
