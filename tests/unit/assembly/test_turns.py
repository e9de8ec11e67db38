"""A context that is rendered from scratch leaves others their turn, and is of one moment all the same."""

from pathlib import Path

import anyio
import pytest
from anyio.lowlevel import checkpoint

from ctxd.assembly.assembler import Assembler
from ctxd.assembly.spec_layout import PORTION_EVENTS, PORTION_LINES, ChatSection, View
from ctxd.clock import SystemClock
from ctxd.objects.document import file_text
from ctxd.objects.hashing import source_hash
from ctxd.sessions import chat_operations
from ctxd.sessions.chat import ChatPage
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd_protocol.event_types import PromptEvent, ResponseEvent
from tests.unit.assembly.stored_sessions import MODELS, Household, household

pytestmark = pytest.mark.anyio
FILES = 8 * PORTION_LINES


async def made(home: Household) -> tuple[LiveSession, tuple[str, ...]]:
    """A session with many stubs in its pool, all on the disk."""
    live = await home.create()
    paths = [home.files / f"{number}.txt" for number in range(FILES)]
    for path in paths:
        path.touch()
    ids = await home.discover(live, paths)
    assert live.last_pending is not None
    await live.last_pending.wait()
    return live, ids


def write(home: Household, live: LiveSession, id: str, text: str) -> None:
    """A version from another session, at once."""
    head = home.store.peek(id)
    source = head.document.source
    document = file_text(id, source, text, source_hash(text.encode()))
    live.submit(WriteRequest("file.index", "p"), puts=(document,), floor_vt=head.valid_time + 1)


async def test_rendering_a_long_chat_yields_to_other_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, seen, add = 0, set[int](), ChatSection._add_page

    def noted(section: ChatSection, view: View, page: ChatPage) -> None:
        seen.add(turns)
        add(section, view, page)

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await checkpoint()

    monkeypatch.setattr(ChatSection, "_add_page", noted)
    async with household(tmp_path) as home:
        live = await home.create()
        for number in range(40):
            events = [PromptEvent(text=f"{number}"), *[ResponseEvent(text="Done.")] * (PORTION_EVENTS // 2)]
            delta = chat_operations.append_delta(live.state, live.session, events, live.settings.collapse)
            live.submit(WriteRequest("session.append", "p"), delta)
        async with anyio.create_task_group() as group:
            group.start_soon(count)
            await home.assembler.plan(live, None)
            group.cancel_scope.cancel()
    assert len(seen) >= 10, "two pages make a portion, and trio wakes tasks in any order"


async def test_rendering_a_large_pool_yields_to_other_tasks(tmp_path: Path) -> None:
    async with household(tmp_path) as home:
        live, ids = await made(home)
        other = await home.create("other")
        turns = 0

        async def meddle() -> None:
            nonlocal turns
            while True:
                turns += 1
                if turns == 2:
                    # Its line is rendered already: the context must show this version, not that one.
                    write(home, other, ids[0], "x" * 4321)
                await checkpoint()

        async with anyio.create_task_group() as group:
            group.start_soon(meddle)
            await checkpoint()
            before = turns
            assembled = await home.assembler.assemble(live, WriteRequest("context.assemble", "p"))
            assert turns - before >= FILES // PORTION_LINES // 2
            group.cancel_scope.cancel()
        assert assembled.pending is not None
        await assembled.pending.wait()
        assert "4321" in assembled.context.text
        fresh = Assembler(home.store, home.sessions, home.indexer, home.archive, MODELS, SystemClock(), providers={})
        assert (
            await fresh.assemble(live, WriteRequest("context.assemble", "p"))
        ).context.text == assembled.context.text
        shown = await home.archive.show("s", number=assembled.context.number)
        assert shown.context.text == assembled.context.text
