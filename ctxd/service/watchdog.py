"""The service manager's watchdog: pings that prove that the event loop runs and that the store commits.

Separate because it decides when the daemon counts as stuck; the service manager then kills and restarts it. A frozen
daemon, or one whose disk hangs, does not ping.
"""

from collections.abc import Awaitable, Callable

import anyio
from structlog.typing import FilteringBoundLogger

from ctxd.clock import Clock
from ctxd.service.service_manager_client import ServiceManager


async def ping_watchdog(
    manager: ServiceManager,
    clock: Clock,
    log: FilteringBoundLogger,
    *,
    works: Callable[[], Awaitable[None]],
    status: Callable[[], str],
) -> None:
    """Ping the watchdog of ``manager`` twice per interval if ``works`` returns within a quarter of it, and send
    ``status()`` when it changes. Without a service manager, return at once; otherwise run until cancelled. Cancel:
    safe.

    The ping proves that the event loop runs, ``works`` that the store commits.
    """
    if not manager.present:
        return
    period = manager.ping_period_s
    late_since: float | None = None
    while True:
        began = clock.monotonic()
        # Less than the rest of the interval, so that the ping still arrives within it.
        with anyio.move_on_after(period / 2) as waited:
            await works()
        if not waited.cancelled_caught:
            late_since = None
            await manager.report_alive(status())
            await clock.sleep(max(0.0, began + period - clock.monotonic()))
        else:
            late_since = began if late_since is None else late_since
            late_s = clock.monotonic() - late_since
            log.error("service.no_progress", seconds=round(late_s, 3))
