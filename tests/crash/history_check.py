"""Judges what clients of a daemon saw, knowing nothing of how the daemon works.

Clients write down every call as an ``Event``: when it was sent, when its answer came, what the answer was. Each session
holds append-only lists (``chat``, ``index``) of elements that are unique over the whole history. ``check`` finds every
breach of the promises; it owns no I/O and no clock. Expected growth: O(n log n) in events, plus all that reads showed.

An ``ok`` operation took effect, a ``fail`` one did not, an ``info`` one may have, once, at any time after it was sent.
"""

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Final, Literal

Op = Literal["append", "read", "read_as_of"]
Outcome = Literal["ok", "fail", "info"]

RULES: Final = (
    "lost_ack",
    "phantom",
    "duplicate",
    "append_only",
    "real_time_order",
    "read_your_writes",
    "monotonic_reads",
    "as_of",
    "receipts",
    "cross_talk",
    "convergence",
)
"""The name of every promise, as ``Violation.rule`` tells it."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What the daemon answered an append with: place in the journal, chain hash there, valid time in ms."""

    seq: int
    chain: str
    vt: int


@dataclass(frozen=True, slots=True)
class Event:
    """One call as its client saw it. Times are seconds of one monotonic clock.

    ``arg``: the element of an ``append``, the valid time of a ``read_as_of``. ``value``: what a read answered.
    """

    t0: float
    t1: float
    client: str
    session: str
    op: Op
    arg: str | int | None = None
    type: Outcome = "ok"
    receipt: Receipt | None = None
    value: tuple[str, ...] = ()
    list: str = "chat"


Key = tuple[str, str]
"""A session and the name of one of its lists."""


@dataclass(frozen=True, slots=True)
class History:
    """Everything there is to judge.

    ``finals``: by name of the way it was read, every list as it stood at the end. ``chains``: chain hash by journal
    sequence, recomputed from the journal itself; empty if nobody did.
    """

    events: Sequence[Event]
    finals: Mapping[str, Mapping[Key, tuple[str, ...]]]
    chains: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise: its name out of ``RULES``, where, and the evidence in a sentence."""

    rule: str
    where: Key
    evidence: str


@dataclass(frozen=True, slots=True)
class _List:
    """One list of one session: its final state, the calls that concern it, and whose every element is."""

    key: Key
    final: tuple[str, ...]
    position: Mapping[str, int]
    appends: Mapping[str, Event]
    reads: Sequence[Event]
    as_of: Sequence[Event]
    owner: Mapping[str, Key]


def check(history: History) -> list[Violation]:
    """Every broken promise, by rule in the order of ``RULES``; empty if all held."""
    rules: tuple[Callable[[_List], Iterator[Violation]], ...] = (
        _lost_ack,
        _phantom,
        _duplicate,
        _append_only,
        _real_time_order,
        _read_your_writes,
        _monotonic_reads,
        _as_of,
        _cross_talk,
    )
    found = [violation for one in _lists(history) for rule in rules for violation in rule(one)]
    found += _receipts(history)
    found += _convergence(history)
    return sorted(found, key=lambda violation: RULES.index(violation.rule))


def _lists(history: History) -> list[_List]:
    finals = next(iter(history.finals.values()), {})
    owner: dict[str, Key] = {}
    appends: dict[Key, dict[str, Event]] = defaultdict(dict)
    reads: dict[Key, list[Event]] = defaultdict(list)
    as_of: dict[Key, list[Event]] = defaultdict(list)
    for event in history.events:
        key = (event.session, event.list)
        if event.op == "append":
            element = str(event.arg)
            assert element not in owner, f"element {element!r} was invoked twice: elements are unique"
            owner[element] = key
            appends[key][element] = event
        elif event.type == "ok":
            (reads if event.op == "read" else as_of)[key].append(event)
    result = []
    for key in sorted({*finals, *appends, *reads, *as_of}):
        final = tuple(finals.get(key, ()))
        position: dict[str, int] = {}
        for place, element in enumerate(final):
            position.setdefault(element, place)
        result.append(_List(key, final, position, appends[key], reads[key], as_of[key], owner))
    return result


def _lost_ack(one: _List) -> Iterator[Violation]:
    for element, event in one.appends.items():
        if event.type == "ok" and element not in one.position:
            yield Violation("lost_ack", one.key, f"{element} was acknowledged as {event.receipt} and is gone")


def _phantom(one: _List) -> Iterator[Violation]:
    """Nothing shows that nobody asked for, that was refused, or that was asked for only later."""
    for element in one.final:
        event = one.appends.get(element)
        if event is not None and event.type == "fail":
            yield Violation("phantom", one.key, f"{element} was refused and is there")
        elif element not in one.owner:
            yield Violation("phantom", one.key, f"{element} was never asked for")
    for read in one.reads:
        for element in read.value:
            event = one.appends.get(element)
            if event is not None and event.t0 > read.t1:
                yield Violation("phantom", one.key, f"{element} was read at {read.t1} and asked for at {event.t0}")


def _duplicate(one: _List) -> Iterator[Violation]:
    for element, count in Counter(one.final).items():
        if count > 1:
            yield Violation("duplicate", one.key, f"{element} was applied {count} times")


def _append_only(one: _List) -> Iterator[Violation]:
    for read in one.reads:
        if read.value != one.final[: len(read.value)]:
            yield Violation("append_only", one.key, f"{read.client} read what is no prefix of the end: {read.value}")


def _real_time_order(one: _List) -> Iterator[Violation]:
    """What was acknowledged before another call was sent comes before it; others' reads see it."""
    earliest_end_after = math.inf
    for element in reversed(one.final):
        event = one.appends.get(element)
        if event is None:
            continue
        if earliest_end_after < event.t0:
            yield Violation("real_time_order", one.key, f"{element} was sent after a later element was acknowledged")
        if event.type == "ok":
            earliest_end_after = min(earliest_end_after, event.t1)
    for read, missing in _reads_without(one):
        if missing.client != read.client:
            yield Violation(
                "real_time_order", one.key, f"{read.client} did not read {missing.arg}, acknowledged before"
            )


