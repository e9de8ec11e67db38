"""Transactions become as large as keeps a node busy for a while, by how long it really was."""

import time

import anyio
import pytest

from ctxd.backends.xtdb.messages import PutDoc
from ctxd.projection import node_transactions
from tests.fakes.node import MemoryNode
from tests.unit.projection.projecting import fill, level, projecting

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("quick")]


class BusyNode(MemoryNode):
    """A node that takes ``version_s`` to index each version, one transaction after the other."""

    def __init__(self, version_s: float) -> None:
        super().__init__()
        self.sizes: list[int] = []
        self._version_s = version_s
        self._done_at: dict[int, float] = {}
        self._free_at = 0.0

    async def submit(self, ops):
        tx_id = await super().submit(ops)
        versions = sum(isinstance(op, PutDoc) and "tx" in op.doc.get("payload", {}) for op in ops)
        self._free_at = max(self._free_at, time.monotonic()) + versions * self._version_s
        self._done_at[tx_id] = self._free_at
        if versions:
            self.sizes.append(versions)
        return tx_id

    async def committed(self, tx_id, *, timeout_s):
        await anyio.sleep(max(0.0, self._done_at.get(tx_id, 0.0) - time.monotonic()))
        return await super().committed(tx_id, timeout_s=timeout_s)


@pytest.mark.parametrize(
    ("version_s", "busy_s", "least", "most"),
    # The bounds leave room for a machine that is busy itself: it seems a slow node, and one that is done at once after.
    [(0.0005, 0.03, node_transactions.VERSIONS_MIN, 120), (0.00001, 2.0, 400, node_transactions.VERSIONS_MAX)],
    ids=["a slow node gets small ones", "a fast node gets large ones"],
)
async def test_transactions_become_as_large_as_the_node_is_fast(root, monkeypatch, version_s, busy_s, least, most):
    monkeypatch.setattr(node_transactions, "BUSY_S", busy_s)
    node = BusyNode(version_s)
    async with projecting(root, node.connect) as store:
        for first in range(0, 4000, 2000):
            fill(store, 2000, first=first)
            await level(store)
    assert sum(node.sizes) == 4000
    full = sorted(node.sizes[len(node.sizes) // 2 :])
    assert least <= full[len(full) // 2] <= most, node.sizes
