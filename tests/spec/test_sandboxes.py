"""Sandboxes: how they are registered and end, and how they ask for the current context."""

import json
import os
import secrets
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cbor2
import pytest

from ctxd_client import CallFailed, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.sandbox_types import SandboxView
from ctxd_protocol.session_types import Mount
from tests.client.running import Running
from tests.spec.sandboxes import BOX, inside


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncClient]:
    """A client of a daemon that nobody else uses: once a session mounts a directory, it is confined for everybody."""
    with Running(tmp_path_factory.mktemp("apart")) as running, connect_sync(running.socket) as connected:
        yield connected


@pytest.mark.requirement("BOX-1")
def test_a_sandbox_has_a_directory_that_only_it_can_find(boxed: Callable[..., SandboxView]) -> None:
    box, other = boxed(), boxed()
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (Path(box.directory).parent, box.directory, box.socket)]
    assert modes == [0o711, 0o711, 0o600]
    assert sorted(os.listdir(box.directory)) == ["ctxd.sock", "current.json"]
    assert len(os.fsencode(box.socket)) <= 107
    assert box.sandbox != other.sandbox
    assert len(box.sandbox) >= 16, "80 bits"


@pytest.mark.requirement("BOX-15")
@pytest.mark.parametrize(("name", "beside"), [("ctxd.sock", "s"), ("s", "s.d")])
def test_sandbox_directories_are_beside_the_socket_for_every_socket_name(
    tmp_path_factory: pytest.TempPathFactory, name: str, beside: str
) -> None:
    running = Running(tmp_path_factory.mktemp("b"))
    running.socket = str(running.folder / name)
    with running, connect_sync(running.socket) as client:
        own = client.session("s1", agent="a")
        box = client.sandbox_register([own.id], grants=(), ttl_s=600).sandbox
        assert Path(box.directory).parent == running.folder / beside
        assert Path(box.directory, "ctxd.sock").is_socket()


@pytest.mark.requirement("BOX-10")
@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a file to another user")
def test_the_socket_of_a_sandbox_for_another_user_belongs_to_that_user(boxed: Callable[..., SandboxView]) -> None:
    box = boxed(uid=12345)
    assert [os.stat(path).st_uid for path in (box.socket, Path(box.directory, "current.json"))] == [12345, 12345]
    assert os.stat(box.directory).st_uid == 0, "it can neither make nor remove anything there"


@pytest.mark.requirement("BOX-1")
def test_registration_rejects_a_taken_principal_and_host_sessions(
    client: SyncClient, boxed: Callable[..., SandboxView], s: SyncSession
) -> None:
    box = boxed(principal=f"agent-{secrets.token_hex(4)}")
    for code, call in {
        "principal_exists": lambda: boxed(principal=box.principal),
        "session_not_found": lambda: client.sandbox_register(["nobody"]),
        "invalid_params": lambda: client.sandbox_register([s.id]),
    }.items():
        with pytest.raises(CallFailed) as refused:
            call()
        assert refused.value.code == code
    assert client.sandbox_register([s.id], grants=(), grace_s=0).sandbox.grants == (), "it may ask and nothing else"


@pytest.mark.requirement("BOX-1")
@pytest.mark.parametrize(
    "root", ["/", "/proc/1/root", "/run", "/dev", "/sys/kernel", "//proc", "/home/../run/x", "/var/run"]
)
def test_a_sandbox_with_a_system_directory_as_mount_is_rejected(apart: SyncClient, root: str) -> None:
    mounts = (Mount(agent_prefix="/host", canonical_prefix=root),)
    wide = apart.session_create("spec", filesystem_id=BOX, mounts=mounts, workdir="/host").session
    with pytest.raises(CallFailed) as refused:
        apart.sandbox_register([wide.session])
    assert refused.value.code == "invalid_path"


@pytest.mark.requirement("BOX-1")
def test_a_registered_sandboxs_mounts_stay_as_they_are(client: SyncClient, boxed: Callable[..., SandboxView]) -> None:
    box = boxed()
    with pytest.raises(CallFailed) as refused:
        client.session_configure(box.sessions[0], mounts=())
    assert refused.value.code == "session_in_sandbox"
    client.sandbox_release(box.sandbox)
    assert client.session_configure(box.sessions[0], mounts=()).session.mounts == ()


