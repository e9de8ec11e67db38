"""Bytes of answers: bounded for a connection, for a sandbox and for all of them, whoever reads or does not."""

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest

from ctxd.rpc.dispatch import REPLY_BYTES
from ctxd.rpc.listener_state import SharedState, Timing
from ctxd.rpc.reply_budget import MIB, SANDBOX_BYTES, SANDBOX_REPLY_BYTES_MAX, SANDBOXES_BYTES, ReplyBudget
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd_protocol.methods import METHODS
from ctxd_protocol.sandbox_types import Quota
from tests.fakes.loopback import frame
from tests.fakes.socketless_connections import Edge, Loop

CALLS = 9
BYTES = 2 * MIB


def answers(size=BYTES):
    """Handlers of two large reads, and the count of their calls."""
    calls = []

    async def read(caller, params):
        calls.append(params)
        return msgspec.Raw(b'"%b"' % (b"x" * size))

    return {"context.show": read, "session.chat": read}, calls


def asking(method="context.show"):
    return b"".join(frame(method, {"session": "s"}, id=number) for number in range(CALLS))


def sandbox(handlers, shared, **settings):
    quota = QuotaMeter(Quota(), objects=lambda: 0, now=shared.loop.time)
    return Edge(handlers, quota=quota, loop=shared.loop, shared=shared, **settings)


@pytest.mark.requirement("RPC-11")
@pytest.mark.parametrize("method", ["context.show", "session.chat"])
def test_a_sandbox_that_reads_nothing_holds_few_answers_and_gets_all_of_them_once_it_reads(method):
    handlers, calls = answers()
    shared = SharedState(Loop())
    with sandbox(handlers, shared, timing=Timing(write_buffer_bytes=256 * 1024)) as edge:
        peers = [edge.connect() for _ in range(8)]
        for connection, transport in peers:
            transport.stalled = True
            connection.data_received(asking(method))
        shared.loop.turns()
        held = sum(transport.buffered for _, transport in peers)
        assert 0 < held <= SANDBOX_BYTES
        assert len(calls) * BYTES <= SANDBOX_BYTES
        while any(transport.buffered for _, transport in peers):
            for _, transport in peers:
                transport.read_all()
            shared.loop.turns()
            while shared.loop.timers and len(calls) < 8 * CALLS:
                shared.loop.advance(1)
                shared.loop.turns()
        for _, transport in peers:
            answered = [json.loads(line)["id"] for line in transport.written.splitlines()]
            assert answered == list(range(CALLS))
        assert edge.listener.replies.held == shared.replies.held == 0


def test_a_closed_connection_releases_its_bytes_and_unblocks_others():
    handlers, calls = answers(8 * MIB - 1024)
    shared = SharedState(Loop())
    with sandbox(handlers, shared) as edge:
        peers = [edge.connect() for _ in range(8)]
        for connection, transport in peers:
            transport.stalled = True
            connection.data_received(frame("context.show", {"session": "s"}))
        shared.loop.turns()
        begun = len(calls)
        assert begun < 8
        for connection, _ in peers[:begun]:
            connection.connection_lost(None)
        shared.loop.turns()
        assert len(calls) > begun


def test_sandboxes_together_hold_no_more_than_their_bound_and_the_host_has_its_own():
    handlers, calls = answers()
    shared = SharedState(Loop())
    edges = [sandbox(handlers, shared) for _ in range(8)]
    for edge in edges:
        for _ in range(8):
            connection, transport = edge.connect()
            transport.stalled = True
            connection.data_received(asking())
    shared.loop.turns()
    assert shared.sandbox_replies.held <= SANDBOXES_BYTES
    with Edge(handlers, loop=shared.loop, shared=shared) as host:
        connection, transport = host.connect()
        connection.data_received(frame("context.show", {"session": "host"}))
        shared.loop.turns()
        assert b'"result"' in transport.written
    for edge in edges:
        edge.__exit__()


@pytest.mark.requirement("RPC-11")
@pytest.mark.parametrize("confined", [True, False])
def test_an_answer_that_is_too_long_for_a_sandbox_is_refused_with_a_remedy(confined):
    handlers, _ = answers(SANDBOX_REPLY_BYTES_MAX)
    shared = SharedState(Loop())
    edge = sandbox(handlers, shared) if confined else Edge(handlers, loop=shared.loop, shared=shared)
    with edge:
        connection, transport = edge.connect()
        connection.data_received(frame("context.show", {"session": "s"}))
        shared.loop.turns()
        answer = json.loads(transport.written)
        if confined:
            assert answer["error"]["data"]["code"] == "too_large" and answer["error"]["data"]["hint"]
        else:
            assert "result" in answer


def test_a_budget_counts_in_its_parents_and_wakes_those_that_wait_for_the_full_one():
    total = ReplyBudget(100)
    one, two = ReplyBudget(80, total), ReplyBudget(80, total)
    woken = []
    one.take(70)
    assert not two.has_room(40) and two.has_room(30) and not one.has_room(20)
    two.when_room(40, lambda: woken.append("two"))
    one.when_room(20, lambda: woken.append("one"))
    assert woken == []
    one.give(70)
    assert sorted(woken) == ["one", "two"]
    assert (one.held, total.held) == (0, 0)


def test_each_method_with_a_large_answer_reserves_a_mebibyte_at_least_and_no_more_than_all_answers_may_hold():
    assert REPLY_BYTES.keys() <= METHODS.keys()
    assert {name for name, reserved in REPLY_BYTES.items() if not 2**20 <= reserved <= SANDBOXES_BYTES} == set()


CONTENT = {"content", "content_base64", "data", "payload", "request", "text"}


def carried(hint, seen=frozenset()):
    """The names of the fields in a result type whose values are bytes or content."""
    if not (isinstance(hint, type) and issubclass(hint, msgspec.Struct)):
        return set().union(*(carried(each, seen) for each in get_args(hint)))
    if hint in seen:
        return set()
    hints = get_type_hints(hint)
    here = {name for name, each in hints.items() if name in CONTENT or each is bytes}
    return here.union(*(carried(each, seen | {hint}) for each in hints.values()))


@pytest.mark.requirement("RPC-11")
def test_each_method_whose_result_has_content_reserves_bytes():
    carrying = {name for name, method in METHODS.items() if carried(method.result)}
    assert {"commit.deltas", "artifact.get", "object.get", "epoch.show"} <= carrying
    assert carrying - REPLY_BYTES.keys() == set()


SHORT_LISTS = {"hello", "daemon.status", "commit.resolve"}
"""Reads whose lists have a few short members: the methods, the damaged places of the store, the tags of a commit."""


def has_list(hint, seen=frozenset()):
    """True if a value of a result type may have any number of members."""
    origin, members = get_origin(hint), get_args(hint)
    if hint in (Any, msgspec.Raw) or origin in (list, dict, Mapping) or (origin is tuple and ... in members):
        return True
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct) and hint not in seen:
        return any(has_list(each, seen | {hint}) for each in get_type_hints(hint).values())
    return any(has_list(each, seen) for each in members)


@pytest.mark.requirement("RPC-11")
def test_each_method_that_returns_a_list_reserves_bytes():
    listing = {name for name, method in METHODS.items() if not method.writes and has_list(method.result)}
    assert {"rpc.discover", "context.list", "search.query"} <= listing
    assert listing - REPLY_BYTES.keys() == SHORT_LISTS
