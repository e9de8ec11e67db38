"""Messages that a compaction keeps in the window of a model, in the form that each harness records. Pure.

Claude Code and pi name the first kept message in the compaction, opencode in the request for it. codex records the new
window itself, or only a summary; its window then has the summary and the newest prompts.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate, takewhile
from typing import Any, Final, TypeGuard

import msgspec

from ctxd.formats.codex_v1 import NAME as CODEX
from ctxd.formats.codex_v1 import user_message
from ctxd.formats.delta_formats import measure_event
from ctxd.transcripts.claude_code import (
    ASKED_BY_OTHERS,
    BEFORE_PROMPTS,
    BOUNDARY,
    CAVEAT,
    keeps_beginning,
    wrapper_of,
)
from ctxd.transcripts.codex import EXTERNAL, HISTORY, read_rollout
from ctxd.transcripts.opencode import SYNTHETIC
from ctxd.transcripts.record_decoding import Line, as_text, number_of, record_of, records_of
from ctxd_protocol import event_types as typed

FROM_AGENT: Final = frozenset({"inter_agent_communication", "agent_message"})
"""Kinds of opaque events with a message of another agent of codex."""

_PROMPTS_BYTES_MAX: Final = 80_000
"""Bytes of the newest prompts that codex repeats if it recorded only a summary."""


def replaces(event: typed.Event) -> TypeGuard[typed.CompactionEvent]:
    """Return True for a compaction with a summary or items that replace the conversation before it."""
    return isinstance(event, typed.CompactionEvent) and bool(event.summary.strip() or _history(event))


def summary_as_message(event: typed.CompactionEvent) -> typed.PromptEvent:
    """Return the summary of a compaction as the message that the model gets if it does not come first."""
    return typed.PromptEvent(text=event.summary, at=event.at)


def is_before_later_summary(event: typed.Event) -> bool:
    """Return True for the boundary of a compaction whose summary follows the kept messages: see ``keeps_beginning``."""
    is_boundary = isinstance(event, typed.SystemEvent) and event.kind == BOUNDARY
    return is_boundary and keeps_beginning({**(event.meta or {}), "uuid": event.id})


def newest_within(sizes: Iterable[int]) -> int:
    """Return how many prompts codex repeats if it recorded only a summary. ``sizes``: bytes of each, newest first."""
    return sum(1 for _ in takewhile(lambda together: together <= _PROMPTS_BYTES_MAX, accumulate(sizes)))


def with_codex_windows(events: Iterable[typed.Event], first_format: str, as_items: bool) -> Iterator[typed.Event]:
    """Yield ``events`` with the window that each compaction by codex made: as events after the compaction, or with
    ``as_items`` as the ``replacement_history`` that codex reads.

    ``first_format``: that of the oldest delta. Nothing else shows that a compaction with only a summary is by codex.
    """
    prompts: list[typed.PromptEvent] = []
    for event in events:
        if isinstance(event, typed.PromptEvent) and event.sidechain is None:
            prompts.append(event)
        if not replaces(event):
            yield event
            continue
        repeated, prompts = prompts, []
        if _history(event):
            yield event
            yield from () if as_items else _events(event)
        elif first_format != CODEX or event.id is not None or event.message is not None:
            yield event
        elif as_items:
            items = [user_message(each.text, each.attachments) for each in _newest(repeated)]
            meta = {**(event.meta or {}), HISTORY: [*items, user_message(event.summary)]}
            yield msgspec.structs.replace(event, meta=meta)
        else:
            yield event
            yield from _newest(repeated)


def with_first_window(events: Iterable[typed.Event]) -> Iterator[typed.Event]:
    """Yield ``events``. If a compaction by codex is before all messages, the window that it recorded follows it: the
    messages that it kept are in no other event."""
    is_first = True
    for event in events:
        yield event
        if is_first and replaces(event):
            yield from _events(event)
        is_first = is_first and measure_event(event)[0] == 0


def with_agent_messages(events: Iterable[typed.Event]) -> Iterator[typed.Event]:
    """Yield ``events`` with each message of another agent of codex as a prompt, unless it can only be read by codex."""
    for event in events:
        found: Mapping[str, Any] = {}
        if isinstance(event, typed.OpaqueEvent) and event.kind in FROM_AGENT:
            data = record_of(event.data)
            found = record_of(data.get("payload")) or data
        content = found.get("content")
        texts = [content] if isinstance(content, str) else [as_text(each.get("text")) for each in records_of(content)]
        if text := "\n".join(filter(None, texts)):
            names = " to ".join(filter(None, (as_text(found.get("author")), as_text(found.get("recipient")))))
            yield typed.PromptEvent(text=f"[{names}]\n{text}" if names else text, at=event.at)
        else:
            yield event


_AS_PROMPTS: Final = {
    "branch_summary": ("pi", "[Summary of another branch of this conversation]\n"),
    **dict.fromkeys(("bashExecution", "custom_message"), ("pi", "")),
    **dict.fromkeys((*ASKED_BY_OTHERS, *BEFORE_PROMPTS), ("claude", "")),
    **dict.fromkeys(
        (
            "meta",
            "task-notification",
            "bash-input",
            "bash-stdout",
            "bash-stderr",
            "user-memory-input",
            "mcp-resource-update",
            "mcp-polling-update",
            "post-tool-use-hook",
        ),
        ("claude", ""),
    ),
    **dict.fromkeys(
        (
            "subagent_notification",
            "user_shell_command",
            "user_action",
            "skill",
            "hook_prompt",
            "send_user_message_question_reply",
            "agent_message_board_notification",
            EXTERNAL,
        ),
        ("codex", ""),
    ),
    SYNTHETIC: ("opencode", ""),
}
"""Kinds of notices with content that the model of a harness gets as prompts, with that harness and the heading of the
text: the summary that pi makes of a branch that the user leaves, messages from others than the user, the answers of
sub-agents in the background, commands that a person ran, and texts that belong to a prompt."""


def with_notices_as_prompts(events: Iterable[typed.Event], own: str | None) -> Iterator[typed.Event]:
    """Yield ``events`` with such notices as prompts, except those of ``own``, the harness that wrote all of them."""
    for event in events:
        if isinstance(event, typed.SystemEvent) and event.kind in _AS_PROMPTS and not event.sidechain:
            harness, before = _AS_PROMPTS[event.kind]
            if harness != own and (text := _text_for_model(event)):
                yield typed.PromptEvent(text=before + text, at=event.at)
                continue
        yield event


def _text_for_model(notice: typed.SystemEvent) -> str:
    """Return the text of such a notice; empty if the model did not see it, or if it is only about the harness."""
    meta = notice.meta or {}
    if meta.get("excludeFromContext") is True or meta.get("ignored") is True:
        return ""
    if notice.kind == "meta" and (kind := wrapper_of(notice.text)) not in _AS_PROMPTS:
        # Without its sender, a message from elsewhere would be the user's own.
        is_from_elsewhere = "attachment" in meta or "origin" in meta
        return "" if kind or is_from_elsewhere or notice.text.startswith(CAVEAT) else notice.text
    if command := as_text(meta.get("command")):
        return f"Ran `{command}`\n{notice.text}"
    return notice.text


class Places:
    """Places of events in a growing list, to find those that a compaction keeps in the window."""

    def __init__(self) -> None:
        self._places: dict[str | None, int] = {}
        self._id: str | None = None
        self._tail: str | None = None
        self.kept_first = False
        """True if the messages that the next compaction keeps come before its summary."""

    def note(self, event: typed.Event, place: int) -> None:
        """Note the place that ``event`` will have."""
        if event.id != self._id:
            # Events of one record share its id.
            self._id = event.id
            self._places[event.id] = place
        self._places.setdefault(event.message, place)
        if isinstance(event, typed.SystemEvent) and event.kind == BOUNDARY:
            self.kept_first = is_before_later_summary(event)
        if isinstance(event, typed.OpaqueEvent) and event.kind == "compaction":
            self._tail = as_text(record_of(event.data).get("tail_start_id")) or None

    def kept(self, event: typed.CompactionEvent, events: list[typed.Event]) -> list[typed.Event] | None:
        """Return the ``events`` that the compaction ``event`` keeps in the window, and forget the places; None if the
        first kept event is not found."""
        places, self._places = self._places, {}
        tail, self._tail = self._tail, None
        meta = event.meta or {}
        if event.kept_from is None and number_of(meta.get("firstKeptEntryIndex")) is not None:
            # Entries of pi's first version have no ids; the context begins with the kept ones. pi shows only the newest
            # of several summaries.
            return [each for each in events if not isinstance(each, typed.CompactionEvent)]
        first = event.kept_from or (tail if "info" in meta else None)
        if first is None:
            return []
        return events[places[first] :] if first in places else None


def _history(event: typed.CompactionEvent) -> list[Any]:
    return list(records_of((event.meta or {}).get(HISTORY)))


def _events(event: typed.CompactionEvent) -> list[typed.Event]:
    """Return the events of a window that codex recorded, without the summary, its last message."""
    items = ({"type": "response_item", "payload": item} for item in _history(event))
    found = [entry.event for entry in read_rollout(Line(0, item) for item in items)]
    for place in reversed(range(len(found)) if event.summary else ()):
        if as_text(getattr(found[place], "text", None)).endswith(event.summary):
            del found[place]
            break
    return [msgspec.structs.replace(each, at=event.at) for each in found]


def _newest(prompts: list[typed.PromptEvent]) -> list[typed.PromptEvent]:
    kept = newest_within(len(prompt.text.encode("utf-8", "replace")) for prompt in reversed(prompts))
    return prompts[len(prompts) - kept :]
