"""Runs of small segments, kept a second time in one text: so a long session opens by reading few rows.

Segment ``n`` carries a bundle if ``n + 1`` is a multiple of ``RUN``: the deltas of the segments of its run before it,
each with the journal sequence of its write. A delta of more than ``LARGE_BYTES`` is left out and read from its own
segment, so a bundle costs at most what its small segments cost. Nothing is only in a bundle: reads of the past do
without.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from ctxd.sessions.delta import Delta

RUN: Final = 256
"""Segments of one run. More would make fewer rows, and a longer tail that is read one by one."""

LARGE_BYTES: Final = 2048
"""Bytes beyond which reading a delta again costs little beside its size. Bounds what chats cost twice."""


class Bundle(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """``seqs``: the write of each segment of the run but the last. ``deltas``: theirs, null for a large one."""

    seqs: tuple[int, ...]
    deltas: tuple[Delta | None, ...]


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Bundle).decode


def carries_bundle(number: int) -> bool:
    """Whether segment ``number`` carries one."""
    return (number + 1) % RUN == 0


def carriers(segments: int) -> range:
    """The numbers of the segments with a bundle, of a session that has so many segments."""
    return range(RUN - 1, segments, RUN)


def to_text(seqs: Sequence[int], deltas: Sequence[Delta | None]) -> str:
    """The bundle of a run's deltas but the last, null for one left out, and of the sequences of their writes."""
    encoded = [_encode(delta) for delta in deltas]
    kept = [msgspec.Raw(text if len(text) <= LARGE_BYTES else b"null") for text in encoded]
    return _encode((seqs, kept)).decode()


def from_text(text: str) -> Bundle:
    """The bundle that ``to_text`` made. Raises: msgspec.DecodeError if it is none."""
    return _decode(text)
