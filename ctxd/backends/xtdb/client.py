"""Client of one XTDB 1.x node: submits transactions, reads documents, histories and query rows.

It uses the part of the protocol that ctxd's node and the official XTDB HTTP server share. Every call has a timeout,
every response is parsed strictly, and every failure states whether the request may have been applied (``messages``).
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final, TypeVar

import anyio

from ctxd.backends.xtdb import messages, transit
from ctxd.backends.xtdb.documents import NEWEST_VALID_TIME
from ctxd.backends.xtdb.http_connections import Answer, Breaker, HttpConnections
from ctxd.backends.xtdb.messages import (
    Behind,
    Delete,
    Doc,
    Evict,
    HistoryRow,
    Match,
    NodeStatus,
    Op,
    PutDoc,
    Refused,
    Unknown,
    encode_transaction,
    offload,
)
from ctxd.clock import Clock, SystemClock
from ctxd.task_groups import task_group
from ctxd.worker_threads import Lane

__all__ = ["Delete", "Doc", "Evict", "HistoryRow", "Match", "NodeStatus", "Op", "PutDoc", "XtdbClient"]

T = TypeVar("T")

BULK_IDS: Final = 2_000
"""Ids per query of a bulk read: enough that the query's overhead vanishes, few enough that several share the cores."""

IDS_PAGE: Final = 10_000
"""Ids per range query, which takes about a second."""

BULK_AT_ONCE: Final = 4
"""Concurrent queries of one bulk read, so that other requests get a connection."""

_TOO_MANY_BYTES: Final = "too-many-bytes"
"""The node's refusal of a query whose rows would take too much of its heap."""

_PARTIAL: Final = 206
"""Status of a history page that is not the last."""

_SPLIT: Final = 8
"""Number of queries that replace one refused for its size."""

_READ_HERE_BYTES: Final = 64 * 1024
"""Bytes of a response that is parsed on the loop, in a millisecond or two; longer ones are parsed on a thread."""

ANSWER_S: Final = 35.0
"""Seconds that a response may take: more than the 30 after which a node aborts a query."""

_DOCS: Final = "{:find [e (pull e [*])] :in [[e ...]] :timeout 30000}"
_FIRST: Final = "[(>= e low)]"
_NEXT: Final = "[(> e low)]"
_END: Final = "[(< e high)]"
_RANGE: Final = "{:find [e] :in [low high writer session] :where [[e :xt/id] %s] :limit %d :timeout 30000}"
_OF_WRITER: Final = "[e :writer writer]"
_OF_SESSION: Final = "[e :session session]"


