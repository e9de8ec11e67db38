"""Three hosts on one log, under a random load with faults.

Three daemons, each with a node, share one PostgreSQL log. Their clients write, assemble, purge and hand sessions over
while hosts are killed and stalled, and nodes and the log stop. The run fails when an acknowledged write is in neither
its session nor exactly one branch, an assembly does not render as recorded, or a node lacks rows of its journal.

``hosts_rows_per_write`` counts journal rows of all hosts per acknowledged write. ``hosts_level_s`` is the time, in
seconds after the load, until every node has all of its journal and no journal grows. ``CTXD_HOSTS_SEED`` repeats a
load.
"""

import os
import time
from collections.abc import Iterator

from bench import running
from bench.figures import Figure
from tests.xtdb.host_load import LEVEL_S_MAX, ROWS_MAX, Load, cluster


def run() -> Iterator[Figure]:
    """See the module."""
    seed = int(os.environ.get("CTXD_HOSTS_SEED") or time.strftime("%Y%m%d"))
    with running.folder() as place, cluster(place, seed=seed) as three:
        load = Load(three, seed=seed)
        load.run(30 if running.quick() else 120)
        report = load.settle()
    if not report.kept:
        raise RuntimeError(f"a promise was broken: {report}")
    detail = (
        f"seed {seed}: {report.acknowledged:,} acknowledged writes, {report.branches} branches, none lost or doubled"
    )
    yield Figure(name="hosts_rows_per_write", value=report.rows_per_write, goal=ROWS_MAX, better="lower", detail=detail)
    yield Figure(name="hosts_level_s", value=report.level_s, goal=LEVEL_S_MAX, better="lower", detail=detail)
