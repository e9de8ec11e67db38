"""Loading of windows: from their records, from later events of the session, and from the data both refer to.

A window is stored in the records of its assemblies, each of which has the part that it added. In memory it is a cache:
a window that is read again, after a restart or an eviction, is the same window, byte for byte.
"""

from collections import ChainMap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Final

import msgspec

from ctxd import limits
from ctxd.assembly.append_window import AppendWindow, Arrivals, FileState, Planned
from ctxd.assembly.assembly_record import Recorded, WindowPart, note_assembly
from ctxd.assembly.token_budget import TokenCounter
from ctxd.assembly.window_items import (
    ToolUse,
    WindowItem,
)
from ctxd.assembly.window_lanes import WindowLanes, work_size
from ctxd.assembly.window_references import (
    WHOLE,
    CallFacts,
    EpochRef,
    EventRef,
    Material,
    ObjectRef,
    Ref,
    call_facts,
    items_of,
)
from ctxd.epochs.component_loading import read_text
from ctxd.epochs.epoch_state import ComponentText
from ctxd.errors import CtxdError
from ctxd.objects.document import AsOf, Content, Stored
from ctxd.objects.generated_ids import component_text_id
from ctxd.sessions.chat import read_pages
from ctxd.sessions.compaction_kept_messages import has_summary, keeps_from_one_on, kept_events
from ctxd.sessions.id_resolution import ids_of_call
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_state import EventPosition
from ctxd.sessions.stored_session import events_memory
from ctxd.store import commit_index
from ctxd.store.version_store import VersionStore
from ctxd_protocol.event_types import CompactionEvent, Event, ToolCallEvent, ToolResultEvent
from ctxd_protocol.ids import system_prompt_id

_FACTOR: Final = 2
"""Bytes that may be read for each character of a context: of long contents a window has the beginning and the end.
Of a large event that is not ASCII each byte counts as two, as it takes up to five in memory."""

_READ_BYTES_MAX: Final = 4 * limits.CONTEXT_CHARS_MAX
"""Bytes that may be read for a context of any length."""

_UNMEASURED_MAX: Final = 4
"""Contents that are read without a look at their sizes, as those of most requests are: none has more than 8 MiB."""


class ReadBound:
    """The bytes of messages and contents that may be read for one context of ``session``, one of at most ``chars_max``
    characters: all of it is in memory at once."""

    def __init__(self, session: str, chars_max: int | None) -> None:
        self._session = session
        self._most = _READ_BYTES_MAX if chars_max is None else min(_READ_BYTES_MAX, _FACTOR * chars_max)
        self._left = self._most

    @property
    def taken(self) -> int:
        """The bytes counted so far."""
        return self._most - self._left

    def take(self, size: int) -> None:
        """Count ``size`` more bytes. Raises: CtxdError too_large beyond the bound."""
        self._left -= size
        if self._left < 0:
            raise CtxdError(
                "too_large",
                f"the context of session {self._session} is made of at least {self._most - self._left:,} bytes of"
                f" messages and contents, {self._most:,} are read here at most",
                hint="Deactivate large objects, or continue in a new session."
                if self._most == _READ_BYTES_MAX
                else "Call the host's socket, which reads more, or continue in a new session.",
                outcome="not_applied",
            )


