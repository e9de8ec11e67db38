"""The file that remembers the journal's end: two slots, written in turns, each in a sector of its own."""

import struct
import zlib
from pathlib import Path

import pytest

from ctxd.store.head_witness import Head, WitnessFile

SECTOR = 512


def record(head: Head) -> bytes:
    packed = b"ctxdhd1\0" + struct.pack(">Q", head.seq) + head.chain
    return packed + struct.pack(">I", zlib.crc32(packed))


def written(path: Path, *heads: Head) -> bytes:
    file = WitnessFile(path)
    file.read()
    for head in heads:
        file.write(head, sync=False)
    file.close()
    return path.read_bytes()


HEADS = [Head(number, bytes([number]) * 32) for number in range(1, 5)]


@pytest.mark.requirement("DUR-8")
def test_heads_are_written_in_turns_to_sectors_of_their_own(tmp_path: Path) -> None:
    size = len(record(HEADS[0]))
    data = written(tmp_path / "head", *HEADS[:3])
    assert [data[at : at + size] for at in (0, SECTOR)] == [record(HEADS[2]), record(HEADS[1])]
    assert set(data[size:SECTOR]) <= {0} and len(data) == SECTOR + size


@pytest.mark.requirement("DUR-8")
@pytest.mark.parametrize("last", [2, 3])
def test_a_write_replaces_the_older_record_also_after_a_restart(tmp_path: Path, last: int) -> None:
    path = tmp_path / "head"
    written(path, *HEADS[:last])
    written(path, HEADS[last])
    data = bytearray(path.read_bytes())
    assert WitnessFile(path).read() == HEADS[last]
    # The newest record is torn: the one before it is still there.
    newest = data.index(record(HEADS[last]))
    data[newest + 20] ^= 1
    path.write_bytes(data)
    file = WitnessFile(path)
    assert file.read() == HEADS[last - 1]
    assert file.complaints == (f"record {newest // SECTOR} in {path} does not match its check sum",)


@pytest.mark.requirement("DUR-8")
def test_a_file_without_a_record_or_no_file_is_a_complaint(tmp_path: Path) -> None:
    file = WitnessFile(tmp_path / "head")
    assert file.read() is None and "is missing" in file.complaints[0]
    (tmp_path / "head").write_bytes(b"")
    assert file.read() is None and "holds no record" in file.complaints[0]
    written(tmp_path / "head", HEADS[0])
    assert file.read() == HEADS[0] and file.complaints == (), "a slot that was never written is no damage"
