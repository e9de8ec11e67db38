"""Operation ids in memory: which writes are under way, and which ended a short while ago. Older ones are in the
journal."""

from collections import OrderedDict

from ctxd.errors import CtxdError
from ctxd.store.journal import Body
from ctxd.store.writes import QueuedWrite, Replay, Write
from ctxd_protocol.objects import Receipt

Operation = tuple[str, str]
"""A principal and its operation id."""


def operation(write: Write) -> Operation | None:
    """Return the operation of ``write``; None if it has no id."""
    return None if write.op_id is None else (write.principal, write.op_id)


def op_text(key: Operation) -> str:
    """``key`` as one text."""
    return f"{key[0]}\0{key[1]}"


def replay_of(key: Operation, request: bytes, found: QueuedWrite | tuple[Body, Receipt]) -> Replay:
    """The answer to a resend of the write that was ``found`` under ``key``.

    Raises: CtxdError ``idempotency_mismatch`` if that had another ``request``.
    """
    if isinstance(found, QueuedWrite):
        was, replay = found.write.request, Replay(found.write.result, found.pending, None)
    else:
        body, receipt = found
        was, replay = body.request, Replay(body.result, None, receipt)
    # Of a write that was purged, the digest of its parameters is gone as well.
    if was and was != request:
        raise CtxdError(
            "idempotency_mismatch",
            f"operation id {key[1]} was used with other parameters",
            hint="Take a new op_id for a new call.",
            outcome="not_applied",
        )
    return replay


class RecentOperations:
    """The operations that memory knows. At most ``limit`` finished ones are remembered."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._under_way: dict[Operation, QueuedWrite] = {}
        self._finished: OrderedDict[Operation, None] = OrderedDict()

    def under_way(self, key: Operation) -> QueuedWrite | None:
        """Return the write under ``key`` that is not durable yet; None without one."""
        return self._under_way.get(key)

    def ended(self, key: Operation) -> bool:
        """Return True if the write under ``key`` became durable a short while ago."""
        return key in self._finished

    def require_new(self, key: Operation | None) -> None:
        """Raises: CtxdError ``cancelled``, to be sent again, if ``key`` was begun in the meantime."""
        if key in self._under_way or key in self._finished:
            raise CtxdError("cancelled", "this write was made already", hint="Send it again.", outcome="unknown")

    def begin(self, entry: QueuedWrite) -> None:
        """Remember ``entry`` until it ends."""
        if (key := operation(entry.write)) is not None:
            self._under_way[key] = entry

    def end(self, entry: QueuedWrite, *, durable: bool) -> None:
        """Record that ``entry`` is durable, or that it was lost."""
        if (key := operation(entry.write)) is None:
            return
        self._under_way.pop(key, None)
        if durable:
            self._finished[key] = None
            if len(self._finished) > self._limit:
                self._finished.popitem(last=False)
