"""Events that a session has from hooks or a hand-over, so that its transcript adds only the missing ones. Pure.

A call and its result are identified by the call's native id, also in the form that a hand-over gave it; other events by
their text, each as often as the session has it: a person may write the same prompt twice. Redacted text is compared
with the transcript's text after redaction by the same rules.
"""

import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain
from typing import Any, Final

import msgspec

from ctxd.formats.compacted_window import replaces
from ctxd.formats.harness_session import portable_call
from ctxd.imports.plan_types import PlannedDelta
from ctxd.transcripts.claude_code import INJECTED, is_typed, without_notices, wrapper_of
from ctxd.transcripts.codex import context_kind
from ctxd.transcripts.hook_events import another_call_id, native_call_id
from ctxd.transcripts.opencode import SUBTASK, SYNTHETIC
from ctxd.transcripts.record_decoding import Record, as_text, record_of, records_of
from ctxd.transcripts.source_lines import SourceLine
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ToolCallEvent,
    ToolResultEvent,
)

_CALL_IDS: Final = ("tool_use_id", "toolCallId", "callID", "call_id", "id")
"""Members of a block that identify its call, in the formats of all harnesses."""

_TAG: Final = re.compile(r"(\[REDACTED:[^:\]]{1,256}):[^\]]{1,64}\]")
"""Replacement of a secret; its tag is made with a key that only the daemon has."""

_COMMAND: Final = re.compile(
    r"<command-name>(/[^<]{1,256})</command-name>(?:.{0,1024}?<command-args>(.*?)</command-args>)?", re.S
)
"""A slash command in a transcript of Claude Code, whose hook reports it as it was typed."""

_SUBMITTED: Final = (INJECTED, "meta")
"""Kinds of notices that Claude Code submits as prompts, also to its hooks, which may get them without their source."""

_OPTIONAL_KINDS: Final = frozenset({"response", "call", "compaction", "notice"})
"""Kinds of events that a transcript may have in another form than the hooks, or may lack after a kill."""

Key = tuple[str, str | bytes]


