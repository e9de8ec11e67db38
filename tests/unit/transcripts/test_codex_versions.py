"""Rollouts and headless output of codex as versions before 0.44 wrote them."""

import json
from collections.abc import Iterable
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.formats.codex_v1 import RolloutWriter
from ctxd.formats.losses import Losses
from ctxd.transcripts import codex
from ctxd.transcripts.format_detection import read
from ctxd.transcripts.record_decoding import Line
from ctxd_protocol.event_types import (
    Attachment,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)

Record = dict[str, Any]


def events(tmp_path: Path, records: Iterable[Record]) -> tuple[str, list[Event]]:
    """The format and the events of a file with ``records``."""
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(record) + b"\n" for record in records))
    format, found = read(path)
    return format, [entry.event for entry in found]


def said(role: str, text: str) -> Record:
    kind = "output_text" if role == "assistant" else "input_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize("more", [{"instructions": None}, {}, {"cwd": "/srv/app", "originator": "codex_cli_rs"}])
def test_a_rollout_without_envelopes_has_the_outputs_of_all_calls(tmp_path: Path, more: Record) -> None:
    patch = {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "*** Begin Patch"}
    format, found = events(
        tmp_path,
        [
            {"id": "0f7a", "timestamp": "2025-08-30T10:00:00.000Z", **more},
            {"record_type": "state"},
            said("user", "tabs too"),
            patch,
            {"type": "custom_tool_call_output", "call_id": "c1", "output": "patched"},
            {
                "type": "web_search_call",
                "id": "w1",
                "status": "completed",
                "action": {"type": "search", "query": "tab"},
            },
            {"type": "local_shell_call", "call_id": "c2", "status": "completed", "action": {"type": "exec"}},
            {"type": "local_shell_call_output", "call_id": "c2", "output": "a.tsv"},
            said("assistant", "done"),
        ],
    )
    assert format == "codex"
    assert [each.kind for each in found if isinstance(each, OpaqueEvent)] == ["untyped", "untyped"]
    assert found[2:] == [
        PromptEvent(text="tabs too"),
        ToolCallEvent(call="c1", tool="apply_patch", args="*** Begin Patch"),
        ToolResultEvent(call="c1", text="patched"),
        ToolCallEvent(
            id="w1", call="w1", tool="web_search", args={"type": "search", "query": "tab"}, meta={"status": "completed"}
        ),
        ToolCallEvent(call="c2", tool="local_shell", args={"type": "exec"}, meta={"status": "completed"}),
        ToolResultEvent(call="c2", text="a.tsv"),
        ResponseEvent(text="done"),
    ]


@pytest.mark.requirement("IMP-16")
@pytest.mark.parametrize("output", ["aggregated_output", "output"])
def test_items_that_name_their_kind_in_another_member_are_items(tmp_path: Path, output: str) -> None:
    ran = {"id": "i1", "item_type": "command_execution", "command": "ls", output: "a", "exit_code": 0}
    format, found = events(
        tmp_path,
        [
            {"type": "session.created", "session_id": "0199"},
            {"type": "item.completed", "item": {"id": "i0", "item_type": "reasoning", "text": "look"}},
            {"type": "item.completed", "item": ran},
            {"type": "item.completed", "item": {"id": "i2", "item_type": "assistant_message", "text": "done"}},
        ],
    )
    assert format == "codex-exec-json"
    assert [type(each) for each in found] == [OpaqueEvent, ThinkingEvent, ToolCallEvent, ToolResultEvent, ResponseEvent]
    assert found[2:4] == [
        ToolCallEvent(id="i1", call="i1", tool="command_execution", args={"command": "ls"}),
        ToolResultEvent(id="i1", call="i1", text="a", meta={"exit_code": 0}),
    ]
    assert found[4] == ResponseEvent(id="i2", text="done")


