"""What the daemon does when a client does its worst: it refuses, lets go of it, and others do not notice."""

import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tests.crash.daemon import DaemonProcess
from tests.crash.wire import Wire
from tests.waiting import until

OTHERS = 100
"""Reads, and as many durable writes, of another client beside each kind of abuse. How long they take is a figure of
`python -m bench isolation flood`."""

PACE_S = 0.002
"""Pause between two abuses by a thread of this process: the probe shares the interpreter with it."""

SETTLES_S_MAX = 60.0
"""Seconds within which a daemon that does not hang has closed everything that an abuser left, on a busy machine too."""

UNREADING = 8
LAZY_FDS = 4
"""Files that the daemon opens when it first reads several things at once: far fewer than clients come and go."""

RSS_MIB_MAX = 24.0
"""Memory that may stay after abuse: caches and arenas, not what the abusers sent."""

pytestmark = pytest.mark.timeout(180)

MALFORMED = {
    "no JSON": b"{]\n",
    "not UTF-8": b'{"jsonrpc":"2.0","id":1,"method":"\xff\xfe"}\n',
    "no envelope": b"42\n",
    "empty batch": b"[]\n",
    "batch bomb": b"[" + b",".join([b'{"jsonrpc":"2.0","id":1,"method":"hello"}'] * 500) + b"]\n",
    "deep nesting": b"[" * 100_000 + b"\n",
    "unknown method": b'{"jsonrpc":"2.0","id":1,"method":"no.such"}\n',
    "wrong parameters": b'{"jsonrpc":"2.0","id":1,"method":"session.get","params":{"sesion":"s"}}\n',
    "huge number": b'{"jsonrpc":"2.0","id":1,"method":"session.chat","params":{"session":"s","first_turn":1e400}}\n',
    "duplicate key": b'{"jsonrpc":"2.0","id":1,"id":2,"method":"hello"}\n',
    "a line without end": b'{"jsonrpc":"2.0","id":1,"method":"' + b"x" * 17 * 2**20,
    "HTTP": b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nabcd\n",
}


def connected(path: Path) -> socket.socket:
    """A plain socket with little room for what it does not read."""
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    while True:
        try:
            plain.connect(str(path))
        except BlockingIOError:
            time.sleep(0.001)  # the daemon's backlog is full: this client is only one of many
        else:
            plain.settimeout(30)
            return plain


def vanish_in_mid_frame(path: Path, stop: Callable[[], bool]) -> int:
    """Connect, send a part of a call or a whole one, and go away without a word."""
    count = 0
    line = b'{"jsonrpc":"2.0","id":1,"method":"session.append","params":{"session":"s","messages":[]}}\n'
    while not stop():
        with connected(path) as plain:
            plain.sendall(line[: count * 7 % (len(line) + 1)])
        count += 1
        time.sleep(PACE_S)
    return count


def send_nonsense(path: Path, stop: Callable[[], bool]) -> int:
    """Send every malformed frame, read what comes, connect anew."""
    count = 0
    while not stop():
        for frame in MALFORMED.values():
            try:
                with connected(path) as plain:
                    plain.sendall(frame)
                    plain.shutdown(socket.SHUT_WR)
                    while plain.recv(65536):
                        pass
            except OSError:
                pass  # the daemon may close on such a peer at any moment
            count += 1
            time.sleep(PACE_S)
            if stop():
                break
    return count


def read_a_byte_a_second(path: Path, stop: Callable[[], bool]) -> int:
    """Ask for much and take a byte a second."""
    count = 0
    request = b'{"jsonrpc":"2.0","id":%d,"method":"object.get","params":{"object":"large"}}\n'
    with connected(path) as plain:
        plain.setblocking(False)
        pace = 0.0
        while not stop():
            try:
                plain.send(request % count)
                count += 1
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break
            if time.monotonic() - pace > 1:
                pace = time.monotonic()
                try:
                    plain.recv(1)
                except OSError:
                    pass
    return count


