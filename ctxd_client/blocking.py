"""The way to the daemon that outlives connections, as ``link`` is, but blocking.

Owns which channel is in use, and whose turn it is: calls of other threads wait under their own deadline.
"""

import threading
import time
from typing import TypeVar

from ctxd_client import retry as retries
from ctxd_client.channel import Channel
from ctxd_client.errors import CallFailed, Closed, ConnectionLost, InvalidCall, Unavailable
from ctxd_client.failures import late, unreachable
from ctxd_client.paths import SocketPlace
from ctxd_client.retry import Retry
from ctxd_client.wire import Call
from ctxd_protocol.methods.daemon import HelloParams, HelloResult
from ctxd_protocol.objects import Receipt

R = TypeVar("R")


class BlockingLink:
    """Calls to the daemon at ``place``; ``client`` is the name and version that hello tells it."""

    def __init__(self, place: SocketPlace, client: tuple[str, str]) -> None:
        self.place = place
        self.client = client
        self.hello: HelloResult | None = None
        self.last_receipt: Receipt | None = None
        self._turn = threading.Lock()  # held over a whole call: the channel carries one at a time
        self._channel: Channel | None = None
        self._closed = False

    def call(self, call: Call[R], retry: Retry) -> R:
        """The result of ``call``, made again as often as is safe and ``retry`` allows."""
        call = call.with_op_id()
        deadline = None if retry.deadline_s is None else time.monotonic() + retry.deadline_s
        unknown = False
        attempt = 0
        while True:
            attempt += 1
            try:
                return self._attempt(call, deadline)
            except TimeoutError:
                raise late(self.place, call, retry) from None
            except CallFailed as error:
                failure = error
            unknown = unknown or (call.method.writes and failure.outcome == "unknown")
            pause = retries.pause_s(failure, attempt, retry)
            left = pause if deadline is None else deadline - time.monotonic()
            if not retries.may_repeat(failure, call.method) or pause > left:
                raise retries.settled(failure, unknown=unknown)
            time.sleep(pause)

    def greet(self, retry: Retry, wait_s: float) -> None:
        """Connect, waiting up to ``wait_s`` seconds for a daemon that does not answer yet."""
        limit = retries.greeting(retry, wait_s)
        assert limit.deadline_s is not None, "a greeting never waits for ever"
        last_try = time.monotonic() + wait_s
        deadline = time.monotonic() + limit.deadline_s
        attempt = 0
        while True:
            attempt += 1
            try:
                with self._turn:
                    self.open(deadline)
                return
            except TimeoutError:
                raise late(self.place, Call("hello", HelloParams(), HelloResult), limit) from None
            except Unavailable as error:
                pause = retries.pause_s(error, attempt, limit)
                if time.monotonic() + pause > last_try:
                    raise
            time.sleep(pause)

    def open(self, deadline: float | None) -> Channel:
        """The channel in use, or a new one after hello. Only for whoever has the turn."""
        if self._closed:
            raise Closed
        if self._channel is None:
            try:
                channel = Channel(
                    self.place.path, None if deadline is None else max(0.001, deadline - time.monotonic())
                )
            except TimeoutError:
                raise
            except OSError as error:
                raise unreachable(self.place, error) from error
            try:
                self._greet(channel, deadline)
            except BaseException:
                channel.close()
                raise
            self._channel = channel
        return self._channel

    def close(self) -> None:
        """End the connection; no call can be made any more."""
        self._closed = True
        self._drop()

    def _attempt(self, call: Call[R], deadline: float | None) -> R:
        if not self._turn.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutError
        try:
            result = self.open(deadline).call(call, deadline)
        except CallFailed as error:
            if isinstance(error, ConnectionLost) or error.code in ("draining", "protocol_mismatch"):
                self._drop()
            raise
        except BaseException:
            self._drop()  # half a line may have gone out, or half an answer been read
            raise
        finally:
            self._turn.release()
        receipt = getattr(result, "receipt", None)
        if receipt is not None and (self.last_receipt is None or receipt.seq > self.last_receipt.seq):
            self.last_receipt = receipt
        return result

    def _greet(self, channel: Channel, deadline: float | None) -> None:
        name, version = self.client
        known = None if self.hello is None else self.hello.journal
        params = HelloParams(client=name, version=version, last_receipt=self.last_receipt, journal=known)
        call = Call("hello", params, HelloResult)
        try:
            self.hello = channel.call(call, deadline)
        except InvalidCall as error:
            if error.code != "method_not_found":
                raise
            return  # hello is optional on both sides
        if self.hello.journal != known:
            self.last_receipt = None  # it says nothing about another journal
        channel.limits = self.hello.limits

    def _drop(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None
