"""Chains of 10,000 commits and deltas of 64 MB: whole, and in bounded memory."""

import subprocess
import sys
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ctxd.commits import chain_walk
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd.store.version_store import VersionStore
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import ResponseEvent
from ctxd_protocol.methods.commits import PIECE_BYTES_MAX, StartContext
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.test_capture import CTX, environ
from tests.unit.commits.test_commits import committing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

COMMITS = 10_000
COMPACTION = 6_000
"""Number of the commit that is a compaction."""

ANCESTOR = 9_000
"""Number of the commit at which a context stops."""

DEPTHS = {"root": 0, "compaction": COMPACTION, "ancestor": ANCESTOR}


def peak_mib(pid: int) -> float:
    """The most memory that a process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def peaks_mib(pid: int) -> list[float]:
    """The most memory that a process has had, and each process that it has started and that still runs."""
    started = "".join(path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")).split()
    return [peak_mib(each) for each in (pid, *map(int, started))]


def line(number: int) -> str:
    return f'{{"type":"user","message":{{"content":"turn {number}: {f"word{number * 7919} " * 100}"}}}}\n'


def joined(stop: str) -> bytes:
    """The content of the context of the newest commit, by what it was made of."""
    found = range(DEPTHS[stop], COMMITS)
    return "".join(line(number) for number in found if stop != "root" or number != COMPACTION).encode()


def content(client: SyncClient, commit: str, stop: str) -> tuple[bytes, bool]:
    """A context read in pieces, and whether it was made before."""
    first = made = client.commit_materialize(commit, stop=stop, limit=PIECE_BYTES_MAX)
    found = b""
    while True:
        found += b64decode(made.content_base64 or "")
        if made.next_offset is None:
            break
        made = client.commit_materialize(commit, stop=stop, limit=PIECE_BYTES_MAX, offset=made.next_offset)
    assert blake3(found).hexdigest() == first.artifact_ref
    return found, first.cached


@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.requirement("CMT-30")
@pytest.mark.requirement("CMT-40")
async def test_a_chain_of_10_000_commits_is_read_from_few_reads_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids: list[str] = []
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            for number in range(COMMITS):
                kind: dict[str, Any] = {"commit_type": "compaction"} if number == COMPACTION else {}
                parent = ids[-1] if ids else None
                ids.append(
                    client.commit_checkpoint("claude-code-v1", line(number), parent=parent, **kind).commit.commit
                )
        stops = {"root": "root", "compaction": "compaction", "ancestor": ids[ANCESTOR]}
        for _ in range(2):
            daemon.kill()
            daemon.start()
            with connect_sync(daemon.socket) as client:
                for is_warm in (False, True):
                    for name, stop in stops.items():
                        assert content(client, ids[-1], stop) == (joined(name), is_warm), name
                assert client.commit_materialize(ids[-1], stop="root", content=False).commit_count == COMMITS
            assert peak_mib(daemon.pid) < 256
    read: list[int] = []
    count(monkeypatch, read)
    async with committing(tmp_path / "state") as made:
        for name, stop in stops.items():
            read.clear()
            found = await made.call("commit.materialize", commit=ids[-1], stop=stop, limit=1)
            assert found.artifact_ref == blake3(joined(name)).hexdigest()
            # A snapshot that goes beyond an ancestor is of no use for it.
            assert sum(read) < (2 * (COMMITS - ANCESTOR) + 100 if name == "ancestor" else 400), name


def count(monkeypatch: pytest.MonkeyPatch, read: list[int]) -> None:
    """Note the number of commits, of contents and of snapshots of each read."""
    versions, contents, file = (
        chain_walk.commit_index.chain_versions, VersionStore.contents, chain_walk.ChainSnapshots.read
    )  # fmt: skip

    def read_versions(*args: Any, **params: Any) -> Any:
        found = versions(*args, **params)
        read.append(len(found))
        return found

    async def read_contents(self: VersionStore, refs: Any) -> Any:
        found = await contents(self, refs)
        read.append(len(found))
        return found

    def read_file(*args: Any) -> bytes:
        read.append(1)
        return file(*args)

    monkeypatch.setattr(chain_walk.commit_index, "chain_versions", read_versions)
    monkeypatch.setattr(VersionStore, "contents", read_contents)
    monkeypatch.setattr(chain_walk.ChainSnapshots, "read", read_file)


AGENT = """
import sys
lines, size = int(sys.argv[1]), int(sys.argv[2])
start = '{"type":"assistant","session_id":"S","message":{"id":"m%d","content":[{"type":"text","text":"'
words = "all work and no play " * 1000
for number in range(lines):
    sys.stdout.write(start % number)
    for at in range(0, size, len(words)):
        sys.stdout.write(words[: size - at])
    sys.stdout.write('"}],"role":"assistant"}}\\n')
sys.stdout.write('{"type":"result","subtype":"success","session_id":"S"}\\n')
"""
"""Agent that prints lines with texts of some size, with little memory of its own."""

PEAK = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024)
sys.exit(code)
"""
"""Program that runs another one and prints the MiB that it has had at most. The memory of the process that starts a
program counts for that, too, so a small one has to."""


@pytest.mark.requirement("CAP-11")
@pytest.mark.parametrize(("lines", "mib"), [(1, 512), (1024, 256)], ids=["one line", "1,024 lines"])
def test_an_output_of_64_mb_is_captured_in_bounded_memory(tmp_path: Path, lines: int, mib: int) -> None:
    size = 64_000_000 // lines
    with Running(tmp_path, keep_state=True) as daemon:
        agent = [sys.executable, "-c", AGENT, str(lines), str(size)]
        words = [str(CTX), "capture", "--checkpoint", "session_end", "--", *agent]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *words], capture_output=True, timeout=300, env=environ(daemon.socket)
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) < mib
        with connect_sync(daemon.socket) as client:
            found, _ = content(client, client.commit_list(limit=1).commits[0].commit, "root")
            events = DELTA_FORMATS["events-v1"].events([found])
            assert [len(event.text) for event in events if isinstance(event, ResponseEvent)] == [size] * lines
        assert max(peaks_mib(daemon.pid)) < 256


@pytest.mark.requirement("SES-41")
def test_a_session_begins_with_no_more_than_64_mib(tmp_path: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        parent = None
        for number in range(9):
            delta = f'{{"type":"user","message":{{"content":"{number} {"x" * 8_000_000}"}}}}\n'
            parent = client.commit_checkpoint("claude-code-v1", delta, template="a", parent=parent).commit.commit
            if number == 7:
                assert client.session_create(context=StartContext(commit=parent)).session.agent == "a"
        with refused("too_large") as error:
            client.session_create(context=StartContext(commit=parent))
        assert "at most 67,108,864" in str(error.value) and "compaction" in str(error.value)
