"""Tool calls in a window that is read again or repacked: their ids, and their contents that are loaded once more."""

import json
from pathlib import Path

import pytest

from ctxd.assembly.explanation import explain
from ctxd.objects import document as documents
from ctxd.sessions import membership_operations, toolcall_operations
from ctxd.sessions.session import LiveSession, WriteRequest
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.ids import chat_id, toolcall_alias
from tests.unit.assembly.household import Household, household
from tests.unit.assembly.test_repack_window import append, ask, text_of

pytestmark = pytest.mark.anyio


def record_alias(home: Household, live: LiveSession, call: str, args: dict[str, str], output: str) -> str:
    """Record ``call`` of the chat under its alias, as where another session has the id."""
    id = str(toolcall_alias(live.session, call))
    document = documents.toolcall(id, tool="Write", args=args, content=output, chat_ref=chat_id(live.session))
    delta = toolcall_operations.call_delta(live.state, id, live.settings.collapse)
    live.commit(WriteRequest("toolcall.record", "p"), delta, puts=(document,))
    return id


@pytest.mark.requirement("REQ-5")
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_repeated_result_of_a_call_with_an_alias_is_shown_once(tmp_path: Path, is_restarted: bool) -> None:
    args = {"file_path": "/f", "content": "x y " * 5_000}
    said: list[Event] = [ToolResultEvent(call="a", text="written again by the harness"), PromptEvent(text="Next")]
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=20_000)
        append(live, PromptEvent(text="Go"), ToolCallEvent(call="a", tool="Write", args=args))
        record_alias(home, live, "a", args, "written")
        before = json.dumps((await ask(home)).request)
        assert "tokens left out here" in before and "written" in before
        if not is_restarted:
            append(live, *said)
            made = await ask(home)
    async with household(tmp_path) as home:
        if is_restarted:
            append(await home.sessions.live("s"), *said)
            made = await ask(home)
        assert "Late output" not in json.dumps(made.request)


@pytest.mark.requirement("WIN-2")
@pytest.mark.requirement("WHY-1")
async def test_a_call_whose_loaded_content_was_removed_can_be_loaded_again(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=8_000)

        async def others(prefix: str) -> str:
            for nth in range(8):
                append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
                home.record(live, f"{prefix}{nth}", text_of(1_500, f"{prefix}{nth}"))
                shown = json.dumps((await ask(home)).request)
            return shown

        append(live, PromptEvent(text="Go."))
        home.record(live, "a", text_of(5_000, "first"))
        assert "first 1" not in await others("b")
        for prefix in ("c", "d"):
            home.activate(live, "a")
            append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
            assert "first 1" in json.dumps((await ask(home)).request)
            why = await explain(live, "a", home.archive)
            assert (why.shown, why.rule) == ("whole", "activated")
            delta = membership_operations.deactivate_delta(live.state, "a")
            live.commit(WriteRequest("session.deactivate", "p"), delta)
            shown = await others(prefix)
            assert "content of the tool call bash (id=a) removed" in shown and "first 1" not in shown
            assert (await explain(live, "a", home.archive)).shown == "stub"
