"""Session state: the sets and the outline of the chat as the fold of a session's segments.

``index`` only grows; ``pool`` is a subset of it, ``active`` and ``pinned`` are subsets of ``pool``. All four keep
insertion order. Only ``apply`` changes a state, in time that does not depend on the session's length. A state does not
hold the texts of the chat: ``ctxd.sessions.chat`` reads them by page. Equal segments give equal states, with or without
snapshots among them.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Final, assert_never

from ctxd.objects.kinds import ContentKind
from ctxd.sessions.stored_session import (
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    DiscoverObjects,
    HideObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    RecordUsage,
    SessionDelta,
    ShowObjects,
    Snapshot,
    UnpinObjects,
    mark_of,
)
from ctxd_protocol.event_types import starts_turn
from ctxd_protocol.session_types import ContextLevel, Message

SNAPSHOT_TAIL_MIN: Final = 256
"""No snapshot is written before this many changes since the last one: replaying fewer costs less."""

OrderedSet = dict[str, None]


EventPosition = tuple[int, int]
"""The place of an event in the chat: its turn, and its number within the turn, from 0."""

_SORTED_IN_MAX: Final = 64
"""Up to this many new ids are inserted into the sorted list one by one; for more, sorting all ids is cheaper."""

_PLACE_BITS: Final = 32


class ChatPages:
    """Segments that add events to the chat, each with the place of its first event. Memory: 16 bytes a segment."""

    __slots__ = ("_firsts", "_segments")

    def __init__(self) -> None:
        self._segments = array("Q")
        self._firsts = array("Q")

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: int, turn: int, place: int) -> None:
        """Add a page for ``segment``, whose first event is at ``place`` of ``turn``."""
        self._segments.append(segment)
        self._firsts.append(turn << _PLACE_BITS | place)

    def within(self, first: EventPosition, end: EventPosition) -> range:
        """Return the numbers of the pages that hold events from ``first`` up to ``end``, exclusive."""
        start = bisect_right(self._firsts, first[0] << _PLACE_BITS | first[1])
        return range(max(0, start - 1), bisect_left(self._firsts, end[0] << _PLACE_BITS | end[1]))

    def segment(self, number: int) -> int:
        """The segment of page ``number``."""
        return self._segments[number]

    def first(self, number: int) -> EventPosition:
        """The place of the first event of page ``number``."""
        return divmod(self._firsts[number], 1 << _PLACE_BITS)

    def first_from(self, segment: int) -> EventPosition | None:
        """The place of the first event in ``segment`` or a later one; None if they have no events."""
        number = bisect_left(self._segments, segment)
        return self.first(number) if number < len(self) else None

    def __eq__(self, other: object) -> bool:
        """True for the same segments at the same places."""
        return isinstance(other, ChatPages) and (self._segments, self._firsts) == (other._segments, other._firsts)

    __hash__ = None  # type: ignore[assignment]  # pages are added, so this is no key


class SessionState:
    """The sets of one session and the outline of its chat. Read it freely; only ``apply`` changes it.

    ``index``: object to its kind, set by the operation that added it.
    ``read``: object to the number of the segment that first showed its content. ``turns``: marks of the events by
    turn, see ``mark_of``; turn 0 holds those before the first prompt. ``pages``: the segments that added to
    the chat. ``calls``: turn to its count of tool calls. ``recency``: active tool call to its turn and its place in the
    turn; ``chosen``: active object to the turn in which it was activated by request.
    ``warm`` (with places, as in ``recency``) and ``chosen_calls`` (by turn) hold the active tool calls that
    auto-collapse may deactivate. ``segments``: number of segments applied. ``tail``: changes of sets since the last
    snapshot; ``snapshot_due``: ``tail`` exceeds the size of the sets, so the next segment should carry a snapshot.
    ``turn``: number of the current turn, 0 before the first prompt. ``usage``: billed usage by the number of the
    assembly.
    """

    __slots__ = (
        "active",
        "calls",
        "chosen",
        "chosen_calls",
        "index",
        "pages",
        "pinned",
        "pool",
        "read",
        "recency",
        "segments",
        "snapshot_due",
        "tail",
        "turn",
        "turns",
        "usage",
        "warm",
        "_sorted",
    )

    def __init__(self) -> None:
        self.index: dict[str, ContentKind] = {}
        self.pool: OrderedSet = {}
        self.active: OrderedSet = {}
        self.pinned: OrderedSet = {}
        self.read: dict[str, int] = {}
        self.turn = 0
        self.turns: list[list[Message | None]] = [[]]
        self.pages = ChatPages()
        self.calls: dict[int, int] = {}
        self.recency: dict[str, tuple[int, int]] = {}
        self.chosen: dict[str, int] = {}
        self.warm: dict[str, tuple[int, int]] = {}
        self.chosen_calls: dict[int, OrderedSet] = {}
        self.segments = 0
        self.tail = 0
        self.snapshot_due = False
        self.usage: dict[int, RecordUsage] = {}
        self._sorted: list[str] = []

    def level(self, id: str) -> ContextLevel:
        """Return the context level of the indexed object ``id``."""
        if id in self.active:
            return "active"
        return "inactive" if id in self.pool else "indexed"

    def is_a(self, id: str, kind: ContentKind | None) -> bool:
        """Return True if ``id`` is an indexed object of kind ``kind``, None for any kind."""
        found = self.index.get(id)
        return found is not None and kind in (None, found)

    def starting_with(self, text: str) -> list[str]:
        """Return the ids of the index that begin with ``text``, sorted. Cost: logarithmic, plus a copy if the index has
        grown."""
        ids = self._sorted
        if (new := len(self.index) - len(ids)) > 0:
            # A new list: another thread may search the old one.
            ids = ids.copy()
            for id in islice(reversed(self.index), new if new <= _SORTED_IN_MAX else 0):
                insort(ids, id)
            self._sorted = ids = ids if new <= _SORTED_IN_MAX else sorted(self.index)
        start = bisect_left(ids, text)
        return ids[start : bisect_right(ids, text, start, key=lambda id: id[: len(text)])]

    def is_file(self, id: str) -> bool:
        """Return True if ``id`` is a file of the index."""
        return self.index.get(id) == "file"

    def files(self, ids: Iterable[str]) -> list[str]:
        """Return the files of the index among ``ids``, in their order."""
        kinds = self.index
        return [id for id in ids if kinds.get(id) == "file"]

    def __eq__(self, other: object) -> bool:
        """True for equal sets in equal order, and equal outlines of the chat."""
        return isinstance(other, SessionState) and _comparable(self) == _comparable(other)

    __hash__ = None  # type: ignore[assignment]  # a state changes, so it is no key


def apply(state: SessionState, *deltas: SessionDelta) -> None:  # noqa: C901 - one case for each operation
    """Apply ``deltas`` in order; each must have been decided on the state that its predecessors make. Cost: their
    length."""
    for delta in deltas:
        # The most frequent operations first: a fold takes many thousands of them.
        for operation in delta:
            match operation:
                case RecordCalls():
                    turn = state.turn
                    for id in operation.objects:
                        nth = state.calls.get(turn, 0)
                        state.calls[turn] = nth + 1
                        state.index[id] = "toolcall"
                        state.pool[id] = state.active[id] = None
                        state.recency[id] = state.warm[id] = (turn, nth)
                        state.read[id] = state.segments
                case ReadObjects():
                    for id in operation.objects:
                        state.index.setdefault(id, "file")
                        state.pool[id] = state.active[id] = None
                        state.read.setdefault(id, state.segments)
                case CollapseCalls() | DeactivateObjects():
                    for id in operation.objects:
                        _rest(state, id)
                case AppendChat():
                    _say(state, operation)
                    continue
                case RecordUsage():
                    state.usage[operation.assembly] = operation
                    continue
                case Snapshot():
                    # The sets are already equal to it: it is the first operation of its segment.
                    state.tail = 0
                    continue
                case DiscoverObjects():
                    for id in operation.objects:
                        state.index.setdefault(id, "file")
                        state.pool[id] = None
                case ActivateObjects():
                    for id in operation.objects:
                        _choose(state, id)
                case ShowObjects():
                    for id in operation.objects:
                        state.pool[id] = None
                case PinObjects():
                    for id in operation.objects:
                        _cool(state, id)
                        state.pinned[id] = None
                case UnpinObjects():
                    for id in operation.objects:
                        state.pinned.pop(id, None)
                        _warm(state, id)
                case HideObjects():
                    for id in operation.objects:
                        _hide(state, id)
                case _:
                    assert_never(operation)
            state.tail += len(operation.objects)
        state.segments += 1
    sets = len(state.index) + len(state.pool) + len(state.active) + len(state.pinned)
    state.snapshot_due = state.tail > max(sets, SNAPSHOT_TAIL_MIN)


def replay_deltas(deltas: Sequence[SessionDelta]) -> SessionState:
    """Return the state after ``deltas``, all deltas of a session. Sets are replayed from the last snapshot."""
    state = SessionState()
    start = next((n for n in range(len(deltas) - 1, -1, -1) if deltas[n] and isinstance(deltas[n][0], Snapshot)), 0)
    for number, delta in enumerate(deltas[:start]):
        state.segments = number
        for operation in delta:
            if isinstance(operation, AppendChat):
                _say(state, operation)
            elif isinstance(operation, RecordUsage):
                state.usage[operation.assembly] = operation
    if start:
        state.segments = start
        kept = deltas[start][0]
        assert isinstance(kept, Snapshot), "the fold starts at a snapshot or at the first segment"
        _restore(state, kept)
    apply(state, *deltas[start:])
    return state


def snapshot(state: SessionState) -> Snapshot:
    """Return a snapshot of the sets of ``state``. Cost: their size."""
    place = {id: n for n, id in enumerate(state.index)}
    return Snapshot(
        index=tuple(state.index),
        pool=tuple(place[id] for id in state.pool),
        active=tuple(place[id] for id in state.active),
        pinned=tuple(place[id] for id in state.pinned),
        read=tuple((place[id], number) for id, number in state.read.items()),
        turn=state.turn,
        calls=tuple(state.calls.items()),
        recency=tuple((place[id], turn, nth) for id, (turn, nth) in state.recency.items()),
        chosen=tuple((place[id], turn) for id, turn in state.chosen.items()),
        files=tuple(n for n, kind in enumerate(state.index.values()) if kind == "file"),
    )


def check(state: SessionState) -> None:
    """Check the invariants of ``state``. Raises: AssertionError with the violated one."""
    assert state.turn == len(state.turns) - 1, "the newest turn is the current one"
    assert state.pool.keys() <= state.index.keys(), "every object in the pool is in the index"
    assert state.active.keys() <= state.pool.keys(), "every active object is in the pool"
    assert state.pinned.keys() <= state.pool.keys(), "every pinned object is in the pool"
    assert state.read.keys() <= state.index.keys(), "every object that was read is in the index"
    assert state.recency.keys() <= state.active.keys(), "only active tool calls have a place in their turn"
    assert state.chosen.keys() <= state.active.keys(), "only active objects count as chosen"
    assert not state.files(state.recency), "files have no place in a turn"
    loose = {id for id in state.active if not state.is_file(id) and id not in state.pinned}
    warm = {id: state.recency[id] for id in loose - state.chosen.keys()}
    assert state.warm == warm, "warm are the active, unpinned tool calls nobody chose, each with its place"
    chosen = {id: turn for turn, ids in state.chosen_calls.items() for id in ids}
    assert chosen == {id: state.chosen[id] for id in loose & state.chosen.keys()}, "chosen tool calls are kept by turn"
    assert all(state.chosen_calls.values()), "no turn is kept without a chosen tool call"


def _comparable(state: SessionState) -> tuple[object, ...]:
    sets = (state.index, state.pool, state.active, state.pinned)
    facts = (state.read, state.calls, state.recency, state.chosen, set(state.warm), state.segments, state.tail)
    return (
        *(tuple(ids.items()) for ids in sets),
        *facts,
        {t: set(ids) for t, ids in state.chosen_calls.items()},
        state.turns,
        state.pages,
        state.usage,
    )


def _say(state: SessionState, operation: AppendChat) -> None:
    turns, pages = state.turns, state.pages
    is_first = not pages or pages.segment(-1) != state.segments
    for event in operation.events:
        if starts_turn(event):
            state.turn += 1
            turns.append([])
        turns[-1].append(mark_of(event))
        if is_first:
            pages.add(state.segments, len(turns) - 1, len(turns[-1]) - 1)
            is_first = False


def _choose(state: SessionState, id: str) -> None:
    _cool(state, id)
    state.pool[id] = None
    state.active[id] = None
    state.chosen[id] = state.turn
    state.read.setdefault(id, state.segments)
    _warm(state, id)


def _rest(state: SessionState, id: str) -> None:
    _cool(state, id)
    state.active.pop(id, None)
    state.recency.pop(id, None)
    state.chosen.pop(id, None)


def _hide(state: SessionState, id: str) -> None:
    _rest(state, id)
    state.pinned.pop(id, None)
    state.pool.pop(id, None)


def _warm(state: SessionState, id: str) -> None:
    """Make ``id`` subject to auto-collapse if it is an active, unpinned tool call."""
    if id not in state.active or id in state.pinned or state.is_file(id):
        return
    turn = state.chosen.get(id)
    if turn is None:
        state.warm[id] = state.recency[id]
    else:
        state.chosen_calls.setdefault(turn, {})[id] = None


def _cool(state: SessionState, id: str) -> None:
    """Exempt ``id`` from auto-collapse, before its level, pin or ``chosen`` turn changes."""
    state.warm.pop(id, None)
    turn = state.chosen.get(id) if state.chosen else None
    if turn is not None and (bucket := state.chosen_calls.get(turn)) is not None:
        bucket.pop(id, None)
        if not bucket:
            del state.chosen_calls[turn]


def _restore(state: SessionState, kept: Snapshot) -> None:
    assert state.turn == kept.turn, "the chat before a snapshot has the turns that the snapshot records"
    ids = kept.index
    state.index = dict.fromkeys(ids, "toolcall")
    state.index.update(dict.fromkeys(_picked(ids, kept.files), "file"))
    state.pool = dict.fromkeys(_picked(ids, kept.pool))
    state.active = dict.fromkeys(_picked(ids, kept.active))
    state.pinned = dict.fromkeys(_picked(ids, kept.pinned))
    state.read = {ids[n]: number for n, number in kept.read}
    state.calls = dict(kept.calls)
    state.recency = {ids[n]: (turn, nth) for n, turn, nth in kept.recency}
    state.chosen = {ids[n]: turn for n, turn in kept.chosen}
    for id in state.active:
        _warm(state, id)


def _picked(ids: tuple[str, ...], places: Iterable[int]) -> Iterable[str]:
    return (ids[n] for n in places)
