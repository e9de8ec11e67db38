"""Contents that leave as files: to a client that reads, in the line to any other, and never more than one unread."""

import json
import os
import socket
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from anyio.lowlevel import checkpoint

from ctxd import fd_passing
from ctxd.fd_passing import PassedFile, send_with_file
from ctxd.rpc import connection
from tests.fakes.loopback import WAIT_S, frame, serving

pytestmark = pytest.mark.anyio

NAME = "ctxd-test-passed"
CONTENT = "x" * 300_000


class Answer(msgspec.Struct):
    content: str | None = None
    descriptor: str | None = None


class Materialize:
    """A handler whose answers have files."""

    def __init__(self) -> None:
        self.made = 0

    async def __call__(self, caller: Any, params: Any) -> PassedFile:
        await checkpoint()
        self.made += 1
        descriptor = os.memfd_create(NAME, os.MFD_CLOEXEC)
        os.write(descriptor, CONTENT.encode())
        return PassedFile(Answer(descriptor="content"), descriptor, lambda: Answer(content=CONTENT))


def files() -> int:
    """The number of files that this process holds for answers."""
    found = 0
    for each in Path("/proc/self/fd").iterdir():
        try:
            found += NAME in str(each.readlink())
        except FileNotFoundError:
            continue
    return found


