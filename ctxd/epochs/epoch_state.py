"""Context epochs as a fold of events: the system context that the model has received, and what it reads next. Pure.

An *epoch* has one baseline, at the beginning of a window; later changes are updates in the order of time. The state is
the fold of the session's events, one for each request that changes it: which text each component's value was shown in,
by the address of the stored text. A new window (a compaction, a repack, another model or provider) begins an epoch
whose baseline is what the model believes by then, no source is read for it; what differs is an update behind it.

Appending an event is a compare-and-set on the head and the epoch (``append``): after a lost race all components are
observed again. Sources: the instructions of opencode 2.0, the revision check of its first version.
"""

from collections.abc import Iterable, Mapping
from typing import Final, Literal

import msgspec

from ctxd.epochs.component import FileVersion

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
