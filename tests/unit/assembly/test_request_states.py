"""Requests of every state that a session can reach: valid for each provider, and each the continuation of the last."""

import json
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings

from ctxd.assembly import append_window
from ctxd.assembly.append_rendering import KeptWindow
from ctxd.assembly.assembly_record import Recorded
from ctxd.assembly.epoch_history import EpochHistory
from ctxd.assembly.request_bodies import WINDOW_RENDERER, request_body
from ctxd.assembly.request_target import RequestTarget, Wanted
from ctxd.assembly.window_explanation import explain
from ctxd.assembly.window_items import AssistantText, Reasoning, UserText, WindowItem
from ctxd.assembly.window_loading import ReadBound
from ctxd.errors import CtxdError
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers.secrets import SecretCalls
from ctxd.sessions import chat_operations
from ctxd.sessions.change_notices import NoticeFeeds
from ctxd.sessions.live_session import Accepted, LiveSession, WriteRequest, write_request
from ctxd.sessions.operation_table import Operations
from ctxd.sessions.purge_operations import purge
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
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.epochs import EpochShowParams
from ctxd_protocol.session_types import Collapse
from tests.unit.assembly.provider_rules import FORMATS, check_request
from tests.unit.assembly.stored_sessions import MODELS_OF, Household, TestClock, household
from tests.unit.sessions.world import lists, session_handlers

CALLS = ("a", "b", "call|odd one", "d" * 60)
FILES = ("main.py", "notes.md")
CALLER = Caller(principal="p", capability="host", session=None, connection=1, notify=lambda _, __: True)
DAY_MS = 24 * 60 * 60 * 1000
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
    st.tuples(st.just("record"), st.tuples(call_ids, st.sampled_from((1, 1, 4_000)))),
    st.tuples(st.just("refer"), call_ids),
    st.tuples(st.sampled_from(("read", "write", "delete", "discover")), st.sampled_from(FILES)),
    st.tuples(st.sampled_from(("activate", "deactivate", "pool_add", "pool_remove")), st.integers(0, 5)),
    st.tuples(st.sampled_from(("pin", "unpin")), st.integers(0, 5)),
    st.tuples(st.just("entry"), st.tuples(st.sampled_from(("mode", "limits")), st.sampled_from(("a", "b", None)))),
    st.tuples(st.just("request"), st.sampled_from(ASKED)),
    st.tuples(st.just("request"), st.sampled_from(ASKED[:2])),
    st.tuples(st.just("configure"), st.sampled_from(({"budget_tokens": 3_000}, {"checkpoint": "tool"}))),
    st.tuples(st.just("configure"), st.sampled_from(({"budget_tokens": 0}, {"budget_tokens": 300}))),
    st.tuples(st.just("fork"), st.one_of(st.none(), st.integers(0, 30))),
    st.tuples(st.just("branch"), st.integers(0, 5)),
    st.tuples(st.just("wait"), st.sampled_from((60_000, DAY_MS))),
    st.tuples(st.sampled_from(("checkpoint", "remove")), st.none()),
    st.tuples(st.just("purge"), st.integers(0, 5)),
    st.tuples(st.just("restart"), st.none()),
)


class Branch(msgspec.Struct):
    """A session: its last request for each format and model, whether its chat was compacted since, the words that were
    written to it or to what it goes on from, its requests by number, and for what the last one was, with the numbers of
    the blocks that have a cache marker. ``moments``: copies of it, by journal
    sequence."""

    last: dict[tuple[str, str], bytes] = {}
    compacted: bool = False
    words: frozenset[str] = frozenset()
    sent: dict[int, dict[str, Any]] = {}
    marks: tuple[tuple[str, str], list[int]] | None = None
    moments: list[tuple[int, "Branch"]] = []

    def copy(self) -> "Branch":
        return msgspec.structs.replace(self, last=dict(self.last), sent=dict(self.sent), moments=list(self.moments))


