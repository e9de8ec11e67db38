"""Failpoints do what they are told, where and as often as they are told, and nothing otherwise."""

import errno
import signal
import subprocess
import sys
from itertools import chain

import pytest

from ctxd import failpoints


@pytest.fixture(autouse=True)
def disarmed():
    yield
    failpoints.disarm()


def test_an_unarmed_place_does_nothing():
    for name in failpoints.NAMES:
        failpoints.hit(name)
        assert failpoints.passes(name) == 0


def test_an_error_is_raised_as_often_as_told():
    failpoints.arm("journal.commit=error:ENOSPC*2")
    raised = 0
    for _ in range(5):
        try:
            failpoints.hit("journal.commit")
        except OSError as error:
            assert error.errno == errno.ENOSPC
            raised += 1
    assert (raised, failpoints.passes("journal.commit")) == (2, 5)


def test_a_place_may_fire_from_a_later_pass_on():
    failpoints.arm("art.link=error:EIO*1@3")
    fired = []
    for number in range(1, 6):
        try:
            failpoints.hit("art.link")
        except OSError:
            fired.append(number)
    assert fired == [3]


def test_several_places_are_armed_from_the_environment_and_kill_at_once():
    program = "from ctxd import failpoints as f; f.hit('journal.flush'); print('slept', flush=True); f.hit('art.write')"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={"CTXD_FAILPOINTS": "journal.flush=sleep:2ms;art.write=kill", "PATH": ""},
        capture_output=True,
        text=True,
    )
    assert (done.stdout, done.returncode) == ("slept\n", -signal.SIGKILL)


@pytest.mark.parametrize(
    "spec", ["", "nowhere=kill", "journal.flush", "journal.flush=jump", "journal.flush=sleep", "journal.flush=sleep:2h"]
)
def test_a_place_or_action_that_does_not_exist_is_refused(spec):
    with pytest.raises(ValueError, match="failpoint"):
        failpoints.arm(spec)


def test_every_place_can_be_armed():
    failpoints.arm(";".join(chain.from_iterable([f"{name}=count"] for name in sorted(failpoints.NAMES))))
    for name in failpoints.NAMES:
        failpoints.hit(name)
        assert failpoints.passes(name) == 1
