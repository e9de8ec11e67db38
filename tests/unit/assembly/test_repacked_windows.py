"""Windows that are repacked: within their budget, valid, the same after a restart, and unchanged in between."""

import json
import random
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from ctxd.assembly.token_budget import estimate_tokens
from ctxd.assembly.truncation import cut
from ctxd.assembly.window_explanation import explain
from ctxd.objects import document as documents
from ctxd.sessions import activation_operations, chat_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import (
    Attachment,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from tests.unit.assembly.provider_rules import check_request
from tests.unit.assembly.stored_sessions import Household, TestClock, household
from tests.unit.assembly.test_request_states import ask, plain

BUDGET = 12_000


def append(live: LiveSession, *events: Event) -> None:
    delta = chat_operations.append_delta(live.state, "s", list(events), live.settings.collapse)
    live.submit(WriteRequest("session.append", "p"), delta)


def call(live: LiveSession, home: Household, id: str, path: str, output: str) -> None:
    append(live, ToolCallEvent(call=id, tool="Read", args={"file_path": path}))
    home.record(live, id, output, say=False)
    append(live, ToolResultEvent(call=id, object=id))


def shown(made: AssembledContext) -> dict[str, str]:
    """Outputs in the request, by call."""
    assert made.request is not None
    blocks = [block for message in made.request["messages"] for block in message["content"]]
    return {
        block["tool_use_id"]: block["content"][0]["text"]
        for block in blocks
        if block["type"] == "tool_result" and block["content"]
    }


@pytest.mark.anyio
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.requirement("REQ-2")
@pytest.mark.requirement("WIN-2")
async def test_requests_fit_their_budget_and_change_by_repacks_alone(tmp_path: Path, seed: int) -> None:
    rng, clock = random.Random(seed), TestClock()
    clock.wall = 1_700_000_000_000
    before, pinned, reasons = b"", "", set()
    for life in range(4):
        async with household(tmp_path, clock) as home:
            live = await (home.create(budget_tokens=BUDGET) if life == 0 else home.sessions.live("s"))
            for nth in range(25):
                clock.wall += rng.choice((1_000, 20_000, 20_000, 400_000))
                if rng.random() < 0.3:
                    append(live, PromptEvent(text=f"Next {life} {nth}"))
                id, output = f"c{life}-{nth}", f"line {nth}\n" * rng.choice((3, 100, 400, 1_500))
                call(live, home, id, f"/src/{rng.randrange(12)}.py", output)
                if not pinned:
                    pinned = id
                    live.submit(WriteRequest("session.pin", "p"), activation_operations.pin_delta(live.state, id))
                append(live, ResponseEvent(text="I see.", model="claude-sonnet-4-5"))
                made = await ask(home, live, "anthropic-messages")
                assert made.request is not None
                check_request("anthropic-messages", made.request)
                body = plain("anthropic-messages", made.request)
                assert made.repacked is not None or body.startswith(before)
                reasons.add(made.repacked)
                assert made.tokens <= BUDGET
                assert "removed: " not in shown(made)[pinned]
                before = body
                assert (await home.archive.show("s", number=made.number)).context.request == made.request
    assert reasons >= {None, "budget"}


@pytest.mark.anyio
@pytest.mark.requirement("REQ-3")
async def test_a_look_at_the_window_as_text_changes_no_request(tmp_path: Path) -> None:
    clock = TestClock()
    clock.wall = 1_700_000_000_000
    async with household(tmp_path, clock) as home:
        live = await home.create()
        append(live, PromptEvent(text="Read it."))
        call(live, home, "a", "/src/a.py", "x\n" * 3_000)
        append(live, PromptEvent(text="Again."))
        call(live, home, "b", "/src/a.py", "x\n" * 3_000)
        first = await ask(home, live, "anthropic-messages")
        append(live, PromptEvent(text="And?"))
        text = await ask(home, live, None)
        assert text.repacked is None and text.text
        clock.wall += 1_000
        append(live, PromptEvent(text="Well?"))
        second = await ask(home, live, "anthropic-messages")
        assert second.repacked is None
        assert plain("anthropic-messages", second.request or {}).startswith(
            plain("anthropic-messages", first.request or {})
        )


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
@pytest.mark.requirement("WIN-3")
async def test_a_conversation_beyond_the_budget_loses_its_oldest_messages(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        for nth in range(60):
            append(live, PromptEvent(text=f"Question {nth}: " + "why? " * 300))
            call(live, home, f"c{nth}", f"/src/{nth}.py", f"out {nth}")
            append(live, ResponseEvent(text=f"Answer {nth}", model="m"))
            if nth == 3:
                live.submit(WriteRequest("session.pin", "p"), activation_operations.pin_delta(live.state, "c3"))
            made = await ask(home, live, "anthropic-messages")
            assert made.request is not None and made.tokens <= BUDGET
            check_request("anthropic-messages", made.request)
            assert f"Question {nth}" in str(made.request)
        assert "out 3" in shown(made).values()
        assert "Question 3:" not in str(made.request) and "older replies were removed here" in str(made.request)
        append(live, PromptEvent(text="long " * 30_000 + "end"), SystemEvent(text="notice " * 20_000))
        made = await ask(home, live, "anthropic-messages")
        assert made.tokens <= BUDGET and str(made.request).count("tokens left out here") == 2
        assert (await home.archive.show("s", number=made.number)).context.request == made.request
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        append(live, PromptEvent(text="Next"))
        after = await ask(home, live, "anthropic-messages")
        assert plain("anthropic-messages", after.request or {}).startswith(
            plain("anthropic-messages", made.request or {})
        )


@pytest.mark.requirement("WIN-2")
@pytest.mark.parametrize("text", ["é" * 3_000 + "x" * 3_000, "x" * 3_000 + "字" * 3_000, "😀a" * 3_000])
def test_a_cut_text_stays_within_its_tokens_in_every_script(text: str) -> None:
    made = cut(text, 500, estimate_tokens, "load it")
    head, _, tail = made.partition("\n[…")
    kept = head + tail.partition("…]\n")[2]
    assert 490 <= estimate_tokens(kept) <= 500
    assert text.startswith(head) and text.endswith(tail.partition("…]\n")[2])


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
async def test_the_newest_system_prompt_stays_in_force_when_old_messages_are_removed(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(prompt="FIRST", budget_tokens=6_000)
        for nth in range(20):
            append(live, PromptEvent(text=f"Question {nth}: " + "why? " * 300))
            made = await ask(home, live, "anthropic-messages")
            append(live, ResponseEvent(text=f"Answer {nth}", model="m"))
            if nth in (1, 2):
                document = documents.system_prompt("s", f"VERSION {nth}")
                live.submit(
                    WriteRequest("session.set_system_prompt", "p"), puts=(document,), floor_vt=live.updated_at + 1
                )
            assert made.request is not None and made.tokens <= 6_000
            check_request("anthropic-messages", made.request)
            assert nth < 3 or str(made.request).count("VERSION 2") == 1
        assert "Question 3:" not in str(made.request) and "VERSION 1" not in str(made.request)
        assert (await home.archive.show("s", number=made.number)).context.request == made.request


@pytest.mark.anyio
@pytest.mark.requirement("WIN-3")
async def test_long_arguments_of_new_calls_take_the_room_of_older_replies(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="Write them."))
        for nth in range(40):
            id, args = f"w{nth}", {"file_path": f"/{nth}.py", "content": "x" * 3_000}
            append(live, ResponseEvent(text="so " * 400), ToolCallEvent(call=id, tool="Write", args=args))
            append(live, ToolResultEvent(call=id, text="ok " * 300))
            made = await ask(home, live, "anthropic-messages")
            check_request("anthropic-messages", made.request or {})
            assert made.tokens <= BUDGET


@pytest.mark.anyio
@pytest.mark.requirement("WIN-6")
@pytest.mark.parametrize("is_recorded", [False, True])
async def test_late_outputs_are_removed_like_other_old_outputs(tmp_path: Path, is_recorded: bool) -> None:
    clock = TestClock()
    clock.wall = 1_700_000_000_000
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="Go."))
        for nth in range(20):
            append(live, ToolCallEvent(call=f"c{nth}", tool="Bash", args={"command": f"make {nth}"}))
        append(live, PromptEvent(text="Go on."))
        await ask(home, live, "anthropic-messages")
        for nth in range(20):
            text = f"late {nth}\n" * 1_000
            if is_recorded:
                home.record(live, f"c{nth}", text, say=False)
            object, text = (f"c{nth}", "") if is_recorded else (None, text)
            append(live, ToolResultEvent(call=f"c{nth}", object=object, text=text))
            made = await ask(home, live, "anthropic-messages")
            assert made.tokens <= BUDGET
            append(live, ResponseEvent(text="I see."), PromptEvent(text="On."))
        body = json.dumps(made.request)
        assert "late 19\\nlate 19" in body and "late 0\\nlate 0" not in body
        how = "activate c0 to load it" if is_recorded else "it is event "
        assert re.search(rf"\[Late output of Bash make 0 removed: ok, [0-9,]+ tokens; {how}", body)
        assert (await home.archive.show("s", number=made.number)).context.request == made.request
    async with household(tmp_path, clock) as home:
        live = await home.sessions.live("s")
        if is_recorded:
            home.activate(live, "c0")
        append(live, ResponseEvent(text="I see."), PromptEvent(text="On."))
        again = await ask(home, live, "anthropic-messages")
        if again.repacked is None:
            assert plain("anthropic-messages", again.request or {}).startswith(
                plain("anthropic-messages", made.request or {})
            )
        assert ("late 0\\nlate 0" in json.dumps(again.request)) == is_recorded
        for nth in range(80):
            append(live, PromptEvent(text=f"Question {nth}: " + "why? " * 300), ResponseEvent(text="Because."))
            made = await ask(home, live, "anthropic-messages")
            check_request("anthropic-messages", made.request or {})
            assert made.tokens <= BUDGET


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
async def test_pictures_have_no_part_in_the_room_for_text(tmp_path: Path) -> None:
    picture = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="look " * 30_000, attachments=(picture,) * 4))
        made = await ask(home, live, "anthropic-messages")
        assert 0.6 * BUDGET < made.tokens < 0.8 * BUDGET
        append(live, ToolCallEvent(call="a", tool="Shot", args={"path": "x"}))
        append(live, ToolResultEvent(call="a", text="seen " * 30_000, attachments=(picture,) * 2))
        made = await ask(home, live, "anthropic-messages")
        assert made.tokens <= BUDGET
        assert json.dumps(made.request).count("image/png") == 6


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
async def test_more_pictures_than_the_budget_takes_are_left_out_with_a_line(tmp_path: Path) -> None:
    picture = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="look", attachments=(picture,) * 30))
        made = await ask(home, live, "anthropic-messages")
        assert made.tokens < 0.8 * BUDGET and "images left out here" in json.dumps(made.request)
        append(live, ToolCallEvent(call="a", tool="Shot", args={"path": "x"}))
        append(live, ToolResultEvent(call="a", text="seen", attachments=(picture,) * 20))
        made = await ask(home, live, "anthropic-messages")
        assert made.tokens <= BUDGET and json.dumps(made.request).count("images left out here") == 2
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        append(live, ResponseEvent(text="I see."), PromptEvent(text="Next."))
        after = await ask(home, live, "anthropic-messages")
        assert after.tokens <= BUDGET


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
async def test_chosen_content_larger_than_the_budget_is_cut_once(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="Go."))
        path = home.files / "large.txt"
        path.write_text("large line\n" * 20_000)
        id = await home.read(live, path)
        home.activate(live, id)
        first = await ask(home, live, "anthropic-messages")
        assert first.tokens <= BUDGET and "tokens left out here" in json.dumps(first.request)
        assert (await explain(live, id, home.archive)).shown == "cut"
        append(live, ResponseEvent(text="I see."), PromptEvent(text="Next."))
        second = await ask(home, live, "anthropic-messages")
        assert second.tokens <= BUDGET and second.repacked is None
        assert plain("anthropic-messages", second.request or {}).startswith(
            plain("anthropic-messages", first.request or {})
        )


