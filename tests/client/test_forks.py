"""A forked child makes its own connection: it neither reads the replies of its parent nor waits for its calls."""

import json
import os
import re
import threading
import warnings

import anyio
import pytest

from ctxd_client import Closed, connect, connect_sync
from tests.client.test_follow import Journal, notice, take
from tests.fakes.daemon import HELLO, WAIT_S


def in_child(work):
    """The result of ``work`` in a forked child, which must be JSON; of an exception, its text."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from Python 3.12 on, for a fork beside threads
        pid = os.fork()
    if pid == 0:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 - the child must not go on with the tests
            result = f"{type(error).__name__}: {error}"
        os.write(writable, json.dumps(result).encode())
        os._exit(0)
    os.close(writable)
    with os.fdopen(readable) as reader:
        text = reader.read()
    os.waitpid(pid, 0)
    return json.loads(text)


def turn_of(seen):
    return {"turn": int(seen.params["session"][1:]), "receipt": None}


@pytest.mark.requirement("CLT-10")
def test_a_forked_child_reconnects_and_the_parent_keeps_its_connection(daemon):
    daemon.script["session.append"] = turn_of
    with connect_sync(daemon.path, deadline_s=10) as client:
        assert client.session_append("s1", []).turn == 1
        assert in_child(lambda: [client.session_append(f"s{n}", []).turn for n in (2, 3)]) == [2, 3]
        assert client.session_append("s4", []).turn == 4
        assert in_child(lambda: in_child(lambda: client.session_append("s5", []).turn)) == 5, "a child of a child"
    assert [seen.peer.number for seen in daemon.of("session.append")] == [0, 1, 1, 0, 2]


@pytest.mark.requirement("CLT-10")
@pytest.mark.parametrize("held", ["session.append", "hello"])
def test_a_forked_child_does_not_wait_for_a_call_of_its_parent(daemon, held):
    answered = {"session.append": turn_of, "hello": lambda seen: HELLO}
    released = threading.Event()

    def hold_first(seen):
        if len(daemon.of(seen.method)) == 1:
            released.wait(WAIT_S)
        return answered[seen.method](seen)

    daemon.script.update(answered)
    turns = []
    with connect_sync(daemon.path, deadline_s=10) as client:
        daemon.peers[0].drop()
        daemon.seen.clear()
        daemon.script[held] = hold_first
        waiting = threading.Thread(target=lambda: turns.append(client.session_append("s1", []).turn))
        waiting.start()
        daemon.wait(held)
        assert in_child(lambda: client.session_append("s2", []).turn) == 2
        released.set()
        waiting.join(WAIT_S)
    assert turns == [1]
    assert sorted(seen.params["session"] for seen in daemon.of("session.append")) == ["s1", "s2"]


@pytest.mark.requirement("CLT-10")
def test_a_forked_child_reads_on_from_the_notice_that_its_parent_read_last(daemon):
    kept = [notice(1)]
    daemon.script["events.subscribe"] = lambda seen: {"subscription": 5, "after": kept[-1]["seq"]}

    def read(seen):
        page = [each for each in kept if each["seq"] > seen.params["after"]]
        return {"notices": page, "next_after": kept[-1]["seq"]}

    daemon.script["session.notices"] = read
    with connect_sync(daemon.path, deadline_s=10) as client, client.follow("s1", after=0) as notices:
        assert next(notices).seq == 1
        kept.append(notice(2))
        assert in_child(lambda: next(notices).seq) == 2
        daemon.of("events.subscribe")[0].peer.notice(5, notice(2))
        assert next(notices).seq == 2
    assert len({seen.peer.number for seen in daemon.of("events.subscribe")}) == 2


@pytest.mark.requirement("CLT-10")
@pytest.mark.anyio
async def test_an_asynchronous_client_is_refused_in_a_forked_child(daemon):
    async with connect(daemon.path) as client:
        text = in_child(lambda: client.daemon_status().send(None))
        assert re.fullmatch(r"Closed: the client belongs to process \d+, .* \(connect in the child, .*\)", text)
        await client.daemon_status()
    assert len(daemon.of("daemon.status")) == 1


@pytest.mark.requirement("CLT-10")
@pytest.mark.anyio
@pytest.mark.parametrize("debug", [False, True])
async def test_an_asynchronous_client_is_refused_in_another_event_loop(daemon, debug):
    def call_elsewhere():
        with pytest.raises(Closed, match="belongs to another event loop .*connect in the loop that makes the calls"):
            anyio.run(client.daemon_status, backend_options={"debug": debug})
        return True

    async with connect(daemon.path) as client:
        assert await anyio.to_thread.run_sync(call_elsewhere)
        await client.daemon_status()


@pytest.mark.requirement("CLT-10")
@pytest.mark.anyio
async def test_notices_are_refused_in_another_event_loop(daemon):
    Journal(daemon)

    def iterate_elsewhere():
        with pytest.raises(Closed, match="belongs to another event loop"):
            anyio.run(take, notices, 1)
        return True

    async with connect(daemon.path) as client, client.follow("s1") as notices:
        assert await anyio.to_thread.run_sync(iterate_elsewhere)
