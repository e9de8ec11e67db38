"""Readers of each format: the events of records that harnesses write, and of records that none should."""

import io
import json
import sqlite3
from base64 import b64encode
from itertools import groupby

import pytest

from ctxd.transcripts import claude_code, codex, codex_exec, opencode, pi, record_decoding
from ctxd.transcripts.format_detection import UnknownFormat, format_of, read
from ctxd.transcripts.opencode_storage import export_records
from ctxd.transcripts.record_decoding import Line, attachment_of, decoded, lines, milliseconds, total_usage
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


def numbered(*records):
    return [Line(number, record) for number, record in enumerate(records, 1)]


def events(reader, *records):
    return [entry.event for entry in reader(numbered(*records))]


def kinds(found):
    return [type(event).__name__.removesuffix("Event") for event in found]


# --- lines ---


def test_only_complete_lines_are_read_and_damaged_ones_are_kept():
    found = list(lines(io.BytesIO(b'{"a":1}\n\n[1]\nnot json\n{"b":2}')))
    assert [(line.number, line.record, line.text) for line in found] == [
        (1, {"a": 1}, ""), (3, None, "[1]"), (4, None, "not json"), (5, {"b": 2}, ""),
    ]  # fmt: skip
    assert list(lines(io.BytesIO(b'{"torn":'))) == [], "a harness may still be writing it"


def test_a_line_beyond_the_limit_is_refused_by_its_number(monkeypatch):
    monkeypatch.setattr(record_decoding, "LINE_BYTES_MAX", 16)
    with pytest.raises(ValueError, match="line 2 has more than"):
        list(lines(io.BytesIO(b'{"a":1}\n' + b"0" * 17)))


def test_a_damaged_line_is_an_opaque_event():
    (entry,) = claude_code.read_session([Line(7, None, "garbage")])
    assert (entry.line, entry.event) == (7, OpaqueEvent(kind="damaged", data="garbage"))


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b'"cut \\ud83d, whole \\ud83d\\ude00"', "cut \ufffd, whole \U0001f600"),
        (b"[1732224240123456789, -9007199254740993, 5, true]", ["1732224240123456789", "-9007199254740993", 5, True]),
        (b'{"a": NaN}', {"a": "NaN"}),
        (b'{"a": 1e999}', {"a": "inf"}),
        (b'"caf\xe9"', "caf\ufffd"),
    ],
)
def test_values_no_session_accepts_are_decoded_to_accepted_ones(raw, value):
    assert decoded(raw) == value


def test_a_value_that_is_nested_too_deeply_is_not_json():
    with pytest.raises(ValueError, match="nested|recursion"):
        decoded(b"[" * 100_000)


def test_byte_order_marks_and_windows_line_endings_are_stripped():
    found = list(lines(io.BytesIO(b'\xef\xbb\xbf{"a":1}\r\n\r\n{"b":2}\r\n')))
    assert [line.record for line in found] == [{"a": 1}, {"b": 2}]


@pytest.mark.parametrize("odd", [True, "5", None, [], -3])
def test_counts_that_are_no_integers_are_none(odd):
    usage = {"input_tokens": 4, "output_tokens": odd, "cache_read_input_tokens": odd}
    (event,) = events(claude_code.read_session, assistant({"type": "text", "text": "x"}, **usage))
    assert event.usage == Usage(input=4)
    (compaction,) = events(pi.read_session, {"type": "compaction", "summary": "s", "tokensBefore": True})
    assert compaction.tokens_before is None


def test_times_are_milliseconds_or_iso_8601_and_utc_by_default():
    assert [milliseconds(value) for value in (1793527200000, "2026-11-01T10:00:00.250Z", "2026-11-01T10:00:00")] == [
        1793527200000, 1793527200250, 1793527200000,
    ]  # fmt: skip
    assert [milliseconds(value) for value in (None, True, "soon", {})] == [None] * 4


# --- Claude Code ---

ENVELOPE = {"sessionId": "S", "cwd": "/srv", "timestamp": "2026-11-01T10:00:00.000Z"}


def user(content, **more):
    return {"type": "user", "uuid": "u", **ENVELOPE, "message": {"role": "user", "content": content}, **more}


