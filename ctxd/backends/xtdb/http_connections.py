"""HTTP connections to a node, for ``client.py``: a few kept-alive ones, and the circuit breaker that pauses requests.

The only module that uses aiohttp, and knows which of its errors certainly mean that a request was not sent. Every wait
has a timeout. Closing the connections first ends the requests of other tasks, which aiohttp would cancel or fail for a
misleading reason.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from types import TracebackType
from typing import Any, Final, Literal
from urllib.parse import quote, urlencode

import aiohttp
import anyio

from ctxd.backends.xtdb.messages import TYPE, Unknown, Unreachable
from ctxd.clock import Clock

CONNECTIONS_MAX: Final = 16
"""Maximum connections: a node has about fifty threads, and a request holds one."""

CONNECT_S: Final = 5.0
ANSWER_BYTES_MAX: Final = 512 * 1024 * 1024
"""Maximum bytes of a response. A chunk of a bulk read has a few megabytes."""

_IDLE_S: Final = 60.0
"""Seconds for which an idle connection is kept: less than the 200 after which a node closes it, so that a request
rarely gets a closed one."""

_CLOSE_S: Final = 5.0
_UNIX: Final = "unix:"


class Answer:
    """Complete response: HTTP status, media type without parameters, body."""

    __slots__ = ("body", "media_type", "status")

    def __init__(self, status: int, media_type: str, body: bytes) -> None:
        self.status = status
        self.media_type = media_type
        self.body = body


class HttpConnections:
    """Connections to the node at ``url``: ``unix:/path`` or ``http://host:port``. An async context manager.

    Raises: ValueError for another kind of address.
    """

    def __init__(self, url: str) -> None:
        self._socket: str | None = None
        if url.startswith(_UNIX):
            self._socket = url.removeprefix(_UNIX)
            self._prefix = "http://xtdb/_xtdb/"
        elif url.startswith(("http://", "https://")):
            self._prefix = f"{url.rstrip('/')}/_xtdb/"
        else:
            raise ValueError(f"{url} is neither unix:/path nor http://host:port")
        self._session: aiohttp.ClientSession | None = None
        self._slots = anyio.Semaphore(CONNECTIONS_MAX, fast_acquire=True)
        self._under_way: set[anyio.CancelScope] = set()
        self._ended = anyio.Event()

    async def __aenter__(self) -> "HttpConnections":
        connector: aiohttp.BaseConnector
        # No limit of its own: aiohttp cancels requests that wait for one when the session is closed.
        if self._socket is not None:
            connector = aiohttp.UnixConnector(self._socket, limit=0, keepalive_timeout=_IDLE_S)
        else:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=_IDLE_S)
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            headers={"Accept": TYPE},
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        for request in self._under_way:
            request.cancel()
        with anyio.move_on_after(_CLOSE_S, shield=True):
            while self._under_way:
                self._ended = anyio.Event()
                await self._ended.wait()
            await session.close()

    async def request(
        self, path: str, parameters: dict[str, Any], *, body: bytes | None = None, timeout_s: float
    ) -> Answer:
        """Response to a GET, with ``body`` to a POST of transit.

        Raises: Unreachable, Unknown. Cancel: the node may have received it.
        """
        method = "GET" if body is None else "POST"
        given = {name: value for name, value in parameters.items() if value is not None}
        url = f"{self._prefix}{path}?{urlencode(given, quote_via=quote, safe='')}"
        headers = {} if body is None else {"Content-Type": TYPE}
        # A file is sent in pieces; bytes would be copied as a whole.
        data = None if body is None else BytesIO(body)
        try:
            with anyio.fail_after(timeout_s), self._until_closed() as session:
                async with (
                    self._slots,
                    session.request(method, url, data=data, headers=headers, allow_redirects=False) as response,
                ):
                    return Answer(response.status, response.content_type, await _whole(response))
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Unreachable(f"the XTDB node cannot be reached: {error}") from error
        except TimeoutError as error:
            raise Unknown(f"the XTDB node did not respond within {timeout_s:g} s", kind="timeout") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise Unknown(f"the response of the XTDB node was cut off: {error or type(error).__name__}") from error
        raise Unknown("the connection to the XTDB node was closed before the response")

    @contextmanager
    def _until_closed(self) -> Iterator[aiohttp.ClientSession]:
        """Session for one request, which is cancelled when another task closes the connections.

        Raises: Unreachable if they are closed.
        """
        if self._session is None:
            # A read of several requests may outlive the connection, which is closed when the node is lost.
            raise Unreachable("the connection to the XTDB node is closed")
        with anyio.CancelScope() as scope:
            self._under_way.add(scope)
            try:
                yield self._session
            finally:
                self._under_way.discard(scope)
                self._ended.set()


async def _whole(response: aiohttp.ClientResponse) -> bytes:
    chunks, size = [], 0
    async for chunk in response.content.iter_any():
        chunks.append(chunk)
        size += len(chunk)
        if size > ANSWER_BYTES_MAX:
            raise Unknown(f"the answer is longer than {ANSWER_BYTES_MAX} bytes", status=response.status)
    return b"".join(chunks)


# --- the circuit breaker ---

FAILURES_TOLERATED: Final = 3
"""Consecutive failures that open the circuit: one may be an accident, and a restart causes several."""

BACKOFF_MIN_S: Final = 1.0
BACKOFF_MAX_S: Final = 60.0

State = Literal["closed", "open", "half-open"]


class Breaker:
    """Circuit breaker. ``closed``: requests pass. ``open``: none passes for 1 s, doubled each time up to 60 s.
    ``half-open``: one request passes, and decides the next state."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._backoff_s = BACKOFF_MIN_S
        self._until: float | None = None
        self._trying = False

    @property
    def state(self) -> State:
        """State for the next request."""
        if self._until is None:
            return "closed"
        return "open" if self.retry_in_s > 0 else "half-open"

    @property
    def retry_in_s(self) -> float:
        """Seconds until a request passes; 0 if one passes now."""
        return 0.0 if self._until is None else max(0.0, self._until - self._clock.monotonic())

    @contextmanager
    def request(self) -> Iterator[None]:
        """Around one request: ``Unknown`` and ``Unreachable`` from inside are failures, any other end is a success, and
        cancellation is neither.

        Raises: Unreachable, before anything is sent, while the circuit is open or another request is trying.
        """
        trial = self._enter()
        try:
            yield
        except (Unknown, Unreachable):
            self._fail()
            raise
        except Exception:
            self._succeed()
            raise
        else:
            self._succeed()
        finally:
            if trial:
                self._trying = False

    def _enter(self) -> bool:
        if self._until is None:
            return False
        if self.retry_in_s > 0 or self._trying:
            # A time that changes would be logged as a new reason at each attempt.
            wait = f"a trial request follows within {BACKOFF_MAX_S:g} s"
            raise Unreachable(f"the circuit breaker is open after repeated failures of the XTDB node; {wait}")
        self._trying = True
        return True

    def _succeed(self) -> None:
        self._failures, self._backoff_s, self._until = 0, BACKOFF_MIN_S, None

    def _fail(self) -> None:
        self._failures += 1
        if self._until is not None:
            # Only the trial request lengthens the pause: requests sent before the circuit opened carry no news.
            if self.retry_in_s > 0:
                return
            self._backoff_s = min(BACKOFF_MAX_S, 2 * self._backoff_s)
        elif self._failures < FAILURES_TOLERATED:
            return
        self._until = self._clock.monotonic() + self._backoff_s
