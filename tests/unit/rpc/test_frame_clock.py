"""When an unfinished frame ends its connection, on a clock that the test moves."""

import pytest

from ctxd.rpc.listener_state import Timing
from ctxd_protocol.limits import Limits
from tests.fakes.loopback import frame
from tests.fakes.socketless_connections import Edge
from tests.unit.rpc.families import RECEIPT, Services


@pytest.fixture
def peer():
    services = Services()
    with Edge(services.handlers(), limits=Limits(in_flight=1), timing=Timing(frame_s=10.0)) as edge:
        connection, transport = edge.connect()
        yield connection, transport, edge.loop, services


def test_each_frame_has_the_whole_time_from_its_own_start(peer):
    connection, transport, clock, _ = peer
    call = frame("context.current")
    connection.data_received(call[:5])
    clock.advance(9)
    connection.data_received(call[5:] + call[:5])
    clock.advance(9)
    assert not transport.closed
    clock.advance(1)
    assert transport.closed
    assert b'"code":"timeout"' in transport.written


def test_a_frame_begun_after_a_completed_one_has_the_whole_time_too(peer):
    connection, transport, clock, _ = peer
    call = frame("context.current")
    connection.data_received(call[:5])
    connection.data_received(call[5:])
    clock.advance(5)
    connection.data_received(call[:5])
    clock.advance(9)
    assert not transport.closed
    clock.advance(1)
    assert transport.closed


def test_more_bytes_of_the_same_frame_give_it_no_more_time(peer):
    connection, transport, clock, _ = peer
    for _ in range(10):
        connection.data_received(b" ")
        assert not transport.closed
        clock.advance(1)
    assert transport.closed


def test_a_connection_between_frames_has_all_the_time(peer):
    connection, transport, clock, _ = peer
    connection.data_received(b"{")
    connection.data_received(b"}\n")
    clock.advance(1000)
    assert not transport.closed


def test_a_frame_is_not_timed_while_the_connection_itself_does_not_read(peer):
    connection, transport, clock, services = peer
    write = frame("session.append", {"session": "s", "messages": [{"role": "user", "content": "x"}]}, id=None)
    connection.data_received(write + write + write[:5])
    assert not transport.reading
    clock.advance(15)
    assert not transport.closed
    services.pending[0].resolve(RECEIPT)
    clock.turns()
    assert transport.reading
    clock.advance(9)
    assert not transport.closed
    clock.advance(10)
    assert transport.closed
