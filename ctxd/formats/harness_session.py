"""Conversion of a conversation to a session file that a harness can continue. Pure.

Providers refuse calls without a result, results without a call, and reasoning that they did not produce themselves
after the same messages. So the session begins at the newest compaction, each response is followed by the results of its
calls, and reasoning is dropped unless the conversation is from the same harness.
"""

import hashlib
import re
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from operator import itemgetter
from typing import Any, Final, NamedTuple

import msgspec

from ctxd.formats.claude_attachments import accepted, with_sources
from ctxd.formats.claude_code_v1 import SessionWriter
from ctxd.formats.codex_v1 import RolloutWriter, runs_at_provider, timestamp, user_message
from ctxd.formats.compacted_window import (
    Places,
    replaces,
    summary_as_message,
    with_agent_messages,
    with_codex_windows,
    with_notices_as_prompts,
)
from ctxd.formats.losses import Losses
from ctxd.formats.model_view import as_seen, is_seen
from ctxd.formats.opencode_export import DocumentWriter
from ctxd.formats.pi_v1 import TreeWriter
from ctxd.transcripts.claude_code import ASKED_BY_OTHERS, BEFORE_PROMPTS
from ctxd.transcripts.codex import HISTORY
from ctxd.transcripts.harness_names import HarnessCommand
from ctxd.transcripts.opencode import SYNTHETIC
from ctxd.transcripts.record_decoding import attachment_of
from ctxd_protocol import event_types as typed

_Answer = typed.ResponseEvent | typed.ThinkingEvent | typed.ToolCallEvent

_Results = defaultdict[str, deque[tuple[int, typed.ToolResultEvent]]]

_CALL: Final = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_NOT_IN_TOOL: Final = re.compile(r"[^A-Za-z0-9_-]", re.ASCII)

_PI_STOPS: Final = dict.fromkeys(("length", "max_tokens", "model_context_window_exceeded"), "length")
"""Stop reasons that do not follow from the response, to pi's name for them."""

_CODEX_CALL: Final = frozenset({"status", "namespace", "result", "revised_prompt"})
_CODEX_ITEM: Final = _CODEX_CALL | {"phase", "end_turn", "summary", "execution", "tools"}
"""Members of codex's items that events have no field for: of calls in any session, and of all items in its own."""

BEGUN: Final = "[An earlier session goes on here.]"
INTERRUPTED: Final = "[This call was interrupted: no output of it is recorded.]"

_OPENCODE_INTERRUPTED: Final = "[Tool execution was interrupted]"
"""The text that opencode itself shows for such a call."""

RUN_BY_PROVIDER: Final = "[The provider ran this call: no output of it is recorded.]"

_CLAUDE_VERSION: Final = "2.1.330"
_CODEX_VERSION: Final = "0.169.0"
_OPENCODE_VERSION: Final = "1.18.33"
"""Versions that were tested to continue such sessions."""

_RANDOM_CHARS: Final = 14
"""Random characters at the end of each id of opencode, which distinguish ids of the same instant."""


class NewSession(NamedTuple):
    """Session to write: the harness's own id for it, its working directory, and the time in ms since 1970.

    ``model``: the provider and the model with which opencode continues. ``title``: the title there; opencode generates
    one if it is empty.
    """

    id: str
    cwd: str
    at: int
    model: tuple[str, str] = ("", "")
    title: str = ""


