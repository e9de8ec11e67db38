"""Subscriptions over a real connection."""

import anyio
import pytest

from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers import events
from ctxd.rpc.listener_state import Timing
from ctxd.sessions.change_notices import HELD_MAX, Subscription
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.session_types import Notice
from tests.fakes.loopback import frame, serving

pytestmark = pytest.mark.anyio


class FakeNotices:
    """Feeds that keep their subscriptions; each begins with ``past``."""

    def __init__(self, past=()):
        self.past = list(past)
        self.subscriptions = []
        self.ended = []

    async def subscribe(self, session, after, notify, *, confined):
        made = Subscription(len(self.subscriptions) + 1, None, after or 0, notify, confined=confined)
        made.precede([notice(seq) for seq in self.past if seq > made.after], made.after)
        self.subscriptions.append(made)
        return made

    def unsubscribe(self, subscription):
        self.ended.append(subscription.number)


def notice(seq):
    return Notice(
        seq=seq,
        session="s",
        object="o",
        path="/f",
        change="updated",
        by_session=None,
        content_hash="h",
        valid_time=1,
    )


SUBSCRIBE = frame("events.subscribe", {"session": "s", "after": 4})


async def test_notices_come_after_the_answer_and_in_order(tmp_path):
    notices = FakeNotices(past=[3, 5, 6])
    async with serving(tmp_path, bound(events.EventCalls(notices))) as server, server.connected() as wire:
        await wire.send(SUBSCRIBE)
        subscribed = await wire.answer()
        assert subscribed["result"]["after"] == 4
        notices.subscriptions[0].take(notice(7))
        came = [await wire.answer() for _ in range(3)]
        assert [event["params"]["notice"]["seq"] for event in came] == [5, 6, 7]
        number = subscribed["result"]["subscription"]
        assert {(event["method"], event["params"]["subscription"]) for event in came} == {("events.notice", number)}
        assert not any("id" in event or event["params"]["missed"] for event in came)


async def test_unsubscribing_and_leaving_both_end_the_following(tmp_path):
    notices = FakeNotices()
    async with serving(tmp_path, bound(events.EventCalls(notices))) as server:
        async with server.connected() as wire:
            first = (await wire.call("events.subscribe", {"session": "s"}))["result"]["subscription"]
            await wire.call("events.subscribe", {"session": "s"})
            assert (await wire.call("events.unsubscribe", {"subscription": first}))["result"] == {"receipt": None}
            assert notices.ended == [first]
            again = await wire.call("events.unsubscribe", {"subscription": first})
            assert again["error"]["data"]["code"] == "subscription_not_found"
        await server.until(lambda: notices.ended == [1, 2])


async def test_a_subscription_made_after_its_connection_closed_is_ended_immediately(tmp_path):
    class Slow(FakeNotices):
        def __init__(self):
            super().__init__()
            self.asked, self.gone = anyio.Event(), anyio.Event()

        async def subscribe(self, session, after, notify, *, confined):
            self.asked.set()
            with anyio.CancelScope(shield=True):
                await self.gone.wait()
            return await super().subscribe(session, after, notify, confined=confined)

    notices = Slow()
    async with serving(tmp_path, bound(events.EventCalls(notices))) as server:
        async with server.connected() as wire:
            await wire.send(SUBSCRIBE)
            await notices.asked.wait()
        await server.until(lambda: server.server.connections == 0)
        notices.gone.set()
        await server.until(lambda: notices.ended == [1])


async def test_another_connections_subscription_is_not_found(tmp_path):
    notices = FakeNotices()
    async with serving(tmp_path, bound(events.EventCalls(notices))) as server:
        async with server.connected() as one, server.connected() as two:
            number = (await one.call("events.subscribe", {"session": "s"}))["result"]["subscription"]
            answer = await two.call("events.unsubscribe", {"subscription": number})
            assert answer["error"]["data"]["code"] == "subscription_not_found"
            assert notices.ended == []


async def test_a_connection_has_a_bounded_number_of_subscriptions(tmp_path):
    async with serving(tmp_path, bound(events.EventCalls(FakeNotices()))) as server, server.connected() as wire:
        for _ in range(events.SUBSCRIPTIONS_MAX):
            assert "result" in await wire.call("events.subscribe", {"session": "s"})
        refused = await wire.call("events.subscribe", {"session": "s"})
        assert refused["error"]["data"]["code"] == "too_large"


async def test_a_slow_reader_is_informed_of_missed_notices(tmp_path):
    async def large(caller, params):
        return CurrentContext(context_id="x" * 600_000, session=None, turn=0, assembly=0)

    notices = FakeNotices()
    timing = Timing(notices=10, write_buffer_bytes=1000)
    table = bound(events.EventCalls(notices)) | {"context.current": large}
    async with serving(tmp_path, table, timing=timing) as server, server.connected() as wire:
        wire.reader._limit = 1 << 21
        await wire.send(SUBSCRIBE)
        assert "result" in await wire.answer()
        wire.writer.transport.pause_reading()
        wire.writer.write(frame("context.current", id=1))
        await server.until(lambda: server.server.requests == 2)
        for seq in range(5, 105):
            notices.subscriptions[0].take(notice(seq))
        wire.writer.transport.resume_reading()
        assert (await wire.answer())["id"] == 1
        came = [(await wire.answer())["params"] for _ in range(11)]
        assert [event["notice"]["seq"] for event in came] == [*range(5, 15), 104]
        assert [event["missed"] for event in came] == [False] * 10 + [True]
        notices.subscriptions[0].take(notice(105))
        event = (await wire.answer())["params"]
        assert (event["notice"]["seq"], event["missed"]) == (105, False)


async def test_notices_beyond_the_held_limit_before_the_response_count_as_missed(tmp_path):
    notices = FakeNotices(past=range(5, 5 + HELD_MAX + 10))
    timing = Timing(notices=HELD_MAX + 100)
    async with (
        serving(tmp_path, bound(events.EventCalls(notices)), timing=timing) as server,
        server.connected() as wire,
    ):
        await wire.send(SUBSCRIBE)
        assert "result" in await wire.answer()
        came = [(await wire.answer())["params"] for _ in range(HELD_MAX + 1)]
        assert [event["missed"] for event in came] == [False] * HELD_MAX + [True]
        assert came[-1]["notice"]["seq"] == 5 + HELD_MAX + 9
