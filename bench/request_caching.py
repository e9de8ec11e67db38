"""Requests of recorded sessions: what a provider's prompt cache keeps of them, and what they cost the daemon.

Every transcript below ``$CTXD_TRANSCRIPTS`` lives through a session, in process, over a real store: prompts and replies
are appended, tool calls recorded, and a request body is made before each reply. ``prefix_kept`` is the share of the
previous request's bytes, cache markers not counted, that the next one begins with. ``running_turn``: the share of the
running turn's outputs that a request shows whole, cut ones not counted. ``budget_held``: the share of requests within a
budget, by the estimate, over sessions whose full history exceeds it; ``budget_calibrated``: the same where each request
is billed, by the calibrated estimate and its reserve together. ``budget_billed``: the share of those for which no more
than the budget was billed. ``assemble_append``: processor time of a request after one event with 10,000 events behind
it over that with 100, the windows being of one size. Expected: all but the last are 1, but for compactions and budgets;
the last does not grow.

The recorded usage is that of the harness's windows, so a count of our own bills these (``billed``): as tokenizers do,
it cuts text into pieces of words, up to three digits, and runs of marks, and adds what encloses a block.
"""

import os
import re
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import anyio
import msgspec

from bench.figures import Figure
from bench.recorded_sessions import ROOT
from ctxd.assembly.assembler import Assembler
from ctxd.assembly.recorded_assemblies import Archive
from ctxd.assembly.request_target import Wanted
from ctxd.assembly.spec_layout import spec
from ctxd.assembly.token_budget import estimate_tokens
from ctxd.clock import SystemClock
from ctxd.indexing.file_indexer import Indexer
from ctxd.models import read_models
from ctxd.objects import document as documents
from ctxd.sessions import chat_operations, toolcall_operations
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.stored_session import RecordUsage
from ctxd.sources.host_files import HostFiles
from ctxd.store.version_store import VersionStore
from ctxd.transcripts.format_detection import UnknownFormat, read
from ctxd_protocol.context_types import AssembledContext
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
from ctxd_protocol.ids import chat_id

QUICK = os.environ.get("CTXD_BENCH_QUICK") == "1"
FILES_MAX = 20 if QUICK else 1_000
REQUESTS_MIN = 3
BUDGETS = (32_000, 64_000, 100_000, 167_000)
EVENTS = (100, 10_000)
REPEATS = 30
CLOSING = len(b"]}]}")
MODEL = "claude-sonnet-4-5"
PIECES = re.compile(r" ?[A-Za-z]{1,5}|[A-Za-z]{1,3}|\d{1,3}|\n+ *|[^\sA-Za-z0-9]{1,3}|\s")
BLOCK_TOKENS = 9
IMAGE_TOKENS = 1_600
HOST = "bench"
PROMPT = "You are a coding agent.\n" * 40


class World:
    """Sessions over a store, and the calls that a harness would make."""

    def __init__(self, store: VersionStore) -> None:
        clock = SystemClock()
        self.store = store
        self.sessions = Sessions(store, clock, host_filesystem_id=HOST)
        indexer = Indexer(store, HostFiles(clock), HOST)
        archive = Archive(store, self.sessions, spec, estimate_tokens, read_models())
        self.assembler = Assembler(store, self.sessions, indexer, archive, read_models(), clock, providers={})

    async def create(self, name: str, budget_tokens: int | None = None) -> LiveSession:
        settings = SessionSettings(
            agent="bench",
            principal="bench",
            created_at=0,
            ordinal=0,
            filesystem_id=HOST,
            budget_tokens=budget_tokens,
        )
        made = await self.sessions.create(WriteRequest("session.create", "bench"), name, settings, PROMPT)
        assert isinstance(made, tuple), "the session is new"
        return made[0]

    def append(self, live: LiveSession, event: Event) -> None:
        delta = chat_operations.append_delta(live.state, live.session, [event], live.settings.collapse)
        live.submit(WriteRequest("session.append", "bench"), delta)

    def record(self, live: LiveSession, call: ToolCallEvent, result: ToolResultEvent, nth: int) -> None:
        """The call's object, and the result that refers to it."""
        args = call.args if isinstance(call.args, dict) else {"input": call.args}
        id = f"{call.call}.{nth}"
        document = documents.toolcall(
            id, tool=call.tool, args=args, content=result.text, chat_ref=chat_id(live.session)
        )
        delta = toolcall_operations.call_delta(live.state, id, live.settings.collapse)
        live.submit(WriteRequest("toolcall.record", "bench"), delta, puts=(document,))
        self.append(live, ToolResultEvent(call=call.call, object=id, is_error=result.is_error))

    async def request(self, live: LiveSession) -> AssembledContext:
        call = WriteRequest("context.assemble", "bench")
        return (await self.assembler.assemble(live, call, form=Wanted("anthropic-messages", MODEL))).context

    def bill(self, live: LiveSession, context: AssembledContext, reply: Sequence[Event]) -> int:
        """Record what a provider would bill for a request and its answer; return the tokens of the request."""
        assert context.request is not None, "it was made as a request"
        sent = sum(map(billed, [*context.request.get("system", ()), *context.request["messages"]]))
        made = sum(
            BLOCK_TOKENS + pieces(event.text) for event in reply if isinstance(event, ResponseEvent | ThinkingEvent)
        )
        made += sum(
            BLOCK_TOKENS + pieces(f"{event.tool} {msgspec.json.encode(event.args).decode()}")
            for event in reply
            if isinstance(event, ToolCallEvent)
        )
        usage = RecordUsage(context.number, MODEL, sent, 0, (), made)
        live.submit(WriteRequest("session.usage", "bench"), (usage,))
        return sent