class ExistingEvents:
    """The events of one session, and those of them that were found in its transcript so far.

    ``since``: bytes of the source that were imported before the session had events of its own. ``newest``: the newest
    commit of the session, made at the instant ``before``: events after the last prompt that the session has continue
    it, all others are older. ``has_commits``: the session has commits of its own. ``redact``: replaces the secrets in a
    text as the daemon does, except for their tags. ``written``: the bytes at the start of the source that a hand-over
    wrote from a context of the session; ``events`` are those after it. ``whole``: the bytes of the source that are
    imported including events that the session has, because the source has turns before them, or goes back to one of
    them. ``continued_at``: the end of the line that was the first to continue the session, 0 before there is one.
    ``is_claude``: the session is one of Claude Code.
    Memory: about 150 bytes for each event.
    """

    def __init__(
        self,
        events: Iterable[Event],
        since: int,
        before: int,
        newest: str | None = None,
        *,
        has_commits: bool = True,
        redact: Callable[[str], str] = str,
        written: int = 0,
        whole: int = 0,
        continued_at: int = 0,
        is_claude: bool = True,
    ) -> None:
        self.since = since
        self.written = written
        self.whole = whole
        self.continued_at = continued_at
        self.is_completed = False
        """True if the source is imported whole for the first time: the session then continues from its chain."""
        self.is_continuation_newest = False
        """True if the session has no event after the first line that continues it."""
        self._first_line: bytes | None = None
        self._has_first_line = False
        self.is_within = False
        """True if the last line is within ``whole``."""
        self._has_commits = has_commits
        self.before = before
        self.newest = newest
        self.left_out = 0
        """Number of lines left out, as the session has all of their content, or all messages in them."""
        self._recorded = Counter[Key]()
        self._redact = redact
        self._redacted: dict[Key, list[Key]] = {}
        """Keys of redacted events that were not found in the transcript yet, by their texts without tags."""
        self._required = Counter[Key]()
        self._reused: dict[str, OrderedDict[str, None]] = {}
        """The ids of calls that share a native id and were not found yet, by that id, in order."""
        self._current: dict[str, str] = {}
        """The recorded id of the call of the transcript that used a shared native id last."""
        for event in chain.from_iterable(map(_as_read, events)) if is_claude else events:
            if isinstance(event, ToolCallEvent):
                self._reused.setdefault(native_call_id(event.call), OrderedDict())[event.call] = None
            for key in _keys(event)[:1]:
                self._recorded[key] += 1
                self._required[key] += event.sidechain is None and key[0] not in _OPTIONAL_KINDS
                if _is_redacted(event) and (by_text := _text_key(event, _without_tags(_text(event)))) is not None:
                    self._redacted.setdefault(by_text, []).append(key)
        self._reused = {native: ids for native, ids in self._reused.items() if len(ids) > 1}
        self._met = Counter[Key]()
        self._prompts_left = sum(times for (kind, _), times in self._recorded.items() if kind == "prompt")
        self._has_prompts = self._prompts_left > 0

    @property
    def imported_whole(self) -> int:
        """The bytes at the start of the source all of whose lines are in commits of imports."""
        return max(self.whole, self.since)

    @property
    def is_over(self) -> bool:
        """True once the transcript has contained every prompt of the session. False if it has neither a prompt nor
        ``written`` nor ``whole``."""
        return (self._has_prompts or self.written > 0 or self.whole > 0) and self._prompts_left == 0

    @property
    def has_conversation(self) -> bool:
        """True if the session has a message or a call, or if a hand-over or an import has begun it."""
        return bool(self._recorded) or self.written > 0 or self.whole > 0

    def note_continuing(self, line: SourceLine, events: Iterable[Event]) -> bool:
        """Set ``continued_at`` at the first line that continues the session, and return True for it: after all of the
        session's prompts, the next prompt of the conversation, or any line if a hand-over began the source; or the line
        found by an earlier import."""
        if self.newest is None or not line.to_store or self.is_within or line.end < self.continued_at:
            return False
        is_first = self.written > 0 or any(is_typed(event) and event.sidechain is None for event in events)
        if line.end != self.continued_at and not (is_first and self.is_over):
            return False
        self.continued_at = line.end
        return True

    @property
    def has_met_all(self) -> bool:
        """True once the transcript has contained every prompt and tool result of the session's conversation."""
        return all(self._met[key] >= times for key, times in self._required.items())

    def hides_context(self, delta: PlannedDelta) -> bool:
        """True for a delta without a message that would become the session's newest commit and so hide its context: the
        session continues a commit of another session and has none of its own yet."""
        is_empty = delta.counts is not None and delta.counts[0] == 0 and not delta.is_continued
        return is_empty and self.newest is not None and not self._has_commits

    def complete(self, whole: int) -> None:
        """Mark the first ``whole`` bytes of the source for import, including the events that the session has. Then
        ``is_completed`` is true, and the session continues from the chain of this import."""
        # What a hand-over wrote is the beginning of the session, and is no event of it.
        self._has_first_line = not self._recorded or self.written > 0
        self.whole, self.written, self.newest, self.is_completed = whole, 0, None, True
        self.continued_at = 0

    def find(self, line: SourceLine, events: Sequence[Event]) -> tuple[bool, list[Event]]:
        """Count those ``events`` of the transcript's next line as found that the session has. Returns: True if the
        session, or an import before it had events, has content of ``line``; and the events that neither has."""
        if line.end <= max(self.written, self.since):
            return True, []
        known = set(map(id, self.meet(events)))
        if line.end <= self.whole:
            return True, []
        return bool(known), [event for event in events if id(event) not in known]

    def note_beginning(self, delta: PlannedDelta) -> bool:
        """Note whether the session's beginning is in ``delta``; called for each delta in order. Returns: True if the
        session continues from ``delta``. If ``is_completed``, this is the first delta of the conversation with an event
        that the session has, and each later one; else each one that continues the session's newest commit."""
        if self.is_completed and self._first_line is not None and not delta.agent:
            self._has_first_line = self._has_first_line or self._first_line in delta.lines
        is_continuing = delta.is_continued and self.is_continuation_newest
        return (self._has_first_line or is_continuing) and not delta.agent and not delta.is_of_session

    def meet(self, events: Iterable[Event]) -> list[Event]:
        """Return the ``events`` of the transcript's next line that the session has, and count them as found."""
        return [event for event in events if _keys(event) and self._meet(event)]

    def take_over(self, earlier: "ExistingEvents") -> None:
        """Take over the state of ``earlier``, with which the source was read before."""
        self._met, self.left_out, self.continued_at = earlier._met, earlier.left_out, earlier.continued_at
        self._current = earlier._current
        for ids in self._reused.values():
            for id in [id for id in ids if self._met["call", portable_call(id)]]:
                del ids[id]
        self._prompts_left -= sum(times for (kind, _), times in self._met.items() if kind == "prompt")

    def without(self, line: SourceLine, events: Sequence[Event]) -> SourceLine:
        """Return ``line``, from which ``events`` were read, without the content that the session has: blank if the
        session has all of it."""
        if line.end <= self.written:
            self.left_out += 1
            return line._replace(to_store=b"")
        if line.end <= self.since or line.record is None:
            return line
        known = self.meet(events)
        self.is_within = line.end <= self.whole
        if not known:
            return line
        if self.is_within:
            self._first_line = self._first_line or line.to_store
            return line
        if len(known) == len(events) and not any(map(_has_attachments, known)):
            self.left_out += 1
            return line._replace(to_store=b"")
        # A message of opencode keeps what no event of a hook has, such as its times.
        self.left_out += "parts" in line.record and len(known) == sum(bool(_keys(event)) for event in events)
        record = _trimmed(line.record, known)
        return line._replace(to_store=msgspec.json.encode(record) + b"\n", record=record)

    def _meet(self, event: Event) -> bool:
        for key in self._known_as(event):
            if self._met[key] < self._recorded[key]:
                self._met[key] += 1
                self._prompts_left -= key[0] == "prompt"
                return True
        return False

    def _under_recorded_id(self, event: Event) -> Event:
        """Return ``event`` with the id under which hooks have recorded its call, if several calls share a native id."""
        if not isinstance(event, ToolCallEvent | ToolResultEvent) or event.call not in self._reused:
            return event
        if isinstance(event, ToolCallEvent):
            ids, own = self._reused[event.call], another_call_id(event.call, event.tool, event.args)
            found = own if own in ids else next(iter(ids), event.call)
            ids.pop(found, None)
            self._current[event.call] = found
        return msgspec.structs.replace(event, call=self._current.get(event.call, event.call))

    def _known_as(self, event: Event) -> Iterator[Key]:
        """Yield the keys of an event of the transcript, last those of equal events that were redacted."""
        yield from _keys(self._under_recorded_id(event))
        typed = _typed(event)
        by_text = _text_key(typed, _text(typed))
        if by_text is None:
            return
        if typed is not event:
            yield by_text
        if self._redacted:
            redacted = _text_key(typed, _without_tags(self._redact(_text(typed))))
            found = [] if redacted is None else self._redacted.get(redacted, [])
            while found:
                yield found.pop()


