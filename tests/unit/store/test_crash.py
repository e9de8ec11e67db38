"""Killed anywhere on the write path, the store has every acknowledged write, none twice, and nothing half."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.store.verify import verify
from ctxd.store.version_reads import Reader

PLACES = [
    "journal.begin", "journal.insert", "journal.precommit", "journal.flush", "journal.commit", "journal.postcommit",
    "journal.ack", "art.write", "art.fsync", "art.index", "art.dirsync", "checkpoint.start", "checkpoint.end",
]  # fmt: skip
REPOSITORY = Path(__file__).parents[3]


class Victim:
    """The writer, started again and again on one directory, and what it acknowledged."""

    def __init__(self, root):
        self.root = root
        self.acknowledged = {}
        self.sent = 0

    def run(self, *, failpoints="", kill_after_lines=None, count=20):
        first = min([n for n in range(self.sent + 1) if n not in self.acknowledged])
        command = [sys.executable, "-m", "tests.unit.store.crash_writer", str(self.root), str(first), str(count)]
        environment = {**os.environ, "CTXD_FAILPOINTS": failpoints}
        with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE) as process:
            for lines, line in enumerate(process.stdout, start=1):
                n, seq, chain = line.split()
                receipt = (int(seq), chain.decode())
                assert self.acknowledged.setdefault(int(n), receipt) == receipt
                if lines == kill_after_lines:
                    process.send_signal(signal.SIGKILL)
        self.sent = max(self.sent, first + count)
        return process.returncode

    def check(self):
        *_, report = verify(self.root)
        assert report.problems == []
        reader = Reader(self.root / "state.db", ArtifactStore(self.root / "artifacts"))
        rows = {}
        for change in reader.changes(0, -1):
            assert change.puts[0][0] not in rows, "applied twice"
            rows[change.puts[0][0]] = change.seq
        for n, (seq, _) in self.acknowledged.items():
            assert rows.get(f"t{n}") == seq, "an acknowledged write is lost"
        assert len(set(self.acknowledged.values())) == len(self.acknowledged)
        heads = reader.heads([f"t{n}" for n in self.acknowledged], 0)[0]
        texts = reader.contents({head.content_ref for head in heads.values()})
        assert all(texts[head.content_ref].startswith(f"{id[1:]} ") for id, head in heads.items())
        reader.close()


@pytest.mark.parametrize("first_pass", [1, 3])
def test_a_kill_at_any_step_of_the_write_path_loses_nothing_and_doubles_nothing(tmp_path, first_pass):
    victim = Victim(tmp_path / "state")
    for place in PLACES:
        which = first_pass if place.startswith("journal.") else 1
        assert victim.run(failpoints=f"{place}=kill@{which}") == -signal.SIGKILL, f"{place} was not passed"
        victim.check()
    assert victim.run() == 0
    victim.check()
    assert victim.sent > 0 and all(n in victim.acknowledged for n in range(victim.sent))


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing_and_double_nothing(tmp_path):
    chance = random.Random(20261121)
    victim = Victim(tmp_path / "state")
    for _ in range(10):
        victim.run(kill_after_lines=chance.randrange(1, 40), count=60)
        victim.check()
    victim.run()
    victim.check()
