"""The node of these tests does what a real one does."""

import pytest

from tests.fakes.node import MemoryNode
from tests.suites.node import NodeSuite


class TestMemoryNode(NodeSuite):
    @pytest.fixture
    def fresh_node(self):
        return lambda: MemoryNode().connect("")
