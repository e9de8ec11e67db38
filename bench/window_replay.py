"""Price and recall of windows through the assembler: the sessions of the bench ``window``, request by request.

Each session is appended event by event, and a native request is made wherever the recorded harness made one; the bill
is that of the requests' texts, at the prices of the bench ``window``, for the prefix that each has in common with the
one before. A second run has the recorded gaps between requests and a cache of five minutes. Full history, naive rules
and those of harnesses are those of that bench. The first prompt has the 12,000 tokens that stand before a session
there. Nothing here measures time.
"""

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any, Final

import anyio
import msgspec

from bench.figures import Figure
from bench.recorded_sessions import REQUESTS_MIN, ROOT, Request, read_events, session_of, subject_of
from bench.window import HARNESSES, LIFETIME_S, LIMITS, MODEL, NAIVE, PREFIX, READ, WRITE, Naive, Policy, total
from ctxd.assembly.assembler import Assembler
from ctxd.assembly.repack_policy import Aim
from ctxd.assembly.request_target import Wanted
from ctxd.assembly.window_references import call_name
from ctxd.models import Models
from ctxd.sessions import chat_operations
from ctxd.sessions.live_session import WriteRequest
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
from tests.unit.assembly.stored_sessions import Household, TestClock, household

QUICK = os.environ.get("CTXD_BENCH_QUICK") == "1"
MODELS = Models({"m": msgspec.structs.replace(MODEL, context_tokens=1_000_000)}, ())
LEFT_OUT = "tokens left out here"
STUB_BEGINS = "[removed: "
AIMS: Final[tuple[Aim, ...]] = ("cost", "recall")


class Run(msgspec.Struct):
    """Sums over requests. ``kept``: share of the request before that begins each one; ``over``: requests above the
    budget."""

    bill: float = 0.0
    needs: int = 0
    recalled: float = 0.0
    over: int = 0
    kept: list[float] = msgspec.field(default_factory=list)

    @property
    def recall(self) -> float:
        """Mean share of what was needed again that the window still had."""
        return self.recalled / self.needs


class Replay:
    """One session in the assembler."""

    def __init__(self, home: Household, limit: int, aim: Aim, clock: TestClock, run: Run, *, gaps: bool) -> None:
        self.home, self.limit, self.run, self.clock, self.gaps = home, limit, run, clock, gaps
        self.at: int | None = None
        self.assembler = Assembler(
            home.store, home.sessions, home.indexer, home.archive, MODELS, clock, providers={}, aim=aim
        )  # fmt: skip
        self.waiting: list[Event] = []
        self.sent: list[str] = []
        self.outputs: dict[str, str] = {}
        self.latest: dict[tuple[str, str], tuple[str, str]] = {}
        self.unsent: set[str] = set()

    def idle_s(self, at: int | None) -> float:
        """Seconds since the last request, for one at ``at``, in ms since 1970; None where that is not recorded."""
        idle = 0.0 if at is None or self.at is None else max(0.0, (at - self.at) / 1000)
        self.at = self.at if at is None else at
        return idle if self.gaps else 1.0

    async def request(self, at: int | None) -> None:
        """Make a request of all events so far, at the recorded time ``at``."""
        live = await self.home.sessions.live("s")
        if self.waiting:
            delta = chat_operations.append_delta(live.state, "s", self.waiting, live.settings.collapse)
            live.submit(WriteRequest("session.append", "p"), delta)
            self.waiting = []
        assert self.clock.wall is not None
        idle_s = self.idle_s(at)
        self.clock.wall += int(idle_s * 1000)
        wanted = Wanted("anthropic-messages", "m", 1000)
        made = await self.assembler.assemble(live, WriteRequest("context.assemble", "p"), form=wanted)
        if made.pending is not None:
            await made.pending.wait()
        request = made.context.request or {}
        texts = list(self.texts(request))
        common = next((n for n, (a, b) in enumerate(zip(self.sent, texts, strict=False)) if a != b), len(self.sent))
        before, same, size = (sum(map(len, some)) / 4 for some in (self.sent, self.sent[:common], texts))
        read = same if idle_s < LIFETIME_S else 0.0
        self.run.bill += READ * read + WRITE * (size - read)
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
        shown_as = call_name(call.call, (), {})
        self.latest[key] = shown_as, result.text
        self.unsent.add(shown_as)


