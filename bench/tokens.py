"""Error of the estimated increase between consecutive requests, against the usage that recorded sessions have.

Replays the transcripts below ``$CTXD_TRANSCRIPTS``: each reply with usage is a request of all events before it. The
estimate of a request knows the usage of those before it in its session; the first ten are left out. Increases of zero
and less are counted apart, as nothing that was sent explains them: the harness removed something, or the provider
dropped reasoning. Nothing here measures time.

Claude Code may record a reply before its stream has ended. None of the reply's records has a ``stop_reason`` then, and
its output is the stream's first count: an increase after such a reply is a row of its own, with the harness
``claude-code, stream cut``. The figure of all has these too.

``python -m bench.tokens`` prints the table of ``bench/README.md``.
"""

import json
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec

from bench.figures import Figure
from bench.recorded_sessions import ROOT
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.assembly.token_calibration import CalibrationSample, ContentMeasures, calibrated, measure_items
from ctxd.assembly.window_references import EventRef, Material, arguments_of, call_facts, items_of
from ctxd.sessions.stored_session import RecordUsage
from ctxd.transcripts.format_detection import UnknownFormat, read
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
    Usage,
)

REQUESTS_BEFORE: Final = 10
CUT: Final = ", stream cut"


class Reply(msgspec.Struct):
    """A reply of the model: what came since the last one, its own events, and what was billed for it."""

    came: list[Event]
    events: list[Event]
    message: str | None
    usage: Usage | None = None
    model: str | None = None


def replies_of(events: Iterable[Event]) -> list[Reply]:
    """The replies in ``events``, each with what came before it. A compaction stands among what came."""
    found: list[Reply] = []
    came: list[Event] = []
    in_reply = False
    for event in events:
        match event:
            case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                if not found or (not in_reply if event.message is None else event.message != found[-1].message):
                    found.append(Reply(came, [], event.message))
                    came = []
                in_reply = True
                reply = found[-1]
                reply.events.append(event)
                reply.usage, reply.model = event.usage or reply.usage, event.model or reply.model
            case OpaqueEvent(usage=Usage() as usage) if found and event.message in (None, found[-1].message):
                found[-1].usage = usage if event.message is not None or found[-1].usage is None else found[-1].usage
            case PromptEvent() | ToolResultEvent() | SystemEvent() | CompactionEvent():
                in_reply = False
                came.append(event)
            case _:
                pass
    return found


def _items(events: Iterable[Event]) -> Iterator[Any]:
    """The items that the window has for ``events``, whole."""
    facts = {}
    for number, event in enumerate(events):
        place = (0, number)
        call = getattr(event, "call", None) or ""
        ref = EventRef(key=str(number), at=place, call=call)
        if isinstance(event, ToolCallEvent):
            facts[call] = call_facts(event.tool, arguments_of(event.args))
        yield from items_of(ref, Material({place: event}, {}, {}, estimate_tokens, {}), facts)


class Errors(msgspec.Struct):
    """Relative errors by harness and model; ``not_grown``: requests without an increase."""

    found: dict[tuple[str, str], list[float]] = msgspec.field(default_factory=lambda: defaultdict(list))
    within: list[bool] = msgspec.field(default_factory=list)
    not_grown: int = 0


