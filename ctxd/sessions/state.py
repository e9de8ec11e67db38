"""Session state: the sets and the outline of the chat as the fold of a session's segments.

``index`` only grows; ``pool`` lies within it, ``active`` and ``pinned`` within ``pool``. All four keep the order of
entry. A state changes by ``apply`` alone, in time that does not depend on the session's length; the changes are decided
in ``ctxd.sessions.transitions``. Texts of the chat are not held: ``ctxd.sessions.chat`` reads them by page. Equal
segments give equal states, with or without snapshots among them.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from ctxd.objects.identity import is_file_id
from ctxd.sessions.segments import SessionDelta, Snapshot, mark_of
from ctxd_protocol.sessions import ContextLevel, Message

SNAPSHOT_TAIL_MIN: Final = 256
"""Changes since the last snapshot below which none is written: replaying fewer costs less than writing one."""

OrderedSet = dict[str, None]

Place = tuple[int, int]
"""A message of the chat: its turn, and its number within that, from 0."""

_PLACE_BITS: Final = 32


class ChatPages:
    """Segments that add messages to the chat, each with the place of its first message. 16 bytes a segment."""

    __slots__ = ("_firsts", "_segments")

    def __init__(self) -> None:
        self._segments = array("Q")
        self._firsts = array("Q")

    def __len__(self) -> int:
        return len(self._segments)

    def add(self, segment: int, turn: int, place: int) -> None:
        """Note that ``segment`` adds messages, the first of them at ``place`` of ``turn``."""
        self._segments.append(segment)
        self._firsts.append(turn << _PLACE_BITS | place)

    def within(self, first: Place, end: Place) -> range:
        """The numbers of the pages that hold messages from ``first`` up to, without, ``end``."""
        start = bisect_right(self._firsts, first[0] << _PLACE_BITS | first[1])
        return range(max(0, start - 1), bisect_left(self._firsts, end[0] << _PLACE_BITS | end[1]))

    def segment(self, number: int) -> int:
        """The segment of page ``number``."""
        return self._segments[number]

    def first(self, number: int) -> Place:
        """The place of the first message of page ``number``."""
        return divmod(self._firsts[number], 1 << _PLACE_BITS)

    def __eq__(self, other: object) -> bool:
        """True for the same segments at the same places."""
        return isinstance(other, ChatPages) and (self._segments, self._firsts) == (other._segments, other._firsts)

    __hash__ = None  # type: ignore[assignment]  # pages are added, so this is no key


class SessionState:
    """The sets of one session and the outline of its chat. Read it freely; only ``apply`` changes it.

    ``read``: object to the number of the segment that first showed its content. ``turns``: marks of the messages by
    turn, without their texts; turn 0 holds those before the first user message. ``pages``: the segments that added to
    the chat. ``calls``: turn to its count of tool calls. ``recency``: active tool
    call to its turn and its place in that; ``chosen``: active object to the turn in which it was activated by request.
    ``warm`` (with its place, as in ``recency``) and ``chosen_calls`` (by turn) are the active tool calls that the
    window may collapse. ``segments``: how many made this. ``tail``: changes of sets since the last snapshot.
    ``chat_chars``: characters of all messages.
    """

    __slots__ = (
        "active",
        "calls",
        "chat_chars",
        "chosen",
        "chosen_calls",
        "index",
        "pages",
        "pinned",
        "pool",
        "read",
        "recency",
        "segments",
        "tail",
        "turns",
        "warm",
    )

    def __init__(self) -> None:
        self.index: OrderedSet = {}
        self.pool: OrderedSet = {}
        self.active: OrderedSet = {}
        self.pinned: OrderedSet = {}
        self.read: dict[str, int] = {}
        self.turns: list[list[Message]] = [[]]
        self.chat_chars = 0
        self.pages = ChatPages()
        self.calls: dict[int, int] = {}
        self.recency: dict[str, tuple[int, int]] = {}
        self.chosen: dict[str, int] = {}
        self.warm: dict[str, tuple[int, int]] = {}
        self.chosen_calls: dict[int, OrderedSet] = {}
        self.segments = 0
        self.tail = 0

    @property
    def turn(self) -> int:
        """The number of the current turn; 0 before the first user message."""
        return len(self.turns) - 1

    @property
    def snapshot_due(self) -> bool:
        """True if the next segment should carry a snapshot: the changes since the last one outweigh the sets."""
        if self.tail <= SNAPSHOT_TAIL_MIN:
            return False
        return self.tail > len(self.index) + len(self.pool) + len(self.active) + len(self.pinned)

    def level(self, id: str) -> ContextLevel:
        """How far into the window the indexed object ``id`` is."""
        if id in self.active:
            return "active"
        return "inactive" if id in self.pool else "indexed"

    def __eq__(self, other: object) -> bool:
        """True for equal sets in equal order, and equal outlines of the chat."""
        return isinstance(other, SessionState) and _comparable(self) == _comparable(other)

    __hash__ = None  # type: ignore[assignment]  # a state changes, so it is no key


def apply(state: SessionState, delta: SessionDelta) -> None:
    """Make the changes of ``delta``, which was decided on this very state. Cost: the length of ``delta``."""
    if delta.messages or delta.events:
        _say(state, delta)
    for id in delta.called:
        _call(state, id)
    for id in delta.collapsed:
        _rest(state, id)
    for id in delta.read:
        _enter(state, id)
        state.active[id] = None
        state.read.setdefault(id, state.segments)
    weight = len(delta.called) + len(delta.collapsed) + len(delta.read)
    if delta.has_requests:
        weight += _apply_requests(state, delta)
    if delta.snapshot is not None:
        state.tail = 0
    state.segments += 1
    state.tail += weight


def fold(deltas: Sequence[SessionDelta]) -> SessionState:
    """The state that ``deltas``, a session's from its first on, make. Sets are replayed from the last snapshot."""
    state = SessionState()
    start = next((n for n in range(len(deltas) - 1, -1, -1) if deltas[n].snapshot is not None), 0)
    for number, delta in enumerate(deltas[:start]):
        state.segments = number
        _say(state, delta)
    if start:
        state.segments = start
        snapshot = deltas[start].snapshot
        assert snapshot is not None, "the fold starts at a snapshot or at the first segment"
        _restore(state, snapshot)
    for delta in deltas[start:]:
        apply(state, delta)
    return state


