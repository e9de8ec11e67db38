"""``ctx artifact``, against a real daemon."""

import json
import os
import random

import pytest
from blake3 import blake3

from ctxd_client import connect_sync

LARGE = random.Random(5).randbytes(9_000_000)


@pytest.fixture
def socket(running, monkeypatch, clean):
    monkeypatch.setenv("CTXD_SOCKET", running.socket)
    return running.socket


@pytest.mark.requirement("ART-10")
@pytest.mark.parametrize("data", [b"", b"\0 small", LARGE], ids=["empty", "small", "large"])
def test_a_file_is_put_and_got_back_byte_for_byte(real, socket, tmp_path, data):
    (tmp_path / "in").write_bytes(data)
    put = real("artifact", "put", str(tmp_path / "in"), "--tag", "t/one", "--media-type", "text/x")
    ref = blake3(data).hexdigest()
    assert (put.code, put.out) == (0, f"{ref}\n")
    assert real("artifact", "get", "tag:t/one", "-o", str(tmp_path / "out")).code == 0
    assert (tmp_path / "out").read_bytes() == data
    shown = real("artifact", "stat", ref[:20])
    assert shown.code == 0 and f"{len(data):,} bytes" in shown.out and "t/one" in shown.out
    assert json.loads(real("artifact", "stat", ref, "--json").out)["tags"] == ["t/one"]
    assert ref in real("artifact", "ls", "-q").out and ref[:12] in real("artifact", "ls").out
    missing = real("artifact", "get", "0123456789", "-o", str(tmp_path / "none"))
    assert missing.code == 3 and "ctx artifact ls" in missing.err and not (tmp_path / "none").exists()


@pytest.mark.requirement("ART-10")
def test_a_file_is_got_into_a_pipe_that_only_a_descriptor_names(real, socket, tmp_path):
    (tmp_path / "in").write_bytes(b"small")
    ref = real("artifact", "put", str(tmp_path / "in")).out.strip()
    reader, writer = os.pipe()
    try:
        # As in ctx artifact get … -o >(gzip).
        got = real("artifact", "get", ref, "-o", f"/dev/fd/{writer}")
        assert got.code == 0, got.err
        assert os.read(reader, 100) == b"small"
    finally:
        os.close(reader)
        os.close(writer)
    (tmp_path / "link").symlink_to("link")
    assert real("artifact", "get", ref, "-o", str(tmp_path / "link")).code == 0
    assert (tmp_path / "link").read_bytes() == b"small"


@pytest.mark.requirement("ART-10")
def test_an_interrupted_upload_sends_only_the_missing_bytes(real, socket, tmp_path):
    file = tmp_path / "in"
    file.write_bytes(LARGE)
    found = file.stat()
    name = f"ctx-{found.st_dev:x}-{found.st_ino:x}-{found.st_size:x}-{found.st_mtime_ns:x}"
    with connect_sync(socket) as client:
        client.artifact_upload(name, offset=0, data=LARGE[:3_000_000])
    put = real("artifact", "put", str(file))
    assert put.out.strip() == blake3(LARGE).hexdigest() and "resuming the upload at 3,000,000 of 9,000,000" in put.err


@pytest.mark.requirement("ART-10")
def test_tags_move_as_expected_and_a_collection_and_a_check_report(real, socket, tmp_path):
    (tmp_path / "a").write_bytes(b"first of two")
    (tmp_path / "b").write_bytes(b"second of two")
    one, two = (real("artifact", "put", str(tmp_path / name)).out.strip() for name in "ab")
    assert real("artifact", "tag", "moving", one, "--expect", "").code == 0
    moved = real("artifact", "tag", "moving", two, "--expect", two)
    assert moved.code == 4 and one in moved.err
    assert (
        real("artifact", "tag", "moving", two, "--expect", one).out == f"moving names {two[:12]}, before {one[:12]}\n"
    )
    dry = real("artifact", "gc", "--dry-run", "--grace", "0", "--json")
    assert one in json.loads(dry.out)["removed"] and two not in json.loads(dry.out)["removed"]
    done = real("artifact", "gc", "--grace", "0")
    assert one in done.out.split() and "removed" in done.err
    checked = real("artifact", "fsck", "--json")
    assert checked.code == 0 and json.loads(checked.out)["damaged"] == [] and json.loads(checked.out)["checked"] >= 1
    assert real("artifact", "tag", "moving", "-d").code == 0
    assert real("artifact", "tag", "moving").code == 2