class WindowReader:
    """Reads the data that windows refer to from ``store``, and counts its tokens with ``count``, in ``lanes``."""

    def __init__(self, store: VersionStore, count: TokenCounter, lanes: WindowLanes) -> None:
        self._store = store
        self.count = count
        self.lanes = lanes

    async def load(self, live: LiveSession, chain: Sequence[Recorded], bound: ReadBound) -> AppendWindow:
        """The window recorded in ``chain``, its records from the first one on.

        Raises: CtxdError too_large, corrupt, store_failed. Cancel: safe.
        """
        parts = [(record, record.window) for record in chain if record.window is not None]
        refs = [ref for _, part in parts for ref in part.refs]
        material = await self.material(live, refs, {}, {}, {}, bound)
        size = work_size(len(refs), bound.taken + material.content_chars)
        return await self.lanes.run(live.session, size, partial(_recorded_window, parts, material))

    async def items(
        self, live: LiveSession, window: AppendWindow, planned: Planned, material: Material, bound: ReadBound
    ) -> list[tuple[WindowItem, ...]]:
        """The items of each reference of ``planned``, which comes next in ``window``; it belongs to ``live``."""
        size = work_size(len(planned.refs), bound.taken + material.content_chars)
        return await self.lanes.run(live.session, size, partial(_items, window, planned, material))

    async def batch(
        self, live: LiveSession, window: AppendWindow, number: int, bound: ReadBound
    ) -> tuple[AppendWindow, Arrivals]:
        """Everything of ``live`` that ``window`` does not show yet, for assembly ``number``, and the window to extend:
        a new, empty one if the conversation was compacted since. The caller holds the session's lock.

        Raises: CtxdError too_large, corrupt, store_failed. Cancel: safe.
        """
        state, since = live.state, 0
        events = await self._events(live, window.place, bound)
        spoken = next((model for _, _, event in reversed(events) if (model := getattr(event, "model", None))), None)
        if not window.refs or any(isinstance(event, CompactionEvent) for _, _, event in events):
            compacted = await self._compacted(live, events, bound)
            if compacted is not None:
                window, (events, since) = window.successor(), compacted
        calls = dict(_called(live, events))
        fresh = state.pool.keys() - window.pool.keys()
        entered = _in_order(state.pool, fresh)
        watched = [id for id in state.files(state.active) if id not in fresh]
        left = [id for id in window.active if id not in state.active]
        kept = (*fresh, *state.chosen, *state.pinned)
        known = {id: noted for id in kept if (noted := window.noted.get(id)) is not None}
        # For a call that the window had before, show its content again, not the call.
        again = [
            id
            for id, noted in known.items()
            if noted.level == "gone" or noted.cut_budget or (noted.level == "pool" and id in state.chosen)
        ]
        prompt = system_prompt_id(live.session)
        wanted = dict.fromkeys((*calls.values(), *entered, *watched, *left, *again, prompt))
        heads = await self._store.heads(wanted)
        recorded = [_present(heads[id], id) for id in entered if not state.is_file(id) and id not in known]
        files = {}
        for id in dict.fromkeys((*entered, *watched, *left, *again)):
            if id in state.pool and (state.is_file(id) or id in known):
                head = _present(heads[id], id)
                source = head.document.source
                label = (
                    f"the tool call {head.document.payload['tool']}" if source is None else live.mounts.display(source)
                )
                files[id] = FileState(head, label, id in state.active, id in state.chosen or id in state.pinned)
        return window, Arrivals(
            number=number,
            turn=state.turn,
            events=events,
            end=(len(state.turns) - 1, len(state.turns[-1])),
            recorded=sorted((each for each in recorded if each.tx >= since), key=lambda each: each.tx),
            passed=[each for each in recorded if each.tx < since],
            outputs={call: stored for call, id in calls.items() if (stored := heads[id]) is not None},
            files=files,
            gone=[]
            if len(state.pool) == len(window.pool) + len(fresh)
            else _in_order(window.pool, window.pool.keys() - state.pool.keys()),
            prompt=heads[prompt],
            has_new_prompt=not await self._shows_prompt(window, heads[prompt]),
            spoken=spoken,
        )

    async def _shows_prompt(self, window: AppendWindow, prompt: Stored | None) -> bool:
        """True if ``window`` shows ``prompt``, the head of the system prompt: the same version or, in a fork, one with
        the same content."""
        if prompt is None or window.prompt is None or prompt.tx == window.prompt:
            return prompt is not None and prompt.tx == window.prompt
        shown = next(
            (r for r in reversed(window.refs) if isinstance(r, ObjectRef) and r.role in ("system", "prompt")), None
        )
        if shown is None or shown.object == prompt.document.id:
            return False
        copied = await self._store.get(shown.object, AsOf(valid_time=shown.valid_time, tx=shown.tx))
        return copied is not None and copied.document.content_hash == prompt.document.content_hash

    async def _events(
        self, live: LiveSession, first: EventPosition, bound: ReadBound, only: Collection[EventPosition] | None = None
    ) -> list[tuple[EventPosition, int, Event]]:
        """The events from ``first`` on, or those at the places ``only``."""
        turns = live.state.turns
        if first == (len(turns) - 1, len(turns[-1])):
            return []
        last = max(only) if only else None
        found = []
        async with aclosing(read_pages(live, first, last and (last[0], last[1] + 1))) as pages:
            async for page in pages:
                some = [
                    (place, page.seq, event)
                    for place, event in page.placed()
                    if place >= first and event.sidechain is None and (only is None or place in only)
                ]
                bound.take(events_memory(event for _, _, event in some))
                found += some
        return found

    async def _compacted(
        self, live: LiveSession, events: list[tuple[EventPosition, int, Event]], bound: ReadBound
    ) -> tuple[list[tuple[EventPosition, int, Event]], int] | None:
        """The newest summary among ``events``, the events that it kept, and those after it; and the journal sequence
        from which on recorded tool calls belong to these. None if there is no summary."""
        at = next((n for n in range(len(events) - 1, -1, -1) if has_summary(events[n][2])), None)
        if at is None:
            return None
        place, since, compaction = events[at]
        assert has_summary(compaction)
        kept: list[tuple[EventPosition, int, Event]] = []
        async with aclosing(kept_events(live, place, compaction)) as found:
            async for each in found:
                bound.take(events_memory((each[2],)))
                kept.append(each)
        if kept and keeps_from_one_on(compaction):
            since = kept[0][1]
        return [events[at], *kept, *events[at + 1 :]], since

    async def material(
        self,
        live: LiveSession,
        refs: Iterable[Ref],
        events: Mapping[EventPosition, Event],
        versions: Mapping[str, Stored],
        texts: Mapping[str, ComponentText | None],
        bound: ReadBound,
    ) -> Material:
        """Everything that ``refs`` refer to. ``events``, ``versions`` and ``texts`` are loaded already.

        Raises: CtxdError too_large, corrupt if some of it is missing, store_failed. Cancel: safe.
        """
        places = {ref.at for ref in refs if isinstance(ref, EventRef) and ref.at not in events}
        if places:
            read = {place: event for place, _, event in await self._events(live, min(places), bound, places)}
            events = {**read, **events}
        pairs = {(ref.object, ref.tx): ref for ref in refs if isinstance(ref, ObjectRef)}
        found = {(id, stored.tx): stored for id, stored in versions.items() if (id, stored.tx) in pairs}
        if missing := [pair for pair in pairs if pair not in found]:
            heads = await self._store.heads(id for id, _ in missing)
            for id, tx in missing:
                head = heads[id]
                if head is None or head.tx != tx:
                    head = await self._store.get(id, AsOf(valid_time=pairs[id, tx].valid_time, tx=tx))
                found[id, tx] = _present(head, id)
        wanted = (stored.content_ref for pair, stored in found.items() if pairs[pair].role != "use")
        contents = await self._contents(list(dict.fromkeys(ref for ref in wanted if ref is not None)), bound)
        addresses = {part.address for ref in refs if isinstance(ref, EpochRef) for part in ref.parts} - texts.keys()
        read_texts = await self.texts(live, addresses) if addresses else {}
        return Material(events, found, contents, self.count, {**texts, **read_texts})

    async def _contents(self, refs: Collection[str], bound: ReadBound) -> dict[str, Content]:
        if len(refs) > _UNMEASURED_MAX:
            sizes = await self._store.read_index(partial(commit_index.content_sizes, refs=refs))
            bound.take(sum(sizes.values()))
        return await self._store.contents(refs)

    async def texts(self, live: LiveSession, addresses: Iterable[str]) -> dict[str, ComponentText | None]:
        """The component texts of ``live`` at ``addresses``, its own or those of its ancestors, None for purged ones.

        Raises: CtxdError corrupt if one is missing, store_failed. Cancel: safe.
        """
        stored: dict[str, Stored] = {}
        wanted = list(dict.fromkeys(addresses))
        for session in live.lineage.sessions:
            ids = {address: component_text_id(session, address) for address in wanted if address not in stored}
            heads = await self._store.heads(ids.values())
            stored |= {address: head for address, id in ids.items() if (head := heads[id]) is not None}
        for address in wanted:
            _present(stored.get(address), component_text_id(live.session, address))
        refs = [each.content_ref for each in stored.values() if each.content_ref is not None]
        contents = await self._store.contents(refs)
        return {address: read_text(each, contents) for address, each in stored.items()}


