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


def _frame(size: int = 10) -> bytes:
    return b"{" + b" " * (size - 3) + b"}\n"


@pytest.mark.requirement("HOK-5")
def test_an_event_is_added_without_a_look_at_those_that_wait(
    spool: EventSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert spool.add(f"{1:020}-1", _frame()) == ""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the waiting events are listed")

    with monkeypatch.context() as counted:
        counted.setattr(os, "listdir", refuse)
        counted.setattr(os, "scandir", refuse)
        for number in range(2, 6):
            assert spool.after_waiting(f"{number:020}-1") == f"{number:020}-1"
            assert spool.add(f"{number:020}-1", _frame()) == ""
    assert len(spool.names()) == 5


@pytest.mark.requirement("HOK-5")
@pytest.mark.parametrize("limit", ["number", "bytes"])
def test_the_bounds_hold_and_an_erased_event_makes_room(
    spool: EventSpool, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    if limit == "number":
        monkeypatch.setattr(event_spool, "WAITING_MAX", 3)
    else:
        monkeypatch.setattr(event_spool, "WAITING_BYTES_MAX", 30)
    assert [spool.add(f"{number:020}-1", _frame()) for number in range(5)] == ["", "", "", "full", "full"]
    spool.erase(spool.names()[0])
    assert [spool.add(f"{number:020}-1", _frame()) for number in range(5, 7)] == ["", "full"]


@pytest.mark.requirement("HOK-5")
@pytest.mark.parametrize("usage", [b"", b"damaged", b"1 2 3\n", b"9" * 60 + b" 1 1 1 1\n", None])
def test_events_are_counted_if_the_estimate_is_missing_or_damaged(
    spool: EventSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, usage: bytes | None
) -> None:
    monkeypatch.setattr(event_spool, "WAITING_MAX", 3)
    for number in range(3):
        spool.add(f"{number:020}-1", _frame())
    (tmp_path / event_spool.USAGE).unlink()
    if usage is not None:
        (tmp_path / event_spool.USAGE).write_bytes(usage)
    assert spool.after_waiting(f"{1:020}-1") == f"{1:020}-1"
    assert spool.add(f"{3:020}-1", _frame()) == "full"
    spool.erase(spool.names()[0])
    assert spool.add(f"{4:020}-1", _frame()) == ""


@pytest.mark.requirement("HOK-5")
def test_an_estimate_that_is_too_high_is_corrected_before_an_event_is_dropped(
    spool: EventSpool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that is killed before it has stored its event leaves too much in it."""
    monkeypatch.setattr(event_spool, "WAITING_MAX", 3)
    monkeypatch.setattr(event_spool, "COUNTED_S", 0.0)
    for number in range(3):
        spool._reserve(f"{number:020}-1", 10)
    assert spool.add(f"{3:020}-1", _frame()) == ""


@pytest.mark.requirement("HOK-5")
def test_an_estimate_that_is_too_low_is_corrected_after_some_additions(
    spool: EventSpool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_spool, "WAITING_MAX", 12)
    monkeypatch.setattr(event_spool, "COUNTED_ADDITIONS", 4)
    for number in range(10):
        spool.add(f"{number:020}-1", _frame())
    (tmp_path / event_spool.USAGE).write_bytes(b"0 0 0 0 0\n".ljust(105))
    found = [spool.add(f"{number:020}-1", _frame()) for number in range(10, 30)]
    assert found.count("") <= 4 and found[4:] == ["full"] * 16


@pytest.mark.requirement("HOK-3")
def test_an_event_after_the_clock_was_set_back_is_behind_those_that_wait(spool: EventSpool) -> None:
    late, early = 10**18, 10**17
    spool.add(f"{late:020}-1", _frame())
    name = spool.after_waiting(f"{early:020}-2")
    assert name == f"{late + 1:020}-2"
    spool.add(name, _frame())
    for each in spool.names():
        spool.erase(each)
    assert spool.after_waiting(f"{early:020}-3") == f"{early:020}-3"
