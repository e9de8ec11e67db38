"""Records of each harness without the events that a session has already."""

from typing import Any

import msgspec
import pytest

from ctxd.imports.existing_events import ExistingEvents
from ctxd.transcripts.format_detection import LINE_READERS, Format
from ctxd.transcripts.hook_events import another_call_id
from ctxd.transcripts.record_decoding import Line
from ctxd.transcripts.source_lines import SourceLine
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.secret_types import SecretFound, Secrets

CLAUDE = {
    "type": "assistant", "uuid": "u", "parentUuid": None, "sessionId": "s",
    "message": {"role": "assistant", "id": "m", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"}, {"type": "text", "text": "look  here"},
        {"type": "tool_use", "id": "c1", "name": "Bash", "input": {}}]},
}  # fmt: skip
IMAGE = {
    "type": "response_item", "timestamp": "2026-01-02T03:04:05.000Z",
    "payload": {"type": "message", "role": "user", "content": [
        {"type": "input_text", "text": "see this"}, {"type": "input_text", "text": "<image>"},
        {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]},
}  # fmt: skip
PI = {
    "type": "message", "id": "e", "parentId": None, "timestamp": "2026-01-02T03:04:05.000Z",
    "message": {"role": "assistant", "content": [
        {"type": "text", "text": "look"}, {"type": "toolCall", "id": "c1", "name": "bash", "arguments": {}}]},
}  # fmt: skip


def read(format: Format, record: dict[str, Any]) -> list[Event]:
    return [entry.event for entry in LINE_READERS[format]([Line(1, record)])]


@pytest.mark.parametrize(
    ("format", "record", "known", "left"),
    [
        ("claude-code", CLAUDE, [ToolCallEvent(call="c1", tool="Bash")], ["ThinkingEvent", "ResponseEvent"]),
        ("claude-code", CLAUDE, [ResponseEvent(text="look here")], ["ThinkingEvent", "ToolCallEvent"]),
        ("claude-code", CLAUDE, [ToolResultEvent(call="c1")], ["ThinkingEvent", "ResponseEvent", "ToolCallEvent"]),
        ("pi", PI, [ToolCallEvent(call="c1", tool="bash")], ["ResponseEvent"]),
        ("pi", PI, [ToolCallEvent(call="c1", tool="bash"), ResponseEvent(text="look")], []),
    ],
)
def test_a_record_keeps_the_events_that_the_session_lacks(
    format: Format, record: dict[str, Any], known: list[Event], left: list[str]
) -> None:
    line = SourceLine(9, msgspec.json.encode(record) + b"\n", record, b"")
    found = ExistingEvents(known, 0, 1).without(line, read(format, record))
    assert found.record is not None
    assert [type(event).__name__ for event in (read(format, found.record) if found.to_store else [])] == left
    assert not found.to_store or msgspec.json.decode(found.to_store) == found.record


def test_a_prompt_with_an_image_keeps_the_image_alone() -> None:
    line = SourceLine(9, b"{}", IMAGE, b"")
    (prompt,) = read("codex", IMAGE)
    assert isinstance(prompt, PromptEvent)
    found = ExistingEvents([PromptEvent(text=prompt.text)], 0, 1).without(line, [prompt])
    assert b"see this" not in found.to_store and b"image/png" in found.to_store


def test_each_recorded_event_is_skipped_once_per_occurrence_but_none_imported_before() -> None:
    record = {"type": "user", "uuid": "u", "parentUuid": None, "sessionId": "s", "message": {"content": "go on"}}
    recorded = ExistingEvents([PromptEvent(text="go on\n")] * 2, 10, 1)
    lines = [SourceLine(end, b"{}", record, b"") for end in (10, 20, 30, 40)]
    assert [bool(recorded.without(line, read("claude-code", record)).to_store) for line in lines] == [
        True, False, False, True,
    ]  # fmt: skip
    assert recorded.left_out == 2


REDACTED = Secrets(policy="redact", found=(SecretFound(rule="gitlab-token", tag="0a1b2c3d"),))
FLAGGED = Secrets(policy="flag", found=(SecretFound(rule="gitlab-token", tag="0a1b2c3d"),))


@pytest.mark.requirement("HOK-14")
@pytest.mark.parametrize("id", [None, "turn-1"])
@pytest.mark.parametrize("kind", [PromptEvent, ResponseEvent])
def test_a_text_with_secrets_is_known_whether_it_was_flagged_or_redacted(
    kind: type[PromptEvent | ResponseEvent], id: str | None
) -> None:
    def redact(text: str) -> str:
        return text.replace("glpat-x", "[REDACTED:gitlab-token:ffffffff]")

    def left(recorded: ExistingEvents, text: str) -> bytes:
        return recorded.without(SourceLine(9, b"{}\n", {}, b""), [kind(text=text)]).to_store

    stored = kind(id=id, text="use [REDACTED:gitlab-token:0a1b2c3d] twice", secrets=REDACTED)
    recorded = ExistingEvents([stored, stored], 0, 1, redact=redact)
    assert [left(recorded, "use glpat-x twice") for _ in range(3)] == [b"", b"", b"{}\n"]
    assert left(ExistingEvents([stored], 0, 1, redact=redact), "use glpat-x once") == b"{}\n"
    flagged = ExistingEvents([kind(id=id, text="use glpat-x twice", secrets=FLAGGED)], 0, 1, redact=redact)
    assert left(flagged, "use glpat-x twice") == b""


@pytest.mark.requirement("HOK-14")
@pytest.mark.parametrize("args", ["", "two words", "if a < b"])
def test_a_slash_command_is_known_as_the_prompt_that_was_typed(args: str) -> None:
    text = (
        f"<command-message>hi</command-message>\n<command-name>/hi</command-name>\n<command-args>{args}</command-args>"
    )
    (event,) = read("claude-code", {**CLAUDE, "type": "user", "message": {"role": "user", "content": text}})
    recorded = ExistingEvents([PromptEvent(text=f"/hi {args}")], 0, 1)
    assert not recorded.is_over
    assert recorded.without(SourceLine(9, b"{}\n", {}, b""), [event]).to_store == b"" and recorded.is_over
    assert recorded.without(SourceLine(9, b"{}\n", {}, b""), [event]).to_store == b"{}\n", "it was typed once"


@pytest.mark.requirement("HOK-14")
def test_a_slash_command_is_known_whose_secret_was_redacted() -> None:
    text = "<command-name>/hi</command-name>\n<command-args>glpat-x</command-args>"
    (event,) = read("claude-code", {**CLAUDE, "type": "user", "message": {"role": "user", "content": text}})
    stored = PromptEvent(id="p", text="/hi [REDACTED:gitlab-token:0a1b2c3d]", secrets=REDACTED)
    recorded = ExistingEvents(
        [stored], 0, 1, redact=lambda text: text.replace("glpat-x", "[REDACTED:gitlab-token:ffffffff]")
    )
    assert recorded.without(SourceLine(9, b"{}\n", {}, b""), [event]).to_store == b"" and recorded.is_over


@pytest.mark.requirement("HOK-15")
def test_outputs_of_calls_sharing_a_native_id_are_distinguished() -> None:
    """The second of three calls was denied: only the transcript has its output."""
    arguments = [{"command": command} for command in ("ls", "rm", "pwd")]
    ids = ["call_0", *(another_call_id("call_0", "Bash", args) for args in arguments[1:])]
    made = [ToolCallEvent(call=id, tool="Bash", args=args) for id, args in zip(ids, arguments, strict=True)]
    recorded = ExistingEvents([*made, ToolResultEvent(call=ids[0]), ToolResultEvent(call=ids[2])], 0, 1)
    left = []
    for number, args in enumerate(arguments):
        call = {"type": "tool_use", "id": "call_0", "name": "Bash", "input": args}
        output = {"type": "tool_result", "tool_use_id": "call_0", "content": f"output {number}"}
        for kind, block in (("assistant", call), ("user", output)):
            record = {**CLAUDE, "type": kind, "message": {"role": kind, "content": [block]}}
            line = recorded.without(SourceLine(9, b"{}\n", record, b""), read("claude-code", record))
            left += [block] if line.to_store else []
    assert left == [{"type": "tool_result", "tool_use_id": "call_0", "content": "output 1"}]
    assert recorded.has_met_all
