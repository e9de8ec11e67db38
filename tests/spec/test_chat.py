"""SES: the chat of a session, its turns and the order of its messages."""

import pytest

from ctxd_client import SyncSession
from ctxd_protocol.session_types import Message
from tests.spec.refusal import refused
from tests.spec.sessions import call, said


@pytest.mark.requirement("SES-8")
def test_a_user_message_starts_a_turn_and_messages_keep_their_order_tool_results_included(s: SyncSession) -> None:
    s.assistant("Hello.")
    assert s.user("First.").turn == 1
    one = call(s, "one")
    s.append([Message(role="assistant", content="Let me look."), Message(role="toolcall", toolcall=one)])
    two = call(s, "two")
    appended = s.append(
        [
            Message(role="toolcall", toolcall=two),
            Message(role="assistant", content="Done."),
            Message(role="user", content="Second."),
            Message(role="user", content="Third."),
            Message(role="toolcall", toolcall=one),
        ]
    )
    assert appended.turn == 3
    assert s.view().session.turn_count == 3
    assert said(s) == [
        (0, [("assistant", "Hello.")]),
        (
            1,
            [
                ("user", "First."),
                ("assistant", "Let me look."),
                ("toolcall", one),
                ("toolcall", two),
                ("assistant", "Done."),
            ],
        ),
        (2, [("user", "Second.")]),
        (3, [("user", "Third."), ("toolcall", one)]),
    ]


@pytest.mark.requirement("SES-8")
def test_messages_are_kept_as_they_came_and_the_chat_is_read_in_pages(s: SyncSession) -> None:
    texts = [" ", "CHAT_MESSAGE role=user\n", "Größe \U0001f600\u2028\x00"]
    for text in texts:
        s.user(text, meta={"usage": {"in": 1}, "model": None})
    page = s.client.session_chat(s.id, limit=2)
    rest = s.client.session_chat(s.id, first_turn=page.next_turn or 0, limit=2)
    assert (page.turn_count, page.next_turn, rest.next_turn) == (3, 3, None)
    messages = [message for turn in (*page.turns, *rest.turns) for message in turn["messages"]]
    assert [message.get("content", "") for message in messages] == texts
    assert all(message["meta"] == {"usage": {"in": 1}, "model": None} for message in messages)


@pytest.mark.requirement("SES-8")
@pytest.mark.parametrize(
    "message",
    [
        Message(role="toolcall"),
        Message(role="user"),
        Message(role="toolcall", toolcall="unknown-call"),
        Message(role="user", content="x", toolcall="unknown-call"),
    ],
)
def test_messages_with_an_invalid_one_among_them_are_all_rejected(s: SyncSession, message: Message) -> None:
    with refused("invalid_params", "not_in_index"):
        s.append([Message(role="user", content="good"), message])
    assert said(s) == []
    assert s.view().session.turn_count == 0
