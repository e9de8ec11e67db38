"""Killed anywhere in a write or a removal, the artifact store has every acknowledged artifact and no part of others."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.artifacts.fsck import faults
from ctxd.artifacts.packs import records

REPOSITORY = Path(__file__).parents[3]
BASE = random.Random(7).randbytes(300_000)
BOUND_S = 60

PROGRAM = """
import sys
from pathlib import Path
from ctxd.artifacts import packs
from ctxd.artifacts.artifact_store import ArtifactStore
from tests.unit.artifacts.test_kill import contents
packs.PACK_BYTES = 400_000
store = ArtifactStore(Path(sys.argv[1]))
store.create()
kept = []
for data in contents(int(sys.argv[2])):
    kept.append(store.keep(data))
    print("kept", kept[-1].ref, flush=True)
for ref in [artifact.ref for artifact in kept][::2]:
    kept = [artifact for artifact in kept if artifact.ref != ref]
    print("removing", ref, flush=True)
    store.remove_unused(store.claim_removal([ref]), ())
store.repack()
"""


def contents(round: int) -> list[bytes]:
    """Small and large contents, with chunks in common, others in each ``round``."""
    own = random.Random(round).randbytes(100_000)
    return [
        random.Random(-round - 1).randbytes(450_000),
        own[:50],
        own[:60],
        own + BASE,
        BASE[:200_000] + own,
        BASE,
        own[:70_000],
    ]


def live(root: Path) -> int:
    return sum(len(record.data) for path in (root / "packs").iterdir() for record in records(path))


@pytest.mark.requirement("ART-3")
@pytest.mark.parametrize(
    "place",
    [
        "art.write", "art.erase", "art.repack",
        *(pytest.param(place, marks=pytest.mark.slow) for place in ("art.fsync", "art.index", "art.dirsync")),
    ],
)  # fmt: skip
@pytest.mark.slow
def test_a_kill_loses_no_acknowledged_artifact_and_leaves_no_part_of_another(tmp_path, place):
    root, acknowledged = tmp_path / "artifacts", set()
    killed = 0
    for round, nth in enumerate((1, 2, 3, 4, 5, 7, 9)):
        command = [sys.executable, "-c", PROGRAM, str(root), str(round)]
        environment = {**os.environ, "CTXD_FAILPOINTS": f"{place}=kill@{nth}", "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=BOUND_S)
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        killed += done.returncode != 0
        for line in done.stdout.splitlines():
            word, ref = line.split()
            acknowledged.add(ref) if word == "kept" else acknowledged.discard(ref)
        store = ArtifactStore(root)
        store.create()
        store.remove_leftovers()
        assert all(store.read(ref) for ref in acknowledged)
        assert list(faults(store)) == []
        store.remove_unused(store.claim_removal(set(store.names()) - acknowledged), ())
        assert list(faults(store)) == [] and all(store.read(ref) for ref in acknowledged)
        store.close()
        if round == 3:
            (root / "index.db").unlink()
    assert killed >= 1
    store = ArtifactStore(root)
    store.create()
    store.remove_leftovers()
    store.remove_unused(store.claim_removal(list(store.names())), ())
    assert live(root) == 0 and list(faults(store)) == []
