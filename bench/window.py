"""Price and recall of windows over real sessions: full history, naive rules, those of harnesses, the daemon's.

Replays the transcripts below ``$CTXD_TRANSCRIPTS`` of at least 20 requests, in process, with the policy of the
daemon (``ctxd.assembly.repack_policy``). Nothing here measures time; every figure is exact and the same on every
machine.

Definitions, equal for all policies: a token is 4 characters; before the session stand 12,000 tokens of system prompt
and tools. Written to the prompt cache a token costs 1.25, read from it 0.1, put out 5. The cache never expires, or, for
the tables with gaps, five minutes after the last request as recorded. A compaction makes 12,000 tokens of the window;
the model that summarises it reads the window and writes 2,000. *Recall*: over all later reads of the same file and runs
of the same command, the mean share of the earlier output that the window then still had.

``python -m bench.window`` writes the tables into ``bench/README.md``.
"""

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from bench.figures import Figure
from bench.recorded_sessions import REQUESTS_MIN, ROOT, Call, Request, Session, Text, sessions
from ctxd.assembly import repack_policy
from ctxd.models import Model

LIMITS: Final = (32_000, 64_000, 100_000, 167_000)
PREFIX: Final = 12_000
COMPACTED: Final = 12_000
SUMMARY: Final = 2_000
STUB: Final = 30
ARGUMENTS_KEPT: Final = 20
LIFETIME_S: Final = 300

MODEL: Final = Model(
    provider="anthropic", context_tokens=200_000, output_tokens_max=64_000, cache_min_tokens=0,
    input=1_000_000, output=5_000_000, cache_read=100_000, cache_write={LIFETIME_S: 1_250_000},
    system_updates=False,
)  # fmt: skip
READ, WRITE, OUTPUT = (price / MODEL.input for price in (MODEL.cache_read, MODEL.cache_write[LIFETIME_S], MODEL.output))

# --- windows ---


class Entry:
    """Part of a window: a text, or a call with its output. ``share``: of the output that was kept on entry; ``number``:
    of the call; ``newest``: of the one that last referred to its output."""

    __slots__ = (
        "arguments",
        "by_user",
        "call",
        "key",
        "newest",
        "number",
        "outdated",
        "output",
        "share",
        "sent",
        "shown",
        "text",
        "times",
        "turn",
    )

    def __init__(self, key: str, text: int, call: Call | None = None, output: int = 0, turn: int = 0) -> None:
        self.key, self.text, self.call, self.output, self.turn = key, text, call, output, turn
        self.arguments = 0 if call is None else call.arguments
        self.share = 0.0 if call is None else output / call.output
        self.shown = call is not None and output > 0
        self.outdated = self.sent = self.by_user = False
        self.times, self.number, self.newest = 1, 0, 0

    @property
    def tokens(self) -> int:
        return self.text + self.arguments + self.output