@pytest.mark.requirement("IMP-16")
def test_headless_output_of_messages_has_the_whole_conversation(tmp_path: Path) -> None:
    def message(kind: str, **payload: Any) -> Record:
        return {"id": "0", "msg": {"type": kind, **payload}}

    total = {"input_tokens": 9000, "cached_input_tokens": 8000, "output_tokens": 30}
    failed = {"call_id": "c3", "result": {"Err": "no such tool"}}
    format, found = events(
        tmp_path,
        [
            {"model": "gpt-x", "provider": "openai", "workdir": "/srv/app", "sandbox": "read-only"},
            {"prompt": "tabs too"},
            message("task_started", model_context_window=1),
            message("agent_reasoning", text="look"),
            message("exec_command_begin", call_id="c1", command=["bash", "-lc", "ls"], cwd="/srv/app"),
            message("exec_command_end", call_id="c1", stdout="a", stderr="b", exit_code=1, formatted_output="a\nb"),
            message("patch_apply_begin", call_id="c2", auto_approved=True, changes={"p.py": {"add": {"content": ""}}}),
            message("patch_apply_end", call_id="c2", stdout="Success", stderr="", success=True),
            message(
                "mcp_tool_call_begin", call_id="c3", invocation={"server": "s", "tool": "t", "arguments": {"q": 1}}
            ),
            message("mcp_tool_call_end", **failed),
            message("mcp_tool_call_begin", call_id="c4", invocation={"server": "s", "tool": "t", "arguments": {}}),
            message("mcp_tool_call_end", call_id="c4", result={"Ok": {"content": [{"type": "text", "text": "7"}]}}),
            message("web_search_end", call_id="w1", query="tab"),
            message("agent_message", message="done"),
            message("token_count", info={"total_token_usage": total}),
            message("error", message="stream closed"),
        ],
    )
    assert format == "codex-exec-json"
    spoken = [each for each in found if not isinstance(each, OpaqueEvent)]
    assert spoken == [
        PromptEvent(text="tabs too"),
        ThinkingEvent(text="look"),
        ToolCallEvent(call="c1", tool="exec_command", args={"command": ["bash", "-lc", "ls"], "cwd": "/srv/app"}),
        ToolResultEvent(call="c1", text="a\nb", is_error=True, meta={"stdout": "a", "stderr": "b", "exit_code": 1}),
        ToolCallEvent(
            call="c2", tool="patch_apply", args={"auto_approved": True, "changes": {"p.py": {"add": {"content": ""}}}}
        ),
        ToolResultEvent(call="c2", text="Success", meta={"stderr": "", "success": True}),
        ToolCallEvent(call="c3", tool="s.t", args={"q": 1}),
        ToolResultEvent(call="c3", text="no such tool", is_error=True, meta={"result": {"Err": "no such tool"}}),
        ToolCallEvent(call="c4", tool="s.t", args={}),
        ToolResultEvent(call="c4", text="7"),
        ToolCallEvent(call="w1", tool="web_search", args={"query": "tab"}),
        ResponseEvent(text="done"),
        SystemEvent(text="stream closed", kind="error"),
    ]
    kinds = {each.kind: each.usage for each in found if isinstance(each, OpaqueEvent)}
    assert kinds == {
        "untyped": None, "task_started": None,
        "token_count": Usage(input=1000, output=30, cache_read=8000),
    }  # fmt: skip


def event(kind: str, **payload: Any) -> Record:
    return {"type": "event_msg", "timestamp": "2026-01-02T03:04:05.000Z", "payload": {"type": kind, **payload}}


@pytest.mark.requirement("IMP-18")
def test_a_rollout_without_messages_among_its_items_has_them_in_its_events(tmp_path: Path) -> None:
    meta = {"type": "session_meta", "payload": {"id": "T"}}
    records = [
        meta,
        event("user_message", message="tabs too", images=["data:image/png;base64,aGk=", 7], client_id="cli"),
        event("agent_reasoning", text="hm"),
        event("token_count", info=None),
        event("agent_message", message="done"),
        event("user_message", message="<environment_context>x</environment_context>"),
        event("user_message", message=None, images="none"),
    ]
    format, found = events(tmp_path, records)
    assert format == "codex-events"
    kinds = [type(each).__name__.removesuffix("Event") for each in found]
    assert kinds == ["System", "Prompt", "Thinking", "Opaque", "Response", "System", "Prompt"]
    prompt, said_by_model = found[1], found[4]
    assert isinstance(prompt, PromptEvent) and isinstance(said_by_model, ResponseEvent)
    assert (prompt.text, prompt.at, len(prompt.attachments)) == ("tabs too", 1767323045000, 1)
    assert prompt.meta == {"client_id": "cli"} and said_by_model.text == "done"
    item = {"type": "response_item", "payload": said("user", "tabs too")}
    format, found = events(tmp_path, [*records, item])
    assert format == "codex", "its items are the conversation"
    assert [type(each).__name__ for each in found].count("PromptEvent") == 1
    assert events(tmp_path, [meta, event("token_count", info=None)])[0] == "codex", "no conversation yet"