def assistant(*blocks, id="m1", **usage):
    message = {"id": id, "role": "assistant", "model": "m", "content": list(blocks), "stop_reason": "end_turn"}
    return {"type": "assistant", "uuid": "a", **ENVELOPE, "message": {**message, "usage": usage}}


def test_claude_a_split_message_is_billed_once():
    usage = {"input_tokens": 4, "output_tokens": 10, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 9}
    call = {"type": "tool_use", "id": "t1", "name": "Read", "input": {"file_path": "/p"}}
    found = list(
        claude_code.read_session(
            numbered(
                assistant({"type": "thinking", "thinking": "hm", "signature": "sig"}, **{**usage, "output_tokens": 1}),
                assistant({"type": "text", "text": "I look."}, **usage),
                assistant(call, **usage),
                assistant({"type": "text", "text": "Done."}, id="m2", input_tokens=1, output_tokens=2),
            )
        )
    )
    thinking, text, tool, done = (entry.event for entry in found)
    assert isinstance(thinking, ThinkingEvent)
    assert (thinking.text, thinking.signature, thinking.message) == ("hm", "sig", "m1")
    assert isinstance(text, ResponseEvent)
    assert (text.model, text.stop_reason, text.at) == ("m", "end_turn", 1793527200000)
    assert isinstance(tool, ToolCallEvent)
    assert (tool.call, tool.tool, tool.args) == ("t1", "Read", {"file_path": "/p"})
    assert isinstance(done, ResponseEvent)
    assert total_usage(found) == Usage(input=5, output=12, cache_read=100, cache_write=9)


@pytest.mark.parametrize(
    ("record", "kind", "word"),
    [
        (user("fix it"), PromptEvent, None),
        (user([{"type": "text", "text": "fix it"}]), PromptEvent, None),
        (user("Base directory for this skill: /s", isMeta=True), SystemEvent, "meta"),
        (user("<command-name>/clear</command-name>"), SystemEvent, "command-name"),
        (user("<local-command-stdout>x</local-command-stdout>"), SystemEvent, "local-command-stdout"),
        (user("<bash-input>ls</bash-input>"), SystemEvent, "bash-input"),
        (user("[Request interrupted by user for tool use]"), SystemEvent, "interrupted"),
        (user("This session is being continued", isCompactSummary=True), CompactionEvent, None),
        ({"type": "system", "subtype": "turn_duration", "uuid": "s", **ENVELOPE}, SystemEvent, "turn_duration"),
        ({"type": "ai-title", "aiTitle": "t", "sessionId": "S"}, OpaqueEvent, "ai-title"),
        ({"type": "brand-new-record", "x": 1}, OpaqueEvent, "brand-new-record"),
        ({"x": 1}, OpaqueEvent, "untyped"),
        (user(None), OpaqueEvent, "user"),
    ],
)
def test_claude_the_classes_of_records(record, kind, word):
    (event,) = events(claude_code.read_session, record)
    assert isinstance(event, kind)
    assert getattr(event, "kind", None) == word


@pytest.mark.parametrize(
    ("content", "text"),
    [("out", "out"), ([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "a\nb"), (None, "")],
)
def test_claude_a_tool_result_of_any_form(content, text):
    block = {"type": "tool_result", "tool_use_id": "t1", "content": content, "is_error": True}
    (event,) = events(claude_code.read_session, user([block], toolUseResult={"stdout": "out"}))
    assert isinstance(event, ToolResultEvent)
    assert (event.call, event.text, event.is_error) == ("t1", text, True)
    assert event.meta is not None
    assert event.meta["toolUseResult"] == {"stdout": "out"}


@pytest.mark.parametrize(
    "metadata",
    [
        {"preservedSegment": {"headUuid": "h", "anchorUuid": "u", "tailUuid": "t"}},
        {
            "preservedSegment": {"headUuid": "x", "tailUuid": "t"},
            "preservedMessages": {"uuids": ["h", "t"], "allUuids": ["h", "t"]},
        },
    ],
)
def test_claude_a_compaction_names_the_first_message_that_it_preserves(metadata):
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "s", "parentUuid": None, **ENVELOPE}
    summary = user("It was fixed.", isCompactSummary=True)
    found = events(
        claude_code.read_session, {**boundary, "compactMetadata": {"preTokens": 9, **metadata}}, summary, summary
    )
    assert [event.kept_from for event in found[1:]] == ["h", None] and found[1].tokens_before == 9