def flood(path: Path, stop: Callable[[], bool], kind: str = "reads") -> int:
    """Send calls as fast as a process of its own can, on four connections, without waiting for answers."""
    command = [sys.executable, "-m", "tests.e2e.flooder", str(path), kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        while not stop() and process.poll() is None:
            time.sleep(0.01)
        alive = process.poll() is None
        process.kill()
    return int(alive)


ABUSES = {
    "clients that vanish in mid-frame": vanish_in_mid_frame,
    "malformed frames": send_nonsense,
    "a reader of one byte a second": read_a_byte_a_second,
    "a flooder": flood,
    "a flooder that writes": partial(flood, kind="writes"),
}


async def status(daemon: DaemonProcess) -> Any:
    async with await Wire.open(daemon.socket) as wire:
        return await wire.call("daemon.status")


async def beside(abuse: Callable[[Path, Callable[[], bool]], int], daemon: DaemonProcess) -> None:
    """Fail if another client's reads or durable writes fail, get lost or are not answered during ``abuse``."""
    over = False
    counts: list[int] = []

    async def abuser() -> None:
        counts.append(await anyio.to_thread.run_sync(abuse, daemon.socket, lambda: over))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(abuser)
        await anyio.sleep(0.2)
        try:
            await read_and_write(daemon.socket, OTHERS)
        finally:
            over = True
    assert counts[0] > 0, "the abuser did nothing"


async def read_and_write(socket: Path, count: int) -> None:
    """Read and append ``count`` times each, one after the other; every append is one turn more of the chat."""
    async with await Wire.open(socket) as wire:
        turns = (await wire.call("session.get", session="quiet"))["session"]["turn_count"]
        for number in range(1, count + 1):
            messages = [{"role": "user", "content": f"probe {number}"}]
            await wire.call("session.append", session="quiet", messages=messages)
            view = await wire.call("session.get", session="quiet")
            assert view["session"]["turn_count"] == turns + number


async def settled(daemon: DaemonProcess, fds: int) -> None:
    """Wait until nobody is connected and no file is open that was not before."""

    async def is_settled() -> bool:
        return (await status(daemon))["connections"] <= 1 and daemon.fd_count() <= fds

    await until(is_settled, SETTLES_S_MAX)


@pytest.mark.anyio
@pytest.mark.parametrize("abuse", ABUSES)
@pytest.mark.requirement("RPC-2", "RPC-9")
async def test_other_clients_are_served_beside_a_bad_client_and_no_resources_leak(
    daemon: DaemonProcess, abuse: str
) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        await wire.call("session.create", agent="a", session="quiet")
        await wire.call("toolcall.record", session="s", id="large", tool="t", content="y" * 500_000)
    await read_and_write(daemon.socket, OTHERS)
    await settled(daemon, sys.maxsize)
    fds, rss = daemon.fd_count(), daemon.rss_mib()
    await beside(ABUSES[abuse], daemon)
    await settled(daemon, fds + LAZY_FDS)
    assert (await status(daemon))["in_flight"] <= 1
    assert daemon.rss_mib() <= rss + RSS_MIB_MAX
    assert await daemon.stop() == 0


@pytest.mark.anyio
async def test_clients_that_do_not_read_are_disconnected(daemon: DaemonProcess) -> None:
    await daemon.start()
    async with await Wire.open(daemon.socket) as wire:
        await wire.call("session.create", agent="a", session="s")
        await wire.call("toolcall.record", session="s", id="large", tool="t", content="y" * 500_000)
        await wire.call("object.get", object="large")
        fds = daemon.fd_count()
        request = b'{"jsonrpc":"2.0","id":%d,"method":"object.get","params":{"object":"large"}}\n'
        with contextlib.ExitStack() as stack:
            for _ in range(UNREADING):
                plain = stack.enter_context(connected(daemon.socket))
                plain.sendall(b"".join(request % number for number in range(20)))
            for count in (1 + UNREADING, 1):

                async def is_connected(count: int = count) -> bool:
                    connections: int = (await wire.call("daemon.status"))["connections"]
                    return connections == count

                await until(is_connected, SETTLES_S_MAX)
            assert daemon.fd_count() <= fds + LAZY_FDS
