"""Real transcripts with damage of every kind: no line is lost, no reader fails, and every event can be stored."""

import json
import random
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from ctxd.formats.delta_formats import DELTA_FORMATS, count
from ctxd.formats.harness_session import NewSession, written
from ctxd.formats.losses import Losses
from ctxd.imports.copy_detection import fingerprint
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import lines_of, transcripts
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.record_decoding import id_of
from ctxd.transcripts.session_metadata import SessionFacts
from ctxd.transcripts.transcript_files import Skipped, is_of_source, source_reason
from ctxd_protocol.event_types import Event
from ctxd_protocol.limits import SAFE_INTEGER_MAX
from tests.unit.transcripts.test_real_transcripts import FILES, ROOT

SAMPLES = [path for path in FILES if path.suffix == ".jsonl" and path.stat().st_size < 300_000]
NEW = NewSession("01999999-0000-7000-8000-000000000001", "/work", 1_793_527_200_000, ("scripted", "model"))

pytestmark = [
    pytest.mark.requirement("IMP-6"),
    pytest.mark.skipif(not SAMPLES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS"),
]

ODD: list[Any] = [
    None, True, 0, -1, 1e308, 2**60, -(2**70), "", "\0", "x" * 3000, [], {}, [[]], [None, {"type": 5}], {"": None},
    "1960-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "0001-01-01T00:00:00+14:00", "soon", -(10**12), "data:;base64,x",
]  # fmt: skip
LINES = [
    b"garbage", b"[1]", b"null", b"{}", b"\0", b"\xff\xfe", b"{", b" \t", b"\xef\xbb\xbf{}", b"[" * 5000,
    b'{"type": "news", "x": [1]}', b'{"type":"user","message":{"content":"\\ud83d"}}',
    b'{"type":"user","type":"assistant"}', b'{"' + b"x" * 70_000 + b'": 1}',
]  # fmt: skip


def torn(lines: list[bytes], random: random.Random) -> None:
    at = random.randrange(len(lines))
    lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]


def repeated(lines: list[bytes], random: random.Random) -> None:
    lines.insert(random.randrange(len(lines)), random.choice(lines))


def reordered(lines: list[bytes], random: random.Random) -> None:
    random.shuffle(lines)


def beheaded(lines: list[bytes], random: random.Random) -> None:
    del lines[: random.randrange(len(lines))]


def with_carriage_returns(lines: list[bytes], random: random.Random) -> None:
    lines[:] = [line + b"\r" for line in lines]
    lines[0] = b"\xef\xbb\xbf" + lines[0]


def with_other_lines(lines: list[bytes], random: random.Random) -> None:
    lines.insert(random.randrange(len(lines)), random.choice(LINES))


def with_lines_of_another(lines: list[bytes], random: random.Random) -> None:
    at = random.randrange(len(lines))
    lines[at:at] = random.choice(SAMPLES).read_bytes().split(b"\n")[:4]


def with_broken_characters(lines: list[bytes], random: random.Random) -> None:
    at = random.randrange(len(lines))
    place = random.randrange(len(lines[at]) + 1)
    piece = random.choice([b"\xff", b"\0", b"\xed\xa0\x80", b"\\ud800", b'"', b"}"])
    lines[at] = lines[at][:place] + piece + lines[at][place:]


def with_odd_values(lines: list[bytes], random: random.Random) -> None:
    """Members that are removed, of another type, or ids of other records: parents that are missing or go in circles."""
    records = [record for line in lines if isinstance(record := decoded(line), dict)]
    ids = [id for each in records for name in ("uuid", "id") if isinstance(id := each.get(name), str)] or ["x"]
    for _ in range(3):
        at = random.randrange(len(lines))
        value = found = decoded(lines[at])
        while isinstance(found, dict | list) and found:
            key: Any = random.choice([*found]) if isinstance(found, dict) else random.randrange(len(found))
            if random.random() < 0.5 and found[key]:
                found = found[key]  # type: ignore[call-overload]
                continue
            if random.random() < 0.3 and isinstance(found, dict):
                del found[key]
            else:
                found[key] = deepcopy(random.choice([random.choice(ODD), random.choice(ids)]))  # type: ignore[call-overload]
            lines[at] = json.dumps(value).encode()
            break


def decoded(line: bytes) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


DAMAGE: list[Callable[[list[bytes], random.Random], None]] = [
    torn, repeated, reordered, beheaded, with_carriage_returns, with_other_lines, with_lines_of_another,
    with_broken_characters, with_odd_values, with_odd_values, with_odd_values,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_no_damage_loses_a_line_or_ends_a_reader(seed: int, tmp_path: Path) -> None:
    chosen = random.Random(seed)
    for number in range(120):
        path = chosen.choice(SAMPLES)
        lines = path.read_bytes().split(b"\n")
        for _ in range(chosen.choice([1, 2, 4])):
            chosen.choice(DAMAGE)(lines, chosen)
        (folder := tmp_path / str(number)).mkdir()
        damaged = folder / path.name
        damaged.write_bytes(b"\n".join(lines))
        harness = path.relative_to(ROOT).parts[0].split("-")[0]
        assert harness in get_args(HarnessCommand)
        check(damaged, harness)  # type: ignore[arg-type]


def check(path: Path, harness: HarnessCommand) -> None:
    (source,) = transcripts(harness, path)
    if isinstance(source, Skipped):
        assert source.reason
        return
    plan, facts = TranscriptPlan(source.format, source.path), SessionFacts(source.format)
    kept, starts, deltas, repeats = [], {0}, [], 0
    seen = set[bytes]()
    for line in lines_of(source):
        starts.add(line.end)
        if id_of(line.record or {}) is not None and line.to_store in seen:
            repeats += 1
        elif line.to_store:
            kept.append(line.to_store)
            seen.add(line.to_store)
        if line.record is not None:
            facts.add(line.record)
            fingerprint(line.record)
        deltas += plan.add(line)
    deltas += plan.flush()
    whole = [line for line in path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")[:-1] if line.strip()]
    assert len(whole) <= len(kept) + repeats <= len(whole) + 1
    assert sorted(kept) == sorted(line for delta in deltas for line in delta.lines.splitlines(keepends=True))
    assert within_safe_integers(facts.recorded().permissions)
    for delta in deltas:
        assert delta.parent.tip is None or delta.parent.tip < delta.number
        assert starts >= {each.start for each in delta.parent.repeated}
        count(f"{source.format}-v1", delta.lines)
    events = list(DELTA_FORMATS[f"{source.format}-v1"].events(delta.lines for delta in deltas))
    for event in events:
        assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event
    for other in get_args(HarnessCommand):
        written(events, other, NEW, own=other == harness, losses=Losses())


def within_safe_integers(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(within_safe_integers, value.values()))
    if isinstance(value, list):
        return all(map(within_safe_integers, value))
    return not isinstance(value, int) or abs(value) <= SAFE_INTEGER_MAX


def test_a_source_that_exhausts_the_stack_is_skipped_with_a_reason() -> None:
    assert is_of_source(RecursionError("maximum recursion depth exceeded"))
    assert source_reason(RecursionError("maximum recursion depth exceeded")) == "nested too deeply"