@pytest.mark.parametrize(
    "metadata",
    [
        {"compactMetadata": {"preservedMessages": {"anchorUuid": "s", "uuids": ["h"]}}},
        {"compactMetadata": {"preservedSegment": {"headUuid": "h", "anchorUuid": "s", "tailUuid": "t"}}},
        {"compact_metadata": {"preserved_messages": {"anchor_uuid": "s", "uuids": ["h"]}}},
        {"compact_metadata": {"preserved_segment": {"head_uuid": "h", "anchor_uuid": "s", "tail_uuid": "t"}}},
    ],
)
def test_claude_a_compaction_keeps_the_beginning_if_its_boundary_is_the_anchor(metadata):
    assert claude_code.keeps_beginning({"uuid": "s", **metadata})
    assert not claude_code.keeps_beginning({"uuid": "u", **metadata})
    assert not claude_code.keeps_beginning({"uuid": None}) and not claude_code.keeps_beginning({"uuid": "s"})


def test_claude_images_are_bytes():
    source = {"type": "base64", "media_type": "image/png", "data": b64encode(b"\x89PNG").decode()}
    (event,) = events(claude_code.read_session, user([{"type": "image", "source": source}]))
    assert event == PromptEvent(
        id="u", at=1793527200000, attachments=(Attachment(media_type="image/png", data=b"\x89PNG"),),
        meta={"sessionId": "S", "cwd": "/srv"},
    )  # fmt: skip


def test_claude_a_compaction_has_the_tokens_of_its_boundary():
    boundary = {"type": "system", "subtype": "compact_boundary", "uuid": "s", **ENVELOPE, "content": "Compacted"}
    found = events(
        claude_code.read_session,
        {**boundary, "logicalParentUuid": "a57", "compactMetadata": {"trigger": "auto", "preTokens": 167240}},
        user("Summary", isCompactSummary=True),
        user("Later summary", isCompactSummary=True),
    )
    assert kinds(found) == ["System", "Compaction", "Compaction"]
    assert [event.tokens_before for event in found[1:]] == [167240, None]


def test_claude_sub_agents_and_their_parents_in_all_three_forms():
    inline, beside, stream = events(
        claude_code.read_session,
        user("task", isSidechain=True),
        user("task", isSidechain=True, agentId="ab12", parentUuid="p"),
        {"type": "user", "message": {"content": "task"}, "parent_tool_use_id": "toolu_1", "session_id": "S"},
    )
    assert [event.sidechain for event in (inline, beside, stream)] == ["sidechain", "ab12", "toolu_1"]
    assert beside.parent == "p"


def test_claude_headless_output_has_server_tools_and_unknown_blocks():
    found = events(
        claude_code.read_session,
        {"type": "system", "subtype": "init", "session_id": "S", "tools": []},
        assistant(
            {"type": "server_tool_use", "id": "w", "name": "web_search", "input": {"query": "q"}},
            {"type": "web_search_tool_result", "tool_use_id": "w", "content": [{"type": "web_search_result"}]},
            {"type": "redacted_thinking", "data": "Zm9v"},
            {"type": "hologram", "x": 1},
        ),
        {"type": "system", "subtype": "compact_boundary", "session_id": "S", "compact_metadata": {"pre_tokens": 9}},
        {"type": "stream_event", "event": {}, "session_id": "S"},
        {"type": "result", "subtype": "success", "session_id": "S"},
    )
    assert kinds(found) == [
        "System", "ToolCall", "ToolResult", "Thinking", "Opaque", "Compaction", "Opaque", "Opaque",
    ]  # fmt: skip
    assert (found[2].call, found[3].encrypted, found[4].data) == ("w", "Zm9v", {"type": "hologram", "x": 1})
    assert found[5].tokens_before == 9


# --- codex ---


@pytest.mark.parametrize("kind", [[], {}, None, 1, True])
def test_a_non_text_type_makes_an_opaque_event(kind):
    readers = (codex.read_rollout, codex_exec.read_exec, pi.read_session, pi.read_stream, opencode.read_run)
    for reader in (*readers, claude_code.read_session):
        assert kinds(events(reader, {"type": kind, "x": 1})) == ["Opaque"]


