"""What the store answers with, beside versions."""

from typing import Final

import msgspec

from ctxd.store.writes import Pending
from ctxd_protocol.objects import Receipt


class StoreFailed(Exception):
    """The disk failed under the journal. The process must end with exit code 74; what is durable shows at the next
    start."""


class Missing:
    """The type of ``MISSING``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = Missing()
"""The cache does not know; null would say that there is no such object."""


class Replay(msgspec.Struct, frozen=True):
    """What a write answered that came before under the same operation id.

    ``result`` is the encoded result without receipt. ``receipt`` is the original one, null while ``pending`` waits
    for its flush; ``pending`` is null once the write is durable.
    """

    result: bytes
    pending: Pending | None
    receipt: Receipt | None


class Change(msgspec.Struct, frozen=True):
    """One journal row: who wrote, when (``vt``, ms since 1970), and the versions it put as ``(entity id, valid
    time)``."""

    seq: int
    kind: str
    session: str | None
    principal: str
    vt: int
    puts: tuple[tuple[str, int], ...]