class Window:
    """Replay of one session: what is in the window, what the cache has, and the bill so far."""

    def __init__(self, limit: int, *, gaps: bool) -> None:
        self.limit, self.gaps = limit, gaps
        self.entries: list[Entry] = []
        self.size, self.cached = PREFIX, 0
        self.bill = self.recalled = 0.0
        self.needs = self.compactions = self.repacks = self.calls = self.turn = 0
        self.latest: dict[tuple[str, str], Entry] = {}
        self.times: Counter[tuple[str, str]] = Counter()
        self.idle_s: float | None = None

    def add(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.size += entry.tokens

    def break_at(self, index: int) -> None:
        """The cache ends before the entry at ``index``."""
        self.cached = min(self.cached, PREFIX + sum(entry.tokens for entry in self.entries[:index]))

    def stub(self, indexes: Sequence[int], *, arguments: bool = False) -> None:
        """Replace outputs by stubs, and with ``arguments`` what is long in those of their calls."""
        if indexes:
            self.repacks += 1
            self.break_at(min(indexes))
        for index in indexes:
            entry = self.entries[index]
            before = entry.tokens
            entry.shown, entry.output = False, min(entry.output, STUB)
            if arguments:
                entry.arguments = min(entry.arguments, ARGUMENTS_KEPT)
            self.size -= before - entry.tokens

    def replace(self, kept: Sequence[Entry], summary: int, *, at: int = 0) -> None:
        """Keep ``kept`` of the entries, with a summary of the others at index ``at``; the model is paid for it."""
        if summary:
            self.compactions += 1
            self.bill += self.size * READ + SUMMARY * OUTPUT
        held = set(map(id, kept))
        for entry in self.entries:
            if id(entry) not in held:
                entry.shown = False
        first = next((n for n, entry in enumerate(self.entries) if id(entry) not in held), 0)
        self.break_at(min(first, at) if summary else first)
        self.entries = [*kept[:at], *([Entry("summary", summary)] if summary else []), *kept[at:]]
        self.size = PREFIX + sum(entry.tokens for entry in self.entries)

    def enter(self, call: Call, kept: int, *, refer: bool) -> None:
        """Add a call, its output cut to ``kept`` tokens; with ``refer``, a repeated text becomes a reference."""
        self.calls += 1
        key = (call.kind, call.subject)
        before = self.latest.get(key) if call.subject else None
        self.times[key] += 1
        if before is not None:
            self.needs += 1
            self.recalled += before.share if before.shown else 0.0
            if refer and before.shown and before.call is not None and before.call.digest == call.digest and kept > STUB:
                before.newest, before.times, before.turn = self.calls, self.times[key], self.turn
                self.add(Entry(f"c{self.calls}", call.arguments + STUB))
                return
            before.outdated = True
        entry = Entry(f"c{self.calls}", 0, call, min(call.output, kept), self.turn)
        entry.number = entry.newest = self.calls
        entry.times = self.times[key]
        self.add(entry)
        if call.subject:
            self.latest[key] = entry

    def request(self) -> None:
        """Pay for a request."""
        self.bill += READ * min(self.cached, self.size) + WRITE * max(0, self.size - self.cached)
        self.cached = self.size
        for entry in reversed(self.entries):
            if entry.sent:
                break
            entry.sent = True


class Policy:
    """Full history, compacted at the limit: what the other policies change."""

    refers = False

    def kept(self, call: Call) -> int:
        """Tokens that the output of ``call`` keeps on entry."""
        return call.output

    def prepare(self, window: Window) -> None:
        """Change ``window`` before a request."""
        if window.size > window.limit:
            window.cached = min(window.cached, PREFIX)
            window.replace([], COMPACTED)


def replay(session: Session, policy: Policy, limit: int, *, gaps: bool = False) -> Window:
    """The window of ``session`` after its last item."""
    window = Window(limit, gaps=gaps)
    for item in session:
        match item:
            case Text():
                window.turn += item.starts_turn
                entry = Entry("", item.tokens, turn=window.turn)
                entry.by_user = item.starts_turn
                window.add(entry)
            case Call():
                window.enter(item, policy.kept(item), refer=policy.refers)
            case Request():
                window.idle_s = (item.idle_s or 0.0) if gaps else 0.0
                if window.idle_s >= LIFETIME_S:
                    window.cached = 0
                policy.prepare(window)
                window.request()
    return window


class Naive(Policy):
    """The newest calls stay; others go once carrying them has cost ``factor`` times what rewriting the rest costs."""

    refers = True

    def __init__(self, keep: int, keep_files: int, cut: int | None, factor: float) -> None:
        self.keep, self.keep_files, self.cut, self.factor = keep, keep_files, cut, factor
        self.window: Window | None = None
        self.carried = 0.0

    def kept(self, call: Call) -> int:
        return min(call.output, self.cut) if self.cut else call.output

    def removable(self, window: Window, keep: int, keep_files: int) -> list[int]:
        found = []
        for index, entry in enumerate(window.entries):
            if entry.shown and entry.output > 200 and entry.call is not None:
                newest = keep_files if entry.call.kind == "file" else keep
                if entry.outdated or window.calls - entry.number >= newest:
                    found.append(index)
        return found

    def prepare(self, window: Window) -> None:
        if window is not self.window:
            self.window, self.carried = window, 0.0
        if window.size > window.limit:
            some, took = [], 0
            entries = window.entries
            for index in sorted(
                self.removable(window, 5, 5), key=lambda n: (not entries[n].outdated, entries[n].number)
            ):
                some.append(index)
                took += entries[index].output - STUB
                if took >= window.size - window.limit / 2:
                    break
            if some:
                window.stub(some)
                self.carried = 0.0
        if window.size > window.limit:
            super().prepare(window)
            self.carried = 0.0
        if old := self.removable(window, self.keep, self.keep_files):
            gain = sum(window.entries[n].output - STUB for n in old)
            self.carried += READ * gain
            rest = window.size - gain - PREFIX - sum(entry.tokens for entry in window.entries[: old[0]])
            if self.carried >= self.factor * (WRITE - READ) * max(rest, 0):
                window.stub(old)
                self.carried = 0.0


NAIVE: Final = tuple(
    (keep, files, cut, factor)
    for cut in (1000, 2000, 4000, None)
    for keep, files in ((5, 40), (10, 80), (20, 160), (10**9, 10**9))
    for factor in (1.0, 2.0)
)


class Repacked(Policy):
    """The policy of ``ctxd.assembly.repack_policy``; where only words are left to remove, the summary that all
    others use, and beside it the contents that are worth most."""

    refers = True

    def __init__(self, rules: repack_policy.Rules) -> None:
        self.rules = rules
        self.window: Window | None = None
        self.carried: dict[str, int] = {}

    def kept(self, call: Call) -> int:
        return min(call.output, self.rules.cuts[call.kind])

    def prepare(self, window: Window) -> None:
        if window is not self.window:
            self.window, self.carried = window, {}
        contents, places = self.contents(window)
        decision = repack_policy.choose_repack(
            contents, self.carried, tokens=window.size, sent=window.cached,
            idle_s=window.idle_s if window.cached else None, model=MODEL, lifetime_s=LIFETIME_S, rules=self.rules,
        )  # fmt: skip
        self.carried = decision.carried
        window.stub([places[key] for key in decision.remove], arguments=True)
        for key, length in decision.cut.items():
            entry = window.entries[places[key]]
            before, output = entry.tokens, entry.output
            entry.output = max(STUB, length - entry.arguments)
            entry.share *= min(1.0, entry.output / output)
            window.size -= before - entry.tokens
        if window.size > window.limit:
            self.compact(window)

    @staticmethod
    def contents(window: Window) -> tuple[list[repack_policy.Content], dict[str, int]]:
        found, places, before = [], {}, PREFIX
        for index, entry in enumerate(window.entries):
            if entry.shown and entry.call is not None:
                found.append(
                    repack_policy.Content(
                        key=entry.key, before=before, tokens=entry.tokens,
                        stub_tokens=min(entry.arguments, ARGUMENTS_KEPT) + min(entry.output, STUB),
                        kind=entry.call.kind, age=window.calls - entry.newest, times=entry.times,
                        is_running=entry.turn == window.turn, is_outdated=entry.outdated, is_new=not entry.sent,
                    )
                )  # fmt: skip
                places[entry.key] = index
            before += entry.tokens
        return found, places

    def compact(self, window: Window) -> None:
        contents, places = self.contents(window)
        self.carried = {}
        kept, room = [], COMPACTED - SUMMARY
        for each in sorted(contents, key=lambda each: each.chance / each.tokens, reverse=True):
            if each.chance and each.kind != "other" and each.tokens <= room:
                room -= int(each.tokens)
                kept.append(places[each.key])
        window.cached = min(window.cached, PREFIX)
        window.replace([window.entries[n] for n in sorted(kept)], SUMMARY + room)


# --- rules of harnesses ---


def newest(entries: Sequence[Entry], tokens: float, count: int = 10**9) -> list[Entry]:
    """The newest of ``entries`` that have at most ``tokens`` in all, and are at most ``count`` events."""
    found: list[Entry] = []
    for entry in reversed(entries):
        tokens -= entry.tokens
        count -= 1 if entry.call is None else 2
        if tokens < 0 or count < 0:
            break
        found.append(entry)
    return found[::-1]


class TrimMessages(Policy):
    """LangGraph's ``trim_messages(strategy="last")``: the oldest messages go until the rest fits."""

    def prepare(self, window: Window) -> None:
        if window.size > window.limit:
            window.repacks += 1
            window.replace(newest(window.entries, window.limit - PREFIX), 0)


class Codex(Policy):
    """codex: at 90 % of the window, the newest messages of the user, up to 20,000 tokens, then a summary."""

    def prepare(self, window: Window) -> None:
        if window.size > 0.9 * window.limit:
            users = [entry for entry in window.entries if entry.by_user]
            kept = newest(users, min(20_000, (window.limit - PREFIX) / 2))
            window.replace(kept, SUMMARY, at=len(kept))


class Pi(Policy):
    """pi: a summary, then the newest 20,000 tokens, or half of a smaller window."""

    def prepare(self, window: Window) -> None:
        if window.size > window.limit:
            window.replace(newest(window.entries, min(20_000, (window.limit - PREFIX) / 2)), SUMMARY)


class OpenHands(Policy):
    """OpenHands' summarising condenser: at ``most`` events, or at the limit, the first ``first``, a summary, and the
    newest, half of the limit in all."""

    def __init__(self, most: int, first: int) -> None:
        self.most, self.first = most, first

    def prepare(self, window: Window) -> None:
        events = sum(1 if entry.call is None else 2 for entry in window.entries)
        if events > self.most or window.size > window.limit:
            head, tail = window.entries[: self.first], window.entries[self.first :]
            room = (window.limit - PREFIX) / 2 - SUMMARY - sum(entry.tokens for entry in head)
            window.replace([*head, *newest(tail, room, self.most // 2 - len(head) - 1)], SUMMARY, at=len(head))


HARNESSES: Final[dict[str, Callable[[], Policy]]] = {
    "LangGraph `trim_messages`": TrimMessages,
    "codex": Codex,
    "pi": Pi,
    "OpenHands, 240 events": lambda: OpenHands(240, 2),
    "OpenHands, 80 events": lambda: OpenHands(80, 4),
}

# --- figures ---


class Point(msgspec.Struct, frozen=True):
    """Cost of a policy relative to full history, its recall, and how often it rewrote the window."""

    cost: float
    recall: float
    compactions: int
    repacks: int


@cache
def corpus() -> list[Session]:
    """The sessions that are replayed."""
    found = sessions()
    if not found:
        raise FileNotFoundError(f"{ROOT}: no transcripts of {REQUESTS_MIN} requests or more; set CTXD_TRANSCRIPTS")
    return found


def total(make: Callable[[], Policy], limit: int, *, gaps: bool) -> Point:
    """Cost in tokens of uncached input, and recall, over all sessions."""
    windows = [replay(session, make(), limit, gaps=gaps) for session in corpus()]
    return Point(
        sum(window.bill for window in windows),
        sum(window.recalled for window in windows) / sum(window.needs for window in windows),
        sum(window.compactions for window in windows),
        sum(window.repacks for window in windows),
    )


class Comparison(msgspec.Struct, frozen=True):
    """All policies at one budget. ``cheapest``: cost of the cheapest naive rule with full history's recall;
    ``recalling``: recall of the best naive one at its cost. ``curve``: our policy by the factor on the worth."""

    full: Point
    cheapest: float
    recalling: float
    cost: Point
    recall: Point
    harnesses: dict[str, Point]
    curve: dict[float, Point]

    @property
    def gap_closed(self) -> float:
        """Share of the naive rules' recall gap to 1 that is closed at full history's cost."""
        left = 1 - self.recalling
        return 1.0 if left < 1e-9 else (self.recall.recall - self.recalling) / left

    @property
    def dominating(self) -> list[str]:
        """Harnesses whose rules beat ours, both ways of it, on cost and recall."""
        ours = (self.cost, self.recall)
        return [
            name
            for name, point in self.harnesses.items()
            if any(point.cost <= each.cost and point.recall >= each.recall for each in ours)
        ]


FACTORS: Final = (1 / 8, 1 / 4, 1 / 2, 1.0, 2.0, 4.0, 8.0, 32.0)


def compared(limit: int, *, gaps: bool, curve: bool) -> Comparison:
    """All policies at a budget of ``limit`` tokens."""
    full = total(Policy, limit, gaps=gaps)

    def point(make: Callable[[], Policy]) -> Point:
        found = total(make, limit, gaps=gaps)
        return msgspec.structs.replace(found, cost=found.cost / full.cost)

    def repacked(rules: repack_policy.Rules) -> Point:
        return point(lambda: Repacked(rules))

    naive = [point(lambda each=each: Naive(*each)) for each in NAIVE]
    rules = repack_policy.Rules.of(limit)
    return Comparison(
        full=full,
        cheapest=min((each.cost for each in naive if each.recall >= full.recall), default=1.0),
        recalling=max((each.recall for each in naive if each.cost <= 1), default=full.recall),
        cost=repacked(rules),
        recall=repacked(repack_policy.Rules.of(limit, "recall")),
        harnesses={name: point(make) for name, make in HARNESSES.items()},
        curve={
            factor: repacked(msgspec.structs.replace(rules, worth_tokens=rules.worth_tokens * factor))
            for factor in (FACTORS if curve else ())
        },
    )


def run() -> Iterator[Figure]:
    """Cost and recall at each budget, with a cache that never expires. Without transcripts nothing is measured."""
    if not ROOT.is_dir():
        return
    for limit in LIMITS:
        found = compared(limit, gaps=False, curve=False)
        name, ours = f"{limit // 1000}k", found.cost
        enough = ours.recall >= found.full.recall
        yield Figure(
            name=f"window_cost_{name}",
            value=ours.cost / found.cheapest if enough else 10.0,
            goal=0.94,
            better="lower",
            detail=f"cost over that of the cheapest naive rule with full history's recall, {found.full.recall:.3f}: "
            f"{ours.cost:.3f} over {found.cheapest:.3f}, at a recall of {ours.recall:.3f}",
        )
        yield Figure(
            name=f"window_recall_{name}",
            value=found.gap_closed if found.recall.cost <= 1 else 0.0,
            goal=0.15,
            better="higher",
            detail=f"share of the naive rules' recall gap closed at full history's cost: {found.recall.recall:.3f} for "
            f"{found.recalling:.3f}, at a cost of {found.recall.cost:.3f}",
        )
        yield Figure(
            name=f"window_dominated_{name}",
            value=len(found.dominating),
            goal=0,
            better="lower",
            detail="harnesses' rules that beat ours on both: " + (", ".join(found.dominating) or "none"),
        )


# --- tables ---

_README: Final = Path(__file__).with_name("README.md")
_BEGIN, _END = "<!-- tables of bench.window: begin -->", "<!-- tables of bench.window: end -->"


def table(found: dict[int, Comparison]) -> Iterator[str]:
    """Lines of the table of all policies: in each cell cost relative to full history, and recall."""

    def line(name: str, cells: Iterable[str]) -> str:
        return f"| {name} | " + " | ".join(cells) + " |"

    def cell(point: Point) -> str:
        return f"{point.cost:.2f} / {point.recall:.3f}"

    yield line("cost / recall", (f"{limit // 1000}k" for limit in found))
    yield "|---" * (len(found) + 1) + "|"
    yield line("full history", (f"1.00 / {each.full.recall:.3f}" for each in found.values()))
    yield line("cheapest naive rule of that recall", (f"{each.cheapest:.2f}" for each in found.values()))
    yield line("best naive recall at that cost", (f"{each.recalling:.3f}" for each in found.values()))
    yield line("**ours, aim cost**", (cell(each.cost) for each in found.values()))
    yield line("**ours, aim recall**", (cell(each.recall) for each in found.values()))
    for name in HARNESSES:
        yield line(name, (cell(each.harnesses[name]) for each in found.values()))
    for factor in FACTORS:
        if all(factor in each.curve for each in found.values()):
            yield line(f"ours, worth × {factor:g}", (cell(each.curve[factor]) for each in found.values()))


def main() -> None:
    """Write the tables into ``bench/README.md``."""
    lines = [_BEGIN]
    for title, gaps in (("The cache never expires", False), ("Recorded gaps, a cache of five minutes", True)):
        found = {limit: compared(limit, gaps=gaps, curve=not gaps) for limit in LIMITS}
        lines += ["", f"{title} ({len(corpus())} sessions):", "", *table(found)]
    text = _README.read_text()
    before, _, rest = text.partition(_BEGIN)
    _README.write_text(before + "\n".join([*lines, "", _END]) + rest.partition(_END)[2])


if __name__ == "__main__":
    sys.exit(main())
