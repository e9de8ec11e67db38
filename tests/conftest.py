"""The order of all tests, and what several folders need of the machine."""

import gc
import os
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Final

import pytest

from tests import leftovers

LONGEST_FIRST: Final = ("crash/", "xtdb/", "e2e/", "spec/", "client/", "unit/trackers/", "unit/sources/")
"""Folders whose files take long, the longest first: what is left at the end is short, so that processes that share the
files end together."""


def pytest_configure(config: pytest.Config) -> None:
    """Let nothing that the tests start outlive them, and let all of it be interrupted."""
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell that starts the tests in its background ignores it, and every process inherits that.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "PYTEST_XDIST_WORKER" not in os.environ:
        # Daemons that tests start keep their search indexes there, not among those of whoever runs the tests. Workers
        # inherit it.
        cache = tempfile.TemporaryDirectory(prefix="ctxd-cache-", ignore_cleanup_errors=True)
        os.environ["CTXD_CACHE_DIR"] = cache.name
        config.add_cleanup(cache.cleanup)
    guard = leftovers.guard()

    def end() -> None:
        guard.kill()
        guard.wait()

    # In the order of ends it is the last but for what other plugins clean up: fixtures have ended what they started.
    config.add_cleanup(end)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with what takes longest, files whole, and leave trio to ``make slow`` in unit tests.

    The daemon runs on asyncio alone. On trio its parts show whether they rely on the order in which asyncio runs tasks.
    The client runs on both, so its tests do at all times.
    """
    here = Path(__file__).parent
    within = {path: path.relative_to(here).as_posix() for path in {item.path for item in items}}

    def place(item: pytest.Item) -> int:
        path = within[item.path]
        return next(
            (place for place, folder in enumerate(LONGEST_FIRST) if path.startswith(folder)), len(LONGEST_FIRST)
        )

    items.sort(key=place)
    for item in items:
        if within[item.path].startswith("unit/") and runs_on_trio(item):
            item.add_marker("slow")


def pytest_collection_finish() -> None:
    """Keep the collector away from what stays until the end: it would visit all tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Give the collector everything back: Hypothesis, which may be imported only now, looks for referrers."""
    gc.unfreeze()


def runs_on_trio(item: pytest.Item) -> bool:
    """True if ``item`` is the trio variant of a test."""
    return (
        isinstance(item, pytest.Function)
        and "callspec" in vars(item)
        and item.callspec.params.get("anyio_backend") == "trio"
    )


@pytest.fixture(scope="session")
def bubblewrap() -> str:
    """Bubblewrap, where it is and may make sandboxes; the test is skipped elsewhere."""
    program = shutil.which("bwrap")
    if program is None:
        pytest.skip("needs bubblewrap: apt-get install bubblewrap")
    options = "--unshare-all --ro-bind / / --proc /proc --dev /dev --tmpfs /run"
    tried = subprocess.run([program, *options.split(), "true"], capture_output=True, text=True)
    if tried.returncode != 0:
        pytest.skip(f"bubblewrap may make no sandbox here: {tried.stderr.strip()}")
    return program