def written(
    events: Iterable[typed.Event],
    harness: HarnessCommand,
    new: NewSession,
    *,
    own: bool,
    losses: Losses,
    first_format: str = "",
) -> bytes:
    """Return the file of the session ``new`` with the conversation of ``events``; empty if nothing can be continued.

    ``own``: the events are from one session of the same harness. ``first_format``: that of the oldest delta. Omissions
    are counted in ``losses``.
    """
    is_same_codex = own and harness == "codex"
    window = with_codex_windows(events, first_format, is_same_codex)
    window = window if is_same_codex else with_agent_messages(window)
    window = with_notices_as_prompts(window, harness if own else None)
    found = _conversation(as_seen(window, harness, losses) if own else window, harness, own, losses)
    if not found:
        return b""
    # codex and pi continue their own sessions whatever comes first. These notices are user messages of Claude Code.
    is_begun = own and harness in ("codex", "pi") or isinstance(found[0], typed.PromptEvent | typed.CompactionEvent)
    if not is_begun and getattr(found[0], "kind", None) not in (*BEFORE_PROMPTS, *ASKED_BY_OTHERS):
        found.insert(0, typed.PromptEvent(text=BEGUN, at=found[0].at))
    found = [msgspec.structs.replace(each, at=new.at if each.at is None else each.at) for each in found]
    match harness:
        case "claude":
            return b"".join(_claude(found, new, losses))
        case "codex":
            rollout = RolloutWriter(losses)
            return b"".join(line for event in _codex(found, new) for line in rollout.add(event))
        case "pi":
            tree = TreeWriter(losses)
            lines = [line for event in _pi(found, new, own) for line in tree.add(event)]
            return b"".join([*lines, *tree.end()])
        case "opencode":
            writer = DocumentWriter(losses)
            for event in _opencode(found, new):
                writer.add(event)
            return msgspec.json.encode(writer.document())


# --- the conversation to continue ---


def _conversation(
    events: Iterable[typed.Event], harness: HarnessCommand, own: bool, losses: Losses
) -> list[typed.Event]:
    kept: list[typed.Event] = []
    places = Places()
    for event in events:
        places.note(event, len(kept))
        if event.sidechain is not None:
            losses.drop(event)
        elif isinstance(event, typed.CompactionEvent) and replaces(event):
            left = places.kept(event, kept)
            if left is None:
                losses.add("messages that a compaction kept")
            bare = _bare(event, harness, own)
            if left and places.kept_first:
                kept = [*left, summary_as_message(event)]
            else:
                kept = [*([bare] if replaces(bare) else ()), *(left or ())]
        elif _goes_on(event, harness, own):
            found = [event] if harness == "codex" or not runs_at_provider(event) else _with_output(event)
            kept += (_bare(_carried(each, harness, own, losses), harness, own) for each in found)
        else:
            losses.drop(event)
    if not own and harness in ("pi", "opencode"):
        kept = list(_with_joined_texts(kept))
    return list(_paired(kept, harness, own, losses))


def _with_joined_texts(events: list[typed.Event]) -> Iterator[typed.Event]:
    """Yield the events with a blank line between responses that follow each other: pi and opencode send them as parts
    of one message, which some providers join without a separator."""
    before: typed.Event | None = None
    for event in events:
        if isinstance(event, typed.ResponseEvent) and isinstance(before, typed.ResponseEvent) and before.text:
            event = msgspec.structs.replace(event, text=f"\n\n{event.text}" if event.text else "")
        before = event
        yield event


def _goes_on(event: typed.Event, harness: HarnessCommand, own: bool) -> bool:
    match event:
        case typed.SystemEvent():
            return own and is_seen(event, harness)
        case typed.OpaqueEvent():
            return own and harness == "codex" and event.kind == "agent_message"
        case typed.ThinkingEvent():
            # pi sends unsigned reasoning as well, to some providers as text.
            is_sent = harness == "pi" and bool(event.text)
            return own and (is_sent or event.signature is not None or event.encrypted is not None)
        case typed.PromptEvent() | typed.ResponseEvent():
            return bool(event.text or event.attachments)
        case _:
            return not isinstance(event, typed.CompactionEvent)


def _carried(event: typed.Event, harness: HarnessCommand, own: bool, losses: Losses) -> typed.Event:
    """Return an event with only the attachments that a harness can send to its models; its text names the others, as
    providers refuse every request that has one."""
    is_as_it_was = own and harness != "claude"
    if is_as_it_was or not isinstance(event, typed.PromptEvent | typed.ResponseEvent | typed.ToolResultEvent):
        return event
    files = [(each, accepted(each) if harness == "claude" else each) for each in event.attachments]
    kept = tuple(file for _, file in files if file is not None and _can_be_sent(file, harness))
    if len(kept) == len(files):
        return msgspec.structs.replace(event, attachments=kept) if kept else event
    losses.add("attachment", len(files) - len(kept))
    names = [f"[{each.name or each.media_type}]" for each, file in files if file not in kept]
    return msgspec.structs.replace(event, text="\n".join([*filter(None, [event.text]), *names]), attachments=kept)


