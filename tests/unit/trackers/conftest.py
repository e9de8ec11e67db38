"""The kinds of watcher that trackers run over."""

import sys

import pytest

from ctxd.trackers.watcher_interface import WatcherChoice


@pytest.fixture(params=["inotify", "native", "polling"])
def choice(request: pytest.FixtureRequest) -> WatcherChoice:
    if request.param == "inotify" and sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    found: WatcherChoice = request.param
    return found
