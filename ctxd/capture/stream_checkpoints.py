"""Checkpoints of a running agent: its events in deltas of ``events-v1``, cut as a policy decides. Pure.

An event is encoded when it arrives and kept until its delta is cut, so that memory holds one delta.
"""

from collections.abc import Iterator, Sequence, Set
from typing import Final, Literal, NamedTuple, get_args

from ctxd.formats.cbor_array import encoded, joined
from ctxd.formats.compacted_window import replaces
from ctxd.formats.delta_formats import measure_event, tokens_of
from ctxd.formats.events_v1 import encoded_items, item_of
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    OpaqueEvent,
    ResponseEvent,
    SystemEvent,
    ToolCallEvent,
    ToolResultEvent,
)

Trigger = Literal["turn_boundary", "tool_call", "compaction", "session_end", "explicit"]
"""Reason for a checkpoint. ``turn_boundary``: the agent has answered or calls a tool. ``tool_call``: a tool
returned."""

TRIGGERS: Final[tuple[Trigger, ...]] = get_args(Trigger)

_RANKED: Final[tuple[Trigger, ...]] = ("turn_boundary", "tool_call", "explicit", "compaction", "session_end")

DEFAULT_POLICY: Final[frozenset[Trigger]] = frozenset({"turn_boundary", "compaction", "session_end"})

DELTA_BYTES_MAX: Final = 6 * 1024 * 1024
"""Maximum bytes of a delta: in base64, it fits into a line of the protocol."""

_SUMMARY_CHARS_MAX: Final = 16_000
_COMPACTIONS: Final = frozenset({"compact_boundary", "microcompact_boundary"})


class Checkpoint(NamedTuple):
    """A planned commit: its trigger, and its delta in ``events-v1``.

    ``is_compaction``: the delta is the summary that replaces everything before it, with the messages that it keeps, and
    ``summary`` its text.
    """

    trigger: Trigger
    delta: bytes
    messages: int
    tokens: int
    is_compaction: bool = False
    summary: str = ""


class CheckpointTracker:
    """Events since the last checkpoint, and the policy that decides when the next one is due.

    ``every``: number of turn boundaries for one checkpoint. A delta without events is never made. ``bytes_max``:
    approximate bytes at which a delta is cut in any case. Only events of ``sidechain``, None for the main conversation,
    trigger a checkpoint.
    """

    def __init__(
        self,
        policy: Set[Trigger] = DEFAULT_POLICY,
        *,
        every: int = 1,
        bytes_max: int = DELTA_BYTES_MAX,
        sidechain: str | None = None,
    ) -> None:
        self._sidechain = sidechain
        self._policy = policy
        self._every = every
        self._bytes_max = bytes_max
        self._boundaries = 0
        self._items: list[bytes] = []
        self._size = self._messages = self._text_bytes = 0

    def add(self, events: list[Event], kept: Sequence[Event] = ()) -> Iterator[Checkpoint]:
        """Take the events of one line, and yield the checkpoints that are due after it. ``kept``: earlier messages that
        a compaction in it keeps.

        A compaction is a checkpoint of its own after the delta before it, whatever the policy: without it the chain
        would grow without bound. A compaction without a summary is an ordinary event.
        """
        trigger: Trigger | None = None
        for event in events:
            if replaces(event) and event.sidechain == self._sidechain:
                yield from self.cut("compaction")
                made, rest = _compaction(event, kept, self._bytes_max)
                yield made
                for each in rest:
                    yield from self._take(each)
                continue
            if event.sidechain == self._sidechain:
                trigger = max(trigger, _trigger(event), key=rank)
            yield from self._take(event)
        if trigger is not None and self._is_due(trigger):
            yield from self.cut(trigger)

    def cut(self, trigger: Trigger) -> Iterator[Checkpoint]:
        """Yield a checkpoint of the events since the last one, if there are any."""
        if self._items:
            yield Checkpoint(trigger, joined(self._items), self._messages, tokens_of(self._text_bytes))
            self._items = []
            self._size = self._messages = self._text_bytes = self._boundaries = 0

    def _take(self, event: Event) -> Iterator[Checkpoint]:
        messages, size = measure_event(event)
        self._messages += messages
        self._text_bytes += size
        for item in encoded_items(event, self._bytes_max):
            if self._size + len(item) > self._bytes_max:
                yield from self.cut("explicit")
            self._items.append(item)
            self._size += len(item)

    def _is_due(self, trigger: Trigger) -> bool:
        if trigger not in self._policy:
            return False
        if trigger != "turn_boundary":
            return True
        self._boundaries += 1
        return self._boundaries >= self._every


def _trigger(event: Event) -> Trigger | None:
    """Return the trigger of an event, None for an event that triggers nothing."""
    match event:
        case ToolCallEvent(meta={"server_tool": True}):
            return None
        case ResponseEvent() | ToolCallEvent():
            return "turn_boundary"
        case ToolResultEvent():
            return "tool_call"
        case CompactionEvent():
            return "compaction"
        case SystemEvent() if event.kind in _COMPACTIONS:
            return "compaction"
        case OpaqueEvent(kind="metric"):
            return "session_end"
        case _:
            return None


def rank(trigger: Trigger | None) -> int:
    """Return the rank of a trigger: of several at the same time, the checkpoint has the highest."""
    return -1 if trigger is None else _RANKED.index(trigger)


def _compaction(event: CompactionEvent, kept: Sequence[Event], bytes_max: int) -> tuple[Checkpoint, Sequence[Event]]:
    """Return the checkpoint of ``event`` and of those of the messages ``kept`` that its delta has room for, and the
    other ones."""
    # A walk to the root, which has the kept messages before it, leaves out the whole delta.
    items, length, count = [encoded(item_of(event))], 0, 0
    for each in kept:
        item = encoded(item_of(each))
        length += len(item)
        if len(items[0]) + length > bytes_max:
            break
        items.append(item)
        count += 1
    measured = [measure_event(each) for each in (event, *kept[:count])]
    messages, size = sum(number for number, _ in measured), sum(size for _, size in measured)
    made = Checkpoint("compaction", joined(items), messages, tokens_of(size), True, event.summary[:_SUMMARY_CHARS_MAX])
    return made, kept[count:]