def _can_be_sent(file: typed.Attachment, harness: HarnessCommand) -> bool:
    is_image = file.media_type.startswith("image/")
    address = (file.url or "").partition(":")[0]
    match harness:
        case "claude":
            return True
        case "codex":
            return is_image and (file.data is not None or address in ("http", "https", "data"))
        case "pi":
            return is_image and file.data is not None
        case "opencode":
            return file.data is not None or bool(file.url)


def _bare(event: typed.Event, harness: HarnessCommand, own: bool) -> typed.Event:
    """Return an event without ids and members that are only valid in its original session."""
    fields: dict[str, Any] = {"id": None, "parent": None, "meta": _beside(event, harness, own), "secrets": None}
    if isinstance(event, typed.CompactionEvent):
        fields["kept_from"] = None
    if isinstance(event, typed.PromptEvent):
        fields["message"] = None
    if isinstance(event, typed.ToolCallEvent):
        server = (event.meta or {}).get("namespace") if harness != "codex" else None
        tool = f"{server.rstrip('_')}__{event.tool}" if isinstance(server, str) and server else event.tool
        fields["tool"] = _NOT_IN_TOOL.sub("_", tool)[:64] or "tool"
        if harness == "codex" and runs_at_provider(event):
            fields["id"] = event.id
        elif harness == "codex" and not own and isinstance(event.args, str) and not fields["meta"]:
            fields["args"] = {"input": event.args}
    return msgspec.structs.replace(event, **fields)


def _beside(event: typed.Event, harness: HarnessCommand, own: bool) -> dict[str, Any] | None:
    """Return the members of an event's ``meta`` that ``harness`` needs."""
    meta = event.meta or {}
    match event:
        case typed.CompactionEvent() if own and harness == "codex" and HISTORY in meta:
            # The provider can read its encrypted content only after the same messages.
            return {HISTORY: meta[HISTORY]}
        case typed.ToolCallEvent() if harness == "codex" and not own:
            # The members of its tool search are valid only in its own sessions.
            return {name: each for name, each in meta.items() if name in _CODEX_CALL} or None
        case _ if harness == "codex" and own:
            return {name: each for name, each in meta.items() if name in _CODEX_ITEM} or None
        case typed.SystemEvent() if own and harness == "claude":
            return {name: meta[name] for name in ("content", "attachment", "origin") if name in meta} or None
        case typed.ToolCallEvent() | typed.ToolResultEvent() if own and harness == "claude" and "server_tool" in meta:
            return {name: meta[name] for name in ("server_tool", "content") if name in meta}
        case typed.ResponseEvent() | typed.ThinkingEvent() | typed.ToolCallEvent() if own and harness == "pi":
            # pi needs the provider: it turns reasoning that another provider signed into text.
            return event.meta
        case typed.SystemEvent() if own and harness == "pi" and event.kind != "branch_summary":
            return event.meta
        case _:
            return None


def _with_output(event: typed.Event) -> list[typed.Event]:
    """Return a call that codex's provider ran, followed by an output, which other providers require."""
    assert isinstance(event, typed.ToolCallEvent)
    meta = event.meta or {}
    call = event.call or event.tool
    args = {"prompt": meta["revised_prompt"]} if "revised_prompt" in meta else event.args
    image = (attachment_of("image/png", meta["result"]),) if meta.get("result") else ()
    text = "" if image else RUN_BY_PROVIDER if meta.get("status") == "completed" else INTERRUPTED
    result = typed.ToolResultEvent(call=call, text=text, attachments=image, is_error=text == INTERRUPTED, at=event.at)
    return [msgspec.structs.replace(event, call=call, args=args), result]


