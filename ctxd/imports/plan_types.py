"""Planned deltas that become commits, and the places where their chains begin."""

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from ctxd.capture.stream_checkpoints import Trigger

PLAN_VERSION: Final = 17
"""Version of the plan of a transcript. Files that another version has planned are read again, and keep its cuts
(``keeps_cuts``)."""

SPLITS_PLAN_VERSION: Final = 15
"""First version that does not split an escaped line feed when it splits a long line."""


class Repeated(NamedTuple):
    """A line to repeat at the start of a delta: byte ``start`` of ``source``."""

    source: str
    start: int


class Start(NamedTuple):
    """The place where a chain begins: the commit ``tip`` of ``source``, by its number, and lines to repeat after it.
    Without ``tip`` the chain has its own root. ``commit``: the id of a commit that an earlier import made."""

    source: str = ""
    tip: int | None = None
    repeated: tuple[Repeated, ...] = ()
    commit: str | None = None


class PlannedDelta(NamedTuple):
    """A planned commit of complete lines, after ``parent.repeated``. ``number`` counts from 1 in its source.

    ``agent``: the sub-agent whose chain it is in, empty for none. ``counts``: messages and tokens, None if they are not
    counted. ``at``: the latest time of an event of the chain so far, else of the source so far, in ms since 1970.
    ``is_continued``: the chain continues the session's own. ``is_of_session``: it has changes of the session, and is no
    part of the conversation.
    """

    number: int
    parent: Start
    agent: str
    trigger: "Trigger"
    lines: bytes
    is_compaction: bool
    summary: str
    counts: tuple[int, int] | None
    at: int | None
    is_continued: bool = False
    is_of_session: bool = False


class CopyEnd(NamedTuple):
    """The end of a copy: line ``place``, from 0, of the source at ``path`` is the last line copied, and ``own`` is the
    fingerprint of the next line of the copy, 0 while it has no other lines."""

    path: str
    place: int
    own: int


ROOT: Final = Start()

CONTINUED: Final = Start(tip=0)
"""Start of the first chain after the events that the session has from elsewhere: the session's own newest commit."""
