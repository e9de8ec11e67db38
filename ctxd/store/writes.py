"""What goes through the door: a write, what waits for its flush, and the receipt for it."""

from collections.abc import Callable

import anyio
import msgspec

from ctxd.objects.document import Document
from ctxd.store.asked import Purge
from ctxd_protocol.objects import Receipt


class Write(msgspec.Struct, frozen=True, kw_only=True):
    """One call's worth of versions: all of it becomes durable, or none.

    ``kind`` is the method's name. ``request`` is a digest of the parameters, compared when an ``op_id`` comes again.
    ``result`` is the encoded result without receipt, answered to a resend. ``knows`` names objects that enter the index
    of ``session``. ``deletes`` names entities that are no more from then on; none of them is in ``puts``. ``floor_vt``
    is the least valid time, in ms: one above the newest of every entity that is written again or deleted.
    ``signatures`` keeps a file's stat signature beside its version, as a cache that decides whether to read it again.
    ``purge``: destroy what entities say; such a write puts nothing.
    """

    kind: str
    principal: str
    session: str | None = None
    op_id: str | None = None
    request: bytes = b""
    result: bytes = b""
    puts: tuple[Document, ...] = ()
    deletes: tuple[str, ...] = ()
    knows: tuple[str, ...] = ()
    signatures: dict[str, bytes] = {}
    floor_vt: int = 0
    purge: Purge | None = None


class Pending:
    """A write that was accepted and waits for its flush. ``seq`` and ``vt`` are final once it is durable; ``size`` is
    roughly what it takes in the journal, in bytes."""

    __slots__ = ("_callbacks", "_event", "error", "receipt", "seq", "size", "vt")

    def __init__(self, seq: int, vt: int, size: int) -> None:
        self.seq = seq
        self.vt = vt
        self.size = size
        self.receipt: Receipt | None = None
        self.error: Exception | None = None
        self._callbacks: list[Callable[[Pending], None]] = []
        self._event: anyio.Event | None = None

    @property
    def done(self) -> bool:
        """Whether the write is durable or has failed."""
        return self.receipt is not None or self.error is not None

    def on_done(self, callback: Callable[["Pending"], None]) -> None:
        """Have ``callback`` called on the loop once this is done; at once if it is."""
        if self.done:
            callback(self)
        else:
            self._callbacks.append(callback)

    def resolve(self, receipt: Receipt | None, error: Exception | None = None) -> tuple[Exception, ...]:
        """End the wait with a receipt or an error. Called once, on the loop, by the store.

        Returns: what callbacks raised. All are called, and who waits goes on, whatever one of them does.
        """
        assert not self.done, "a write is resolved once"
        self.receipt, self.error = receipt, error
        raised: list[Exception] = []
        for callback in self._callbacks:
            try:
                callback(self)
            except Exception as fault:  # noqa: BLE001 - one caller's fault is not that of its neighbours' writes
                raised.append(fault)
        self._callbacks.clear()
        if self._event is not None:
            self._event.set()
        return tuple(raised)

    async def wait(self) -> Receipt:
        """The receipt, once the write is durable.

        Raises: the store's ``CtxdError`` if it failed. Cancel: safe; the write goes on.
        """
        if not self.done:
            if self._event is None:
                self._event = anyio.Event()
            await self._event.wait()
        if self.error is not None:
            raise self.error
        assert self.receipt is not None
        return self.receipt