@pytest.mark.requirement("BOX-4")
def test_a_sandbox_ends_with_the_connection_that_holds_it(daemon: Running, boxed: Callable[..., SandboxView]) -> None:
    with connect_sync(daemon.socket) as harness:
        box = boxed()
        lasting = boxed(ttl_s=600)
        for each in (box, lasting):
            harness.sandbox_renew(each.sandbox)
        guest = socket.socket(socket.AF_UNIX)
        guest.settimeout(20)
        guest.connect(box.socket)
    with guest:
        assert guest.recv(1) == b"", "its connections end with it"
    with connect_sync(daemon.socket) as harness:
        left = {each.sandbox for each in harness.sandbox_list().sandboxes}
        assert box.sandbox not in left
        assert lasting.sandbox in left
        assert harness.session_get(box.sessions[0]).session.state == "active", "its sessions stay"
        harness.sandbox_release(lasting.sandbox)
        assert not Path(lasting.directory).exists()


@pytest.mark.requirement("BOX-4")
def test_a_timed_lease_ends_unless_renewed(client: SyncClient, boxed: Callable[..., SandboxView]) -> None:
    box = boxed(ttl_s=1)
    assert box.expires_at is not None
    with socket.socket(socket.AF_UNIX) as guest:
        guest.settimeout(20)
        guest.connect(box.socket)
        renewed = client.sandbox_renew(box.sandbox).sandbox
        assert renewed.expires_at is not None
        assert renewed.expires_at >= box.expires_at
        assert guest.recv(1) == b"", "ended by the daemon"
    with pytest.raises(CallFailed) as refused:
        client.sandbox_renew(box.sandbox)
    assert refused.value.code == "sandbox_not_found"


@pytest.mark.requirement("BOX-4")
def test_a_timed_lease_ends_at_its_time_even_after_a_kill(kept: Running) -> None:
    with connect_sync(kept.socket) as client:
        session = client.session_create("spec", filesystem_id=BOX).session.session
        box = client.sandbox_register([session], ttl_s=600).sandbox
        assert box.expires_at == box.created_at + 600_000
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        (left,) = client.sandbox_list().sandboxes
        assert (left.sandbox, left.expires_at) == (box.sandbox, box.expires_at)
        client.sandbox_release(box.sandbox)


@pytest.mark.requirement("BOX-6")
def test_the_current_context_is_the_same_over_every_interface(
    client: SyncClient, boxed: Callable[..., SandboxView]
) -> None:
    box = boxed()
    own = box.sessions[0]
    for first_in_cbor in (False, True):
        client.session_append(own, [{"role": "user", "content": "x"}])  # type: ignore[list-item]
        before = client.commit_list(session=own).commits
        if first_in_cbor:
            asked_in_cbor(box, b"\xa1\x66action\x6fcurrent-context")
        with inside(box) as agent:
            current = agent.context_current().context_id
        (made,) = client.commit_list(session=own).commits[: -len(before) or None]
        assert made.commit == current, "what was new is committed"
        assert json.loads(Path(box.directory, "current.json").read_text())["context_id"] == current
        assert asked_in_cbor(box, b"\xa1\x66action\x6fcurrent-context") == {
            "ok": True,
            "data": {"context_id": current},
        }


@pytest.mark.requirement("BOX-6")
@pytest.mark.parametrize("question", [{"action": "other"}, {}, {"action": 1}, {"x": "y" * 2000}])
def test_another_question_in_cbor_is_refused(boxed: Callable[..., SandboxView], question: Any) -> None:
    box = boxed()
    assert asked_in_cbor(box, cbor2.dumps({"action": "current-context"})) == {"ok": True, "data": {"context_id": ""}}
    assert asked_in_cbor(box, cbor2.dumps(question))["ok"] is False
    assert asked_in_cbor(box, b"\xa1\xff")["ok"] is False


@pytest.mark.requirement("BOX-6")
def test_the_cbor_response_matches_bureau_byte_for_byte(boxed: Callable[..., SandboxView]) -> None:
    box = boxed()
    question = bytes.fromhex("a166616374696f6e6f63757272656e742d636f6e74657874")
    none = "a2626f6bf56464617461a16a636f6e746578745f696460"
    assert bytes_in_cbor(box, question).hex() == none
    assert bytes_in_cbor(box, question, more=False).hex() == none, "also for one that says that it says no more"


def asked_in_cbor(box: SandboxView, question: bytes) -> Any:
    return cbor2.loads(bytes_in_cbor(box, question))


def bytes_in_cbor(box: SandboxView, question: bytes, *, more: bool = True) -> bytes:
    """The answer to a question that comes in two pieces."""
    with socket.socket(socket.AF_UNIX) as raw:
        raw.settimeout(20)
        raw.connect(box.socket)
        raw.sendall(question[:1])
        if len(question) > 1:  # One of a single byte is answered, and its connection closed, at any moment.
            raw.sendall(question[1:])
        if not more:
            raw.shutdown(socket.SHUT_WR)
        return b"".join(iter(lambda: raw.recv(4096), b""))
