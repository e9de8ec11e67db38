"""Components that a test scripts, and a reader that believes what a request says."""

import json
import re
from typing import Any

import msgspec

from ctxd.epochs.component import Component, Loaded, UnavailableComponent

_TEXT = re.compile(r"\[([\w/]+) (is|now|gone)(?: (\d+))?\]")


class Number(msgspec.Struct, frozen=True):
    n: int


class Word(msgspec.Struct, frozen=True):
    """The value of another version of the component: it does not decode as a ``Number``."""

    word: str


class Scripted(Component[Number]):
    """``state``: the number, None for a component that is unavailable. ``speaks``: it has a removal text."""

    value_type = Number

    def __init__(self, key: str, state: int | None, *, speaks: bool = True) -> None:
        super().__init__(key)
        self._state = state
        self._speaks = speaks

    async def load(self) -> Loaded[Number] | UnavailableComponent:
        return UnavailableComponent("scripted") if self._state is None else Loaded(Number(self._state))

    def loaded(self) -> Loaded[Number] | UnavailableComponent:
        return UnavailableComponent("scripted") if self._state is None else Loaded(Number(self._state))

    def baseline(self, value: Number) -> str:
        return f"[{self.key} is {value.n}]"

    def update(self, previous: Number, current: Number) -> str:
        assert previous != current
        return f"[{self.key} now {current.n}]"

    def removal(self, previous: Number) -> str | None:
        return f"[{self.key} gone]" if self._speaks else None


def believed(request: dict[str, Any]) -> dict[str, int]:
    """What a model believes that reads ``request``, whose system texts come first, from the beginning to the end."""
    return read(json.dumps(request))


def read(text: str) -> dict[str, int]:
    """What a model believes that reads ``text``. Fails for a removal of what it does not know."""
    found: dict[str, int] = {}
    for key, verb, number in _TEXT.findall(text):
        if verb == "gone":
            del found[key]
        else:
            assert verb == "is" or key in found, f"{key} changed before it was there"
            found[key] = int(number)
    return found
