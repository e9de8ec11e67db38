"""Contents that the daemon passes as files: the client returns what it would return from the line."""

import contextlib
import os
import random
import socket
import threading
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import cbor2
import msgspec
import pytest
from blake3 import blake3

from ctxd_client import connect, connect_sync, wire
from ctxd_protocol.methods.commits import CommitMaterializeResult
from tests.client.running import Running

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(120)]


class Relay:
    """A socket that passes on bytes and no descriptors, as one between two hosts would."""

    def __init__(self, path: Path, daemon: str) -> None:
        self.path, self._daemon = str(path), daemon
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(self.path)
        self._listener.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as daemon:
            daemon.connect(self._daemon)
            back = threading.Thread(target=self._copy, args=(daemon, client), daemon=True)
            back.start()
            self._copy(client, daemon)
            back.join()

    @staticmethod
    def _copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
            target.shutdown(socket.SHUT_RDWR)


def deltas() -> dict[str, dict[str, Any]]:
    """Contents of several formats, about as long as those from which on files are passed, and longer."""
    chosen, found = random.Random(7), {}
    for number, size in enumerate((0, 1, 65_000, 65_535, 65_536, 65_537, 300_000, 3_000_000, 5_000_000)):
        text = "".join(chosen.choices('aé€😀\\" ', k=min(size, 50_000)))
        line = msgspec.json.encode({"type": "user", "message": {"content": text * (size // 50_000 + 1)}}) + b"\n"
        found[f"lines-{size}"] = {"format": "claude-code-v1", "delta": line.decode()}
        event = {"type": "response", "timestamp": number, "response": {"content": "x" * size}}
        array = b64encode(cbor2.dumps([event], canonical=True)).decode()
        found[f"array-{size}"] = {"format": "events-v1", "delta_base64": array}
    return found


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, dict[str, str]]]:
    """The sockets of a daemon and of a relay to it, and commits of it."""
    folder = tmp_path_factory.mktemp("passed")
    with Running(folder) as daemon:
        with connect_sync(daemon.socket) as client:
            commits = {name: client.commit_checkpoint(**given).commit.commit for name, given in deltas().items()}
        relay = Relay(folder / "relay.sock", daemon.socket)
        yield daemon.socket, relay.path, commits
        relay.close()


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The bytes of each content that came as a file."""
    found: list[int] = []
    content = wire.PassedFiles.content

    def noted(self: wire.PassedFiles, answer: wire.IncomingLine) -> bytes | None:
        came = content(self, answer)
        if came is not None:
            found.append(len(came))
        return came

    monkeypatch.setattr(wire.PassedFiles, "content", noted)
    return found


def content_of(made: CommitMaterializeResult) -> bytes:
    assert made.descriptor is None
    return b64decode(made.content_base64) if made.content is None else made.content.encode()


@pytest.mark.requirement("RPC-12")
async def test_the_client_returns_the_same_from_a_file_and_from_the_line(served, passed):
    daemon, relay, commits = served
    async with connect(daemon) as direct, connect(relay) as through:
        for commit in commits.values():
            for stop in ("compaction", commit):
                files = len(passed)
                mine = await direct.commit_materialize(commit, stop=stop)
                assert passed[files:] == ([mine.size] if mine.size >= 65_536 else [])
                theirs = await through.commit_materialize(commit, stop=stop)
                assert len(passed) - files <= 1, "the relay passes none"
                assert msgspec.structs.replace(mine, cached=theirs.cached) == theirs
                assert blake3(content_of(mine)).hexdigest() == mine.artifact_ref
    assert max(passed) > 4 * 1024 * 1024, "also one that the daemon keeps in a file"


@pytest.mark.requirement("RPC-12")
async def test_the_blocking_client_returns_the_same(served, passed):
    daemon, relay, commits = served
    with connect_sync(daemon) as direct, connect_sync(relay) as through:
        for commit in commits.values():
            direct.commit_materialize(commit)
            assert direct.commit_materialize(commit) == through.commit_materialize(commit)
    assert passed


@pytest.mark.requirement("RPC-12")
async def test_calls_that_share_a_connection_get_their_own_files(served, passed):
    daemon, _, commits = served
    long = [commits["lines-300000"], commits["array-300000"], commits["array-3000000"]]
    async with connect(daemon) as client:
        expected = {commit: content_of(await client.commit_materialize(commit)) for commit in long}

        async def check(commit: str) -> None:
            assert content_of(await client.commit_materialize(commit)) == expected[commit]

        async with anyio.create_task_group() as group:
            for number in range(30):
                group.start_soon(check, long[number % 3])


@pytest.mark.requirement("RPC-12")
async def test_no_descriptor_is_left_open(served):
    """Neither of an answer that was read nor of one to a call that was given up."""
    daemon, _, commits = served
    before = len(os.listdir("/proc/self/fd"))
    async with connect(daemon) as client:
        during = len(os.listdir("/proc/self/fd"))
        for number in range(30):
            with anyio.move_on_after(0.0005 * number):
                await client.commit_materialize(commits["array-3000000"])
        await client.commit_materialize(commits["array-300000"])
        assert len(os.listdir("/proc/self/fd")) <= during
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.requirement("RPC-12")
async def test_a_client_without_descriptors_left_gets_the_content_in_the_line(served, passed, monkeypatch):
    """The kernel then drops the file and delivers the line."""
    daemon, _, commits = served

    def lost(self: wire.PassedFiles, descriptors: Any) -> None:
        for each in descriptors:
            os.close(each)

    monkeypatch.setattr(wire.PassedFiles, "keep", lost)
    async with connect(daemon) as client:
        made = await client.commit_materialize(commits["array-300000"])
    assert not passed
    assert blake3(content_of(made)).hexdigest() == made.artifact_ref