class XtdbClient:
    """The node at ``url`` (``unix:/path`` or ``http://host:port``). An async context manager.

    Every call raises ``Refused``, ``Unreachable`` or ``Unknown``; every call may be cancelled, which leaves the outcome
    of ``submit`` unknown. ``valid_time`` and returned times are ms since 1970; ``tx_id`` is the node's own number of a
    transaction, ``None`` for the newest completed one.
    """

    def __init__(self, url: str, *, clock: Clock | None = None, answer_s: float = ANSWER_S) -> None:
        """``answer_s`` bounds every wait for a response, in addition to the time that the node itself may wait.

        Raises: ValueError for any other address.
        """
        self.url = url
        self._answer_s = answer_s
        self.breaker = Breaker(clock or SystemClock())
        self._http = HttpConnections(url)
        self._awaiter = Awaiter(self._await)
        self._readers = Lane("xtdb.replies")

    async def __aenter__(self) -> "XtdbClient":
        await self._http.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.__aexit__(kind, error, trace)

    # --- the node ---

    async def status(self) -> NodeStatus:
        """Status of the node. The circuit breaker neither blocks nor counts this request."""
        answer = await self._http.request("status", {}, timeout_s=self._answer_s)
        return await self._read(answer, messages.to_status)

    async def latest_completed(self) -> int | None:
        """Newest transaction visible to reads; ``None`` before the first."""
        completed = await self._ask_if_any("latest-completed-tx", {}, _tx_id)
        if completed is not None and completed < self._awaiter.completed:
            # This is another node, or an older copy, so the known state is invalid.
            self._awaiter.forget()
        return completed

    async def sync(self, timeout_s: float) -> None:
        """Return once reads see everything that was in the log. Raises: Unknown if that takes longer."""
        parameters = {"timeout": int(timeout_s * 1000)}
        await self._ask_if_any("sync", parameters, messages.strip_namespaces, waits_s=timeout_s)

    # --- transactions ---

    async def submit(self, ops: Sequence[Op]) -> int:
        """Append ``ops`` to the log as one transaction. Returns: its id, for ``committed``."""
        body = encode_transaction(ops)
        with self.breaker.request():
            answer = await self._http.request("submit-tx", {}, body=body, timeout_s=self._answer_s)
            tx_id = await self._read(answer, _tx_id, success=202)
        if tx_id <= self._awaiter.completed:
            # Ids only rise, so this may be another node than the one that completed it.
            self._awaiter.forget()
        return tx_id

    async def committed(self, tx_id: int, *, timeout_s: float) -> bool:
        """True if transaction ``tx_id`` was applied, False if a match failed; returns once the node has indexed it.

        Raises: Unknown if that takes longer than ``timeout_s``.
        """
        if not await self._awaiter.wait_until_completed(tx_id, timeout_s=timeout_s):
            raise Unknown(f"transaction {tx_id} is not indexed after {timeout_s:g} s", kind="timeout")
        try:
            return await self._request("tx-committed", {"tx-id": tx_id}, messages.to_committed)
        except Behind as error:
            self._awaiter.forget()
            raise Unknown(f"the node has lost transaction {tx_id}: {error.message}", kind=error.kind) from error

    async def _await(self, tx_id: int, timeout_s: float) -> int | None:
        parameters = {"tx-id": tx_id, "timeout": max(1, int(timeout_s * 1000))}
        with self.breaker.request():
            answer = await self._http.request("await-tx", parameters, timeout_s=timeout_s + self._answer_s)
            if not messages.too_early(answer.status, answer.media_type, answer.body):
                return await self._read(answer, _tx_id)
        return await self.latest_completed()

    # --- documents ---

    async def entity(self, id: str, *, valid_time: int, tx_id: int | None = None) -> Doc | None:
        """Document of ``id``; ``None`` if it does not exist."""
        parameters = {"eid": id, "valid-time": _date(valid_time), "tx-id": tx_id}
        return await self._ask_if_any("entity", parameters, lambda doc: messages.to_entity(doc, id))

    async def entities(self, ids: Iterable[str], *, valid_time: int, tx_id: int | None = None) -> dict[str, Doc]:
        """Documents of ``ids`` by id, without those that do not exist."""
        return await self._bulk(_DOCS, ids, messages.to_docs, valid_time, tx_id)

    async def _bulk(
        self, query: str, ids: Iterable[str], read: Callable[[Any], dict[str, T]], valid_time: int, tx_id: int | None
    ) -> dict[str, T]:
        async def query_for(chunk: list[str]) -> dict[str, T]:
            try:
                return await self._query(
                    query, [chunk], lambda rows: messages.asked_for(read(rows), chunk), valid_time, tx_id
                )
            except Refused as error:
                if error.kind != _TOO_MANY_BYTES or len(chunk) == 1:
                    raise
            found: dict[str, T] = {}
            size = -(-len(chunk) // _SPLIT)
            for first in range(0, len(chunk), size):
                found |= await query_for(chunk[first : first + size])
            return found

        wanted = list(dict.fromkeys(ids))
        if len(wanted) <= BULK_IDS:
            return await query_for(wanted) if wanted else {}
        found: dict[str, T] = {}
        slots = anyio.Semaphore(BULK_AT_ONCE)

        async def request(chunk: list[str]) -> None:
            async with slots:
                found.update(await query_for(chunk))

        async with task_group() as group:
            for first in range(0, len(wanted), BULK_IDS):
                group.start_soon(request, wanted[first : first + BULK_IDS])
        return found

    async def history(
        self,
        id: str,
        *,
        valid_time: int = NEWEST_VALID_TIME,
        tx_id: int | None = None,
    ) -> list[HistoryRow]:
        """The rows of ``id`` at or below ``valid_time`` and ``tx_id``, by (valid time, transaction), corrections and
        deletions included."""
        found: list[HistoryRow] = []
        left: list[tuple[int | None, int | None, int | None]] = [(None, None, None)]
        while left:
            start, end, from_tx = left.pop()
            if start is not None and end is not None and start > end:
                continue
            parameters = {
                "eid": id,
                "history": "true",
                "sort-order": "asc",
                "with-docs": "true",
                "with-corrections": "true",
                "partial": "true",
                "valid-time": _date(valid_time),
                "tx-id": tx_id,
                "start-valid-time": None if start is None else _date(start),
                # The node's end is exclusive.
                "end-valid-time": None if end is None else _date(end + 1),
                "start-tx-id": from_tx,
            }
            rows, reached = await self._history_page(id, parameters)
            found += rows
            if reached is not None:
                at, reached_tx = reached
                if (at, reached_tx) < (at if start is None else start, from_tx or 0):
                    raise Unknown("a page of a history ends before it begins", status=_PARTIAL)
                left += [(at + 1, end, None), (at, at, reached_tx + 1)]
        return found

    async def _history_page(
        self, id: str, parameters: dict[str, Any]
    ) -> tuple[list[HistoryRow], tuple[int, int] | None]:
        """Rows of a history, and the valid time and transaction that they reach if the node has more."""
        with self.breaker.request():
            answer = await self._http.request("entity", parameters, timeout_s=self._answer_s)
            is_partial = answer.status == _PARTIAL
            return await self._read(
                answer,
                lambda read: (messages.to_history(read, id), messages.reached(read) if is_partial else None),
                success=_PARTIAL if is_partial else 200,
            )

    async def ids(
        self,
        prefix: str,
        *,
        after: str | None = None,
        limit: int | None = None,
        writer: str | None = None,
        session: str | None = None,
        valid_time: int,
        tx_id: int | None = None,
    ) -> list[str]:
        """Ids of existing entities that start with ``prefix``, by code point, after ``after``.

        With ``writer`` only entities whose newest version that writer's journal put; with ``session`` only those whose
        newest version is of that session. Ids of more than 224 bytes are left out, because a node does not order them.
        The pages of one call are read as of ``tx_id``; without it, each as of its own time.
        """
        high = beyond(prefix)
        wanted = [_END] if high is not None else []
        wanted += [_OF_WRITER] if writer is not None else []
        wanted += [_OF_SESSION] if session is not None else []
        found: list[str] = []
        low, bound = (prefix, _FIRST) if after is None or after < prefix else (after, _NEXT)
        while limit is None or len(found) < limit:
            size = IDS_PAGE if limit is None else min(IDS_PAGE, limit - len(found))
            query = _RANGE % (" ".join([bound, *wanted]), size)
            page = await self._query(query, [low, high, writer, session], messages.to_ids, valid_time, tx_id)
            found += sorted(page)
            if len(page) < size:
                break
            low, bound = found[-1], _NEXT
        return found

    async def query(
        self, text: str, arguments: Sequence[Any], *, valid_time: int, tx_id: int, timeout_s: float
    ) -> list[list[Any]]:
        """Return the rows of the Datalog query ``text``, whose ``:in`` takes ``arguments``.

        The circuit breaker does not count this request: a slow or wrong query does not mean a bad node. Raises: Unknown
        with kind ``timeout`` after ``timeout_s``.
        """
        body = _query_body(text, arguments)
        parameters = {"valid-time": _date(valid_time), "tx-id": tx_id}
        answer = await self._http.request("query", parameters, body=body, timeout_s=timeout_s)
        return await self._read(answer, messages.to_rows)

    # --- requests ---

    async def _query(
        self, query: str, arguments: list[Any], read: Callable[[Any], T], valid_time: int, tx_id: int | None
    ) -> T:
        body = _query_body(query, arguments)
        parameters = {"valid-time": _date(valid_time), "tx-id": tx_id}
        with self.breaker.request():
            answer = await self._http.request("query", parameters, body=body, timeout_s=self._answer_s)
            return await self._read(answer, read)

    async def _request(self, path: str, parameters: dict[str, Any], read: Callable[[Any], T]) -> T:
        with self.breaker.request():
            answer = await self._http.request(path, parameters, timeout_s=self._answer_s)
            return await self._read(answer, read)

    async def _ask_if_any(
        self, path: str, parameters: dict[str, Any], read: Callable[[Any], T], *, waits_s: float = 0.0
    ) -> T | None:
        with self.breaker.request():
            answer = await self._http.request(path, parameters, timeout_s=waits_s + self._answer_s)
            if messages.absent(answer.status, answer.media_type, answer.body):
                return None
            return await self._read(answer, read)

    async def _read(self, answer: Answer, read: Callable[[Any], T], *, success: int = 200) -> T:
        if len(answer.body) <= _READ_HERE_BYTES:
            return _read(answer, read, success)
        return await offload(lambda: _read(answer, read, success), self._readers)


def _read(answer: Answer, read: Callable[[Any], T], success: int) -> T:
    if answer.status != success:
        raise messages.failure(answer.status, answer.media_type, answer.body)
    value = messages.parse(answer.status, answer.media_type, answer.body)
    try:
        return read(value)
    except (ValueError, TypeError, KeyError) as error:
        raise Unknown(f"unexpected response: {error}", status=answer.status) from error


def _query_body(query: str, arguments: Sequence[Any]) -> bytes:
    return b'{"~:query":%s,"~:in-args":%s}' % (transit.encode(query), transit.encode(list(arguments)))


def _tx_id(read: Any) -> int:  # noqa: ANN401
    return messages.number(read, "tx-id")


def _date(milliseconds: int) -> str:
    clamped = min(milliseconds, NEWEST_VALID_TIME)
    seconds, rest = divmod(clamped, 1000)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03d}Z"


