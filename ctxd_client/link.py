"""The way to the daemon that outlives connections: it reconnects, says hello, and makes calls again that may be.

Owns which connection is in use. A call that failed in a way that passes is repeated under its deadline with the same
``op_id``. After a reconnect the daemon is shown the newest receipt seen: one that has lost what it acknowledged says
so.
"""

from collections.abc import Callable
from typing import TypeVar

import anyio
from anyio.abc import TaskGroup

from ctxd_client import retry as retries
from ctxd_client.connection import Connection
from ctxd_client.errors import CallFailed, Closed, InvalidCall, Unavailable
from ctxd_client.failures import late, unreachable
from ctxd_client.paths import SocketPlace
from ctxd_client.retry import Retry
from ctxd_client.wire import Call
from ctxd_protocol.methods.daemon import HelloParams, HelloResult
from ctxd_protocol.methods.events import NoticeEvent
from ctxd_protocol.objects import Receipt

R = TypeVar("R")


class Link:
    """Calls to the daemon at ``place``. ``group`` owns the connections' tasks; ``on_event`` gets what comes unasked."""

    def __init__(self, place: SocketPlace, group: TaskGroup, retry: Retry, client: tuple[str, str]) -> None:
        self.place = place
        self.retry = retry
        self.hello: HelloResult | None = None
        self.last_receipt: Receipt | None = None
        self._group = group
        self._client = client
        self._connection: Connection | None = None
        self._opening = anyio.Lock()  # held over connecting and hello, so that one caller reconnects for all
        self._listeners: dict[Connection, dict[int, Callable[[NoticeEvent | None], None]]] = {}
        self._closed = False

    async def call(self, call: Call[R], retry: Retry | None = None) -> R:
        """The result of ``call``, made again as often as is safe and ``retry`` (the link's own when null) allows.

        Raises: the last failure; ``TimedOut`` when the deadline passed during an attempt.
        Cancel: safe; a write may have been applied.
        """
        return (await self.call_on(call, retry))[0]

    async def call_on(self, call: Call[R], retry: Retry | None = None) -> tuple[R, Connection]:
        """As ``call``, and the connection that the answer came by."""
        retry = retry or self.retry
        call = call.with_op_id()
        failure: CallFailed | None = None
        unknown = False
        with anyio.move_on_after(retry.deadline_s) as scope:
            attempt = 0
            while True:
                attempt, failure = attempt + 1, None
                try:
                    return await self._attempt(call)
                except CallFailed as error:
                    failure = error
                unknown = unknown or (call.method.writes and failure.outcome == "unknown")
                pause = retries.pause_s(failure, attempt, retry)
                if not retries.may_repeat(failure, call.method) or pause > scope.deadline - anyio.current_time():
                    break
                await anyio.sleep(pause)
        raise retries.settled(failure or late(self.place, call, retry), unknown=unknown)

    async def greet(self, wait_s: float) -> None:
        """Connect, waiting up to ``wait_s`` seconds for a daemon that does not answer yet.

        Raises: as ``open``; ``TimedOut`` when a daemon takes the connection but does not answer. Cancel: safe.
        """
        failure: CallFailed | None = None
        limit = retries.greeting(self.retry, wait_s)
        with anyio.move_on_after(limit.deadline_s):
            last_try = anyio.current_time() + wait_s
            attempt = 0
            while True:
                attempt, failure = attempt + 1, None
                try:
                    await self.open()
                    return
                except CallFailed as error:
                    failure = error
                pause = retries.pause_s(failure, attempt, limit)
                if not isinstance(failure, Unavailable) or anyio.current_time() + pause > last_try:
                    break
                await anyio.sleep(pause)
        raise failure or late(self.place, Call("hello", HelloParams(), HelloResult), limit)

    async def open(self) -> Connection:
        """A usable connection: the one in use, or a new one after hello.

        Raises: ``ConnectFailed``; ``DaemonFault`` when the daemon lost what it acknowledged. Cancel: safe.
        """
        async with self._opening:
            if self._closed:
                raise Closed
            if self._connection is None or not self._connection.usable:
                self._connection = await self._connect()
            return self._connection

    def close(self) -> None:
        """End the connection; no call can be made any more."""
        self._closed = True
        for connection in list(self._listeners):
            connection.close()

    def listen(self, connection: Connection, subscription: int, listener: Callable[[NoticeEvent | None], None]) -> bool:
        """Have ``listener`` called with each event of ``subscription``, and with null when ``connection`` ends.

        False: the connection has ended already.
        """
        listeners = self._listeners.get(connection)
        if listeners is None:
            return False
        listeners[subscription] = listener
        return True

    def unlisten(self, connection: Connection, subscription: int) -> None:
        """Undo ``listen``; no harm if it is gone."""
        self._listeners.get(connection, {}).pop(subscription, None)

    async def _attempt(self, call: Call[R]) -> tuple[R, Connection]:
        connection = await self.open()
        try:
            result = await connection.call(call)
        except Unavailable as error:
            if error.code == "draining":
                connection.retire()
            raise
        self._witness(getattr(result, "receipt", None))
        return result, connection

    def _witness(self, receipt: Receipt | None) -> None:
        if receipt is not None and (self.last_receipt is None or receipt.seq > self.last_receipt.seq):
            self.last_receipt = receipt

    async def _connect(self) -> Connection:
        try:
            stream = await anyio.connect_unix(self.place.path)
        except OSError as error:
            raise unreachable(self.place, error) from error
        connection = Connection(stream, on_event=lambda event: self._dispatch(connection, event))
        self._listeners[connection] = {}
        self._group.start_soon(self._keep, connection)
        try:
            await self._greet(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    async def _greet(self, connection: Connection) -> None:
        name, version = self._client
        known = None if self.hello is None else self.hello.journal
        params = HelloParams(client=name, version=version, last_receipt=self.last_receipt, journal=known)
        call = Call("hello", params, HelloResult)
        try:
            self.hello = await connection.call(call)
        except InvalidCall as error:
            if error.code != "method_not_found":
                raise
            return  # hello is optional on both sides
        if self.hello.journal != known:
            self.last_receipt = None  # it says nothing about another journal
        connection.adopt(self.hello.limits)

    async def _keep(self, connection: Connection) -> None:
        try:
            await connection.run()
        finally:
            for listener in self._listeners.pop(connection, {}).values():
                listener(None)

    def _dispatch(self, connection: Connection, event: NoticeEvent) -> None:
        listener = self._listeners.get(connection, {}).get(event.subscription)
        if listener is not None:
            listener(event)
