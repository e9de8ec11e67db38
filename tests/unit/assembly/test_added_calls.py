"""Tool calls that the chat and the session's records add to a window: each is there once, in order, with its output."""

import json
from pathlib import Path

import pytest

from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent
from tests.unit.assembly.provider_rules import check_request
from tests.unit.assembly.stored_sessions import household
from tests.unit.assembly.test_request_states import append, ask


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
