"""A real node does what the projection relies on."""

from contextlib import asynccontextmanager

import pytest

from ctxd.backends.xtdb.client import XtdbClient
from tests.suites.node import NodeSuite


class TestXtdbNode(NodeSuite):
    @pytest.fixture
    def fresh_node(self, memory_node):
        @asynccontextmanager
        async def connect():
            async with XtdbClient(memory_node.url) as client:
                yield client

        return connect
