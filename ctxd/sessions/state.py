"""Session state: the sets and the outline of the chat as the fold of a session's segments, and its transitions.

``index`` only grows; ``pool`` lies within it, ``active`` and ``pinned`` within ``pool``. All four keep the order of
entry. A state changes by ``apply`` alone, in time that does not depend on the session's length; the changes are
decided by the transitions: pure functions of a state and a request that return a delta (``NOTHING`` if the state is
already as requested), or refuse. Texts of the chat are not held: ``ctxd.sessions.chat`` reads them by page. Equal
segments give equal states, with or without snapshots among them.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, Literal, assert_never

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Document
from ctxd.objects.identity import INFRASTRUCTURE_PREFIXES, INNER_PREFIXES
from ctxd.objects.kinds import ContentKind
from ctxd.objects.next_version import toolcall
from ctxd.sessions.segments import (
    NOTHING,
    ActivateObjects,
    AppendChat,
    CollapseCalls,
    DeactivateObjects,
    DiscoverObjects,
    HideObjects,
    PinObjects,
    ReadObjects,
    RecordCalls,
    SessionDelta,
    ShowObjects,
    Snapshot,
    UnpinObjects,
    mark_of,
    messages_of,
)
from ctxd_protocol.events import event_of
from ctxd_protocol.ids import PREFIX_CHARS_MIN, chat_id, toolcall_alias
from ctxd_protocol.methods.files import ToolcallRecordParams
from ctxd_protocol.secrets import Secrets
from ctxd_protocol.sessions import Collapse, ContextLevel, Message

SNAPSHOT_TAIL_MIN: Final = 256
"""Changes since the last snapshot below which none is written: replaying fewer costs less than writing one."""

OrderedSet = dict[str, None]

_NOUNS: Final[dict[ContentKind | None, str]] = {None: "object", "file": "file", "toolcall": "tool call"}

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

    ``index``: object to its kind, which is that of the change that brought it in.
    ``read``: object to the number of the segment that first showed its content. ``turns``: marks of the messages by
    turn, without their texts; turn 0 holds those before the first user message. ``pages``: the segments that added to
    the chat. ``calls``: turn to its count of tool calls. ``recency``: active tool
    call to its turn and its place in that; ``chosen``: active object to the turn in which it was activated by request.
    ``warm`` (with its place, as in ``recency``) and ``chosen_calls`` (by turn) are the active tool calls that the
    window may collapse. ``segments``: how many made this. ``tail``: changes of sets since the last snapshot;
    ``snapshot_due``: they outweigh the sets, so the next segment should carry a snapshot. ``turn``: number of the
    current turn, 0 before the first user message. ``chat_chars``: characters of all messages.
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
        "snapshot_due",
        "tail",
        "turn",
        "turns",
        "warm",
    )

    def __init__(self) -> None:
        self.index: dict[str, ContentKind] = {}
        self.pool: OrderedSet = {}
        self.active: OrderedSet = {}
        self.pinned: OrderedSet = {}
        self.read: dict[str, int] = {}
        self.turn = 0
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
        self.snapshot_due = False

    def level(self, id: str) -> ContextLevel:
        """Return the context level of the indexed object ``id``."""
        if id in self.active:
            return "active"
        return "inactive" if id in self.pool else "indexed"

    def is_a(self, id: str, kind: ContentKind | None) -> bool:
        """Return True if ``id`` is an object of the index of the kind ``kind``; None: of any kind."""
        found = self.index.get(id)
        return found is not None and kind in (None, found)

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


def apply(state: SessionState, delta: SessionDelta) -> None:  # noqa: C901 - one case for each operation
    """Make the changes of ``delta``, which was decided on this very state. Cost: the length of ``delta``."""
    weight = 0
    for operation in delta:
        match operation:
            case AppendChat():
                _say(state, operation)
                continue
            case Snapshot():
                # The sets are as it has them.
                state.tail = 0
                continue
            case RecordCalls():
                for id in operation.objects:
                    _call(state, id)
            case CollapseCalls() | DeactivateObjects():
                for id in operation.objects:
                    _rest(state, id)
            case ReadObjects():
                for id in operation.objects:
                    _enter(state, id)
                    state.active[id] = None
                    state.read.setdefault(id, state.segments)
            case DiscoverObjects():
                for id in operation.objects:
                    _enter(state, id)
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
        weight += len(operation.objects)
    state.segments += 1
    state.tail += weight
    sets = len(state.index) + len(state.pool) + len(state.active) + len(state.pinned)
    state.snapshot_due = state.tail > max(sets, SNAPSHOT_TAIL_MIN)


def fold(deltas: Sequence[SessionDelta]) -> SessionState:
    """The state that ``deltas``, a session's from its first on, make. Sets are replayed from the last snapshot."""
    state = SessionState()
    start = next((n for n in range(len(deltas) - 1, -1, -1) if _snapshot_in(deltas[n]) is not None), 0)
    for number, delta in enumerate(deltas[:start]):
        state.segments = number
        for operation in delta:
            if isinstance(operation, AppendChat):
                _say(state, operation)
    if start:
        state.segments = start
        kept = _snapshot_in(deltas[start])
        assert kept is not None, "the fold starts at a snapshot or at the first segment"
        _restore(state, kept)
    for delta in deltas[start:]:
        apply(state, delta)
    return state