@pytest.mark.requirement("IMP-18")
@pytest.mark.parametrize(
    "other",
    [
        event("message", role="user", content=[{"type": "input_text", "text": "a"}]),
        event("raw_response_item", item=said("user", "a")),
        {"payload": said("user", "a"), "type": "event_msg"},
        {"type": "response_item", "payload": {"type": "function_call_output", "output": [said("user", "a")]}},
        {"type": "compacted", "payload": {"message": "", "replacement_history": [said("user", "a")]}},
        {"type": "world_state", "payload": said("user", "a")},
    ],
    ids=["event", "in an event", "type last", "in an output", "in a compaction", "unknown"],
)
def test_a_message_outside_an_item_hides_no_conversation(tmp_path: Path, other: Record) -> None:
    records = [{"type": "session_meta", "payload": {"id": "T"}}, other, event("user_message", message="a"), other]
    format, found = events(tmp_path, records)
    assert format == "codex-events"
    assert [each.text for each in found if isinstance(each, PromptEvent)] == ["a"]
    item = {"payload": said("user", "a"), "type": "response_item"}
    assert events(tmp_path, [*records, item])[0] == "codex"
    assert events(tmp_path, [*records, said("user", "a")])[0] == "codex", "an item without an envelope"


@pytest.mark.requirement("IMP-18")
@pytest.mark.parametrize("place", range(-180, 30, 7))
def test_a_message_of_an_event_in_a_long_line_hides_no_conversation(
    place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex, "WHOLE_LINE_BYTES_MAX", 1000)
    start = json.dumps(event("user_message", message="a")).encode() + b"\n"
    long = {"payload": {"text": "x" * (1000 + place), **said("user", "b")}, "type": "event_msg"}
    other = json.dumps(long).encode() + b"\n"
    assert codex.conversation_in_events(BytesIO(start + other)) == start.index(b'"type": "user_message"')
    item = json.dumps({**long, "type": "response_item"}).encode() + b"\n"
    assert codex.conversation_in_events(BytesIO(start + other + item)) is None
    assert codex.conversation_in_events(BytesIO(start + other + item[:-2])) is None, "it is still being written"


@pytest.mark.requirement("IMP-18")
def test_a_message_that_is_an_event_and_an_item_counts_once() -> None:
    texts = [("event", "yes"), ("item", "yes"), ("item", "go"), ("event", "go"), ("event", "yes"), ("event", "yes")]
    lines = [
        event("user_message", message=text)
        if kind == "event"
        else {"type": "response_item", "payload": said("user", text)}
        for kind, text in texts
    ]
    found = [entry.event for entry in codex.read_events(Line(number, line) for number, line in enumerate(lines))]
    assert [each.text for each in found if isinstance(each, PromptEvent)] == ["yes", "go", "yes", "yes"]
    assert [each.kind for each in found if isinstance(each, OpaqueEvent)] == ["message", "event_msg.user_message"]


