"""Messages of Claude Code whose records do not say plainly who wrote them, or hold more than text."""

from typing import Any

import pytest

from ctxd.transcripts.claude_code import is_typed, read_session
from ctxd.transcripts.records import Line
from ctxd_protocol.event_types import Attachment, Event, PromptEvent, SystemEvent

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