async def replay(events: list[Event], limit: int, aim: Aim, run: Run, gaps: bool) -> None:
    """Replay one session into ``run``."""
    clock = TestClock()
    clock.wall = 1_800_000_000_000
    with tempfile.TemporaryDirectory(prefix="ctxd-bench-") as folder:
        async with household(Path(folder), clock) as home:
            await home.create(prompt=("words " * PREFIX)[: PREFIX * 4 - 40], budget_tokens=limit)
            it, calls = Replay(home, limit, aim, clock, run, gaps=gaps), dict[str, ToolCallEvent]()
            message, in_reply = None, False
            for event in events:
                match event:
                    case ThinkingEvent() | ResponseEvent() | ToolCallEvent():
                        if not in_reply if event.message is None else event.message != message:
                            await it.request(event.at)
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
    """Cost and recall at each budget, with both aims; the prefix that requests keep, and the budget held. Without
    transcripts nothing is measured."""
    if not ROOT.is_dir():
        return
    sessions = [events for events in read_events(ROOT) if requests(events) >= REQUESTS_MIN]
    kept: list[float] = []
    for gaps in (False, True):
        for limit in LIMITS[:1] if QUICK else LIMITS:
            made = {aim: Run() for aim in AIMS}
            for aim in AIMS:
                for events in sessions:
                    anyio.run(replay, events, limit, aim, made[aim], gaps)
            yield from figures(limit, made["cost"], made["recall"], gaps=gaps)
            kept += [] if gaps else made["cost"].kept
    yield Figure(name="prefix_kept_median", value=median(kept), goal=0.98, better="higher", detail="all budgets")
    yield Figure(name="prefix_kept_mean", value=mean(kept), goal=0.95, better="higher", detail="all budgets")


def figures(limit: int, cost: Run, recall: Run, *, gaps: bool) -> Iterator[Figure]:
    """The figures of one budget, for the runs with each aim. With ``gaps`` the only goal is that no harness wins."""
    full = total(Policy, limit, gaps=gaps)
    naive = [total(lambda each=each: Naive(*each), limit, gaps=gaps) for each in NAIVE]
    cheapest = min((each.cost for each in naive if each.recall >= full.recall), default=full.cost)
    recalling = max((each.recall for each in naive if each.cost <= full.cost), default=full.recall)
    name = f"{'gaps_' if gaps else ''}{limit // 1000}k"
    yield Figure(
        name=f"replay_cost_{name}",
        value=cost.bill / cheapest if cost.recall >= full.recall else 10.0,
        goal=None if gaps else 0.94,
        better="lower",
        detail=f"{cost.bill / full.cost:.3f} of full history's cost over {cheapest / full.cost:.3f}, at recall "
        f"{cost.recall:.3f} for {full.recall:.3f}",
    )
    closed = 1.0 if recalling >= 1 else (recall.recall - recalling) / (1 - recalling)
    yield Figure(
        name=f"replay_recall_{name}",
        value=closed if recall.bill <= full.cost else 0.0,
        goal=None if gaps else 0.15,
        better="higher",
        detail=f"recall {recall.recall:.3f} for {recalling:.3f}, at {recall.bill / full.cost:.3f} of full history's "
        "cost",
    )
    points = {harness: total(make, limit, gaps=gaps) for harness, make in HARNESSES.items()}
    winning = [
        harness
        for harness, point in points.items()
        if any(point.cost <= each.bill and point.recall >= each.recall for each in (cost, recall))
    ]
    yield Figure(
        name=f"replay_dominated_{name}",
        value=len(winning),
        goal=0,
        better="lower",
        detail="harnesses' rules that beat ours on both: " + (", ".join(winning) or "none"),
    )
    yield Figure(
        name=f"replay_over_{name}",
        value=cost.over + recall.over,
        goal=None,
        better="lower",
        detail=f"requests above the budget, of {len(cost.kept) + len(recall.kept):,}",
    )


def requests(events: list[Event]) -> int:
    """Requests that the session made."""
    return sum(isinstance(item, Request) for item in session_of(events))
