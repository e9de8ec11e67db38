"""Tool calls in a window that is read again or repacked: their ids, their late outputs, and contents loaded again."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from ctxd.assembly.token_budget import estimate_tokens
from ctxd.assembly.window_explanation import explain
from ctxd.assembly.window_items import Update
from ctxd.assembly.window_references import EventRef, Material, arguments_of, items_of
from ctxd.errors import CtxdError
from ctxd.objects import document as documents
from ctxd.sessions import activation_operations, toolcall_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.purge_operations import purge, purge_chat
from ctxd_protocol.event_types import Attachment, Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from ctxd_protocol.ids import chat_id, toolcall_alias
from tests.unit.assembly.stored_sessions import Household, household
from tests.unit.assembly.test_repack_window import append, ask, text_of

pytestmark = pytest.mark.anyio


def record_alias(home: Household, live: LiveSession, call: str, args: dict[str, str], output: str) -> str:
    """Record ``call`` of the chat under its alias, as where another session has the id."""
    id = str(toolcall_alias(live.session, call))
    document = documents.toolcall(id, tool="Write", args=args, content=output, chat_ref=chat_id(live.session))
    delta = toolcall_operations.call_delta(live.state, id, live.settings.collapse)
    live.submit(WriteRequest("toolcall.record", "p"), delta, puts=(document,))
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
            delta = activation_operations.deactivate_delta(live.state, "a")
            live.submit(WriteRequest("session.deactivate", "p"), delta)
            shown = await others(prefix)
            assert "content of the tool call bash (id=a) removed" in shown and "first 1" not in shown
            assert (await explain(live, "a", home.archive)).shown == "stub"


@pytest.mark.requirement("WIN-2")
@pytest.mark.parametrize("is_recorded", [False, True])
async def test_a_long_late_output_is_cut_and_stays_the_same_after_a_restart(tmp_path: Path, is_recorded: bool) -> None:
    async with household(tmp_path) as home:
        live = await home.create(budget_tokens=100_000)
        append(live, PromptEvent(text="Go"), ToolCallEvent(call="a", tool="bash", args={"command": "ls"}))
        append(live, PromptEvent(text="Go on"))
        await ask(home)
        text = text_of(50_000, "late")
        if is_recorded:
            home.record(live, "a", text, say=False)
        append(live, ToolResultEvent(call="a", object="a") if is_recorded else ToolResultEvent(call="a", text=text))
        first = await ask(home)
        assert first.tokens <= 8_000 and "Late output of bash ls (ok)" in json.dumps(first.request)
        assert f"tokens left out here; {'activate a' if is_recorded else 'it is event 2.'}" in json.dumps(first.request)
        if is_recorded:
            assert (await explain(live, "a", home.archive)).shown == "cut"
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        second = await ask(home)
        assert (second.stable_prefix or 0) > 0.9 * first.bytes
        if is_recorded:
            live.submit(WriteRequest("session.configure", "p"), settings=replace(live.settings, budget_tokens=None))
            home.activate(live, "a")
            assert text[-100:] in json.dumps((await ask(home)).request).replace("\\n", "\n")


@pytest.mark.requirement("REQ-2")
def test_a_late_output_in_a_record_of_an_earlier_version_stays_whole() -> None:
    event = ToolResultEvent(call="a", text=text_of(5_000, "late"))
    material = Material({(1, 2): event}, {}, {}, estimate_tokens, {})
    ref = EventRef(key="1.2", at=(1, 2), call="a", late=True, shown=100)
    (whole,), (cut,) = (items_of(each, material, {}) for each in (ref, replace(ref, is_cut=True)))
    assert isinstance(whole, Update) and isinstance(cut, Update)
    assert (whole.shown, cut.shown) == ("whole", "cut")
    assert whole.text.endswith(event.text) and cut.tokens < 200 and cut.full_tokens == whole.tokens


@pytest.mark.requirement("WHY-2")
async def test_a_request_that_showed_purged_arguments_is_refused_as_purged(tmp_path: Path) -> None:
    args = {"content": "w " * 50}
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, PromptEvent(text="Go"), ToolCallEvent(call="e", tool="Write", args=args))
        append(live, ToolResultEvent(call="e", text="written"))
        first = await ask(home)
        append(live, PromptEvent(text="Again"))
        document = documents.toolcall("x", tool="Write", args=args, content="done", chat_ref=chat_id("s"))
        delta = toolcall_operations.call_delta(live.state, "x", live.settings.collapse)
        live.submit(WriteRequest("toolcall.record", "p"), delta, puts=(document,))
        await purge(home.sessions, WriteRequest("object.purge", "p"), "x", live.session)
        with pytest.raises(CtxdError) as refused:
            await home.archive.show("s", number=first.number)
        assert refused.value.code == "purged"


@pytest.mark.requirement("WHY-2")
async def test_a_request_that_showed_a_purged_picture_beside_a_text_is_refused_as_purged(tmp_path: Path) -> None:
    picture = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, PromptEvent(text="What is this?", attachments=(picture,)), ResponseEvent(text="A logo."))
        append(live, PromptEvent(text="Go on."))
        first = await ask(home)
        append(live, PromptEvent(text="The same once more", attachments=(picture,)))
        await purge_chat(home.sessions, WriteRequest("object.purge", "p"), live.session, [3])
        with pytest.raises(CtxdError) as refused:
            await home.archive.show("s", number=first.number)
        assert refused.value.code == "purged"
        again = await purge_chat(home.sessions, WriteRequest("object.purge", "p"), live.session, [3])
        assert again.receipt is None, "nothing is left to purge"


def test_arguments_that_are_nested_too_deeply_for_json_are_one_text() -> None:
    text = "[" * 100_000
    assert json.loads(arguments_of(text)) == {"input": text}
