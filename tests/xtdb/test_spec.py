"""Specification of versions, objects, sessions and contexts, on a node as on the embedded store.

The same tests run again, in a process of their own, with a daemon that projects to this session's node. Only as-of
reads differ there, which ``test_differential.py`` compares read by read; so this is for the nightly run.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.xtdb.running import Node

SPEC = Path(__file__).parents[1] / "spec"
OF_THE_STORE = (
    "test_versions.py",
    "test_objects.py",
    "test_toolcalls.py",
    "test_deleted_files.py",
    "test_sessions.py",
    "test_session_sets.py",
    "test_chat.py",
    "test_resuming.py",
    "test_context.py",
    "test_assemblies.py",
    "test_notices.py",
)
OF_COMMITS = (
    "test_commits.py",
    "test_checkpoint_policy.py",
    "test_context_id.py",
    "test_forking.py",
    "test_removal.py",
)
RUN_S_MAX = 1800.0
"""Seconds that the spec suite may take on a node, on a busy machine."""


def run(node: Node, *paths: Path) -> subprocess.CompletedProcess[str]:
    """pytest over ``paths`` with its daemons on ``node``."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, paths)],
        cwd=SPEC.parents[1],
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        env={**os.environ, "CTXD_TEST_STORE": "xtdb", "CTXD_TEST_STORE_URL": node.url},
    )


@pytest.mark.nightly
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.requirement("PRJ-7")
def test_version_requirements_hold_on_a_node(memory_node: Node) -> None:
    done = run(memory_node, *(SPEC / name for name in OF_THE_STORE))
    assert done.returncode == 0, done.stdout[-8000:]
    assert " skipped" not in done.stdout and "xfailed" not in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.requirement("PRJ-7")
def test_commit_requirements_hold_on_a_node(memory_node: Node) -> None:
    done = run(memory_node, *(SPEC / name for name in OF_COMMITS))
    assert done.returncode == 0, done.stdout[-8000:]


@pytest.mark.nightly
@pytest.mark.timeout(RUN_S_MAX)
@pytest.mark.requirement("PRJ-7")
def test_all_other_requirements_hold_on_a_node(memory_node: Node) -> None:
    done = run(
        memory_node, *(path for path in sorted(SPEC.glob("test_*.py")) if path.name not in (*OF_THE_STORE, *OF_COMMITS))
    )
    assert done.returncode == 0, done.stdout[-8000:]