def _snapshot_in(delta: SessionDelta) -> Snapshot | None:
    return delta[0] if delta and isinstance(delta[0], Snapshot) else None


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
        files=tuple(n for n, kind in enumerate(state.index.values()) if kind == "file"),
    )


def check(state: SessionState) -> None:
    """Hold ``state`` to what is always true of one. Raises: AssertionError with the sentence that is false."""
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
    )


def _say(state: SessionState, operation: AppendChat) -> None:
    turns, pages = state.turns, state.pages
    for message in messages_of((operation,)):
        state.chat_chars += len(message.content)
        if message.role == "user":
            state.turn += 1
            turns.append([])
        turns[-1].append(mark_of(message))
        if not pages or pages.segment(-1) != state.segments:
            pages.add(state.segments, len(turns) - 1, len(turns[-1]) - 1)


def _enter(state: SessionState, id: str) -> None:
    state.index.setdefault(id, "file")
    state.pool[id] = None


def _call(state: SessionState, id: str) -> None:
    state.index[id] = "toolcall"
    state.pool[id] = None
    turn = state.turn
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
    if id not in state.active or id in state.pinned or state.is_file(id):
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


# --- transitions ---


def overdue(state: SessionState, window: Collapse, *, turn: int, arriving: str | None = None) -> tuple[str, ...]:
    """The active tool calls that fall out of the window once ``turn`` is current and ``arriving`` has come in.

    The order is that of activation within each kind: those left over from their turn first, then those chosen.
    """
    oldest = turn - window.turns + 1
    counts = state.calls
    fallen: list[str] = []
    for id, (called, nth) in state.warm.items():
        count = counts[called] + (arriving is not None and called == turn)
        if called < oldest or nth < count - window.per_turn:
            fallen.append(id)
    if arriving is not None and window.per_turn == 0:
        fallen.append(arriving)
    for chosen_turn, ids in state.chosen_calls.items():
        if chosen_turn < oldest:
            fallen.extend(ids)
    return tuple(fallen)


def resolve(state: SessionState, session: str, text: str, kind: ContentKind | None = None) -> str:
    """The id in the index of ``session`` that ``text`` means: an id, else a tool call's own id, else a start of 8
    characters. With ``kind`` only objects of that kind are meant, so that a tool call is found by its own id though a
    file has the same.

    Raises: CtxdError infrastructure_object, not_in_index, ambiguous_id.
    """
    if state.is_a(text, kind):
        return text
    # A harness's own id may look reserved: the session's tool call of that name comes before an infrastructure object.
    alias = toolcall_alias(session, text)
    if state.is_a(alias, kind):
        return alias
    if text.startswith((*INFRASTRUCTURE_PREFIXES, *INNER_PREFIXES)):
        raise CtxdError(
            "infrastructure_object",
            f"{text} is infrastructure: it has a fixed place in the context",
            hint="Only files and tool calls can be activated, pinned or hidden.",
        )
    found = [id for id in state.index if id.startswith(text)] if len(text) >= PREFIX_CHARS_MIN else []
    found = [id for id in found if state.is_a(id, kind)]
    if not found:
        raise CtxdError(
            "not_in_index",
            f"no {_NOUNS[kind]} id={text} in the index of session {session}",
            hint=f"Give an id from object.list, or at least {PREFIX_CHARS_MIN} characters of one.",
        )
    if len(found) > 1:
        names = ", ".join(sorted(found)[:3])
        raise CtxdError("ambiguous_id", f"{len(found)} objects begin with {text}", hint=f"Among them: {names}.")
    return found[0]


def read(state: SessionState, id: str) -> SessionDelta:
    """An agent read ``id``: it enters index, pool and active set (spec 1 §5.6)."""
    if id in state.active and id in state.read:
        return NOTHING
    return (ReadObjects((id,)),)


def discover(state: SessionState, ids: Iterable[str]) -> SessionDelta:
    """A tool's output named ``ids``: they enter index and pool (spec 1 §5.6)."""
    fresh = tuple(dict.fromkeys(id for id in ids if id not in state.pool))
    return (DiscoverObjects(fresh),) if fresh else NOTHING


def met(state: SessionState, id: str, cause: Literal["read", "edit", "check"]) -> SessionDelta:
    """The change of the sets for a file that was met by ``cause``."""
    match cause:
        case "read":
            return read(state, id)
        case "edit":
            return discover(state, (id,)) if id in state.read else read(state, id)
        case "check":
            return NOTHING


def call(state: SessionState, id: str, window: Collapse) -> SessionDelta:
    """The tool call ``id``, new to the session, came in: it is active, and older ones fall out of the window."""
    assert id not in state.index, "a tool call comes in once"
    fallen = overdue(state, window, turn=state.turn, arriving=id)
    return (RecordCalls((id,)), CollapseCalls(fallen)) if fallen else (RecordCalls((id,)),)


