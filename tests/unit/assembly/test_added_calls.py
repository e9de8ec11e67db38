"""Tool calls that the chat and the session's records add to a window: each is there once, in order, with its output."""

import json
from pathlib import Path

import pytest

from ctxd_protocol.context_types import RequestFormat
from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.unit.assembly.provider_rules import FORMATS, check_request
from tests.unit.assembly.stored_sessions import household
from tests.unit.assembly.test_request_states import append, ask, plain


@pytest.mark.anyio
@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_call_with_a_used_id_that_runs_during_a_request_is_in_the_next_one(
    tmp_path: Path, format: RequestFormat, is_restarted: bool
) -> None:
    """Harnesses of local models number the calls of each reply."""
    first = [ToolCallEvent(call="a", tool="bash", args={"command": "ls"}), ToolResultEvent(call="a", text="the first")]
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="Go"), *first])
        await ask(home, live, format)
        append(live, [ResponseEvent(text="Again."), ToolCallEvent(call="a", tool="bash", args={"command": "date"})])
        before = await ask(home, live, format)
        assert "date" not in json.dumps(before.request), "it has no output yet"
        if not is_restarted:
            append(live, [ToolResultEvent(call="a", text="the second")])
            made = await ask(home, live, format)
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        if is_restarted:
            append(live, [ToolResultEvent(call="a", text="the second")])
            made = await ask(home, live, format)
        check_request(format, made.request or {})
        assert plain(format, made.request or {}).startswith(plain(format, before.request or {}))
        text = json.dumps(made.request)
        assert [text.count(part) for part in ("Again.", "date", "the first", "the second")] == [1, 1, 1, 1]


@pytest.mark.anyio
@pytest.mark.requirement("REQ-1")
async def test_a_recorded_call_that_the_harness_adds_again_is_shown_once(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="Go")])
        home.record(live, "a", "its output", say=False)
        await ask(home, live, "anthropic-messages")
        append(live, [ToolCallEvent(call="a", tool="bash", args={}), PromptEvent(text="And?")])
        made = await ask(home, live, "anthropic-messages")
        check_request("anthropic-messages", made.request or {})
        assert json.dumps(made.request).count("its output") == json.dumps(made.request).count('tool_use"') == 1


@pytest.mark.anyio
@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("is_sent", [False, True])
async def test_recorded_calls_that_a_compaction_keeps_stand_behind_its_summary(tmp_path: Path, is_sent: bool) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="old"), ResponseEvent(text="old reply")])
        append(live, [PromptEvent(text="the kept prompt", id="k")])
        if is_sent:
            await ask(home, live, "anthropic-messages")
        home.record(live, "a", "its output", say=False)
        append(live, [ResponseEvent(text="the kept reply")])
        home.record(live, "b", "another output", say=False)
        append(live, [CompactionEvent(summary="A summary.", kept_from="k")])
        append(live, [PromptEvent(text="And now?")])
        made = await ask(home, live, "anthropic-messages")
        check_request("anthropic-messages", made.request or {})
        text = json.dumps(made.request)
        parts = ("A summary.", "the kept prompt", "its output", "the kept reply", "another output", "And now?")
        assert [text.count(part) for part in parts] == [1] * 6
        assert sorted(parts, key=text.index) == list(parts)
