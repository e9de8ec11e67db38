"""Files in a window: content that a call showed or a repack removed is loaded on request, and once."""

import json
from pathlib import Path

import pytest

from ctxd.assembly.window_explanation import explain
from ctxd.sessions import activation_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.unit.assembly.stored_sessions import Household, household
from tests.unit.assembly.test_repack_window import append, ask, text_of

pytestmark = pytest.mark.anyio

MARK = "FILE line"


def lines(made: AssembledContext) -> int:
    return json.dumps(made.request).count(MARK)


async def more(home: Household, live: LiveSession, prefix: str, steps: int = 8) -> AssembledContext:
    """Work that takes more than the budget, so that older content goes."""
    for nth in range(steps):
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        home.record(live, f"{prefix}{nth}", text_of(1_500, f"{prefix}{nth}"))
        made = await ask(home)
    return made


@pytest.mark.requirement("WIN-5")
@pytest.mark.requirement("WHY-1")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("how", ["activate", "pin"])
async def test_a_file_that_a_repack_removed_is_loaded_by_a_request(
    tmp_path: Path, how: str, is_restarted: bool
) -> None:
    async with household(tmp_path) as home:
        path = home.files / "doc.txt"
        path.write_text(f"{MARK}\n" * 1_500)
        live = await home.create(budget_tokens=8_000)
        append(live, PromptEvent(text="Go."))
        id = await home.read(live, path)
        assert lines(await ask(home)) == 1_500
        made = await more(home, live, "a")
        assert lines(made) == 0 and "activate it to load it" in json.dumps(made.request)
        assert (await explain(live, id, home.archive)).shown == "stub"
        assert lines(await more(home, live, "b", 1)) == 0, "it is not loaded by itself"
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        decide = activation_operations.activate_delta if how == "activate" else activation_operations.pin_delta
        delta = decide(live.state, id)
        assert delta, "the request is recorded, though the file is active"
        live.submit(WriteRequest(f"session.{how}", "p"), delta)
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        before = await home.archive.show("s")
        made = await ask(home)
        assert lines(made) == 1_500
        if made.repacked is None:
            assert (made.stable_prefix or 0) > 0.9 * before.context.bytes
        assert (await explain(live, id, home.archive)).shown == "whole"
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        assert lines(await more(home, live, "c")) == 1_500, "what was asked for stays, once"


@pytest.mark.requirement("WIN-5")
async def test_a_file_that_a_call_showed_is_loaded_by_a_request(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        path = home.files / "doc.txt"
        path.write_text(f"{MARK}\n" * 20)
        live = await home.create()
        append(live, PromptEvent(text="Go."), ToolCallEvent(call="a", tool="Read", args={"file_path": str(path)}))
        id = await home.read(live, path)
        append(live, ToolResultEvent(call="a", text="the first part of it"))
        assert lines(await ask(home)) == 0
        for _ in range(2):
            live.submit(WriteRequest("session.activate", "p"), activation_operations.activate_delta(live.state, id))
            append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
            assert lines(await ask(home)) == 20
        live.submit(WriteRequest("session.deactivate", "p"), activation_operations.deactivate_delta(live.state, id))
        assert "is no longer active" in json.dumps((await ask(home)).request)


@pytest.mark.requirement("WIN-5")
async def test_a_call_that_was_hidden_is_loaded_by_a_request(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=8_000)
        append(live, PromptEvent(text="Go."))
        home.record(live, "a", text_of(1_500, "first"))
        await ask(home)
        made = await more(home, live, "b")
        assert "first 1" not in json.dumps(made.request)
        live.submit(WriteRequest("session.pool_remove", "p"), activation_operations.hide_delta(live.state, "a"))
        assert "id=a is no longer in the metadata pool" in json.dumps((await more(home, live, "c", 1)).request)
        home.activate(live, "a")
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        shown = json.dumps((await ask(home)).request)
        assert "first 1" in shown
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        assert json.dumps((await ask(home)).request).count("first 1\\n") == shown.count("first 1\\n") == 1