def item(**payload):
    return {"timestamp": "2026-11-01T10:00:00.000Z", "type": "response_item", "payload": payload}


def said(text, role="user"):
    return item(type="message", role=role, content=[{"type": "input_text", "text": text}])


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    "text",
    [
        "# AGENTS.md instructions are wrong: they name a file that is gone",
        "<skill> in my prompt does nothing",
        "<environment_context>x</environment_context> is what you were told?",
    ],
)
def test_codex_a_prompt_that_begins_like_a_text_of_the_harness_is_a_person_s(text):
    shown = {"type": "event_msg", "payload": {"type": "user_message", "message": text}}
    assert kinds(events(codex.read_rollout, said(text), shown)) == ["Prompt", "Opaque"]


@pytest.mark.parametrize(
    ("text", "args"),
    [
        (r'{"cmd": "echo \ud83d"}', {"cmd": "echo \ufffd"}),
        ('{"limit": 9007199254740993, "wait": Infinity}', {"limit": "9007199254740993", "wait": "Infinity"}),
        ('{"cmd": "cut', '{"cmd": "cut'),
        ("[1]", "[1]"),
        ("[" * 5000, "[" * 5000),
    ],
)
def test_arguments_of_codex_are_an_object_of_values_that_a_session_accepts_or_their_text(text, args):
    (call,) = events(codex.read_rollout, item(type="function_call", name="shell", arguments=text, call_id="c1"))
    assert call.args == args


def test_codex_items_are_the_conversation_and_messages_for_the_screen_are_not():
    found = events(
        codex.read_rollout,
        {"type": "session_meta", "payload": {"id": "T", "base_instructions": {"text": "Be brief."}}},
        {"type": "turn_context", "payload": {"model": "gpt-x"}},
        said("<environment_context>x</environment_context>"),
        said("# AGENTS.md instructions for /srv\n\n<INSTRUCTIONS>\nBe brief.\n</INSTRUCTIONS>\n"),
        said("\n# Files mentioned by the user:\n\n## My request for Codex:\nadd it"),
        {"type": "event_msg", "payload": {"type": "user_message", "message": "accept tabs"}},
        item(type="reasoning", summary=[{"type": "summary_text", "text": "look"}], encrypted_content="gAAA"),
        item(type="function_call", name="exec_command", arguments='{"cmd":"ls"}', call_id="c1", id="fc_1"),
        item(type="function_call_output", call_id="c1", output="a\n"),
        item(type="custom_tool_call", name="apply_patch", input="*** Begin Patch", call_id="c2"),
        item(type="custom_tool_call_output", call_id="c2", output={"content": "no", "success": False}),
        said("done", role="assistant"),
        said("rules", role="developer"),
        {"type": "compacted", "payload": {"message": "SUMMARY", "replacement_history": []}},
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 2}},
        {"type": "never_seen", "payload": {}},
    )
    assert kinds(found) == [
        "System", "Opaque", "System", "System", "Prompt", "Opaque", "Thinking", "ToolCall", "ToolResult", "ToolCall",
        "ToolResult", "Response", "System", "Compaction", "Opaque", "Opaque",
    ]  # fmt: skip
    assert found[0].text == "Be brief."
    assert (found[6].text, found[6].encrypted, found[6].model) == ("look", "gAAA", "gpt-x")
    assert (found[7].call, found[7].args, found[8].call, found[8].text) == ("c1", {"cmd": "ls"}, "c1", "a\n")
    assert (found[9].args, found[10].is_error) == ("*** Begin Patch", True)
    assert found[13].summary == "SUMMARY"


