"""Pages of the chat: read from segments, cached within a bound, and never held whole with the session."""

from pathlib import Path

import msgspec
import pytest

from ctxd.objects.document import AsOf
from ctxd.objects.generated_ids import cursor_mark
from ctxd.sessions.chat import read_pages, read_turns
from ctxd.sessions.live_session import RECENT_CHARS_MAX, LiveSession, WriteRequest
from ctxd.sessions.stored_session import AppendChat, delta_events, events_size, read_segment
from ctxd_protocol.event_types import PromptEvent, ResponseEvent, ThinkingEvent, Usage
from tests.unit.sessions.world import CALLER, World, code_of, record, say, world

pytestmark = pytest.mark.anyio


async def chatted(w: World, turns: int, chars: int) -> list[list[tuple[str, str]]]:
    """A session ``s`` of so many turns; the expected turns. Some writes hold several messages, some start no turn."""
    await w.call("session.create", agent="a", session="s")
    expected: list[list[tuple[str, str]]] = [[("assistant", "before the first turn")]]
    await w.call("session.append", session="s", messages=[{"role": "assistant", "content": "before the first turn"}])
    for turn in range(turns):
        said = [("user", f"{turn}?" * chars), ("assistant", f"{turn}!" * chars)]
        messages = [{"role": role, "content": text} for role, text in said]
        if turn % 3 == 0:
            await w.call("session.append", session="s", messages=messages)
        else:
            for message in messages:
                await w.call("session.append", session="s", messages=[message])
        id = (await record(w, "s", f"call-{turn}")).object
        await w.call("session.append", session="s", messages=[{"role": "toolcall", "toolcall": id}])
        expected.append([*said, ("toolcall", id)])
    return expected


def held(live: LiveSession) -> int:
    """The characters of messages that the session keeps in memory."""
    marks = [mark for turn in live.state.turns for mark in turn if mark is not None]
    assert not any(mark.content or mark.meta for mark in marks)
    return sum(map(events_size, live.recent.values()))


async def read(live: LiveSession, first: int = 0, end: int = 10**6) -> list[list[tuple[str, str]]]:
    turns = [turn async for turn in read_turns(live, first, end)]
    assert [turn.number for turn in turns] == list(range(first, first + len(turns)))
    return [[(m.role, m.content or str(m.toolcall)) for m in turn.messages] for turn in turns]


