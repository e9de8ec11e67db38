"""The circuit opens after failures in a row, for longer each time, and lets one request try."""

from contextlib import suppress

import pytest

from ctxd.backends.xtdb.http_connections import BACKOFF_MAX_S, FAILURES_TOLERATED, Breaker
from ctxd.backends.xtdb.messages import Refused, Unknown, Unreachable, XtdbFailure
from ctxd.clock import SystemClock


class StandingClock(SystemClock):
    now = 50.0

    def monotonic(self) -> float:
        return self.now


def request(breaker: Breaker, failure: Exception | None = None) -> None:
    with breaker.request():
        if failure is not None:
            raise failure


def fail(breaker: Breaker, times: int = 1) -> None:
    for _ in range(times):
        with suppress(Unknown):
            request(breaker, Unknown("no answer"))


@pytest.fixture
def clock():
    return StandingClock()


@pytest.fixture
def breaker(clock):
    return Breaker(clock)


def test_it_stays_closed_while_failures_are_not_in_a_row(breaker):
    for _ in range(5):
        fail(breaker, FAILURES_TOLERATED - 1)
        request(breaker)
    assert breaker.state == "closed"


@pytest.mark.parametrize("answer", [Refused("no"), ValueError("of the caller")])
def test_an_answer_is_no_failure_even_if_it_is_no(breaker, answer):
    fail(breaker, FAILURES_TOLERATED - 1)
    with pytest.raises(type(answer)):
        request(breaker, answer)
    fail(breaker, FAILURES_TOLERATED - 1)
    assert breaker.state == "closed"


@pytest.mark.requirement("XTB-4")
def test_each_trial_that_fails_doubles_the_wait_up_to_a_minute(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    waits = []
    for _ in range(9):
        waits.append(breaker.retry_in_s)
        with pytest.raises(Unreachable):
            request(breaker)
        clock.now += breaker.retry_in_s
        fail(breaker)
    assert waits == [1, 2, 4, 8, 16, 32, BACKOFF_MAX_S, BACKOFF_MAX_S, BACKOFF_MAX_S]


def test_after_a_trial_that_succeeds_the_waits_start_anew(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    fail(breaker)
    clock.now += 2
    request(breaker)
    assert breaker.state == "closed"
    fail(breaker, FAILURES_TOLERATED)
    assert breaker.retry_in_s == 1


def test_only_one_request_tries(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    with breaker.request(), pytest.raises(Unreachable):
        request(breaker)


def test_a_trial_that_is_given_up_leaves_the_next_one_to_try(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    with pytest.raises(KeyboardInterrupt), breaker.request():
        raise KeyboardInterrupt
    assert breaker.state == "half-open"
    request(breaker)
    assert breaker.state == "closed"


def test_those_that_were_under_way_when_it_opened_do_not_make_it_longer(breaker):
    with suppress(XtdbFailure), breaker.request():
        fail(breaker, FAILURES_TOLERATED)
        raise Unknown("late")
    assert breaker.retry_in_s == 1


def test_the_third_failure_in_a_row_opens_it(breaker):
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
