"""What is remembered beside the journal of a projection: how far it came, and why rows were left out.

The node's cursor is the truth; this only makes a loss over there noticed, and tells the operator the reasons. It may be
missing or old.
"""

import os
from pathlib import Path

import msgspec

from ctxd.projection.cursor import Cursor


class Record(msgspec.Struct, frozen=True):
    """The newest cursor that was known to be committed, the newest row that ``reached`` the node, and by sequence why
    a row was left out. What the journal held before it was first projected counts as having reached it."""

    cursor: Cursor | None = None
    reached: int | None = None
    reasons: dict[int, str] = {}


def load(path: Path) -> Record:
    """The record at ``path``; an empty one if there is none that can be read."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except (OSError, msgspec.DecodeError):
        return Record()


def save(path: Path, record: Record) -> None:
    """Put ``record`` at ``path``, all of it or nothing.

    Raises: OSError.
    """
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(record))
    os.replace(fresh, path)
