"""Files in a window: content that a call showed or a repack removed is loaded on request, and once."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ctxd.assembly.window_explanation import explain
from ctxd.sessions import activation_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.limits import FILE_BYTES_MAX
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


def change(live: LiveSession, what: str, id: str) -> None:
    decide = getattr(activation_operations, f"{what}_delta")
    live.submit(WriteRequest(f"session.{what}", "p"), decide(live.state, id))


def limit(live: LiveSession, budget_tokens: int | None) -> None:
    live.submit(WriteRequest("session.configure", "p"), settings=replace(live.settings, budget_tokens=budget_tokens))


async def kept_file(home: Household, size: int, budget: int, how: str = "pin") -> tuple[LiveSession, str]:
    """A session that keeps a file of ``size`` lines, and the file's id."""
    path = home.files / "doc.txt"
    path.write_text(f"{MARK}\n" * size)
    live = await home.create(budget_tokens=budget)
    append(live, PromptEvent(text="Go."))
    id = await home.read(live, path)
    change(live, how, id)
    return live, id


async def next_request(home: Household, live: LiveSession) -> AssembledContext:
    """A request with so much new text that a repack for its cost does not pay at once."""
    append(live, ResponseEvent(text="Done."), PromptEvent(text="More. " * 200))
    return await ask(home)


@pytest.mark.requirement("WIN-5")
@pytest.mark.requirement("WHY-1")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("how", ["activate", "pin"])
@pytest.mark.parametrize("budget", [None, 12_000])
async def test_a_kept_file_that_the_budget_cut_is_loaded_once_when_the_budget_grows(
    tmp_path: Path, how: str, is_restarted: bool, budget: int | None
) -> None:
    async with household(tmp_path) as home:
        live, id = await kept_file(home, 3_000, 4_000, how)
        cut = lines(await ask(home))
        assert 0 < cut < 3_000
        for _ in range(2):
            made = await next_request(home, live)
            assert (lines(made), made.repacked) == (cut, None), "it is not loaded again for the same budget"
        assert (await explain(live, id, home.archive)).shown == "cut"
        limit(live, budget)
        if not is_restarted:
            await check_loaded(home, live, id, cut)
    if is_restarted:
        async with household(tmp_path) as home:
            await check_loaded(home, await home.sessions.live("s"), id, cut)


async def check_loaded(home: Household, live: LiveSession, id: str, cut: int) -> None:
    before = await home.archive.show("s")
    for nth in range(3):
        made = await next_request(home, live)
        assert (lines(made), made.repacked) == (cut + 3_000, None)
        assert nth or (made.stable_prefix or 0) > 0.9 * before.context.bytes, "nothing that was sent changes"
    assert (await explain(live, id, home.archive)).shown == "whole"


@pytest.mark.requirement("WIN-5")
async def test_a_kept_file_replaces_its_cut_copy_if_both_exceed_the_larger_budget(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live, id = await kept_file(home, 3_000, 4_000)
        cut = lines(await ask(home))
        limit(live, 4_100)
        shown = []
        for _ in range(3):
            made = await next_request(home, live)
            shown.append((lines(made), made.repacked))
        assert 0.9 * cut < shown[0][0] < 3_000 and shown[0][1] == "budget"
        assert shown[1:] == [(shown[0][0], None)] * 2, "it is cut once for this budget"
        limit(live, 9_000)
        assert [lines(await next_request(home, live)) for _ in range(3)] == [3_000] * 3


@pytest.mark.requirement("WIN-5")
async def test_a_cut_file_is_loaded_by_a_request_after_it_was_not_kept(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live, id = await kept_file(home, 1_200, 2_000)
        cut = lines(await ask(home))
        assert 0 < cut < 1_200
        change(live, "unpin", id)
        limit(live, None)
        for _ in range(2):
            made = await next_request(home, live)
            assert lines(made) == cut, "it is not loaded by itself"
            assert "changed since" not in json.dumps(made.request)
        change(live, "pin", id)
        assert [lines(await next_request(home, live)) for _ in range(2)] == [cut + 1_200] * 2


@pytest.mark.requirement("WIN-5")
@pytest.mark.parametrize("how", ["activate", "pin"])
async def test_a_kept_call_that_the_budget_cut_is_loaded_once_when_the_budget_grows(tmp_path: Path, how: str) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=2_000)
        append(live, PromptEvent(text="Go."))
        home.record(live, "a", text_of(900, "first"))
        change(live, how, "a")
        assert "first 180" in json.dumps((await ask(home)).request)
        limit(live, 500)
        made = await next_request(home, live)
        middle = "first 180\\n"
        assert middle not in json.dumps(made.request)
        assert (await explain(live, "a", home.archive)).shown == "cut"
        limit(live, None)
        for _ in range(2):
            assert json.dumps((await next_request(home, live)).request).count(middle) == 1


@pytest.mark.requirement("WIN-5")
async def test_a_cut_file_that_the_model_edited_is_loaded_when_the_budget_grows(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live, _ = await kept_file(home, 1_200, 2_000)
        cut = lines(await ask(home))
        path = home.files / "doc.txt"
        path.write_text(f"{MARK}\n" * 1_201)
        append(live, ToolCallEvent(call="a", tool="Edit", args={"file_path": str(path)}))
        await home.read(live, path)
        append(live, ToolResultEvent(call="a", text="edited"))
        assert 0 < lines(await ask(home)) <= cut
        limit(live, None)
        assert lines(await next_request(home, live)) >= 1_201


@pytest.mark.requirement("REQ-6")
@pytest.mark.requirement("WHY-1")
async def test_a_file_that_grew_too_large_is_marked_in_the_next_request(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        path = home.files / "big.log"
        path.write_text(f"{MARK}\n")
        live = await home.create()
        append(live, PromptEvent(text="Go."))
        id = await home.read(live, path)
        change(live, "pin", id)
        assert lines(await ask(home)) == 1
        with path.open("wb") as file:
            file.truncate(FILE_BYTES_MAX + 1)
        await home.read(live, path)
        made = await next_request(home, live)
        state = f"too large, {FILE_BYTES_MAX + 1:,} bytes"
        assert f"id={id[:12]} {path} [{state}]" in json.dumps(made.request)
        assert (await explain(live, id, home.archive)).detail == f"its newest version is {state}"
