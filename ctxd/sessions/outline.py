"""The order in which a session is written out, so that a page begins right where the one before it ended.

Pure. The promise: all pages of an export together cost what one walk over the session costs.
"""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final, NamedTuple

from ctxd.errors import CtxdError
from ctxd.sessions.state import SessionState

PROMPT: Final = 0
MESSAGE: Final = 1
TOOLCALL: Final = 2
OBJECT: Final = 3

_CURSOR: Final = re.compile(r"[0-9]{1,15}(\.[0-9]{1,15}){5}", re.ASCII)


class Reach(NamedTuple):
    """How much of a session is written out: the chat up to, without, message ``place`` of ``turn``, and the first
    ``known`` objects of its index."""

    turn: int
    place: int
    known: int


class Step(NamedTuple):
    """One record to come. ``part`` ``TOOLCALL``: the tool call that the message at ``place`` of ``turn`` stands for.

    ``part`` ``OBJECT``: what is at ``place`` of the index. ``object``: its id, null for the prompt and a message.
    """

    part: int
    turn: int = 0
    place: int = 0
    object: str | None = None


START: Final = Step(PROMPT)


def cursor_of(step: Step, reach: Reach) -> str:
    """The cursor with which an export that shows as much as ``reach`` goes on at ``step``."""
    return ".".join(map(str, (step.part, step.turn, step.place, *reach)))


def read_cursor(cursor: str) -> tuple[Step, Reach]:
    """The step to go on at, its object left out, and how much is shown.

    Raises: CtxdError invalid_params for a cursor that no export gave.
    """
    if _CURSOR.fullmatch(cursor) is None:
        raise CtxdError("invalid_params", f"{cursor!r} is no cursor of an export", hint="Give next_cursor as it was.")
    part, turn, place, *reach = map(int, cursor.split("."))
    return Step(part, turn, place), Reach(*reach)


class Outline:
    """What it takes to go on anywhere in a state: where each tool call is said first, and the index by number.

    ``reach``: how much of the state is known.
    """

    def __init__(self, state: SessionState) -> None:
        self.reach = Reach(0, 0, 0)
        self._said: dict[str, tuple[int, int]] = {}
        self._index: list[str] = []
        self.extend(state)

    def extend(self, state: SessionState) -> None:
        """Reach the end of ``state``, which has grown since. Cost: what was said since, and the length of the index."""
        turns = state.turns
        first = self.reach.place
        for turn in range(self.reach.turn, len(turns)):
            messages = turns[turn]
            for place in range(first, len(messages)):
                if (id := messages[place].toolcall) is not None:
                    self._said.setdefault(id, (turn, place))
            first = 0
        self._index.extend(islice(state.index, len(self._index), None))
        self.reach = Reach(len(turns) - 1, len(turns[-1]), len(self._index))

    def steps(self, state: SessionState, at: Step, reach: Reach) -> Iterator[Step]:
        """Every step from ``at`` to the end of ``reach``: the system prompt, every message with the tool call that it
        is the first to stand for behind it, and then what else is in the index."""
        if at.part == PROMPT:
            yield START
            at = Step(MESSAGE)
        if at.part in (MESSAGE, TOOLCALL):
            yield from self._chat(state, at, reach)
            at = Step(OBJECT)
        for place in range(at.place, min(reach.known, len(self._index))):
            id = self._index[place]
            said = self._said.get(id)
            if said is None or said >= reach[:2]:
                yield Step(OBJECT, place=place, object=id)

    def _chat(self, state: SessionState, at: Step, reach: Reach) -> Iterator[Step]:
        first, part = at.place, at.part
        for turn in range(at.turn, min(reach.turn + 1, len(state.turns))):
            messages = state.turns[turn]
            end = min(reach.place, len(messages)) if turn == reach.turn else len(messages)
            for place in range(first, end):
                if part == MESSAGE:
                    yield Step(MESSAGE, turn, place)
                id, part = messages[place].toolcall, MESSAGE
                if id is not None and self._said.get(id) == (turn, place):
                    yield Step(TOOLCALL, turn, place, id)
            first = 0
