"""The files that the arguments of calls mention."""

import threading
import time
from pathlib import Path
from random import Random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from ctxd.assembly import file_mentions
from ctxd.assembly.append_planner import Planner
from ctxd.assembly.append_window import Planned
from ctxd.assembly.file_mentions import occurring
from ctxd.assembly.window_lanes import INLINE_MAX
from ctxd_protocol.event_types import PromptEvent, ToolCallEvent, ToolResultEvent
from tests.unit.assembly.stored_sessions import household
from tests.unit.assembly.test_request_states import append, ask

PARTS = st.sampled_from(["a", "ab", "aa", "b", "é", "/", ".py", "-", "]", "^", "\\", " ", "\n", '"', "\U0001f600"])
TEXTS = st.lists(PARTS, max_size=30).map("".join)
NAMES = st.sets(st.lists(PARTS, min_size=1, max_size=6).map("".join), max_size=12)


@pytest.mark.requirement("REQ-6")
@pytest.mark.parametrize(("plain", "chunk", "runs"), [(0, 1, 1), (0, 7, 1_000), (60, 16_384, 1_000)])
@given(names=NAMES, texts=st.lists(TEXTS, max_size=4))
def test_a_search_for_many_names_finds_the_same_as_one_for_each(
    plain: int, chunk: int, runs: int, names: set[str], texts: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_mentions, "_PLAIN_MAX", plain)
        patch.setattr(file_mentions, "_CHUNK_CHARS", chunk)
        patch.setattr(file_mentions, "_RUNS_MAX", runs)
        found = occurring(names, texts)
    assert found == {name for name in names if any(name in text for text in texts)}


def cost(names: list[str], text: str) -> float:
    begun = time.thread_time()
    occurring(names, [text])
    return time.thread_time() - begun


@pytest.mark.requirement("RPC-9")
@pytest.mark.parametrize("text", ["words", "a" * 400_000, "aaaac" * 80_000])
def test_a_search_costs_the_same_for_many_names_as_for_a_few(text: str) -> None:
    random = Random(1)
    if text == "words":
        text = " ".join(f"{random.getrandbits(32):08x}" for _ in range(45_000))
    nested = ["a" * size + "b" for size in range(4, 400)] + [f"aaaa{'b' * size}" for size in range(1, 400)]
    names = [*nested, *(f"module_{number:05}.py" for number in range(8_000))]
    assert cost(names, text) < 20 * cost(names[:2] + names[-2:], text)


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
async def test_a_long_batch_is_planned_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned_by: list[str] = []
    plan = Planner.plan

    def noted(planner: Planner) -> Planned:
        planned_by.append(threading.current_thread().name)
        return plan(planner)

    monkeypatch.setattr(Planner, "plan", noted)
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, [PromptEvent(text="Go.")])
        await ask(home, live, "anthropic-messages")
        long = {"command": "x" * INLINE_MAX}
        append(live, [ToolCallEvent(call="c", tool="bash", args=long), ToolResultEvent(call="c", text="ok")])
        await ask(home, live, "anthropic-messages")
        paths = [home.files / f"{number}.py" for number in range(INLINE_MAX // 50 + 1)]
        for path in paths:
            path.touch()
        await home.discover(live, paths)
        await ask(home, live, "anthropic-messages")
    assert planned_by == [threading.main_thread().name, "ctxd-plan", "ctxd-plan"]