@pytest.mark.requirement("IMP-18")
@pytest.mark.parametrize("place", range(-40, 40, 3))
def test_an_item_is_found_wherever_a_file_is_cut(place: int) -> None:
    start = json.dumps(event("user_message", message='a "type":"message" in a text')).encode() + b"\n"
    item = json.dumps({"type": "response_item", "payload": said("user", "b")}).encode()
    filler = b" " * (64 * 1024 + place - len(start) - item.index(b'"message"'))
    assert codex.conversation_in_events(BytesIO(start + filler)) == start.index(b'"type": "user_message"')
    assert codex.conversation_in_events(BytesIO(filler + start)) == len(filler) + start.index(b'"type": "user_message"')
    assert codex.conversation_in_events(BytesIO(start + filler + item)) is None


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ('<hook_prompt hook_run_id="stop:0:hooks.json">Run the linter.</hook_prompt>', "hook_prompt"),
        ('<codex_internal_context source="goal">\nGo on.\n</codex_internal_context>', "codex_internal_context"),
        ("<goal_context>\nGo on.\n</goal_context>", "goal_context"),
        ("<extension_context>\n<example>x</example>\n</extension_context>", "extension_context"),
        ("<external_slack>\nA thread.\n</external_slack>", "external_context"),
        ('<external_context source="slack">\nA thread.\n</external_context>', "external_context"),
        ("<agent_message_board_notification>\nNew post.\n</agent_message_board_notification>\n",
         "agent_message_board_notification"),
        ("<SUBAGENT_NOTIFICATION>{}</subagent_notification>", "subagent_notification"),
        ("# agents.md instructions for /srv\n\n<instructions>\nBe brief.\n</instructions>", "AGENTS.md instructions"),
        ("Warning: The maximum number of unified exec processes you can keep open is 60", "warning"),
        ("Warning: apply_patch was requested via shell. Use the apply_patch tool instead of exec_command.", "warning"),
        ("Warning: Your account was flagged for potentially high-risk cyber activity", "warning"),
    ],
)  # fmt: skip
def test_context_that_codex_writes_as_a_message_of_the_user_is_no_prompt(text: str, kind: str) -> None:
    (found,) = codex.read_rollout([Line(1, said("user", text))])
    assert found.event == SystemEvent(kind=kind, text=text)


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    "text",
    [
        "<hook_prompt> is in my log: why?",
        "<external_ref/> breaks the parser of </external_ref> tags, see below",
        "Warning: apply_patch was requested via shell. What does that mean?",
        "Why this? Warning: The maximum number of unified exec processes you can keep open is 60",
    ],
)
def test_a_prompt_that_only_mentions_context_of_codex_is_a_prompt(text: str) -> None:
    (found,) = codex.read_rollout([Line(1, said("user", text))])
    assert found.event == PromptEvent(text=text)


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("text", "sources", "kind"),
    [
        ("Do not stop yet.", ["harness"], "context"),
        ("Do not stop yet.", ["harness", "tool"], "context"),
        ("Do not stop yet.", ["harness", "user"], None),
        ("Do not stop yet.", ["unknown"], None),
        ("<hook_prompt>Go on.</hook_prompt>", ["harness"], "hook_prompt"),
        ("<user_shell_command>git log</user_shell_command>", ["user"], "user_shell_command"),
    ],
)
def test_the_recorded_source_of_a_message_decides_if_its_text_does_not(
    text: str, sources: list[str], kind: str | None
) -> None:
    parts = [{"provenance": {"type": each}} for each in sources]
    record = {**said("user", text), "internal_chat_message_metadata_passthrough": {"content_item_metadata": parts}}
    (found,) = codex.read_rollout([Line(1, record)])
    assert (found.event.kind if isinstance(found.event, SystemEvent) else None) == kind


@pytest.mark.requirement("IMP-14")
def test_an_image_that_codex_adds_itself_is_not_left_out() -> None:
    record = said("user", "The screen.")
    record["content"].append({"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="})
    parts = [{"provenance": {"type": "harness"}}] * 2
    record["internal_chat_message_metadata_passthrough"] = {"content_item_metadata": parts}
    (found,) = codex.read_rollout([Line(1, record)])
    assert isinstance(found.event, PromptEvent) and found.event.attachments


def content(*parts: str | Record) -> Record:
    """A message of the user with texts and other parts."""
    made = [{"type": "input_text", "text": each} if isinstance(each, str) else each for each in parts]
    return {"type": "message", "role": "user", "content": made}