@lru_cache(100_000)
def pieces(text: str) -> int:
    """Tokens of ``text``, counted as a tokenizer would cut it."""
    return sum(1 for _ in PIECES.finditer(text))


def billed(part: Any) -> int:
    """Tokens of a message, or of a block in one."""
    match part:
        case str():
            return pieces(part)
        case {"type": "tool_use"}:
            return BLOCK_TOKENS + pieces(f"{part['name']} {msgspec.json.encode(part['input']).decode()}")
        case {"text": str(text)} | {"thinking": str(text)}:
            return BLOCK_TOKENS + pieces(text)
        case {"type": "redacted_thinking"}:
            return BLOCK_TOKENS + len(part["data"]) // 4
        case {"type": "image"}:
            return IMAGE_TOKENS
        case {"content": str() as text}:
            return BLOCK_TOKENS + pieces(text)
        case {"content": list(parts)}:
            return BLOCK_TOKENS + sum(map(billed, parts))
    raise ValueError(f"a part of a request that is not known: {part}")


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    with tempfile.TemporaryDirectory() as folder:
        store = VersionStore(Path(folder), SystemClock())
        async with anyio.create_task_group() as group:
            await group.start(store.run)
            made = World(store)
            await made.sessions.start()
            yield made
            await store.drain()
            group.cancel_scope.cancel()


