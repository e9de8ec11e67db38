"""Lines of a source at given places: read from there, not from the start of the file."""

import json
from pathlib import Path

import pytest

from ctxd.transcripts import discovery
from ctxd.transcripts.discovery import Transcript, lines_at, lines_of, transcripts
from ctxd.transcripts.source_lines import LINE_BYTES_MAX, zstd

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
    records.insert(9, {"type": "event_msg", "payload": {"long": "word " * (LINE_BYTES_MAX // 4)}})
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

    def counted(file: object, start: int = 0) -> object:
        for each in lines(file, start):  # type: ignore[arg-type]
            read.append(each.end)
            yield each

    monkeypatch.setattr(discovery, "source_lines", counted)
    source = source_of(path)
    read.clear()
    (found,) = lines_at(source, [len(line) * 4998])
    assert found.end == len(line) * 4999 and len(read) == 1
