"""Messages of Claude Code whose records do not say plainly who wrote them, or hold more than text."""

from typing import Any

import pytest

from ctxd.transcripts.claude_code import is_typed, read_session, wrapper_of
from ctxd.transcripts.records import Line
from ctxd_protocol.event_types import Attachment, Event, PromptEvent, ResponseEvent, SystemEvent

ENVELOPE = {"uuid": "u", "parentUuid": "p", "sessionId": "S", "timestamp": "2026-11-01T10:00:00.000Z"}
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def read(record: dict[str, Any]) -> list[Event]:
    return [entry.event for entry in read_session([Line(1, {**ENVELOPE, **record})])]


def queued(prompt: object, **more: object) -> dict[str, Any]:
    return {"type": "attachment", "attachment": {"type": "queued_command", "prompt": prompt, **more}}


# --- typed while the model worked ---


@pytest.mark.parametrize(
    ("prompt", "files"),
    [
        ("and this", ()),
        ([{"type": "text", "text": "and this"}], ()),
        ([{"type": "text", "text": "and this"}, PNG], (Attachment(media_type="image/png", data=b"hi"),)),
    ],
    ids=["string", "blocks", "image"],
)
@pytest.mark.parametrize("mode", [{}, {"commandMode": "prompt"}, {"origin": {"kind": "human"}}])
def test_a_message_typed_while_the_model_worked_is_a_prompt(
    prompt: object, files: tuple[Attachment, ...], mode: dict[str, object]
) -> None:
    (event,) = read(queued(prompt, **mode))
    assert isinstance(event, PromptEvent)
    assert (event.text, event.attachments, event.id, event.parent) == ("and this", files, "u", "p")
    assert event.meta == {"sessionId": "S", "attachment": {"type": "queued_command", **mode}}
    assert not is_typed(event), "it belongs to the step in which it came, and begins no branch"


@pytest.mark.parametrize(
    "more",
    [{"isMeta": True}, {"origin": {"kind": "peer"}}, {"commandMode": "task-notification"}],
    ids=["meta", "peer", "task"],
)
def test_a_queued_message_that_no_person_typed_is_a_notice(more: dict[str, object]) -> None:
    (event,) = read(queued("go on", **more))
    assert isinstance(event, SystemEvent) and (event.text, event.kind) == ("go on", "meta")


def test_records_about_the_queue_and_other_attachments_are_kept_as_they_are() -> None:
    for record in (
        {"type": "queue-operation", "operation": "enqueue", "content": "and this"},
        {"type": "attachment", "attachment": {"type": "todo_reminder", "prompt": "and this"}},
        queued(None),
        {"type": "attachment", "attachment": None},
    ):
        (event,) = read(record)
        assert getattr(event, "data", None) == {**ENVELOPE, **record}


# --- what the harness says in another's name ---


@pytest.mark.parametrize("flag", [{"isApiErrorMessage": True}, {"error": "rate_limit"}], ids=["session", "headless"])
def test_an_error_of_the_api_is_a_notice_and_not_the_model_s_words(flag: dict[str, object]) -> None:
    message = {"id": "m", "role": "assistant", "model": "<synthetic>", "stop_reason": "stop_sequence"}
    text = {"type": "text", "text": "API Error: overloaded"}
    (event,) = read({"type": "assistant", "message": {**message, "content": [text]}, **flag})
    assert isinstance(event, SystemEvent)
    assert (event.text, event.kind, event.id, event.message) == ("API Error: overloaded", "api_error", "u", "m")
    assert event.meta == {"sessionId": "S", **flag, "message": {"model": "<synthetic>", "stop_reason": "stop_sequence"}}
    (event,) = read({"type": "assistant", "message": {**message, "content": "API Error: 529"}, **flag})
    assert isinstance(event, SystemEvent) and event.text == "API Error: 529"


def test_an_answer_that_claude_code_has_made_itself_is_one_that_its_model_sees() -> None:
    text = {"type": "text", "text": "No response requested."}
    (event,) = read({"type": "assistant", "message": {"id": "m", "model": "<synthetic>", "content": [text]}})
    assert isinstance(event, ResponseEvent) and event.text == text["text"]


# --- text in tags ---

REMINDER = "<system-reminder>Mind it.</system-reminder>"


@pytest.mark.parametrize(
    "text",
    [
        "<system-reminder> blocks are in my log, why?",
        f"{REMINDER}\nWhat is this for?",
        f"{REMINDER} and {REMINDER}",
        "<bash-stdout> is empty",
        "<command-name>/x</command-name> does nothing",
        "<task-notification is what I see",
    ],
)
def test_a_prompt_that_begins_like_a_text_of_the_harness_is_a_person_s(text: str) -> None:
    for content in (text, [{"type": "text", "text": text}]):
        (event,) = read({"type": "user", "message": {"role": "user", "content": content}})
        assert isinstance(event, PromptEvent) and event.text == text
    assert wrapper_of(text) is None
    (event,) = read({"type": "user", "message": {"role": "user", "content": text}, "isMeta": True})
    assert isinstance(event, SystemEvent)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (f"{REMINDER}\n{REMINDER}\n", "system-reminder"),
        ("<bash-stdout>cat: </bash-stdout> a</bash-stdout><bash-stderr></bash-stderr>", "bash-stdout"),
        ("<command-name>/a</command-name>\n  <command-contents>b</command-contents>", "command-name"),
        ('<teammate-message teammate_id="lead">Go</teammate-message>', "teammate-message"),
        ("<task-notification>\n</task-notification>\nRead the output file: /tmp/x", "task-notification"),
    ],
)
def test_a_text_that_the_harness_has_written_is_closed(text: str, kind: str) -> None:
    assert wrapper_of(text) == kind
