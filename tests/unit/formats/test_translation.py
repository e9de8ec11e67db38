"""Materialization: one conversation from the deltas of a chain, in each format and tier, with what it loses."""

import json
import subprocess
import sys
from base64 import b64decode
from itertools import pairwise

import cbor2
import msgspec
import pytest

from ctxd.formats.cbor_array import UnreadableDelta, encoded, joined
from ctxd.formats.delta_formats import DELTA_FORMATS, count
from ctxd.formats.events_v1 import item_of
from ctxd.formats.translation import WANTED, Delta, Materialization, UntranslatableFormat
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
from tests.unit.transcripts.test_real_transcripts import FILES, name

WRITTEN = ("events-v1", "bureau-agent-v1", "claude-code-v1")


def delta(format, content):
    return Delta(format, lambda: content, *count(format, content))


def events_delta(*events):
    return delta("events-v1", joined([encoded(item_of(event)) for event in events]))


def bureau_delta(role, *blocks):
    none = dict.fromkeys(("ToolUse", "Thinking", "ToolResult", "ServerToolUse", "ServerToolResult"))
    message = {"Role": role, "Content": [{"Text": "", **none, **block} for block in blocks]}
    return delta("bureau-agent-v1", cbor2.dumps([message], canonical=True))


def session_line(kind, id, parent, content, **more):
    message = {"role": kind, "content": content}
    record = {"type": kind, "uuid": id, "parentUuid": parent, "sessionId": "S", **more, "message": message}
    return msgspec.json.encode(record) + b"\n"


def materialized(deltas, wanted):
    found = Materialization(deltas, wanted)
    return b"".join(found.chunks()), found


def lost(found):
    return {loss.part: loss.times for loss in found.lost}


def read_back(format, content):
    return list(DELTA_FORMATS[format].events([content]))


TURN = (
    PromptEvent(text="read it", at=1735689600000),
    ThinkingEvent(text="hm", signature="sig"),
    ResponseEvent(text="reading"),
    ToolCallEvent(call="c1", tool="Read", args={"path": "/a"}),
    ToolResultEvent(call="c1", text="# heading\nbody", is_error=True),
    ResponseEvent(text="done"),
)


# --- native ---


@pytest.mark.requirement("FMT-3")
def test_arrays_of_one_format_are_joined():
    first, second = events_delta(*TURN[:2]), events_delta(*TURN[2:])
    content, found = materialized([first, second], "events-v1")
    assert (found.tier, found.format, found.media_type, found.lost) == ("native", "events-v1", "application/cbor", ())
    assert content == events_delta(*TURN).read()
    assert (found.messages, found.tokens) == (first.messages + second.messages, first.tokens + second.tokens)


@pytest.mark.requirement("FMT-3")
def test_lines_of_one_format_are_joined_byte_for_byte():
    first, second = b'{"type":"user","uuid":"a"}', b'broken\n{"type" : "user"}\n'
    content, found = materialized([delta("claude-code-v1", first), delta("claude-code-v1", second)], "claude-code-v1")
    assert content == first + b"\n" + second
    assert (found.tier, found.media_type) == ("native", "application/jsonl")


@pytest.mark.parametrize(("wanted", "empty"), [("events-v1", b"\x80"), ("claude-code-v1", b""), ("pi-v1", b"")])
def test_an_empty_chain_is_an_empty_conversation(wanted, empty):
    content, found = materialized([], wanted)
    assert (content, found.tier, found.messages, found.tokens) == (empty, "native", 0, 0)


# --- field by field ---


@pytest.mark.requirement("FMT-3")
@pytest.mark.parametrize("wanted", WRITTEN[1:])
def test_a_turn_keeps_its_texts_calls_and_signatures_in_every_format(wanted):
    content, found = materialized([events_delta(*TURN)], wanted)
    assert (found.tier, found.format, found.messages) == ("fields", wanted, 6)
    kept = [msgspec.structs.replace(event, at=None, id=None, parent=None, message=None, meta=None)
            for event in read_back(wanted, content)]  # fmt: skip
    plain = [msgspec.structs.replace(event, at=None) for event in TURN]
    assert [
        event if not hasattr(event, "model") else msgspec.structs.replace(event, model=None) for event in kept
    ] == plain


