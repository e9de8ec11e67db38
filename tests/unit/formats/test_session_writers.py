"""Sessions written for codex, pi and opencode: what was read comes back, and what a provider would refuse does not."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ctxd.formats.harness_session import INTERRUPTED, RUN_BY_PROVIDER, NewSession, written
from ctxd.formats.losses import Losses
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd_protocol import event_types as typed
from tests.unit.formats.read_back import (
    IMAGE,
    READERS,
    Events,
    of_codex,
    of_opencode,
    opencode_again,
)

NEW = NewSession("01999999-0000-7000-8000-000000000001", "/work", 1_793_527_200_000, ("scripted", "model"))


def made(harness: HarnessCommand, events: Events, *, own: bool = False) -> tuple[Events, dict[str, int]]:
    """What a reader finds in the session that is written of ``events``, and what it lacks."""
    losses = Losses()
    content = written(events, harness, NEW, own=own, losses=losses)
    found = READERS[harness](content) if content else []
    return found, {loss.part: loss.times for loss in losses.found()}


def story(events: Events) -> Iterator[tuple[str, ...]]:
    """The conversation alone: kinds with texts, calls and outputs."""
    for event in events:
        match event:
            case typed.PromptEvent(text=text, attachments=files) | typed.ResponseEvent(text=text, attachments=files):
                yield (type(event).__name__, text, str(len(files)))
            case typed.ToolCallEvent():
                yield ("call", event.call, event.tool, json.dumps(event.args))
            case typed.ToolResultEvent():
                yield ("result", event.call or "", event.text)
            case typed.ThinkingEvent():
                yield ("thinking", event.text)
            case _:
                pass


TALK: Events = [
    typed.PromptEvent(text="Look at b.txt."),
    typed.ResponseEvent(text="Looking.", message="m1"),
    typed.ToolCallEvent(call="c1", tool="read", args={"path": "b.txt"}, message="m1"),
    typed.ToolCallEvent(call="c2", tool="read", args={"path": "c.txt"}, message="m1"),
    typed.ToolResultEvent(call="c1", text="B"),
    typed.ToolResultEvent(call="c2", text="C"),
    typed.ResponseEvent(text="Both.", message="m2"),
    typed.PromptEvent(text="Thanks."),
]


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", READERS)
def test_a_conversation_is_written_in_the_form_of_every_harness(harness: HarnessCommand) -> None:
    found, left_out = made(harness, TALK)
    wanted = list(story(TALK))
    got = list(story(found))
    # opencode keeps a call and its output in one place.
    assert got == wanted if harness != "opencode" else sorted(got) == sorted(wanted)
    assert left_out == {}


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_the_text_names_an_attachment_that_no_model_of_the_harness_takes(harness: HarnessCommand) -> None:
    local = typed.Attachment(media_type="text/plain", name="a.py", url="file:///w/a.py")
    stored = typed.Attachment(media_type="image/png", artifact="a" * 64)
    events = [typed.PromptEvent(text="Look.", attachments=(IMAGE, local, stored)), typed.ResponseEvent(text="I see.")]
    found, left_out = made(harness, events)
    (prompt,) = (event for event in found if isinstance(event, typed.PromptEvent))
    assert (prompt.text, [each.data for each in prompt.attachments]) == ("Look.\n[a.py]\n[image/png]", [IMAGE.data])
    assert left_out == {"attachment": 2}


@pytest.mark.requirement("HND-6")
def test_opencode_gets_an_attachment_of_an_output_with_the_ids_that_its_import_requires() -> None:
    image = typed.Attachment(media_type="image/png", data=b"picture")
    events = [
        TALK[0], typed.ToolCallEvent(call="c", tool="read"), typed.ToolResultEvent(call="c", attachments=(image,) * 2)
    ]  # fmt: skip
    content = written(events, "opencode", NEW, own=False, losses=Losses())
    assert content is not None
    (part,) = (
        part for message in json.loads(content)["messages"] for part in message["parts"] if part["type"] == "tool"
    )
    files = part["state"]["attachments"]
    assert [(each["sessionID"], each["messageID"]) for each in files] == [(part["sessionID"], part["messageID"])] * 2
    assert len({part["id"], *(each["id"] for each in files)}) == 3
    assert all(each["id"].startswith("prt_") for each in files)


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", READERS)
def test_invalid_provider_content_is_repaired_or_omitted_and_counted(harness: HarnessCommand) -> None:
    found, left_out = made(
        harness,
        [
            typed.PromptEvent(text="Forgotten."),
            typed.CompactionEvent(summary="It was about tabs.", kept_from="x"),
            typed.ToolResultEvent(call="gone", text="nobody called"),
            typed.ThinkingEvent(text="Hm.", signature="S", message="m1"),
            typed.ToolCallEvent(call="odd id/1", tool="mcp.server/read file", args={"a": 1}, message="m1"),
            typed.ToolCallEvent(call="c1", tool="bash", args={"command": "a"}, message="m1"),
            typed.ToolResultEvent(call="c1", text="first"),
            typed.ToolCallEvent(call="c1", tool="bash", args={"command": "b"}, message="m2"),
            typed.ToolResultEvent(call="c1", text="second"),
            typed.ResponseEvent(text="In a sub-agent.", sidechain="a1"),
            typed.SystemEvent(text="Another harness's notice", kind="developer"),
            typed.OpaqueEvent(kind="metric", data={}),
        ],
    )
    told = json.dumps([list(each) for each in story(found)])
    assert "Forgotten" not in told and "Hm." not in told and "sub-agent" not in told and "notice" not in told
    calls = [event for event in found if isinstance(event, typed.ToolCallEvent)]
    results = {event.call: event.text for event in found if isinstance(event, typed.ToolResultEvent)}
    assert calls[0].tool == "mcp_server_read_file" and calls[0].call.isidentifier()
    assert [results[call.call] for call in calls] == [INTERRUPTED, "first", "second"]
    assert len({call.call for call in calls}) == 3
    texts = [getattr(event, "summary", "") or getattr(event, "text", "") for event in found]
    assert "It was about tabs." in texts
    counted = {"thinking", "sidechain response", "system", "metric", "output of an interrupted call",
               "output without its call", "messages that a compaction kept"}  # fmt: skip
    assert counted <= left_out.keys() and set(left_out.values()) <= {1, 2}


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", ["claude", "codex", "pi"])
def test_reasoning_stays_in_the_harness_that_it_is_from(harness: HarnessCommand) -> None:
    thought = typed.ThinkingEvent(text="Hm.", signature="S", encrypted="S", message="m1")
    events = [TALK[0], thought, *TALK[1:]]
    assert ("thinking", "Hm.") in story(made(harness, events, own=True)[0])
    assert ("thinking", "Hm.") not in story(made(harness, events)[0])


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", ["codex", "pi", "opencode"])
@pytest.mark.parametrize(
    ("task", "kind"),
    [
        ('<teammate-message teammate_id="lead">Review it.</teammate-message>', "teammate-message"),
        ("<ide_selection>return nil</ide_selection>", "ide_selection"),
        ("<cross-session-message>Blocked.</cross-session-message>", "cross-session-message"),
        ("Goal set: fix it", "injected"),
    ],
)
def test_a_notice_that_the_answer_is_about_is_a_prompt_for_other_harnesses(
    harness: HarnessCommand, task: str, kind: str
) -> None:
    events = [typed.SystemEvent(text=task, kind=kind), typed.ResponseEvent(text="done")]
    content, left_out = made(harness, events)
    assert task in str(list(story(content))) and not left_out


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize("meta", [{"origin": {"kind": "auto-continuation"}, "promptSource": "system"}, None])
def test_claude_code_gets_a_message_in_a_person_s_place_again(meta: dict[str, object] | None) -> None:
    events = [typed.PromptEvent(text="go"), typed.SystemEvent(text="Goal set: k", kind="injected", meta=meta)]
    found, left_out = made("claude", events, own=True)
    assert isinstance(found[1], typed.SystemEvent) and not left_out
    assert (found[1].kind, found[1].text) == ("injected", "Goal set: k")
    assert meta is None or (found[1].meta or {}).get("origin") == meta["origin"]


@pytest.mark.requirement("IMP-20")
def test_claude_code_gets_what_was_open_in_an_editor_again() -> None:
    opened = "<ide_opened_file>The user opened a.go.</ide_opened_file>"
    events = [typed.SystemEvent(text=opened, kind="ide_opened_file"), typed.PromptEvent(text="why?")]
    found, left_out = made("claude", [typed.PromptEvent(text="go"), *events], own=True)
    assert [getattr(each, "kind", None) or getattr(each, "text", "") for each in found][1:] == [
        "ide_opened_file",
        "why?",
    ]
    assert not left_out


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize(("harness", "is_kept"), [("pi", True), ("claude", False), ("codex", False)])
def test_reasoning_without_a_signature_stays_where_the_harness_sends_it(harness: HarnessCommand, is_kept: bool) -> None:
    events = [typed.PromptEvent(text="go"), typed.ThinkingEvent(text="Hm."), typed.ResponseEvent(text="done")]
    content, left_out = made(harness, events, own=True)
    assert (("thinking", "Hm.") in story(content)) == is_kept
    assert ("thinking" in left_out) != is_kept


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", READERS)
def test_a_dropped_prompt_message_id_is_not_counted_as_a_loss(harness: HarnessCommand) -> None:
    assert made(harness, [typed.PromptEvent(text="go", message="m1"), typed.ResponseEvent(text="done")])[1] == {}


@pytest.mark.requirement("HND-7")
def test_opencode_gets_its_own_text_for_a_call_that_was_interrupted() -> None:
    events = [TALK[0], typed.ToolCallEvent(call="c", tool="bash", args={"command": "sleep 60"})]
    outputs = {
        own: [each.text for each in made("opencode", events, own=own)[0] if isinstance(each, typed.ToolResultEvent)]
        for own in (True, False)
    }
    assert outputs == {True: ["[Tool execution was interrupted]"], False: [INTERRUPTED]}


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", READERS)
def test_a_conversation_starting_with_a_response_gets_a_prompt_and_an_empty_one_is_not_written(
    harness: HarnessCommand,
) -> None:
    found, _ = made(harness, [typed.ResponseEvent(text="Fixed.")])
    assert [type(event) for event in found if isinstance(event, typed.PromptEvent | typed.ResponseEvent)] == [
        typed.PromptEvent,
        typed.ResponseEvent,
    ]
    assert made(harness, [typed.SystemEvent(text="x", kind="error"), typed.PromptEvent()])[0] == []


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize(
    ("harness", "first"),
    [
        ("codex", typed.SystemEvent(kind="developer", text="What a hook adds.")),
        ("pi", typed.SystemEvent(kind="branch_summary", text="Tabs were tried.")),
    ],
)
def test_a_session_of_the_harness_itself_begins_as_it_did(harness: HarnessCommand, first: typed.SystemEvent) -> None:
    found, left_out = made(harness, [first, typed.PromptEvent(text="Fix it.")], own=True)
    told = [(type(each), each.text) for each in found if isinstance(each, typed.SystemEvent | typed.PromptEvent)]
    assert [each for each in told if each[1]] == [(type(first), first.text), (typed.PromptEvent, "Fix it.")]
    assert left_out == {}


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("harness", ["claude", "codex", "opencode"])
def test_another_harness_gets_the_summary_of_a_branch_of_pi(harness: HarnessCommand) -> None:
    events = [
        typed.PromptEvent(text="Fix it."),
        typed.ResponseEvent(text="Fixed."),
        typed.SystemEvent(kind="branch_summary", text="Tabs were tried."),
        typed.PromptEvent(text="Go on."),
    ]
    found, left_out = made(harness, events)
    prompts = [event.text for event in found if isinstance(event, typed.PromptEvent)]
    assert prompts == ["Fix it.", "[Summary of another branch of this conversation]\nTabs were tried.", "Go on."]
    assert left_out == {}


def items_of_codex(events: Events, *, own: bool = True) -> list[dict[str, Any]]:
    """The items in a session that is written for codex, without messages of the user."""
    content = written(events, "codex", NEW, own=own, losses=Losses())
    payloads = [line["payload"] for line in map(json.loads, content.splitlines()) if line["type"] == "response_item"]
    return [{name: each for name, each in item.items() if name != "content"} for item in payloads[1:]]


def of_items(*items: dict[str, Any]) -> Events:
    lines = (json.dumps({"type": "response_item", "payload": item}) for item in items)
    return [TALK[0], *of_codex("".join(f"{line}\n" for line in lines).encode())]


SEARCHED = {"type": "web_search_call", "status": "completed", "action": {"type": "search", "query": "tabs"}}
SHELL = {"type": "local_shell_call", "call_id": "c1", "status": "completed", "action": {"type": "exec", "command": []}}
OUTPUT = {"type": "function_call_output", "call_id": "c1", "output": "out"}
DRAWN = {
    "type": "image_generation_call", "id": "ig_1", "status": "completed", "revised_prompt": "a cat", "result": "aWNv",
}  # fmt: skip
CALLED = {"type": "function_call", "name": "read", "namespace": "mcp__files__", "arguments": "{}", "call_id": "c1"}
BROKEN = {"type": "function_call", "name": "read", "arguments": '{"path": trunc', "call_id": "c1"}
LOOKED_UP = {"type": "tool_search_call", "call_id": "c1", "execution": "client", "arguments": {"query": "x"}}
FOUND = {"type": "tool_search_output", "call_id": "c1", "status": "completed", "execution": "client", "tools": []}
SAYING = {"type": "message", "role": "assistant", "phase": "commentary"}


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize(
    "items",
    [
        [SEARCHED, {**SEARCHED, "id": "ws_2"}, SAYING],
        [SHELL, OUTPUT],
        [DRAWN],
        [CALLED, OUTPUT],
        [BROKEN, OUTPUT],
        [LOOKED_UP, FOUND],
        [{"type": "custom_tool_call", "call_id": "c1", "name": "patch", "input": "x", "status": "completed"},
         {"type": "custom_tool_call_output", "call_id": "c1", "output": "out"}],
    ],
)  # fmt: skip
def test_codex_finds_the_items_that_it_wrote(items: list[dict[str, Any]]) -> None:
    said = {"content": [{"type": "output_text", "text": "So."}]}
    events = of_items(*({**item, **said} if item is SAYING else item for item in items))
    assert items_of_codex(events) == items


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("tool", ["web_search", "local_shell", "tool_search", "image_generation"])
def test_tools_of_others_that_are_named_like_items_of_codex_are_functions_there(tool: str) -> None:
    events = [TALK[0], typed.ToolCallEvent(call="c1", tool=tool, args={"query": "q"}, meta={"requestId": "r"})]
    events.append(typed.ToolResultEvent(call="c1", text="out"))
    call = {"type": "function_call", "name": tool, "call_id": "c1", "arguments": '{"query":"q"}'}
    assert items_of_codex(events, own=False) == [call, OUTPUT]


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("harness", ["claude", "pi"])
def test_codex_provider_runs_precede_their_response_and_are_not_interrupted(
    harness: HarnessCommand,
) -> None:
    said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "So."}]}
    found, left_out = made(harness, of_items(SEARCHED, SEARCHED, DRAWN, said, CALLED, OUTPUT))
    told = [each[:3] if each[0] != "call" else each[::2] for each in story(found)]
    results = [event for event in found if isinstance(event, typed.ToolResultEvent)]
    assert [each.text for each in results] == [RUN_BY_PROVIDER, RUN_BY_PROVIDER, "", "out"]
    assert [len(each.attachments) for each in results] == [0, 0, 1, 0] and not any(each.is_error for each in results)
    assert [each[0] for each in told] == ["PromptEvent", *["call", "result"] * 3, "ResponseEvent", "call", "result"]
    assert told[-2] == ("call", "mcp__files__read") and left_out == {}


def answers_of_pi(events: Events, *, own: bool) -> list[dict[str, Any]]:
    """The messages of the model and the outputs in a session that is written for pi."""
    content = written(events, "pi", NEW, own=own, losses=Losses())
    messages = [json.loads(line).get("message", {}) for line in content.splitlines()]
    return [each for each in messages if each.get("role") in ("assistant", "toolResult")]


ABORTED: Events = [
    typed.PromptEvent(text="Look."),
    typed.ResponseEvent(text="Half an ans", stop_reason="aborted", message="1", meta={"errorMessage": "x"}),
    typed.ToolCallEvent(call="c1", tool="bash", message="1"),
    typed.ToolCallEvent(call="c2", tool="bash", message="1"),
    typed.ToolResultEvent(call="c2", text="out"),
    typed.PromptEvent(text="Again."),
    typed.ToolCallEvent(call="c3", tool="bash", message="2", meta={"errorMessage": "x", "provider": "p"}),
    typed.PromptEvent(text="Again."),
]


@pytest.mark.requirement("HND-2")
def test_an_answer_that_pi_leaves_out_has_no_outputs() -> None:
    found = answers_of_pi(ABORTED, own=True)
    assert [(each["role"], each["stopReason"]) for each in found] == [("assistant", "aborted")] * 2
    assert made("pi", ABORTED, own=True)[1] == {"output of an aborted answer": 1}


@pytest.mark.requirement("HND-2")
def test_a_response_aborted_in_another_harness_keeps_its_outputs() -> None:
    found = answers_of_pi(ABORTED, own=False)
    roles = ["assistant", "toolResult", "toolResult", "assistant", "toolResult"]
    assert [each["role"] for each in found] == roles
    assert {each["stopReason"] for each in found if "stopReason" in each} == {"toolUse"}


@pytest.mark.requirement("HND-2", "HND-7")
def test_pi_gets_the_provider_of_a_response_and_its_own_stop_reasons() -> None:
    own = {"api": "a", "provider": "p", "responseId": "r"}
    thought = typed.ThinkingEvent(text="Hm.", signature="S", message="1", model="m", meta=own)
    events = [TALK[0], thought, typed.ResponseEvent(text="So.", message="1", model="m", stop_reason="stop")]
    (answer,) = answers_of_pi(events, own=True)
    assert [block["type"] for block in answer["content"]] == ["thinking", "text"]
    assert {name: answer[name] for name in own} == own and answer["stopReason"] == "stop"
    (answer,) = answers_of_pi(events, own=False)
    assert (answer["api"], answer["provider"]) == ("unknown", "ctxd")
    stops = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "stop", None: "stop"}
    for foreign, pis in stops.items():
        (answer,) = answers_of_pi([TALK[0], typed.ResponseEvent(text="So.", stop_reason=foreign)], own=False)
        assert answer["stopReason"] == pis


def blocks_of_claude(*attachments: typed.Attachment, own: bool = True) -> tuple[list[Any], dict[str, int]]:
    """The blocks of a prompt with attachments, and what was left out."""
    losses = Losses()
    events = [typed.PromptEvent(text="Look.", attachments=attachments)]
    record = json.loads(written(events, "claude", NEW, own=own, losses=losses))
    content = record["message"]["content"]
    return content if isinstance(content, list) else [content], {loss.part: loss.times for loss in losses.found()}


@pytest.mark.requirement("HND-2")
def test_claude_gets_attachments_with_sources_that_its_provider_accepts() -> None:
    address = "https://example.com/a.png"
    unnamed = typed.Attachment(media_type="application/octet-stream", url=address)
    notes = typed.Attachment(media_type="text/plain", data=b"The text of it.", name="notes.txt")
    blocks, left_out = blocks_of_claude(IMAGE, unnamed, notes)
    assert [(block["type"], block.get("source")) for block in blocks[1:]] == [
        ("image", {"type": "base64", "media_type": "image/png", "data": "iVBORw=="}),
        ("image", {"type": "url", "url": address}),
        ("document", {"type": "text", "media_type": "text/plain", "data": "The text of it."}),
    ]
    assert left_out == {}
    (_, block), _ = blocks_of_claude(typed.Attachment(media_type="text/plain", data=b"abc"), own=False)
    assert block["source"]["data"] == "abc"
    (_, block), _ = blocks_of_claude(typed.Attachment(media_type="image/*", data=b"GIF89a"), own=False)
    assert block["source"]["media_type"] == "image/gif"


@pytest.mark.requirement("HND-2")
@pytest.mark.parametrize("own", [True, False])
def test_an_attachment_that_claude_refuses_is_named(own: bool) -> None:
    refused = [
        typed.Attachment(media_type="image/png", url="[image data removed]"),
        typed.Attachment(media_type="application/octet-stream", url="file_abc", name="report"),
        typed.Attachment(media_type="application/octet-stream", data=b""),
        typed.Attachment(media_type="image/bmp", data=b"BM"),
        typed.Attachment(media_type="image/png", artifact="a" * 64),
        typed.Attachment(media_type="application/octet-stream", url="https://[bad"),
    ]
    (text,), left_out = blocks_of_claude(*refused, own=own)
    names = ["image/png", "report", "application/octet-stream", "image/bmp", "image/png", "application/octet-stream"]
    assert text.splitlines() == ["Look.", *(f"[{name}]" for name in names)] and left_out == {"attachment": 6}


POSTED = "<agent_message_board_notification>New post.</agent_message_board_notification>"
NOTICES: dict[HarnessCommand, list[typed.SystemEvent]] = {
    "claude": [
        typed.SystemEvent(kind="bash-input", text="<bash-input>git log</bash-input>"),
        typed.SystemEvent(kind="bash-stdout", text="<bash-stdout>one</bash-stdout><bash-stderr></bash-stderr>"),
        typed.SystemEvent(kind="command-message", text="<command-message>fix</command-message>"),
        typed.SystemEvent(kind="task-notification", text="<task-notification>done</task-notification>"),
        typed.SystemEvent(kind="interrupted", text="[Request interrupted by user for tool use]"),
        typed.SystemEvent(kind="meta", text="Fix it."),
    ],
    "codex": [
        typed.SystemEvent(kind="user_shell_command", text="<user_shell_command>git log</user_shell_command>"),
        typed.SystemEvent(kind="skill", text="<skill>body</skill>"),
        typed.SystemEvent(kind="developer", text="What a hook adds."),
        typed.SystemEvent(kind="turn_aborted", text="<turn_aborted>on purpose</turn_aborted>"),
        typed.SystemEvent(kind="hook_prompt", text='<hook_prompt hook_run_id="s">Lint it.</hook_prompt>'),
        typed.SystemEvent(kind="codex_internal_context", text="<codex_internal_context>x</codex_internal_context>"),
        typed.SystemEvent(kind="goal_context", text="<goal_context>Go on.</goal_context>"),
        typed.SystemEvent(kind="extension_context", text="<extension_context>x</extension_context>"),
        typed.SystemEvent(kind="external_context", text="<external_slack>A thread.</external_slack>"),
        typed.SystemEvent(kind="agent_message_board_notification", text=POSTED),
        typed.SystemEvent(
            kind="warning", text="Warning: Your account was flagged for potentially high-risk cyber activity"
        ),
    ],
    "pi": [
        typed.SystemEvent(
            kind="bashExecution", text="one", meta={"command": "git log", "output": "one", "exitCode": 0}
        ),
        typed.SystemEvent(kind="bashExecution", text="", meta={"command": "true", "output": "", "exitCode": 0}),
        typed.SystemEvent(kind="custom_message", text="Note.", meta={"customType": "x", "display": False}),
    ],
}


@pytest.mark.requirement("HND-7")
@pytest.mark.parametrize("harness", NOTICES)
def test_notices_that_the_model_has_seen_are_in_the_harness_as_they_were(harness: HarnessCommand) -> None:
    events = [TALK[0], typed.ResponseEvent(text="So."), *NOTICES[harness]]
    found, left_out = made(harness, events, own=True)
    notices = [event for event in found if isinstance(event, typed.SystemEvent) and event.kind != "session_meta"]
    assert [(each.kind, each.text) for each in notices] == [(each.kind, each.text) for each in NOTICES[harness]]
    if harness == "pi":
        assert [each.meta for each in notices] == [each.meta for each in NOTICES[harness]]
    assert left_out == {}


ABOUT_HARNESS = frozenset(
    {
        "command-message", "interrupted", "developer", "turn_aborted", "codex_internal_context", "goal_context",
        "extension_context", "warning",
    }
)  # fmt: skip
"""Kinds of notices that mean nothing to the model of another harness."""


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize("own", NOTICES)
@pytest.mark.parametrize("harness", ["claude", "codex", "pi", "opencode"])
def test_notices_with_content_are_prompts_for_another_harness(own: HarnessCommand, harness: HarnessCommand) -> None:
    events = [TALK[0], typed.ResponseEvent(text="So."), *NOTICES[own]]
    found, left_out = made(harness, events)
    told = [each for each in NOTICES[own] if each.kind not in ABOUT_HARNESS]
    prompts = "\n".join(event.text for event in found if isinstance(event, typed.PromptEvent | typed.SystemEvent))
    assert [each.text for each in told if each.text not in prompts] == []
    assert left_out.get("system", 0) == len(NOTICES[own]) - len(told)
    assert own != "pi" or "Ran `git log`\none" in prompts


@pytest.mark.requirement("IMP-21")
def test_a_caveat_and_a_command_that_pi_hides_from_its_model_are_no_prompts() -> None:
    hidden = {"command": "env", "excludeFromContext": True}
    events = [
        *TALK[:1],
        typed.SystemEvent(kind="meta", text="<local-command-caveat>Caveat: these were run</local-command-caveat>"),
        typed.SystemEvent(
            kind="meta", text="Caveat: The messages below were generated by the user while running local commands. "
        ),
        typed.SystemEvent(kind="bashExecution", text="SECRET=1", meta=hidden),
    ]
    assert made("codex", events)[1] == {"system": 3}


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize(
    ("harness", "texts"),
    [("pi", ["One.", "\n\nTwo."]), ("opencode", ["One.", "\n\nTwo."]), ("codex", ["One.", "Two."])],
)
def test_responses_that_follow_each_other_are_separated(harness: HarnessCommand, texts: list[str]) -> None:
    events = [TALK[0], typed.ResponseEvent(text="One."), typed.ResponseEvent(text="Two.")]
    found = made(harness, events)[0]
    assert [each.text for each in found if isinstance(each, typed.ResponseEvent)] == texts


@pytest.mark.requirement("HND-7")
def test_a_session_in_an_editor_begins_with_what_is_open_there() -> None:
    opened = typed.SystemEvent(kind="ide_opened_file", text="<ide_opened_file>a.go</ide_opened_file>")
    found, left_out = made("claude", [opened, *TALK], own=True)
    assert isinstance(found[0], typed.SystemEvent) and found[0].text == opened.text
    prompts = [event.text for event in found if isinstance(event, typed.PromptEvent)]
    assert prompts[0] == "Look at b.txt." and "system" not in left_out


@pytest.mark.requirement("HND-7")
def test_codex_keeps_messages_of_other_agents_but_not_its_session_preamble() -> None:
    told = {"type": "agent_message", "author": "a", "recipient": "b"}
    events = of_items(told)
    events.append(typed.SystemEvent(kind="developer", text="<permissions instructions>x</permissions instructions>"))
    events.append(typed.SystemEvent(kind="environment_context", text="<environment_context>x</environment_context>"))
    assert items_of_codex(events) == [told]
    assert made("codex", events)[1] == {"agent_message": 1, "system": 2}


@pytest.mark.requirement("HND-7")
def test_opencode_gets_the_prompt_of_a_command_of_a_sub_agent_as_it_sends_it() -> None:
    meta = {"type": "subtask", "agent": "general", "command": "review"}
    prompt = typed.PromptEvent(text="Review p.py", meta=meta)
    texts = [each.text for each in made("opencode", [prompt], own=True)[0] if isinstance(each, typed.PromptEvent)]
    assert texts == ["The following tool was executed by the user"]
    for harness in ("claude", "codex", "pi"):
        assert ("PromptEvent", "Review p.py", "0") in story(made(harness, [prompt])[0])
    document = {"info": {}, "messages": [{"info": {"role": "user"}, "parts": [{**meta, "prompt": "Review p.py"}]}]}
    events = of_opencode(json.dumps(document).encode())
    assert [each.text for each in events if isinstance(each, typed.PromptEvent)] == ["Review p.py"]
    assert json.loads(opencode_again(events)[0]) == document