def beyond(prefix: str) -> str | None:
    """Least text above every text that starts with ``prefix``; ``None`` if no text is."""
    for at in range(len(prefix) - 1, -1, -1):
        code = ord(prefix[at])
        if code < 0x10FFFF:
            # Surrogates are not text: the next character after U+D7FF is U+E000.
            return prefix[:at] + chr(0xE000 if code == 0xD7FF else code + 1)
    return None


LAP_S: Final = 2.0
"""Maximum seconds that one request waits; then the requests of other tasks are considered again."""


class Awaiter:
    """Wakes every task that waits for a transaction at or below the newest one that the node has completed.

    It has no task of its own: a waiting task that finds no request in flight sends one, for the highest wanted
    transaction.
    """

    def __init__(self, request: Callable[[int, float], Awaitable[int | None]]) -> None:
        """``request(tx_id, timeout_s)`` returns the latest completed transaction, at the latest after ``timeout_s``."""
        self._request = request
        self._wanted: Counter[int] = Counter()
        self._turn: anyio.Event | None = None
        self.completed = -1

    def note(self, tx_id: int) -> None:
        """Note that the node has completed ``tx_id``."""
        self.completed = max(self.completed, tx_id)

    def forget(self) -> None:
        """Assume that nothing is completed: the node may be a different one, or have lost transactions."""
        self.completed = -1

    async def wait_until_completed(self, tx_id: int, *, timeout_s: float) -> bool:
        """Wait until the node has completed ``tx_id``. Returns: False if that takes longer than ``timeout_s``.

        Raises: the errors of ``request``, in the task that sent it; other tasks send another one. Cancel: safe.
        """
        if tx_id <= self.completed:
            return True
        self._wanted[tx_id] += 1
        try:
            with anyio.move_on_after(timeout_s) as scope:
                while tx_id > self.completed:
                    if self._turn is not None:
                        await self._turn.wait()
                    else:
                        await self._lead(min(LAP_S, max(0.0, scope.deadline - anyio.current_time())))
        finally:
            self._wanted[tx_id] -= 1
            if not self._wanted[tx_id]:
                del self._wanted[tx_id]
        return tx_id <= self.completed

    async def _lead(self, lap_s: float) -> None:
        turn = self._turn = anyio.Event()
        try:
            completed = await self._request(max(self._wanted), lap_s)
            if completed is not None:
                self.note(completed)
        finally:
            self._turn = None
            turn.set()
