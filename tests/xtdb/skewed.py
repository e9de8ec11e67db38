"""``python -m tests.xtdb.skewed MS …``: ``ctxd …`` on a host whose clock is MS milliseconds ahead; with the path of a
file in place of MS, by what the file holds at each moment. With ``CTXD_TEST_NODE_WAIT_S`` it waits so many seconds for
its node to have all rows.
"""

import os
import sys
from pathlib import Path

import ctxd.daemon
from ctxd.__main__ import main
from ctxd.clock import SystemClock
from ctxd.sharing import session_ownership, shared_log

AHEAD_MS = sys.argv.pop(1)


class Skewed(SystemClock):
    """The host's clocks, the wall's with an error."""

    def wall_ms(self) -> int:
        return super().wall_ms() + int(Path(AHEAD_MS).read_text() if AHEAD_MS.startswith("/") else AHEAD_MS)


if __name__ == "__main__":
    ctxd.daemon.SystemClock = Skewed  # type: ignore[misc]
    if node_wait_s := os.environ.get("CTXD_TEST_NODE_WAIT_S"):
        session_ownership.RELEASE_S = shared_log.LEVEL_S = float(node_wait_s)  # type: ignore[misc]
    main()