class Life:
    """Session ``s`` and what is forked from it, in one household after another."""

    def __init__(self, clock: TestClock) -> None:
        self.clock = clock
        self.branches = {"s": Branch()}
        self.at = "s"
        self.purged = False
        self.written = 0

    def enter(self, home: Household) -> None:
        self.home = home
        calls = Operations(home.sessions, home.indexer, Collapse(), "flag")
        self.handlers = session_handlers(calls, NoticeFeeds(home.sessions), lists(home)) | bound(
            SecretCalls(home.sessions, home.indexer)
        )

    async def call(self, method: str, **params: Any) -> Any:
        given = msgspec.convert(params, METHODS[method].params)
        answer = await self.handlers[method](CALLER, given, write_request(method, "p", given))
        if not isinstance(answer, Accepted):
            return answer
        return answer.result(None if answer.pending is None else await answer.pending.wait())

    async def live(self) -> LiveSession:
        return await self.home.sessions.live(self.at)

    def word(self) -> str:
        """A word that is in this branch alone."""
        self.written += 1
        word, branch = f"word{self.written}.", self.branches[self.at]
        branch.words |= {word}
        return word

    async def do(self, what: str, argument: Any) -> None:
        branch = self.branches[self.at]
        match what:
            case "read" | "write" | "delete" | "discover":
                await self.file(what, self.home.files / argument)
            case "activate" | "deactivate" | "pool_add" | "pool_remove" | "pin" | "unpin":
                with suppress(CtxdError):
                    await self.call(f"session.{what}", session=self.at, object=(await self.known())[argument])
            case _:
                await getattr(self, what)(*argument if isinstance(argument, tuple) else (argument,))
        await self.home.store.wait_for_writes()
        head = self.home.store.head()
        assert head is not None
        if what not in ("fork", "branch"):
            branch.moments.append((head.seq, branch.copy()))

    async def known(self) -> list[str]:
        """Six objects of the session's index, in turns; six that it does not have if it has none."""
        index = list((await self.live()).state.index) or ["none"]
        return [index[nth % len(index)] for nth in range(6)]

    async def append(self, said: list[Event]) -> None:
        branch = self.branches[self.at]
        branch.compacted |= any(isinstance(each, CompactionEvent) and each.summary.strip() for each in said)
        marked = [
            msgspec.structs.replace(each, text=f"{each.text} {self.word()}")
            if isinstance(each, PromptEvent | ToolResultEvent) and each.text.strip()
            else each
            for each in said
        ]
        append(await self.live(), marked)

    async def record(self, id: str, times: int) -> None:
        if id not in (await self.live()).state.index and "|" not in id:
            content = f"output of {id} {self.word()} " * times
            await self.call("toolcall.record", session=self.at, id=id, tool="bash", content=content)

    async def refer(self, id: str) -> None:
        if (await self.live()).state.is_a(id, "toolcall"):
            await self.append([ToolResultEvent(object=id, call=id)])

    async def entry(self, key: str, value: str | None) -> None:
        if value is not None:
            await self.call("session.set_entry", session=self.at, key=key, value=f"{value} {self.word()}")
        elif key in (await self.live()).settings.entries:
            await self.call("session.delete_entry", session=self.at, key=key)

    async def configure(self, settings: dict[str, Any]) -> None:
        await self.call("session.configure", session=self.at, **settings)

    async def branch(self, nth: int) -> None:
        self.at = list(self.branches)[nth % len(self.branches)]

    async def wait(self, ms: int) -> None:
        self.clock.wall = self.clock.wall_ms() + ms

    async def checkpoint(self, _: None) -> None:
        await self.home.checkpoints.checkpoint(self.at, "explicit")

    async def remove(self, _: None) -> None:
        """Remove the session, which cannot be forked then, and restore it."""
        await self.call("session.remove", session=self.at)
        with pytest.raises(CtxdError, match="trash"):
            await self.call("session.fork", session=self.at)
        await self.call("session.restore", session=self.at)

    async def purge(self, nth: int) -> None:
        if (id := (await self.known())[nth]) != "none":
            await self.call("object.purge", object=id)
            self.purged = True
            for known in self.branches.values():
                known.last.clear()

    async def fork(self, back: int | None) -> None:
        """Go on in a fork: of now, or of the moment that lies ``back`` steps."""
        parent, fork = self.branches[self.at], f"s{len(self.branches)}"
        if back is None or not parent.moments:
            then = parent.copy()
            await self.call("session.fork", session=self.at, fork=fork)
        else:
            tx, then = parent.moments[-1 - back % len(parent.moments)]
            then = then.copy()
            await self.call("session.fork", session=self.at, fork=fork, tx=tx)
        if self.purged:
            then.last.clear()
        self.branches[fork] = then
        self.at = fork

    async def file(self, what: str, path: Path) -> None:
        if what == "write":
            path.write_text(path.read_text() + "more\n" if path.exists() else "first\n")
        elif what == "delete":
            path.unlink(missing_ok=True)
        else:
            path.touch()
            live = await self.live()
            await (self.home.read(live, path) if what == "read" else self.home.discover(live, [path]))

    async def request(self, format: RequestFormat, model: str) -> None:
        branch = self.branches[self.at]
        live = await self.live()
        made = await ask(self.home, live, format, model)
        assert made.request is not None
        check_request(format, made.request)
        body = plain(format, made.request)
        before = branch.last.get((format, model), b"")
        is_new = branch.compacted or made.repacked is not None
        assert is_new or body.startswith(before), (before, body)
        marks = marked(made.request) if format == "anthropic-messages" else []
        assert marks or format != "anthropic-messages"
        if not is_new and branch.marks is not None and branch.marks[0] == (format, model):
            # The provider looks for an older prefix a few blocks before a marker: it is at one.
            assert branch.marks[1][-1:] in (marks[-2:-1], marks[-1:]), "the end of the last request is marked"
        branch.marks = (format, model), marks
        if is_new:
            branch.last.clear()
            branch.compacted = False
        branch.last[format, model] = body
        branch.sent[made.number] = made.request
        assert set(re.findall(r"word\d+\.", body.decode())) <= branch.words, "another branch shows"
        await self.explained(live, made, body.decode())

    async def explained(self, live: LiveSession, made: AssembledContext, body: str) -> None:
        """The explanations of the window agree with it."""
        for id in live.state.index:
            why = await explain(live, id, self.home.archive)
            assert why.since is None or why.since.number <= made.number
            if why.shown == "whole" and live.state.is_a(id, "toolcall"):
                # In a fork, a call whose id is taken has an id that ends with its own.
                assert self.purged or f"output of {id.rpartition(':')[2]}" in body
        epoch = await EpochHistory(self.home.archive).show(live, EpochShowParams(session=self.at))
        assert epoch.number == made.number
        for each in epoch.texts:
            assert self.purged or each.part == "removed" or json.dumps(each.text)[1:-1] in body, (each, body)

    async def render_all(self) -> None:
        """Every request of every branch is rendered as it was sent."""
        for session, branch in self.branches.items():
            for number, request in branch.sent.items():
                try:
                    assert (await self.home.archive.show(session, number=number)).context.request == request
                except CtxdError as error:
                    assert self.purged and error.code == "purged", error


