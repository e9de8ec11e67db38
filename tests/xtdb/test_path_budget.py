"""Budget of the way from a journal row to the XTDB node."""

from itertools import count
from pathlib import Path

from ctxd_client import connect_sync
from tests.traced import fewest, traced
from tests.waiting import block_until
from tests.xtdb.running import Node

PROJECT = (17, 124)
"""Modules and functions entered for one row, from the journal to the node's confirmation."""

LEVEL_S = 60


def test_a_row_reaches_the_node_within_its_budget(memory_node: Node, tmp_path: Path) -> None:
    env = {"CTXD_STORE_BACKEND": "xtdb", "CTXD_STORE_URL": memory_node.url}
    with traced(tmp_path, env) as daemon, connect_sync(str(daemon.socket)) as client:
        numbers = count()
        client.session("projected", agent="a")

        def is_level() -> bool:
            found = client.daemon_status().store.projection
            return found is not None and found.state == "projecting" and not found.lag_rows

        def project() -> None:
            id = f"row-{next(numbers)}"
            client.toolcall_record("projected", id=id, tool="bash", content="x" * 200, op_id=id)
            block_until(is_level, LEVEL_S)

        for _ in range(5):
            project()
        entered = fewest(lambda: daemon.enters(project, under="projection/"), PROJECT)
        assert entered.within(PROJECT), (sorted(entered.modules), sorted(entered.functions))
