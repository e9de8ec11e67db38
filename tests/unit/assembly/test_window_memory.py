"""Bounds on the memory of windows: those kept between requests, and what is read for one."""

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path

import pytest

from ctxd.assembly import recorded_assemblies, render_cache, spec_layout
from ctxd.assembly.request_target import Wanted
from ctxd.assembly.spec_layout import ChatSection
from ctxd.errors import CtxdError
from ctxd.sessions.chat import ChatPage, read_pages
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.event_types import CompactionEvent, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.session_types import Message
from tests.unit.assembly.stored_sessions import MODELS_OF, Household, household
from tests.unit.assembly.test_request_states import append, ask


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_a_kept_window_counts_all_that_its_answer_keeps(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="word " * 20_000)])
        made = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=Wanted())
        kept = home.assembler._cache.of(live)
        assert kept.window is not None and 290_000 < kept.window.size < 310_000, "items, text and blocks"
        await ask(home, live, "anthropic-messages")
        assert 190_000 < kept.window.size < 210_000, "items and request"
        form = Wanted("anthropic-messages", MODELS_OF["anthropic-messages"])
        made = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=form)
        made.encoded(text=False, blocks=False)
        assert 290_000 < kept.window.size < 310_000, "also the bytes of the answer"


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_windows_that_are_loaded_again_are_kept_within_the_same_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing was added to them, so that nothing new is kept."""
    async with household(tmp_path) as home:
        for number in range(5):
            live = await home.create(f"s{number}")
            append(live, [PromptEvent(text="word " * 20_000)])
            await ask(home, live, "anthropic-messages")
    monkeypatch.setattr(render_cache, "KEPT_BYTES_MAX", 500_000)
    async with household(tmp_path) as home:
        for number in range(5):
            await ask(home, await home.sessions.live(f"s{number}"), "anthropic-messages")
        kept = home.assembler._cache._kept.values()
        assert sum(each.size for each in kept) <= 500_000 and len(kept) == 2


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_a_window_too_large_to_keep_evicts_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render_cache, "KEPT_BYTES_MAX", 500_000)
    async with household(tmp_path) as home:
        for name, words in (("small", 20_000), ("large", 80_000)):
            live = await home.create(name)
            append(live, [PromptEvent(text="word " * words)])
            await ask(home, live, "anthropic-messages")
        assert list(home.assembler._cache._kept) == ["small"]
        assert (await ask(home, live, "anthropic-messages")).number == 1, "it is rendered again, unchanged"


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_events_hidden_from_a_window_do_not_count_towards_its_read_limit(tmp_path: Path) -> None:
    form = Wanted("anthropic-messages", MODELS_OF["anthropic-messages"])
    aside = [ResponseEvent(text=f"{number} " + "word " * 20_000, sidechain="agent") for number in range(30)]
    for is_loaded in (False, True):
        async with household(tmp_path) as home:
            if not is_loaded:
                append(await home.create(), [PromptEvent(text="Go"), *aside, PromptEvent(text="On")])
            live = await home.sessions.live("s")
            call = WriteRequest("context.assemble", "p")
            made = await home.assembler.assemble(live, call, chars_max=1_000_000, form=form)
            if made.pending is not None:
                await made.pending.wait()
            assert len(json.dumps(made.context.request)) < 1000 and made.context.number == 1


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
@pytest.mark.parametrize("what", ["calls", "chat"])
async def test_a_request_that_is_made_of_more_text_than_may_be_in_memory_is_refused(tmp_path: Path, what: str) -> None:
    """However little of it the request would have: what a sandbox has recorded is not read whole for it."""
    form = Wanted("anthropic-messages", MODELS_OF["anthropic-messages"])
    (tmp_path / "files").mkdir()
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=30_000)
        for number in range(10):
            if what == "calls":
                home.record(live, f"c{number}", f"{number} " + "line\n" * 100_000)
            else:
                home.append(
                    live,
                    Message(role="user", content=f"{number} " + "word " * 100_000),
                    Message(role="assistant", content="Well."),
                )
        home.append(live, Message(role="user", content="What now?"))

        async def size(chars_max: int) -> int:
            call = WriteRequest("context.assemble", "p")
            made = await home.assembler.assemble(live, call, chars_max=chars_max, form=form)
            return len(json.dumps(made.context.request))

        with pytest.raises(CtxdError, match="bytes of messages and contents") as refused:
            await size(1_000_000)
        assert (refused.value.code, refused.value.outcome, live.assembly) == ("too_large", "not_applied", 0)
        assert refused.value.hint is not None and "Call the host's socket" in refused.value.hint
        assert await size(4_000_000) < 1_000_000, "the budget leaves little of it"


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_wide_text_counts_twice_towards_the_read_limit_of_a_request(tmp_path: Path) -> None:
    form = Wanted("anthropic-messages", MODELS_OF["anthropic-messages"])
    call = WriteRequest("context.assemble", "p")
    async with household(tmp_path) as home:
        live = await home.create("narrow", budget_tokens=20_000)
        append(live, [PromptEvent(text="word " * 30_000)])
        made = await home.assembler.assemble(live, call, chars_max=100_000, form=form)
        assert made.context.number == 1
        live = await home.create("wide", budget_tokens=20_000)
        append(live, [PromptEvent(text="\N{GRINNING FACE} " + "word " * 30_000)])
        with pytest.raises(CtxdError, match="bytes of messages and contents") as refused:
            await home.assembler.assemble(live, call, chars_max=100_000, form=form)
        assert (refused.value.code, refused.value.outcome) == ("too_large", "not_applied")


async def text(home: Household, live: LiveSession) -> str:
    made = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"))
    if made.pending is not None:
        await made.pending.wait()
    return made.context.text


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_of_the_calls_of_a_chat_only_counted_cut_arguments_are_kept(tmp_path: Path) -> None:
    """Also of calls whose output is in an object, as the chat may have it later."""
    async with household(tmp_path) as home:
        live = await home.create()
        for number in range(50):
            append(live, [ToolCallEvent(call=f"c{number}", tool="write", args={"content": "word " * 10_000})])
            home.record(live, f"c{number}", "Written.", say=False)
            append(live, [ToolResultEvent(call=f"c{number}", object=f"c{number}")])
        await text(home, live)
        kept = home.assembler._cache.of(live)
        chat = next(each for each in kept.components if isinstance(each, ChatSection))
        assert len(chat._calls) == 50 and max(len(call.arguments) for call in chat._calls.values()) < 2_500
        assert 50 * 2_000 < kept.size < 50 * 6_000
        before = chat.other_bytes
        append(live, [ToolResultEvent(call="c7", text="Written late.")])
        shown = await text(home, live)
        assert shown.count("CHAT_MESSAGE role=tool") == 1 and '{"content":"word word' in shown and "late." in shown
        append(live, [ToolCallEvent(call="c8", tool="write", args={})])
        await text(home, live)
        assert before - 5_000 < chat.other_bytes < before, "the arguments of c8 are shorter now"


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_a_text_that_is_only_looked_at_counts_towards_the_bound_of_kept_contexts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with household(tmp_path) as home:
        live = await home.create("large")
        append(live, [PromptEvent(text="word " * 20_000)])
        await home.assembler.dry_run(live, WriteRequest("context.assemble", "p"))
        assert home.assembler._cache.of(live).size > 100_000
        monkeypatch.setattr(render_cache, "KEPT_BYTES_MAX", 90_000)
        await home.assembler.plan(live, None)
        assert not home.assembler._cache._kept


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_a_text_that_cannot_be_rendered_leaves_no_read_of_the_chat_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_open = False

    async def pages(live: LiveSession, first: EventPosition) -> AsyncGenerator[ChatPage, None]:
        nonlocal is_open
        is_open = True
        try:
            async with aclosing(read_pages(live, first)) as found:
                async for page in found:
                    yield page
        finally:
            is_open = False

    def fail(*_: object) -> str:
        raise CtxdError("corrupt", "no text")

    monkeypatch.setattr(spec_layout, "read_pages", pages)
    monkeypatch.setattr(spec_layout, "render_message", fail)
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="Go.")])
        with pytest.raises(CtxdError, match="no text"):
            await text(home, live)
        assert not is_open


@pytest.mark.anyio
@pytest.mark.requirement("RPC-11")
async def test_the_context_ids_of_all_sessions_in_memory_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorded_assemblies, "_IDS_KEPT_MAX", 5)
    async with household(tmp_path) as home:
        for name in ("a", "b", "c"):
            live = await home.create(name)
            for number in range(4):
                append(live, [PromptEvent(text=f"{number}")])
                await text(home, live)
            assert len((await home.archive.recordings(live)).numbers) == 4
        kept = home.archive._recordings
        assert [session for session, *_ in kept] == ["b", "c"], "each is counted once it is complete"
        await home.archive.recordings(live)
        assert [session for session, *_ in kept] == ["c"]


@pytest.mark.anyio
@pytest.mark.requirement("CTX-12")
async def test_messages_that_a_summary_replaced_do_not_count_towards_the_limit_of_a_text(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        call = WriteRequest("context.assemble", "p")
        append(live, [PromptEvent(text="old " * 500), PromptEvent(text="kept " * 100, id="k")])
        for _ in range(2):
            with pytest.raises(CtxdError, match="has at least 2,... characters; the limit for one assembly is 1,500"):
                await home.assembler.assemble(live, call, chars_max=1_500)
        assert "old" in (await home.assembler.dry_run(live, call, chars_max=5_000)).context.text, "a larger limit"
        append(live, [PromptEvent(text="more " * 1_000)])
        with pytest.raises(CtxdError, match="the limit for one assembly is 5,000"):
            await home.assembler.plan(live, None, chars_max=5_000)
        append(live, [CompactionEvent(summary="A summary.", kept_from="k")])
        with pytest.raises(CtxdError, match="the limit for one assembly is 1,500"):
            await home.assembler.plan(live, None, chars_max=1_500)
        append(live, [CompactionEvent(summary="A summary."), PromptEvent(text="And now?")])
        await home.assembler.plan(live, None, chars_max=1_500)
        made = (await home.assembler.assemble(live, call, chars_max=1_500)).context
        assert made.text.count("summary") == made.text.count("now?") == 1 and made.number == 1
        assert (await home.archive.show("s")).context.text == made.text


@pytest.mark.anyio
@pytest.mark.requirement("CTX-5")
async def test_content_that_was_rendered_before_counts_towards_the_limit_of_a_text(tmp_path: Path) -> None:
    call = WriteRequest("context.assemble", "p")
    for _ in range(2):
        async with household(tmp_path) as home:
            live = await (home.sessions.live("s") if "s" in home.sessions.catalog else home.create())
            for number in range(3 - len(live.state.active)):
                path = home.files / f"{number}.txt"
                path.write_text(f"{number} " * 300)
                await home.read(live, path)
                if number < 2:
                    await home.assembler.assemble(live, call, chars_max=2_000)
            with pytest.raises(CtxdError, match="the limit for one assembly is 2,000"):
                await home.assembler.assemble(live, call, chars_max=2_000)
            assert live.assembly == 2, "a context that is refused is not recorded"
            await home.assembler.dry_run(live, call)
            with pytest.raises(CtxdError, match="the limit for one assembly is 2,000"):
                await home.assembler.dry_run(live, call, chars_max=2_000)
