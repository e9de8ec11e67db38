"""Changes of a session's components: the current ones compared with those that the model was shown. Pure.

An unavailable component keeps its value; before the first baseline it has none, and blocks the request. A new value, or
one whose stored form cannot be decoded, is shown by its baseline text; a changed one by its update text; a component
that is gone by the removal text stored with its value, once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ctxd.epochs.component import Component, Loaded, UnavailableComponent
from ctxd.epochs.epoch_state import ComponentChange, ComponentText, EpochState, Part


class Blocked(Exception):
    """A component of the first baseline is unavailable: its ``key``, and the ``reason``."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"component {key} is unavailable: {reason}")
        self.key = key
        self.reason = reason


Addressing = Callable[[ComponentText], str]
"""Address of a text by its content: equal texts have equal addresses."""


Components = Mapping[str, tuple[Component[Any], Loaded[Any] | UnavailableComponent]]
"""Components of a session and their loaded values, by key, in order."""


class Differences(msgspec.Struct, frozen=True):
    """Result of an observation: the changes, in order, and the texts of changes that need a new one, by address."""

    changes: tuple[ComponentChange, ...] = ()
    texts: Mapping[str, ComponentText] = {}


def differences(
    state: EpochState,
    texts: Mapping[str, ComponentText],
    now: Components,
    address: Addressing,
    *,
    first: bool,
) -> Differences:
    """The differences between the components ``now``, in order, and ``believed`` of ``state``.

    ``texts``: those of ``believed``, without purged ones. ``address``: see ``Addressing``. ``first``: the request makes
    the first baseline. Raises: Blocked, ValueError for a value without canonical JSON.
    """
    changes: list[ComponentChange] = []
    made: dict[str, ComponentText] = {}
    unavailable: list[str] = []
    for key, (component, loaded) in now.items():
        if isinstance(loaded, UnavailableComponent):
            if first:
                raise Blocked(key, loaded.reason)
            unavailable.append(key)
            continue
        value = component.encode(loaded.value)
        before = texts.get(state.believed.get(key, ""))
        if before is not None and before.value == value.decode():
            continue
        previous = None if before is None else _decoded(component, before)
        text = ComponentText(
            key=key,
            value=value.decode(),
            baseline=component.baseline(loaded.value),
            update=None if previous is None else component.update(previous, loaded.value),
            removal=component.removal(loaded.value),
            sources=loaded.sources,
        )
        part: Part = "baseline" if first else "new" if previous is None else "changed"
        changes.append(ComponentChange(key, part, address(text)))
        made[changes[-1].address] = text
    prefixes = tuple(key for key in unavailable if key.endswith("/"))
    for key, at in state.believed.items():
        gone = key not in now and not key.startswith(prefixes)
        if gone and (known := texts.get(at)) is not None and known.removal is not None:
            changes.append(ComponentChange(key, "removed", at))
    return Differences(tuple(changes), made)


def _decoded(component: Component[Any], text: ComponentText) -> Any:  # noqa: ANN401 - the component's own type
    """The value of ``text``, None if the current version of the component cannot decode it."""
    try:
        return component.decode(text.value.encode())
    except msgspec.DecodeError:
        return None
