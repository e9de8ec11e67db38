"""Export of a session: its messages, tool calls and files in order, with every secret replaced.

Secrets are redacted under the current rules, whatever the session's policy. Pages are bounded, and each begins where
the previous one ended, so all pages together cost one walk over the session.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import islice
from typing import Any, Final, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.generated_ids import cursor_mark
from ctxd.objects.version_state import state_of
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.chat import read_pages
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.secret_redaction import events_captured, off_loop
from ctxd.sessions.session_objects import entries
from ctxd.sessions.session_state import EventPosition, SessionState
from ctxd.sessions.stored_session import events_size
from ctxd.store.version_store import VersionStore
from ctxd_protocol.event_types import Event, message_of
from ctxd_protocol.ids import system_prompt_id

PROMPT: Final = 0
EVENT: Final = 1
TOOLCALL: Final = 2
OBJECT: Final = 3
USAGE: Final = 4

_CURSOR: Final = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15}){6}\.([0-9a-f]{8})", re.ASCII)


class ExportExtent(NamedTuple):
    """Extent of an export: the chat before event ``place`` of ``turn``, the first ``known`` objects of the index, and
    the first ``billed`` requests with usage."""

    turn: int
    place: int
    known: int
    billed: int


class Step(NamedTuple):
    """The place of one record. ``part`` ``TOOLCALL``: the tool call of the message at ``place`` of ``turn``.

    ``part`` ``OBJECT``: the object at ``place`` of the index. ``object``: its id, None for the prompt and an event.
    ``part`` ``USAGE``: the usage at ``place`` of the list; ``turn`` is then the number of its assembly.
    """

    part: int
    turn: int = 0
    place: int = 0
    object: str | None = None


START: Final = Step(PROMPT)


def cursor_of(session: str, step: Step, reach: ExportExtent) -> str:
    """Return the cursor that continues an export of ``session``, of extent ``reach``, at ``step``."""
    return ".".join(map(str, (step.part, step.turn, step.place, *reach, cursor_mark(session))))


def read_cursor(session: str, cursor: str) -> tuple[Step, ExportExtent]:
    """Return the step to continue at, without its object, and the extent of the export.

    Raises: CtxdError invalid_params for a cursor that no export of ``session`` returned.
    """
    found = _CURSOR.fullmatch(cursor)
    if found is None or found[1] != cursor_mark(session):
        message = f"{cursor[:100]!r} is not a cursor of an export of session {session}"
        raise CtxdError("invalid_params", message, hint="Pass next_cursor unchanged, for the session that returned it.")
    part, turn, place, *reach = map(int, cursor.split(".")[:-1])
    return Step(part, turn, place), ExportExtent(*reach)


class Outline:
    """Index to continue an export anywhere: the first place of each tool call, and the session's index by number.

    ``reach``: how much of the state is indexed.
    """

    def __init__(self, state: SessionState) -> None:
        self.reach = ExportExtent(0, 0, 0, 0)
        self._first_places: dict[str, tuple[int, int]] = {}
        self._index: list[str] = []
        self._usage: list[int] = []
        self.extend(state)

    def extend(self, state: SessionState) -> None:
        """Index the rest of ``state``, which has grown since. Cost: the new messages, and the length of the index."""
        turns = state.turns
        first = self.reach.place
        for turn in range(self.reach.turn, len(turns)):
            marks = turns[turn]
            for place in range(first, len(marks)):
                if (mark := marks[place]) is not None and (id := mark.toolcall) is not None:
                    self._first_places.setdefault(id, (turn, place))
            first = 0
        self._index.extend(islice(state.index, len(self._index), None))
        self._usage.extend(islice(state.usage, len(self._usage), None))
        self.reach = ExportExtent(len(turns) - 1, len(turns[-1]), len(self._index), len(self._usage))

    def steps(self, state: SessionState, at: Step, reach: ExportExtent) -> Iterator[Step]:
        """Yield the steps from ``at`` to the end of ``reach``: the system prompt, every event, followed by its tool
        call if it is the first that names it, the other objects of the index, and the usage of requests."""
        if at.part == PROMPT:
            yield START
            at = Step(EVENT)
        if at.part in (EVENT, TOOLCALL):
            yield from self._chat(state, at, reach)
            at = Step(OBJECT)
        if at.part == OBJECT:
            for place in range(at.place, min(reach.known, len(self._index))):
                id = self._index[place]
                first = self._first_places.get(id)
                if first is None or first >= reach[:2]:
                    yield Step(OBJECT, place=place, object=id)
            at = Step(USAGE)
        for place in range(at.place, min(reach.billed, len(self._usage))):
            yield Step(USAGE, self._usage[place], place)

    def _chat(self, state: SessionState, at: Step, reach: ExportExtent) -> Iterator[Step]:
        first, part = at.place, at.part
        for turn in range(at.turn, min(reach.turn + 1, len(state.turns))):
            marks = state.turns[turn]
            end = min(reach.place, len(marks)) if turn == reach.turn else len(marks)
            for place in range(first, end):
                if part == EVENT:
                    yield Step(EVENT, turn, place)
                mark, part = marks[place], EVENT
                id = None if mark is None else mark.toolcall
                if id is not None and self._first_places.get(id) == (turn, place):
                    yield Step(TOOLCALL, turn, place, id)
            first = 0


PAGE_CHARS: Final = 1024 * 1024
"""Bytes of JSON after which a page ends: only its last record may exceed that."""

_IN_MESSAGE: Final = frozenset({"event", "text", "object", "model", "usage", "stop_reason"})
"""Fields of an event that are replaced by those of its message."""

_LEFT_OUT: Final = frozenset({"purged", "secrets", "chat_ref"})

Record = dict[str, Any]


class Exports:
    """The exports of all sessions. The outline of a session is kept while one of its exports is under way; if an export
    is abandoned, until the session leaves memory."""

    def __init__(self, store: VersionStore, guard: Guard) -> None:
        self._store = store
        self._guard = guard
        self._outlines: WeakKeyDictionary[LiveSession, _Shared] = WeakKeyDictionary()

    async def page(self, live: LiveSession, cursor: str | None, limit: int) -> tuple[list[Record], str | None]:
        """Return at most ``limit`` records of ``live`` from ``cursor`` on, and the next cursor, None at the end.

        The records are the session's settings and entries, its system prompt, every event, followed by its tool call,
        and then the other objects of the index (tool calls, metadata of files) and the usage of requests. Additions
        after the first page are left out. Raises: CtxdError invalid_params for a cursor that no export returned,
        corrupt, store_failed. Cancel: safe.
        """
        if cursor is None:
            reach = self._begun(live).reach
            return await self._redacted(live, [await _session(self._store, live)]), cursor_of(
                live.session, START, reach
            )
        at, reach = read_cursor(live.session, cursor)
        steps = list(islice(self._shared(live).outline.steps(live.state, at, reach), limit + 1))
        records: list[Record] = []
        chars = 0
        found = await _events(live, steps[:limit])
        # Redacted before bytes become base64, in which no secret would be found.
        captured = await events_captured(self._guard, "redact", [*found.values()], sandbox=live.session)
        events = dict(zip(found, captured, strict=True))
        for step in steps[:limit]:
            record = await _record(self._store, live, step, events)
            records.append(record)
            chars += len(msgspec.json.encode(record))
            if chars >= PAGE_CHARS:
                break
        cursor = cursor_of(live.session, steps[len(records)], reach) if len(records) < len(steps) else None
        redacted = await self._redacted(live, records)
        if cursor is None:
            self._end(live)
        return redacted, cursor

    async def _redacted(self, live: LiveSession, records: list[Record]) -> list[Record]:
        """Return ``records`` without secrets; any record may be from a sandbox."""
        return await off_loop(
            0, lambda: [Capture(self._guard, "redact").value(record) for record in records], sandbox=live.session
        )

    def _begun(self, live: LiveSession) -> Outline:
        """Return the current outline of ``live``, and count one more export."""
        known = live in self._outlines
        shared = self._shared(live)
        if known:
            shared.outline.extend(live.state)
        shared.under_way += 1
        return shared.outline

    def _shared(self, live: LiveSession) -> "_Shared":
        shared = self._outlines.get(live)
        if shared is None:
            shared = self._outlines[live] = _Shared(Outline(live.state))
        return shared

    def _end(self, live: LiveSession) -> None:
        shared = self._outlines.get(live)
        if shared is not None:
            shared.under_way -= 1
            if shared.under_way <= 0:
                del self._outlines[live]


class _Shared:
    """State shared by the exports ``under_way`` of one session."""

    def __init__(self, outline: Outline) -> None:
        self.outline = outline
        self.under_way = 0


async def _session(store: VersionStore, live: LiveSession) -> Record:
    settings = live.settings
    found = await entries(store, live.session, settings.entries)
    return {
        "record": "session",
        "session": live.session,
        "agent": settings.agent,
        "state": settings.state,
        "created_at": settings.created_at,
        "updated_at": live.updated_at,
        "turn_count": live.state.turn,
        "workdir": settings.workdir,
        "labels": dict(settings.labels),
        "entries": {key: msgspec.json.decode(value) for key, (_, value) in found.items()},
    }


async def _record(store: VersionStore, live: LiveSession, step: Step, events: Mapping[EventPosition, Event]) -> Record:
    if step.part == EVENT:
        event = events[step.turn, step.place]
        fields = msgspec.to_builtins(event)
        kind = "event"
        if (message := message_of(event)) is not None:
            kind = "message"
            fields = {name: value for name, value in fields.items() if name not in _IN_MESSAGE}
            fields |= msgspec.to_builtins(message)
        fields.pop("secrets", None)
        return {"record": kind, "turn": step.turn, **fields}
    if step.part == USAGE:
        usage = live.state.usage[step.turn]
        fields = {name: getattr(usage, name) for name in usage.__struct_fields__}
        return {"record": "usage", **fields, "cache_write": {str(life): n for life, n in usage.cache_write}}
    id = str(system_prompt_id(live.session)) if step.part == PROMPT else step.object
    assert id is not None, "only the prompt's and a message's step are without an object"
    head = (await store.heads((id,)))[id]
    if head is not None and head.document.type == "file":
        return _file(live, head)
    head = None if head is None else await store.get(id, content=True)
    if head is None:
        return {"record": "object", "object": id, "state": "unknown"}
    content = head.document.content
    payload = {name: value for name, value in head.document.payload.items() if name not in _LEFT_OUT}
    place = {"turn": step.turn} if step.part == TOOLCALL else {}
    kind, state = head.document.type, state_of(head.document)
    return {"record": kind, "object": id, **place, **payload, "state": state, "content": content}


async def _events(live: LiveSession, steps: Sequence[Step]) -> dict[EventPosition, Event]:
    """Return the events of ``steps``, up to the size of a page."""
    places = [(step.turn, step.place) for step in steps if step.part == EVENT]
    found: dict[EventPosition, Event] = {}
    if not places:
        return found
    chars = 0
    async with aclosing(read_pages(live, places[0], (places[-1][0], places[-1][1] + 1))) as pages:
        async for page in pages:
            for place, event in page.placed():
                if place >= places[0]:
                    found[place] = event
                    chars += events_size((event,))
            if chars >= PAGE_CHARS:
                break
    return found


def _file(live: LiveSession, head: Stored) -> Record:
    document = head.document
    source = document.source
    return {
        "record": "file",
        "object": document.id,
        "path": "" if source is None else live.mounts.display(source),
        "state": state_of(document),
        "level": live.state.level(document.id),
        "pinned": document.id in live.state.pinned,
        "file_type": document.payload.get("file_type"),
        "char_count": document.payload.get("char_count"),
        "valid_time": head.valid_time,
    }