def cut_streams(path: Path) -> set[str]:
    """The messages of a file of Claude Code that were recorded before their stream had ended."""
    ended: dict[str, bool] = {}
    for line in path.read_text(errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue
        message = record.get("message") if isinstance(record, dict) and record.get("type") == "assistant" else None
        if isinstance(message, dict) and isinstance(id := message.get("id"), str):
            ended[id] = ended.get(id, False) or bool(message.get("stop_reason"))
    return {id for id, has_ended in ended.items() if not has_ended}


def replay(harness: str, replies: Iterable[Reply], errors: Errors, cut: Container[str | None] = ()) -> None:
    """Add the errors of one session; ``cut``: the messages of which the output is not known."""
    before: list[CalibrationSample] = []
    usage: dict[int, RecordUsage] = {}
    outside = reply = ContentMeasures()
    base = number = 1
    is_cut = False
    for at in replies:
        if any(isinstance(event, CompactionEvent) for event in at.came):
            base, outside, reply = number, ContentMeasures(), ContentMeasures()
        outside += measure_items(_items(at.came))[0]
        request = CalibrationSample(number, base, "", at.model or "", outside, reply)
        # A request that failed was billed for nothing.
        if at.usage is not None and (tokens := at.usage.input + at.usage.cache_read + at.usage.cache_write):
            last = before[-1] if before else None
            if len(usage) >= REQUESTS_BEFORE and last is not None and request.follows(last) and last.number in usage:
                known = usage[last.number].tokens_in
                calibration = calibrated(before, usage, request.format, request.model)
                assert calibration is not None, "the last request was billed"
                guess = calibration.estimate(request)
                if tokens > known:
                    error = abs(guess.tokens - tokens) / (tokens - known)
                    errors.found[harness + CUT * is_cut, request.model].append(error)
                    errors.within.append(tokens <= guess.tokens + guess.reserve)
                else:
                    errors.not_grown += 1
            written = ((0, at.usage.cache_write),)
            usage[number] = RecordUsage(
                number, request.model, at.usage.input, at.usage.cache_read, written, at.usage.output
            )
        is_cut = at.message in cut
        before.append(request)
        reply += measure_items(_items(at.events))[1]
        number += 1


def errors_of(root: Path = ROOT) -> Errors:
    """The errors over all transcripts below ``root``."""
    errors = Errors()
    for path in sorted(root.rglob("*")):
        if not path.is_file():
            continue
        try:
            harness, entries = read(path)
            events = [entry.event for entry in entries]
        except UnknownFormat:
            continue
        is_agent = all(event.sidechain is not None for event in events)
        shown = [event for event in events if is_agent or event.sidechain is None]
        cut = cut_streams(path) if harness == "claude-code" else ()
        replay(harness, replies_of(shown), errors, cut)
    return errors


def table(errors: Errors) -> Iterator[str]:
    """Lines of a table: each harness, its models, and all."""
    yield "| harness | model | increases | median error | 90 % within |"
    yield "|---|---|---|---|---|"
    rows: list[tuple[str, str, list[float]]] = []
    for harness in sorted({harness for harness, _ in errors.found}):
        by_model = {model: found for (each, model), found in errors.found.items() if each == harness}
        rows += [(harness, "all", [error for found in by_model.values() for error in found])]
        rows += [(harness, model, found) for model, found in sorted(by_model.items())]
    rows.append(("all", "", [error for found in errors.found.values() for error in found]))
    for harness, model, found in rows:
        worst = sorted(found)[len(found) * 9 // 10]
        yield f"| {harness} | {model} | {len(found)} | {median(found):.1%} | {worst:.1%} |"


def run() -> Iterator[Figure]:
    """The figure ``tokens``, and the share of requests within the estimate and its reserve."""
    found = errors_of()
    every = [error for errors in found.found.values() for error in errors]
    if not every:
        return
    detail = f"median error of {len(every):,} increases, after {REQUESTS_BEFORE} requests"
    yield Figure(name="tokens", value=median(every), goal=0.03, better="lower", detail=detail)
    for harness in sorted({harness for harness, _ in found.found}):
        errors = [error for (each, _), some in found.found.items() if each == harness for error in some]
        detail = f"median error of {len(errors):,} increases"
        name = "tokens_" + harness.replace(CUT, "_cut")
        yield Figure(name=name, value=median(errors), goal=None, better="lower", detail=detail)
    within = sum(found.within) / len(found.within)
    yield Figure(name="tokens_reserve", value=within, goal=None, better="higher", detail="requests within the reserve")


if __name__ == "__main__":
    print("\n".join(table(errors_of())))
