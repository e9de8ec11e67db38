"""Plans of transcripts in their own formats: which lines are in which commit, and where each chain begins."""

import tracemalloc
from collections import deque
from pathlib import Path

import msgspec
import pytest

from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.imports import transcript_plan
from ctxd.imports.plan_types import Start
from ctxd.imports.transcript_plan import TranscriptPlan
from ctxd.transcripts.discovery import lines_of, transcripts
from ctxd.transcripts.format_detection import read
from ctxd.transcripts.source_lines import SourceLine
from ctxd.transcripts.transcript_files import Skipped, candidates
from tests.unit.transcripts.test_real_transcripts import FILES, ROOT

pytestmark = pytest.mark.requirement("IMP-3")


class Planned:
    """The commits of records, each named by ``label`` of its records."""

    def __init__(self, format, records, **options):
        self.plan = TranscriptPlan(format, "here", **options)
        self.labels = {}
        self.commits = []
        self.records = list(records)
        self.end = 0
        for record in self.records:
            self.add(record)
        self.take(self.plan.flush())

    def add(self, record):
        raw = msgspec.json.encode(record) + b"\n"
        self.labels[raw] = label(record)
        self.starts = {**getattr(self, "starts", {}), self.end: label(record)}
        self.end += len(raw)
        self.take(self.plan.add(SourceLine(self.end, raw, record, raw)))

    def take(self, deltas):
        for delta in deltas:
            lines = [self.labels[line] for line in delta.lines.splitlines(keepends=True)]
            repeated = [self.starts[each.start] for each in delta.parent.repeated]
            self.commits.append((delta.parent.tip, repeated, lines, delta))

    def view(self, number):
        """The records that a context at commit ``number`` has, back to the root."""
        found = []
        while number is not None:
            number, repeated, lines, _ = self.commits[number - 1]
            found = [*repeated, *lines, *found]
        return found

    def tips(self):
        parents = {parent for parent, *_ in self.commits}
        return [number for number in range(1, len(self.commits) + 1) if number not in parents]

    def views(self):
        return ["".join(self.view(number)) for number in self.tips()]

    def deltas(self):
        return ["".join(lines) for _, _, lines, _ in self.commits]


def label(record):
    for name in ("uuid", "id", "label"):
        if isinstance(record.get(name), str):
            return record[name]
    return record.get("payload", {}).get("label", "?")


# --- Claude Code ---


def record(uuid, parent, kind="user", content="hi", **more):
    message = {"role": kind, "content": content} | ({"id": f"msg-{uuid}"} if kind == "assistant" else {})
    if kind in ("user", "assistant"):
        more["message"] = message
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "sessionId": "S", **more}


def answers(uuid, parent, **more):
    return record(uuid, parent, "assistant", [{"type": "text", "text": "yes"}], **more)


def calls(uuid, parent, call, tool="Bash", **more):
    return record(uuid, parent, "assistant", [{"type": "tool_use", "id": call, "name": tool, "input": {}}], **more)


def returns(uuid, parent, call, content="out", **more):
    return record(uuid, parent, "user", [{"type": "tool_result", "tool_use_id": call, "content": content}], **more)


def test_a_delta_ends_before_the_next_prompt():
    planned = Planned("claude-code", [record("a", None), answers("b", "a"), record("c", "b"), answers("d", "c")])
    assert planned.deltas() == ["ab", "cd"] and planned.views() == ["abcd"]


@pytest.mark.parametrize("content", ["text", [{"type": "text", "text": "out"}], None])
def test_blocks_of_one_message_and_the_results_of_parallel_calls_are_one_step(content):
    """Their parents are not the line before them: splitting them would make branches of each."""
    planned = Planned(
        "claude-code",
        [
            record("a", None), calls("b", "a", "1"), calls("c", "b", "2"), returns("d", "c", "2", content),
            returns("e", "b", "1", content), answers("f", "e"), record("g", "f"),
        ],
    )  # fmt: skip
    assert planned.views() == ["abcdefg"]


