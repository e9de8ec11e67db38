"""``python -m tests.xtdb.skewed MS …``: ``ctxd …`` on a host whose clock is MS milliseconds ahead; with the path of a
file in place of MS, by what the file holds at each moment.

With ``CTXD_TEST_MACHINE_ID`` it runs in namespaces of its own, without a network, where that file is the machine's id.
With ``CTXD_TEST_NODE_WAIT_S`` it waits so many seconds for its node to have all rows.
"""

import ctypes
import os
import sys
from pathlib import Path

import ctxd.daemon
from ctxd.__main__ import main as ctxd_main
from ctxd.clock import SystemClock
from ctxd.sharing import session_ownership, shared_log

_CLONE_NEWNS = 0x00020000
_CLONE_NEWNET = 0x40000000
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000


class Skewed(SystemClock):
    """The host's clocks, the wall's with an error: milliseconds, or a file that holds them."""

    ahead_ms = "0"

    def wall_ms(self) -> int:
        ahead_ms = Path(self.ahead_ms).read_text() if self.ahead_ms.startswith("/") else self.ahead_ms
        return super().wall_ms() + int(ahead_ms)


def _leave_the_host(machine_id: str) -> None:
    """Move this process into a network and mount namespace of its own."""
    libc = ctypes.CDLL(None, use_errno=True)

    def require(result: int, what: str) -> None:
        if result != 0:
            raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")

    require(libc.unshare(_CLONE_NEWNS | _CLONE_NEWNET), "unshare")
    require(libc.mount(None, b"/", None, ctypes.c_ulong(_MS_REC | _MS_PRIVATE), None), "mount /")
    require(
        libc.mount(os.fsencode(machine_id), b"/etc/machine-id", None, ctypes.c_ulong(_MS_BIND), None),
        "mount /etc/machine-id",
    )


def main() -> None:
    """Run ``ctxd`` with the clock that the first argument describes."""
    Skewed.ahead_ms = sys.argv.pop(1)
    ctxd.daemon.SystemClock = Skewed  # type: ignore[misc]
    if machine_id := os.environ.get("CTXD_TEST_MACHINE_ID"):
        _leave_the_host(machine_id)
    if node_wait_s := os.environ.get("CTXD_TEST_NODE_WAIT_S"):
        session_ownership.RELEASE_S = shared_log.LEVEL_S = float(node_wait_s)  # type: ignore[misc]
    ctxd_main()


if __name__ == "__main__":
    main()
