"""Comparison of a source with its origin: which lines are copies, and what it costs."""

import time
import tracemalloc
from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from ctxd.imports.copy_detection import CopyDetector
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import Transcript, lines_of, transcripts
from ctxd.transcripts.transcript_files import Skipped

pytestmark = pytest.mark.requirement("IMP-4")

CPU_S_MAX = 3
"""Processor time for two runs of 4,000 lines each; without an index of the lines it is over 10 s."""

BYTES_PER_LINE_MAX = 300


def run(path: Path, texts: Sequence[str]) -> Transcript:
    """A run of ``codex exec --json`` of one session; its lines have no ids."""
    items = [{"type": "item.completed", "item": {"type": "agent_message", "text": text}} for text in texts]
    lines = [{"type": "thread.started", "thread_id": "s"}, *items]
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (source,) = transcripts("codex", path)
    assert not isinstance(source, Skipped)
    return source


def planned(source: Transcript) -> TranscriptPlan:
    plan = TranscriptPlan(source.format, source.path)
    for line in lines_of(source):
        list(plan.add(line))
    list(plan.flush())
    return plan


def copied(source: Transcript, copies: CopyDetector) -> dict[int, int]:
    """The places of the lines of ``source`` that are copies, each with the place in its origin."""
    plan = TranscriptPlan(source.format, source.path)
    for line in lines_of(source):
        list(copies.taken(plan, line))
    list(copies.rest(plan))
    return {here: there for here, (_, there) in plan.outside.items()}


@pytest.mark.parametrize(
    ("texts", "places"),
    [
        ("abab", {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}),
        ("bab", {0: 0, 1: 2, 2: 3, 3: 4}),
        ("aab", {0: 0, 1: 1, 2: 3, 3: 4}),
        ("ca", {0: 0, 2: 1}),
        ("aabb", {0: 0, 1: 1, 2: 3, 3: 4, 4: 4}),
    ],
)
def test_a_line_without_an_id_is_a_copy_of_the_next_equal_line_after_the_copies_before_it(
    tmp_path: Path, texts: str, places: dict[int, int]
) -> None:
    origin, source = run(tmp_path / "origin.jsonl", "abab"), run(tmp_path / "copy.jsonl", texts)
    assert copied(source, CopyDetector(source, (origin, planned(origin)))) == places


def test_a_line_that_only_the_copy_has_and_that_equals_a_later_one_makes_no_others_its_own(tmp_path: Path) -> None:
    origin, source = run(tmp_path / "origin.jsonl", "xaxbxcxd"), run(tmp_path / "copy.jsonl", "xaxbxxcxd")
    places = copied(source, CopyDetector(source, (origin, planned(origin))))
    assert places == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 5, 6: 7, 7: 7, 9: 8}


def test_a_line_that_the_copy_left_out_long_before_is_its_own_later(tmp_path: Path) -> None:
    texts = ["again", *(f"text {n}" for n in range(100))]
    origin = run(tmp_path / "origin.jsonl", texts)
    source = run(tmp_path / "copy.jsonl", [*texts[1:], "again"])
    places = copied(source, CopyDetector(source, (origin, planned(origin))))
    assert len(places) == 101 and 101 not in places


def test_the_comparison_of_lines_without_ids_takes_time_in_proportion_to_them(tmp_path: Path) -> None:
    origin = run(tmp_path / "origin.jsonl", [f"first {n}" for n in range(4000)])
    source = run(tmp_path / "later.jsonl", [f"second {n}" for n in range(4000)])
    copies = CopyDetector(source, (origin, planned(origin)))
    began = time.process_time()
    assert copied(source, copies) == {0: 0}
    assert time.process_time() - began < CPU_S_MAX


def test_the_lines_of_the_origin_without_ids_are_not_kept_in_memory(tmp_path: Path) -> None:
    origin = run(tmp_path / "origin.jsonl", [f"{n} " + "word " * 200 for n in range(2000)])
    source = run(tmp_path / "later.jsonl", ["only line"])
    copies = CopyDetector(source, (origin, planned(origin)))
    tracemalloc.start()
    try:
        assert copied(source, copies) == {0: 0}
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2000 * BYTES_PER_LINE_MAX
