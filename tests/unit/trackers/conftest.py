"""The kinds of watcher that trackers run over."""

import sys

import pytest

from ctxd.trackers.opening import Choice


@pytest.fixture(params=["inotify", "native", "polling"])
def choice(request: pytest.FixtureRequest) -> Choice:
    if request.param == "inotify" and sys.platform != "linux":
        pytest.skip("inotify is Linux's")
    found: Choice = request.param
    return found
