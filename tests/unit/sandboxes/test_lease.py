"""When a sandbox ends, on clocks that the test moves; and what its directory is."""

import json
import math
import os
import socket

import pytest

from ctxd.errors import CtxdError
from ctxd.sandboxes.lifecycle import RESTART_GRACE_S, Lease
from ctxd.sandboxes.registration import Registration, new_id, require_plain_roots
from ctxd.sandboxes.sandbox_directories import Directories
from ctxd_protocol.context_types import CurrentContext
from ctxd_protocol.session_types import Mount

CURRENT = CurrentContext(context_id="ctx-1", session="s", turn=1, assembly=1)


class Clock:
    def __init__(self):
        self.wall, self.running = 1_000_000, 50.0

    def wall_ms(self):
        return self.wall

    def monotonic(self):
        return self.running


def registration(**settings):
    return Registration(id=new_id(), principal="p", sessions=("s",), grants=(), created_at=0, **settings)


@pytest.mark.requirement("BOX-4")
def test_a_connections_lease_ends_its_grace_after_it():
    lease = Lease.of(registration(grace_s=7), Clock())
    assert lease.ends == 57.0, "until somebody holds it"
    lease.hold(3)
    assert lease.ends == math.inf
    lease.let_go(60.0)
    assert (lease.ends, lease.holder) == (60.0, None)


@pytest.mark.requirement("BOX-4")
@pytest.mark.parametrize(
    ("settings", "left"),
    [
        ({"grace_s": 0}, RESTART_GRACE_S),
        ({"grace_s": 90}, 90),
        ({"grace_s": 0, "ttl_s": 600, "expires_at": 1_000_000 + 400_000}, 400),
        ({"grace_s": 0, "ttl_s": 600, "expires_at": 1_000_000 - 400_000}, RESTART_GRACE_S),
        # The clock was ahead when it was registered.
        ({"grace_s": 0, "ttl_s": 600, "expires_at": 1_000_000 + 7_200_000}, 600),
    ],
)
def test_a_restart_leaves_time_to_renew(settings, left):
    assert Lease.after_restart(registration(**settings), Clock()).ends == 50.0 + left


@pytest.mark.requirement("BOX-4")
def test_the_reported_expiry_is_the_acknowledged_one():
    clock = Clock()
    box = registration(grace_s=0, ttl_s=600, expires_at=1_600_000)
    lease = Lease.of(box, clock)
    clock.wall, clock.running = clock.wall + 100_003, clock.running + 100.0
    assert lease.expires_at(box, clock) == 1_600_000
    lease.hold(1)
    assert lease.expires_at(box, clock) is None
    late = Lease.after_restart(registration(grace_s=0, ttl_s=1, expires_at=1), clock)
    assert late.expires_at(registration(grace_s=0, ttl_s=1, expires_at=1), clock) == clock.wall + 30_000


@pytest.mark.requirement("BOX-4")
def test_the_end_that_is_reported_follows_a_clock_that_was_set_back():
    clock = Clock()
    box = registration(grace_s=0, ttl_s=600, expires_at=1_000_000 + 7_200_000)
    assert Lease.after_restart(box, clock).expires_at(box, clock) == clock.wall + 600_000


def test_an_id_is_short_and_has_eighty_bits():
    ids = {new_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {len(id) for id in ids} == {16}
    assert all(id.isalnum() and id == id.lower() for id in ids)


@pytest.mark.requirement("BOX-6")
def test_readers_of_the_file_see_one_complete_context(tmp_path):
    directories = Directories(tmp_path / "s")
    directories.make("a" * 16)
    directories.write_context("a" * 16, CURRENT, None)
    file = directories.directory("a" * 16) / "current.json"
    with file.open() as before:
        directories.write_context("a" * 16, CurrentContext(context_id=None, session="s", turn=2, assembly=1), None)
        assert json.load(before)["context_id"] == "ctx-1", "another file took its place"
    assert json.loads(file.read_text())["context_id"] is None
    assert os.listdir(file.parent) == ["current.json"]


def test_leftovers_of_a_killed_daemon_are_removed_and_another_daemons_kept(tmp_path):
    directories = Directories(tmp_path / "s")
    known, dead, alive = "a" * 16, "b" * 16, "c" * 16
    for name in (known, dead, alive):
        directories.make(name)
    (tmp_path / "s" / "other").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directories.socket(alive)))
        listener.listen()
        assert directories.remove_strays({known}) == {dead: None}
    assert sorted(os.listdir(tmp_path / "s")) == [known, alive, "other"]


def test_the_socket_of_another_daemon_may_have_the_name_of_the_directory(tmp_path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert Directories(tmp_path / "s").remove_strays(set()) == {}


def test_a_path_that_is_too_long_for_a_socket_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(CtxdError) as refused:
        Directories(tmp_path / ("x" * 100)).require_room()
    assert refused.value.code == "unsupported"


@pytest.mark.requirement("BOX-1")
@pytest.mark.parametrize(
    "root", ["/", "//", "/proc", "/run/user/0", "/var/lib", "/var/lib/ctxd", "/var/lib/ctxd/artifacts"]
)
def test_no_mount_shows_more_than_a_project(root):
    with pytest.raises(CtxdError):
        require_plain_roots((Mount(agent_prefix="/w", canonical_prefix=root),), ["/var/cache/ctxd", "/var/lib/ctxd"])
    require_plain_roots((Mount(agent_prefix="/w", canonical_prefix="/var/library"),), ["/var/lib/ctxd"])
