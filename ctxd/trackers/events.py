"""What a watcher tells, and why it refuses: values.

Directories and names are text as ``os.fsdecode`` gives it, so that bytes that are no UTF-8 survive.
"""

from typing import Literal

import msgspec

Hint = Literal["written", "touched", "gone", "directory"]
"""``written``: it is whole now. ``touched``: something of it changed, more may follow. ``gone``: the name went away.
``directory``: the name is that of a directory that came, went or was moved."""

Cause = Literal["missing", "limit", "denied", "remote", "escapes", "unanswered", "fleeting", "unsupported"]
"""Why a directory is not watched: it is not there; no watch is left; no permission; changes that others make, or its
file system itself, are not told here; its path leads out of the directory it is confined to; its file system does not
answer; looking changes what is there; anything else."""


class Changed(msgspec.Struct, frozen=True):
    """Something became of the entry ``name`` of ``directory``."""

    directory: str
    name: str
    hint: Hint


class Lost(msgspec.Struct, frozen=True):
    """The watch of ``directory`` has ended: it was deleted, moved or unmounted."""

    directory: str
    reason: str


class Overflowed(msgspec.Struct, frozen=True):
    """Events were dropped: any watched entry may have changed."""


Event = Changed | Lost | Overflowed


class Refused(msgspec.Struct, frozen=True):
    """Why a directory cannot be watched; ``why`` is for a person."""

    cause: Cause
    why: str
