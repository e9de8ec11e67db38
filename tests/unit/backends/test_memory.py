"""The backend in memory does what every backend must do."""

from contextlib import nullcontext

import pytest

from tests.fakes.backend import MemoryBackend
from tests.suites.backend import EmbeddedSuite


class TestMemoryBackend(EmbeddedSuite):
    @pytest.fixture
    def fresh_embedded(self):
        return lambda: nullcontext(MemoryBackend())
