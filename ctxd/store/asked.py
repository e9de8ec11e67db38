"""What a write may ask for besides versions: that what entities say is destroyed."""

from collections.abc import Callable, Sequence

import msgspec

from ctxd.objects.document import Document

Restate = Callable[[Document], Document | None]
"""What stands for a version, given with its content, once a part of what it says is purged; null if it has none."""


class Purge:
    """What a write asks to be purged: every version of ``ids``, and what ``restate`` takes out of every version of the
    entities ``within``: ids, or how all begin that have a number after ``#``. ``keyed`` makes the hash that stands for
    a source hash, by which the same bytes are known again without being told. ``sharing`` gives what stands for a
    version of another entity that has a text of theirs and cannot do without one; null: it is purged as they are.
    ``done`` is set once it is durable."""

    __slots__ = ("done", "ids", "keyed", "restate", "said", "sharing", "within")

    def __init__(
        self,
        ids: Sequence[str],
        keyed: Callable[[str], str],
        *,
        within: Sequence[str] = (),
        restate: Restate | None = None,
        sharing: Restate | None = None,
        said: int = 0,
    ) -> None:
        """``restate`` and ``sharing`` are called on the committing thread, and are quick and pure; ``restate`` takes
        away ``said`` texts."""
        self.ids = tuple(ids)
        self.keyed = keyed
        self.within = tuple(within)
        self.restate = restate
        self.sharing = sharing
        self.said = said
        self.done: Purged | None = None


class Purged(msgspec.Struct, frozen=True):
    """What was purged: the entities, how many versions of them, the BLAKE3 of each text that is kept no more, how many
    texts it was that they said; ``body`` is the record's."""

    ids: tuple[str, ...]
    versions: int
    texts: tuple[bytes, ...]
    said: int
    body: bytes