def snapshot(state: SessionState) -> Snapshot:
    """The sets of ``state`` whole. Cost: their size."""
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
    )


def check(state: SessionState) -> None:
    """Hold ``state`` to what is always true of one. Raises: AssertionError with the sentence that is false."""
    assert state.pool.keys() <= state.index.keys(), "every object in the pool is in the index"
    assert state.active.keys() <= state.pool.keys(), "every active object is in the pool"
    assert state.pinned.keys() <= state.pool.keys(), "every pinned object is in the pool"
    assert state.read.keys() <= state.index.keys(), "every object that was read is in the index"
    assert state.recency.keys() <= state.active.keys(), "only active tool calls have a place in their turn"
    assert state.chosen.keys() <= state.active.keys(), "only active objects count as chosen"
    assert not any(is_file_id(id) for id in state.recency), "files have no place in a turn"
    loose = {id for id in state.active if not is_file_id(id) and id not in state.pinned}
    warm = {id: state.recency[id] for id in loose - state.chosen.keys()}
    assert state.warm == warm, "warm are the active, unpinned tool calls nobody chose, each with its place"
    chosen = {id: turn for turn, ids in state.chosen_calls.items() for id in ids}
    assert chosen == {id: state.chosen[id] for id in loose & state.chosen.keys()}, "chosen tool calls are kept by turn"
    assert all(state.chosen_calls.values()), "no turn is kept without a chosen tool call"


def _apply_requests(state: SessionState, delta: SessionDelta) -> int:
    """Make the changes that few writes hold; how many there were."""
    for id in delta.discovered:
        _enter(state, id)
    for id in delta.activated:
        _choose(state, id)
    for id in delta.shown:
        state.pool[id] = None
    for id in delta.pinned:
        _cool(state, id)
        state.pinned[id] = None
    for id in delta.unpinned:
        state.pinned.pop(id, None)
        _warm(state, id)
    for id in delta.deactivated:
        _rest(state, id)
    for id in delta.hidden:
        _hide(state, id)
    held = (delta.discovered, delta.activated, delta.shown, delta.pinned, delta.unpinned, delta.deactivated)
    return sum(map(len, held)) + len(delta.hidden)


def _comparable(state: SessionState) -> tuple[object, ...]:
    sets = (state.index, state.pool, state.active, state.pinned)
    facts = (state.read, state.calls, state.recency, state.chosen, set(state.warm), state.segments, state.tail)
    return (
        *(tuple(ids) for ids in sets),
        *facts,
        {t: set(ids) for t, ids in state.chosen_calls.items()},
        state.turns,
        state.pages,
    )


def _say(state: SessionState, delta: SessionDelta) -> None:
    said = delta.said
    if not said:
        return
    turns = state.turns
    for nth, message in enumerate(said):
        state.chat_chars += len(message.content)
        if message.role == "user":
            turns.append([])
        turns[-1].append(mark_of(message))
        if nth == 0:
            state.pages.add(state.segments, len(turns) - 1, len(turns[-1]) - 1)


def _enter(state: SessionState, id: str) -> None:
    state.index[id] = None
    state.pool[id] = None


def _call(state: SessionState, id: str) -> None:
    state.index[id] = state.pool[id] = None
    turn = len(state.turns) - 1
    nth = state.calls.get(turn, 0)
    state.calls[turn] = nth + 1
    state.active[id] = None
    state.recency[id] = state.warm[id] = (turn, nth)
    state.read[id] = state.segments


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
    """Let the window see ``id`` if it is an active tool call that no pin holds."""
    if is_file_id(id) or id not in state.active or id in state.pinned:
        return
    turn = state.chosen.get(id)
    if turn is None:
        state.warm[id] = state.recency[id]
    else:
        state.chosen_calls.setdefault(turn, {})[id] = None


def _cool(state: SessionState, id: str) -> None:
    """Take ``id`` out of the window's sight, before its activity, pin or choice changes."""
    state.warm.pop(id, None)
    turn = state.chosen.get(id)
    if turn is not None and (bucket := state.chosen_calls.get(turn)) is not None:
        bucket.pop(id, None)
        if not bucket:
            del state.chosen_calls[turn]


def _restore(state: SessionState, kept: Snapshot) -> None:
    assert state.turn == kept.turn, "the chat before a snapshot has as many turns as the snapshot says"
    ids = kept.index
    state.index = dict.fromkeys(ids)
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
