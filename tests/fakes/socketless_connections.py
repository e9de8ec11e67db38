"""Connections without a socket, on a loop that the test turns: each iteration and each timer is seen."""

import socket
from collections import deque

from ctxd.rpc.connection import Connection
from ctxd.rpc.listener_state import ListenerContext, SharedState
from tests.fakes.loopback import settings_of


class Loop:
    """The part of an event loop that connections and their scheduler use."""

    def __init__(self):
        self.now = 100.0
        self.timers = []
        self.soon = deque()

    def time(self):
        return self.now

    def call_soon(self, callback):
        self.soon.append(callback)

    def call_later(self, seconds, callback):
        self.timers.append((self.now + seconds, callback))
        return self

    def cancel(self):
        self.timers.clear()

    def turn(self):
        """One iteration. True if there was anything to do."""
        due, self.soon = self.soon, deque()
        for callback in due:
            callback()
        return bool(due)

    def turns(self, most=1_000_000):
        """Iterate until nothing is left to do. Returns how many iterations that took."""
        count = 0
        while count < most and self.turn():
            count += 1
        return count

    def advance(self, seconds):
        self.now += seconds
        due = [callback for at, callback in self.timers if at <= self.now]
        self.timers = [(at, callback) for at, callback in self.timers if at > self.now]
        for callback in due:
            callback()


class Transport:
    """A transport that keeps what is written. Told to, it buffers as for a peer that does not read."""

    def __init__(self, held):
        self.held = held
        self.written = b""
        self.closed = False
        self.reading = True
        self.connection = None
        self.stalled = False
        self.buffered = 0
        self.high = 0

    def get_extra_info(self, name):
        return self.held

    def set_write_buffer_limits(self, high, low):
        self.high = high

    def get_write_buffer_size(self):
        return self.buffered

    def write(self, data):
        self.written += data
        if self.stalled:
            was, self.buffered = self.buffered, self.buffered + len(data)
            if was <= self.high < self.buffered:
                self.connection.pause_writing()

    def read_all(self):
        """The peer reads everything."""
        paused, self.buffered, self.stalled = self.buffered > self.high, 0, False
        if paused:
            self.connection.resume_writing()

    def close(self):
        self.closed = True

    def abort(self):
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

    def enter(self):
        """Handlers that do not suspend need no task."""

    leave = enter


class Edge:
    """A listener on a turned loop; ``connect`` opens connections to it."""

    def __init__(self, handlers, *, quota=None, loop=None, shared=None, **settings):
        self.loop = loop or Loop()
        self.listener = ListenerContext(
            settings_of(handlers, quota=quota, connections_max=100, **settings),
            shared=shared or SharedState(self.loop),
            owner_uid=0,
            owner_only=False,
            loop=self.loop,
            tasks=Tasks(),
        )
        self._pairs = []

    def connect(self):
        """A connection and its transport."""
        pair = socket.socketpair()
        self._pairs.extend(pair)
        connection, transport = Connection(self.listener), Transport(pair[0])
        transport.connection = connection
        connection.connection_made(transport)
        return connection, transport

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for one in self._pairs:
            one.close()
