"""A session written out for somebody else: what was said and done in it, in order, with every secret replaced.

Redacted by the rules of now whatever the session's policy is or was. A page at a time, so that no session is too long.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.kinds import state_of
from ctxd.secrets.guard import Guard
from ctxd.sessions.capture import off_loop
from ctxd.sessions.live import LiveSession
from ctxd.store.versions import VersionStore
from ctxd_protocol.ids import system_prompt_id

PAGE_CHARS: Final = 1024 * 1024
"""Characters of text beyond which a page ends: it holds at most one record more."""

_LEFT_OUT: Final = frozenset({"purged", "secrets", "chat_ref"})

Record = dict[str, Any]


class Step(msgspec.Struct, frozen=True):
    """One record to come: the object it shows, or a message; ``turn`` is null for what is not said in the chat."""

    object: str | None = None
    turn: int | None = None
    place: int = 0


async def exported(
    store: VersionStore, guard: Guard, live: LiveSession, *, after: int, limit: int
) -> tuple[list[Record], int | None]:
    """At most ``limit`` records of ``live`` from number ``after`` on, and the number to go on from; null at the end.

    They are the session's settings, its system prompt, every message with the tool call that it stands for behind it,
    and then what else the session knows: tool calls, and files by their metadata. What comes in between two pages may
    move a later record: pages are made one right after the other. Raises: CtxdError corrupt, store_failed. Cancel:
    safe.
    """
    if after == 0:
        return [await _redacted(guard, _session(live))], 1
    steps = list(islice(_steps(live), after - 1, after + limit))
    records: list[Record] = []
    chars = 0
    for step in steps[:limit]:
        record = await _record(store, live, step)
        records.append(await _redacted(guard, record))
        chars += len(record.get("content") or "")
        if chars >= PAGE_CHARS:
            break
    end = after + len(records)
    return records, end if len(records) < len(steps) else None


def number(cursor: str | None) -> int:
    """Which record a cursor names. Raises: CtxdError invalid_params for one that no export gave."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit() and len(cursor) < 16):
        raise CtxdError("invalid_params", f"{cursor!r} is no cursor of an export", hint="Give next_cursor as it was.")
    return int(cursor)


def _steps(live: LiveSession) -> Iterator[Step]:
    yield Step(object=str(system_prompt_id(live.session)))
    said: set[str] = set()
    for turn, messages in enumerate(live.state.turns):
        for place, message in enumerate(messages):
            yield Step(turn=turn, place=place)
            if message.toolcall is not None and message.toolcall not in said:
                said.add(message.toolcall)
                yield Step(object=message.toolcall, turn=turn)
    yield from (Step(object=id) for id in live.state.index if id not in said)


def _session(live: LiveSession) -> Record:
    settings = live.settings
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
    }


async def _record(store: VersionStore, live: LiveSession, step: Step) -> Record:
    if step.object is None:
        assert step.turn is not None, "a message is in a turn"
        message = live.state.turns[step.turn][step.place]
        fields = {name: value for name, value in msgspec.to_builtins(message).items() if name != "secrets"}
        return {"record": "message", "turn": step.turn, **fields}
    head = (await store.heads((step.object,)))[step.object]
    if head is None:
        return {"record": "object", "object": step.object, "state": "unknown"}
    if head.document.type == "file":
        return _file(live, head)
    content = None
    if head.content_ref is not None:
        content = (await store.contents((head.content_ref,)))[head.content_ref]
    payload = {name: value for name, value in head.document.payload.items() if name not in _LEFT_OUT}
    place = {} if step.turn is None else {"turn": step.turn}
    kind, state = head.document.type, state_of(head.document)
    return {"record": kind, "object": step.object, **place, **payload, "state": state, "content": content}


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


async def _redacted(guard: Guard, record: Record) -> Record:
    redacted: Record = await off_loop(len(msgspec.json.encode(record)), lambda: guard.capture("redact").value(record))
    return redacted
