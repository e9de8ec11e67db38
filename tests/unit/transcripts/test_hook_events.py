"""The input of hooks that cannot be read."""

import json

import pytest

from ctxd.transcripts.hook_events import read_hook
from ctxd_protocol.event_types import PromptEvent, SystemEvent
from ctxd_protocol.session_types import Harness


@pytest.mark.parametrize("missing", ["session_id", "hook_event_name"])
def test_the_missing_member_is_named(missing: str) -> None:
    given = {"session_id": "n1", "hook_event_name": "Stop"}
    del given[missing]
    with pytest.raises(ValueError, match=f"has a text {missing}"):
        read_hook("claude-code", json.dumps(given), 1)


@pytest.mark.requirement("HOK-1")
@pytest.mark.parametrize("inner", ["1", '"\\ud83d"', "12345678901234567890"])
@pytest.mark.parametrize("levels", [600, 950, 5000])
def test_an_event_of_many_levels_keeps_the_text_of_the_lowest(inner: str, levels: int) -> None:
    given = {"session_id": "n", "hook_event_name": "PostToolUse", "tool_use_id": "t", "tool_name": "T"}
    deep = "[" * levels + inner + "]" * levels
    text = json.dumps({**given, "tool_input": {"a": "DEEP"}, "tool_response": {"b": "DEEP"}}).replace('"DEEP"', deep)
    call = read_hook("claude-code", text, 1).call
    assert call is not None and call.call == "t"
    assert all(inner.strip('\\"') in each for each in (str(call.args), call.text))


@pytest.mark.requirement("IMP-20")
def test_a_hook_reads_what_is_open_in_an_editor_as_a_transcript_does() -> None:
    opened = "<ide_opened_file>The user opened /srv/a.go in the IDE.</ide_opened_file>"
    given = {"session_id": "n", "hook_event_name": "UserPromptSubmit", "prompt_id": "p", "prompt": f"{opened}\nwhy?"}
    found = read_hook("claude-code", json.dumps(given), 1)
    notice, prompt = found.events
    assert isinstance(notice, SystemEvent) and (notice.kind, notice.text, notice.at) == ("ide_opened_file", opened, 1)
    assert isinstance(prompt, PromptEvent) and (prompt.text, prompt.id) == ("why?", "p")
    assert found.op_id is not None
    (alone,) = read_hook("claude-code", json.dumps({**given, "prompt": opened}), 1).events
    assert isinstance(alone, SystemEvent) and alone.kind == "ide_opened_file"


@pytest.mark.requirement("IMP-21")
@pytest.mark.parametrize(
    ("source", "kind"), [("system", SystemEvent), ("user", PromptEvent), (None, PromptEvent), (["system"], PromptEvent)]
)
def test_a_prompt_that_claude_code_itself_submitted_is_a_notice(source: object, kind: type) -> None:
    given = {"session_id": "n", "hook_event_name": "UserPromptSubmit", "prompt": "Goal set: k", "source": source}
    (event,) = read_hook("claude-code", json.dumps(given), 1).events
    assert isinstance(event, kind) and getattr(event, "kind", "injected") == "injected"


@pytest.mark.requirement("IMP-20")
@pytest.mark.parametrize("harness", ["codex", "pi", "opencode"])
@pytest.mark.parametrize("source", [None, "system"])
@pytest.mark.parametrize(
    "text", ["<terminal>ls</terminal>\nwhy?", "<bash-input>ls</bash-input>", "<task-notification>a</task-notification>"]
)
def test_a_prompt_with_tags_of_claude_code_is_a_prompt_of_another_harness(
    harness: Harness, source: str | None, text: str
) -> None:
    given = {"session_id": "n", "hook_event_name": "UserPromptSubmit", "prompt": text, "source": source}
    (found,) = read_hook(harness, json.dumps(given), 1).events
    assert isinstance(found, PromptEvent) and found.text == text


@pytest.mark.requirement("IMP-20")
def test_a_hook_of_codex_reads_the_tags_of_codex() -> None:
    text = "<user_shell_command>ls</user_shell_command>"
    given = {"session_id": "n", "hook_event_name": "UserPromptSubmit", "prompt": text}
    kinds = [type(read_hook(name, json.dumps(given), 1).events[0]) for name in ("codex", "claude-code", "pi")]
    assert kinds == [SystemEvent, PromptEvent, PromptEvent]