def _recorded_window(parts: Iterable[tuple[Recorded, WindowPart]], material: Material) -> AppendWindow:
    """The window of ``parts``, its records from the first one on."""
    window, count = AppendWindow(), 0
    window.texts |= material.components
    for record, part in parts:
        names, facts = _calls_of(part.refs, material, window.facts)
        planned = Planned(
            refs=part.refs, place=part.place, noted=part.noted, names=names, facts=facts, prompt=part.prompt,
            event=part.epoch,
        )  # fmt: skip
        items = _items(window, planned, material)
        window.take(planned, items)
        window.base, window.renderer = part.base, record.renderer
        count += sum(map(len, items))
        note_assembly(window, record, count)
    return window


def _items(window: AppendWindow, planned: Planned, material: Material) -> list[tuple[WindowItem, ...]]:
    """The items of each reference of ``planned``, which comes next in ``window``."""
    facts = ChainMap(planned.facts, window.facts)
    return [items_of(ref, material, facts) for ref in planned.refs]


def _present(stored: Stored | None, id: str) -> Stored:
    if stored is None:
        raise CtxdError("corrupt", f"{id} is in the session but has no version")
    return stored


def _in_order(ordered: dict[str, None], some: Collection[str]) -> list[str]:
    """``some`` of the keys of ``ordered``, in its order. Cost: the length of the tail of ``ordered`` that contains
    them."""
    found: list[str] = []
    for id in reversed(ordered):
        if len(found) == len(some):
            break
        if id in some:
            found.append(id)
    return found[::-1]


