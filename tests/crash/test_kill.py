"""Acknowledged means durable: a real daemon under load, killed at random moments and at every named place of its write
path.

``CTXD_KILLS`` sets the number of random kills, ``CTXD_SEED`` repeats a run's choices. Every failure prints its seed.
"""

import os
import re
import signal
import sys
from pathlib import Path

import anyio
import pytest

from ctxd import failpoints
from tests.crash.daemon import NotReady, daemon_process
from tests.crash.storm import Storm

KILLS = int(os.environ.get("CTXD_KILLS", "200"))
PARTS = 2
"""Daemons that share the kills, so that two test processes can share the time."""

KILLS_PER_SESSION = 20
"""Kills after which the clients go on in new sessions, so that lists stay short enough to be read often."""

LOAD_S = (0.005, 0.12)
"""Seconds of load between two kills, least and most."""

DURING_START = 0.1
"""Share of kills that strike a daemon that is not up yet."""

LARGE = 0.05
"""Share of tool calls whose output is too large for the database."""

ENDED_BY_SIGTERM = {"checkpoint.start", "checkpoint.end", "drain.start"}
PASSED_ONCE = {"art.dirsync"}
"""Passed by a start, and again only by a pack that begins, which few writes make."""

IN_ANOTHER_PROCESS = {"backup.copy", "restore.copy"}
BESIDE_A_NODE = {"project.submit", "project.sent", "project.committed"}
"""Passed only by a daemon that projects: tests/xtdb kills it there."""

BY_A_PURGE = {"purge.rewrite", "purge.unlink", "purge.snapshot", "purge.truncate", "art.erase"}
"""Passed only by a purge: tests/unit/store/test_purge.py, tests/unit/artifacts/test_kill.py and
tests/crash/test_commit_kill.py kill it there."""

BY_A_PURGE_OF_WORDS = {"search.rewrite", "search.rewritten"}
"""Passed only by a purge of text that the search index has: tests/spec/test_search.py kills it there."""

BY_AN_ARTIFACT = {"art.repack", "upload.write"}
"""Passed only by ``artifact.gc`` and ``artifact.upload``: tests/unit/artifacts/test_kill.py and
tests/spec/test_artifacts.py kill them there."""

BY_THE_TRASH = {"trash.begun", "trash.purge"}
"""Passed only by ``session.gc``: tests/spec/test_removal.py kills it there."""

IN_THE_DAEMON = sorted(
    failpoints.NAMES
    - IN_ANOTHER_PROCESS
    - BESIDE_A_NODE
    - BY_A_PURGE
    - BY_A_PURGE_OF_WORDS
    - BY_AN_ARTIFACT
    - BY_THE_TRASH
)

pytestmark = [pytest.mark.timeout(420), pytest.mark.slow]


@pytest.mark.anyio
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.requirement("DUR-1")
async def test_no_acknowledged_write_is_lost_or_applied_twice_over_random_kills(tmp_path: Path, part: int) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def nemesis() -> None:
            for number in range(1, KILLS // PARTS + 1):
                await anyio.sleep(storm.rng.uniform(*LOAD_S))
                await storm.kill()
                if storm.rng.random() < DURING_START:
                    daemon.launch()
                    await anyio.sleep(storm.rng.uniform(0, 0.4))
                    await storm.kill()
                await storm.start()
                if number % KILLS_PER_SESSION == 0:
                    await storm.new_sessions()

        await storm.under_load(nemesis)
        assert storm.recorder.counts["resent"] > KILLS // PARTS / 4, (
            "too few calls were in flight when the daemon was killed"
        )
        await storm.judge()


@pytest.mark.anyio
@pytest.mark.requirement("DUR-1")
async def test_no_acknowledged_write_is_lost_or_applied_twice_over_a_kill_at_every_failpoint(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def die_at(name: str, number: int) -> None:
            storm.recorder.daemon_is_down()
            try:
                await daemon.start(failpoints=f"{name}=kill@{number}")
            except NotReady:
                assert daemon.exit_code == -signal.SIGKILL, f"{name}: {daemon.said()}"
                return
            storm.recorder.daemon_is_up()
            if name in ENDED_BY_SIGTERM:
                await anyio.sleep(0.1)
                daemon.send(signal.SIGTERM)
            code = await daemon.ended()
            assert code == -signal.SIGKILL, f"{name}=kill@{number} was not hit, exit code {code}: {daemon.said()}"

        async def nemesis() -> None:
            for name in IN_THE_DAEMON:
                await storm.kill()
                for number in (1, 1 if name in ENDED_BY_SIGTERM | PASSED_ONCE else storm.rng.randint(2, 8)):
                    await die_at(name, number)
                await storm.start()

        await storm.under_load(nemesis, large=LARGE)
        await storm.judge()


@pytest.mark.anyio
@pytest.mark.requirement("DUR-7")
async def test_a_backup_that_is_killed_leaves_the_state_as_it_was_and_the_next_one_works(tmp_path: Path) -> None:
    with daemon_process(tmp_path) as daemon:
        storm = Storm(daemon)

        async def backup(target: Path, **env: str) -> int:
            command = [sys.executable, "-m", "ctxd", "backup", str(target), "--state-dir", str(daemon.state_dir)]
            done = await anyio.run_process(command, check=False, env={**os.environ, **env})
            return done.returncode

        async def nemesis() -> None:
            await anyio.sleep(0.2)
            for number in range(2):
                code = await backup(tmp_path / f"killed{number}", CTXD_FAILPOINTS="backup.copy=kill")
                assert code == -signal.SIGKILL, "backup.copy was not hit"
            assert await backup(tmp_path / "whole") == 0

        await storm.under_load(nemesis)
        await storm.judge()


def test_every_failpoint_of_the_registry_is_passed_somewhere_and_none_is_unknown() -> None:
    """The kills above go through the whole registry and assert that each place was hit."""
    sources = (Path(__file__).parents[2] / "ctxd").rglob("*.py")
    passed = {name for path in sources for name in re.findall(r"\bhit\(\"([a-z.]+)\"\)", path.read_text())}
    assert passed == failpoints.NAMES