def _paired(events: list[typed.Event], harness: HarnessCommand, own: bool, losses: Losses) -> Iterator[typed.Event]:
    """Yield the events, each response followed by the results of its calls; each call gets a unique id.

    Results have the order of their calls, or with ``own`` the order in which they arrived, as the model saw them.
    """
    interrupted = _OPENCODE_INTERRUPTED if own and harness == "opencode" else INTERRUPTED
    events = _with_server_pairs(events)
    results = _results(events)
    used: set[str] = set()
    for answer in _answers(events):
        found: list[tuple[int, typed.ToolResultEvent]] = []
        if harness == "pi" and own and _is_aborted(answer):
            yield from _without_results(answer, results, used, losses)
            continue
        for part in answer:
            if not isinstance(part, typed.ToolCallEvent) or _has_no_result(part, harness):
                yield part
                continue
            id = _unused(part.call, used)
            yield msgspec.structs.replace(part, call=id)
            place, result = len(events), typed.ToolResultEvent(text=interrupted, is_error=True, at=part.at)
            if waiting := results[part.call]:
                place, result = waiting.popleft()
            else:
                losses.add("output of an interrupted call")
            found.append((place, msgspec.structs.replace(result, call=id)))
        if own:
            found.sort(key=itemgetter(0))
        for _, result in found:
            yield result
    if unclaimed := sum(map(len, results.values())):
        losses.add("output without its call", unclaimed)


def _has_no_result(call: typed.ToolCallEvent, harness: HarnessCommand) -> bool:
    """Return True for a call whose result is in the response itself, or that has none in the session of ``harness``."""
    return _is_at_server(call) or (harness == "codex" and runs_at_provider(call))


def _is_at_server(event: typed.Event) -> bool:
    """Return True for a call that Claude's provider ran, or for its result."""
    return isinstance(event, typed.ToolCallEvent | typed.ToolResultEvent) and "server_tool" in (event.meta or {})


def _with_server_pairs(events: list[typed.Event]) -> list[typed.Event]:
    """Return the events; calls that Claude's provider ran are ordinary calls unless the same response has the result,
    as the provider refuses other responses."""
    calls: dict[str | None, int] = {}
    pairs: set[int] = set()
    for place, event in enumerate(events):
        if not isinstance(event, _Answer | typed.ToolResultEvent):
            calls.clear()
        elif isinstance(event, typed.ToolCallEvent) and _is_at_server(event):
            calls[event.call] = place
        elif isinstance(event, typed.ToolResultEvent) and _is_at_server(event) and event.call in calls:
            call = calls.pop(event.call)
            if event.message is not None and events[call].message == event.message:
                pairs |= {call, place}
    return [
        msgspec.structs.replace(event, meta=None) if _is_at_server(event) and place not in pairs else event
        for place, event in enumerate(events)
    ]


def _results(events: list[typed.Event]) -> _Results:
    """Return the results of each call, with their places."""
    results: _Results = defaultdict(deque)
    for place, event in enumerate(events):
        if isinstance(event, typed.ToolResultEvent) and not _is_at_server(event):
            results[event.call or ""].append((place, event))
    return results


def _is_aborted(answer: list[typed.Event]) -> bool:
    """Return True for a response that pi shows to the user but leaves out of its requests."""
    stops = [part.stop_reason for part in answer if isinstance(part, typed.ResponseEvent)]
    if not stops:
        return "errorMessage" in (answer[0].meta or {})
    return bool({"aborted", "error"}.intersection(stops))


def _without_results(
    answer: list[typed.Event],
    results: _Results,
    used: set[str],
    losses: Losses,
) -> Iterator[typed.Event]:
    """Yield a response that pi leaves out of its requests, without results: pi would send them without their calls."""
    for place, part in enumerate(answer):
        if place == 0 and not any(isinstance(each, typed.ResponseEvent) for each in answer):
            part = msgspec.structs.replace(part, meta={**(part.meta or {}), "stopReason": "aborted"})
        if isinstance(part, typed.ToolCallEvent):
            if waiting := results[part.call]:
                waiting.popleft()
                losses.add("output of an aborted answer")
            part = msgspec.structs.replace(part, call=_unused(part.call, used))
        yield part


