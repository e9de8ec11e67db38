"""Requests shown again as they were sent, after the contents that they showed were removed, stubbed or purged."""

import json
from typing import Any

import pytest

from ctxd_client.errors import InvalidState
from ctxd_client.sync import SyncSession
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.spec.test_provider_requests import request, text_of
from tests.unit.assembly.provider_rules import FORMATS


def same_again(s: SyncSession, format: str = "anthropic-messages") -> str:
    made = request(s, format)
    shown = s.client.context_show(s.id, number=made.number)
    assert (shown.request, shown.sections) == (made.request, made.sections)
    return text_of(made)


@pytest.mark.requirement("WHY-2")
@pytest.mark.parametrize("format", FORMATS)
def test_a_late_output_names_no_call_that_the_budget_removed(s: SyncSession, format: str) -> None:
    s.user("Look.")
    s.append(
        events=[ResponseEvent(text="words " * 3_000), ToolCallEvent(call="t1", tool="bash", args={"command": "ls"})]
    )
    s.user("Well?")
    assert "no output of this call" in same_again(s, format)
    s.append(events=[ToolResultEvent(call="t1", text="a.py")])
    s.user("And now?")
    assert "Late output of bash ls (ok)" in same_again(s, format)
    s.configure(budget_tokens=1_000)
    s.append(events=[ResponseEvent(text="It is there.")])
    s.user("Go on.")
    text = same_again(s, format)
    assert "Late output of a tool call (ok)" in text and "words words" not in text


@pytest.mark.requirement("WHY-2")
def test_a_request_whose_system_context_was_purged_is_refused_as_purged(s: SyncSession) -> None:
    s.set_entry("mode", "The password is swordfish.")
    s.user("Begin.")
    made = request(s)
    s.client.object_purge(s.epoch().texts[0].sources[0].object)
    with pytest.raises(InvalidState) as refused:
        s.client.context_show(s.id, number=made.number)
    assert refused.value.code == "purged"


@pytest.mark.requirement("WHY-2")
def test_a_request_is_refused_as_purged_though_its_file_has_a_new_version(s: SyncSession) -> None:
    s.user("Begin.")
    path = "/workspace/a.txt"
    file = s.read(path, content="The password is swordfish.").object
    made = request(s)
    s.client.object_purge(file)
    s.read(path, content="Nothing here.")
    with pytest.raises(InvalidState) as refused:
        s.client.context_show(s.id, number=made.number)
    assert refused.value.code == "purged"


@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("format", FORMATS)
def test_the_spec_layout_sends_no_blank_text(s: SyncSession, format: str) -> None:
    s.set_system_prompt(" \n")
    s.append(events=[PromptEvent(text="Look."), PromptEvent(text="\r\n")])
    made = request(s, format, layout="spec")
    texts = [part for part in json.dumps(made.request).split('"') if part in (" \\n", "\\r\\n")]
    assert not texts and "Look." in text_of(made)


@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("format", FORMATS)
def test_a_request_ends_with_the_user_where_its_last_update_became_part_of_the_baseline(
    s: SyncSession, format: str
) -> None:
    s.set_entry("mode", "Plan only.")
    s.user("Look.")
    same_again(s, format)
    s.append(events=[ResponseEvent(text="I looked.")])
    s.set_entry("mode", "Change files.")
    first, other = ("gpt-5", "gpt-5.5") if format == "openai-responses" else ("claude-sonnet-4-5", "claude-opus-5")
    request_of(s, format, first)
    for model in (other, first):
        last = request_of(s, format, model)["messages" if format != "openai-responses" else "input"][-1]
        assert last["role"] == "user" and "Go on." in json.dumps(last)


def request_of(s: SyncSession, format: str, model: str) -> dict[str, Any]:
    made = s.assemble(format=format, model=model)  # type: ignore[arg-type]
    assert made.request is not None
    assert s.client.context_show(s.id, number=made.number).request == made.request
    return made.request