def append(state: SessionState, session: str, messages: Sequence[Message], window: Collapse) -> SessionDelta:
    """``messages`` go to the end of the chat; each user message starts a turn, and older tool calls leave the window.

    A tool result names its object as ``resolve`` takes it and is kept with the object's own id.
    Raises: CtxdError invalid_params for a message that is malformed, and what ``resolve`` raises.
    """
    said = AppendChat(tuple(event_of(_kept(state, session, message)) for message in messages))
    turn = state.turn + sum(message.role == "user" for message in messages)
    fallen = overdue(state, window, turn=turn) if turn != state.turn else ()
    return (said, CollapseCalls(fallen)) if fallen else (said,)


def _kept(state: SessionState, session: str, message: Message) -> Message:
    if message.role != "toolcall":
        if message.toolcall is not None:
            raise CtxdError("invalid_params", f"a message of role {message.role} names no tool call")
        if message.role == "user" and not message.content:
            raise CtxdError(
                "invalid_params", "a user message needs content", hint="Put its text in the member content."
            )
        return message
    if message.toolcall is None or message.content:
        raise CtxdError(
            "invalid_params",
            "a message of role toolcall names its tool call and has no content",
            hint="Keep the output with toolcall.record, then append a message with its id.",
        )
    id = resolve(state, session, message.toolcall, "toolcall")
    return message if id == message.toolcall else msgspec.structs.replace(message, toolcall=id)


def activate(state: SessionState, id: str) -> SessionDelta:
    """``id`` is active, by request: a tool call counts as recent from this turn on. One only indexed is shown first."""
    if id in state.active and (state.is_file(id) or state.chosen.get(id) == state.turn):
        return NOTHING
    return (ActivateObjects((id,)),)


def deactivate(state: SessionState, id: str) -> SessionDelta:
    """``id`` is not active any more. Raises: CtxdError not_active."""
    if id not in state.active:
        raise CtxdError("not_active", f"{id} is not active", hint="object.list with level active names what is.")
    return (DeactivateObjects((id,)),)


def pin(state: SessionState, id: str) -> SessionDelta:
    """``id`` is exempt from the window and from budget drops. Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return NOTHING if id in state.pinned else (PinObjects((id,)),)


def unpin(state: SessionState, id: str) -> SessionDelta:
    """``id`` is pinned no more. Raises: CtxdError not_pinned."""
    if id not in state.pinned:
        raise CtxdError("not_pinned", f"{id} is not pinned", hint="session.get names what is.")
    return (UnpinObjects((id,)),)


def pool_add(state: SessionState, id: str) -> SessionDelta:
    """``id`` is shown as metadata."""
    return NOTHING if id in state.pool else (ShowObjects((id,)),)


def pool_remove(state: SessionState, id: str) -> SessionDelta:
    """``id`` is not shown, active or pinned any more; it stays in the index. Raises: CtxdError not_in_pool."""
    if id not in state.pool:
        raise _not_in_pool(id)
    return (HideObjects((id,)),)


def outcome(state: SessionState, id: str, delta: SessionDelta) -> tuple[ContextLevel, bool]:
    """The level of ``id`` and whether it is pinned, once ``delta``, a request for ``id`` alone, is made."""
    level, pinned = state.level(id), id in state.pinned
    for operation in delta:
        match operation:
            case ActivateObjects():
                level = "active"
            case DeactivateObjects() | ShowObjects():
                level = "inactive"
            case HideObjects():
                level, pinned = "indexed", False
            case PinObjects() | UnpinObjects():
                pinned = isinstance(operation, PinObjects)
    return level, pinned


def _not_in_pool(id: str) -> CtxdError:
    return CtxdError("not_in_pool", f"{id} is not in the metadata pool", hint="Add it with session.pool_add first.")


def toolcall_document(
    state: SessionState,
    session: str,
    id: str,
    params: ToolcallRecordParams,
    secrets: Secrets | None,
    *,
    unresolved: tuple[str, ...] = (),
) -> Document:
    """Build the document of the tool call ``id``. References in ``unresolved`` are not looked up in the index.

    Raises: CtxdError invalid_params for arguments without a canonical encoding.
    """
    refs = params.file_refs
    unknown: tuple[str, ...] = ()
    if refs:
        found = {ref: None if ref in unresolved else _reference(state, session, ref) for ref in refs}
        refs = tuple(object for object in found.values() if object is not None)
        unknown = tuple(ref for ref, object in found.items() if object is None)
    try:
        return toolcall(
            id,
            tool=params.tool,
            args=params.args,
            content=params.content,
            chat_ref=chat_id(session),
            status=params.status,
            args_display=params.args_display,
            file_refs=refs,
            unresolved_refs=unknown,
            secrets=secrets,
        )
    except ValueError as error:
        raise CtxdError("invalid_params", f"args: {error}", outcome="not_applied") from error


def _reference(state: SessionState, session: str, text: str) -> str | None:
    """The id of the indexed file that ``text`` names; None if it names none or several."""
    try:
        return resolve(state, session, text, "file")
    except CtxdError:
        return None
