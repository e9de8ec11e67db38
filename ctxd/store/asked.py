"""What a write may ask for besides versions: that what entities say is destroyed."""

from collections.abc import Callable, Sequence

import msgspec


class Purge:
    """What a write asks to be purged: every version of ``ids``. ``keyed`` makes the hash that stands for a source hash,
    by which the same bytes are known again without being told. ``done`` is set once it is durable."""

    __slots__ = ("done", "ids", "keyed")

    def __init__(self, ids: Sequence[str], keyed: Callable[[str], str]) -> None:
        self.ids = tuple(ids)
        self.keyed = keyed
        self.done: Purged | None = None


class Purged(msgspec.Struct, frozen=True):
    """What was purged: the entities, how many versions of them, the BLAKE3 of each text; ``body`` is the record's."""

    ids: tuple[str, ...]
    versions: int
    texts: tuple[bytes, ...]
    body: bytes
