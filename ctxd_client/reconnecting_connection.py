"""A connection that reconnects, repeats the handshake and resends calls that are safe to resend: calls outlive sockets.

After a transient failure a call is repeated within its deadline, with the same ``op_id``. On reconnecting, ``hello``
carries the newest receipt seen, so that a daemon that has lost acknowledged writes reports it.
"""

from contextlib import suppress
from typing import TypeVar
from weakref import WeakSet

from ctxd_client.connection import AsyncConnection, AsyncLock, Runner, now, open_connection, require_here, sleep
from ctxd_client.errors import CallFailed, Closed, InvalidCall, Unavailable
from ctxd_client.retry import Retry, final_error, greet_s, late, late_again, may_repeat, pause_s, unreachable
from ctxd_client.socket_lookup import SocketPlace
from ctxd_client.wire import Call
from ctxd_protocol.methods.daemon import HelloParams, HelloResult
from ctxd_protocol.object_types import Receipt

R = TypeVar("R")


class ReconnectingConnection:
    """Calls to the daemon at ``place``. ``runner`` runs connections; ``client``: name and version for ``hello``."""

    def __init__(self, place: SocketPlace, runner: Runner, client: tuple[str, str]) -> None:
        self.place = place
        self.hello: HelloResult | None = None
        self.last_receipt: Receipt | None = None
        self.runner = runner
        self._client = client
        self._connection: AsyncConnection | None = None
        self._opening = AsyncLock()  # held over connecting and hello, so that one caller reconnects for all
        self._closed = False
        self._for_events: WeakSet[ReconnectingConnection] = WeakSet()

    def for_events(self) -> "ReconnectingConnection":
        """The transport for receiving notifications: this one, unless waiting for them would block its calls; then one
        that closes with it."""
        if AsyncConnection.SHARED:
            return self
        transport = ReconnectingConnection(self.place, self.runner, self._client)
        self._for_events.add(transport)
        transport._closed = self._closed  # after the addition, which a thread that closes may have missed
        return transport

    async def call(self, call: Call[R], retry: Retry) -> R:
        """Make ``call``, repeat it as long as that is safe and ``retry`` allows, and return its result.

        Raises: the last failure; ``TimedOut`` if the deadline passed during the first attempt.
        Cancel: safe; a write may have been applied.
        """
        return (await self.call_on(call, retry))[0]

    async def call_on(self, call: Call[R], retry: Retry) -> tuple[R, AsyncConnection]:
        """As ``call``, and the connection that carried the reply."""
        require_here(self.runner)
        call = call.with_op_id()
        began = now()
        deadline = retry.deadline(began)
        unknown = False
        attempt = 0
        failure: CallFailed | None = None
        try:
            while True:
                attempt += 1
                try:
                    return await self._attempt(call, deadline)
                except TimeoutError:
                    if failure is None:
                        raise late(self.place, call, retry.deadline_s) from None
                    raise late_again(failure, call, retry.deadline_s) from None
                except CallFailed as error:
                    unknown = unknown or (call.method.writes and error.outcome == "unknown")
                    pause = pause_s(error, attempt, retry)
                    if not may_repeat(error, call.method) or now() + pause > deadline:
                        final_error(error, unknown=unknown)
                        raise
                    failure = error
                    if retry.on_retry is not None:
                        retry.on_retry(error, now() - began)
                await sleep(pause)
        finally:
            failure = (
                None  # Its traceback refers to this frame, and so to the connection, which an iterator may abandon.
            )

    async def greet(self, retry: Retry, wait_s: float) -> None:
        """Connect, waiting up to ``wait_s`` seconds for the daemon to become available.

        Raises: as ``open``; ``TimedOut`` if a daemon accepts the connection but does not reply. Cancel: safe.
        """
        started, limit_s = now(), greet_s(retry, wait_s)
        attempt = 0
        while True:
            attempt += 1
            try:
                await self.open(started + limit_s)
                return
            except TimeoutError:
                raise late(self.place, Call("hello", HelloParams(), HelloResult), limit_s) from None
            except Unavailable as error:
                pause = pause_s(error, attempt, retry)
                # A daemon that accepts no connection is there, and has as long as for its reply.
                accepts = not isinstance(error.__cause__, BlockingIOError)
                if now() + pause > started + (wait_s if accepts else limit_s):
                    raise
            await sleep(pause)

    async def open(self, deadline: float) -> AsyncConnection:
        """A usable connection: the current one, or a new one after its ``hello``.

        Raises: ``ConnectFailed``; ``DaemonFault`` if the daemon has lost acknowledged writes; ``TimeoutError``.
        Cancel: safe.
        """
        async with self._opening.held(deadline):
            if self._closed:
                raise Closed
            if self._connection is None or not self._connection.usable:
                await self._connect(deadline)
            assert self._connection is not None, "a failed connection raises"
            return self._connection

    def close(self) -> None:
        """Close the connection; no more calls can be made."""
        self._closed = True
        if self._connection is not None:
            self._connection.close()
        with suppress(KeyError):  # an iterator that ends meanwhile leaves the set
            while True:
                self._for_events.pop().close()

    async def _attempt(self, call: Call[R], deadline: float) -> tuple[R, AsyncConnection]:
        connection = await self.open(deadline)
        try:
            result = await connection.call(call, deadline)
        except Unavailable as error:
            if error.code == "draining":
                connection.retire()
            raise
        receipt: Receipt | None = getattr(result, "receipt", None)
        if receipt is not None and (self.last_receipt is None or receipt.seq > self.last_receipt.seq):
            self.last_receipt = receipt
        return result, connection

    async def _connect(self, deadline: float) -> None:
        try:
            connection = self._connection = await open_connection(self.place.path, self.runner, deadline)
        except TimeoutError:
            raise
        except OSError as error:
            raise unreachable(self.place, error) from error
        try:
            if self._closed:  # by another thread, before it saw the connection
                raise Closed
            await self._greet(connection, deadline)
        except BaseException:
            connection.close()
            raise

    async def _greet(self, connection: AsyncConnection, deadline: float) -> None:
        name, version = self._client
        known = None if self.hello is None else self.hello.journal
        params = HelloParams(client=name, version=version, last_receipt=self.last_receipt, journal=known)
        try:
            self.hello = await connection.call(Call("hello", params, HelloResult), deadline)
        except InvalidCall as error:
            if error.code != "method_not_found":
                raise
            return  # hello is optional on both sides
        if self.hello.journal != known:
            self.last_receipt = None  # it belongs to another journal
        connection.adopt(self.hello.limits, descriptors=self.hello.descriptors)
