"""Lines of a source at given places: read from there, not from the start of the file."""

import json
import random
from pathlib import Path

import pytest

from ctxd.cli.transcript import opened
from ctxd.click_support import Stop
from ctxd.transcripts import discovery, record_decoding
from ctxd.transcripts.discovery import Transcript, lines_at, lines_of, transcripts
from ctxd.transcripts.format_detection import read
from ctxd.transcripts.record_decoding import PART, WHOLE_LINE_BYTES_MAX, Line, joined_parts
from ctxd.transcripts.source_lines import open_source, source_lines, zstd

pytestmark = pytest.mark.requirement("IMP-1")


def source_of(path: Path) -> Transcript:
    (found,) = transcripts("codex", path)
    assert isinstance(found, Transcript)
    return found


def starts_of(source: Transcript) -> list[int]:
    starts = [0]
    for line in lines_of(source):
        starts.append(line.end)
    return starts[:-1]


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "zst"])
def test_the_lines_at_some_places_are_those_that_a_whole_reading_finds(tmp_path: Path, packed: bool) -> None:
    records: list[object] = [{"type": "session_meta", "payload": {"id": "t", "pad": "x" * 90_000}}]
    records += [{"type": "event_msg", "payload": {"number": number, "pad": "x" * 90_000}} for number in range(60)]
    records.insert(9, {"type": "event_msg", "payload": {"long": "word " * (WHOLE_LINE_BYTES_MAX // 4)}})
    raw = b"".join(json.dumps(record).encode() + b"\r\n" for record in records) + b"garbage\n"
    path = tmp_path / ("r.jsonl.zst" if packed else "r.jsonl")
    path.write_bytes(zstd.compress(raw) if packed else raw)
    source = source_of(path)
    every, starts = list(lines_of(source)), starts_of(source)
    parts = [place for place, line in enumerate(every) if line.record is None][:-1]
    assert len(parts) > 2
    for places in ([0], [len(every) - 1], [parts[1]], [3, 4, 40], [parts[-1], 60], [*range(len(every))]):
        found = list(lines_at(source, [starts[place] for place in reversed(places)]))
        assert [line.to_store for line in found] == [every[place].to_store for place in places]
    assert list(lines_at(source, [])) == []


def test_a_line_far_behind_is_read_without_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "r.jsonl"
    line = json.dumps({"type": "session_meta", "payload": {"id": "t", "pad": "x" * 1000}}).encode() + b"\n"
    path.write_bytes(line * 5000)
    read: list[int] = []
    lines = discovery.source_lines

    def counted(file: object, start: int = 0, early_splits: int = 0) -> object:
        for each in lines(file, start, early_splits):  # type: ignore[arg-type]
            read.append(each.end)
            yield each

    monkeypatch.setattr(discovery, "source_lines", counted)
    source = source_of(path)
    read.clear()
    (found,) = lines_at(source, [len(line) * 4998])
    assert found.end == len(line) * 4999 and len(read) == 1


LONG = json.dumps({"text": "word " * (WHOLE_LINE_BYTES_MAX // 4)}).encode() + b"\n"


@pytest.mark.requirement("IMP-6")
def test_going_back_in_a_compressed_file_is_done_once_for_all_long_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(zstd.compress(LONG * 3 + LONG[:-1]))
    with open_source(path) as file:
        backwards: list[int] = []
        seek = file.seek

        def counted(place: int, whence: int = 0) -> int:
            backwards.extend([place] if not whence and place < file.tell() else [])
            return seek(place, whence)

        monkeypatch.setattr(file, "seek", counted)
        found = list(source_lines(file))
    assert b"".join(line.source for line in found) == LONG * 3, "the last line may still be being written"
    assert len(backwards) == 1


@pytest.mark.requirement("IMP-6")
def test_the_lines_before_the_damage_in_a_compressed_file_are_read(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(
        zstd.compress(LONG * 2) + zstd.compress(random.Random(1).randbytes(4_000_000).replace(b"\n", b""))[:-9]
    )
    found = []
    with open_source(path) as file, pytest.raises((EOFError, zstd.ZstdError)):
        found.extend(iter(source_lines(file)))
    assert b"".join(line.source for line in found) == LONG * 2


@pytest.mark.requirement("IMP-6")
def test_parts_of_a_line_beyond_the_limit_stay_separate_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = [
        {"type": PART, "number": number, kind: "x" * 9} for number, kind in ((1, "latin1"), (2, "text"), (3, "text"))
    ]
    found = [Line(place, part) for place, part in enumerate([*parts, {**parts[2], "number": 4, "last": True}, {}], 1)]
    monkeypatch.setattr(record_decoding, "LINE_BYTES_MAX", 16)
    assert list(joined_parts(found)) == found


@pytest.mark.requirement("CLI-13")
def test_a_compressed_transcript_is_read_as_events(tmp_path: Path) -> None:
    record = {"type": "user", "uuid": "u", "sessionId": "s", "message": {"role": "user", "content": "hello"}}
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(zstd.compress(json.dumps(record).encode() + b"\n"))
    format, entries = read(path)
    assert format == "claude-code" and [entry.event for entry in entries][0].text == "hello"


@pytest.mark.requirement("CLI-13")
@pytest.mark.parametrize("content", [zstd.compress(b'{"type":"user"}\n' * 99)[:-9], b"no frame"], ids=["cut", "plain"])
def test_a_damaged_compressed_transcript_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(content)
    with pytest.raises(Stop, match="cannot read .*r.jsonl.zst") as stopped, opened(path) as (_, entries):
        list(entries)
    assert stopped.value.symbol == "unreadable"
