"""What a session is written out as, page by page, and what a page costs."""

from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, SupportsIndex

import pytest

from ctxd.errors import CtxdError
from ctxd.objects.generated_ids import cursor_mark
from ctxd.sessions.export import Exports, Record
from ctxd.sessions.live_session import LiveSession
from ctxd_protocol.session_types import Message
from tests.unit.sessions.world import World, world

pytestmark = pytest.mark.anyio


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[World]:
    async with world(tmp_path / "state") as made:
        yield made


async def made(at: World, *, turns: int) -> LiveSession:
    """A session in which every turn holds a user message, and a tool call that two messages stand for; each turn also
    records one that nobody speaks of."""
    await at.call("session.create", agent="a", session="s", system_prompt="Be brief.")
    for turn in range(turns):
        await at.call("toolcall.record", session="s", id=f"said-{turn}", tool="ls", content="a")
        await at.call("toolcall.record", session="s", id=f"unsaid-{turn}", tool="ls", content="b")
        stands = Message(role="toolcall", toolcall=f"said-{turn}")
        await say(at, Message(role="user", content=str(turn)), stands, stands)
    return await at.sessions.live("s")


async def say(at: World, *messages: Message) -> None:
    await at.call("session.append", session="s", messages=messages)


async def rest(exports: Exports, live: LiveSession, cursor: str | None, limit: int) -> list[Record]:
    records: list[Record] = []
    while cursor is not None:
        page, cursor = await exports.page(live, cursor, limit)
        assert 0 < len(page) <= limit
        records += page
    return records


async def whole(exports: Exports, live: LiveSession, limit: int = 100) -> list[Record]:
    page, cursor = await exports.page(live, None, limit)
    return page + await rest(exports, live, cursor, limit)


def told(records: list[Record]) -> list[Any]:
    return [record.get("object") or record.get("content") or record.get("toolcall") for record in records[2:]]


@pytest.mark.parametrize("limit", [1, 2, 3, 1000])
async def test_pages_of_any_size_hold_every_record_once_and_in_order(at: World, limit: int) -> None:
    live = await made(at, turns=2)
    records = await whole(Exports(at.store, at.sessions.guard), live, limit)
    assert [record["record"] for record in records[:2]] == ["session", "system_prompt"]
    said = [["0", "said-0", "said-0", "said-0"], ["1", "said-1", "said-1", "said-1"]]
    assert told(records) == [*said[0], *said[1], "unsaid-0", "unsaid-1"]
    assert [record["record"] for record in records[2:6]] == ["message", "message", "toolcall", "message"]
    assert [record.get("turn") for record in records[2:]] == [1, 1, 1, 1, 2, 2, 2, 2, None, None]


@pytest.mark.parametrize("pages", range(1, 11))
async def test_additions_after_the_first_page_move_nothing(at: World, pages: int) -> None:
    live, exports = await made(at, turns=2), Exports(at.store, at.sessions.guard)
    before = await whole(exports, live, 1)
    records, cursor = await exports.page(live, None, 1)
    for _ in range(pages - 1):
        page, cursor = await exports.page(live, cursor, 1)
        records += page
    await at.call("toolcall.record", session="s", id="late", tool="ls", content="c")
    await say(at, Message(role="toolcall", toolcall="unsaid-1"), Message(role="toolcall", toolcall="late"))
    between = told(await whole(exports, live, 1))
    assert records + await rest(exports, live, cursor, 1) == before
    assert between == [*told(before)[:-2], "unsaid-1", "unsaid-1", "late", "late", "unsaid-0"]


async def test_an_export_continues_after_its_session_was_reloaded(at: World) -> None:
    live, exports = await made(at, turns=3), Exports(at.store, at.sessions.guard)
    before = await whole(exports, live, 2)
    records, cursor = await exports.page(live, None, 2)
    while cursor is not None:
        at.sessions.unload("s")
        page, cursor = await exports.page(await at.sessions.live("s"), cursor, 2)
        records += page
    assert records == before


@pytest.mark.parametrize(
    "cursor", ["", "1", "x", "0.0.0.0.0", "0.0.0.0.0.0.0", "0.0.0.0.0.-1", "0.0.0.0.0.²", "9" * 99]
)
async def test_a_cursor_that_no_export_gave_is_refused(at: World, cursor: str) -> None:
    live = await made(at, turns=1)
    with pytest.raises(CtxdError) as refused:
        await Exports(at.store, at.sessions.guard).page(live, cursor, 1)
    assert refused.value.code == "invalid_params"


async def test_a_cursor_beyond_the_session_ends_the_export(at: World) -> None:
    live = await made(at, turns=1)
    most = ".".join([*["999999999999999"] * 7, cursor_mark("s")])
    assert await Exports(at.store, at.sessions.guard).page(live, most, 10) == ([], None)


class CountedList(list[Any]):
    """Counts what is read of it in ``reads``."""

    reads: Counter[str]

    def __getitem__(self, index: SupportsIndex | slice) -> Any:
        self.reads["chat"] += 1
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.reads["chat"] += 1
            yield each


class CountedSet(dict[str, None]):
    """Counts what is read of it in ``reads``."""

    reads: Counter[str]

    def __iter__(self) -> Iterator[str]:
        for each in super().__iter__():
            self.reads["index"] += 1
            yield each


def counted(live: LiveSession) -> Counter[str]:
    """The reads of the chat and the index of ``live`` from now on."""
    reads: Counter[str] = Counter()
    live.state.index = CountedSet(live.state.index)
    live.state.turns = CountedList(CountedList(turn) for turn in live.state.turns)
    for each in (live.state.index, live.state.turns, *list.__iter__(live.state.turns)):
        each.reads = reads
    return reads


async def test_an_export_reads_each_part_of_a_session_a_few_times_however_many_pages_it_has(at: World) -> None:
    live = await made(at, turns=100)
    exports, reads = Exports(at.store, at.sessions.guard), counted(live)
    messages, objects = 300, 200
    at_once = await whole(exports, live, 1000)
    few = reads.copy()
    reads.clear()
    assert await whole(exports, live, 5) == at_once
    assert len(at_once) == 2 + messages + objects
    # Each of the 100 pages finds its turn once more.
    assert few["chat"] <= reads["chat"] <= few["chat"] + 100 <= 6 * messages
    assert reads["index"] == few["index"] == objects


async def test_an_export_that_ends_costs_no_other_export_its_outline(at: World) -> None:
    live = await made(at, turns=20)
    exports, reads = Exports(at.store, at.sessions.guard), counted(live)
    _, slow = await exports.page(live, None, 1)
    outlined = reads["index"]
    for _ in range(5):
        await whole(exports, live, 30)
        page, slow = await exports.page(live, slow, 1)
        assert len(page) == 1
    assert reads["index"] == 6 * outlined, "it was read at the beginning of each export, and never for a page"
    await rest(exports, live, slow, 30)
    assert reads["index"] == 6 * outlined