def test_a_prompt_after_an_earlier_record_begins_a_branch():
    planned = Planned(
        "claude-code",
        [
            record("a", None), answers("b", "a"), record("t", "b", "system", subtype="turn_duration"),
            record("c", "t"), answers("d", "c"), record("e", "b"), answers("f", "e"), record("g", "d"),
        ],
    )  # fmt: skip
    assert planned.views() == ["abtcdg", "abtef"] or planned.views() == ["abtef", "abtcdg"]


def test_the_lines_before_the_prompt_of_a_branch_take_memory_in_proportion_to_their_number():
    ids = [f"x{number}" for number in range(4000)]
    beside = [record(id, after, "attachment") for id, after in zip(ids, ["b", *ids], strict=False)]
    lines = [record("a", None), answers("b", "a"), record("c", "b"), answers("d", "c"), *beside]
    plan, end = TranscriptPlan("claude-code", "here"), 0
    tracemalloc.start()
    try:
        for each in lines:
            raw = msgspec.json.encode(each) + b"\n"
            end += len(raw)
            deque(plan.add(SourceLine(end, raw, each, raw)), maxlen=0)
        assert tracemalloc.get_traced_memory()[1] < 1000 * len(lines)
    finally:
        tracemalloc.stop()


def test_a_branch_within_a_delta_repeats_the_lines_up_to_it():
    planned = Planned(
        "claude-code",
        [record("a", None), calls("b", "a", "1"), returns("c", "b", "1"), answers("d", "c"), record("e", "d")],
    )
    planned.add(record("x", "c"))
    planned.take(planned.plan.flush())
    assert planned.views() == ["abcde", "abcx"]
    assert planned.commits[-1][1] == ["a", "b", "c"], "lines of a commit that holds more"


def test_lines_that_are_in_no_commit_yet_are_divided_at_a_branch():
    planned = Planned("claude-code", [record("a", None), answers("b", "a"), answers("c", "b"), record("d", "b")])
    assert planned.views() == ["abc", "abd"] and planned.deltas() == ["ab", "c", "d"]


def compaction(uuid, before, **more):
    metadata = {"trigger": "auto", "preTokens": 9, **more}
    boundary = record(f"{uuid}", None, "system", subtype="compact_boundary", content="", compactMetadata=metadata)
    return [
        boundary | ({"logicalParentUuid": before} if before else {}),
        record(uuid.upper(), uuid, content="It was fixed.", isCompactSummary=True),
    ]


def test_compactions_are_commits_of_their_boundary_and_summary():
    planned = Planned(
        "claude-code",
        [
            record("a", None), answers("b", "a"), *compaction("k", "b"), record("c", "K"), answers("d", "c"),
            *compaction("l", None), record("e", "L"),
        ],
    )  # fmt: skip
    assert planned.deltas() == ["ab", "kK", "cd", "lL", "e"] and planned.views() == ["abkKcdlLe"]
    made = [delta for *_, delta in planned.commits if delta.is_compaction]
    assert [delta.summary for delta in made] == ["It was fixed."] * 2


def test_messages_preserved_by_a_compaction_are_in_its_commit():
    planned = Planned(
        "claude-code",
        [record("a", None), answers("b", "a"), *compaction("k", "b", preservedMessages={"uuids": ["b"]})],
    )
    assert planned.commits[-1][1:3] == (["b"], ["k", "K"])


def test_sub_agents_in_the_file_are_chains_that_begin_after_their_calls():
    inline = {"isSidechain": True}
    planned = Planned(
        "claude-code",
        [
            record("a", None), calls("b", "a", "1", "Task"), record("x", None, **inline), answers("y", "x", **inline),
            returns("c", "b", "1", toolUseResult={"agentId": "k"}), answers("d", "c"),
        ],
    )  # fmt: skip
    assert sorted(planned.views()) == ["abcd", "abxy"]
    assert [delta.agent for *_, delta in planned.commits] == ["", "x", ""]
    assert planned.plan.at_spawn("k") == Start("here", 1), "the call that returned the agent's id"