def _reads_without(one: _List) -> Iterator[tuple[Event, Event]]:
    """Reads paired with the last-placed element that was acknowledged before them and that they lack, one a client."""
    ends = sorted(
        (e for e in one.appends.values() if e.type == "ok" and str(e.arg) in one.position), key=lambda e: e.t1
    )
    furthest: dict[str, Event] = {}
    done = 0
    for read in sorted(one.reads, key=lambda e: e.t0):
        while done < len(ends) and ends[done].t1 < read.t0:
            event = ends[done]
            best = furthest.get(event.client)
            if best is None or one.position[str(best.arg)] < one.position[str(event.arg)]:
                furthest[event.client] = event
            done += 1
        for event in furthest.values():
            if one.position[str(event.arg)] >= len(read.value):
                yield read, event


def _read_your_writes(one: _List) -> Iterator[Violation]:
    for read, missing in _reads_without(one):
        if missing.client == read.client:
            yield Violation("read_your_writes", one.key, f"{read.client} did not read its own {missing.arg}")


def _monotonic_reads(one: _List) -> Iterator[Violation]:
    seen: dict[str, int] = {}
    for read in sorted(one.reads, key=lambda e: e.t0):
        before = seen.get(read.client, 0)
        if len(read.value) < before:
            yield Violation("monotonic_reads", one.key, f"{read.client} read {before}, then {len(read.value)} elements")
        seen[read.client] = max(before, len(read.value))


def _as_of(one: _List) -> Iterator[Violation]:
    """A question about the past has one answer for ever: the list as far as it was written by then."""
    answers: dict[int, tuple[str, ...]] = {}
    for read in one.as_of:
        assert isinstance(read.arg, int), "a read as of a time says which"
        if answers.setdefault(read.arg, read.value) != read.value:
            yield Violation("as_of", one.key, f"as of {read.arg}: {answers[read.arg]}, then {read.value}")
    known = sorted(
        (event.receipt.vt, one.position[element])
        for element, event in one.appends.items()
        if event.receipt is not None and element in one.position
    )
    times = [vt for vt, _ in known]
    furthest_until = [-1, *accumulate((place for _, place in known), max)]
    nearest_after = [*reversed(list(accumulate((place for _, place in reversed(known)), min))), math.inf]
    for vt, value in answers.items():
        count = bisect_right(times, vt)
        if value != one.final[: len(value)]:
            yield Violation("as_of", one.key, f"as of {vt} is no prefix of the end: {value}")
        elif not furthest_until[count] < len(value) <= nearest_after[count]:
            yield Violation("as_of", one.key, f"as of {vt} shows {len(value)} elements, not those written by then")


def _receipts(history: History) -> Iterator[Violation]:
    """Sequences rise with order in a session, no two writes share one, and every chain hash is the journal's."""
    chains = dict(history.chains)
    by_session: dict[str, list[Event]] = defaultdict(list)
    for event in history.events:
        if event.op != "append" or event.type != "ok":
            continue
        where = (event.session, event.list)
        if event.receipt is None:
            yield Violation("receipts", where, f"{event.arg} was acknowledged without a receipt")
            continue
        by_session[event.session].append(event)
        known = chains.setdefault(event.receipt.seq, event.receipt.chain)
        if known != event.receipt.chain or (history.chains and event.receipt.seq not in history.chains):
            yield Violation("receipts", where, f"the chain at {event.receipt.seq} is not what {event.arg} was told")
    finals = next(iter(history.finals.values()), {})
    for session, events in by_session.items():
        yield from _receipt_order(session, events, finals)


def _receipt_order(session: str, events: list[Event], finals: Mapping[Key, tuple[str, ...]]) -> Iterator[Violation]:
    receipts = {str(e.arg): e.receipt for e in events if e.receipt is not None}
    shared = [seq for seq, count in Counter(r.seq for r in receipts.values()).items() if count > 1]
    for seq in shared:
        yield Violation("receipts", (session, ""), f"two writes were told the sequence {seq}")
    for key in sorted(key for key in finals if key[0] == session):
        last = Receipt(0, "", 0)
        for element in finals[key]:
            receipt = receipts.get(element)
            if receipt is None:
                continue
            if receipt.seq <= last.seq and receipt.seq not in shared:
                yield Violation("receipts", key, f"{element} has sequence {receipt.seq} after {last.seq}")
            if receipt.vt < last.vt:
                yield Violation("receipts", key, f"{element} has valid time {receipt.vt} after {last.vt}")
            last = receipt


def _cross_talk(one: _List) -> Iterator[Violation]:
    for source in (one.final, *(read.value for read in (*one.reads, *one.as_of))):
        for element in source:
            home = one.owner.get(element, one.key)
            if home != one.key:
                yield Violation("cross_talk", one.key, f"{element} belongs to {home}")
                break


def _convergence(history: History) -> Iterator[Violation]:
    views = list(history.finals.items())
    for name, view in views[1:]:
        first_name, first = views[0]
        for key in sorted({*first, *view}):
            if first.get(key, ()) != view.get(key, ()):
                yield Violation("convergence", key, f"{first_name} and {name} differ")
