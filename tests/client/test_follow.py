"""Notices are followed across gaps and reconnects: each one once, none missing."""

import anyio
import pytest

from ctxd_client import Closed, connect, connect_sync
from ctxd_client.notice_cursor import NoticeCursor
from ctxd_protocol.methods.sessions import NoticesResult
from ctxd_protocol.session_types import Notice
from tests.client.test_sync import outcome_of
from tests.fakes.daemon import WAIT_S, Refusal, drop, once

pytestmark = pytest.mark.anyio


def notice(seq, object="f1"):
    return {
        "seq": seq, "session": "s1", "object": object, "path": "/w/a", "change": "updated", "by_session": "s2",
        "content_hash": None, "valid_time": seq,
    }  # fmt: skip


class Journal:
    """Scripted journal of notices: subscriptions return its end, reads return the notices behind a sequence."""

    def __init__(self, daemon):
        self.kept = []
        self.daemon = daemon
        daemon.script["events.subscribe"] = self.subscribe
        daemon.script["events.unsubscribe"] = lambda seen: {"receipt": None}
        daemon.script["session.notices"] = self.read

    def subscribe(self, seen):
        return {"subscription": 5, "after": self.kept[-1]["seq"] if self.kept else 10}

    def read(self, seen):
        page = [each for each in self.kept if each["seq"] > seen.params["after"]][: seen.params["limit"]]
        return {"notices": page, "next_after": page[-1]["seq"] if page else seen.params["after"]}

    def add(self, *notices, send=True, missed=False):
        self.kept.extend(notices)
        for each in notices if send else ():
            self.daemon.peers[-1].notice(5, each, missed=missed)


async def take(notices, count):
    with anyio.fail_after(30):
        return [(each.seq, each.object) for each in [await anext(notices) for _ in range(count)]]


async def test_follow_delivers_notices_after_the_given_sequence(daemon):
    journal = Journal(daemon)
    journal.kept = [notice(3), notice(4)]
    async with connect(daemon.path) as client, client.follow("s1", after=3) as notices:
        assert await take(notices, 1) == [(4, "f1")]
        journal.add(notice(5), notice(6))
        assert await take(notices, 2) == [(5, "f1"), (6, "f1")]
        assert notices.after == 6
    assert daemon.of("events.unsubscribe")[0].params == {"subscription": 5}


async def test_follow_without_a_sequence_delivers_only_new_notices(daemon):
    journal = Journal(daemon)
    journal.kept = [notice(3)]
    async with connect(daemon.path) as client, client.follow("s1") as notices:
        journal.add(notice(8))
        assert await take(notices, 1) == [(8, "f1")]


@pytest.mark.requirement("NOT-3")
async def test_a_reconnect_loses_and_repeats_nothing(daemon):
    journal = Journal(daemon)
    async with connect(daemon.path) as client, client.follow("s1") as notices:
        journal.add(notice(11, "a"), notice(12, "a"))
        assert await take(notices, 1) == [(11, "a")]
        daemon.stop()
        journal.add(notice(12, "b"), notice(13, "a"), send=False)
        daemon.listen()
        assert await take(notices, 3) == [(12, "a"), (12, "b"), (13, "a")]
        journal.add(notice(14))
        assert await take(notices, 1) == [(14, "f1")]


async def test_missed_events_are_read_from_the_journal(daemon):
    journal = Journal(daemon)
    async with connect(daemon.path) as client, client.follow("s1") as notices:
        journal.add(notice(11))
        assert await take(notices, 1) == [(11, "f1")]
        journal.add(notice(12), notice(13), send=False)
        journal.add(notice(14), missed=True)
        assert await take(notices, 3) == [(12, "f1"), (13, "f1"), (14, "f1")]


async def test_more_than_a_page_of_backlog_comes_whole_and_in_order(daemon):
    journal = Journal(daemon)
    journal.kept = [notice(seq) for seq in range(1, 2501)]
    async with connect(daemon.path) as client, client.follow("s1", after=0) as notices:
        assert [seq for seq, _ in await take(notices, 2500)] == list(range(1, 2501))


async def test_a_burst_beyond_the_queue_is_not_lost(daemon):
    journal = Journal(daemon)
    async with connect(daemon.path) as client, client.follow("s1") as notices:
        burst = [notice(seq) for seq in range(11, 1511)]
        await anyio.to_thread.run_sync(lambda: journal.add(*burst))
        await client.daemon_status()  # behind the burst on the same connection
        assert [seq for seq, _ in await take(notices, 1500)] == list(range(11, 1511))


async def test_following_a_missing_session_fails_immediately(daemon):
    def refuse(seen):
        raise Refusal("session_not_found")

    daemon.script["events.subscribe"] = refuse
    async with connect(daemon.path) as client:
        with pytest.raises(Exception, match="session_not_found"):
            async with client.follow("nope"):
                pass


