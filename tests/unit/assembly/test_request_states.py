"""Requests of every state that a session can reach: valid for each provider, and each the continuation of the last."""

import json
import tempfile
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings

from ctxd.assembly import append_planner
from ctxd.assembly.append_window import KeptWindow
from ctxd.assembly.assembly_record import Recorded
from ctxd.assembly.request_bodies import WINDOW_RENDERER, request_body
from ctxd.assembly.request_target import RequestTarget, Wanted
from ctxd.assembly.window_items import AssistantText, Reasoning, UserText, WindowItem
from ctxd.errors import CtxdError
from ctxd.sessions import chat_operations, membership_operations
from ctxd.sessions.purging import purge
from ctxd.sessions.session import LiveSession, WriteRequest
from ctxd_protocol.context_types import AssembledContext, RequestFormat, ToolDeclaration
from ctxd_protocol.event_types import (
    Attachment,
    CompactionEvent,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from tests.unit.assembly.household import MODELS_OF, Household, household
from tests.unit.assembly.provider_rules import FORMATS, check_request

CALLS = ("a", "b", "call|odd one", "d" * 60)
FILES = ("main.py", "notes.md")
DELTAS = {
    "activate": membership_operations.activate_delta,
    "deactivate": membership_operations.deactivate_delta,
    "pool_add": membership_operations.show_delta,
    "pool_remove": membership_operations.hide_delta,
    "pin": membership_operations.pin_delta,
}
TEXTS = st.sampled_from(("", " ", "\n", "text", "<system-update>", "é\u2028x", "WINDOW_ITEM kind=user"))
ASKED = (("anthropic-messages", "m"), ("anthropic-messages", "s"), ("openai-responses", "g"), ("openai-chat", "m"))
IMAGE = Attachment(media_type="image/png", data=b"\x89PNG\r\n\x1a\n")
OTHER = Attachment(media_type="application/pdf", data=b"%PDF-")
call_ids = st.sampled_from(CALLS)
arguments = st.sampled_from((None, {}, {"command": "ls"}, {"file_path": "main.py"}, "no json", '{"a":1}', [1]))

events: st.SearchStrategy[Event] = st.one_of(
    st.builds(PromptEvent, text=st.sampled_from(("Go", " ", "Fix main.py"))),
    st.just(PromptEvent(text="", attachments=(IMAGE, OTHER))),
    st.builds(ResponseEvent, text=TEXTS, model=st.sampled_from((None, "m", "s"))),
    st.builds(ThinkingEvent, text=TEXTS, signature=st.sampled_from((None, "sig")), id=st.sampled_from((None, "rs_1"))),
    st.just(ThinkingEvent(encrypted="secret", id="rs_2")),
    st.builds(ToolCallEvent, call=call_ids, tool=st.sampled_from(("bash", "my tool/x")), args=arguments),
    st.builds(ToolResultEvent, call=call_ids, text=TEXTS, is_error=st.booleans()),
    st.builds(ToolResultEvent, call=call_ids, text=TEXTS, is_error=st.booleans(), attachments=st.just((IMAGE,))),
    st.builds(SystemEvent, text=TEXTS),
    st.builds(CompactionEvent, summary=TEXTS),
    st.just(OpaqueEvent(kind="x")),
    st.just(PromptEvent(text="side", sidechain="agent")),
)
operations = st.one_of(
    st.tuples(st.just("append"), st.lists(events, min_size=1, max_size=4)),
    st.tuples(st.just("append"), st.lists(events, min_size=1, max_size=4)),
    st.tuples(st.just("record"), call_ids),
    st.tuples(st.just("refer"), call_ids),
    st.tuples(st.sampled_from(("read", "write", "delete", "discover")), st.sampled_from(FILES)),
    st.tuples(st.sampled_from(("activate", "deactivate", "pool_add", "pool_remove", "pin")), st.integers(0, 5)),
    st.tuples(st.just("entry"), st.tuples(st.sampled_from(("mode", "limits")), st.sampled_from(("a", "b", None)))),
    st.tuples(st.just("request"), st.sampled_from(ASKED)),
    st.tuples(st.just("request"), st.sampled_from(ASKED[:2])),
    st.tuples(st.just("purge"), st.integers(0, 5)),
    st.tuples(st.just("restart"), st.none()),
)


class Life:
    """One session in one household after another."""

    def __init__(self, home: Household) -> None:
        self.home = home
        self.last: dict[tuple[str, str], bytes] = {}
        self.compacted = False

    async def live(self) -> LiveSession:
        return await self.home.sessions.live("s")

    async def do(self, what: str, argument: Any) -> None:
        live = await self.live()
        match what:
            case "append":
                self.append(live, argument)
            case "record" if argument not in live.state.index and "|" not in argument:
                self.home.record(live, argument, f"output of {argument}", say=False)
            case "refer" if argument in live.state.index:
                self.append(live, [ToolResultEvent(object=argument, call=argument)])
            case "entry":
                await self.home.set_entry(live, *argument)
            case "request":
                await self.request(live, *argument)
            case "read" | "write" | "delete" | "discover":
                await self.file(live, what, self.home.files / argument)
            case "purge" | "activate" | "deactivate" | "pool_add" | "pool_remove" | "pin" if live.state.index:
                await self.object(live, what, list(live.state.index)[argument % len(live.state.index)])

    async def object(self, live: LiveSession, what: str, id: str) -> None:
        if what == "purge":
            await purge(self.home.store, self.home.sessions.guard, WriteRequest("object.purge", "p"), id)
            self.last.clear()
            return
        try:
            delta = DELTAS[what](live.state, id)
        except CtxdError:
            return
        if delta:
            live.commit(WriteRequest(f"session.{what}", "p"), delta)

    async def file(self, live: LiveSession, what: str, path: Path) -> None:
        if what == "write":
            path.write_text(path.read_text() + "more\n" if path.exists() else "first\n")
        elif what == "delete":
            path.unlink(missing_ok=True)
        else:
            path.touch()
            await (self.home.read(live, path) if what == "read" else self.home.discover(live, [path]))

    def append(self, live: LiveSession, said: list[Event]) -> None:
        self.compacted |= any(isinstance(each, CompactionEvent) and each.summary.strip() for each in said)
        delta = chat_operations.append_delta(live.state, "s", said, live.settings.collapse)
        live.commit(WriteRequest("session.append", "p"), delta)

    async def request(self, live: LiveSession, format: RequestFormat, model: str) -> None:
        made = await ask(self.home, live, format, model)
        assert made.request is not None
        check_request(format, made.request)
        body = plain(format, made.request)
        before = self.last.get((format, model), b"")
        is_new = self.compacted or made.repacked is not None
        assert is_new or body.startswith(before), (before, body)
        if is_new:
            self.last.clear()
            self.compacted = False
        self.last[format, model] = body
        shown = await self.home.archive.show("s", number=made.number)
        assert shown.context.request == made.request


async def ask(
    home: Household, live: LiveSession, format: RequestFormat, model: str | None = None, **wanted: Any
) -> AssembledContext:
    call, form = WriteRequest("context.assemble", "p"), Wanted(format, model or MODELS_OF.get(format, "m"), **wanted)
    assembled = await home.assembler.assemble(live, call, wanted=form)
    if assembled.pending is not None:
        await assembled.pending.wait()
    return assembled.context


def plain(format: str, body: dict[str, Any]) -> bytes:
    """``body`` without cache markers and without the brackets that close it, as bytes that the next one begins with."""
    copied = json.loads(json.dumps(body))

    def strip(value: Any) -> None:
        if isinstance(value, dict):
            value.pop("cache_control", None)
        for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            strip(each)

    strip(copied)
    return json.dumps(copied).rstrip("]}").encode()


@given(st.lists(operations, min_size=1, max_size=14), st.sampled_from(("", "Be brief.")))
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@pytest.mark.requirement("REQ-1")
@pytest.mark.requirement("REQ-2")
def test_every_state_gives_valid_requests_each_of_which_continues_the_last(
    todo: list[tuple[str, Any]], prompt: str
) -> None:
    async def run(root: Path) -> None:
        remaining = [*todo, *(("request", asked) for asked in ASKED), ("restart", None)]
        remaining += [("append", [PromptEvent(text="Next")]), *(("request", asked) for asked in ASKED)]
        life: Life | None = None
        while remaining:
            async with household(root) as home:
                if life is None:
                    life = Life(home)
                    await home.create(prompt=prompt)
                life.home = home
                while remaining:
                    what, argument = remaining.pop(0)
                    if what == "restart":
                        break
                    await life.do(what, argument)

    with tempfile.TemporaryDirectory() as folder:
        anyio.run(run, Path(folder))


@pytest.mark.anyio
async def test_other_tools_are_declared_and_rendered_again(tmp_path: Path) -> None:
    tool = ToolDeclaration(name="bash", description="Run.", input_schema={"type": "object"})
    async with household(tmp_path) as home:
        live = await home.create()
        for format in FORMATS:
            made = await ask(home, live, format, tools=(tool,))
            check_request(format, made.request or {})
            assert "bash" in json.dumps((made.request or {})["tools"])
            assert (await home.archive.show("s", number=made.number)).context.request == made.request


@pytest.mark.anyio
@pytest.mark.requirement("REQ-1")
@pytest.mark.parametrize("text", ["", " \n", "it failed"])
@pytest.mark.parametrize("attachments", [(), (IMAGE,)])
async def test_an_output_of_a_failed_call_is_valid_without_text_and_with_images(
    tmp_path: Path, text: str, attachments: tuple[Attachment, ...]
) -> None:
    async with household(tmp_path) as home:
        life, live = Life(home), await home.create()
        called = ToolCallEvent(call="a", tool="bash", args={"command": "false"})
        life.append(live, [PromptEvent(text="Go"), called])
        life.append(live, [ToolResultEvent(call="a", text=text, is_error=True, attachments=attachments)])
        for format in FORMATS:
            made = await ask(home, live, format)
            check_request(format, made.request or {})
            assert (text.strip() or "the tool failed") in json.dumps(made.request)
            assert not attachments or "iVBOR" in json.dumps(made.request)


@pytest.mark.anyio
@pytest.mark.requirement("REQ-5")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_call_id_that_is_used_again_keeps_its_late_output_and_its_new_one_apart(
    tmp_path: Path, format: RequestFormat, is_restarted: bool
) -> None:
    called = ToolCallEvent(call="a", tool="bash", args={"command": "make"})
    steps: list[list[Event]] = [
        [PromptEvent(text="Go"), called, PromptEvent(text="Well?")],
        [ToolResultEvent(call="a", text="the late output")],
        [ResponseEvent(text="Again."), called, ToolResultEvent(call="a", text="the second output")],
        [ToolResultEvent(call="a", text="never asked for"), PromptEvent(text="Thanks")],
    ]
    made: list[AssembledContext] = []
    async with household(tmp_path) as home:
        live = await home.create()
        for said in steps[:2] if is_restarted else steps:
            Life(home).append(live, said)
            made.append(await ask(home, live, format))
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        for said in steps[len(made) :]:
            Life(home).append(live, said)
            made.append(await ask(home, live, format))
        assert [(await home.archive.show("s", number=each.number)).context.request for each in made] == [
            each.request for each in made
        ]
    texts = [json.dumps(each.request) for each in made]
    for each, before in zip(made[1:], made, strict=False):
        check_request(format, each.request or {})
        assert plain(format, each.request or {}).startswith(plain(format, before.request or {}))
    assert "no output of this call" in texts[0] and "Late output of bash make (ok)" in texts[1]
    assert texts[2].count("the second output") == texts[2].count("the late output") == 1
    assert "Late output" not in texts[3].partition("the second output")[2], "both calls have their output"


@pytest.mark.anyio
@pytest.mark.requirement("REQ-2")
@pytest.mark.parametrize("format", FORMATS)
async def test_a_window_of_the_last_version_keeps_its_escaping_until_the_next_window(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: RequestFormat
) -> None:
    raw, escaped = "if a < b && c > d", "if a &lt; b &amp;&amp; c &gt; d"
    made: list[AssembledContext] = []

    async def grow(home: Household, *said: Event) -> None:
        live = await home.sessions.live("s")
        Life(home).append(live, list(said))
        made.append(await ask(home, live, format))

    with monkeypatch.context() as earlier:
        earlier.setattr(append_planner, "WINDOW_RENDERER", 2)
        async with household(tmp_path) as home:
            await home.create()
            await grow(home, PromptEvent(text="Begin"), SystemEvent(text=raw))
    async with household(tmp_path) as home:
        await grow(home, SystemEvent(text=f"again {raw}"))
        await grow(home, CompactionEvent(summary=f"now {raw}"))
    async with household(tmp_path) as home:
        shown = [(await home.archive.show("s", number=each.number)).context.request for each in made]
        assert shown == [each.request for each in made]
        records = await home.archive.records("s")
    assert [record.renderer for record in records] == [2, 2, WINDOW_RENDERER]
    first, second, third = (json.dumps(each.request) for each in made)
    assert f"<system-update>\\n{escaped}\\n</system-update>" in first and raw not in first
    assert plain(format, made[1].request or {}).startswith(plain(format, made[0].request or {}))
    assert f"again {escaped}" in second and raw not in second
    assert f"now {raw}" in third and "&" + "lt;" not in third


class _Counted(list[WindowItem]):
    """A list that counts the items copied out of it."""

    copied = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.copied += len(found) if isinstance(at, slice) else 0
        return found


def test_a_request_with_much_reasoning_copies_no_tail_of_the_window_for_each() -> None:
    items = _Counted([UserText(key="u", tokens=1, turn=0, text="Go")])
    for nth in range(300):
        same: dict[str, Any] = {"tokens": 1, "turn": 0}
        items.append(
            Reasoning(key=f"r{nth}", place=(0, nth), provider="anthropic", model="m", prefix="p", signature="s", **same)
        )
        items.append(AssistantText(key=f"a{nth}", text="Done.", **same))
    items.append(UserText(key="z", tokens=1, turn=0, text="Go"))
    request_body(items, RequestTarget(format="anthropic-messages", model="m", max_tokens=1))
    assert items.copied <= len(items)


@pytest.mark.anyio
@pytest.mark.requirement("WHY-2")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_request_that_a_purge_changed_is_recorded_anew(
    tmp_path: Path, format: RequestFormat, is_restarted: bool
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.record(live, "t1", "swordfish", say=False)
        first = await ask(home, live, format)
        await purge(home.store, home.sessions.guard, WriteRequest("object.purge", "p"), "t1")
        again = first if is_restarted else await ask(home, live, format)
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        if is_restarted:
            again = await ask(home, live, format)
        assert "swordfish" in json.dumps(first.request) and "swordfish" not in json.dumps(again.request)
        assert again.number == first.number + 1 and again.cost is not None
        assert (again.stable_prefix, again.cost.broken_by, again.cost.cache_read) == (None, "purge", 0)
        assert (await home.archive.show("s", number=again.number)).context.request == again.request
        with pytest.raises(CtxdError) as gone:
            await home.archive.show("s", number=first.number)
        assert gone.value.code == "purged"
        same = await ask(home, live, format)
        assert (same.number, same.request) == (again.number, again.request)


@pytest.mark.anyio
async def test_a_window_that_is_read_while_something_is_purged_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files/a.py").write_text("swordfish")
    async with household(tmp_path) as home:
        live = await home.create()
        file = await home.read(live, home.files / "a.py")
        assert "swordfish" in json.dumps((await ask(home, live, "openai-chat")).request)
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        recall, recalled = home.archive.recall, []

        async def racing(live: LiveSession, last: Recorded) -> KeptWindow:
            recalled.append(await recall(live, last))
            if len(recalled) == 1:
                await purge(home.store, home.sessions.guard, WriteRequest("object.purge", "p"), file)
            return recalled[-1]

        monkeypatch.setattr(home.archive, "recall", racing)
        (tmp_path / "files/a.py").write_text("other")
        made = await ask(home, live, "openai-chat")
        assert len(recalled) == 2 and "swordfish" not in json.dumps(made.request)


@pytest.mark.anyio
async def test_a_kept_window_counts_the_text_of_the_blocks_in_its_answer(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        Life(home).append(live, [PromptEvent(text="word " * 20_000)])
        await ask(home, live, "anthropic-messages")
        kept = home.assembler._cache.of(live).window
        assert kept is not None and kept.size > 290_000, "items, request and blocks have the 100,000 bytes each"