@pytest.mark.requirement("FMT-4")
def test_everything_that_messages_cannot_hold_is_counted():
    content, found = materialized(
        [events_delta(
            PromptEvent(text="look", attachments=(Attachment(media_type="image/png", data=b"\x89"),), at=7),
            ResponseEvent(text="a", model="m", usage=Usage(input=3), message="msg_1"),
            SystemEvent(text="reminder", kind="meta"),
            SystemEvent(kind="init"),
            CompactionEvent(summary="so far", tokens_before=5),
            PromptEvent(text="for the sub-agent", sidechain="s"),
            OpaqueEvent(kind="metric", data={"cost_usd": 0.5}),
            ToolResultEvent(call="c", text="out"),
            ToolResultEvent(call="d", text="out"),
        )],
        "bureau-agent-v1",
    )  # fmt: skip
    assert lost(found) == {
        "prompt.attachments": 1, "prompt.at": 1, "response.model": 1, "response.usage": 1, "response.message": 1,
        "system as prompt": 1, "system.kind": 1, "system": 1, "compaction as prompt": 1, "compaction.tokens_before": 1,
        "sidechain prompt": 1, "metric": 1,
    }  # fmt: skip
    roles = [message["Role"] for message in cbor2.loads(content)]
    assert roles == ["user", "assistant", "user"], "providers want roles that alternate"
    assert len(cbor2.loads(content)[2]["Content"]) == 4


@pytest.mark.requirement("FMT-3")
def test_an_attachment_without_content_is_written_as_words_to_a_session_of_claude_code():
    event = PromptEvent(text="look", attachments=(Attachment(media_type="application/octet-stream", name="[purged]"),))
    content, _ = materialized([events_delta(event)], "claude-code-v1")
    texts = [{"type": "text", "text": "look"}, {"type": "text", "text": "[purged]"}]
    assert json.loads(content.splitlines()[0])["message"]["content"] == texts


@pytest.mark.requirement("FMT-2")
def test_a_written_session_is_one_chain_and_one_for_each_sub_agent():
    content, found = materialized(
        [events_delta(
            *TURN[:3],
            PromptEvent(text="for the sub-agent", sidechain="agent-7"),
            ResponseEvent(text="the sub-agent", sidechain="agent-7"),
            *TURN[3:],
            CompactionEvent(summary="so far", tokens_before=5),
            PromptEvent(text="next"),
        )],
        "claude-code-v1",
    )  # fmt: skip
    assert content.endswith(b"\n")
    records = [json.loads(line) for line in content.splitlines()]
    assert len({record["uuid"] for record in records}) == len(records)
    assert len({record["sessionId"] for record in records}) == 1
    main = [record for record in records if not record["isSidechain"]]
    boundary = next(index for index, record in enumerate(main) if record.get("subtype") == "compact_boundary")
    assert main[boundary]["logicalParentUuid"] == main[boundary - 1]["uuid"]
    roots = {None: 0, boundary: boundary}
    for index, (before, record) in enumerate(pairwise(main), 1):
        assert record["parentUuid"] == (None if index in roots.values() else before["uuid"])
    side = [record for record in records if record["isSidechain"]]
    assert [record["parentUuid"] for record in side] == [None, side[0]["uuid"]]
    assert {record["agentId"] for record in side} == {"agent-7"}
    blocks = [record["message"]["content"] for record in main if record["type"] == "assistant"]
    ids = [record["message"]["id"] for record in main if record["type"] == "assistant"]
    assert [len(block) for block in blocks] == [1] * 4
    assert ids[0] == ids[1] == ids[2] != ids[3], "the blocks of one answer share an id"
    back = read_back("claude-code-v1", content)
    assert CompactionEvent(summary="so far", tokens_before=5) in [
        msgspec.structs.replace(event, id=None, parent=None, at=None, meta=None) for event in back
    ]
    assert "compaction.summary" not in lost(found)


@pytest.mark.requirement("FMT-2")
def test_a_session_that_follows_other_deltas_is_linked_to_them():
    native = session_line("user", "u1", None, "hello") + session_line("assistant", "a1", "u1", "hi")
    chain = [delta("claude-code-v1", native), events_delta(PromptEvent(text="on")), delta("claude-code-v1", native)]
    content, found = materialized(chain, "claude-code-v1")
    assert found.tier == "fields"
    assert content.startswith(native)
    records = [json.loads(line) for line in content.splitlines()]
    assert [record["parentUuid"] for record in records[1:]] == [record["uuid"] for record in records[:-1]]
    assert len({record["sessionId"] for record in records}) == 1


