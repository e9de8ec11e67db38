"""Loading of components: bounded in time as a whole, and cheap where nothing changed."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.assembly.epoch_history import EpochHistory
from ctxd.epochs import component_loading
from ctxd.errors import CtxdError
from ctxd_protocol.event_types import PromptEvent, ResponseEvent
from ctxd_protocol.methods.epochs import EpochShowParams
from tests.unit.assembly.stored_sessions import TestClock, household
from tests.unit.assembly.test_repack_window import append, ask
from tests.unit.epochs.test_schedules import Requests, World

pytestmark = pytest.mark.anyio

KEY = "core/environment"


@pytest.mark.requirement("EPO-12")
async def test_a_provider_that_does_not_answer_makes_its_components_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    world.states[KEY] = 1
    async with household(tmp_path) as home:
        made = Requests(home, world)
        await made.say(PromptEvent(text="Go."))
        monkeypatch.setattr(component_loading, "LOAD_S", 0.0)
        world.meanwhile.append(anyio.sleep_forever)
        with pytest.raises(CtxdError, match=f"component {KEY} .* cannot be read: it could not be read within"):
            await made.request()
        world.meanwhile.clear()
        monkeypatch.setattr(component_loading, "LOAD_S", 60.0)
        first = await made.request()
        await made.say(ResponseEvent(text="Done."), PromptEvent(text="More."))
        monkeypatch.setattr(component_loading, "LOAD_S", 0.0)
        world.meanwhile.append(anyio.sleep_forever)
        second = await made.request()
        assert f"[{KEY} is 1]" in json.dumps(second.request) and "gone" not in json.dumps(second.request)
        assert (second.stable_prefix or 0) > 0.9 * first.bytes


@pytest.mark.requirement("EPO-25")
async def test_a_value_without_secrets_is_searched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched: list[int] = []
    off_loop = component_loading.off_loop

    async def counted(size: int, *args: Any, **more: Any) -> Any:
        searched.append(size)
        return await off_loop(size, *args, **more)

    monkeypatch.setattr(component_loading, "off_loop", counted)
    world = World()
    world.states[KEY] = 1
    async with household(tmp_path) as home:
        made = Requests(home, world)
        for state in (1, 1, 1, 2, 2, 1):
            world.states[KEY] = state
            await made.say(PromptEvent(text="Go."), ResponseEvent(text="Done."), PromptEvent(text="More."))
            await made.request()
        assert len(searched) == 2


@pytest.mark.requirement("EPO-7")
@pytest.mark.requirement("REV-4")
async def test_a_time_means_the_same_request_where_the_clock_was_set_back(tmp_path: Path) -> None:
    clock = TestClock()
    start = 1_700_000_000_000
    async with household(tmp_path, clock) as home:
        live = None
        for minute in (0, 60, 10, 20, 30, 65):
            clock.wall = start + 60_000 * minute
            live = live or await home.create()
            append(live, PromptEvent(text="Go."), ResponseEvent(text="Done."), PromptEvent(text="More."))
            await ask(home)
        assert live is not None
        history = EpochHistory(home.archive)
        moments = [start + 60_000 * minute for minute in (0, 15, 59, 60, 64, 65, 99)]
        found = [(await history.show(live, EpochShowParams(session="s", at=at))).number for at in moments]
        assert found == [1, 1, 1, 5, 5, 6, 6]
        assert [(await home.archive.show("s", at=at)).context.number for at in moments] == found
        with pytest.raises(CtxdError, match="no assembly before") as early:
            await home.archive.show("s", at=start - 1)
        assert early.value.code == "assembly_not_found"
