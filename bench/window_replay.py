"""Price and recall of windows through the assembler: the sessions of the bench ``window``, request by request.

Each session is appended event by event, and a native request is made wherever the recorded harness made one; the bill
is that of the requests' texts, at the prices of the bench ``window``, for the prefix that each has in common with the
one before. Full history and naive rules are those of that bench. The first prompt has the 12,000 tokens that stand
before a session there. Nothing here measures time.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import anyio
import msgspec

from bench.figures import Figure
from bench.recorded_sessions import REQUESTS_MIN, ROOT, Request, read_events, session_of, subject_of
from bench.window import LIMITS, MODEL, NAIVE, PREFIX, READ, WRITE, Naive, Policy, total
from ctxd.assembly.append_assembly import Wanted
from ctxd.assembly.assemble import Assembler
from ctxd.assembly.repack_policy import Aim
from ctxd.assembly.stored_items import call_name
from ctxd.models import Models
from ctxd.sessions import transitions
from ctxd.sessions.session import WriteRequest
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
from tests.unit.assembly.household import Household, TestClock, household

QUICK = os.environ.get("CTXD_BENCH_QUICK") == "1"
MODELS = Models({"m": msgspec.structs.replace(MODEL, context_tokens=1_000_000)}, ())
LEFT_OUT = "tokens left out here"
STUB_BEGINS = "[removed: "


class Run(msgspec.Struct):
    """Sums over requests. ``kept``: share of the request before that begins each one; ``over``: requests above the
    budget."""

    bill: float = 0.0
    needs: int = 0
    recalled: float = 0.0
    over: int = 0
    kept: list[float] = msgspec.field(default_factory=list)


class Replay:
    """One session in the assembler."""

    def __init__(self, home: Household, limit: int, aim: Aim, clock: TestClock, run: Run) -> None:
        self.home, self.limit, self.run, self.clock = home, limit, run, clock
        self.assembler = Assembler(
            home.store, home.sessions, home.indexer, home.archive, MODELS, clock, providers={}, aim=aim
        )  # fmt: skip
        self.waiting: list[Event] = []
        self.sent: list[str] = []
        self.outputs: dict[str, str] = {}
        self.latest: dict[tuple[str, str], tuple[str, str]] = {}
        self.unsent: set[str] = set()

    async def request(self) -> None:
        """Make a request of all events so far."""
        live = await self.home.sessions.live("s")
        if self.waiting:
            delta = transitions.append(live.state, "s", self.waiting, live.settings.collapse)
            live.commit(WriteRequest("session.append", "p"), delta)
            self.waiting = []
        assert self.clock.wall is not None
        self.clock.wall += 1000
        wanted = Wanted("anthropic-messages", "m", 1000)
        made = await self.assembler.assemble(live, WriteRequest("context.assemble", "p"), wanted=wanted)
        if made.pending is not None:
            await made.pending.wait()
        request = made.context.request or {}
        texts = list(self.texts(request))
        common = next((n for n, (a, b) in enumerate(zip(self.sent, texts, strict=False)) if a != b), len(self.sent))
        before, same, size = (sum(map(len, some)) / 4 for some in (self.sent, self.sent[:common], texts))
        self.run.bill += READ * same + WRITE * (size - same)
        self.run.kept += [same / before] if before else []
        self.run.over += made.context.tokens > self.limit
        self.sent, self.unsent = texts, set()

    def texts(self, request: dict[str, Any]) -> Iterator[str]:
        """The texts of a request in order; the outputs are noted by call."""
        self.outputs = {}
        yield from (part["text"] for part in request.get("system", ()))
        for message in request["messages"]:
            parts = message["content"]
            for part in [{"type": "text", "text": parts}] if isinstance(parts, str) else parts:
                match part["type"]:
                    case "text":
                        yield part["text"]
                    case "tool_use":
                        yield part["name"] + json.dumps(part["input"])
                    case "tool_result":
                        content = part["content"]
                        text = content if isinstance(content, str) else "".join(each["text"] for each in content)
                        self.outputs[part["tool_use_id"]] = text
                        yield text

    def note(self, call: ToolCallEvent, result: ToolResultEvent) -> None:
        """Note what an output shows, and how much of the one before is still at hand."""
        key = subject_of(call, result.is_error)
        if not key[1]:
            return
        if key in self.latest:
            id, text = self.latest[key]
            # An empty output is shown in other words, so that the texts are not compared.
            shown = self.outputs.get(id, STUB_BEGINS)
            self.run.needs += 1
            if LEFT_OUT in shown:
                self.run.recalled += min(1.0, len(shown) / len(text))
            elif id in self.unsent or not shown.startswith(STUB_BEGINS):
                self.run.recalled += 1
        shown_as = call_name(call.call, ())
        self.latest[key] = shown_as, result.text
        self.unsent.add(shown_as)


async def replay(events: list[Event], limit: int, aim: Aim, run: Run) -> None:
    """Replay one session into ``run``."""
    clock = TestClock()
    clock.wall = 1_800_000_000_000
    with tempfile.TemporaryDirectory(prefix="ctxd-bench-") as folder:
        async with household(Path(folder), clock) as home:
            await home.create(prompt=("words " * PREFIX)[: PREFIX * 4 - 40], budget_tokens=limit)
            it, calls = Replay(home, limit, aim, clock, run), dict[str, ToolCallEvent]()
            message, in_reply = None, False
            for event in events:
                match event:
                    case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                        if not in_reply if event.message is None else event.message != message:
                            await it.request()
                        in_reply, message = True, event.message
                        if isinstance(event, ToolCallEvent):
                            calls[event.call] = event
                        it.waiting += [] if isinstance(event, ThinkingEvent) else [event]
                    case PromptEvent() | CompactionEvent() | SystemEvent():
                        in_reply, message = False, None
                        text = event.summary if isinstance(event, CompactionEvent) else event.text
                        it.waiting.append(PromptEvent(text=text or "(no text)"))
                    case ToolResultEvent() if event.call in calls:
                        in_reply = False
                        it.note(calls.pop(event.call), event)
                        it.waiting.append(msgspec.structs.replace(event, attachments=()))


def run() -> Iterator[Figure]:
    """Cost and recall at each budget, with both aims; the prefix that requests keep, and the budget held."""
    sessions = [events for events in read_events(ROOT) if requests(events) >= REQUESTS_MIN]
    kept: list[float] = []
    for limit in LIMITS[:1] if QUICK else LIMITS:
        full = total(Policy, limit, gaps=False)
        naive = [total(lambda each=each: Naive(*each), limit, gaps=False) for each in NAIVE]
        cheapest = min((each.cost for each in naive if each.recall >= full.recall), default=full.cost)
        recalling = max((each.recall for each in naive if each.cost <= full.cost), default=full.recall)
        made = {}
        for aim in ("cost", "recall"):
            made[aim] = Run()
            for events in sessions:
                anyio.run(replay, events, limit, aim, made[aim])
        cost, recall = made["cost"], made["recall"]
        kept += cost.kept
        name, share = f"{limit // 1000}k", recall.recalled / recall.needs
        yield Figure(
            name=f"replay_cost_{name}",
            value=cost.bill / cheapest if cost.recalled / cost.needs >= full.recall else 10.0,
            goal=0.94,
            better="lower",
            detail=f"{cost.bill / full.cost:.3f} of full history's cost over {cheapest / full.cost:.3f}, at recall "
            f"{cost.recalled / cost.needs:.3f} for {full.recall:.3f}",
        )
        closed = 1.0 if recalling >= 1 else (share - recalling) / (1 - recalling)
        yield Figure(
            name=f"replay_recall_{name}",
            value=closed if recall.bill <= full.cost else 0.0,
            goal=0.15,
            better="higher",
            detail=f"recall {share:.3f} for {recalling:.3f}, at {recall.bill / full.cost:.3f} of full history's cost",
        )
        yield Figure(
            name=f"replay_over_{name}",
            value=cost.over + recall.over,
            goal=None,
            better="lower",
            detail=f"requests above the budget, of {len(cost.kept) + len(recall.kept):,}",
        )
    yield Figure(name="prefix_kept_median", value=median(kept), goal=0.98, better="higher", detail="all budgets")
    yield Figure(name="prefix_kept_mean", value=mean(kept), goal=0.95, better="higher", detail="all budgets")


def requests(events: list[Event]) -> int:
    """Requests that the session made."""
    return sum(isinstance(item, Request) for item in session_of(events))