@pytest.mark.requirement("FMT-2")
@pytest.mark.skipif(not FILES, reason="no transcripts: set CTXD_TRANSCRIPTS")
@pytest.mark.parametrize("path", [path for path in FILES if path.match("*/claude-code/*/*/*.jsonl")][:25], ids=name)
def test_a_real_session_survives_the_way_through_events(path):
    """The conversation is the same; what differs was counted."""
    original = path.read_bytes()
    events, _ = materialized([delta("claude-code-v1", original)], "events-v1")
    content, found = materialized([delta("events-v1", events)], "claude-code-v1")

    def conversation(content):
        kinds = (PromptEvent, ResponseEvent, ThinkingEvent, ToolCallEvent, ToolResultEvent, CompactionEvent)
        keep = ("text", "summary", "signature", "encrypted", "call", "tool", "args", "attachments", "at", "sidechain")
        return [
            (type(event), {field: getattr(event, field) for field in keep if hasattr(event, field)})
            for event in read_back("claude-code-v1", content)
            if isinstance(event, kinds)
        ]

    gone = {part for part, _ in found.lost}
    unsigned = sum(times for part, times in found.lost if part.endswith("thinking"))
    before, after = conversation(original), conversation(content)
    assert len(after) == len(before) - unsigned
    if not unsigned and not gone & {"tool_call.args", "prompt.at", "response.at"}:
        assert after == before


# --- narrative and raw ---


@pytest.mark.requirement("FMT-3")
@pytest.mark.parametrize("wanted", ["narrative-v1", "codex-v1"])
def test_a_format_that_cannot_be_written_gets_a_narrative(wanted):
    long = "x" * 5000
    content, found = materialized([events_delta(*TURN, ToolResultEvent(text=long))], wanted)
    assert (found.tier, found.format, found.media_type) == ("narrative", "narrative-v1", "text/markdown")
    text = content.decode()
    assert "\n## User\n\nread it\n\n## Reasoning of the assistant\n\nhm\n\n## Assistant\n\nreading\n" in text
    assert '\n## Tool call: Read\n\n{"path":"/a"}\n\n## Tool failed\n\n\\# heading\nbody\n' in text
    assert "[… 1000 characters left out …]" in text
    assert lost(found) == {
        "prompt.at": 1, "thinking.signature": 1, "tool_call.call": 1, "tool_result.call": 1,
        "characters of tool_result.text": 1000,
    }  # fmt: skip


@pytest.mark.requirement("FMT-3")
@pytest.mark.parametrize("wanted", [*WRITTEN, "narrative-v1", "codex-v1"])
def test_a_delta_of_an_unknown_format_is_in_the_conversation_as_it_is(wanted):
    chain = [events_delta(*TURN), delta("gemini-v9", b"plain text"), delta("gemini-v9", b"\xff\x00")]
    content, found = materialized(chain, wanted)
    assert found.tier == "raw"
    assert found.format == (wanted if wanted != "codex-v1" else "narrative-v1")
    assert b"unknown format 'gemini-v9'" in content
    assert b"plain text" in content
    assert b"/wA=" in content
    assert lost(found)["delta of format gemini-v9"] == 2


@pytest.mark.requirement("FMT-3")
@pytest.mark.parametrize("wanted", ["gemini-v9", "raw-v1"])
def test_deltas_of_an_unknown_format_alone_are_listed_as_they_are(wanted):
    chain = [delta("gemini-v9", b"plain\n"), delta("gemini-v9", b"\xff\x00")]
    content, found = materialized(chain, wanted)
    assert (found.tier, found.format) == ("raw", "raw-v1")
    first, second = map(json.loads, content.splitlines())
    assert first == {"format": "gemini-v9", "text": "plain\n"}
    assert b64decode(second["base64"]) == b"\xff\x00"


def test_a_format_that_does_not_exist_is_refused():
    with pytest.raises(UntranslatableFormat, match=r"unknown format 'event-v1': one of bureau-agent-v1, .*, raw-v1$"):
        Materialization([events_delta(*TURN)], "event-v1")


@pytest.mark.parametrize("wanted", ["events-v1", "claude-code-v1", "narrative-v1"])
def test_a_damaged_delta_is_an_error_and_not_a_shorter_conversation(wanted):
    chain = [events_delta(*TURN), Delta("bureau-agent-v1", lambda: b"\x82\x01", 0, 0)]
    with pytest.raises(UnreadableDelta, match="item 2"):
        materialized(chain, wanted)


