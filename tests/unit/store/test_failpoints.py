"""Failpoints do what they are told, where and as often as they are told, and nothing otherwise."""

import errno
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from ctxd import failpoints
from tests.waiting import WAIT_S, block_until


def test_an_unarmed_place_does_nothing():
    for name in failpoints.NAMES:
        failpoints.hit(name)
        assert failpoints.passes(name) == 0


def test_an_error_is_raised_the_configured_number_of_times():
    with failpoints.armed("journal.commit=error:ENOSPC*2"):
        raised = 0
        for _ in range(5):
            try:
                failpoints.hit("journal.commit")
            except OSError as error:
                assert error.errno == errno.ENOSPC
                raised += 1
        assert (raised, failpoints.passes("journal.commit")) == (2, 5)


def test_a_place_may_fire_from_a_later_pass_on():
    with failpoints.armed("art.index=error:EIO*1@3"):
        fired = []
        for number in range(1, 6):
            try:
                failpoints.hit("art.index")
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


def test_a_place_is_held_while_a_file_exists(tmp_path):
    held = tmp_path / "held"
    with failpoints.armed(f"journal.flush=hold:{held}"), ThreadPoolExecutor() as thread:
        failpoints.hit("journal.flush")
        held.touch()
        passed = thread.submit(failpoints.hit, "journal.flush")
        block_until(lambda: failpoints.passes("journal.flush") == 2)
        assert not passed.done()
        held.unlink()
        passed.result(WAIT_S)


@pytest.mark.parametrize(
    "spec",
    [
        "",
        "nowhere=kill",
        "journal.flush",
        "journal.flush=jump",
        "journal.flush=sleep",
        "journal.flush=sleep:2h",
        "journal.flush=hold",
    ],
)
def test_a_place_or_action_that_does_not_exist_is_refused(spec):
    with pytest.raises(ValueError, match="failpoint"), failpoints.armed(spec):
        pass


def test_every_place_can_be_armed():
    with failpoints.armed(";".join(f"{name}=count" for name in sorted(failpoints.NAMES))):
        for name in failpoints.NAMES:
            failpoints.hit(name)
            assert failpoints.passes(name) == 1


def test_armed_failpoints_are_restored_on_exit():
    with failpoints.armed("journal.flush=count"):
        failpoints.hit("journal.flush")
        with pytest.raises(OSError, match="failpoint"), failpoints.armed("journal.flush=error:EIO;art.index=count"):
            failpoints.hit("journal.flush")
        failpoints.hit("journal.flush")
        failpoints.hit("art.index")
        assert (failpoints.passes("journal.flush"), failpoints.passes("art.index")) == (2, 0)
    failpoints.hit("journal.flush")
    assert failpoints.passes("journal.flush") == 0
