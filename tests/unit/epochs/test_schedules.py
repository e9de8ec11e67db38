"""Schedules over a real store, and over a daemon that is killed: the stored events fold to what the requests showed."""

import json
import random
import re
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.request_target import Wanted
from ctxd.clock import SystemClock
from ctxd.epochs.component import Component
from ctxd.epochs.epoch_state import replay_events
from ctxd.errors import CtxdError
from ctxd.models import BUILT_IN, Models, read_models
from ctxd.sessions import chat_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.store.version_store import VersionStore
from ctxd_client import CallFailed, connect_sync
from ctxd_client.sync import SyncSession
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import CompactionEvent, Event, PromptEvent, ResponseEvent
from tests.client.running import Running
from tests.unit.assembly.stored_sessions import Household, household
from tests.unit.epochs.scripted import Scripted, read

pytestmark = pytest.mark.anyio

SEED = 20261123
SCHEDULES = 10
REQUESTS = 12
KEYS = ("core/a", "core/b", "files/x", "api/e")
TABLE = Models({name: read_models().get("claude-sonnet-4-5") for name in ("m", "n")}, (BUILT_IN,))


@asynccontextmanager
async def crashing(root: Path) -> AsyncIterator[Household]:
    """The parts on the state directory, which end without a flush of what was accepted."""
    (root / "files").mkdir(exist_ok=True)
    clock = SystemClock()
    store = VersionStore(root / "state", clock)
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        home = Household(store, clock, root / "files")
        await home.sessions.start()
        yield home
        group.cancel_scope.cancel()


class World:
    """Components as they are: ``states`` by key, None for one that is unavailable. Fails while one is observed twice
    at once."""

    def __init__(self) -> None:
        self.states: dict[str, int | None] = {}
        self.observed = 0
        self.meanwhile: list[Any] = []

    async def provide(self, live: LiveSession, call: WriteRequest) -> Iterable[Component[Any]]:
        assert call.op_id is None
        self.observed += 1
        for action in self.meanwhile:
            await action()
        self.meanwhile.clear()
        return [Scripted(key, state) for key, state in self.states.items()]

    def change(self, rng: random.Random) -> None:
        key = rng.choice(KEYS)
        match rng.randrange(4):
            case 0:
                self.states[key] = None
            case 1:
                self.states.pop(key, None)
            case _:
                self.states[key] = rng.randrange(4)


class Requests:
    """Requests of one session in ``home``, whose components are those of ``world``."""

    def __init__(self, home: Household, world: World) -> None:
        self.home = home
        self.assembler = Assembler(
            home.store, home.sessions, home.indexer, home.archive, TABLE, SystemClock(),
            providers={"environment": world.provide},
        )  # fmt: skip

    async def live(self) -> LiveSession:
        with suppress(CtxdError):
            return await self.home.sessions.live("s")
        live = await self.home.create()
        settings = msgspec.structs.replace(live.settings, components=("environment",))
        await live.submit(WriteRequest("session.configure", "p"), settings=settings).wait()
        return live

    async def say(self, *events: Event) -> None:
        live = await self.live()
        delta = chat_operations.append_delta(live.state, "s", list(events), live.settings.collapse)
        live.submit(WriteRequest("session.append", "p"), delta)

    async def request(self, model: str = "m") -> AssembledContext:
        wanted = Wanted(format="openai-chat", model=model)
        made = await self.assembler.assemble(await self.live(), WriteRequest("context.assemble", "p"), form=wanted)
        if made.pending is not None:
            await made.pending.wait()
        return made.context

    async def folded(self) -> dict[str, int]:
        """The belief by the stored events and texts."""
        records = await self.home.archive.records("s")
        events = [each.window.epoch for each in records if each.window is not None and each.window.epoch is not None]
        believed = replay_events(events).believed
        texts = await self.home.archive.windows.texts(await self.live(), believed.values())
        values = {key: text for key, at in believed.items() if (text := texts[at]) is not None}
        return {key: json.loads(text.value)["n"] for key, text in values.items()}


@pytest.mark.requirement("EPO-10")
@pytest.mark.parametrize("seed", range(SEED, SEED + SCHEDULES))
async def test_stored_events_fold_to_the_sent_texts(tmp_path: Path, seed: int) -> None:
    rng, world, left, sent = random.Random(seed), World(), REQUESTS, 0
    while left:
        opened = crashing if rng.random() < 0.7 else household
        async with opened(tmp_path) as home:
            made = Requests(home, world)
            if sent:
                # What was answered is durable, whatever else was lost.
                shown = (await home.archive.show("s")).context
                assert shown.request is not None and read(json.dumps(shown.request)) == await made.folded()
            for _ in range(min(left, rng.randrange(1, 5))):
                left -= 1
                world.change(rng)
                events: list[Event] = [PromptEvent(text="Go on.")]
                if rng.random() < 0.6:
                    events.insert(0, ResponseEvent(text="Done."))
                if sent and rng.random() < 0.15:
                    events.insert(0, CompactionEvent(summary="All was said."))
                await made.say(*events)
                try:
                    context = await made.request(rng.choice(["m", "m", "m", "n"]))
                except CtxdError as error:
                    assert error.code == "source_unreachable" and not sent and None in world.states.values()
                    continue
                sent += 1
                assert context.request is not None
                belief = read(json.dumps(context.request))
                assert belief == await made.folded()
                assert {key: n for key, n in world.states.items() if n is not None}.items() <= belief.items()
            if rng.random() < 0.5 and sent:
                # Accepted, perhaps never durable, and answered to nobody.
                world.change(rng)
                live = await made.live()
                wanted = Wanted(format="openai-chat", model="m")
                await made.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=wanted)