def append(live: LiveSession, said: list[Event]) -> None:
    delta = chat_operations.append_delta(live.state, live.session, said, live.settings.collapse)
    live.submit(WriteRequest("session.append", "p"), delta)


async def ask(
    home: Household, live: LiveSession, format: RequestFormat, model: str | None = None, **wanted: Any
) -> AssembledContext:
    call, form = WriteRequest("context.assemble", "p"), Wanted(format, model or MODELS_OF.get(format, "m"), **wanted)
    assembled = await home.assembler.assemble(live, call, form=form)
    if assembled.pending is not None:
        await assembled.pending.wait()
    return assembled.context


def marked(body: dict[str, Any]) -> list[int]:
    """The numbers of the content blocks of a request to Anthropic that have a cache marker."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [nth for nth, block in enumerate(blocks) if "cache_control" in block]


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


@pytest.mark.parametrize("examples", [20, pytest.param(60, marks=pytest.mark.slow)])
@pytest.mark.requirement("REQ-1")
@pytest.mark.requirement("REQ-2")
def test_every_state_gives_valid_requests_each_of_which_continues_the_last(examples: int) -> None:
    lives = given(st.lists(operations, min_size=1, max_size=14), st.sampled_from(("", "Be brief.")))
    settings(max_examples=examples, deadline=None, suppress_health_check=list(HealthCheck))(lives(check_life))()


def check_life(todo: list[tuple[str, Any]], prompt: str) -> None:
    """Require valid requests that continue the last one, in every state of a session with which ``todo`` is done."""

    async def run(root: Path) -> None:
        last = [("append", [PromptEvent(text="Next")]), *(("request", asked) for asked in ASKED)]
        remaining: list[tuple[str, Any]] = [*todo, *last, ("restart", None), *last, ("fork", None), *last]
        clock = TestClock()
        clock.wall = clock.wall_ms()
        life = Life(clock)
        is_first = True
        while remaining:
            async with household(root, clock) as home, anyio.create_task_group() as group:
                if is_first:
                    await home.create(prompt=prompt)
                    is_first = False
                life.enter(home)
                await group.start(home.checkpoints.run)
                await life.render_all()
                while remaining:
                    what, argument = remaining.pop(0)
                    if what == "restart":
                        break
                    await life.do(what, argument)
                await life.render_all()
                group.cancel_scope.cancel()

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
        live = await home.create()
        called = ToolCallEvent(call="a", tool="bash", args={"command": "false"})
        append(live, [PromptEvent(text="Go"), called])
        append(live, [ToolResultEvent(call="a", text=text, is_error=True, attachments=attachments)])
        for format in FORMATS:
            made = await ask(home, live, format)
            check_request(format, made.request or {})
            assert (text.strip() or "the tool failed") in json.dumps(made.request)
            assert not attachments or "iVBOR" in json.dumps(made.request)


@pytest.mark.anyio
@pytest.mark.requirement("REQ-5")
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_the_late_and_new_outputs_of_a_reused_call_id_are_distinguished(
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
            append(live, said)
            made.append(await ask(home, live, format))
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        for said in steps[len(made) :]:
            append(live, said)
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
        append(live, list(said))
        made.append(await ask(home, live, format))

    with monkeypatch.context() as earlier:
        earlier.setattr(append_window, "WINDOW_RENDERER", 2)
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
async def test_a_request_changed_by_a_purge_is_recorded_again(
    tmp_path: Path, format: RequestFormat, is_restarted: bool
) -> None:
    async with household(tmp_path) as home:
        live = await home.create()
        home.record(live, "t1", "swordfish", say=False)
        first = await ask(home, live, format)
        await purge(home.sessions, WriteRequest("object.purge", "p"), "t1")
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

        async def racing(live: LiveSession, last: Recorded, bound: ReadBound) -> KeptWindow:
            recalled.append(await recall(live, last, bound))
            if len(recalled) == 1:
                await purge(home.sessions, WriteRequest("object.purge", "p"), file)
            return recalled[-1]

        monkeypatch.setattr(home.archive, "recall", racing)
        (tmp_path / "files/a.py").write_text("other")
        made = await ask(home, live, "openai-chat")
        assert len(recalled) == 2 and "swordfish" not in json.dumps(made.request)
