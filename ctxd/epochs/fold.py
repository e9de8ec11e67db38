"""Context epochs as a fold of events: the system context that the model has received, and what it reads next. Pure.

An *epoch* has one baseline, at the beginning of a window; later changes are updates in the order of time. The state is
the fold of the session's events, one for each request that changes it: which text each component's value was shown in,
by the address of the stored text. A new window (a compaction, a repack, another model or provider) begins an epoch
whose baseline is what the model believes by then, no source is read for it; what differs is an update behind it.

``differences`` compares the components as they are now with the belief. An unavailable component keeps its value;
before the first baseline it has none, and blocks the request. A value that is new, or whose stored form is not
understood, is shown in its baseline text, a changed one in its update text, one that is gone in the removal text stored
with it, once. Appending an event is a compare-and-set on the head and the epoch (``append``): after a lost race all
components are observed again. Sources: the instructions of opencode 2.0, the revision check of its first version.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal

import msgspec

from ctxd.epochs.component import Component, FileVersion, Loaded, UnavailableComponent

Begin = Literal["first", "unknown", "compaction", "repack", "model", "provider", "fork"]
"""The reason for a new epoch. ``unknown``: what the model had before is not recorded, as in an imported session."""

Part = Literal["baseline", "new", "changed", "removed"]
"""Role of a text: in the baseline, or in an update because a component is new, changed, or gone."""

PURGED_PART: Final = "[purged]"
"""Text that stands for a purged one."""


class ComponentText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of a component with its texts, as rendered when it was observed; stored under its address.

    ``value``: canonical JSON. ``update``: the text by which it replaced the value before it, None for a value that
    replaced none. ``removal``: the text once the component is gone, None to keep it without a word.
    """

    key: str
    value: str
    baseline: str
    update: str | None = None
    removal: str | None = None
    sources: tuple[FileVersion, ...] = ()

    def text(self, part: Part) -> str:
        """The text in the role ``part``."""
        match part:
            case "changed":
                return self.baseline if self.update is None else self.update
            case "removed":
                return self.removal or ""
            case _:
                return self.baseline


class ComponentChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One component in an event: its key, the role of its text, and the address of its ``ComponentText``; of a removed
    component the address of its last one."""

    key: str
    part: Part
    address: str


class EpochEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Change of what the model believes, recorded with the assembly whose request shows it.

    ``begins``: the reason for a new epoch, None within one. An event that begins an epoch is complete: its changes of
    the part ``baseline`` are all that the model believes, the others came to it as updates. ``tools``: the names of the
    tools that are declared from now on, None for no change.
    """

    epoch: int
    begins: Begin | None = None
    changes: tuple[ComponentChange, ...] = ()
    tools: tuple[str, ...] | None = None


class EpochState(msgspec.Struct, frozen=True):
    """Fold of events. ``epoch`` 0: unknown, before the first event.

    ``baseline`` and ``believed``: addresses by key, at the beginning of the epoch and now. ``gone``: tombstones, the
    components that were removed in this epoch. ``updates``: the changes since the baseline, in order.
    """

    epoch: int = 0
    baseline: Mapping[str, str] = {}
    believed: Mapping[str, str] = {}
    gone: tuple[str, ...] = ()
    updates: tuple[ComponentChange, ...] = ()
    tools: tuple[str, ...] = ()


class EpochHead(msgspec.Struct, frozen=True):
    """Position at which an event is appended: the number of the newest assembly, and the epoch that it left."""

    assembly: int
    epoch: int


class LostRace(Exception):
    """The head or the epoch moved since the components were observed. Observe everything again."""


class Blocked(Exception):
    """A component of the first baseline is unavailable: ``key``, and the reason."""

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"component {key} is unavailable: {reason}")
        self.key = key
        self.reason = reason


def folded(state: EpochState, event: EpochEvent) -> EpochState:
    """``state`` after ``event``. Raises: ValueError for an event of another epoch, or one that changes or removes what
    is not believed."""
    expected = state.epoch if event.begins is None else state.epoch + 1
    # The events before an epoch are not needed for its own.
    if event.epoch != expected and not (event.begins is not None and state.epoch == 0 and event.epoch > 0):
        raise ValueError(f"an event of epoch {event.epoch} follows epoch {state.epoch}")
    believed, gone, updates = dict(state.believed), list(state.gone), list(state.updates)
    if event.begins is not None:
        believed, gone, updates = {}, [], []
    baseline = dict(believed) if event.begins is not None else dict(state.baseline)
    for change in event.changes:
        match change.part:
            case "baseline" if event.begins is not None and not updates and change.key not in baseline:
                baseline[change.key] = believed[change.key] = change.address
                continue
            case "new" | "changed" if change.part == "new" or change.key in believed:
                believed[change.key] = change.address
                gone = [key for key in gone if key != change.key]
            case "removed" if believed.pop(change.key, None) is not None:
                gone.append(change.key)
            case _:
                raise ValueError(f"{change.key} cannot be {change.part} in epoch {event.epoch}")
        updates.append(change)
    tools = state.tools if event.tools is None else event.tools
    return EpochState(event.epoch, baseline, believed, tuple(gone), tuple(updates), tools)


def fold(events: Iterable[EpochEvent]) -> EpochState:
    """The state after ``events``, in order. Raises: as ``folded``."""
    state = EpochState()
    for event in events:
        state = folded(state, event)
    return state


def append(state: EpochState, head: EpochHead, expected: EpochHead, event: EpochEvent | None) -> EpochState:
    """``state`` after ``event``, which was decided at ``expected``; itself after None.

    Raises: LostRace if ``head`` is another one by now, ValueError as ``folded``.
    """
    if head != expected:
        raise LostRace
    return state if event is None else folded(state, event)


Addressing = Callable[[ComponentText], str]
"""The address of a text, by its content: equal texts have equal addresses."""


Components = Mapping[str, tuple[Component[Any], Loaded[Any] | UnavailableComponent]]
"""Components of a session with what was loaded of each, by key, in order."""


class Differences(msgspec.Struct, frozen=True):
    """Result of an observation: the changes, in order, and the texts of those that need a new one, by address."""

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
    """The differences between the components ``now``, in order, and the belief of ``state``.

    ``texts``: those of the belief, without purged ones. ``address``: see ``Addressing``. ``first``: the request makes
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
    """The value of ``text``, None if this version of the component does not understand it."""
    try:
        return component.decode(text.value.encode())
    except msgspec.DecodeError:
        return None


def begun(state: EpochState, reason: Begin, changes: Iterable[ComponentChange] = ()) -> EpochEvent:
    """The event that begins an epoch after ``state``: its baseline is the belief, ``changes`` are updates behind it; in
    the first epoch of all they are the baseline."""
    kept = tuple(ComponentChange(key, "baseline", address) for key, address in state.believed.items())
    return EpochEvent(epoch=state.epoch + 1, begins=reason, changes=(*kept, *changes), tools=state.tools)


def forked(events: Iterable[EpochEvent]) -> EpochEvent:
    """The first event of a session that goes on from the end of ``events``, those of its parent up to the fork: the
    parent's belief is its baseline."""
    return begun(fold(events), "fork")


def reverted(events: Iterable[tuple[int, EpochEvent]], turn: int) -> EpochState:
    """The belief after a revert to ``turn``: the fold of the ``events`` of turns up to it, each with its turn."""
    return fold(event for at, event in events if at <= turn)