def test_unknown_parents_cycles_and_lines_without_ids_follow_the_order_of_the_file():
    planned = Planned(
        "claude-code",
        [
            {"type": "summary", "summary": "title", "leafUuid": "z", "label": "s"},
            record("a", "never-written"), answers("b", "a"), record("c", "c"), answers("a", "c"), record("d", "a"),
        ],
    )  # fmt: skip
    assert sorted("".join(planned.deltas())) == sorted("sabcad"), "every line is in one commit"


@pytest.mark.parametrize(
    "records",
    [
        [record("a", None), answers("b", "a"), answers("d", "c"), record("c", "b"), record("e", "d")],
        [record("a", None), answers("c", "b"), answers("b", "a"), record("d", "c"), answers("e", "d")],
        [answers("b", "a"), record("a", None), record("c", "b"), answers("d", "c"), record("e", "d")],
        [record("a", None), answers("b", "a"), answers("e", "d"), record("d", "c"), answers("c", "b")],
    ],
    ids=["prompt", "answer", "root", "reversed"],
)
def test_a_record_that_was_written_before_its_parent_stays_in_one_chain_with_it(records):
    planned = Planned("claude-code", records)
    assert planned.views() == ["".join(map(label, records))]


def test_interleaved_writers_are_branches():
    planned = Planned(
        "claude-code",
        [
            record("a", None), answers("b", "a"), record("c", "b"), answers("d", "c"), record("x", "b"),
            answers("e", "d"), answers("y", "x"), record("f", "e"), record("z", "y"),
        ],
    )  # fmt: skip
    assert sorted(planned.views()) == ["abcdef", "abxyz"]


def test_a_second_root_is_a_chain_of_its_own():
    planned = Planned("claude-code", [record("a", None), answers("b", "a"), record("c", None), answers("d", "c")])
    assert planned.views() == ["ab", "cd"]

    planned = Planned("claude-code", [{"type": "permission-mode", "label": "p"}, record("a", None), answers("b", "a")])
    assert planned.views() == ["pab"]


def test_a_line_that_is_there_twice_is_in_one_commit():
    records = [record("a", None), answers("b", "a"), record("c", "b"), answers("d", "c")]
    planned = Planned("claude-code", [*records, records[3], *records, record("e", "d")])
    assert planned.views() == ["abcde"] and planned.plan.copied == 5
    # Another version has kept both.
    planned = Planned("claude-code", [])
    planned.plan.keeps_cuts = True
    for each in [*records, records[3]]:
        planned.add(each)
    planned.take(planned.plan.flush())
    assert planned.views() == ["abcdd"]


def test_a_root_after_records_beside_the_conversation_restarts_it():
    planned = Planned("pi", [HEADER, entry("a", None), entry("b", "a", "assistant"), entry("c", "b"),
                             {"type": "model_change", "id": "m", "parentId": "b"}, entry("d", None)])  # fmt: skip
    assert planned.views()[-1] == "d"


def test_a_chain_without_times_is_as_old_as_the_newest_event_before_it():
    times = {"timestamp": "2026-01-02T03:04:05Z"}
    planned = Planned(
        "claude-code", [record("a", None, **times), answers("b", "a"), record("c", None), answers("d", "c")]
    )
    assert [delta.at for *_, delta in planned.commits] == [1_767_323_045_000] * 2


# --- codex ---


def item(label, **payload):
    return {"timestamp": "2026-01-01T00:00:00Z", "type": "response_item", "payload": {"label": label, **payload}}


def says(label, role="user", text="do it"):
    return item(label, type="message", role=role, content=[{"type": "input_text", "text": text}])


def rollback(label, turns):
    return {"type": "event_msg", "payload": {"label": label, "type": "thread_rolled_back", "num_turns": turns}}


META = {"type": "session_meta", "payload": {"label": "m", "id": "T"}}


def compacted(label, **more):
    return {"type": "compacted", "payload": {"label": label, "message": "summary", **more}}


def turn(prompt, answer):
    return [says(prompt), says(answer, "assistant", "done")]


