"""Planner of the layout ``append``: a baseline, then the conversation in order, then updates. Pure.

A window is planned in batches, one for each request: a batch appends everything new since the last one. Invariant: a
batch depends on the session and the current window only, never on the window that would be made from scratch; so
nothing that was sent moves.

A reply is added once all of its tool calls have an output, as providers reject a call without one. If the conversation
continues without an output, a placeholder takes its place; a later output is an update. A recorded tool call that no
event names is shown as if the model had just made it.
"""

from collections import ChainMap, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from ctxd.assembly.append_window import AppendWindow, Arrivals, FileState, Level, NotedObject, Planned
from ctxd.assembly.file_mentions import occurring
from ctxd.assembly.repack_policy import Kind
from ctxd.assembly.request_bodies import BEGIN, CONTINUE, SYSTEM_UPDATES_SINCE
from ctxd.assembly.request_target import PROVIDERS
from ctxd.assembly.window_items import SystemUpdates
from ctxd.assembly.window_lanes import INLINE_MAX, OBJECT_SIZE
from ctxd.assembly.window_references import (
    WHOLE,
    CallFacts,
    EpochRef,
    EventRef,
    ObjectRef,
    ObjectRole,
    Ref,
    TextKind,
    TextRef,
    arguments_of,
    baseline_of,
    call_facts,
    call_name,
    pictures,
    short_id,
    tool_name,
)
from ctxd.epochs.component_changes import Differences
from ctxd.epochs.epoch_state import next_event
from ctxd.objects.document import Stored
from ctxd.objects.version_state import state_of, unkept_text
from ctxd.sessions.session_state import EventPosition
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)

NO_OUTPUT: Final = "[no output of this call came: it was interrupted, or it is still running]"


class _Step(msgspec.Struct, frozen=True, gc=False):
    """Events added together: one reply, or one event of another kind. ``seq``: that of the first event's write."""

    seq: int
    events: tuple[tuple[EventPosition, Event], ...]
    is_reply: bool


def _steps(events: Sequence[tuple[EventPosition, int, Event]]) -> list[_Step]:
    """``events`` in steps. A reply ends at any other kind of event, and where the provider's message ends."""
    steps: list[_Step] = []
    reply: list[tuple[EventPosition, Event]] = []
    since = 0

    def end() -> None:
        if reply:
            steps.append(_Step(since, tuple(reply), is_reply=True))
            reply.clear()

    for place, seq, event in events:
        match event:
            case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                if (
                    reply
                    and None not in (event.message, reply[-1][1].message)
                    and event.message != reply[-1][1].message
                ):
                    end()
                since = since if reply else seq
                reply.append((place, event))
            case PromptEvent() | ToolResultEvent() | SystemEvent() | CompactionEvent():
                end()
                steps.append(_Step(seq, ((place, event),), is_reply=False))
            case _:
                # Events of other kinds are not shown to the model.
                pass
    end()
    return steps


class PlanRules(msgspec.Struct, frozen=True):
    """Rules for the model of a window. ``cuts``: tokens to which an output is cut, by its kind. ``system_updates``:
    None if the window is for no model. ``budget_tokens``: that of the request, 0 if the window is for no model."""

    cuts: Mapping[Kind, int]
    system_updates: SystemUpdates | None = None
    budget_tokens: int = 0


