"""The directory of the events that wait for the daemon."""

import errno
import os
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

import pytest

from ctxd.hook import event_spool
from ctxd.hook.event_spool import LOST, EventSpool


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[EventSpool]:
    made = EventSpool(str(tmp_path), os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY))
    yield made
    made.close()


@pytest.mark.requirement("HOK-5")
@pytest.mark.parametrize("written", [0, 5])
def test_an_event_that_a_full_disk_drops_is_counted_though_no_line_can_be_written(
    spool: EventSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int
) -> None:
    class Full(FileIO):
        """A file on a disk that has no block for it, or room for a part of a line."""

        def write(self, data: bytes) -> int:  # type: ignore[override]
            if not written:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(memoryview(data)[:written])

    spool.note_lost("time")
    with monkeypatch.context() as full:
        full.setattr(event_spool, "FileIO", Full)
        spool.note_lost("full")
        spool.note_lost("disk")
    spool.note_lost("damaged")
    assert spool.lost() == ["time", "disk", "disk", "damaged"]
    assert (tmp_path / LOST).read_bytes().count(b"\0") == 2