PIXEL = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
PNG = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("record", "text", "files"),
    [
        (content("<image name=[Image #1]>", PIXEL, "</image>", "[Image #1] why?"), "[Image #1] why?", ["[Image #1]"]),
        (content('<image name=[Image #1] path="a>b.png">', PIXEL, "</image>", "Why?"), "Why?", ["a>b.png"]),
        (content("Why?", "<image>", PIXEL, "</image>"), "Why?", [None]),
        (content("<image>", PIXEL, "</image>", "<image>", PIXEL, "</image>"), "", [None, None]),
        (content("<image>", "is a tag", "</image>"), "<image>\nis a tag\n</image>", []),
    ],
)
def test_the_tags_around_an_image_name_it_and_are_no_text_of_the_prompt(
    record: Record, text: str, files: list[str | None]
) -> None:
    (found,) = codex.read_rollout([Line(1, record)])
    event = PromptEvent(text=text, attachments=tuple(msgspec.structs.replace(PNG, name=name) for name in files))
    assert found.event == event
    (line,) = RolloutWriter(Losses()).add(event)
    (again,) = codex.read_rollout([Line(1, json.loads(line))])
    assert again.event == event, "a session of codex that continues it has the names too"


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("part", "file"),
    [
        ({"type": "input_image", "file_id": "file_abc"}, Attachment(media_type="image/*", url="file_id:file_abc")),
        ({"type": "input_audio", "audio_url": "data:audio/wav;base64,UklGRg=="},
         Attachment(media_type="audio/wav", data=b"RIFF")),
        ({"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
         Attachment(media_type="audio/wav", data=b"RIFF")),
    ],
)  # fmt: skip
def test_an_image_at_the_provider_and_a_sound_are_attachments(part: Record, file: Attachment) -> None:
    (found,) = codex.read_rollout([Line(1, content(part, "And this?"))])
    assert found.event == PromptEvent(text="And this?", attachments=(file,))
    (line,) = RolloutWriter(Losses()).add(found.event)
    (again,) = codex.read_rollout([Line(1, json.loads(line))])
    assert again.event == found.event


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("# Context from my IDE setup:\n\n## Active file: a\n\n## My request for Codex:\nFix it.\n", "Fix it.\n"),
        ("\n# Files mentioned by the user:\n\n## a: /a\n\n## My request:\nFix it.", "Fix it."),
        ("# Context from my IDE setup:\n\n## My request for Codex:\n", "# Context from my IDE setup:"),
        ("See:\n## My request for Codex:\nFix it.", "See:"),
    ],
)
def test_the_request_of_a_prompt_follows_what_an_ide_puts_before_it(text: str, asked: str) -> None:
    assert codex.request_in(text).startswith(asked)


@pytest.mark.requirement("IMP-25")
@pytest.mark.parametrize("code", [0, 1, 127, -1])
@pytest.mark.parametrize(
    "output",
    [
        "Chunk ID: 42e886\nWall time: 0.0000 seconds\nProcess exited with code {}\nOriginal token count: 0\nOutput:\n",
        "Command: /bin/zsh -lc 'a\nb'\nChunk ID: 3ad\nWall time: 0.1 seconds\nProcess exited with code {}\nOutput:\na",
        "Wall time: 1.2 seconds\nProcess exited with code {}\nOutput:\na",
        "Exit code: {}\nWall time: 0.1 seconds\nOutput:\na",
        '{{"output":"a\\n\\"","metadata":{{"exit_code":{},"duration_seconds":0.1}}}}',
    ],
)
def test_a_command_with_another_exit_code_than_0_has_failed(output: str, code: int) -> None:
    item = {"type": "function_call_output", "call_id": "c1", "output": output.format(code)}
    (found,) = codex.read_rollout([Line(1, {"type": "response_item", "payload": item})])
    assert isinstance(found.event, ToolResultEvent) and found.event.is_error == (code != 0)


@pytest.mark.requirement("IMP-25")
@pytest.mark.parametrize(
    "output",
    [
        "Chunk ID: 1\nWall time: 10 seconds\nProcess running with session ID\nOutput:\nProcess exited with code 1\n",
        "Chunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code 0\nOutput:\nExit code: 1\nWall time: 1",
        '{"output":"\\"metadata\\":{\\"exit_code\\":1","metadata":{"exit_code":0,"duration_seconds":0.1}}',
        "no Exit code: 1\nWall time: 1 seconds\n",
    ],
)
def test_an_exit_code_that_a_command_prints_is_not_its_own(output: str) -> None:
    assert not codex.is_failed_command(output)


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize("text", ["<\u017fkill>x</skill>", "<sk\u0131ll>x</skill>"])
def test_a_tag_with_another_letter_is_a_prompt(text: str) -> None:
    (found,) = codex.read_rollout([Line(1, said("user", text))])
    assert found.event == PromptEvent(text=text)


@pytest.mark.requirement("IMP-14")
def test_members_of_other_types_are_passed_over() -> None:
    parts = [{"provenance": {"type": ["harness"]}}]
    record = {**said("user", "Go on."), "internal_chat_message_metadata_passthrough": {"content_item_metadata": parts}}
    (found,) = codex.read_rollout([Line(1, record)])
    assert isinstance(found.event, PromptEvent)
    empty = said("user", "<environment_context>\nCurrent working directory:\n</environment_context>")
    assert codex.directory_in([empty]) == ""