def _called(live: LiveSession, events: Iterable[tuple[EventPosition, int, Event]]) -> Iterator[tuple[str, str]]:
    """The tool call objects that ``events`` name, by the id of the call in the chat and by their own."""
    state = live.state
    for _, _, event in events:
        if isinstance(event, ToolResultEvent) and event.object is not None:
            yield event.object, event.object
        elif isinstance(event, ToolCallEvent):
            for id in ids_of_call(event.call, live.session, live.lineage.ancestors):
                if state.is_a(id, "toolcall"):
                    yield event.call, id
                    break


def _calls_of(
    refs: Iterable[Ref], material: Material, before: Mapping[str, CallFacts]
) -> tuple[dict[str, str], dict[str, CallFacts]]:
    """Names and facts of the calls in ``refs``, see ``AppendWindow``; ``before``: facts of earlier calls."""
    names: dict[str, str] = {}
    facts: dict[str, CallFacts] = {}
    for ref in refs:
        match ref:
            case EventRef() if isinstance(event := material.events[ref.at], ToolCallEvent):
                # Facts are derived from the whole arguments, even if short ones are shown.
                (use,) = items_of(msgspec.structs.replace(ref, shown=WHOLE), material, facts)
                assert isinstance(use, ToolUse)
                names[event.call], facts[ref.call] = ref.call, call_facts(use.tool, use.arguments)
            case ObjectRef(role="use"):
                (use,) = items_of(msgspec.structs.replace(ref, shown=WHOLE), material, facts)
                assert isinstance(use, ToolUse)
                names[ref.own or ref.object], facts[ref.call] = ref.call, call_facts(use.tool, use.arguments)
            case ObjectRef(role="output" | "late") | EventRef() if call := facts.get(ref.call) or before.get(ref.call):
                object = call.object
                if isinstance(ref, ObjectRef):
                    names[ref.object], object = ref.call, ref.object
                facts[ref.call] = msgspec.structs.replace(call, object=object, has_output=True)
    return names, facts