@pytest.mark.requirement("EPO-11")
async def test_a_lost_race_observes_everything_again(tmp_path: Path) -> None:
    world = World()
    async with household(tmp_path) as home:
        made = Requests(home, world)
        world.states = {"core/a": 1}
        await made.say(PromptEvent(text="Begin."))
        await made.request()
        assert world.observed == 1
        home.record(await made.live(), "call", "output")

        async def overtake() -> None:
            # A purge while the components are observed: everything that is kept is dropped.
            from ctxd.sessions.purge_operations import purge

            await purge(home.sessions, WriteRequest("object.purge", "p"), "call")
            world.states = {"core/a": 3}

        world.states, world.meanwhile = {"core/a": 2}, [overtake]
        context = await made.request()
        assert world.observed == 3 and read(json.dumps(context.request)) == {"core/a": 3} == await made.folded()
        assert "[core/a now 2]" not in json.dumps(context.request)


@pytest.mark.requirement("EPO-12")
async def test_a_first_request_without_all_components_can_be_sent_again(tmp_path: Path) -> None:
    world = World()
    async with household(tmp_path) as home:
        made = Requests(home, world)
        await made.say(PromptEvent(text="Begin."))
        world.states = {"core/a": 1, "core/b": None}
        with pytest.raises(CtxdError, match="component core/b of session s cannot be read: scripted") as refused:
            await made.request()
        assert (refused.value.code, refused.value.outcome) == ("source_unreachable", "not_applied")
        world.states["core/b"] = 1
        assert read(json.dumps((await made.request()).request)) == {"core/a": 1, "core/b": 1}
        world.states = {"core/a": None, "core/b": 2}
        await made.say(ResponseEvent(text="Done."), PromptEvent(text="Go on."))
        assert read(json.dumps((await made.request()).request)) == {"core/a": 1, "core/b": 2}


@pytest.mark.requirement("EPO-10")
@pytest.mark.parametrize("seed", [SEED, *(pytest.param(SEED + n, marks=pytest.mark.slow) for n in (1, 2))])
def test_a_daemon_killed_during_requests_remembers_the_sent_entries(tmp_path: Path, seed: int) -> None:
    rng, entries, daemon, number = random.Random(seed), dict[str, int](), Running(tmp_path, keep_state=True), 0
    for _ in range(4):
        with daemon, connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent")
            if number:
                # At least all that was answered, perhaps what was under way.
                last = client.context_show("s")
                assert last.number in (number, number + 1)
                assert shown_by(s) == numbers(json.dumps(last.request))
            for _ in range(5):
                change_entry(rng, s, entries)
                s.append(events=[ResponseEvent(text="Done."), PromptEvent(text="Go on.")])
                made = s.assemble(format="openai-chat", model="gpt-5")
                number = made.number
                assert shown_by(s) == numbers(json.dumps(made.request)) == entries
            change_entry(rng, s, entries)
            s.append(events=[PromptEvent(text="And on.")])
            with ThreadPoolExecutor(1) as calling:
                once = client.within(0.5)
                under_way = calling.submit(once.context_assemble, "s", format="openai-chat", model="gpt-5")
                daemon.kill()
                with suppress(CallFailed):
                    number = under_way.result().number


def change_entry(rng: random.Random, s: SyncSession, entries: dict[str, int]) -> None:
    key = rng.choice(("a", "b", "c"))
    if rng.random() < 0.3:
        s.delete_entry(key)
        entries.pop(key, None)
    else:
        entries[key] = rng.randrange(4)
        s.set_entry(key, entries[key])


def shown_by(s: SyncSession) -> dict[str, int]:
    return numbers("\n".join(text.text for text in s.epoch().texts))


def numbers(text: str) -> dict[str, int]:
    """What a model believes that reads ``text``, the texts of entries."""
    found: dict[str, int] = {}
    # A line break is an escape where the text is that of a request.
    for key, verb, number in re.findall(r"(?:\b|\\n)([abc])(:| is now:| no longer applies\.)(?: (\d))?", text):
        if number:
            found[key] = int(number)
        else:
            assert verb == " no longer applies."
            del found[key]
    return found
