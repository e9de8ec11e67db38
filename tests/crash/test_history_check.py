"""The checker is only worth what it rejects: one bad history for every promise, and good ones it must let pass."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.crash.history_check import RULES, Event, History, Receipt, check

SESSIONS = ("alpha", "beta")
LISTS = ("chat", "index")


def good_history(seed: int, *, calls: int = 120) -> History:
    """What clients of a correct, linearizable daemon see, calls overlapping and some of them lost, in random order."""
    rng = random.Random(seed)
    state: dict[tuple[str, str], list[str]] = {(s, name): [] for s in SESSIONS for name in LISTS}
    written: dict[tuple[str, str], list[tuple[int, str]]] = {key: [] for key in state}
    events: list[Event] = []
    chains: dict[int, str] = {}
    free = {f"client-{n}": 0.0 for n in range(4)}
    seq = vt = 0
    for moment in range(calls):
        idle = sorted(client for client, until in free.items() if until <= moment)
        if not idle:
            continue
        client = rng.choice(idle)
        t0 = max(free[client], moment - rng.random())
        t1 = moment + rng.random() * 3
        free[client] = t1
        key = (rng.choice(SESSIONS), rng.choice(LISTS))
        kind = rng.choice(("append", "append", "append", "read", "read_as_of"))
        if kind == "append":
            outcome = rng.choice(("ok", "ok", "ok", "fail", "info", "info-applied"))
            element = f"e{moment}"
            receipt = None
            if outcome in ("ok", "info-applied"):
                seq, vt = seq + rng.randint(1, 3), vt + rng.randint(1, 5)
                chains[seq] = f"chain-{seq}"
                state[key].append(element)
                written[key].append((vt, element))
                receipt = Receipt(seq, f"chain-{seq}", vt) if outcome == "ok" else None
            shown = "info" if outcome.startswith("info") else outcome
            events.append(Event(t0, t1, client, key[0], "append", element, shown, receipt, list=key[1]))
        elif kind == "read":
            events.append(Event(t0, t1, client, key[0], "read", value=tuple(state[key]), list=key[1]))
        elif written[key]:
            asked = rng.choice(written[key])[0]
            value = tuple(element for at, element in written[key] if at <= asked)
            events.append(Event(t0, t1, client, key[0], "read_as_of", asked, value=value, list=key[1]))
    finals = {key: tuple(elements) for key, elements in state.items()}
    return History(events, {"client": finals, "journal": dict(finals)}, chains)


def base() -> History:
    """Six acknowledged elements in one list and two in another's, every one after the other, and some reads."""
    events = [
        Event(n, n + 0.5, "a", "alpha", "append", f"e{n}", receipt=Receipt(n + 1, f"c{n + 1}", 10 * n))
        for n in range(6)
    ]
    events += [
        Event(n, n + 0.5, "b", "beta", "append", f"e{n}", receipt=Receipt(n + 1, f"c{n + 1}", 10 * n)) for n in (6, 7)
    ]
    events.append(Event(8, 8.5, "a", "alpha", "read", value=tuple(f"e{n}" for n in range(6))))
    events.append(Event(9, 9.5, "b", "alpha", "read_as_of", 20, value=("e0", "e1", "e2")))
    finals = {("alpha", "chat"): tuple(f"e{n}" for n in range(6)), ("beta", "chat"): ("e6", "e7")}
    return History(events, {"client": finals, "journal": dict(finals)}, {n: f"c{n}" for n in range(1, 9)})


def with_finals(history: History, session: str, *elements: str) -> History:
    finals = {**history.finals["client"], (session, "chat"): elements}
    return dataclasses.replace(history, finals={"client": finals, "journal": dict(finals)})


def with_events(history: History, *events: Event) -> History:
    return dataclasses.replace(history, events=[*history.events, *events])


def with_receipt(history: History, element: str, receipt: Receipt | None) -> History:
    events = [dataclasses.replace(e, receipt=receipt) if e.arg == element else e for e in history.events]
    return dataclasses.replace(history, events=events)


def diverged() -> History:
    history = base()
    journal = {**history.finals["journal"], ("beta", "chat"): ("e6",)}
    return dataclasses.replace(history, finals={"client": history.finals["client"], "journal": journal})


ALL = tuple(f"e{n}" for n in range(6))