def test_a_rollback_continues_from_before_the_undone_turns():
    planned = Planned(
        "codex", [META, *turn("a", "b"), *turn("c", "d"), *turn("e", "f"), rollback("r", 2), *turn("g", "h")]
    )
    assert planned.views() == ["mabcdef", "mabrgh"]


@pytest.mark.parametrize(
    "record",
    [
        {"type": "inter_agent_communication", "label": "x", "payload": {"author": "/root/a", "content": "go"}},
        item("x", type="agent_message", author="/root/a", content=[{"type": "input_text", "text": "go"}]),
    ],
    ids=["record", "item"],
)
def test_a_rollback_counts_messages_of_other_agents_as_turns(record):
    again = {**record, "label": "y"} if "label" in record else item("y", type="agent_message", author="/root/a")
    planned = Planned(
        "codex", [META, *turn("a", "b"), record, says("c", "assistant"), rollback("r", 1), *turn("g", "h")]
    )
    assert planned.views() == ["mabxc", "mabrgh"]
    planned = Planned("codex", [META, record, again, says("a"), rollback("r", 1), says("g")])
    assert planned.views() == ["mxya", "mxyrg"]
    planned = Planned("codex", [META, record, *turn("a", "b"), rollback("r", 9), says("g")])
    assert planned.views() == ["mxab", "mrg"], "lines before the first turn stay"


def test_a_compaction_repeats_no_message_of_another_agent_beside_the_prompts():
    record = {"type": "inter_agent_communication", "label": "x", "payload": {"content": "go"}}
    planned = Planned("codex", [META, *turn("a", "b"), record, says("c", "assistant"), compacted("k"), *turn("e", "f")])
    assert planned.views() == ["mabxcakef"]


def test_a_rollback_across_a_compaction_restores_the_earlier_context():
    planned = Planned(
        "codex",
        [
            META, *turn("a", "b"), *turn("c", "d"), compacted("k"), *turn("e", "f"), rollback("r", 2),
            *turn("g", "h"),
        ],
    )  # fmt: skip
    assert planned.views() == ["mabcdackef", "mabrgh"], "beside a summary alone stand the prompts"


def test_a_rollback_of_everything_keeps_the_records_before_the_first_turn():
    planned = Planned("codex", [META, *turn("a", "b"), rollback("r", 9), *turn("c", "d")])
    assert planned.views() == ["mab", "mrcd"]


@pytest.mark.parametrize("more", [{}, {"replacement_history": [{"type": "message"}]}])
def test_codex_compactions_are_commits_of_their_own(more):
    planned = Planned("codex", [META, *turn("a", "b"), compacted("k", **more), *turn("c", "d")])
    assert planned.deltas() == ["m", "ab", "k", "cd"]
    assert [delta.is_compaction for *_, delta in planned.commits] == [False, False, True, False]


def test_wrapped_texts_and_unknown_types_begin_no_turn():
    planned = Planned(
        "codex",
        [
            META,
            says("e", text="<environment_context>x</environment_context>"),
            *turn("a", "b"),
            {"type": "world_state", "label": "w"},
        ],
    )
    assert planned.deltas() == ["me", "abw"] and planned.plan.counts["opaque"] == 1


def test_a_fork_by_byte_continues_from_that_offset():
    planned = Planned("codex", [META, *turn("a", "b"), *turn("c", "d")])
    ends = [0]
    for each in planned.records:
        ends.append(ends[-1] + len(msgspec.json.encode(each)) + 1)
    there, is_line_end = planned.plan.at_byte(ends[3])
    assert (there.tip, there.repeated, is_line_end) == (2, (), True)
    within, is_line_end = planned.plan.at_byte(ends[4])
    assert is_line_end and not planned.plan.at_byte(ends[4] - 1)[1]
    assert within.tip == 2 and [planned.starts[each.start] for each in within.repeated] == ["c"]


# --- pi ---


def entry(id, parent, role="user", **more):
    return {"type": "message", "id": id, "parentId": parent, "message": {"role": role, "content": "x"}, **more}