class Planner:
    """Plans one batch for ``window``, which it does not change. Each instance is used once.

    ``size``: the characters of arguments in the batch, and ``OBJECT_SIZE`` for each other part; beyond ``INLINE_MAX``
    it is a lower bound.
    """

    def __init__(
        self,
        window: AppendWindow,
        batch: Arrivals,
        *,
        rules: PlanRules,
        differing: Differences,
        tools: tuple[str, ...] | None,
    ) -> None:
        """``differing``: components that differ from those shown to the model; ``tools``: names of the tools that the
        request declares, None if the window is for no request."""
        self._window = window
        self._batch = batch
        self._cuts = rules.cuts
        self._budget = rules.budget_tokens
        self._system_updates = rules.system_updates if window.renderer >= SYSTEM_UPDATES_SINCE else None
        self._differing = differing
        self._tools = tools
        self._names: dict[str, str] = {}
        self._facts: dict[str, CallFacts] = {}
        self._taken = ChainMap(self._facts, window.facts)
        self._tried: dict[str, int] = {}
        self._noted: list[NotedObject] = []
        self._keys_made = 0
        self._turn = batch.turn
        self._arguments: list[str] = []
        self._results: dict[str, deque[tuple[EventPosition, ToolResultEvent]]] = {}
        sized = [stored.document.payload.get("args") for stored in batch.recorded]
        for place, _, event in batch.events:
            if isinstance(event, ToolResultEvent) and event.call is not None:
                self._results.setdefault(event.call, deque()).append((place, event))
            elif isinstance(event, ToolCallEvent):
                sized.append(event.args)
        self.size = OBJECT_SIZE * (len(batch.events) + len(batch.recorded) + len(batch.files))
        for args in sized:
            if self.size > INLINE_MAX:
                break
            self.size += len(args if isinstance(args, str) else msgspec.json.encode(args))

    def plan(self) -> Planned:
        """The batch as references. Files are noted last, as they depend on the calls."""
        batch, first = self._batch, not self._window.refs
        talk, place = self._conversation()
        changes, update = self._differing.changes, None
        event = next_event(self._window.epoch, changes, self._tools, is_first=first)
        if updates := tuple(change for change in changes if change.part != "baseline"):
            native = None if self._system_updates is None else self._system_updates != "none"
            update = EpochRef(key=self._key(), turn=self._turn, role="update", parts=updates, is_system=native)
            if self._system_updates != "behind_user":
                talk.insert(self._before_prompts(talk), (update, True))
        self._noted += [NotedObject(each.document.id, each.tx, "pool") for each in batch.passed]
        contents, lines = self._files()
        refs: list[Ref] = []
        if not first:
            refs += [*(ref for ref, _ in talk), *self._prompt("prompt"), *contents]
            refs += [self._text("pool", "\n".join(lines))] if lines else []
            speaks_last = bool(talk) and not talk[-1][1] and len(refs) == len(talk)
        else:
            refs += self._prompt("system")
            if event is not None and (baseline := baseline_of(event, self._turn)) is not None:
                refs.append(baseline)
            refs += [self._text("system", "\n".join(("Known files and tool calls:", *lines)))] if lines else []
            refs += contents
            if not contents and talk and not talk[0][1]:
                refs.append(self._text("marker", BEGIN))
            refs += [ref for ref, _ in talk]
            speaks_last = not talk[-1][1] if talk else not contents
        if speaks_last:
            # The last message of a request must be the user's.
            refs.append(self._text("marker", CONTINUE))
        if update is not None and self._system_updates == "behind_user":
            refs.append(update)
        noted, prompt = tuple(self._noted), None if batch.prompt is None else batch.prompt.tx
        return Planned(
            refs=tuple(refs), place=place, noted=noted, names=self._names, facts=self._facts, prompt=prompt,
            event=event, texts=self._differing.texts,
        )  # fmt: skip

    def _before_prompts(self, talk: Sequence[tuple[Ref, bool]]) -> int:
        """The index in ``talk`` after the last reply and its outputs: updates go before new messages of the user."""
        prompts = {place for place, _, event in self._batch.events if isinstance(event, PromptEvent)}
        at = len(talk)
        while at and isinstance(ref := talk[at - 1][0], EventRef) and ref.at in prompts:
            at -= 1
        return at

    # --- references ---

    def _key(self) -> str:
        self._keys_made += 1
        return f"{self._batch.number}-{self._keys_made}"

    def _text(self, kind: TextKind, text: str, call: str = "") -> TextRef:
        return TextRef(key=self._key(), turn=self._turn, kind=kind, text=text, call=call)

    def _object(
        self, stored: Stored, role: ObjectRole, call: str = "", label: str = "", shown: int = WHOLE
    ) -> ObjectRef:
        return ObjectRef(
            key=self._key(),
            turn=self._turn,
            shown=shown,
            object=stored.document.id,
            valid_time=stored.valid_time,
            tx=stored.tx,
            role=role,
            call=call,
            label=label,
        )

    def _prompt(self, role: Literal["system", "prompt"]) -> list[Ref]:
        prompt = self._batch.prompt
        if prompt is None or prompt.content_ref is None or not self._batch.has_new_prompt:
            return []
        return [self._object(prompt, role)]

    # --- conversation ---

    def _conversation(self) -> tuple[list[tuple[Ref, bool]], EventPosition]:
        """References, each with True if it is on the user's side, and the place of the first event not shown yet."""
        steps = _steps(self._batch.events)
        named = self._named()
        recorded = deque(stored for stored in self._batch.recorded if stored.document.id not in named)
        talk: list[tuple[Ref, bool]] = []
        followed = max((at for at, step in enumerate(steps) if _goes_on(step)), default=-1)
        place = self._batch.end
        for at, step in enumerate(steps):
            self._turn = step.events[0][0][0]
            # A compaction is newer than the calls that it keeps, which follow it.
            while recorded and recorded[0].tx <= step.seq and not isinstance(step.events[0][1], CompactionEvent):
                talk += self._recorded(recorded.popleft())
            if not step.is_reply:
                talk += self._other(*step.events[0])
            elif at < followed or self._is_complete(step):
                talk += self._reply(step, is_first=not talk)
            else:
                place = step.events[0][0]
                break
        self._turn = self._batch.turn
        for stored in recorded:
            talk += self._recorded(stored)
        return talk, place

    def _named(self) -> set[str]:
        """Ids of the tool call objects that events of the batch name: they are shown in the place of these events."""
        outputs, named = self._batch.outputs, set()
        for _, _, event in self._batch.events:
            match event:
                case ToolCallEvent(call=call) if call in outputs:
                    named.add(outputs[call].document.id)
                case ToolResultEvent(object=str(object)):
                    named.add(object)
        return named

    def _is_complete(self, step: _Step) -> bool:
        calls = [event.call for _, event in step.events if isinstance(event, ToolCallEvent)]
        return all(self._is_shown(call) or call in self._batch.outputs or call in self._results for call in calls)

    def _is_shown(self, own: str) -> bool:
        """True if the window has the call ``own`` without an output, or with the one that its object has. If it has
        another output, this is a new call with a used id."""
        if (shown := self._shown_as(own)) is None:
            return False
        facts, stored = self._taken[shown], self._batch.outputs.get(own)
        return not facts.has_output or (stored is not None and facts.object == stored.document.id)

    def _shown_as(self, own: str) -> str | None:
        return self._names.get(own) or self._window.names.get(own)

    def _reply(self, step: _Step, *, is_first: bool) -> Iterator[tuple[Ref, bool]]:
        """References of a reply, each with True for the user's side. ``is_first``: it is the reply to
        the last request."""
        window, turn = self._window, self._turn
        calls: dict[str, str] = {}
        for at, event in step.events:
            key = f"{at[0]}.{at[1]}"
            match event:
                case ThinkingEvent():
                    asked = window.request if is_first else None
                    yield (
                        EventRef(
                            key=key,
                            turn=turn,
                            at=at,
                            provider=None if asked is None else PROVIDERS[asked.format],
                            model=event.model or (None if asked is None else asked.model),
                            prefix=None if asked is None else asked.prefix,
                        ),
                        False,
                    )
                case ToolCallEvent():
                    # Show a call once, even if the harness added it again when it recorded the call.
                    is_new = not self._is_shown(event.call) or event.call in self._results
                    if is_new and event.call not in calls:
                        arguments = arguments_of(event.args)
                        shown = self._name(event.call, event.tool, arguments)
                        calls[event.call] = shown
                        tokens = self._arguments_cut(arguments)
                        stored = self._batch.outputs.get(event.call) if tokens else None
                        if stored is None:
                            yield EventRef(key=key, turn=turn, at=at, call=shown, shown=tokens), False
                        else:
                            # Refer to the object, so that the cut arguments can be loaded.
                            use = self._object(stored, "use", shown, shown=tokens)
                            yield msgspec.structs.replace(use, own=event.call), False
                case ResponseEvent() if event.text.strip():
                    yield EventRef(key=key, turn=turn, at=at), False
        for own, shown in calls.items():
            yield self._output(own, shown), True

    def _name(self, own: str, tool: str, arguments: str) -> str:
        """Note a call, and return its id in the window."""
        shown = call_name(own, self._taken, self._tried)
        self._names[own] = shown
        self._facts[shown] = call_facts(tool_name(tool), arguments)
        self._arguments.append(arguments)
        return shown

    def _arguments_cut(self, arguments: str) -> int:
        """Tokens to which ``arguments`` are cut: those of a file, as long arguments are usually the content of one."""
        most = self._cuts["file"]
        return most if len(arguments) > most else WHOLE

    def _output(self, own: str, shown: str) -> Ref:
        facts = self._facts[shown]
        results = self._results.get(own)
        at, result = results.popleft() if results else (None, None)
        if results is not None and not results:
            del self._results[own]
        id = own if result is None or result.object is None else result.object
        if (stored := self._batch.outputs.get(id)) is not None:
            return self._object_output(stored, shown)
        if at is None or result is None or result.object is not None:
            return self._text("output", NO_OUTPUT, shown)
        facts.has_output = True
        return EventRef(key=f"{at[0]}.{at[1]}", turn=self._turn, at=at, call=shown, shown=self._cuts[facts.kind])

    def _object_output(self, stored: Stored, shown: str) -> Ref:
        id = stored.document.id
        self._facts[shown].object, self._facts[shown].has_output = id, True
        self._names[id] = shown
        self._noted.append(NotedObject(id, stored.tx, "active"))
        return self._object(stored, "output", shown, shown=self._cuts[self._facts[shown].kind])

    def _recorded(self, stored: Stored) -> Iterator[tuple[Ref, bool]]:
        """A tool call that no event describes: its object has both the call and its output."""
        id, payload = stored.document.id, stored.document.payload
        if self._shown_as(id) is not None:
            return
        arguments = arguments_of(payload.get("args"))
        shown = self._name(id, payload["tool"], arguments)
        yield self._object(stored, "use", shown, shown=self._arguments_cut(arguments)), False
        yield self._object_output(stored, shown), True

    def _other(self, at: EventPosition, event: Event) -> Iterator[tuple[Ref, bool]]:
        key, turn = f"{at[0]}.{at[1]}", self._turn
        match event:
            case PromptEvent() if event.text.strip() or any(pictures(event.attachments)):
                yield EventRef(key=key, turn=turn, at=at), True
            case SystemEvent() if event.text.strip():
                yield EventRef(key=key, turn=turn, at=at), True
            case CompactionEvent() if event.summary.strip():
                yield EventRef(key=key, turn=turn, at=at), True
            case ToolResultEvent():
                yield from self._result(at, event)

    def _result(self, at: EventPosition, event: ToolResultEvent) -> Iterator[tuple[Ref, bool]]:
        """A result whose reply was shown before, or that has no reply."""
        names = [name for name in (event.call, event.object) if name is not None]
        shown = next((found for name in names if (found := self._shown_as(name)) is not None), None)
        stored = None if event.object is None else self._batch.outputs.get(event.object)
        if shown is not None:
            facts = self._facts.get(shown) or self._window.facts[shown]
            if facts.has_output:
                return
            self._facts[shown] = msgspec.structs.replace(facts, has_output=True)
        elif stored is not None:
            yield from self._recorded(stored)
            return
        if stored is not None:
            self._noted.append(NotedObject(stored.document.id, stored.tx, "active"))
            output = self._object(stored, "late", shown or "", shown=self._cuts["other"])
            yield msgspec.structs.replace(output, is_cut=True), True
        elif event.object is None:
            key, most = f"{at[0]}.{at[1]}", self._cuts["other"]
            images = 0 if any(pictures(event.attachments)) else -1
            late = EventRef(key=key, turn=self._turn, at=at, call=shown or "", late=True, shown=most, is_cut=True)
            yield msgspec.structs.replace(late, pictures=images), True

    # --- files ---

    def _files(self) -> tuple[list[Ref], list[str]]:
        """Contents to show whole, and lines about other changes."""
        contents: list[Ref] = []
        lines: list[str] = []
        files = self._batch.files
        mentions = occurring((file.mention for file in files.values()), self._arguments) if files else set[str]()
        for id, file in files.items():
            known = self._window.noted.get(id)
            was_active = known is not None and known.level in ("active", "bare")
            is_mentioned, has_content = file.mention in mentions, file.stored.content_ref is not None
            is_shown = known is not None and known.level == "active" and not self._wants_rest(known, file)
            # The call that read or wrote a file has shown the model the part that it needs.
            wants = file.chosen or not (was_active or is_mentioned)
            loads = file.active and has_content and not is_shown and wants
            is_file = file.stored.document.type == "file"
            is_bare = is_file and not is_shown and not loads
            level: Level = "pool" if not file.active else "bare" if is_bare else "active"
            is_same = known is not None and known.tx == file.stored.tx
            if known is not None and is_same and known.level == level and not loads:
                continue
            # An edit by the model shows only a part, so the rest of a file that was cut is still missing.
            cut_budget = known.cut_budget if known is not None and is_shown and is_mentioned else 0
            self._noted.append(NotedObject(id, file.stored.tx, level, is_file, cut_budget))
            name = f"id={short_id(id)} {file.label}"
            if known is None or known.level == "gone":
                lines.append(f"{name}{_state(file.stored)}")
            if loads:
                contents.append(self._object(file.stored, file.role, label=file.label))
            elif file.active and was_active and not is_mentioned and not is_same:
                if has_content and file.chosen:
                    contents.append(self._object(file.stored, "changed", label=file.label))
                else:
                    lines.append(f"{name}{_state(file.stored) or ' changed since you read it'}")
            elif was_active and not file.active:
                lines.append(f"{name} is no longer active")
        for id in self._batch.gone:
            self._noted.append(NotedObject(id, 0, "gone"))
            lines.append(f"id={short_id(id)} is no longer in the metadata pool")
        return contents, lines

    def _wants_rest(self, known: NotedObject, file: FileState) -> bool:
        """True if content that the budget cut is not to count as shown: the budget has grown, so that it may fit now,
        or the object is no longer kept, so that a later request for it loads it."""
        if not known.cut_budget or file.stored.content_ref is None:
            return False
        return not file.chosen or known.cut_budget < self._budget


def _goes_on(step: _Step) -> bool:
    """True if the conversation after ``step`` no longer waits for outputs of earlier replies."""
    return step.is_reply or isinstance(step.events[0][1], PromptEvent | CompactionEvent)


def _state(stored: Stored) -> str:
    state = state_of(stored.document)
    mark = unkept_text(stored.document) if state == "present" else state
    return f" [{mark}]" if mark else ""
