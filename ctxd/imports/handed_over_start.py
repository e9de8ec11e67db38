"""The start of a file that a hand-over wrote from a context: its label, and its recognition in a source."""

import re
from collections.abc import Mapping
from hashlib import blake2b
from typing import Final, NamedTuple

from ctxd.formats.harness_session import is_id_of_hand_over
from ctxd.transcripts.discovery import Transcript, lines_of
from ctxd.transcripts.harness_labels import HANDED_OVER
from ctxd.transcripts.record_decoding import as_text, record_of
from ctxd.transcripts.source_lines import open_source

_DIGEST_BYTES: Final = 16

_STATED: Final = re.compile(r"([0-9]{1,12}) ([0-9]{1,9}) ([0-9a-f]{32})")

_BYTES_AT_ONCE: Final = 256 * 1024
"""Bytes per read."""


class HandedOverStart(NamedTuple):
    """The start of a file written by a hand-over: bytes, number of events of its session by then, and digest."""

    size: int
    events: int
    digest: str

    @classmethod
    def read(cls, labels: Mapping[str, str]) -> "HandedOverStart | None":
        """Return the start recorded in the labels of a session; None for a session without such a file."""
        stated = _STATED.fullmatch(labels.get(HANDED_OVER, ""))
        return None if stated is None else cls(int(stated[1]), int(stated[2]), stated[3])

    @classmethod
    def of(cls, text: bytes, events: int) -> "HandedOverStart":
        """Return the start of a file that begins with ``text``."""
        return cls(len(text), events, blake2b(text, digest_size=_DIGEST_BYTES).hexdigest())

    @property
    def label(self) -> dict[str, str]:
        """The label that records it."""
        return {HANDED_OVER: f"{self.size} {self.events} {self.digest}"}


def handed_over(source: Transcript, labels: Mapping[str, str]) -> tuple[int, int]:
    """Return the size of the part at the start of a source that a hand-over wrote, and the number of events that its
    session had then; zeros if there is no such part or it was changed. In opencode's database, the part is recognised
    by the ids of its rows. Raises: OSError; as ``lines_of``."""
    stated = HandedOverStart.read(labels)
    if stated is None:
        return 0, 0
    if source.stored is not None:
        size = _size_of_hand_over(source)
        return (size, stated.events) if size else (0, 0)
    digest, left = blake2b(digest_size=_DIGEST_BYTES), stated.size
    with open_source(source.file) as file:
        while left and (piece := file.read(min(left, _BYTES_AT_ONCE))):
            digest.update(piece)
            left -= len(piece)
    return (stated.size, stated.events) if digest.hexdigest() == stated.digest else (0, 0)


def _size_of_hand_over(source: Transcript) -> int:
    size = 0
    for line in lines_of(source):
        record = line.record or {}
        id = as_text(record_of(record.get("info")).get("id")) or as_text(record.get("row"))
        if is_id_of_hand_over(id, source.native):
            size = line.end
        elif "session" not in record:
            break
    return size
