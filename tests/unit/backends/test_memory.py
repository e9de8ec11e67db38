"""The backend in memory does what every backend must do."""

from contextlib import nullcontext

import pytest

from tests.fakes.backend import MemoryBackend
from tests.suites.backend import BackendSuite


class TestMemoryBackend(BackendSuite):
    @pytest.fixture
    def fresh(self):
        return lambda: nullcontext(MemoryBackend())