@pytest.mark.anyio
@pytest.mark.requirement("WIN-6")
@pytest.mark.parametrize("is_late", [False, True])
async def test_the_line_for_a_removed_output_counts_its_pictures(tmp_path: Path, is_late: bool) -> None:
    picture = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        append(live, PromptEvent(text="Go."), ToolCallEvent(call="a", tool="Shot", args={"path": "x.html"}))
        if is_late:
            append(live, PromptEvent(text="On."))
            await ask(home, live, "anthropic-messages")
        append(live, ToolResultEvent(call="a", text="seen " * 800, attachments=(picture,) * 2))
        made = await ask(home, live, "anthropic-messages")
        assert json.dumps(made.request).count("image/png") == (0 if is_late else 2)
        assert not is_late or "[2 images left out here; all of it is event 2.1 of the chat]" in json.dumps(made.request)
        for nth in range(12):
            append(live, ResponseEvent(text="I see."), PromptEvent(text="On."))
            call(live, home, f"c{nth}", f"/src/{nth}.py", "x\n" * 2_000)
            made = await ask(home, live, "anthropic-messages")
        title = "Late output of Shot x.html removed" if is_late else "removed"
        for text in (json.dumps(made.request), (await ask(home, live, None)).text):
            assert f"[{title}: ok, 4,004 tokens with 2 images; it is event " in text and "image/png" not in text
    async with household(tmp_path) as home:
        assert (await home.archive.show("s", number=made.number)).context.request == made.request


