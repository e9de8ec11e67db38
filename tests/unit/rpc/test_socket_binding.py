"""Where a socket is bound, how widely it can be reached, and whose it is."""

import errno
import os
import socket
import stat
import subprocess
import sys
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import anyio
import pytest
import structlog

from ctxd.errors import StateDirError
from ctxd.limits import DESCRIPTORS_RESERVED
from ctxd.rpc.caller import Peer, may_enter, peer_of
from ctxd.rpc.listener_state import HOST_DESCRIPTORS, ListenerIdentity, SharedState
from ctxd.rpc.sandbox_quota import QuotaMeter
from ctxd.rpc.socket_binding import bind_socket, inode_of, remove_socket
from ctxd.rpc.socket_server import Server
from ctxd_protocol.sandbox_types import Quota
from tests.fakes.loopback import serving, settings_of
from tests.unit.rpc.families import Services


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture(params=[0o000, 0o022, 0o177, 0o777])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


@pytest.mark.requirement("OPS-1")
def test_the_socket_is_owner_only_under_every_umask(tmp_path, umask):
    path = tmp_path / "ctxd.sock"
    with bind_socket(path):
        assert mode(path) == 0o600


@pytest.mark.requirement("OPS-1")
def test_the_socket_mode_is_never_wider_than_requested_while_binding(tmp_path, monkeypatch):
    seen = []
    bind = socket.socket.bind

    class Watched(socket.socket):
        def bind(self, address):
            bind(self, address)
            seen.append(mode(tmp_path / "ctxd.sock"))

    monkeypatch.setattr(socket, "socket", Watched)
    before = os.umask(0)
    try:
        bind_socket(tmp_path / "ctxd.sock").close()
    finally:
        os.umask(before)
    assert seen == [0o600]


def test_a_group_may_be_granted_access(tmp_path):
    path = tmp_path / "ctxd.sock"
    with bind_socket(path, gid=os.getgid()):
        assert (mode(path), path.stat().st_gid) == (0o660, os.getgid())