@pytest.mark.requirement("SES-20")
async def test_a_long_chat_is_read_by_page_and_only_its_newest_part_is_held(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        expected = await chatted(w, turns=40, chars=4000)
        live = await w.sessions.live("s")
        assert sum(len(text) for turn in expected for _, text in turn) > 8 * RECENT_CHARS_MAX
        assert held(live) <= RECENT_CHARS_MAX
        assert await read(live) == expected
        for first in range(0, 41, 7):
            assert await read(live, first, first + 3) == expected[first : first + 3]
        assert held(live) <= RECENT_CHARS_MAX
        receipt = w.store.head()
        assert receipt is not None
    async with world(tmp_path / "state") as w:
        live = await w.sessions.live("s")
        assert held(live) == 0
        assert await read(live) == expected
        await w.call("session.append", session="s", messages=[{"role": "user", "content": "more"}])
        past = await w.sessions.as_of("s", AsOf(tx=receipt.seq))
        assert await read(past) == expected
        assert await read(live, 41) == [[("user", "more")]]


async def test_pages_name_their_write_and_the_place_of_each_message(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        expected = await chatted(w, turns=9, chars=3)
        live = await w.sessions.live("s")
        found = [(place, page.seq, message) async for page in read_pages(live) for place, message in page.messages()]
        places = [(turn, place) for turn, messages in enumerate(expected) for place in range(len(messages))]
        assert [place for place, _, _ in found] == places
        assert {seq for _, seq, _ in found} <= set(live.seqs)
        assert [seq for _, seq, _ in found] == sorted(seq for _, seq, _ in found)


@pytest.mark.requirement("SES-20")
async def test_a_message_longer_than_the_cache_is_read_back(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        long = "x" * (RECENT_CHARS_MAX + 1)
        await w.call("session.append", session="s", messages=[{"role": "user", "content": long}])
        live = await w.sessions.live("s")
        assert held(live) == 0
        assert await read(live) == [[], [("user", long)]]


async def test_a_segment_of_typed_events_shows_its_view_in_the_chat(tmp_path: Path) -> None:
    events = (
        PromptEvent(id="1", text="fix it", at=5),
        ThinkingEvent(text="hm", signature="sig"),
        ResponseEvent(text="done", model="m", usage=Usage(input=7)),
        PromptEvent(text="of a sub-agent", sidechain="a1"),
    )
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        live = await w.sessions.live("s")
        async with live.lock:
            await live.submit(WriteRequest("test", "host"), (AppendChat(events),)).wait()
        assert live.state.turn == 1
        state = live.state
    async with world(tmp_path / "state") as w:
        assert (await w.sessions.live("s")).state == state
        (turn,) = (await w.call("session.chat", session="s")).turns
        assert [(message.role, message.content) for message in turn.messages] == [
            ("user", "fix it"),
            ("assistant", "done"),
        ]
        assert turn.messages[1].meta == {"model": "m", "usage": {"input": 7}}
        (stored,) = await w.store.scan("segment:s#")
        assert delta_events(read_segment(stored.document)) == events


@pytest.mark.requirement("SES-20")
async def test_message_metadata_counts_towards_the_cache_limit(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        said = {"role": "user", "content": "x", "meta": {"raw": "y" * (RECENT_CHARS_MAX + 1)}}
        await w.call("session.append", session="s", messages=[said])
        live = await w.sessions.live("s")
        assert not live.recent
        (_, turn) = [turn async for turn in read_turns(live, 0, 2)]
        assert turn.messages[0].meta == said["meta"]


@pytest.mark.requirement("SES-21")
async def test_a_page_of_events_ends_where_its_answer_is_full_and_the_next_one_continues(tmp_path: Path) -> None:
    bounded = msgspec.structs.replace(CALLER, reply_bytes_max=20_000)
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        events = [{"event": "thinking", "text": f"{n}" * 900} for n in range(50)]
        await w.call("session.append", session="s", events=events[:30])
        await w.call("session.append", session="s", events=events[30:])
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            page = await w.call("session.events", caller=bounded, session="s", limit=1000, cursor=cursor)
            assert 0 < len(msgspec.json.encode(page)) <= 20_000
            found += [msgspec.to_builtins(row.event) for row in page.events]
            cursor, pages = page.next_cursor, pages + 1
        assert found == events and pages > 2
        await w.call("session.append", session="s", events=[{"event": "opaque", "data": "x" * 20_000}])
        too_large = w.call("session.events", caller=bounded, session="s", cursor=f"0.50.{cursor_mark('s')}")
        assert await code_of(too_large) == "too_large"
        assert len((await w.call("session.events", session="s", cursor=f"0.50.{cursor_mark('s')}")).events) == 1


@pytest.mark.requirement("SES-21")
async def test_events_that_no_message_shows_leave_the_chat_and_its_turns_alone(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        await w.call("session.create", agent="a", session="s")
        await w.call("session.append", session="s", events=[{"event": "system", "text": "hidden"}])
        assert (await w.call("session.chat", session="s")).turns == ()
        await say(w, "s", ("user", "seen"))
        await w.call("session.append", session="s", events=[{"event": "thinking", "text": "hidden"}])
        await w.call("session.append", session="s", events=[{"event": "response", "text": "aside", "sidechain": "a1"}])
        (turn,) = (await w.call("session.chat", session="s")).turns
        assert [message.content for message in turn.messages] == ["seen"]
        live = await w.sessions.live("s")
        assert live.preview == "seen"
        state = live.state
        w.sessions.unload("s")
        assert (await w.sessions.live("s")).state == state


async def test_a_cursor_of_another_session_or_beside_a_first_turn_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path / "state") as w:
        for session in ("s", "other"):
            await w.call("session.create", agent="a", session=session)
            await say(w, session, ("user", "one"), ("user", "two"), ("user", "three"))
        for method, limit in (("session.events", 1), ("session.export", 1)):
            cursor = (await w.call(method, session="s", limit=limit)).next_cursor
            assert cursor is not None
            assert await code_of(w.call(method, session="other", cursor=cursor)) == "invalid_params"
            await w.call(method, session="s", cursor=cursor)
        cursor = (await w.call("session.events", session="s", limit=1)).next_cursor
        assert await code_of(w.call("session.events", session="s", cursor=cursor, first_turn=2)) == "invalid_params"
