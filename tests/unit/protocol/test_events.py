import msgspec
import pytest

from ctxd_protocol.event_types import (
    Attachment,
    CompactionEvent,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
    event_of,
    message_of,
)
from ctxd_protocol.session_types import Message

EVENTS: list[Event] = [
    PromptEvent(id="1", at=5, text="hi", attachments=(Attachment(media_type="image/png", data=b"\x00\xff"),)),
    ResponseEvent(id="2", parent="1", message="m", text="ho", model="x", usage=Usage(input=3, cache_read=9)),
    ThinkingEvent(text="hm", signature="s"),
    ToolCallEvent(call="c", tool="Bash", args={"command": "ls"}),
    ToolResultEvent(call="c", object="c", is_error=True),
    SystemEvent(text="rules", kind="local_command"),
    CompactionEvent(summary="short", kept_from="2", tokens_before=10, tokens_after=1),
    OpaqueEvent(kind="snapshot", data={"a": [1]}, meta={"version": "2"}),
]


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_kind_of_event_survives_json(event: Event) -> None:
    assert msgspec.json.decode(msgspec.json.encode(event), type=Event) == event


def test_an_unknown_kind_of_event_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError, match="Invalid value 'joke'"):
        msgspec.json.decode(b'{"event":"joke"}', type=Event)


@pytest.mark.parametrize(
    "message",
    [
        Message(role="user", content="a", meta={"k": 1}),
        Message(role="assistant", content="b"),
        Message(role="toolcall", toolcall="t"),
    ],
    ids=lambda message: message.role,
)
def test_a_message_converted_to_an_event_is_the_same_message_again(message: Message) -> None:
    assert message_of(event_of(message)) == message


def test_the_chat_has_no_message_for_events_that_spec_1_does_not_know() -> None:
    shown = [message.role for event in EVENTS if (message := message_of(event)) is not None]
    assert shown == ["user", "assistant", "toolcall"]
    assert message_of(PromptEvent(text="of a sub-agent", sidechain="a1")) is None


def test_model_and_usage_of_a_response_are_in_the_meta_of_its_message() -> None:
    event = ResponseEvent(text="x", model="m", usage=Usage(output=2), meta={"own": True})
    message = message_of(event)
    assert message is not None
    assert message.meta == {"model": "m", "usage": {"output": 2}, "own": True}
