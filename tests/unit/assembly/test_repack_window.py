"""Repacks of real windows: what goes, what stays, and that a restart between two requests changes nothing."""

import json
from pathlib import Path

import pytest

from ctxd.assembly.request_target import Wanted
from ctxd.errors import CtxdError
from ctxd.sessions import chat_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.context_types import AssembledContext, RequestFormat
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.unit.assembly.provider_rules import FORMATS, check_request
from tests.unit.assembly.stored_sessions import MODELS_OF, Household, TestClock, household

pytestmark = pytest.mark.anyio

START_MS = 1_800_000_000_000


@pytest.fixture
def clock() -> TestClock:
    made = TestClock()
    made.wall = START_MS
    return made


def append(live: LiveSession, *events: Event) -> None:
    delta = chat_operations.append_delta(live.state, live.session, list(events), live.settings.collapse)
    live.submit(WriteRequest("session.append", "p"), delta)


def step(live: LiveSession, call: str, command: str, output: str) -> None:
    """The model runs ``command``, which puts ``output`` out."""
    append(
        live,
        ToolCallEvent(call=call, tool="bash", args={"command": command}),
        ToolResultEvent(call=call, text=output),
    )


async def ask(home: Household, format: RequestFormat = "anthropic-messages", model: str = "") -> AssembledContext:
    live = await home.sessions.live("s")
    assembled = await home.assembler.assemble(
        live, WriteRequest("context.assemble", "p"), form=Wanted(format, model or MODELS_OF[format], 1000)
    )
    if assembled.pending is not None:
        await assembled.pending.wait()
    assert assembled.context.request is not None
    check_request(format, assembled.context.request)
    again = await home.archive.show("s", number=assembled.context.number)
    assert again.context.request == assembled.context.request
    assert again.context.repacked == assembled.context.repacked
    return assembled.context


def outputs(made: AssembledContext) -> dict[str, str]:
    """The output of each call in a request of Anthropic's."""
    assert made.request is not None
    return {
        part["tool_use_id"]: part["content"] if isinstance(part["content"], str) else part["content"][0]["text"]
        for message in made.request["messages"]
        if not isinstance(message["content"], str)
        for part in message["content"]
        if part["type"] == "tool_result"
    }


def is_stub(text: str) -> bool:
    return text.startswith("[removed: ")


def text_of(tokens: int, seed: str) -> str:
    return "\n".join(f"{seed} {n}" for n in range(tokens))[: 4 * tokens]


@pytest.mark.requirement("WIN-1")
@pytest.mark.parametrize("format", FORMATS)
async def test_output_of_a_repeated_call_is_removed_once_the_cache_has_expired(
    tmp_path: Path, clock: TestClock, format: RequestFormat
) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create()
        append(live, PromptEvent(text="Test it."))
        step(live, "c1", "make test", text_of(500, "old"))
        await ask(home, format)
        # Rewriting this costs more than carrying the output before it for two requests.
        append(live, ResponseEvent(text=text_of(3000, "report")), PromptEvent(text="And again."))
        await ask(home, format)
        step(live, "c2", "make test", text_of(500, "new"))
        first = await ask(home, format)
        append(live, ResponseEvent(text="Good."), PromptEvent(text="Go on."))
        assert clock.wall is not None
        clock.wall += 299_000
        second = await ask(home, format)
        assert (first.repacked, second.repacked) == (None, None)
        append(live, ResponseEvent(text="Good."), PromptEvent(text="Go on."))
        clock.wall += 300_000
        third = await ask(home, format)
        assert third.repacked == "cache_expired"
        assert third.tokens < second.tokens - 400
        shown = json.dumps(third.request)
        assert "old 1" not in shown
        assert "new 1" in shown
        append(live, ResponseEvent(text="Good."), PromptEvent(text="Go on."))
        fourth = await ask(home, format)
        assert fourth.repacked is None
        assert (fourth.stable_prefix or 0) > 0.9 * third.bytes


@pytest.mark.requirement("WIN-2")
async def test_the_budget_takes_the_oldest_and_leaves_the_running_turn(tmp_path: Path, clock: TestClock) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=9000)
        for turn in range(5):
            append(live, PromptEvent(text=f"Task {turn}."))
            for nth in range(4):
                call = f"c{turn}-{nth}"
                step(live, call, f"cat {call}", text_of(600, call))
                made = await ask(home)
                assert made.tokens <= 9000
                texts = outputs(made)
                assert not [each for each in texts if each.startswith(f"c{turn}-") and is_stub(texts[each])]
            append(live, ResponseEvent(text="Done."))
        removed = [call for call, text in texts.items() if is_stub(text)]
        assert removed == list(texts)[: len(removed)], "the oldest"
        assert len(removed) >= 8
        assert texts["c0-0"] == "[removed: ok, 604 tokens; it is event 1.2 of the chat]"


@pytest.mark.requirement("WIN-2")
async def test_an_over_budget_running_turn_is_repacked_and_large_outputs_are_cut(
    tmp_path: Path, clock: TestClock
) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=4000)
        append(live, PromptEvent(text="Read all."))
        for nth in range(8):
            step(live, f"c{nth}", f"cat {nth}", text_of(900, f"part{nth}"))
            made = await ask(home)
            assert made.tokens <= 4000
        texts = outputs(made)
        assert is_stub(texts["c0"])
        assert not is_stub(texts["c7"]), "the model has not seen it"
        append(live, *(ToolCallEvent(call=f"d{n}", tool="bash", args={"command": f"dump {n}"}) for n in range(6)))
        append(live, *(ToolResultEvent(call=f"d{n}", text=text_of(900, f"dump{n}")) for n in range(6)))
        made = await ask(home)
        assert made.tokens <= 4000
        assert made.repacked == "budget"
        texts = outputs(made)
        assert all("tokens left out here" in texts[f"d{n}"] for n in range(6))


