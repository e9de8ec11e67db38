"""Context epochs as a fold of events: the system context that the model has received, and its next changes. Pure.

An *epoch* has one baseline, at the beginning of a window; later changes are updates in chronological order. The state
is the fold of the session's events, one for each request that changes it: the text that showed each component's value,
by the address of the stored text. A new window (a compaction, a repack, another model or provider) begins an epoch. Its
baseline is the state that the model was shown last; no source is read for it, and any difference is an update after it.

Appending an event is a compare-and-set on the head and the epoch (``append``): after a lost race, all components are
observed again. Sources: the instructions of opencode 2.0, the revision check of its first version.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from ctxd.epochs.component import FileVersion

EpochCause = Literal["first", "unknown", "compaction", "repack", "model", "provider", "fork"]
"""The reason for a new epoch. ``unknown``: the earlier context of the model is not recorded, as in an imported
session."""

Part = Literal["baseline", "new", "changed", "removed"]
"""Role of a text: in the baseline, or in an update because a component is new, changed, or gone."""

PURGED_PART: Final = "[purged]"
"""Placeholder for a purged text."""


class ComponentText(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Value of a component with its texts, as rendered when it was observed; stored under its address.

    ``value``: canonical JSON. ``update``: the text that replaces the previous value, None if there was no previous
    value. ``removal``: the text once the component is gone; None to keep the old text in force without an update.
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
    """One component in an event: its key, the role of its text, and the address of its ``ComponentText``. A removed
    component has the address of its last one."""

    key: str
    part: Part
    address: str


class EpochEvent(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Change of the system context that the model has, recorded with the assembly whose request shows it.

    ``begins``: the reason for a new epoch, None within one. An event that begins an epoch is complete: its changes with
    the part ``baseline`` are the whole state, the others are updates after it. ``tools``: the names of the tools
    declared from now on, None for no change.
    """

    epoch: int
    begins: EpochCause | None = None
    changes: tuple[ComponentChange, ...] = ()
    tools: tuple[str, ...] | None = None


class EpochState(msgspec.Struct, frozen=True):
    """Fold of events. ``epoch`` 0: unknown, before the first event.

    ``baseline`` and ``believed``: addresses by key, at the beginning of the epoch and now. ``gone``: tombstones, the
    components removed in this epoch. ``updates``: the changes since the baseline, in order.
    """

    epoch: int = 0
    baseline: Mapping[str, str] = {}
    believed: Mapping[str, str] = {}
    gone: tuple[str, ...] = ()
    updates: tuple[ComponentChange, ...] = ()
    tools: tuple[str, ...] = ()


class EpochHead(msgspec.Struct, frozen=True):
    """Position at which an event is appended: the number of the newest assembly, and the epoch after it."""

    assembly: int
    epoch: int


class LostRace(Exception):
    """The head or the epoch changed after the components were observed. Observe everything again."""


def apply_event(state: EpochState, event: EpochEvent) -> EpochState:
    """``state`` after ``event``. Raises: ValueError for an event of another epoch, or one that changes or removes a
    component that is not in ``believed``."""
    expected = state.epoch if event.begins is None else state.epoch + 1
    # An event that begins an epoch can be folded without the events before it.
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


def replay_events(events: Iterable[EpochEvent]) -> EpochState:
    """The state after ``events``, in order. Raises: as ``apply_event``."""
    state = EpochState()
    for event in events:
        state = apply_event(state, event)
    return state


def append(state: EpochState, head: EpochHead, expected: EpochHead, event: EpochEvent | None) -> EpochState:
    """``state`` after ``event``, which was decided at ``expected``; unchanged if ``event`` is None.

    Raises: LostRace if ``head`` has changed meanwhile, ValueError as ``apply_event``.
    """
    if head != expected:
        raise LostRace
    return state if event is None else apply_event(state, event)


def begin_epoch(
    state: EpochState,
    reason: EpochCause,
    changes: Iterable[ComponentChange] = (),
    tools: tuple[str, ...] | None = None,
) -> EpochEvent:
    """The event that begins an epoch after ``state``: its baseline is ``believed``, and ``changes`` are updates after
    it; in the very first epoch, ``changes`` may be the baseline. ``tools``: those declared from now on, None for those
    of ``state``."""
    kept = tuple(ComponentChange(key, "baseline", address) for key, address in state.believed.items())
    declared = state.tools if tools is None else tools
    return EpochEvent(epoch=state.epoch + 1, begins=reason, changes=(*kept, *changes), tools=declared)


def next_event(
    state: EpochState, changes: tuple[ComponentChange, ...], tools: tuple[str, ...] | None, *, is_first: bool
) -> EpochEvent | None:
    """The event after ``state`` for a request with ``changes`` that declares ``tools``, None if nothing changes.

    ``is_first``: the request is the first of its window. ``tools``: None if the window is for no request.
    """
    declared = None if tools == state.tools else tools
    if is_first:
        return begin_epoch(state, "compaction" if state.epoch else "first", changes, declared)
    if not state.epoch:
        return begin_epoch(state, "unknown", changes, declared)
    if not changes and declared is None:
        return None
    return EpochEvent(epoch=state.epoch, changes=changes, tools=declared)
