"""Messages of Claude Code whose records do not say plainly who wrote them, or hold more than text."""

from typing import Any

import pytest

from ctxd.transcripts.claude_code import is_typed, read_session, wrapper_of
from ctxd.transcripts.record_decoding import Line
from ctxd_protocol.event_types import (
    Attachment,
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ToolResultEvent,
)

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


@pytest.mark.requirement("IMP-14")
@pytest.mark.parametrize(
    ("version", "changes", "messages"),
    [
        ("2.0.77", ["enqueue", "remove"], ["one"]),
        ("1.0.30", ["enqueue", "enqueue", "dequeue", "remove"], ["two"]),
        ("2.0.77", ["enqueue", "dequeue"], []),
        ("2.0.77", ["enqueue", "popAll", "remove"], []),
        ("2.0.77", ["remove"], []),
        ("2.1.100", ["enqueue", "remove"], []),
    ],
)
@pytest.mark.parametrize("form", [str, list])
def test_a_message_that_leaves_the_queue_for_the_model_is_a_prompt_in_versions_that_store_no_other_record(
    version: str, changes: list[str], messages: list[str], form: type
) -> None:
    texts = iter(["one", "two"])
    records: list[dict[str, Any]] = [{"type": "user", "version": version, "message": {"content": "go"}}]
    for change in changes:
        text = next(texts) if change == "enqueue" else None
        content = [{"type": "text", "text": text}] if form is list and text else text
        records.append({"type": "queue-operation", "operation": change, "content": content})
    lines = [Line(number, {**ENVELOPE, **each}) for number, each in enumerate(records, 1)]
    found = [entry.event for entry in read_session(lines)]
    assert [each.text for each in found[1:] if isinstance(each, PromptEvent)] == messages
    assert len(found) == len(records) and not any(is_typed(each) for each in found[1:])