def test_codex_rollouts_of_before_the_envelope_are_read():
    found = events(
        codex.read_rollout,
        {"id": "T", "timestamp": "2025-07-01T10:00:00.000Z", "instructions": "x"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
    )
    assert kinds(found) == ["Opaque", "Prompt"]


def test_codex_headless_output():
    command = {"id": "i1", "type": "command_execution", "command": "ls", "aggregated_output": "a", "exit_code": 1}
    result = {"content": [{"type": "text", "text": "ok"}]}
    tool = {"id": "i2", "type": "mcp_tool_call", "server": "s", "tool": "t", "arguments": {"x": 1}, "result": result}
    found = events(
        codex_exec.read_exec,
        {"type": "thread.started", "thread_id": "T"},
        {"type": "item.started", "item": command},
        {"type": "item.completed", "item": command},
        {"type": "item.completed", "item": tool},
        {"type": "item.completed", "item": {"id": "i3", "type": "agent_message", "text": "done"}},
        {"type": "turn.completed", "usage": {"input_tokens": 10, "cached_input_tokens": 4, "output_tokens": 3}},
        {"type": "turn.failed", "error": {"message": "overloaded"}},
    )
    assert kinds(found) == [
        "Opaque", "Opaque", "ToolCall", "ToolResult", "ToolCall", "ToolResult", "Response", "Opaque", "System",
    ]  # fmt: skip
    assert (found[3].text, found[3].is_error, found[4].tool, found[5].text) == ("a", True, "s.t", "ok")
    assert (found[7].usage, found[8].text) == (Usage(input=6, output=3, cache_read=4), "overloaded")


# --- pi ---


def test_pi_entries_of_a_tree():
    def entry(kind, id, parent, **more):
        return {"type": kind, "id": id, "parentId": parent, "timestamp": "2026-11-01T10:00:00.000Z", **more}

    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {"path": "p.py"}}
    usage = {"input": 900, "output": 40, "cacheRead": 1, "cacheWrite": 2, "cost": {"total": 0.01}}
    found = events(
        pi.read_session,
        {"type": "session", "version": 3, "id": "S", "timestamp": "2026-11-01T10:00:00.000Z", "cwd": "/srv"},
        entry("message", "1", None, message={"role": "system", "content": "", "sections": {"a": "A", "b": None}}),
        entry("message", "2", "1", message={"role": "user", "content": "accept tabs"}),
        entry("message", "3", "2", message={"role": "assistant", "model": "m", "content": [call], "usage": usage}),
        entry("message", "4", "3", message={"role": "toolResult", "toolCallId": "c1", "content": [], "isError": True}),
        entry("compaction", "5", "4", summary="S", firstKeptEntryId="4", tokensBefore=100),
        entry("branch_summary", "6", "5", summary="left", fromId="2"),
        entry("message", "7", "6", message={"role": "bashExecution", "command": "ls", "output": "a", "exitCode": 0}),
        entry("message", "8", "7", message={"role": "assistant", "content": [], "stopReason": "error"}),
        entry("label", "9", "8", targetId="2"),
        entry("usage", "10", "9", provider="p", model="m", usage={"input": 3, "cacheRead": 50_000}),
    )
    assert kinds(found) == [
        "Opaque", "System", "Prompt", "ToolCall", "ToolResult", "Compaction", "System", "System", "Response", "Opaque",
        "Opaque",
    ]  # fmt: skip
    assert (found[1].text, found[2].parent) == ("A", "1")
    assert found[10].usage == Usage(input=3, cache_read=50_000), "tokens that were billed beside the responses"
    assert found[3].usage == Usage(input=900, output=40, cache_read=1, cache_write=2)
    assert (found[5].kept_from, found[5].tokens_before, found[8].stop_reason) == ("4", 100, "error")


def test_pi_blocks_of_unknown_types_are_kept_under_their_type():
    blocks = [{"type": "hologram", "x": 1}, "bare"]
    message = {"role": "assistant", "content": blocks}
    found = events(pi.read_session, {"type": "message", "id": "1", "message": message})
    assert [(each.kind, each.data) for each in found] == [("hologram", blocks[0]), ("untyped", "bare")]


def test_pi_headless_output_counts_each_message_once():
    message = {"role": "assistant", "content": [{"type": "text", "text": "hi"}], "usage": {"input": 5, "output": 2}}
    found = list(
        pi.read_stream(
            numbered(
                {"type": "message_start", "message": message},
                {"type": "message_update", "message": message},
                {"type": "message_end", "message": message},
                {"type": "turn_end", "message": message, "toolResults": []},
                {"type": "agent_end", "messages": [message]},
            )
        )
    )
    assert kinds(entry.event for entry in found) == ["Opaque", "Opaque", "Response", "Opaque", "Opaque"]
    assert total_usage(found) == Usage(input=5, output=2)