HEADER = {"type": "session", "version": 3, "id": "h", "cwd": "/"}


def test_pi_trees_are_branches_exactly():
    planned = Planned(
        "pi",
        [
            HEADER, entry("a", None), entry("b", "a", "assistant"), entry("c", "b"), entry("d", "c", "assistant"),
            {"type": "branch_summary", "id": "e", "parentId": "b", "fromId": "d", "summary": "left"},
            entry("f", "e"), {"type": "label", "id": "l", "parentId": "f", "targetId": "a", "label": "x"},
        ],
    )  # fmt: skip
    assert planned.views() == ["habcd", "habefl"]


def test_two_roots_of_pi_are_two_chains_and_orphans_are_roots():
    planned = Planned("pi", [HEADER, entry("a", None), entry("b", None), entry("c", "gone")])
    assert planned.views() == ["ha", "b", "c"]


def test_the_first_version_of_pi_is_one_chain():
    header = {"type": "session", "id": "h", "cwd": "/"}
    records = [{"type": "message", "label": each, "message": {"role": "user", "content": "x"}} for each in "abc"]
    assert Planned("pi", [header, *records]).views() == ["habc"]


@pytest.mark.parametrize(("first", "kept"), [("c", ["c", "d"]), ("k", []), ("gone", [])])
def test_a_compaction_of_pi_keeps_the_entries_that_it_names(first, kept):
    compaction = {"type": "compaction", "id": "k", "parentId": "d", "summary": "s", "firstKeptEntryId": first}
    planned = Planned(
        "pi",
        [
            HEADER, entry("a", None), entry("b", "a", "assistant"), entry("c", "b"), entry("d", "c", "assistant"),
            compaction, entry("e", "k"),
        ],
    )  # fmt: skip
    assert planned.deltas() == ["hab", "cd", "k", "e"] and planned.commits[2][1] == kept


@pytest.mark.parametrize("replacement", [None, {"content": "y"}])
def test_edits_summaries_and_hidden_entries_are_kept(replacement):
    edit = {"type": "context_edit", "id": "b", "parentId": "a", "targetId": "a", "replacement": replacement}
    custom = {"type": "custom", "id": "c", "parentId": "b", "customType": "x", "data": 1}
    shown = {"type": "custom_message", "id": "d", "parentId": "c", "customType": "x", "content": "y", "display": True}
    bash = entry("e", "d", "bashExecution", excludeFromContext=True)
    planned = Planned("pi", [HEADER, entry("a", None), edit, custom, shown, bash])
    assert planned.views() == ["habcde"]


# --- all ---


