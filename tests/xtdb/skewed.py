"""``python -m tests.xtdb.skewed MS …``: ``ctxd …`` on a host whose clock is MS milliseconds ahead."""

import sys

import ctxd.daemon
from ctxd.__main__ import main
from ctxd.clock import SystemClock

AHEAD_MS = int(sys.argv.pop(1))


class Skewed(SystemClock):
    """The host's clocks, the wall's with an error."""

    def wall_ms(self) -> int:
        return super().wall_ms() + AHEAD_MS


if __name__ == "__main__":
    ctxd.daemon.SystemClock = Skewed  # type: ignore[misc]
    main()
