"""Restarts by a service manager under load: the sockets stay, so clients wait for a moment and lose nothing.

How long they wait is the figure of ``python -m bench restart``.
"""

from pathlib import Path

import pytest

from tests.crash.supervised import Restarts, SupervisedDaemon, answered, restarts_wanted

RESTARTS = 6

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]


@pytest.mark.anyio
@pytest.mark.requirement("SVC-7")
async def test_no_acknowledged_write_is_lost_or_doubled_over_restarts_under_load(tmp_path: Path) -> None:
    daemon = SupervisedDaemon(tmp_path)
    try:
        restarts = Restarts(daemon, restarts_wanted(RESTARTS))
        await restarts.run()
        assert answered(restarts.storm.recorder.events) > 10 * RESTARTS
    finally:
        daemon.manager.close()
