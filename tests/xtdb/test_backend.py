"""The backend in an XTDB node does what every backend must do."""

from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from ctxd.backends.port import Change
from ctxd.backends.xtdb.client import XtdbClient
from tests.fakes.backend import MemoryBackend
from tests.suites.backend import BackendSuite, differences, transactions
from tests.xtdb.apart import Apart


class TestXtdbBackend(BackendSuite):
    @pytest.fixture
    def fresh(self, memory_node):
        @asynccontextmanager
        async def make():
            async with XtdbClient(memory_node.url) as client:
                yield Apart(client)

        return make

    @given(writes=transactions)
    @settings(
        max_examples=20,
        deadline=None,
        phases=[Phase.explicit, Phase.reuse, Phase.generate],
        suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors],
    )
    async def test_it_agrees_with_the_plain_reading_of_the_algebra(
        self, fresh: Any, writes: list[list[Change]]
    ) -> None:
        """Fewer than in memory: each example is some two hundred requests."""
        reference = MemoryBackend()
        async with fresh() as backend:
            for tx, changes in enumerate(writes, start=1):
                await backend.apply(tx, tx * 100, changes)
                reference.apply(tx, tx * 100, changes)
            times = {"txs": range(0, len(writes) + 1, 2), "times": range(0, 14, 4)}
            assert await differences(backend, reference, **times) == []