@pytest.mark.requirement("WIN-2")
async def test_chosen_outputs_stay_and_removed_ones_are_loaded_by_activating_them(
    tmp_path: Path, clock: TestClock
) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=4000)
        append(live, PromptEvent(text="Go."))
        home.record(live, "kept", text_of(800, "kept"))
        home.record(live, "other", text_of(800, "other"))
        home.activate(live, "kept")
        await ask(home)
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        home.record(live, "third", text_of(800, "third"))
        await ask(home)
        home.record(live, "fourth", text_of(900, "fourth"))
        home.record(live, "fifth", text_of(900, "fifth"))
        made = await ask(home)
        shown = json.dumps(made.request)
        assert "kept 1" in shown
        assert "other 1" not in shown
        home.activate(live, "other")
        shown = json.dumps((await ask(home)).request)
        assert "other 1" in shown


async def test_the_arguments_of_removed_outputs_are_short(tmp_path: Path, clock: TestClock) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=3000)
        long, path = "x" * 4000, "p" * 61
        append(live, PromptEvent(text="Write."))
        append(live, ToolCallEvent(call="w", tool="Write", args={"file_path": path, "content": long, "n": 3}))
        append(live, ToolResultEvent(call="w", text="written"))
        await ask(home)
        append(live, ResponseEvent(text="Done."), PromptEvent(text="More."))
        step(live, "c", "cat", text_of(900, "new"))
        await ask(home)
        step(live, "d", "cat", text_of(900, "new"))
        made = await ask(home)
        (use,) = [part for message in made.request["messages"] for part in message["content"] if part.get("id") == "w"]
        assert use["input"] == {"file_path": "p" * 60 + "…", "content": "x" * 20 + "…", "n": 3}


Steps = list[tuple[int, list[Event]]]


def course() -> Steps:
    """A session of several turns: the ms that pass and the events that come before each request."""
    steps: Steps = []
    for turn in range(6):
        for nth in range(3):
            call = ToolCallEvent(
                call=f"c{turn}-{nth}", tool="bash", args={"command": "run all the tests " * 8 + str(nth)}
            )
            result = ToolResultEvent(call=call.call, text=text_of(300 + 40 * turn, f"{turn}.{nth}"))
            before: list[Event] = [] if nth else [ResponseEvent(text="Done."), PromptEvent(text=f"Task {turn}.")]
            steps.append((301_000 if (turn, nth) in ((2, 1), (4, 0)) else 10_000, [*before, call, result]))
    return steps


@pytest.mark.requirement("WIN-1")
async def test_a_restart_between_any_two_requests_changes_no_request(tmp_path: Path, clock: TestClock) -> None:
    async def run(root: Path, portions: list[Steps]) -> list[AssembledContext]:
        clock.wall, made = START_MS, []
        root.mkdir()
        async with household(root, clock) as home:
            await home.create(budget_tokens=3500)
        for portion in portions:
            async with household(root, clock) as home:
                for passes, events in portion:
                    clock.wall += passes
                    append(await home.sessions.live("s"), *events)
                    made.append(await ask(home))
        return made

    once = await run(tmp_path / "once", [course()])
    often = await run(tmp_path / "often", [[each] for each in course()])
    assert [each.request for each in once] == [each.request for each in often]
    assert [each.repacked for each in once] == [each.repacked for each in often]
    assert {"cache_expired", "budget"} <= {each.repacked for each in once}


@pytest.mark.requirement("WIN-3")
async def test_old_replies_go_when_words_alone_exceed_the_budget(tmp_path: Path, clock: TestClock) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=4000)
        for turn in range(30):
            append(live, PromptEvent(text=f"Task {turn}."))
            step(live, f"c{turn}", f"cat {turn}", "fine")
            made = await ask(home)
            assert made.tokens <= 4000
            append(live, ResponseEvent(text=text_of(300, f"reply{turn}")))
        shown = json.dumps(made.request)
        assert "reply28 1" in shown
        assert "reply0 1" not in shown
        assert "Task 0." in shown, "the user's words outlast replies"
        assert "Task 29." in shown
        assert shown.count("older replies were removed here") == 1
    async with household(tmp_path, clock) as home:
        live = await home.sessions.live("s")
        append(live, PromptEvent(text="Next."))
        after = await ask(home)
        assert (after.stable_prefix or 0) > 0.9 * after.bytes


@pytest.mark.requirement("WIN-2")
async def test_the_first_request_of_a_long_session_fits_the_budget_and_keeps_the_running_turn(
    tmp_path: Path, clock: TestClock
) -> None:
    async with household(tmp_path, clock) as home:
        live = await home.create(budget_tokens=4000)
        for _, events in course() * 3:
            append(live, *events)
        append(live, ResponseEvent(text="Done."), PromptEvent(text="Last task."))
        step(live, "x", "cat x", text_of(600, "running"))
        step(live, "y", "cat y", text_of(600, "newest"))
        made = await ask(home)
        assert made.tokens <= 4000
        shown = json.dumps(made.request)
        assert "Last task." in shown
        assert "running 1" in shown
        assert "newest 1" in shown
        assert "5.2 1" not in shown


async def test_a_request_for_an_unknown_model_names_the_known_ones(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        await home.create()
        with pytest.raises(CtxdError, match="unknown model 'q'; known models: g, m, s") as caught:
            await ask(home, model="q")
        assert caught.value.code == "invalid_params"