def test_a_missing_folder_is_made_for_its_owner_only(tmp_path):
    before = os.umask(0)
    try:
        bind_socket(tmp_path / "a" / "b" / "ctxd.sock").close()
    finally:
        os.umask(before)
    assert [mode(tmp_path / "a"), mode(tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_path_that_a_socket_cannot_have_is_refused_with_its_length(tmp_path):
    path = tmp_path / ("x" * 120)
    with pytest.raises(StateDirError, match=r"has \d+ bytes; the maximum is 107"):
        bind_socket(path)


def test_the_longest_possible_path_works(tmp_path):
    path = tmp_path / ("x" * (107 - len(os.fsencode(tmp_path)) - 1))
    bind_socket(path).close()


@pytest.mark.requirement("OPS-1")
def test_a_socket_without_a_listener_is_replaced(tmp_path):
    path = tmp_path / "ctxd.sock"
    bind_socket(path).close()
    first = inode_of(path)
    with bind_socket(path), socket.socket(socket.AF_UNIX) as client:
        assert path.exists() and (inode_of(path), mode(path)) != (first, 0)
        client.connect(str(path))


@pytest.mark.requirement("OPS-1")
def test_a_live_socket_is_refused_and_its_holder_named(tmp_path):
    path = tmp_path / "ctxd.sock"
    with bind_socket(path), pytest.raises(StateDirError, match=rf"in use by .*\(pid {os.getpid()}\)") as refused:
        bind_socket(path)
    assert refused.value.exit_code == 69


def test_a_regular_file_at_the_socket_path_is_left_alone(tmp_path):
    path = tmp_path / "ctxd.sock"
    path.write_text("mine")
    with pytest.raises(StateDirError, match="exists and is not a socket"):
        bind_socket(path)
    assert path.read_text() == "mine"


def test_a_folder_that_cannot_be_created_is_reported_with_its_cause(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StateDirError, match="Not a directory"):
        bind_socket(tmp_path / "file" / "ctxd.sock")


def test_a_socket_is_removed_only_by_its_owner(tmp_path):
    path = tmp_path / "ctxd.sock"
    with bind_socket(path):
        mine = inode_of(path)
        remove_socket(path, (mine[0], mine[1] + 1))
        assert path.exists()
        remove_socket(path, mine)
        assert not path.exists()
        remove_socket(path, mine)


@pytest.mark.anyio
@pytest.mark.requirement("SVC-1")
@pytest.mark.parametrize("lasting", [False, True])
async def test_a_socket_that_the_service_manager_keeps_stays_where_it_is(tmp_path, lasting):
    path = tmp_path / "one.sock"
    async with anyio.create_task_group() as group:
        server = Server(path, settings_of(Services().handlers()))
        await group.start(partial(server.run, lasting=lasting))
        group.cancel_scope.cancel()
    assert path.exists() == lasting


@pytest.mark.anyio
@pytest.mark.requirement("BOX-14")
async def test_a_disk_failure_while_removing_a_socket_is_tolerated(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError(errno.EIO, "Input/output error")

    with structlog.testing.capture_logs() as logged:
        async with anyio.create_task_group() as group:
            server = Server(tmp_path / "one.sock", settings_of(Services().handlers()))
            await group.start(server.run)
            monkeypatch.setattr(Path, "unlink", fail)
            group.cancel_scope.cancel()
    assert [entry["event"] for entry in logged] == ["rpc.socket_not_removed"]


@pytest.mark.anyio
@pytest.mark.requirement("BOX-14")
async def test_sandboxes_leave_descriptors_to_the_host(tmp_path, monkeypatch):
    few = DESCRIPTORS_RESERVED + 2 * HOST_DESCRIPTORS
    monkeypatch.setattr("resource.getrlimit", lambda _: (few, few))
    shared = SharedState()
    quota = QuotaMeter(Quota(), objects=lambda: 0, now=shared.loop.time)
    refusals, others = [], HOST_DESCRIPTORS - 2
    assert (shared.listeners, shared.connections) == (0, 0)
    shared.connections = others
    async with AsyncExitStack() as stack:
        for name in ("host", "box"):
            (tmp_path / name).mkdir()
        own = {"shared": shared, "quota": quota, "identity": ListenerIdentity()}
        box = await stack.enter_async_context(serving(tmp_path / "box", Services().handlers(), **own))
        host = await stack.enter_async_context(serving(tmp_path / "host", Services().handlers(), shared=shared))
        assert not shared.has_descriptor(on_host=False) and shared.has_descriptor(on_host=True)
        wire = await stack.enter_async_context(box.connected())
        refusals.append((await wire.answer())["error"]["data"]["code"])
        wire = await stack.enter_async_context(host.connected())
        assert "result" in await wire.call("context.current")
    assert refusals == ["quota_exceeded"]
    assert (shared.listeners, shared.connections) == (0, others)


def test_the_peer_is_identified_by_the_kernel():
    one, two = socket.socketpair()
    with one, two:
        assert peer_of(one.fileno()) == Peer(os.getpid(), os.getuid(), os.getgid())


@pytest.mark.parametrize(
    ("uid", "owner_only", "enters"), [(1000, True, True), (0, True, True), (1001, True, False), (1001, False, True)]
)
def test_foreign_users_enter_by_group_only(uid, owner_only, enters):
    assert may_enter(Peer(1, uid, uid), owner_uid=1000, owner_only=owner_only) is enters


STRANGER = """
import os, socket, sys
client = socket.socket(socket.AF_UNIX)
os.chdir(os.path.dirname(sys.argv[1]))
os.setuid(65534)
client.connect(os.path.basename(sys.argv[1]))
sys.stdout.write(client.recv(4096).decode())
"""


@pytest.mark.anyio
@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
async def test_another_user_is_refused_even_if_the_file_mode_permits_access(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server:
        server.path.chmod(0o666)
        tmp_path.chmod(0o711)
        process = subprocess.Popen([sys.executable, "-c", STRANGER, str(server.path)], stdout=subprocess.PIPE)
        with process:
            await server.until(lambda: process.poll() is not None)
            assert b'"code":"unauthorized"' in process.stdout.read()
        assert server.server.connections == 0


@pytest.mark.anyio
async def test_a_second_server_is_refused_and_the_first_continues(tmp_path):
    async with serving(tmp_path, Services().handlers()) as server:
        with pytest.raises(StateDirError, match="in use"):
            server.server.bind()
        async with server.connected() as wire:
            assert "result" in await wire.call("context.current")
