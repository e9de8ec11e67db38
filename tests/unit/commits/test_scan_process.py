"""Large deltas in a process of their own: the same results, and what becomes of a delta when that process ends."""

import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import anyio
import pytest

from ctxd.commits import delta_scan, scan_process
from ctxd.commits.scan_process import DELTA_BYTES_MIN, FileInMemory, SandboxProcesses, ScanProcess
from ctxd.errors import CtxdError
from ctxd.secrets.custom_rules import scanner_of
from ctxd.secrets.redaction import Capture, Guard
from ctxd.secrets.scanner import Scanner
from ctxd.worker_threads import in_thread
from ctxd_protocol.secret_types import SecretPolicy
from tests.waiting import WAIT_S

pytestmark = [pytest.mark.anyio, pytest.mark.requirement("CMT-22")]

SECRET = "ghp_" + "R7d2Kq9XvB4nLw8ZtY3mPc6HsJf1Ga5EoUiT"
LINE = '{"type":"user","message":{"role":"user","content":"%s"}}\n'
GUARD = Guard(Scanner(), bytes(32))


@pytest.fixture
async def process() -> AsyncIterator[ScanProcess]:
    made = ScanProcess()
    yield made
    await in_thread(made.close)


def large(secret: str = "") -> str:
    plain = LINE % ("word " * 200)
    return plain * (DELTA_BYTES_MIN // len(plain) + 1) + (LINE % f"token={secret}" if secret else "")


async def kept(process: ScanProcess, capture: Capture, text: str, format: str = "claude-code-v1") -> str:
    """``text`` as it is to be kept."""
    with FileInMemory((text.encode(),)) as given:
        counts, redacted = await process.captured(capture, format, given)
    assert counts == delta_scan.count_delta(format, text)
    if redacted is None:
        return text
    with redacted:
        return b"".join(redacted.pieces()).decode()


@pytest.mark.parametrize("policy", ["off", "flag", "redact"])
async def test_the_process_finds_and_redacts_the_same_secrets_as_a_thread(
    process: ScanProcess, policy: SecretPolicy
) -> None:
    for text in (large(), large(SECRET)):
        here, there = Capture(GUARD, policy), Capture(GUARD, policy)
        assert await kept(process, there, text) == delta_scan.delta_captured(here, "claude-code-v1", text)
        assert there.secrets == here.secrets
    assert (SECRET in await kept(process, Capture(GUARD, policy), large(SECRET))) is (policy != "redact")


async def test_the_rules_of_a_file_hold_in_the_process(process: ScanProcess, tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text(
        f'disable = ["github-token"]\nallow = ["{SECRET}"]\n'
        '[[rule]]\nname = "acme"\npattern = "acme_(?P<s>[0-9a-f]{16})"\nentropy = 2.0\n'
    )
    guard = Guard(scanner_of(rules), bytes(32)).by("someone")
    here, there = Capture(guard, "redact"), Capture(guard, "redact")
    for secret in ("acme_0123456789abcdef", "acme_0000000000000000", SECRET):
        text = large(secret)
        assert await kept(process, there, text) == delta_scan.delta_captured(here, "claude-code-v1", text)
    assert there.secrets is not None
    assert there.secrets == here.secrets
    assert [(found.rule, found.count) for found in there.secrets.found] == [("acme", 1)]


async def test_a_rejected_delta_names_the_reason_and_the_process_continues(process: ScanProcess) -> None:
    with pytest.raises(CtxdError, match="line 1 is not JSON") as refused:
        await kept(process, Capture(GUARD, "redact"), "no JSON\n" + large())
    assert (refused.value.code, refused.value.outcome) == ("invalid_params", "not_applied")
    before = children()
    assert SECRET not in await kept(process, Capture(GUARD, "redact"), large(SECRET))
    assert children() == before


def children() -> set[int]:
    """The processes that this one has started, save those that have ended."""
    found = set()
    for folder in Path("/proc/self/task").iterdir():
        found |= set(map(int, (folder / "children").read_text().split()))
    alive = set()
    for each in found:
        command = Path(f"/proc/{each}/cmdline").read_bytes()
        if scan_process.__name__.encode() in command:
            alive.add(each)
    return alive


async def test_a_delta_whose_process_ends_is_searched_by_the_next_one(process: ScanProcess) -> None:
    await kept(process, Capture(GUARD, "redact"), large())
    (first,) = children()
    os.kill(first, signal.SIGSTOP)
    found: list[str] = []
    capture = Capture(GUARD, "redact")

    async def call() -> None:
        found.append(await kept(process, capture, large(SECRET)))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        await anyio.wait_all_tasks_blocked()
        assert not found, "the process has stopped"
        os.kill(first, signal.SIGKILL)
    assert SECRET not in found[0]
    assert capture.secrets is not None
    assert [each.count for each in capture.secrets.found] == [1]
    assert first not in children()


async def test_a_delta_whose_process_ends_twice_is_refused(
    process: ScanProcess, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    broken = tmp_path / "broken"
    broken.write_text(f"#!/bin/sh\necho started >> {starts}\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setattr("sys.executable", str(broken))
    with pytest.raises(CtxdError, match=r"ended 2 times \(exit code 3\)") as lost:
        await kept(process, Capture(GUARD, "redact"), large(SECRET))
    assert (lost.value.code, lost.value.outcome) == ("internal_error", "not_applied")
    assert starts.read_text() == "started\n" * 2
    monkeypatch.undo()
    assert SECRET not in await kept(process, Capture(GUARD, "redact"), large(SECRET))


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
@pytest.mark.slow
async def test_a_delta_that_takes_too_much_memory_is_refused_and_the_next_one_is_searched(
    process: ScanProcess,
) -> None:
    # Each object of seven bytes takes 200 in memory.
    bomb = '{"a":[' + '{"":1},' * 14_000_000 + "{}]}\n"
    with pytest.raises(CtxdError, match="MiB of memory") as refused:
        with FileInMemory((bomb.encode(),)) as given:
            await process.captured(Capture(GUARD, "redact"), "claude-code-v1", given)
    assert refused.value.code == "too_large"
    assert SECRET not in await kept(process, Capture(GUARD, "redact"), large(SECRET))


async def test_the_process_ends_with_its_daemon_in_the_middle_of_a_delta() -> None:
    ours, theirs = socket.socketpair()
    started = subprocess.Popen([sys.executable, "-m", scan_process.__name__], stdin=theirs.fileno())
    with FileInMemory((large().encode() * 40,)) as given, FileInMemory() as result, ours, theirs:
        request = pickle.dumps((GUARD, "redact", "claude-code-v1"))
        socket.send_fds(ours, [len(request).to_bytes(8)], [given.descriptor, result.descriptor])
        ours.sendall(request)
    # With a delta left it would have failed to reply.
    assert await in_thread(started.wait, WAIT_S) == 0


@pytest.mark.requirement("BOX-5")
async def test_a_sandbox_has_one_process_at_a_time_and_others_have_theirs() -> None:
    processes, order = SandboxProcesses(), list[str]()

    async def again() -> None:
        async with processes.of("a"):
            order.append("again")

    async with anyio.create_task_group() as tasks:
        async with processes.of("a") as first:
            tasks.start_soon(again)
            await anyio.wait_all_tasks_blocked()
            async with processes.of("b") as second:
                assert second is not first and not order
    assert order == ["again"]
    async with processes.of("c") as third:
        assert third is first, "the others may end"


async def test_closing_ends_the_process(process: ScanProcess) -> None:
    await kept(process, Capture(GUARD, "redact"), large())
    assert len(children()) == 1
    await in_thread(process.close)
    assert children() == set()


def test_a_file_in_memory_whose_content_cannot_be_read_is_closed() -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x"
        raise CtxdError("corrupt", "the content is damaged")

    before = os.listdir("/proc/self/fd")
    with pytest.raises(CtxdError):
        FileInMemory(pieces())
    assert len(os.listdir("/proc/self/fd")) == len(before)
