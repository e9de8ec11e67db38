"""Long windows are resolved, judged and rendered off the event loop, in time proportional to their length."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd.assembly import append_assembly, append_rendering, window_loading
from ctxd.assembly.append_rendering import Rendering
from ctxd.assembly.assembly_record import Recorded, WindowPart
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.assembly.window_references import EventRef, Material
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent
from tests.unit.assembly.stored_sessions import household
from tests.unit.assembly.test_request_states import append, ask

LONG = 700
"""Events of a window that is too long for the loop."""


def conversation(count: int) -> list[Event]:
    events: list[Event] = []
    for number in range(count // 4):
        events.append(PromptEvent(text=f"List {number}."))
        events.append(ToolCallEvent(call=f"c{number}", tool="bash", args={"command": f"ls {number}"}))
        events += [ToolResultEvent(call=f"c{number}", text="a.py"), ResponseEvent(text="Done.")]
    return events


def record(number: int) -> Recorded:
    refs = (EventRef(key=f"{number}.0", turn=number, at=(number, 0)),)
    return Recorded(
        number=number, segments=1, turn=number, context_id="", parent="", sha256="", bytes=1, tokens=1,
        stable_prefix=None, assembled_at=1,
        window=WindowPart(base=1, refs=refs, place=(number, 1), format="anthropic-messages", model="m"),
    )  # fmt: skip


@pytest.mark.requirement("RPC-9")
def test_a_window_is_made_of_its_records_in_time_proportional_to_their_number() -> None:
    def cost(count: int) -> float:
        parts = [(made, made.window) for made in map(record, range(1, count + 1)) if made.window is not None]
        events: dict[tuple[int, int], Event] = {part.refs[0].at: PromptEvent(text="Go.") for _, part in parts}
        material, costs = Material(events, {}, {}, estimate_tokens, {}), []
        for _ in range(3):
            begun = time.thread_time()
            window = window_loading._recorded_window(parts, material)
            costs.append(time.thread_time() - begun)
        assert window.request is not None and window.request.count == count
        assert window.ends == [count - 2, count - 1, count]
        return min(costs)

    assert cost(8_000) < 10 * cost(1_600), "5 times as many records; the square would be 25"


def noting(patch: pytest.MonkeyPatch, places: dict[str, str], owner: Any, name: str) -> None:
    """Note in ``places`` the thread that runs the function ``name`` of the module ``owner``."""
    work: Callable[..., Any] = getattr(owner, name)

    def noted(*args: Any, **options: Any) -> Any:
        places[f"{owner.__name__.rpartition('.')[2]}.{name}"] = threading.current_thread().name
        return work(*args, **options)

    patch.setattr(owner, name, noted)


@pytest.mark.anyio
@pytest.mark.requirement("RPC-9")
@pytest.mark.parametrize(("count", "thread"), [(LONG, "ctxd-plan"), (8, threading.main_thread().name)])
async def test_a_long_window_is_resolved_judged_and_rendered_off_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, thread: str
) -> None:
    places: dict[str, str] = {}
    for owner, name in (
        (window_loading, "_items"),
        (append_assembly, "repack_within_budget"),
        (append_assembly, "render"),
        (window_loading, "_recorded_window"),
        (append_rendering, "render"),
    ):
        noting(monkeypatch, places, owner, name)
    async with household(tmp_path) as home:
        live = await home.create()
        append(live, conversation(count))
        first = await ask(home, live, "anthropic-messages")
        steps = ["window_loading._items", "append_assembly.repack_within_budget", "append_assembly.render"]
        assert places == dict.fromkeys(steps, thread)
    async with household(tmp_path) as home:
        live = await home.sessions.live("s")
        assert await ask(home, live, "anthropic-messages") == first, "a restart changes nothing"
        for step in ("window_loading._recorded_window", "append_rendering.render"):
            assert places[step] == thread
        append(live, conversation(4))
        places.clear()
        assert (await ask(home, live, "anthropic-messages")).number == 2
        assert places["append_assembly.render"] == thread


@pytest.mark.anyio
@pytest.mark.requirement("REQ-2")
async def test_a_window_that_was_rendered_while_all_contexts_were_dropped_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A purge or a lost write may have changed what it shows."""
    async with household(tmp_path) as home:
        live, cache, rendered = await home.create(), home.assembler._cache, []
        work = append_assembly.render

        def render(*args: Any, **options: Any) -> Rendering:
            rendered.append(len(rendered))
            if len(rendered) == 1:
                cache._clear(frozenset())
            return work(*args, **options)

        monkeypatch.setattr(append_assembly, "render", render)
        append(live, conversation(LONG))
        await ask(home, live, "anthropic-messages")
        assert len(rendered) == 2
