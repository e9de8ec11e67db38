"""Delta formats: golden bytes, exact inverses, and files that are not what their format names."""

import json
import random
from pathlib import Path

import cbor2
import pytest
from cbor2 import CBORTag

from ctxd.formats import bureau_agent_v1, events_v1
from ctxd.formats.cbor_array import UnreadableDelta, array_head, encoded, items, joinable, joined
from ctxd.formats.cbor_array_secrets import captured_array
from ctxd.formats.delta_formats import DELTA_FORMATS, count
from ctxd.formats.losses import Losses
from ctxd.formats.translation import Delta, Materialization
from ctxd.secrets.redaction import Capture, ephemeral_guard
from ctxd.transcripts.format_detection import read
from ctxd_protocol.event_types import (
    Attachment,
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
from tests.suites.secret_corpus import made_up
from tests.unit.transcripts.test_real_transcripts import FILES, name

TRANSCRIPTS = random.Random(13).sample([path for path in FILES if path.suffix != ".db"], 60 if FILES else 0)
VECTORS = json.loads((Path(__file__).parents[3] / "protocol/vectors/deltas.json").read_text())


def cases(part):
    return [pytest.param(bytes.fromhex(case["hex"]), id=case["name"]) for case in VECTORS[part]]


def messages_of(events, losses=None):
    writer = bureau_agent_v1.MessageWriter(losses or Losses())
    return [*(message for event in events for message in writer.add(event)), *writer.end()]


# --- golden vectors ---


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize("golden", cases("events_v1"))
def test_an_event_of_bureau_is_decoded_and_encoded_to_the_same_bytes(golden):
    event = events_v1.event_of(cbor2.loads(golden))
    assert not (isinstance(event, OpaqueEvent) and event.kind == events_v1.NAME), "its type is known"
    assert encoded(events_v1.item_of(event)) == golden


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize("golden", cases("bureau_agent_v1"))
def test_a_message_of_bureau_is_decoded_and_encoded_to_the_same_bytes(golden):
    events = list(bureau_agent_v1.events([cbor2.loads(golden)]))
    assert not any(isinstance(event, OpaqueEvent) for event in events)
    assert [encoded(message) for message in messages_of(events)] == [golden]


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize("golden", cases("arrays"))
def test_arrays_of_bureau_are_joined_without_a_change_of_their_items(golden):
    length, body = joinable(golden)
    assert length == len(list(items(golden)))
    assert array_head(2 * length) + bytes(body) * 2 == joined([encoded(item) for item in [*items(golden)] * 2])


def test_the_meaning_of_each_event_of_bureau():
    events = [events_v1.event_of(cbor2.loads(bytes.fromhex(case["hex"]))) for case in VECTORS["events_v1"]]
    at = 1735689600000
    assert events == [
        PromptEvent(text="hi", at=at, meta={"source": "initial"}),
        PromptEvent(text="hi", at=1772276400000),
        ResponseEvent(),
        ToolCallEvent(call="tc-1", tool="Read", args={"path": "/a"}, at=at),
        ToolCallEvent(call="", tool="WebSearch", meta={"server_tool": True}, at=at),
        ToolResultEvent(call="tc-1", text="x", is_error=True, at=at),
        OpaqueEvent(kind="metric", at=at, data={
            "status": "success", "cost_usd": 0.025, "turn_count": 3, "input_tokens": 5000, "output_tokens": 2000,
            "duration_seconds": 45.5, "cache_read_tokens": 1000,
        }),
        CompactionEvent(tokens_before=128000, meta={"trigger": "auto", "pre_tokens": 128000}, at=at),
        ThinkingEvent(text="c", signature="s", at=at),
        OpaqueEvent(kind="output", data={"u": 1}, at=at),
        OpaqueEvent(kind="error", data={"message": "m"}, at=at),
    ]  # fmt: skip


# --- what is unknown survives ---


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize(
    "item",
    [
        {"type": "telepathy", "timestamp": 1, "telepathy": {"x": b"\x00"}},
        {"type": "prompt", "timestamp": 1, "prompt": {"source": "user", "content": "a", "mood": "fine"}, "host": "h"},
        {"type": "prompt", "timestamp": 1, "prompt": {"content": "no source"}},
        {"type": "prompt", "timestamp": 1, "prompt": {"source": "robot", "content": ""}},
        {"type": "prompt", "prompt": {"source": "user", "content": "no time"}},
        {"type": "prompt", "timestamp": 1.5, "prompt": {"source": "user", "content": "half a second"}},
        {"type": "prompt", "timestamp": 1, "prompt": "no map"},
        {"type": "prompt", "timestamp": 1},
        {"type": "tool_call", "timestamp": 1, "tool_call": {"name": "n", "input": b'{"b": 1,  "a": 2}'}},
        {"type": "tool_call", "timestamp": 1, "tool_call": {"name": "n", "input": b"\xff not JSON"}},
        {"type": "tool_call", "timestamp": 1, "tool_call": {"name": "n", "input": b"null"}},
        {"type": "tool_call", "timestamp": 1, "tool_call": {"name": "n", "input": b""}},
        {"type": "tool_call", "timestamp": 1, "tool_call": {"name": "n", "input": {"a": 1}}},
        {"type": "tool_result", "timestamp": 1, "tool_result": {"id": "", "is_error": False}},
        {"type": "system", "timestamp": 1, "system": {"subtype": "init", "metadata": b"[1]"}},
        {"type": "system", "timestamp": 1, "system": {"subtype": "", "message": "m"}},
        {
            "type": "system",
            "timestamp": 1,
            "system": {"subtype": "compact_boundary", "metadata": b'{"pre_tokens":""}'},
        },
        {"type": "output", "timestamp": 1, "output": {"raw": b'"quoted"'}},
        {"type": "output", "timestamp": 1, "output": {"raw": b"plain"}},
        {"type": "output", "timestamp": 1, "output": {"raw": b"\xff"}},
        {"type": "metric", "timestamp": 1, "metric": {"status": "new", "carrots": 3}},
        {"type": "prompt", "timestamp": 1, "prompt": {"source": "user", "content": ""}, "ctxd": {"event": "no such"}},
        {"type": "prompt", "timestamp": 1, "prompt": {"source": "user", "content": ""}, "ctxd": "no map"},
        {1: 2},
        "text",
        None,
    ],
    ids=repr,
)
def test_unknown_fields_of_an_event_survive(item):
    assert encoded(events_v1.item_of(events_v1.event_of(item))) == encoded(item)


NONE = dict.fromkeys(("ToolUse", "Thinking", "ToolResult", "ServerToolUse", "ServerToolResult"))


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize(
    "message",
    [
        {"Role": "user", "Content": []},
        {"Role": "user", "Content": None},
        {"Role": "tool", "Content": [{"Type": "text", "Text": "t", **NONE}]},
        {"Role": "user", "Content": [{"Type": "text", "Text": "t", **NONE}], "Name": "n"},
        {"Role": "user", "Content": [{"Type": "text", "Text": "t", **NONE, "Cache": True}]},
        {"Role": "user", "Content": [{"Type": "text", "Text": "t"}]},
        {"Role": "user", "Content": [{"Type": "video", "Text": "", **NONE}, {"Type": "text", "Text": "t", **NONE}]},
        {"Role": "assistant", "Content": [
            {**NONE, "Type": "server_tool_use", "Text": "", "ServerToolUse": {"ID": "s", "Name": "n", "Input": b"{}"}},
            {**NONE, "Type": "server_tool_result", "Text": "", "ServerToolResult": b"{}"},
        ]},
        {"Role": "assistant", "Content": [
            {**NONE, "Type": "tool_use", "Text": "", "ToolUse": {"ID": "s", "Name": "n", "Input": b'{ "a":1}'}},
        ]},
        {"Role": "assistant", "Content": [{**NONE, "Type": "thinking", "Text": "", "Thinking": None}]},
        "text",
    ],
    ids=repr,
)  # fmt: skip
def test_unknown_fields_of_a_message_survive(message):
    found = [message, message]
    assert messages_of(bureau_agent_v1.events(found)) == found, "two messages of one role stay two"


# --- every typed event survives events-v1 ---

EVENTS = [
    PromptEvent(text="look", attachments=(Attachment(media_type="image/png", data=b"\x89"),), id="u1", at=1234),
    PromptEvent(text="sub", sidechain="agent-1", parent="u1", meta={"source": 5, "cwd": "/srv"}),
    ResponseEvent(text="yes", model="m", usage=Usage(input=1, cache_write=2), stop_reason="end_turn", message="msg_1"),
    ThinkingEvent(encrypted="…", at=1735689600123),
    ToolCallEvent(call="c", tool="t", args="free text"),
    ToolCallEvent(call="c", tool="t", args=[1, None, {"a": "é"}], meta={"server_tool": 1}),
    ToolResultEvent(call="c", object="toolcall:c", is_error=True),
    SystemEvent(text="notice"),
    SystemEvent(text="", kind="compact_boundary"),
    SystemEvent(text="t", kind="meta", meta={"raw": b"\x00", "events-v1": "odd"}),
    CompactionEvent(summary="short", kept_from="u7", tokens_before=9, tokens_after=1, meta={"trigger": "manual"}),
    CompactionEvent(),
    OpaqueEvent(kind="damaged", data='{"torn'),
    OpaqueEvent(kind="file-history-snapshot", data={"type": "file-history-snapshot", "n": 1}, usage=Usage(output=3)),
    OpaqueEvent(kind="metric", data="no map"),
    OpaqueEvent(),
]


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_a_typed_event_survives(event):
    item = cbor2.loads(encoded(events_v1.item_of(event)))
    assert events_v1.event_of(item) == event
    kind = item["type"]
    assert isinstance(item[kind], dict), "another reader finds a payload of a known type"


@pytest.mark.requirement("FMT-1")
@pytest.mark.skipif(not TRANSCRIPTS, reason="no transcripts: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("path", TRANSCRIPTS, ids=name)
def test_the_events_of_a_real_transcript_survive(path):
    events = [entry.event for entry in read(path)[1]]
    delta = joined([encoded(events_v1.item_of(event)) for event in events])
    assert list(DELTA_FORMATS["events-v1"].events([delta])) == events


@pytest.mark.requirement("FMT-1")
def test_parts_that_do_not_make_an_event_are_kept_as_they_are():
    whole = PromptEvent(text="x" * 1000)
    parts = [cbor2.loads(part) for part in events_v1.encoded_items(whole, 300)]
    assert len(parts) == 4
    assert list(events_v1.events([*parts, *parts])) == [whole, whole]
    for torn in (parts[:-1], parts[1:], [parts[0], "between", *parts[1:]]):
        assert [events_v1.item_of(event) for event in events_v1.events(torn)] == torn
    garbled = [{**part, "output": {"raw": b"\xff"}} for part in parts]
    assert [events_v1.item_of(event) for event in events_v1.events(garbled)] == garbled


# --- arrays ---


@pytest.mark.parametrize("length", [0, 1, 23, 24, 255, 256, 65535, 65536])
def test_the_head_of_an_array_is_the_shortest(length):
    assert array_head(length) == cbor2.dumps([None] * length, canonical=True)[: len(array_head(length))]


def test_an_array_of_indefinite_length_is_read_and_joined_as_one_of_a_definite_length():
    content = b"\x9f" + cbor2.dumps({"b": 1}) + cbor2.dumps("x") + b"\xff"
    assert list(items(content)) == [{"b": 1}, "x"]
    length, body = joinable(content)
    assert cbor2.loads(array_head(length) + bytes(body)) == [{"b": 1}, "x"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not a CBOR array"),
        (b"\xa0", "not a CBOR array"),
        (b"\x9a\x00", "not a CBOR array"),
        (b"\x82\x01", "item 2 of the CBOR array cannot be read"),
        (b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff\x01", "item 2 of the CBOR array cannot be read"),
        (b"\x9f\x01", "item 2 of the CBOR array cannot be read"),
        (b"\x81\x01\x02", "1 bytes follow"),
        (b"\x9f\xff\x02", "1 bytes follow"),
        (b"\x81" * 5000 + b"\x01", "item 1 of the CBOR array cannot be read"),
        (b"\x81\x61\xff", "item 1 of the CBOR array cannot be read"),
    ],
)
@pytest.mark.parametrize("format", ["events-v1", "bureau-agent-v1"])
def test_a_delta_that_is_not_an_array_is_rejected(content, reason, format):
    with pytest.raises(UnreadableDelta, match=reason):
        count(format, content)


def test_counts_of_a_delta():
    events = [
        PromptEvent(text="abcd"), ResponseEvent(text="é"), ToolCallEvent(call="c", tool="ls", args={"a": 1}),
        ToolResultEvent(call="c", text="x" * 8), SystemEvent(text="unseen"), OpaqueEvent(kind="metric", data={}),
    ]  # fmt: skip
    delta = joined([encoded(events_v1.item_of(event)) for event in events])
    assert count("events-v1", delta) == (4, (4 + 2 + 2 + 7 + 8 + 3) // 4)
    assert count("never-heard", b"x" * 9) == (0, 3)
    line = b'{"type":"user","uuid":"u","message":{"role":"user","content":"abcdefgh"}}\n'
    assert count("claude-code-v1", line + b"broken\n" + b'{"torn') == (1, 2)


# --- hostile and unusual CBOR ---


def bomb(levels):
    """An item each level of which names the one below it ten times."""
    shared, refers = bytes.fromhex("d81c"), bytes.fromhex("d81d")
    found = [shared + cbor2.dumps(["lol"] * 10)]
    found += [shared + b"\x8a" + (refers + cbor2.dumps(level)) * 10 for level in range(levels)]
    return b"\x81" + bytes([0x80 + len(found)]) + b"".join(found)


@pytest.mark.requirement("FMT-7")
@pytest.mark.parametrize(
    "content", [bomb(9), bytes.fromhex("81d81c81d81d00"), bytes.fromhex("81d9010082646c6f6f6cd81900")]
)
@pytest.mark.parametrize("format", ["events-v1", "bureau-agent-v1"])
def test_references_within_an_item_are_refused(format, content):
    with pytest.raises(UnreadableDelta, match="CBOR references"):
        count(format, content)
    with pytest.raises(UnreadableDelta, match="CBOR references"):
        captured_array(Capture(ephemeral_guard(), "redact"), content)


@pytest.mark.requirement("FMT-7")
@pytest.mark.parametrize(
    "item",
    [
        "c11a514b67b0", "c074323031332d30332d32315432303a30343a30305a", "c48221196ab3", "d81e820103", "d82361 61",
        "d8246161", "d9010281 f7", "d9d9f7 01", "f7", "e0", "c2490100000000000000 00",
    ],
)  # fmt: skip
def test_tagged_and_simple_values_stay_as_they_are_and_have_a_form_in_json(item):
    content = b"\x81" + bytes.fromhex(item)
    (found,) = items(content)
    assert encoded(found) == content[1:]
    (message,) = messages_of([PromptEvent(text="hi")])
    delta = joined([encoded({**message, "Content": [*message["Content"], {"Odd": found}]})])
    assert captured_array(Capture(ephemeral_guard(), "redact"), delta) == delta
    deltas = [Delta("bureau-agent-v1", lambda: content, 0, 0), Delta("bureau-agent-v1", lambda: delta, 1, 1)]
    for wanted in ("events-v1", "bureau-agent-v1", "claude-code-v1", "narrative-v1", "raw-v1"):
        assert b"hi" in b"".join(Materialization(deltas, wanted).chunks()) or wanted == "raw-v1"


@pytest.mark.requirement("FMT-7")
def test_secrets_in_sets_expressions_and_byte_strings_of_json_are_redacted_and_no_key_is_hidden():
    token = made_up("github-token")
    for value in (
        CBORTag(258, [token]), CBORTag(35, token), f'{{"a":"{token}","a":"x"}}'.encode(), CBORTag(36, token),
    ):  # fmt: skip
        kept = captured_array(Capture(ephemeral_guard(), "redact"), joined([encoded({"type": "odd", "x": value})]))
        assert token.encode() not in kept
        assert len(list(items(kept))) == 1
    twice = bytes.fromhex("81a2616101616102")
    assert list(items(twice)) == [{"a": 2}]
    with pytest.raises(UnreadableDelta, match="cannot be read"):
        captured_array(Capture(ephemeral_guard(), "redact"), twice)


@pytest.mark.requirement("FMT-1")
@pytest.mark.parametrize("prompt", [{}, {"source": ""}, {"source": "user"}, {"source": "other"}])
def test_a_prompt_is_one_with_any_source_or_none(prompt):
    item = {"type": "prompt", "timestamp": 5, "prompt": {**prompt, "content": "hi"}}
    event = events_v1.event_of(item)
    assert isinstance(event, PromptEvent) and event.text == "hi"
    assert events_v1.item_of(event) == item