@pytest.mark.anyio
@pytest.mark.requirement("WIN-3")
async def test_messages_sent_without_a_reply_are_cut_too(tmp_path: Path) -> None:
    picture = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=BUDGET)
        for nth in range(6):
            append(live, PromptEvent(text=f"look {nth}" * 2_000, attachments=(picture,) * 3))
            made = await ask(home, live, "anthropic-messages")
            assert made.tokens <= BUDGET and made.plan.over_by == 0, nth
        assert (await home.archive.show("s", number=made.number)).context.request == made.request
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        append(live, PromptEvent(text="Well?"))
        after = await ask(home, live, "anthropic-messages")
        assert plain("anthropic-messages", after.request or {}).startswith(
            plain("anthropic-messages", made.request or {})
        )


@pytest.mark.anyio
@pytest.mark.requirement("WIN-2")
async def test_a_budget_below_the_pinned_content_is_kept(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=60_000)
        append(live, PromptEvent(text="Go."))
        for nth in range(4):
            call(live, home, f"c{nth}", f"/src/{nth}.py", f"line {nth}\n" * 2_000)
            live.submit(WriteRequest("session.pin", "p"), activation_operations.pin_delta(live.state, f"c{nth}"))
        await ask(home, live, "anthropic-messages")
        live.submit(WriteRequest("session.configure", "p"), settings=replace(live.settings, budget_tokens=8_000))
        for _ in range(3):
            made = await ask(home, live, "anthropic-messages")
            assert made.tokens <= 8_000 and made.plan.over_by == 0
            append(live, ResponseEvent(text="I see."), PromptEvent(text="Next."))
        assert not any("removed: " in text for text in shown(made).values())