# --- opencode ---


def tool_part(status, **state):
    return {"type": "tool", "callID": "c", "tool": "read", "state": {"status": status, "input": {"p": 1}, **state}}


def test_opencode_messages_and_parts():
    info = {"id": "msg_1", "role": "assistant", "modelID": "m", "time": {"created": 9}, "tokens": {
        "input": 10, "output": 40, "reasoning": 5, "cache": {"read": 900, "write": 1}}}  # fmt: skip
    parts = [
        {"type": "step-start"},
        {"type": "reasoning", "text": "hm"},
        {"type": "text", "text": "I read."},
        tool_part("completed", output="def parse"),
        tool_part("error", error="gone"),
        tool_part("running"),
    ]
    document = {"info": {"id": "ses"}, "messages": [{"info": info, "parts": parts}]}
    lines_found = [Line(number, record) for number, record in enumerate(export_records(document))]
    found = list(opencode.read_session(lines_found))
    assert kinds(entry.event for entry in found) == [
        "Opaque", "Opaque", "Opaque", "Thinking", "Response", "ToolCall", "ToolResult", "ToolCall", "ToolResult",
        "ToolCall",
    ]  # fmt: skip
    assert [entry.event.text for entry in found if isinstance(entry.event, ToolResultEvent)] == ["def parse", "gone"]
    assert total_usage(found) == Usage(input=10, output=45, cache_read=900, cache_write=1)


def test_opencode_a_summary_message_is_a_compaction():
    info = {"id": "msg_2", "role": "assistant", "summary": True, "finish": "stop", "time": {"created": 9}}
    (event,) = opencode.message_events(info, [{"type": "text", "text": "so far"}])
    assert isinstance(event, CompactionEvent)
    assert event.summary == "so far"


def database(path, *, second):
    with sqlite3.connect(path) as made:
        made.execute("PRAGMA journal_mode = WAL")
        made.execute("CREATE TABLE session (id TEXT, title TEXT)")
        made.execute("CREATE TABLE message (id TEXT, session_id TEXT, time_created INTEGER, data TEXT)")
        made.execute("CREATE TABLE part (id TEXT, message_id TEXT, data TEXT)")
        for session in ("ses_a", "ses_b"):
            made.execute("INSERT INTO session VALUES (?, 'old')", (session,))
            made.execute("INSERT INTO message VALUES (?, ?, 1, ?)", (f"m{session}", session, '{"role": "user"}'))
            part = json.dumps({"type": "text", "text": f"first of {session}"})
            made.execute("INSERT INTO part VALUES ('p', ?, ?)", (f"m{session}", part))
        if second:
            made.execute("CREATE TABLE session_v2 (id TEXT)")
            made.execute("CREATE TABLE session_message (id TEXT, session_id TEXT, type TEXT, seq INTEGER, data TEXT)")
            rows = [("user", {"text": "again"}), ("assistant", {"content": [{"type": "text", "text": "yes"}]})]
            rows += [("compaction", {"status": "completed", "summary": "S"}), ("idle", {"outcome": "succeeded"})]
            for seq, (kind, data) in enumerate(rows):
                made.execute(
                    "INSERT INTO session_message VALUES (?, 'ses_b', ?, ?, ?)", (f"r{seq}", kind, seq, json.dumps(data))
                )
            made.execute("INSERT INTO session_message VALUES ('bad', 'ses_b', 'user', 9, '{broken')")
    made.close()


@pytest.mark.parametrize("second", [False, True])
def test_opencode_a_session_of_both_generations_is_read_once(tmp_path, second):
    database(tmp_path / "opencode.db", second=second)
    before = (tmp_path / "opencode.db").read_bytes()
    format, found = read(tmp_path / "opencode.db")
    found = list(found)
    shown = [entry.event for entry in found]
    assert format == "opencode-sqlite"
    prompts = [event.text for event in shown if isinstance(event, PromptEvent)]
    assert prompts == (["again", "first of ses_a"] if second else ["first of ses_a", "first of ses_b"])
    assert [event.data for event in shown if getattr(event, "kind", None) == "damaged"] == ["{broken"] * second
    rows = {"ses_a": [0, 1, 2], "ses_b": [0, 1, 2, 3, 4, 5] if second else [0, 1, 2]}
    lines = [*rows["ses_b"], *rows["ses_a"]] if second else [*rows["ses_a"], *rows["ses_b"]]
    assert [line for line, _ in groupby(entry.line for entry in found)] == lines, (
        "rows of a session are numbered from 1, itself is 0, and its state is the last one"
    )
    assert (tmp_path / "opencode.db").read_bytes() == before, "a source is only read"