@pytest.mark.parametrize(
    "more",
    [
        {"isMeta": True},
        {"origin": {"kind": "peer"}},
        {"commandMode": "task-notification"},
        {"forwardedIntent": {"lineage": "q0"}},
        {"forwardedIntent": {"lineage": "q0", "source": "typed"}, "origin": {"kind": "human"}},
    ],
    ids=["meta", "peer", "task", "forwarded", "forwarded from a person"],
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


OPENED = "<ide_opened_file>The user opened /srv/a.go in the IDE.</ide_opened_file>"
SELECTED = "<ide_selection>The user selected line 3:\nreturn <b>nil</b>\n</ide_selection>"


@pytest.mark.requirement("IMP-20")
@pytest.mark.parametrize("form", ["blocks", "text"])
def test_what_is_open_in_an_editor_is_a_notice_before_the_prompt(form: str) -> None:
    texts = [OPENED, SELECTED, "why <i>nil</i>?"]
    blocks = [{"type": "text", "text": each} for each in texts]
    content = blocks if form == "blocks" else "\n".join(texts)
    opened, selected, prompt = read({"type": "user", "message": {"content": content}, "promptId": "p1"})
    assert isinstance(opened, SystemEvent) and (opened.kind, opened.text) == ("ide_opened_file", OPENED)
    assert isinstance(selected, SystemEvent) and (selected.kind, selected.text) == ("ide_selection", SELECTED)
    assert isinstance(prompt, PromptEvent) and prompt.text == "why <i>nil</i>?"
    assert {each.id for each in (opened, selected, prompt)} == {"u"} and is_typed(prompt)
    assert prompt.meta is not None and prompt.meta["promptId"] == "p1"


@pytest.mark.requirement("IMP-20")
def test_a_record_with_only_what_is_open_in_an_editor_is_a_notice_unless_it_has_an_image() -> None:
    (notice,) = read({"type": "user", "message": {"content": [{"type": "text", "text": OPENED}]}})
    assert isinstance(notice, SystemEvent) and (notice.kind, notice.text) == ("ide_opened_file", OPENED)
    notice, prompt = read({"type": "user", "message": {"content": [{"type": "text", "text": OPENED}, PNG]}})
    assert isinstance(notice, SystemEvent) and notice.text == OPENED
    assert isinstance(prompt, PromptEvent) and (prompt.text, len(prompt.attachments)) == ("", 1)


@pytest.mark.parametrize("text", ["<ide_selection> is in my log", "Why is there <ide_selection>x</ide_selection>?"])
def test_a_prompt_about_the_tags_of_an_editor_is_a_person_s(text: str) -> None:
    (event,) = read({"type": "user", "message": {"content": text}})
    assert isinstance(event, PromptEvent) and event.text == text


SYSTEM = "[SYSTEM NOTIFICATION - NOT USER INPUT]\nThis is an automated event.\n\n"


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize(
    ("text", "more", "kind"),
    [
        (f"{SYSTEM}<task-notification>k</task-notification>", {}, "task-notification"),
        ("Another Claude session sent a message:\n<teammate-message>k</teammate-message>", {}, "teammate-message"),
        (
            'Another Claude session sent a message while you were working:\n<agent-message from="a">k</agent-message>\n'
            "This came from another Claude session.",
            {},
            "agent-message",
        ),
        ("<cross-session-message>k</cross-session-message>", {"origin": {"kind": "peer"}}, "cross-session-message"),
        ("Goal set: k", {"origin": {"kind": "auto-continuation"}, "promptSource": "system"}, "injected"),
        ("The x plugin sent a message:\nk", {"origin": {"kind": "plugin", "name": "x"}}, "injected"),
        ("Run the schedule", {"promptSource": "system"}, "injected"),
        ("Skill", {"origin": {"kind": "peer"}, "isMeta": True}, "meta"),
    ],
)
def test_a_message_that_no_person_submitted_is_a_notice(text: str, more: dict[str, object], kind: str) -> None:
    for content in (text, [{"type": "text", "text": text}]):
        (event,) = read({"type": "user", "message": {"content": content}, **more})
        assert isinstance(event, SystemEvent) and (event.text, event.kind) == (text, kind)


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize(
    "more",
    [
        {"origin": {"kind": "human"}, "promptSource": "typed"},
        {"promptSource": "sdk"},
        {"origin": {"kind": "plugin", "name": "x", "asUser": True}},
        {},
    ],
)
def test_a_message_that_a_person_submitted_is_a_prompt(more: dict[str, object]) -> None:
    (event,) = read({"type": "user", "message": {"content": "Goal set: k"}, **more})
    assert isinstance(event, PromptEvent)


SUMMARY = "This session is being continued from a previous conversation that ran out of context. It was about tabs."


@pytest.mark.requirement("IMP-23")
@pytest.mark.parametrize(
    ("more", "kind"),
    [
        ({"parentUuid": None, "version": "1.0.30"}, CompactionEvent),
        ({"parentUuid": None, "version": "0.2.126"}, CompactionEvent),
        ({"parentUuid": "p", "version": "1.0.30"}, PromptEvent),
        ({"parentUuid": None, "version": "2.1.332"}, PromptEvent),
        ({"session_id": "S", "isReplay": True}, CompactionEvent),
        ({"session_id": "S", "isSynthetic": True}, CompactionEvent),
        ({"session_id": "S"}, PromptEvent),
    ],
)
def test_a_summary_without_a_mark_is_a_compaction_where_claude_code_writes_one(
    more: dict[str, object], kind: type
) -> None:
    (event,) = read({"type": "user", "message": {"content": [{"type": "text", "text": SUMMARY}]}, **more})
    assert type(event) is kind


@pytest.mark.requirement("IMP-23")
def test_the_caveat_before_commands_is_a_notice_without_its_mark() -> None:
    caveat = "Caveat: The messages below were generated by the user while running local commands. DO NOT respond."
    (event,) = read({"type": "user", "version": "1.0.30", "message": {"content": [{"type": "text", "text": caveat}]}})
    assert isinstance(event, SystemEvent) and (event.text, event.kind) == (caveat, "meta")
    (pasted,) = read({"type": "user", "version": "2.1.3", "message": {"content": f"{caveat} Why do I see this?"}})
    assert isinstance(pasted, PromptEvent)


# --- files, and results of tools that the provider ran ---

PDF = "application/pdf"


def block(kind: str, source: object, **more: object) -> dict[str, Any]:
    return {"type": kind, "source": source, **more}


@pytest.mark.requirement("IMP-15")
@pytest.mark.parametrize(
    ("given", "files"),
    [
        (PNG, [Attachment(media_type="image/png", data=b"hi")]),
        (block("image", {"type": "url", "url": "https://e/a"}), [Attachment(media_type="image/*", url="https://e/a")]),
        (block("document", {"type": "url", "url": "https://e/a"}), [Attachment(media_type=PDF, url="https://e/a")]),
        (
            block("document", {"type": "text", "media_type": "text/plain", "data": "The text…"}, title="a.txt"),
            [Attachment(media_type="text/plain", name="a.txt", data="The text…".encode())],
        ),
        (
            block("document", {"type": "content", "content": [{"type": "text", "text": "inner"}, PNG]}),
            [Attachment(media_type="text/plain", data=b"inner"), Attachment(media_type="image/png", data=b"hi")],
        ),
        (
            block("document", {"type": "content", "content": "inner"}),
            [Attachment(media_type="text/plain", data=b"inner")],
        ),
        (block("image", {"type": "file", "file_id": "file_a"}), [Attachment(media_type="image/*", name="file_a")]),
        (
            block("document", {"type": "file", "file_id": "file_a"}, title="a.pdf"),
            [Attachment(media_type="application/octet-stream", name="a.pdf")],
        ),
        (
            block("image", {"type": "base64", "media_type": "image/png", "data": "[image data removed]"}),
            [Attachment(media_type="image/png", name="[image data removed]")],
        ),
        ({"type": "image"}, [Attachment(media_type="image/*")]),
    ],
)
def test_an_attachment_is_read_with_its_type_and_content(given: dict[str, Any], files: list[Attachment]) -> None:
    (prompt,) = read({"type": "user", "message": {"content": [{"type": "text", "text": "look"}, given]}})
    assert isinstance(prompt, PromptEvent) and list(prompt.attachments) == files
    (answer,) = read({"type": "assistant", "message": {"content": [given]}})
    assert isinstance(answer, ResponseEvent) and list(answer.attachments) == files
    result = {"type": "tool_result", "tool_use_id": "t", "content": [given]}
    (output,) = read({"type": "user", "message": {"content": [result]}})
    assert isinstance(output, ToolResultEvent) and list(output.attachments) == files


SEARCHED = [
    {"type": "web_search_result", "title": "Tabs", "url": "https://e/tabs", "encrypted_content": "x", "page_age": None},
    {"type": "web_search_result", "title": "Spaces", "url": "https://e/spaces", "encrypted_content": "y"},
]
FETCHED = {
    "type": "web_fetch_result", "url": "https://e/tabs",
    "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "Use tabs."}},
}  # fmt: skip


@pytest.mark.requirement("IMP-15")
@pytest.mark.parametrize(
    ("kind", "content", "text", "failed"),
    [
        ("web_search_tool_result", SEARCHED, "Tabs: https://e/tabs\nSpaces: https://e/spaces", False),
        ("web_fetch_tool_result", FETCHED, "https://e/tabs\nUse tabs.", False),
        ("code_execution_tool_result", {"stdout": "4", "stderr": "slow", "return_code": 0}, "4\nslow", False),
        ("web_search_tool_result", {"type": "web_search_tool_result_error", "error_code": "max"}, "max", True),
        ("web_search_tool_result", [{"type": "web_search_result"}], "", False),
        ("mcp_tool_result", [{"type": "text", "text": "found"}], "found", False),
    ],
)
def test_the_result_of_a_tool_that_the_provider_ran_is_text(
    kind: str, content: object, text: str, failed: bool
) -> None:
    result = {"type": kind, "tool_use_id": "srv", "content": content}
    (event,) = read({"type": "assistant", "message": {"id": "m", "content": [result]}})
    assert isinstance(event, ToolResultEvent)
    assert (event.call, event.text, event.is_error, event.message) == ("srv", text, failed, "m")
    assert event.meta is not None and event.meta["server_tool"] == kind
    if kind != "mcp_tool_result":
        assert event.meta["content"] == (content if isinstance(content, list) else [content]), "as it was, to send back"


@pytest.mark.requirement("IMP-3")
@pytest.mark.parametrize(
    ("marked", "agent"), [({"isSidechain": False}, None), ({"isSidechain": True}, "a1"), ({}, "a1")]
)
def test_a_record_of_the_conversation_that_names_a_sub_agent_is_not_in_its_chain(
    marked: dict[str, bool], agent: str | None
) -> None:
    block = {"type": "tool_result", "tool_use_id": "t1", "content": "found it"}
    record = {"type": "user", "agentId": "a1", "message": {"role": "user", "content": [block]}, **marked}
    (entry,) = read_session([Line(1, record)])
    assert isinstance(entry.event, ToolResultEvent) and entry.event.sidechain == agent