class Client:
    """A connection that reads descriptors, or nothing at all."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(WAIT_S)
        self.socket.connect(str(path))

    def answers(self, count: int) -> list[tuple[Any, list[int]]]:
        """The next answers, each with the descriptors that came with it; blocks."""
        data, came = b"", []
        found: list[tuple[Any, list[int]]] = []
        while len(found) < count:
            piece, descriptors, _, _ = socket.recv_fds(self.socket, 1024 * 1024, 8)
            assert piece, "the daemon ended the connection"
            came += descriptors
            *lines, data = (data + piece).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                passed = isinstance(answer, dict) and answer["result"]["descriptor"] is not None
                found.append((answer, [came.pop(0)] if passed else []))
        assert not came, "each descriptor belongs to one answer"
        return found


@pytest.mark.requirement("RPC-12")
async def test_a_client_that_has_read_everything_gets_the_content_as_a_file(tmp_path):
    made = Materialize()
    async with serving(tmp_path, {"commit.materialize": made}) as server:
        client = Client(server.path)
        for number in range(3):
            client.socket.sendall(frame("commit.materialize", id=number))
            [(answer, [descriptor])] = await anyio.to_thread.run_sync(client.answers, 1)
            assert (answer["id"], answer["result"]) == (number, {"content": None, "descriptor": "content"})
            assert os.pread(descriptor, len(CONTENT) + 1, 0).decode() == CONTENT
            os.close(descriptor)
        assert files() == 0
        client.socket.close()


@pytest.mark.requirement("RPC-12")
async def test_a_client_that_requests_a_thousand_files_and_reads_nothing_holds_one(tmp_path, monkeypatch):
    sent: list[int] = []

    def counted(*given: Any) -> int:
        sent.append(send_with_file(*given))
        return sent[-1]

    monkeypatch.setattr(connection, "send_with_file", counted)
    made = Materialize()
    async with serving(tmp_path, {"commit.materialize": made}) as server:
        client = Client(server.path)
        await anyio.to_thread.run_sync(
            client.socket.sendall, b"".join(frame("commit.materialize", id=number) for number in range(1_000))
        )
        await server.until(lambda: len(sent) > 1)
        assert [each > 0 for each in sent] == [True] + [False] * (len(sent) - 1)
        assert made.made < 100, "no more calls are begun for a client that does not read"
        assert files() < 100
        answers = await anyio.to_thread.run_sync(client.answers, 1_000)
        assert sorted(answer["id"] for answer, _ in answers) == list(range(1_000))
        for answer, descriptors in answers:
            assert (answer["result"]["content"] == CONTENT) != bool(descriptors), "in the line or as a file"
            for each in descriptors:
                os.close(each)
        client.socket.close()


@pytest.mark.requirement("RPC-12")
async def test_the_rest_of_a_line_that_the_socket_takes_in_part_follows(tmp_path, monkeypatch):
    def in_part(connection: int, line: bytes, descriptor: int) -> int:
        return send_with_file(connection, line[:10], descriptor)

    monkeypatch.setattr(connection, "send_with_file", in_part)
    async with serving(tmp_path, {"commit.materialize": Materialize()}) as server:
        client = Client(server.path)
        client.socket.sendall(frame("commit.materialize", id=7))
        [(answer, [descriptor])] = await anyio.to_thread.run_sync(client.answers, 1)
        assert (answer["id"], answer["result"]["descriptor"]) == (7, "content")
        os.close(descriptor)
        client.socket.close()


@pytest.mark.requirement("RPC-12")
async def test_a_client_that_vanishes_leaves_no_file_behind(tmp_path):
    made = Materialize()
    async with serving(tmp_path, {"commit.materialize": made}) as server:
        for _ in range(5):
            client = Client(server.path)
            client.socket.sendall(b"".join(frame("commit.materialize", id=number) for number in range(20)))
            before = made.made
            await server.until(lambda before=before: made.made > before)
            client.socket.close()
        await server.until(lambda: server.server.connections == 0)
        await server.until(lambda: files() == 0)


@pytest.mark.requirement("RPC-12")
async def test_a_member_of_a_batch_has_its_content_in_the_line(tmp_path):
    async with serving(tmp_path, {"commit.materialize": Materialize()}) as server, server.connected() as wire:
        calls = [json.loads(frame("commit.materialize", id=number)) for number in range(2)]
        await wire.send(json.dumps(calls).encode() + b"\n")
        async with anyio.create_task_group():
            line = b""
            while not line.endswith(b"\n"):
                with anyio.fail_after(WAIT_S):
                    line += await wire.reader.read(1024 * 1024)
        assert [each["result"]["content"] for each in json.loads(line)] == [CONTENT, CONTENT]
    assert files() == 0


@pytest.mark.requirement("RPC-12")
async def test_a_call_that_ends_at_once_has_its_content_in_the_line_and_a_notification_reads_none(tmp_path):
    read: list[int] = []

    def whole() -> Answer:
        read.append(1)
        return Answer(content="short")

    async def at_once(caller: Any, params: Any) -> PassedFile:
        return PassedFile(Answer(descriptor="content"), os.memfd_create(NAME, os.MFD_CLOEXEC), whole)

    async def later(caller: Any, params: Any) -> PassedFile:
        await checkpoint()
        return await at_once(caller, params)

    for handler in (at_once, later):
        read.clear()
        async with serving(tmp_path, {"commit.materialize": handler}) as server, server.connected() as wire:
            await wire.send(frame("commit.materialize", id=None).replace(b'"id": null, ', b""))
            await wire.send(frame("commit.materialize", id=1))
            answer = (await wire.answer())["result"]
            assert answer["content"] == "short" or (handler is later and answer["descriptor"] == "content")
            assert len(read) == (handler is at_once)
    assert files() == 0


@pytest.mark.parametrize("uid, passes", [(os.getuid(), True), (0, True), (os.getuid() + 1, False)])
@pytest.mark.requirement("RPC-12")
async def test_only_the_daemons_user_and_root_get_files(monkeypatch, uid, passes):
    """Another user who may use the socket would hold the daemon's memory for as long as it keeps them."""
    ours, theirs = socket.socketpair()
    packed = fd_passing.struct.pack("3i", 1, uid, 1)
    monkeypatch.setattr(socket.socket, "getsockopt", lambda *_: packed)
    with ours, theirs, Path("/dev/null").open() as file:
        assert (send_with_file(ours.fileno(), b"line\n", file.fileno()) > 0) is passes
