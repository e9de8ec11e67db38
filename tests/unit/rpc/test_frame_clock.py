"""When an unfinished frame ends its connection, on a clock that the test moves."""

import socket

import pytest
import structlog

from ctxd.rpc.connection import Connection
from ctxd.rpc.dispatch import build_table
from ctxd.rpc.listener import ListenerContext, ListenerIdentity, SharedState, Timing
from ctxd_protocol.limits import Limits
from tests.fakes.loopback import frame
from tests.unit.rpc.families import RECEIPT, Services


class Clock:
    """The part of an event loop that a connection tells time by."""

    def __init__(self):
        self.now = 100.0
        self.timers = []

    def time(self):
        return self.now

    def call_soon(self, callback):
        callback()

    def call_later(self, seconds, callback):
        self.timers.append((self.now + seconds, callback))
        return self

    def cancel(self):
        self.timers.clear()

    def advance(self, seconds):
        self.now += seconds
        due = [callback for at, callback in self.timers if at <= self.now]
        self.timers = [(at, callback) for at, callback in self.timers if at > self.now]
        for callback in due:
            callback()


class Transport:
    """A transport that keeps what is written."""

    def __init__(self, held):
        self.held = held
        self.written = b""
        self.closed = False
        self.reading = True

    def get_extra_info(self, name):
        return self.held

    def set_write_buffer_limits(self, high):
        pass

    def write(self, data):
        self.written += data

    def close(self):
        self.closed = True

    def is_closing(self):
        return self.closed

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


class Tasks:
    """A pool for handlers that do not suspend."""

    idle = (None,)

    def step(self, coroutine):
        return coroutine.send(None)


@pytest.fixture
def peer():
    clock = Clock()
    services = Services()
    table = build_table(services.handlers(), "host")
    lane = ListenerContext(
        table=table,
        standing=ListenerIdentity(),
        floor=SharedState(clock),
        meter=None,
        connections_max=1,
        owner_uid=0,
        owner_only=False,
        limits=Limits(in_flight=1),
        timing=Timing(frame_s=10.0),
        log=structlog.get_logger(),
        loop=clock,
        tasks=Tasks(),
    )
    one, two = socket.socketpair()
    with one, two:
        connection, transport = Connection(lane), Transport(one)
        connection.connection_made(transport)
        yield connection, transport, clock, services


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
    assert transport.reading
    clock.advance(9)
    assert not transport.closed
    clock.advance(10)
    assert transport.closed
