"""Bytes of a state directory over the bytes of all that was recorded in it: 100 real transcripts.

Each transcript is recorded as a harness does: a session, its messages in turns, and each tool call with its arguments
and its output. Recorded bytes are those of the texts, the arguments as JSON and the outputs, in UTF-8. The directory is
measured after a tidy end, so that no write-ahead log is left; durability as shipped (``synchronous=FULL``). The search
index, which can be made again, is in the cache directory and not counted. Expected order of growth: O(n) in what is
recorded. Without transcripts nothing is measured.
"""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.figures import Figure
from bench.recorded_sessions import read_events
from bench.running import Caller, daemon, folder, quick
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, ToolCallEvent, ToolResultEvent

TRANSCRIPTS = 100


def record(caller: Caller, session: str, events: list[Event]) -> int:
    """Record one transcript. Returns: the bytes of what was recorded."""
    recorded, number = 0, 0
    calls: dict[str, ToolCallEvent] = {}
    caller.call("session.create", session=session, agent="bench", workdir="/")
    for event in events:
        match event:
            case PromptEvent(text=text) | ResponseEvent(text=text) if text:
                role = "user" if isinstance(event, PromptEvent) else "assistant"
                caller.call("session.append", session=session, messages=[{"role": role, "content": text}])
                recorded += len(text.encode())
            case ToolCallEvent():
                calls[event.call] = event
            case ToolResultEvent() if event.call in calls:
                call = calls.pop(event.call or "")
                arguments = call.args if isinstance(call.args, dict) else {"raw": call.args}
                number += 1
                caller.call(
                    "toolcall.record", session=session, id=f"call-{number}", tool=call.tool, args=arguments,
                    content=event.text, status="fail" if event.is_error else "ok", chat="call_and_result",
                )  # fmt: skip
                recorded += len(msgspec.json.encode(arguments)) + len(event.text.encode())
            case _:
                pass
    return recorded


def run() -> Iterator[Figure]:
    wanted = TRANSCRIPTS // 10 if quick() else TRANSCRIPTS
    with folder() as place:
        socket, state = place / "ctxd.sock", place / "state"
        recorded, count = 0, 0
        with daemon(socket, state), Caller(socket) as caller:
            for events in read_events():
                if count == wanted:
                    break
                if any(isinstance(event, PromptEvent) for event in events):
                    recorded += record(caller, f"s{count}", events)
                    count += 1
        if count:
            yield size_figure(state, recorded, count)


def size_figure(state: Path, recorded: int, count: int) -> Figure:
    """``state_size`` of what ``count`` transcripts with so many bytes left in ``state``."""
    size = sum(path.stat().st_size for path in state.rglob("*") if path.is_file())
    detail = f"{size:,} bytes for {recorded:,} recorded in {count} transcripts, after a tidy end"
    return Figure(name="state_size", value=size / max(1, recorded), goal=1.2, better="lower", detail=detail)
