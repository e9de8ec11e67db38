"""What one write changes in a session, and the whole of a session's sets, as they are kept in segments.

Owns the stored field names: they are one letter each, stay as they are for ever, and a field at its default is left
out. Knows nothing of how a change is decided or applied.
"""

from typing import Any, Final

import msgspec

from ctxd_protocol.sessions import Message


class Snapshot(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "index": "i",
        "pool": "p",
        "active": "a",
        "pinned": "k",
        "read": "r",
        "turn": "n",
        "calls": "c",
        "recency": "t",
        "chosen": "e",
    },
):
    """A session's sets whole, without its chat. An object is given by its place in ``index``.

    ``read`` pairs an object with the number of the segment that first showed its content; ``calls`` a turn with its
    count of tool calls; ``recency`` an active tool call with its turn and its place in that; ``chosen`` an active
    object with the turn in which it was activated by request.
    """

    index: tuple[str, ...] = ()
    pool: tuple[int, ...] = ()
    active: tuple[int, ...] = ()
    pinned: tuple[int, ...] = ()
    read: tuple[tuple[int, int], ...] = ()
    turn: int = 0
    calls: tuple[tuple[int, int], ...] = ()
    recency: tuple[tuple[int, int, int], ...] = ()
    chosen: tuple[tuple[int, int], ...] = ()


class Delta(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    omit_defaults=True,
    gc=False,
    rename={
        "snapshot": "s",
        "messages": "m",
        "called": "t",
        "collapsed": "c",
        "read": "r",
        "discovered": "d",
        "activated": "a",
        "shown": "v",
        "pinned": "k",
        "unpinned": "u",
        "deactivated": "x",
        "hidden": "h",
    },
):
    """One write's changes, made in the order of the fields; object ids but for ``snapshot`` and ``messages``.

    ``snapshot``: the sets as they were before this delta. ``called``: tool calls that came in; ``collapsed``: those
    that left the window then. ``read``: objects whose content was shown to the agent. ``discovered``: objects known by
    name. ``activated``, ``deactivated``: by request. ``shown``, ``hidden``: in and out of the metadata pool by request.
    """

    snapshot: Snapshot | None = None
    messages: tuple[Message, ...] = ()
    called: tuple[str, ...] = ()
    collapsed: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    discovered: tuple[str, ...] = ()
    activated: tuple[str, ...] = ()
    shown: tuple[str, ...] = ()
    pinned: tuple[str, ...] = ()
    unpinned: tuple[str, ...] = ()
    deactivated: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()

    @property
    def has_requests(self) -> bool:
        """Whether it holds more than messages, tool calls and reads, which is what most writes are."""
        return bool(
            self.discovered
            or self.activated
            or self.shown
            or self.pinned
            or self.unpinned
            or self.deactivated
            or self.hidden
        )


NOTHING: Final = Delta()
"""The delta that changes nothing; it is not written."""


def to_payload(delta: Delta) -> dict[str, Any]:
    """``delta`` as a segment's payload."""
    payload: dict[str, Any] = msgspec.to_builtins(delta)
    return payload


def from_payload(payload: dict[str, Any]) -> Delta:
    """The delta of a segment. Raises: msgspec.ValidationError if ``payload`` is none."""
    return msgspec.convert(payload, Delta)
