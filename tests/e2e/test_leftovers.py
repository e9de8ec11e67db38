"""Interrupted tests leave no process behind."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests import leftovers
from tests.waiting import block_until

ROOT = Path(__file__).parents[2]
ENDS_S_MAX = 60.0

CONFTEST = "from tests.conftest import pytest_configure as pytest_configure\n"
ENDLESS = """
import os, time
from pathlib import Path
from tests import leftovers
from tests.client.running import Running

def test_endless(tmp_path):
    with Running(tmp_path) as daemon:
        Path({started!r}, f"{{daemon._process.pid}} {{os.environ[leftovers.MARK]}} {{os.getpid()}}").touch()
        time.sleep(600)
"""


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    """Ends what a test started, the last first."""
    with ExitStack() as stack:
        yield stack


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=["interrupted", "killed"])
@pytest.mark.slow
def test_daemons_of_tests_that_do_not_end_in_order_are_ended(
    tmp_path: Path, stack: ExitStack, number: signal.Signals
) -> None:
    started = tmp_path / "started"
    started.mkdir()
    (tmp_path / "conftest.py").write_text(CONFTEST)
    for name in ("one", "two"):
        (tmp_path / f"test_{name}.py").write_text(ENDLESS.format(started=str(started)))
    command = [sys.executable, "-m", "pytest", "-n", "2", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), "-c"]
    # Not below this test's folder: within a worker's, the path of a socket would be too long to be bound.
    base = stack.enter_context(tempfile.TemporaryDirectory(prefix="left-"))
    command += [os.devnull, f"--basetemp={base}/t", str(tmp_path)]
    # Variables of the worker that runs this test would make the inner run one too.
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    env["PYTHONPATH"] = f"{ROOT}:{ROOT / 'protocol'}"
    output = tmp_path / "output"
    with output.open("wb") as out:
        tests = subprocess.Popen(command, cwd=tmp_path, env=env, stdout=out, stderr=out, start_new_session=True)
    stack.callback(tests.wait, ENDS_S_MAX)
    stack.callback(tests.kill)
    block_until(lambda: len(os.listdir(started)) == 2 or tests.poll() is not None, ENDS_S_MAX)
    assert tests.poll() is None, output.read_text()
    daemons, marks, workers = zip(*(name.split() for name in os.listdir(started)), strict=True)
    assert [pid for pid in daemons if not Path("/proc", pid).exists()] == []
    tests.send_signal(number)
    if number == signal.SIGKILL:
        for worker in workers:
            os.kill(int(worker), number)
    tests.wait(ENDS_S_MAX)
    block_until(lambda: not [pid for mark in marks for pid in leftovers.marked(mark)])
