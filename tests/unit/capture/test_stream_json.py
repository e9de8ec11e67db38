"""Headless output of Claude Code in both shapes: the events of each line, and nothing lost."""

import json
from decimal import ROUND_HALF_EVEN, Decimal

import cbor2
import pytest

from ctxd.capture.stream_json import StreamParser
from ctxd.formats.cbor_array import items
from ctxd.formats.events_v1 import item_of
from ctxd_protocol.event_types import (
    CompactionEvent,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)
from tests.unit.transcripts.test_real_transcripts import FILES, name

AT = 1735689600000
STREAMS = [path for path in FILES if "claude-stream-json" in path.parts]


def parsed(*lines, parser=None):
    parser = parser or StreamParser()
    raw = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
    return [*(event for line in raw for event in parser.events(line, AT)), *parser.end()]


def one(line):
    (found,) = parsed(line)
    return found


def assistant(*blocks, **more):
    return {
        "type": "assistant",
        "session_id": "S",
        "message": {"id": "m1", "role": "assistant", "content": [*blocks]},
    } | more


# --- both shapes mean the same ---


@pytest.mark.requirement("CAP-1")
@pytest.mark.parametrize(
    ("flat", "nested"),
    [
        ({"type": "assistant", "subtype": "text", "text": "hello"}, assistant({"type": "text", "text": "hello"})),
        (
            {"type": "assistant", "subtype": "thinking", "thinking": "hm", "signature": "sig"},
            assistant({"type": "thinking", "thinking": "hm", "signature": "sig"}),
        ),
        (
            {"type": "assistant", "subtype": "tool_use", "tool_use_id": "c", "id": "x", "name": "Read", "input": {}},
            assistant({"type": "tool_use", "id": "c", "name": "Read", "input": {}}),
        ),
        (
            {"type": "assistant", "subtype": "server_tool_use", "id": "w", "name": "web_search", "input": {"q": 1}},
            assistant({"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"q": 1}}),
        ),
        (
            {"type": "tool", "subtype": "result", "tool_use_id": "c", "is_error": True, "content": "bad"},
            {"type": "user", "message": {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "is_error": True, "content": "bad"}]}},
        ),
        (
            {"type": "tool", "subtype": "result", "tool_use_id": "c",
             "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"type": "user", "message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c",
             "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}},
        ),
        ({"type": "user", "content": "go"}, {"type": "user", "message": {"role": "user", "content": "go"}}),
        (
            {"type": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"type": "user", "message": {"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}},
        ),
    ],
    ids=["text", "thinking", "tool use", "server tool", "result", "result of blocks", "user", "user of blocks"],
)  # fmt: skip
def test_flat_and_nested_lines_are_the_same_events(flat, nested):
    first, second = one(flat), one(nested)
    assert item_of(first).keys() >= {"type", "timestamp"}
    plain_first, plain_second = item_of(first), item_of(second)
    for item in (plain_first, plain_second):
        item.pop("ctxd", None)
    assert plain_first == plain_second


USAGE = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}
KEPT = {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "cache_write_tokens": 4}


@pytest.mark.requirement("CAP-1")
@pytest.mark.parametrize(
    ("line", "type", "item"),
    [
        ({"type": "system", "subtype": "status", "message": {"a": 1}}, "system",
         {"subtype": "status", "metadata": b'{"type":"system","subtype":"status","message":{"a":1}}'}),
        ({"type": "system"}, "system", {"subtype": "", "metadata": b'{"type":"system"}'}),
        ({"type": "assistant", "subtype": "text", "text": "hello"}, "response", {"content": "hello"}),
        ({"type": "assistant", "subtype": "text", "text": ""}, "response", {"content": ""}),
        ({"type": "assistant", "subtype": "thinking", "thinking": "hm", "signature": "sig"}, "thinking",
         {"content": "hm", "signature": "sig"}),
        ({"type": "assistant", "subtype": "tool_use", "tool_use_id": "c", "id": "x", "name": "Read", "input": {"p": 1}},
         "tool_call", {"id": "c", "name": "Read", "input": b'{"p":1}'}),
        ({"type": "assistant", "subtype": "tool_use", "id": "x", "name": "Read"}, "tool_call",
         {"id": "x", "name": "Read"}),
        ({"type": "assistant", "subtype": "server_tool_use", "id": "w", "name": "web_search", "input": {"q": 1}},
         "tool_call", {"id": "w", "name": "web_search", "input": b'{"q":1}', "server_tool": True}),
        ({"type": "tool", "subtype": "result", "tool_use_id": "c", "is_error": True, "content": "bad"}, "tool_result",
         {"id": "c", "is_error": True, "output": "bad"}),
        ({"type": "tool", "subtype": "result", "tool_use_id": "c",
          "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "tool_result",
         {"id": "c", "output": "a\nb"}),
        ({"type": "user", "message": {"content": [{"type": "tool_result", "tool_use_id": "c", "content": "out"}]}},
         "tool_result", {"id": "c", "output": "out"}),
        ({"type": "tool", "subtype": "result", "tool_use_id": "c"}, "tool_result", {"id": "c"}),
        ({"type": "user", "content": "go"}, "prompt", {"content": "go", "source": "user"}),
        ({"type": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "prompt",
         {"content": "a\nb", "source": "user"}),
        ({"type": "result", "subtype": "success", "duration_ms": 1500, "num_turns": 2, "usage": USAGE,
          "total_cost_usd": 0.5}, "metric", {"status": "success", "duration_seconds": 1.5, "turn_count": 2, **KEPT,
          "cost_usd": 0.5, "cost_microdollars": 500_000}),
        *(({"type": "result", "subtype": f"error_{status}", **USAGE}, "metric", {"status": f"error_{status}", **KEPT})
          for status in ("max_turns", "during_execution", "max_budget_usd")),
        ({"type": "result", "duration_seconds": 2}, "metric", {"duration_seconds": 2}),
        ({"type": "tool", "subtype": "log"}, "output", {"raw": b'{"type":"tool","subtype":"log"}'}),
    ],
)  # fmt: skip
def test_each_kind_of_line_is_the_item_of_events_v1_that_readers_of_bureau_know(line, type, item):
    made = item_of(one(json.dumps(line, separators=(",", ":")).encode()))
    made.pop("ctxd", None)
    assert made == {"type": type, "timestamp": AT // 1000, type: item}


@pytest.mark.requirement("CAP-1")
def test_several_blocks_of_one_line_are_several_events():
    found = parsed(
        assistant(
            {"type": "thinking", "thinking": "hm", "signature": "sig"},
            {"type": "redacted_thinking", "data": "Zm9v"},
            {"type": "text", "text": "look"},
            {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "w",
                "content": [{"type": "found", "url": "u"}],
            },
            {"type": "hologram", "x": 1},
            parent_tool_use_id="toolu_1",
        )
    )
    assert [type(event) for event in found] == [
        ThinkingEvent, ThinkingEvent, ResponseEvent, ToolCallEvent, ToolResultEvent, OpaqueEvent,
    ]  # fmt: skip
    assert found[0].signature == "sig"
    assert found[3].meta["server_tool"] is True
    assert found[4].meta["content"] == [{"type": "found", "url": "u"}]
    assert found[5].data == {"type": "hologram", "x": 1}
    assert {event.sidechain for event in found} == {"toolu_1"}
    assert {event.at for event in found} == {AT}


# --- lines of the program ---


def test_a_system_line_is_kept_whole():
    line = {"type": "system", "subtype": "init", "session_id": "S", "tools": ["Bash"], "message": "hello"}
    found = one(line)
    assert found == SystemEvent(text="hello", kind="init", meta=line, at=AT)
    assert json.loads(item_of(found)["system"]["metadata"]) == line


@pytest.mark.requirement("CAP-1")
@pytest.mark.parametrize(
    "line",
    [
        b"Warning: no stdin data received",
        b'{"type":"assistant"',
        b'["a list"]',
        b'{"no":"type"}',
        b'{"type": "rate_limit_event", "n": 1}',
        b'{"type":"assistant","subtype":"mood"}',
        b'{"type":"assistant","message":{"content":[]}}',
        b'{"type":"tool","subtype":"progress"}',
        b'{"type":"user"}',
        b"\xff\xfe",
        b'{"type":"x","big":123456789012345678901234567890}',
    ],
    ids=repr,
)
def test_a_line_without_a_meaning_is_kept_word_for_word(line):
    found = one(line + b"\r\n")
    assert isinstance(found, OpaqueEvent)
    assert item_of(found)["output"]["raw"] == line


@pytest.mark.requirement("CAP-1")
@pytest.mark.parametrize("levels", [397, 800, 5000])
def test_an_event_of_many_levels_is_one_that_a_delta_can_hold(levels):
    deep = b"[" * levels + b'"\\ud83d"' + b"]" * levels
    line = json.dumps(assistant({"type": "text", "text": "t"}) | {"more": "DEEP"}).encode().replace(b'"DEEP"', deep)
    found = one(line)
    assert isinstance(found, ResponseEvent) and found.text == "t"
    assert list(items(cbor2.dumps([item_of(found)])))


def test_blank_lines_and_pieces_of_messages_are_left_out():
    parser = StreamParser()
    piece = {"type": "stream_event", "event": {"type": "content_block_delta"}}
    assert parsed(b"", b"  \n", piece, piece, parser=parser) == []
    assert parser.partial == 2


@pytest.mark.requirement("CAP-2")
@pytest.mark.parametrize(
    ("cost", "microdollars"),
    [
        ("0.0425", 42500),
        ("1.001", 1001000),
        ("0.0000005", 0),
        ("0.0000015", 2),
        ("1e-3", 1000),
        ("12345.678901", 12345678901),
    ],
)
@pytest.mark.parametrize("name", ["total_cost_usd", "cost_usd"])
def test_the_cost_of_a_session_is_exact(cost, microdollars, name):
    line = b'{"type":"result","subtype":"success","%s":%s}' % (name.encode(), cost.encode())
    found = one(line)
    assert found.data.get("cost_microdollars", 0) == microdollars
    assert Decimal(repr(found.data["cost_usd"])) == Decimal(cost)


@pytest.mark.requirement("CAP-2")
def test_all_figures_of_a_session_are_kept():
    usage = {"input_tokens": 1, "output_tokens": 2, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 4}
    figures = {"input_tokens": 1, "output_tokens": 2, "cache_read_tokens": 3, "cache_write_tokens": 4}
    nested = one({"type": "result", "subtype": "error_max_turns", "num_turns": 6, "duration_ms": 25500, "usage": usage,
                  "permission_denials": [], "result": "out"})  # fmt: skip
    assert nested.data == {"status": "error_max_turns", "turn_count": 6, "duration_seconds": 25.5, **figures}
    assert nested.meta == {"duration_ms": 25500, "permission_denials": [], "result": "out"}
    flat = one({"type": "result", "subtype": "success", "duration_seconds": 1.5, **usage})
    assert flat.data == {"status": "success", "duration_seconds": 1.5, **figures}


def test_usage_of_a_message_is_kept():
    message = {
        "id": "m",
        "model": "claude",
        "content": [{"type": "text", "text": "a"}],
        "usage": {"input_tokens": 5, "output_tokens": 1},
    }
    found = one({"type": "assistant", "message": message})
    assert (found.model, found.usage, found.message) == ("claude", Usage(input=5, output=1), "m")


# --- compaction ---

BOUNDARY = {"type": "system", "subtype": "compact_boundary", "session_id": "S", "uuid": "u",
            "compact_metadata": {"trigger": "auto", "pre_tokens": 128000}}  # fmt: skip


@pytest.mark.requirement("CAP-4")
@pytest.mark.parametrize(
    "summary",
    [
        {"type": "user", "isSynthetic": True, "message": {"role": "user", "content": "we did this"}},
        {
            "type": "user",
            "isCompactSummary": True,
            "message": {"role": "user", "content": [{"type": "text", "text": "we did this"}]},
        },
    ],
    ids=["synthetic", "marked"],
)
def test_a_compaction_has_the_summary_of_the_line_after_it(summary):
    found = (
        one(b"\n".join(json.dumps(line).encode() for line in [BOUNDARY]))
        if summary is None
        else parsed(BOUNDARY, summary)[0]
    )
    assert (found.summary, found.tokens_before) == ("we did this", 128000)
    assert len(parsed(BOUNDARY, summary)) == 1


def test_a_summary_without_a_mark_is_known_by_its_words():
    text = "This session is being continued from a previous conversation that ran out of context. …"
    assert [event.summary for event in parsed(BOUNDARY, {"type": "user", "content": text})] == [text]


def test_a_compaction_without_a_summary_stays_before_the_next_event():
    found = parsed(BOUNDARY, {"type": "user", "content": "go on"}, {**BOUNDARY, "pre_tokens": 7}, BOUNDARY)
    assert [type(event) for event in found] == [CompactionEvent, PromptEvent, CompactionEvent, CompactionEvent]
    assert [event.tokens_before for event in found if isinstance(event, CompactionEvent)] == [128000, 7, 128000]
    assert found[0].meta == BOUNDARY


@pytest.mark.requirement("CAP-1")
@pytest.mark.skipif(not STREAMS, reason="no transcripts: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_each_line_of_real_output_has_its_texts_in_an_event(path):
    lines = path.read_bytes().splitlines()
    found = parsed(*lines)
    records = [json.loads(line) for line in lines if line.startswith(b"{")]
    blocks = [block for record in records if isinstance(record.get("message"), dict)
              for block in record["message"].get("content") or [] if isinstance(block, dict)]  # fmt: skip
    assert sum(isinstance(event, ToolCallEvent) for event in found) == sum(
        block.get("type") in ("tool_use", "server_tool_use", "mcp_tool_use") for block in blocks
    )
    texts = {event.text for event in found if isinstance(event, ResponseEvent | SystemEvent | PromptEvent)}
    for block in blocks:
        if block.get("type") == "text":
            assert any(block["text"] in text for text in texts)
    results = [record for record in records if record.get("type") == "result"]
    metrics = [event for event in found if isinstance(event, OpaqueEvent) and event.kind == "metric"]
    assert [metric.data["status"] for metric in metrics] == [record["subtype"] for record in results]
    for metric, record in zip(metrics, results, strict=True):
        if record.get("total_cost_usd"):
            assert metric.data["cost_microdollars"] == round(Decimal(str(record["total_cost_usd"])) * 1_000_000)


def recorded(path):
    """Token counts and cost of every result line, read without the parser; and all lines."""
    lines = []
    for raw in path.read_bytes().split(b"\n"):
        try:
            lines.append(json.loads(raw, parse_float=Decimal))
        except ValueError:
            continue
    results = [line for line in lines if isinstance(line, dict) and line.get("type") == "result"]
    return [
        (
            *((line.get("usage") or {}).get(name, 0) for name in (
                "input_tokens", "output_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"
            )),
            line.get("total_cost_usd", 0),
            line.get("num_turns", 0),
        )
        for line in results
    ], results  # fmt: skip


def figures(event):
    names = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
    cost = Decimal(repr(event.data.get("cost_usd", 0)))
    rounded = (cost * 1_000_000).to_integral_value(ROUND_HALF_EVEN)
    assert event.data.get("cost_microdollars", 0) == rounded
    return (*(event.data.get(each, 0) for each in names), cost, event.data.get("turn_count", 0))


@pytest.mark.requirement("CAP-2")
@pytest.mark.skipif(not STREAMS, reason="no transcripts: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("path", STREAMS, ids=name)
def test_the_figures_of_real_output_are_those_it_recorded_nested_and_flat(path):
    wanted, results = recorded(path)
    metrics = [event for event in parsed(*path.read_bytes().split(b"\n")) if isinstance(event, OpaqueEvent)]
    assert [figures(event) for event in metrics if event.kind == "metric"] == wanted
    for result, expected in zip(results, wanted, strict=True):
        flat = {name: value for name, value in result.items() if name not in ("usage", "total_cost_usd")}
        flat |= result.get("usage") or {}
        cost = {"cost_usd": result["total_cost_usd"]} if "total_cost_usd" in result else {}
        raw = json.dumps(flat | {each: float(value) for each, value in cost.items()}, default=float)
        assert figures(one(raw.encode())) == expected
