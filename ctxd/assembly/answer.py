"""The answer to who asks for a context: made once, encoded once for each of its forms."""

import msgspec

from ctxd.assembly.composition import Composition
from ctxd.assembly.record import Recorded
from ctxd.store.writes import Pending
from ctxd_protocol.context import AssembledContext, Block
from ctxd_protocol.objects import Receipt


class Assembled:
    """One recorded assembly as a client gets it. ``pending``: the write that recorded it, null if that was before."""

    __slots__ = ("_encoded", "context", "pending")

    def __init__(self, context: AssembledContext, pending: Pending | None = None) -> None:
        self.context = context
        self.pending = pending
        self._encoded: dict[tuple[bool, bool], msgspec.Raw] = {}

    @property
    def barrier(self) -> Pending | None:
        """The write that the answer has to wait for, null if none."""
        return None if self.pending is None or self.pending.receipt is not None else self.pending

    def shaped(self, *, text: bool = True, blocks: bool = True) -> AssembledContext:
        """The context with or without its text and its blocks."""
        if text and blocks:
            return self.context
        return msgspec.structs.replace(
            self.context, text=self.context.text if text else "", blocks=self.context.blocks if blocks else ()
        )

    def with_blocks(self, blocks: tuple[Block, ...]) -> "Assembled":
        """The same answer with other blocks."""
        return type(self)(msgspec.structs.replace(self.context, blocks=blocks), self.pending)

    def encoded(self, receipt: Receipt | None = None, *, text: bool = True, blocks: bool = True) -> msgspec.Raw:
        """The same as JSON; encoded at the first time only. ``receipt`` is of no write of this call, and left out."""
        made = self._encoded.get((text, blocks))
        if made is None:
            made = msgspec.Raw(msgspec.json.encode(self.shaped(text=text, blocks=blocks)))
            self._encoded[text, blocks] = made
        return made


class Written(Assembled):
    """The answer to the call that recorded the assembly: the one that carries the receipt of that write."""

    __slots__ = ()

    @property
    def barrier(self) -> Pending | None:
        """The write, also once it is durable: the receipt is in it."""
        return self.pending

    def encoded(self, receipt: Receipt | None = None, *, text: bool = True, blocks: bool = True) -> msgspec.Raw:
        """As JSON, with the write's receipt."""
        shaped = msgspec.structs.replace(self.shaped(text=text, blocks=blocks), receipt=receipt)
        return msgspec.Raw(msgspec.json.encode(shaped))


def context_of(session: str, recorded: Recorded, composition: Composition, text: str) -> AssembledContext:
    """The answer for ``recorded``, of which ``composition`` is the context and ``text`` its text."""
    return AssembledContext(
        session=session,
        number=recorded.number,
        context_id=recorded.context_id,
        turn=recorded.turn,
        text=text,
        sha256=recorded.sha256,
        bytes=recorded.bytes,
        tokens=recorded.tokens,
        sections=composition.sections(),
        blocks=composition.blocks(),
        plan=composition.plan,
        stable_prefix=recorded.stable_prefix,
        assembled_at=recorded.assembled_at,
    )