async def test_waiting_for_a_notice_can_be_cancelled_and_resumed(daemon):
    journal = Journal(daemon)
    async with connect(daemon.path) as client, client.follow("s1") as notices:
        with anyio.move_on_after(0.05):
            await anext(notices)
        journal.add(notice(11))
        assert await take(notices, 1) == [(11, "f1")]


def test_the_synchronous_client_follows_across_a_reconnect_too(daemon):
    journal = Journal(daemon)
    journal.kept = [notice(11, "a"), notice(12, "a")]
    with connect_sync(daemon.path) as client:
        notices = client.follow("s1", after=11)
        assert next(notices).seq == 12
        journal.add(notice(12, "b"), notice(13), send=False)
        daemon.stop()
        daemon.listen()
        assert [(each.seq, each.object) for each in (next(notices), next(notices))] == [(12, "b"), (13, "f1")]
        notices.close()


def test_a_connection_that_breaks_while_notices_are_read_is_subscribed_again(daemon):
    journal = Journal(daemon)
    journal.kept = [notice(11)]
    daemon.script["session.notices"] = once(drop, journal.read)
    with connect_sync(daemon.path) as client:
        notices = client.follow("s1", after=10)
        assert next(notices).seq == 11
        # Whether it is waited for on the connection that broke, or on one without a subscription, shows only now.
        journal.kept.append(notice(12))
        assert next(notices).seq == 12
        assert len(daemon.of("events.subscribe")) == 2
        notices.close()


def test_a_page_filled_by_one_sequence_does_not_repeat_forever():
    cursor = NoticeCursor(0)
    page = NoticesResult(
        notices=tuple(Notice(**notice(5, object)) for object in ("a", "b")), next_after=5,
    )  # fmt: skip
    assert cursor.more_behind(page, 2)
    assert [each.object for each in page.notices if cursor.fresh(each)] == ["a", "b"]
    assert cursor.reread_from == 4
    assert cursor.more_behind(page, 2)
    assert cursor.reread_from == 5


@pytest.mark.requirement("CLT-11")
async def test_an_iterator_raises_closed_after_its_block_and_continues_in_another(daemon):
    journal = Journal(daemon)
    async with connect(daemon.path) as client:
        async with client.follow("s1") as notices:
            journal.add(notice(11))
            assert await take(notices, 1) == [(11, "f1")]
        with pytest.raises(Closed, match="the iterator of notices is closed .*call follow again"):
            await take(notices, 1)
        async with notices:
            journal.add(notice(12))
            assert await take(notices, 1) == [(12, "f1")]
    assert len(daemon.of("events.subscribe")) == 2


@pytest.mark.requirement("CLT-11")
def test_an_iterator_of_the_synchronous_client_raises_closed_after_its_block(daemon):
    Journal(daemon)
    with connect_sync(daemon.path) as client:
        with client.follow("s1") as notices:
            pass
        with pytest.raises(Closed, match="the iterator of notices is closed"):
            next(notices)


@pytest.mark.requirement("CLT-11")
async def test_a_task_that_waits_for_a_notice_raises_closed_when_the_block_ends(daemon):
    Journal(daemon)
    raised = []

    async def iterate(notices):
        with pytest.raises(Closed):
            await take(notices, 1)
        raised.append(True)

    async with connect(daemon.path) as client, anyio.create_task_group() as group:
        async with client.follow("s1") as notices:
            group.start_soon(iterate, notices)
            await anyio.to_thread.run_sync(daemon.wait, "session.notices")
            await client.daemon_status()
    assert raised == [True]


@pytest.mark.requirement("CLT-12")
@pytest.mark.parametrize("closed", ["iterator", "client"])
def test_closing_the_iterator_or_the_client_ends_the_iteration_of_another_thread(daemon, closed):
    Journal(daemon)
    with connect_sync(daemon.path) as client:
        notices = client.follow("s1")
        waiting, raised = outcome_of(lambda: next(notices))
        daemon.wait("session.notices")
        if closed == "iterator":
            notices.close()
            waiting.join(WAIT_S)
    waiting.join(WAIT_S)
    (error,) = raised
    assert isinstance(error, Closed)
    assert f"the {'iterator of notices' if closed == 'iterator' else 'client'} is closed" in str(error)


@pytest.mark.requirement("CLT-12")
def test_following_after_the_end_of_the_client_raises_closed(daemon):
    Journal(daemon)
    with connect_sync(daemon.path) as client:
        notices = client.follow("s1")
        notices.__enter__()
    for ended in (notices, client.follow("s1")):
        with pytest.raises(Closed, match="the client is closed"):
            next(ended)
    assert len(daemon.of("events.subscribe")) == 1