BAD = {
    "an acknowledged element is missing at the end": ("lost_ack", with_finals(base(), "beta", "e6")),
    "an element that nobody sent is there": ("phantom", with_finals(base(), "beta", "e6", "e7", "e99")),
    "a refused element is there": (
        "phantom",
        with_finals(with_events(base(), Event(9, 9.5, "b", "beta", "append", "no", "fail")), "beta", "e6", "e7", "no"),
    ),
    "an element is read before anybody sent it": (
        "phantom",
        with_finals(
            with_events(
                base(),
                Event(8, 8.2, "c", "beta", "read", value=("e6", "e7", "early")),
                Event(8.5, 9, "b", "beta", "append", "early", "info"),
            ),
            "beta",
            *("e6", "e7", "early"),
        ),
    ),
    "an element is applied twice": ("duplicate", with_finals(base(), "beta", "e6", "e7", "e7")),
    "a lost call that was sent once is applied twice": (
        "duplicate",
        with_finals(with_events(base(), Event(9, 9, "b", "beta", "append", "x", "info")), "beta", "e6", "e7", "x", "x"),
    ),
    "a read shows an order that the end does not have": (
        "append_only",
        with_events(base(), Event(10, 11, "c", "alpha", "read", value=("e1", "e0", *ALL[2:]))),
    ),
    "two acknowledged calls stand in the other order": (
        "real_time_order",
        with_finals(
            with_receipt(with_receipt(base(), "e6", Receipt(8, "c8", 70)), "e7", Receipt(7, "c7", 60)),
            "beta",
            "e7",
            "e6",
        ),
    ),
    "a read misses what another client was told is there": (
        "real_time_order",
        with_events(base(), Event(10, 11, "c", "alpha", "read", value=ALL[:5])),
    ),
    "a client does not read its own write": (
        "read_your_writes",
        with_events(base(), Event(7.6, 7.7, "a", "alpha", "read", value=ALL[:5])),
    ),
    "a client's second read shows less than its first": (
        "monotonic_reads",
        with_events(
            with_finals(
                with_events(base(), Event(8, 12, "b", "beta", "append", "slow", "info")), "beta", "e6", "e7", "slow"
            ),
            Event(9, 9.1, "c", "beta", "read", value=("e6", "e7", "slow")),
            Event(9.2, 9.3, "c", "beta", "read", value=("e6", "e7")),
        ),
    ),
    "the same question about the past is answered differently": (
        "as_of",
        with_events(base(), Event(10, 11, "c", "alpha", "read_as_of", 20, value=("e0", "e1"))),
    ),
    "an answer about the past lacks what was written by then": (
        "as_of",
        with_events(base(), Event(10, 11, "c", "alpha", "read_as_of", 40, value=("e0", "e1", "e2", "e3"))),
    ),
    "a later past does not begin with an earlier one": (
        "as_of",
        with_events(base(), Event(10, 11, "c", "alpha", "read_as_of", 30, value=("e0", "e2", "e1", "e3"))),
    ),
    "two writes get the same sequence": ("receipts", with_receipt(base(), "e7", Receipt(7, "c7", 70))),
    "a session's sequences do not rise": ("receipts", with_receipt(base(), "e0", Receipt(9, "c9", 0))),
    "a receipt's chain is not the journal's": ("receipts", with_receipt(base(), "e7", Receipt(8, "forged", 70))),
    "a write is acknowledged without a receipt": ("receipts", with_receipt(base(), "e7", None)),
    "another session's element shows up": (
        "cross_talk",
        with_events(base(), Event(10, 11, "c", "beta", "read_as_of", 70, value=("e0", "e6", "e7"))),
    ),
    "two ways to read the end differ": ("convergence", diverged()),
}


def test_the_base_history_of_the_bad_ones_passes() -> None:
    assert check(base()) == []


@pytest.mark.parametrize("what", BAD)
def test_a_bad_history_is_rejected_by_the_name_of_the_broken_promise(what: str) -> None:
    rule, history = BAD[what]
    assert rule in {violation.rule for violation in check(history)}


def test_every_promise_has_a_bad_history() -> None:
    assert {rule for rule, _ in BAD.values()} == set(RULES)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32))
def test_a_correct_history_passes_the_check(seed: int) -> None:
    assert check(good_history(seed)) == []


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.data())
def test_dropping_any_acknowledged_element_from_the_end_is_noticed(seed: int, data: st.DataObject) -> None:
    history = good_history(seed)
    lost = data.draw(st.sampled_from([e for e in history.events if e.op == "append" and e.type == "ok"]))
    finals = {key: tuple(e for e in value if e != lost.arg) for key, value in history.finals["client"].items()}
    broken = dataclasses.replace(history, finals={"client": finals})
    assert "lost_ack" in {violation.rule for violation in check(broken)}


def test_a_hundred_thousand_calls_are_checked_in_seconds() -> None:
    events = [
        Event(n, n + 0.5, f"c{n % 50}", f"s{n % 500}", "append", f"e{n}", receipt=Receipt(n + 1, f"{n}", n))
        for n in range(100_000)
    ]
    finals: dict[tuple[str, str], tuple[str, ...]] = {}
    for session in range(500):
        finals[f"s{session}", "chat"] = tuple(f"e{n}" for n in range(session, 100_000, 500))
    assert check(History(events, {"client": finals})) == []
