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


def test_failures_that_are_not_consecutive_keep_it_closed(breaker):
    for _ in range(5):
        fail(breaker, FAILURES_TOLERATED - 1)
        request(breaker)
    assert breaker.state == "closed"


@pytest.mark.parametrize("answer", [Refused("no"), ValueError("of the caller")])
def test_a_rejection_does_not_count_as_a_failure(breaker, answer):
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


def test_a_successful_trial_resets_the_backoff(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    fail(breaker)
    clock.now += 2
    request(breaker)
    assert breaker.state == "closed"
    fail(breaker, FAILURES_TOLERATED)
    assert breaker.retry_in_s == 1


def test_only_one_trial_request_is_allowed(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    with breaker.request(), pytest.raises(Unreachable):
        request(breaker)


def test_a_cancelled_trial_allows_the_next_one(breaker, clock):
    fail(breaker, FAILURES_TOLERATED)
    clock.now += 1
    with pytest.raises(KeyboardInterrupt), breaker.request():
        raise KeyboardInterrupt
    assert breaker.state == "half-open"
    request(breaker)
    assert breaker.state == "closed"


def test_failures_of_requests_begun_before_opening_do_not_extend_the_wait(breaker):
    with suppress(XtdbFailure), breaker.request():
        fail(breaker, FAILURES_TOLERATED)
        raise Unknown("late")
    assert breaker.retry_in_s == 1


def test_the_third_consecutive_failure_opens_it(breaker):
    fail(breaker, 2)
    assert breaker.state == "closed"
    fail(breaker)
    assert breaker.state == "open"
