"""Lineages of forks of forks."""

from pathlib import Path

import pytest

from ctxd.sessions.lineage import Part
from ctxd.sessions.session_settings import ForkBase, SessionSettings
from ctxd.sessions.stored_session import SessionHead
from tests.unit.sessions.world import world

pytestmark = pytest.mark.anyio

DEPTH = 5_000


@pytest.mark.requirement("SES-28")
async def test_a_deep_fork_has_of_each_ancestor_the_part_shared_by_all_between(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        catalog = made.sessions.catalog
        for n in range(DEPTH):
            # Every tenth one is a rewind.
            base = ForkBase(f"s{n - 1}", n - 5 * (n % 10 == 9), n, n) if n else None
            settings = SessionSettings(
                agent="a", principal="p", created_at=0, ordinal=n, filesystem_id="f", base=base
            )  # fmt: skip
            catalog.put(f"s{n}", SessionHead(settings=settings), n)
        lineage = made.sessions.lineage(f"s{DEPTH - 1}")
        assert len(lineage.parts) == DEPTH
        assert lineage.parts[:3] == (Part("s0", 1, 1), Part("s1", 2, 2), Part("s2", 3, 3))
        assert [part.segments for part in lineage.parts[3:9]] == [4, 4, 4, 4, 4, 4], "all below the rewind"
        assert lineage.sessions[:2] == (f"s{DEPTH - 1}", f"s{DEPTH - 2}")
        assert lineage.holder(0).session == "s0" and lineage.holder(3).session == "s3"