def _as_read(event: Event) -> list[Event]:
    """Return the events that a transcript of Claude Code has for an event of hooks: earlier versions recorded some
    notices as prompts, or at the start of prompts."""
    if not isinstance(event, PromptEvent):
        return [event]
    if (kind := wrapper_of(event.text)) is not None:
        return [SystemEvent(text=event.text, kind=kind, sidechain=event.sidechain, secrets=event.secrets)]
    notices, own = without_notices(event.text)
    return [*notices, msgspec.structs.replace(event, text=own)] if notices else [event]


def _keys(event: Event) -> tuple[Key, ...]:
    """Return the keys of an event, first the one that the session has; none for an event that hooks do not report."""
    match event:
        case ToolCallEvent() if event.call:
            return tuple(("call", portable_call(id)) for id in _call_ids(event))
        case ToolResultEvent() if event.call:
            return tuple(("result", portable_call(id)) for id in _call_ids(event))
        case CompactionEvent() if replaces(event):
            return (("compaction", ""),)
        case _:
            by_text, by_id = _text_key(event, _text(event)), _id_key(event)
            keys = [] if by_text is None else [by_text] if by_id is None else [by_text, by_id]
            return tuple(reversed(keys) if _is_redacted(event) else keys)


def _call_ids(event: ToolCallEvent | ToolResultEvent) -> Iterator[str]:
    """Yield the ids of a call: its own, and that of the part that holds it, which opencode reports for a call that a
    command of the user makes."""
    yield event.call or ""
    if event.id is not None and event.id != event.call:
        yield event.id