def transcripts() -> Iterator[tuple[str, list[Event]]]:
    """The main conversations of the transcripts, by name."""
    files = sorted(path for path in ROOT.rglob("*") if path.suffix in {".jsonl", ".json", ".db"})
    for path in files[:: max(1, len(files) // FILES_MAX)]:
        try:
            events = [entry.event for entry in read(path)[1]]
        except UnknownFormat:
            continue
        yield path.name, [event for event in events if event.sidechain is None]


async def replay(world: World, live: LiveSession, events: list[Event]) -> AsyncIterator[tuple[AssembledContext, int]]:
    """Let ``live`` live through ``events``; yield the request before each reply, and the reply's place."""
    calls: dict[str, ToolCallEvent] = {}
    replying: str | None | bool = False
    for nth, event in enumerate(events):
        match event:
            case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                if replying is False or (event.message is not None and event.message != replying):
                    yield await world.request(live), nth
                replying = event.message
                if isinstance(event, ToolCallEvent):
                    calls[event.call] = event
                world.append(live, event)
            case ToolResultEvent() if event.call in calls and not event.attachments:
                world.record(live, calls.pop(event.call), event, nth)
                replying = False
            case PromptEvent() | ToolResultEvent() | SystemEvent() | CompactionEvent():
                world.append(live, event)
                replying = False


class Outcome(msgspec.Struct):
    """Figures of all requests: shares of bytes kept, of outputs of the running turn shown, and of requests within the
    budget, by the estimate and as billed. ``errors``: relative ones of the estimates that were calibrated. ``sessions``
    had requests enough, and for a budget, more text than it allows."""

    kept: list[float] = []
    running: list[float] = []
    within: list[bool] = []
    billed: list[bool] = []
    errors: list[float] = []
    repacks: int = 0
    sessions: int = 0


async def lived(budget: int | None, bills: bool = False) -> Outcome:
    """Every transcript lived through with ``budget``; with ``bills``, each request is billed."""
    found = Outcome()
    for nth, (_, events) in enumerate(transcripts()):
        if budget is not None and sum(len(getattr(event, "text", "")) for event in events) < 4 * budget:
            continue
        async with world() as made:
            live, before, some = await made.create(f"s{nth}", budget), None, Outcome()
            async for context, here in replay(made, live, events):
                if before is None or context.number != before.number:
                    judge(some, live, before, context, budget)
                    if bills:
                        # The reply is known already: it stands behind the request in the recording.
                        reply = reply_of(events[here:])
                        sent = made.bill(live, context, reply)
                        some.billed.append(budget is None or sent <= budget)
                        if context.cost is not None and context.cost.reserve is not None:
                            some.errors.append(abs(context.tokens - sent) / sent)
                before = context
        if len(some.kept) >= REQUESTS_MIN:
            found.kept += some.kept
            found.running += some.running
            found.within += some.within
            found.billed += some.billed
            found.errors += some.errors
            found.repacks, found.sessions = found.repacks + some.repacks, found.sessions + 1
    return found


def reply_of(events: Sequence[Event]) -> list[Event]:
    """The reply that ``events`` begin with."""
    first = events[0]
    found: list[Event] = []
    for event in events:
        if not isinstance(event, ThinkingEvent | ResponseEvent | ToolCallEvent) or event.message != first.message:
            break
        found.append(event)
    return found


def judge(
    some: Outcome, live: LiveSession, before: AssembledContext | None, context: AssembledContext, budget: int | None
) -> None:
    """Add the figures of ``context`` to ``some``."""
    reserve = 0 if context.cost is None else context.cost.reserve or 0
    some.within.append(budget is None or context.tokens + reserve <= budget)
    some.running += shown_share(live, context)
    some.repacks += context.repacked is not None
    if before is not None and context.stable_prefix is not None:
        # The brackets that close a body cannot be kept: the next one continues there.
        some.kept.append(min(1.0, (context.stable_prefix + CLOSING) / before.bytes))


def shown_share(live: LiveSession, context: AssembledContext) -> list[float]:
    """The share of the running turn's outputs that the request has, cut or whole; nothing if there are none."""
    assert context.request is not None, "it was made as a request"
    texts = [
        part["text"]
        for message in context.request["messages"]
        for block in message["content"]
        if block["type"] == "tool_result"
        for part in block["content"]
        if part["type"] == "text"
    ]
    calls = sum(turn == live.state.turn for turn, _ in live.state.recency.values())
    running = texts[-min(live.state.calls.get(live.state.turn, 0), len(texts)) :] if calls else []
    stubs = sum(text.startswith("[output of ") and " removed: " in text for text in running)
    return [1 - stubs / len(running)] if running else []


async def appended(size: int) -> float:
    """Processor seconds of a request after one event, ``size`` events having gone before; the least of some."""
    async with world() as made:
        live = await made.create("s")
        for nth in range(size):
            made.append(live, PromptEvent(text=f"event {nth} of the history") if nth % 2 else ResponseEvent(text="So."))
        # All but the newest are replaced by a summary, so that windows are of one size.
        made.append(live, CompactionEvent(summary="What went before."))
        for nth in range(100):
            made.append(live, PromptEvent(text=f"event {nth}"))
        await made.request(live)
        took = []
        for nth in range(REPEATS):
            made.append(live, PromptEvent(text=f"and {nth}"))
            began = time.process_time()
            await made.request(live)
            took.append(time.process_time() - began)
            await made.store.wait_for_writes()
    return min(took)


def run() -> Iterator[Figure]:
    """The figures, over the transcripts that there are."""
    found = anyio.run(lived, None)
    detail = f"{found.sessions} sessions, {len(found.kept):,} requests, {found.repacks} repacks"
    kept = found.kept or [0.0]
    yield Figure(name="prefix_kept_median", value=statistics.median(kept), goal=0.98, better="higher", detail=detail)
    yield Figure(name="prefix_kept_mean", value=statistics.mean(kept), goal=0.95, better="higher", detail=detail)
    running = found.running or [0.0]
    yield Figure(name="running_turn", value=statistics.mean(running), goal=1.0, better="higher", detail=detail)
    for budget in BUDGETS:
        some = anyio.run(lived, budget)
        if some.within:
            yield Figure(
                name=f"budget_held_{budget // 1000}k",
                value=statistics.mean(some.within),
                goal=1.0,
                better="higher",
                detail=f"{some.sessions} longer sessions, {len(some.within):,} requests, {some.repacks} repacks, "
                f"kept {statistics.mean(some.kept):.3f}, running {statistics.mean(some.running or [1.0]):.3f}",
            )
        some = anyio.run(lived, budget, True)
        if some.within:
            yield Figure(
                name=f"budget_calibrated_{budget // 1000}k",
                value=statistics.mean(some.within),
                goal=1.0,
                better="higher",
                detail=f"estimate and reserve, each request billed; median error "
                f"{statistics.median(some.errors or [0.0]):.4f}; {some.repacks} repacks, "
                f"kept {statistics.mean(some.kept):.3f}, running {statistics.mean(some.running or [1.0]):.3f}",
            )
            yield Figure(
                name=f"budget_billed_{budget // 1000}k",
                value=statistics.mean(some.billed),
                goal=None,
                better="higher",
                detail=f"share of {len(some.billed):,} requests that were billed within the budget",
            )
    small, large = (anyio.run(appended, size) for size in EVENTS)
    yield Figure(
        name="assemble_append",
        value=large / small,
        goal=2,
        better="lower",
        detail=f"one more event with {EVENTS[1]:,} events behind, over {EVENTS[0]}: {large * 1e3:.2f} and "
        f"{small * 1e3:.2f} ms of CPU",
    )
