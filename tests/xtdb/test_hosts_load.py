"""Three hosts on one log under a random load with faults lose nothing that they acknowledged, and settle.

``CTXD_HOSTS_SEED`` repeats a load; without it the seed is the day's. Either is printed.
"""

import os
import time
from pathlib import Path

import pytest

from tests.xtdb.host_load import ROWS_MAX, Load, Report, cluster


def loaded(folder: Path, seconds: float) -> Report:
    seed = int(os.environ.get("CTXD_HOSTS_SEED") or time.strftime("%Y%m%d"))
    print(f"CTXD_HOSTS_SEED={seed}")
    with cluster(folder, seed=seed) as three:
        load = Load(three, seed=seed)
        load.run(seconds)
        return load.settle()


def require_kept(report: Report) -> None:
    assert report.lost == []
    assert report.doubled == []
    assert report.unrendered == []
    assert report.unlevel == []
    assert report.different == []
    assert report.faults == []
    assert report.acknowledged > 100
    assert report.rows_per_write < ROWS_MAX


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.requirement("HST-4")
@pytest.mark.requirement("HST-11")
@pytest.mark.requirement("HST-13")
def test_three_hosts_lose_nothing_under_a_minute_of_faults(tmp_path: Path) -> None:
    require_kept(loaded(tmp_path, 40))


@pytest.mark.nightly
@pytest.mark.timeout(2700)
@pytest.mark.requirement("HST-4")
@pytest.mark.requirement("HST-11")
def test_three_hosts_lose_nothing_under_half_an_hour_of_faults(tmp_path: Path) -> None:
    require_kept(loaded(tmp_path, 1800))