def _text_key(event: Event, text: str) -> Key | None:
    """Return the key of an event with ``text``; None for one that hooks do not report."""
    match event:
        case PromptEvent() if text:
            return _place("prompt", event), _digest(text)
        case ResponseEvent() if text:
            return _place("response", event), _digest(text)
        case SystemEvent() if event.sidechain is None and event.kind in (
            *_SUBMITTED, SYNTHETIC, wrapper_of(text), context_kind(text),
        ):  # fmt: skip
            return "notice", _digest(text)
        case _:
            return None


def _id_key(event: Event) -> Key | None:
    """Return the key of an event by the id that hooks and transcripts share; None without one."""
    match event:
        case PromptEvent():
            id = event.id if _is_redacted(event) else as_text(record_of(event.meta).get("promptId"))
            return ("prompt", id) if id else None
        case ResponseEvent() if event.id:
            return "response", event.id
        case _:
            return None


def _is_redacted(event: Event) -> bool:
    """True for an event that was captured under the policy ``redact``."""
    return event.secrets is not None and event.secrets.policy == "redact"


def _text(event: Event) -> str:
    return event.text if isinstance(event, PromptEvent | ResponseEvent | SystemEvent) else ""


def _typed(event: Event) -> Event:
    """Return the prompt that a hook may have recorded for a slash command or a notice of ``_SUBMITTED``, and any other
    event unchanged."""
    if isinstance(event, SystemEvent) and event.kind in _SUBMITTED and event.text:
        return PromptEvent(text=event.text, sidechain=event.sidechain)
    command = _COMMAND.search(event.text) if isinstance(event, SystemEvent) else None
    if command is None:
        return event
    return PromptEvent(text=f"{command[1]} {command[2] or ''}", sidechain=event.sidechain)


def _without_tags(text: str) -> str:
    return _TAG.sub(r"\1]", text)


def _place(kind: str, event: Event) -> str:
    """Return the kind of an event in its key: a sub-agent may write the same text as the main conversation."""
    return kind if event.sidechain is None else f"{kind} of a sub-agent"


def _has_attachments(event: Event) -> bool:
    """True for a message with attachments, of which hooks report only the text; of an output they report both."""
    return isinstance(event, PromptEvent | ResponseEvent) and bool(event.attachments)


def _digest(text: str) -> bytes:
    return blake2b(_plain(text).encode("utf-8", "replace"), digest_size=16).digest()


def _plain(text: str) -> str:
    """Return a text with white space normalised, as harnesses trim it."""
    return " ".join(text.split())


def _trimmed(record: Record, known: Sequence[Event]) -> Record:
    """Return a record without the blocks that hold ``known`` events."""
    calls = {event.call for event in known if isinstance(event, ToolCallEvent | ToolResultEvent)}
    texts = {_plain(event.text) for event in known if isinstance(event, PromptEvent | ResponseEvent | SystemEvent)}
    # A prompt with images has its text in several blocks.
    joined = [_plain(event.text) for event in known if isinstance(event, PromptEvent) and event.attachments]

    def is_left(block: Any) -> bool:  # noqa: ANN401 - a block of any format
        if not isinstance(block, dict):
            return True
        if any(block.get(name) in calls for name in _CALL_IDS if isinstance(block.get(name), str)):
            return False
        text = _plain(as_text(block.get("prompt" if block.get("type") == SUBTASK else "text")))
        is_text = block.get("type") in ("text", "input_text", "output_text", SUBTASK)
        return not is_text or (text not in texts and not any(text in whole for whole in joined))

    found = dict(record)
    for name in ("message", "payload"):
        inner = record_of(record.get(name))
        if isinstance(inner.get("content"), list):
            found[name] = {**inner, "content": [block for block in inner["content"] if is_left(block)]}
    if isinstance(record.get("parts"), list):
        found["parts"] = [part for part in records_of(record["parts"]) if is_left(part)]
    return found