# --- formats ---


@pytest.mark.parametrize(
    ("record", "format"),
    [
        ({"type": "user", "uuid": "u", "sessionId": "S"}, "claude-code"),
        ({"type": "summary", "leafUuid": "u"}, "claude-code"),
        ({"type": "session", "id": "a", "parentSession": "b.jsonl", "timestamp": "t"}, "pi"),
        ({"type": "system", "subtype": "init", "session_id": "S"}, "claude-stream-json"),
        ({"type": "session_meta", "payload": {}}, "codex"),
        ({"type": "thread.started"}, "codex-exec-json"),
        ({"type": "session", "version": 3, "id": "S"}, "pi"),
        ({"type": "agent_start"}, "pi-json-mode"),
        ({"type": "step_start", "part": {}}, "opencode-run-json"),
        ({"hello": 1}, None),
    ],
)
def test_a_format_is_known_by_its_records(record, format):
    assert format_of([record]) == format


@pytest.mark.requirement("IMP-6")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    "unknown",
    [
        {"type": "future", "payload": {"a": 1}},
        {"type": "future", "payload": {"a": 1}, "sessionId": "S"},
        {"type": "future", "part": 2},
        {"type": "turn.stats"},
        {"type": "thread.stats", "timestamp": "2026-11-01T10:00:00.000Z"},
        {"type": "future", "session_id": "S"},
        {"type": "turn_stats", "message": "m"},
        {"type": "future", "messageId": "m", "uuid": "u"},
    ],
    ids=lambda record: "-".join(record),
)
@pytest.mark.parametrize(
    ("record", "format"),
    [
        ({"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "S"}, "claude-code"),
        ({"type": "assistant", "session_id": "S", "uuid": "u", "message": {}}, "claude-stream-json"),
        ({"type": "response_item", "timestamp": "t", "payload": {}}, "codex"),
        ({"type": "item.completed", "item": {}}, "codex-exec-json"),
        ({"type": "message", "id": "i", "parentId": None, "timestamp": "t", "message": {}}, "pi"),
        ({"type": "session", "id": "i", "timestamp": "t", "cwd": "/"}, "pi"),
        ({"type": "message_end", "message": {}}, "pi-json-mode"),
        ({"type": "text", "timestamp": 1, "sessionID": "S", "part": {}}, "opencode-run-json"),
        ({"row": "r", "parts": []}, "opencode"),
    ],
)
def test_a_record_of_an_unknown_kind_does_not_change_the_format(record, format, unknown, place):
    known = [record, record] if "sessionId" in unknown else [record]
    assert format_of([*known[:place], unknown, *known[place:]]) == format


def test_a_file_of_no_known_format_is_refused_by_its_name(tmp_path):
    for name, text in (("a.jsonl", '{"x": 1}\n'), ("empty.jsonl", ""), ("a.json", '{"x": 1}')):
        (tmp_path / name).write_text(text)
        with pytest.raises(UnknownFormat, match=name):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("source", "media_type", "data", "url"),
    [
        ("aGk=", "image/png", b"hi", None),
        ("data:image/gif;base64,aGk=", "image/gif", b"hi", None),
        ("https://host/a.png", "image/png", None, "https://host/a.png"),
        ("a b=", "image/png", None, "a b="),
        ("aGk", "image/png", None, "aGk"),
        ("a.Gk=", "image/png", None, "a.Gk="),
    ],
)
def test_an_attachment_is_its_bytes_where_the_text_is_base64_and_an_address_elsewhere(source, media_type, data, url):
    assert attachment_of("image/png", source, "n") == Attachment(media_type=media_type, name="n", data=data, url=url)
