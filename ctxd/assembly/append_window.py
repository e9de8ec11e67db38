"""State of the layout ``append`` between two requests: the window, the content shown so far, and the next batch."""

from collections.abc import Mapping, Sequence
from typing import Final, Literal

import msgspec

from ctxd.assembly.request_bodies import WINDOW_RENDERER
from ctxd.assembly.window_items import WindowItem
from ctxd.assembly.window_references import CallFacts, Ref
from ctxd.epochs.epoch_state import ComponentText, EpochEvent, EpochState, apply_event
from ctxd.objects.document import Stored
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.context_types import RequestFormat
from ctxd_protocol.event_types import Event

Level = Literal["pool", "active", "bare", "gone"]
"""Level of an object in the window. ``bare``: a file is active, but the window does not show its content separately, as
a call showed it or a repack removed it."""

ENDS_KEPT: Final = 3
"""Number of recent requests whose ends are kept: each end may get a cache marker."""

_MENTION_CHARS_MIN: Final = 4
"""Shortest file name that counts as a mention of the file in a call's arguments."""


class NotedObject(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An object in the window: its level there, and the transaction of the version shown.

    ``cut_budget``: the budget of the request that cut the content, although it is pinned or active by request; 0 if the
    content is shown whole, or is not kept.
    """

    object: str
    tx: int
    level: Level
    is_file: bool = False
    cut_budget: int = 0


class FileState(msgspec.Struct, frozen=True, gc=False):
    """Current state of an object in the pool: a file, or a tool call whose output the window does not show whole.

    ``label``: the file's path as the agent knows it, or words for a call. ``chosen``: active by request, or pinned.
    """

    stored: Stored
    label: str
    active: bool
    chosen: bool

    @property
    def role(self) -> Literal["active", "call"]:
        """The role of a reference to its content; a call's content is its arguments, which may be cut, and output."""
        return "call" if self.stored.document.type == "toolcall" else "active"

    @property
    def mention(self) -> str:
        """The text that makes a call with it in its arguments one about the file: the name, or the path of a short
        name."""
        name = self.label.rpartition("/")[2]
        return name if len(name) >= _MENTION_CHARS_MIN else self.label


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """Everything new since the last request.

    ``number``: of the assembly; ``turn``: the current one. ``events``: those of the main conversation, each with the
    journal sequence of its write; ``end``: the place after them. ``recorded``: tool calls that entered the pool;
    ``passed``: those that a compaction replaced. ``outputs``: tool call objects by the id of their call in the chat,
    and by their own. ``files``: files of the pool that the window may have to show; ``gone``: objects that left it.
    ``prompt``: None without one; ``has_new_prompt``: the window does not show it yet. ``spoken``: the newest model that
    answered, including in events that a compaction replaced; None if none did.
    """

    number: int
    turn: int
    events: Sequence[tuple[EventPosition, int, Event]]
    end: EventPosition
    recorded: Sequence[Stored]
    passed: Sequence[Stored]
    outputs: Mapping[str, Stored]
    files: Mapping[str, FileState]
    gone: Sequence[str]
    prompt: Stored | None
    has_new_prompt: bool
    spoken: str | None


class LastRequest(msgspec.Struct, frozen=True):
    """A request made from a window, at ``at_ms`` since 1970. ``count``: its number of items. ``prefix``: see
    ``RequestBody``; ``tools``: the hash of the tools that it declared."""

    format: RequestFormat
    model: str
    tools: str
    prefix: str
    at_ms: int
    count: int


class AppendWindow:
    """Window of one session. ``take`` adds a batch; the assembler and the reader of records set the fields of requests.

    ``base``: number of the assembly that began it, 0 for an empty one. ``renderer``: format version of all its
    requests, kept so that an upgrade changes no byte of sent requests; the next window gets the newest. ``refs`` and
    ``items`` are parallel, as a reference may have several items. ``names``: ids of calls in the window, by the call's
    own id and by that of its object. ``facts``: by the id in the window. ``noted``: objects of which something was
    shown; ``pool``: those still in the metadata pool; ``active``: the active files among them. ``place``: the first
    event not shown yet. ``prompt``: transaction of the system prompt shown. ``ends``: item counts at the last requests,
    newest last. ``epoch``: the context epoch; ``texts``: its component texts by address, None if purged. ``carried``:
    of the last decision. ``request``: the last one, None before the first.
    """

    def __init__(self) -> None:
        self.base = 0
        self.renderer = WINDOW_RENDERER
        self.refs: list[Ref] = []
        self.items: list[tuple[WindowItem, ...]] = []
        self.names: dict[str, str] = {}
        self.facts: dict[str, CallFacts] = {}
        self.noted: dict[str, NotedObject] = {}
        self.pool: dict[str, None] = {}
        self.active: dict[str, None] = {}
        self.place: EventPosition = (0, 0)
        self.prompt: int | None = None
        self.ends: list[int] = []
        self.carried: Mapping[str, int] = {}
        self.epoch = EpochState()
        self.texts: dict[str, ComponentText | None] = {}
        self.request: LastRequest | None = None

    @property
    def model(self) -> str | None:
        """Model of the last request, None before the first."""
        return None if self.request is None else self.request.model

    def flat(self) -> list[WindowItem]:
        """All items in order."""
        return [item for items in self.items for item in items]

    def ends_with(self, count: int) -> list[int]:
        """``ends`` after a request of ``count`` items."""
        return [*(end for end in self.ends if end < count), count][-ENDS_KEPT:]

    def successor(self) -> "AppendWindow":
        """An empty window that keeps the epoch, and the component texts that the model has been shown in this one."""
        made = AppendWindow()
        made.epoch = self.epoch
        made.texts = {address: self.texts[address] for address in self.epoch.believed.values()}
        return made

    def take(self, planned: "Planned", items: Sequence[tuple[WindowItem, ...]]) -> None:
        """Add a batch with its items."""
        self.refs += planned.refs
        self.items += items
        self.names |= planned.names
        self.facts |= planned.facts
        for each in planned.noted:
            self.noted[each.object] = each
            if each.level == "gone":
                self.pool.pop(each.object, None)
            else:
                self.pool[each.object] = None
            if each.level in ("active", "bare") and each.is_file:
                self.active[each.object] = None
            else:
                self.active.pop(each.object, None)
        self.place, self.prompt = planned.place, planned.prompt
        self.texts |= planned.texts
        if planned.event is not None:
            self.epoch = apply_event(self.epoch, planned.event)


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A batch as references, and the new state of ``AppendWindow`` once it is added. ``event``: the change of the
    context epoch, None for none; ``texts``: the component texts in it."""

    refs: tuple[Ref, ...]
    place: EventPosition
    noted: tuple[NotedObject, ...]
    names: dict[str, str]
    facts: dict[str, CallFacts]
    prompt: int | None
    event: EpochEvent | None = None
    texts: Mapping[str, ComponentText | None] = {}