@pytest.mark.requirement("FMT-3")
def test_one_chain_mixes_formats():
    chain = [
        events_delta(*TURN),
        bureau_delta("user", {"Type": "text", "Text": "from Bureau"}),
        delta("claude-code-v1", session_line("user", "u1", None, "from Claude")),
        delta("codex-v1", b'{"type":"response_item","timestamp":"2026-01-01T00:00:00Z","payload":{"type":"message",'
              b'"role":"user","content":[{"type":"input_text","text":"from codex"}]}}\n'),
    ]  # fmt: skip
    for wanted in WRITTEN:
        content, found = materialized(chain, wanted)
        texts = [event.text for event in read_back(wanted, content) if isinstance(event, PromptEvent)]
        assert texts == ["read it", "from Bureau", "from Claude", "from codex"]
        assert found.messages == sum(each.messages for each in chain)


# --- determinism and size ---


@pytest.mark.requirement("FMT-5")
@pytest.mark.parametrize("wanted", WANTED)
def test_equal_deltas_give_equal_bytes(wanted):
    chain = [events_delta(*TURN), bureau_delta("user", {"Type": "text", "Text": "x"}), delta("other", b"\x00")]
    first, second = Materialization(chain, wanted), Materialization(chain, wanted)
    content = b"".join(first.chunks())
    assert b"".join(second.chunks()) == content
    assert (first.lost, first.messages, first.tokens) == (second.lost, second.messages, second.tokens)
    assert b"".join(first.chunks()) == content, "and the same materialization again"


def test_each_delta_of_an_array_that_is_too_long_to_hold_is_read_once(tmp_path):
    events = [PromptEvent(text=f"{number}" + "x" * 100_000) for number in range(100)]
    read = []

    def noted(number, one):
        def content():
            read.append(number)
            return one.read()

        return one._replace(read=content)

    chain = [noted(0, events_delta(*events[:50])), noted(1, events_delta(*events[50:]))]
    for wanted in ("bureau-agent-v1", "events-v1"):
        read.clear()
        found = Materialization(chain, wanted, tmp_path)
        content = b"".join(found.chunks())
        assert [event.text for event in read_back(wanted, content)] == [event.text for event in events]
        assert found.messages == 100
        assert read == [0, 1]
    assert content == events_delta(*events).read()
    assert not list(tmp_path.iterdir())


SIZES = """
import resource, sys
import cbor2
from ctxd.formats.translation import Delta, Materialization

def events(number):
    prompt = {"type": "prompt", "timestamp": 1, "prompt": {"source": "user", "content": "x" * 1000}}
    response = {"type": "response", "timestamp": 1, "response": {"content": "x" * 1000}}
    return cbor2.dumps([prompt, response] * number, canonical=True)

small = events(1)
def large():
    return events(15000)
wanted, deltas = sys.argv[1], sys.argv[2]
read, length = (lambda: small, 10000) if deltas == "many" else (large, 3)
chain = [Delta("events-v1", read, 1, 250)] * length
list(Materialization([Delta("events-v1", lambda: small, 1, 250)], wanted).chunks())
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = sum(map(len, Materialization(chain, wanted).chunks()))
print(size, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.requirement("FMT-5")
@pytest.mark.parametrize("wanted", WRITTEN)
@pytest.mark.parametrize(("deltas", "MiB_max"), [("many", 40), pytest.param("large", 150, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_memory_is_that_of_one_delta(wanted, deltas, MiB_max):
    """Three deltas of 32 MB are 96 MB, and a hundred MB more in any other form."""
    found = subprocess.run([sys.executable, "-c", SIZES, wanted, deltas], capture_output=True, text=True, check=True)
    size, grown = map(int, found.stdout.split())
    assert size > 10_000_000 if deltas == "many" else size > 90_000_000
    assert grown / 1024 < MiB_max


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("format", "record"),
    [
        ("pi-v1", {"type": "message", "id": "e", "message": {"role": "assistant", "content": [], "stopReason": "error",
                                                              "errorMessage": "429 rate limited"}}),
        ("opencode-v1", {"info": {"id": "m", "role": "assistant", "error": {"data": {"message": "429 rate limited"}}},
                         "parts": []}),
        ("opencode-v1", {"info": {"id": "m", "role": "assistant", "error": {"name": "429 rate limited"}}, "parts": []}),
        ("codex-v1", {"type": "event_msg", "payload": {"type": "error", "message": "429 rate limited"}}),
        ("codex-v1", {"type": "event_msg", "payload": {"type": "stream_error", "message": "429 rate limited"}}),
        ("opencode-run-json-v1", {"type": "error", "error": {"name": "429 rate limited"}}),
    ],
)  # fmt: skip
def test_a_narrative_shows_the_error_of_a_provider_in_place_of_a_reply(format, record):
    content, _ = materialized([delta(format, json.dumps(record).encode() + b"\n")], "narrative-v1")
    text = content.decode()
    assert "\n429 rate limited\n" in text and text.count("## ") == 1