@pytest.mark.requirement("IMP-1")
def test_a_commit_is_as_old_as_its_own_lines_if_later_ones_are_in_another_chain():
    def at(hour):
        return f"2026-05-01T{hour:02}:00:00.000Z"

    planned = Planned(
        "claude-code",
        [
            record("a", None, timestamp=at(8)),
            record("b", "a", "assistant", timestamp=at(9)),
            record("n", "b", content="<task-notification>\ndone", timestamp=at(18)),
            record("c", "n", "assistant", timestamp=at(19)),
            record("d", "b", timestamp=at(20)),
            record("e", "d", "assistant", timestamp=at(21)),
        ],
    )
    hours = {"".join(lines): (delta.at or 0) // 3_600_000 % 24 for _, _, lines, delta in planned.commits}
    assert hours == {"ab": 9, "nc": 19, "de": 21}


def test_long_records_before_the_first_message_are_in_its_commit(monkeypatch):
    monkeypatch.setattr(transcript_plan, "DELTA_BYTES", 1000)
    settings = {"type": "file-history-snapshot", "label": "s", "snapshot": "x" * 2000}
    planned = Planned("claude-code", [settings, record("a", None, timestamp="2026-05-01T08:00:00.000Z")])
    assert planned.deltas() == ["sa"] and planned.commits[0][3].at is not None


def test_a_long_turn_is_cut_and_the_lines_of_many_chains_are_bounded(monkeypatch):
    monkeypatch.setattr(transcript_plan, "DELTA_BYTES", 4000)
    monkeypatch.setattr(transcript_plan, "_PENDING_BYTES_MAX", 9000)
    records = [record("a", None), *(answers(f"b{n}", "a", pad="x" * 900) for n in range(9))]
    planned = Planned("claude-code", records)
    assert len(planned.commits) == 3 and len(planned.view(3)) == 10
    agents = [record(f"c{n}", None, isSidechain=True, agentId=f"k{n}", pad="x" * 900) for n in range(30)]
    planned = Planned("claude-code", agents)
    assert planned.plan._pending == 0 and max(len(lines) for _, _, lines, _ in planned.commits) == 1


@pytest.mark.skipif(not FILES, reason=f"no transcripts below {ROOT}: set CTXD_TRANSCRIPTS")
@pytest.mark.requirement("IMP-1")
@pytest.mark.parametrize("path", [path for path in FILES if path.suffix != ".db"], ids=lambda path: path.name)
def test_every_real_transcript_is_planned_whole(path: Path):
    """Every line is in one delta, and a reader of the deltas finds the events that a reader of the file finds."""
    harness = {"claude-stream-json": "claude", "claude-code": "claude", "codex-exec-json": "codex"}
    format, entries = read(path)
    (source,) = transcripts(harness.get(format, format.split("-")[0]), path)
    assert not isinstance(source, Skipped)
    if format == "codex-events":
        source = source._replace(format=format)  # As chosen at its first import.
    plan = TranscriptPlan(source.format, source.path)
    deltas = []
    for line in lines_of(source):
        deltas += plan.add(line)
    deltas += plan.flush()
    kept = [line for delta in deltas for line in delta.lines.splitlines(keepends=True)]
    assert sorted(kept) == sorted(line.to_store for line in lines_of(source) if line.to_store)
    before = [str(entry.event.__struct_config__.tag) for entry in entries]
    known = DELTA_FORMATS[f"{source.format}-v1"]
    after = [str(event.__struct_config__.tag) for delta in deltas for event in known.events([delta.lines])]
    assert sorted(before) == sorted(after)
    assert plan.counts == {kind: after.count(kind) for kind in after}


@pytest.mark.requirement("IMP-1")
def test_only_regular_files_that_may_be_transcripts_are_candidates(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    for name in ("a/x.jsonl", "a/notes.txt", "a/y.jsonl.zst", "a/x.jsonl.zst"):
        (tmp_path / name).touch()
    found = list(candidates("codex", tmp_path))
    assert found == [
        tmp_path / "a/x.jsonl",
        Skipped(str(tmp_path / "a/x.jsonl.zst"), "the same rollout is there uncompressed"),
        tmp_path / "a/y.jsonl.zst",
    ]


def test_lines_that_were_reserved_before_they_are_added_are_planned_alike():
    def record(id, parent, kind="user", **more):
        return {
            "type": kind, "uuid": id, "parentUuid": parent, "message": {"role": kind, "content": f"text {id}"}, **more
        }  # fmt: skip

    beside = {"type": "system", "subtype": "informational", "uuid": "s", "parentUuid": "b", "content": "x"}
    records = [
        record("a", None), record("b", "a", "assistant"), record("c", "b"), record("d", "c", "assistant"),
        beside, record("e", "s"), record("f", "e", "assistant"),
    ]  # fmt: skip
    lines, end = [], 0
    for each in records:
        raw = msgspec.json.encode(each) + b"\n"
        end += len(raw)
        lines.append(SourceLine(end, raw, each, raw))
    plans = []
    for is_reserved in (False, True):
        plan = TranscriptPlan("claude-code", "here")
        places = [plan.reserve(line) if is_reserved else None for line in lines]
        made = [delta for line, place in zip(lines, places, strict=True) for delta in plan.add(line, place)]
        plans.append([*made, *plan.flush()])
    assert plans[0] == plans[1] and len(plans[0]) == 3