def _answers(events: list[typed.Event]) -> Iterator[list[typed.Event]]:
    """Yield the events without tool results outside responses, with the parts of one response together."""
    answer: list[typed.Event] = []
    has_results = False
    for event in events:
        is_part = isinstance(event, _Answer) or _is_at_server(event)
        if isinstance(event, typed.ToolResultEvent) and not is_part:
            has_results = True
            continue
        # A harness may record a result before the last part of the response that called the tool.
        goes_on = bool(answer) and is_part and event.message == answer[0].message
        if not goes_on or (has_results and event.message is None):
            if answer:
                yield answer
            answer = []
        answer.append(event)
        has_results = False
        if not is_part:
            yield answer
            answer = []
    if answer:
        yield answer


def portable_call(call: str) -> str:
    """Return the id of a call in a session that was handed over, in a form that all harnesses accept."""
    if _CALL.fullmatch(call):
        return call
    return f"call_{hashlib.sha256(call.encode('utf-8', 'replace')).hexdigest()[:24]}"


def _unused(call: str, used: set[str]) -> str:
    id, number = portable_call(call), 1
    base = id
    while id in used:
        number += 1
        id = f"{base[:56]}_{number}"
    used.add(id)
    return id


# --- the form of each harness ---


def _claude(events: list[typed.Event], new: NewSession, losses: Losses) -> Iterator[bytes]:
    writer = SessionWriter(losses)
    place = {"sessionId": new.id, "cwd": new.cwd, "version": _CLAUDE_VERSION, "userType": "external"}
    for event in events:
        for line in writer.add(event):
            yield msgspec.json.encode({**with_sources(msgspec.json.decode(line)), **place}) + b"\n"


def _codex(events: list[typed.Event], new: NewSession) -> Iterator[typed.Event]:
    meta = {
        "id": new.id, "timestamp": timestamp(new.at), "cwd": new.cwd, "originator": "ctxd",
        "cli_version": _CODEX_VERSION, "source": "cli",
    }  # fmt: skip
    yield typed.SystemEvent(kind="session_meta", at=new.at, meta=meta)
    for event in events:
        if isinstance(event, typed.CompactionEvent) and event.meta is None:
            event = msgspec.structs.replace(event, meta={HISTORY: [user_message(event.summary)]})
        yield event
        # codex shows these messages to the user; its model sees the items.
        match event:
            case typed.PromptEvent():
                yield _shown("user_message", event)
            case typed.ResponseEvent():
                yield _shown("agent_message", event)
            case _:
                pass


def _shown(kind: str, event: typed.PromptEvent | typed.ResponseEvent) -> typed.OpaqueEvent:
    return typed.OpaqueEvent(kind=f"event_msg.{kind}", data={"type": kind, "message": event.text}, at=event.at)


def _pi(events: list[typed.Event], new: NewSession, own: bool) -> Iterator[typed.Event]:
    header = {"type": "session", "version": 3, "id": new.id, "timestamp": timestamp(new.at), "cwd": new.cwd}
    yield typed.OpaqueEvent(kind="session", data=header)
    begun: str | None = ""
    for event in events:
        if isinstance(event, typed.ResponseEvent) and not own:
            event = msgspec.structs.replace(event, stop_reason=_PI_STOPS.get(event.stop_reason or ""))
        if not isinstance(event, _Answer):
            begun = ""
        elif begun != event.message or event.meta is not None:
            begun = event.message
            usage = typed.Usage() if event.usage is None else event.usage
            meta = {"api": "unknown", "provider": "ctxd", **(event.meta or {})}
            event = msgspec.structs.replace(event, usage=usage, meta=meta)
        yield event


def is_id_of_hand_over(id: str, session: str) -> bool:
    """Return True for a message id that ``written`` made in opencode's ``session``: opencode itself ends each id with
    new random characters."""
    return len(session) > _RANDOM_CHARS and id.endswith(session[-_RANDOM_CHARS:])


