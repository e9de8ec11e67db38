"""Hooks whose inputs take long to read: the loop goes on, and the events of a session keep their order."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from ctxd.sessions import hook_operations
from ctxd.sessions.hook_operations import HELD_S
from ctxd.sessions.secret_redaction import INLINE_CHARS_MAX
from tests.unit.sessions.world import World, world
from tests.waiting import until

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("HOK-1")]

LONG = "x" * INLINE_CHARS_MAX


class Reading:
    """The reading of long inputs. ``begun``: one is being read; it ends once ``may_end`` is set."""

    def __init__(self) -> None:
        self.begun, self.may_end = threading.Event(), threading.Event()


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reading]:
    found, read = Reading(), hook_operations.read_hook

    def slowly(harness: Any, text: str, at: int | None) -> Any:
        if len(text) > INLINE_CHARS_MAX:
            found.begun.set()
            assert found.may_end.wait(10), "the loop is blocked"
        return read(harness, text, at)

    monkeypatch.setattr(hook_operations, "read_hook", slowly)
    yield found
    found.may_end.set()


async def hook(run: World, event: str, **members: Any) -> None:
    given = {"session_id": "n1", "cwd": "/", "hook_event_name": event, **members}
    at = time.time_ns() // 1_000_000
    await run.call("session.hook", harness="claude-code", input=json.dumps(given), at=at)


async def start(run: World, call: str, earlier: list[str], command: str) -> None:
    members = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": call}
    await hook(run, "PreToolUse", earlier_calls=earlier, **members)


async def prompt(run: World, id: str, text: str) -> None:
    await hook(run, "UserPromptSubmit", prompt=text, prompt_id=id)


async def recorded(run: World) -> list[str]:
    found = (await run.call("session.events", session="claude-code-n1")).events
    return [getattr(each.event, "call", "") or each.event.id for each in found]


async def test_a_long_input_delays_no_other_call_and_later_events_follow_it(tmp_path: Path, reading: Reading) -> None:
    async with world(tmp_path) as run:
        async with anyio.create_task_group() as group:
            group.start_soon(prompt, run, "p1", LONG)
            await until(reading.begun.is_set)
            group.start_soon(prompt, run, "p2", "short")
            await run.call("session.create", agent="a", session="other")
            await anyio.sleep(0.05)
            reading.may_end.set()
        assert await recorded(run) == ["p1", "p2"]


async def test_a_call_waits_for_an_earlier_one_whose_input_is_still_being_read(
    tmp_path: Path, reading: Reading
) -> None:
    async with world(tmp_path) as run:
        await prompt(run, "p1", "go")
        async with anyio.create_task_group() as group:
            group.start_soon(start, run, "c2", ["c1"], "pwd")
            await anyio.sleep(0.05)
            group.start_soon(start, run, "c1", [], LONG)
            await until(reading.begun.is_set)
            await anyio.sleep(HELD_S + 0.2)
            reading.may_end.set()
        assert await recorded(run) == ["p1", "c1", "c2"]