def _opencode(events: list[typed.Event], new: NewSession) -> Iterator[typed.Event]:
    info = {
        "id": new.id, "slug": new.id[-8:].lower(), "version": _OPENCODE_VERSION, "projectID": "global",
        "directory": new.cwd, "title": new.title or f"New session - {timestamp(new.at)}",
        "time": {"created": new.at, "updated": new.at},
    }  # fmt: skip
    yield typed.OpaqueEvent(kind="session", data=info)
    number = 0

    def id(kind: str) -> str:
        # opencode sorts parts, and messages of the same time, by id: 48 bits of time and counter, then text.
        nonlocal number
        number += 1
        return f"{kind}_{((new.at - 1_000_000) * 4096 + number) & 0xFFFF_FFFF_FFFF:012x}{new.id[-_RANDOM_CHARS:]}"

    user, answered = "", ""
    role: str | None = None
    for event in _in_order_of_time(events):
        if not isinstance(event, _Answer | typed.ToolResultEvent):
            role, user = "user", id("msg")
            data = {"id": user, "sessionID": new.id, "role": role, "time": {"created": event.at}, "agent": "build"}
            model = dict(zip(("providerID", "modelID"), new.model, strict=True))
            yield typed.OpaqueEvent(kind="message", data={**data, "model": model})
            if isinstance(event, typed.CompactionEvent):
                yield from _opencode_compaction(event, id, user, new)
            else:
                yield from _opencode_prompt(event, id)
            continue
        if isinstance(event, _Answer) and (role != "assistant" or answered != (event.message or "")):
            role, answered = "assistant", event.message or ""
            yield typed.OpaqueEvent(kind="message", data=_opencode_answer(event, id("msg"), user, new))
        if isinstance(event, typed.ToolResultEvent):
            times = {"start": event.at, "end": event.at}
            yield msgspec.structs.replace(event, meta={"title": "", "metadata": {}, "time": times})
            role = "tool"
        else:
            yield msgspec.structs.replace(event, id=id("prt"))


def _in_order_of_time(events: list[typed.Event]) -> list[typed.Event]:
    """Return the events, none with a later time than a following one: opencode sorts messages by their times, and a
    summary was written after the messages that follow it in the window."""
    times = accumulate((each.at for each in reversed(events) if each.at is not None), min)
    return [msgspec.structs.replace(each, at=at) for each, at in zip(reversed(events), times, strict=True)][::-1]


def _opencode_compaction(
    event: typed.CompactionEvent, id: Callable[[str], str], user: str, new: NewSession
) -> Iterator[typed.Event]:
    """Yield the request for a summary, as the part of the message ``user``, and the message that has the summary."""
    yield typed.OpaqueEvent(id=id("prt"), data={"type": "compaction", "auto": True, "overflow": False})
    answer = typed.ResponseEvent(at=event.at)
    kind = {"mode": "compaction", "agent": "compaction", "summary": True}
    info = {**_opencode_answer(answer, id("msg"), user, new), **kind}
    part = {"id": id("prt"), "sessionID": new.id, "messageID": info["id"], "type": "text", "text": event.summary}
    yield msgspec.structs.replace(event, meta={"info": info, "parts": [part]})


def _opencode_prompt(event: typed.Event, id: Callable[[str], str]) -> Iterator[typed.Event]:
    text = getattr(event, "text", "")
    if isinstance(event, typed.SystemEvent) and event.kind == SYNTHETIC:
        yield msgspec.structs.replace(event, id=id("prt"), meta={"synthetic": True})
    elif text:
        yield typed.PromptEvent(id=id("prt"), text=text)
    for file in getattr(event, "attachments", ()):
        yield typed.PromptEvent(id=id("prt"), attachments=(file,))


def _opencode_answer(event: _Answer, id: str, user: str, new: NewSession) -> dict[str, Any]:
    tokens = {"input": 0, "output": 0, "reasoning": 0, "cache": {"read": 0, "write": 0}}
    return {
        "id": id, "sessionID": new.id, "role": "assistant", "parentID": user, "mode": "build", "agent": "build",
        "path": {"cwd": new.cwd, "root": new.cwd}, "cost": 0, "tokens": tokens, "modelID": event.model or new.model[1],
        "providerID": new.model[0], "time": {"created": event.at, "completed": event.at}, "finish": "stop",
    }  # fmt: skip
