"""Each check of ``ctx doctor``: what it takes for well, for a warning, and for a failure."""

import dataclasses
import os
import re
import socket
import sys
from pathlib import Path

import msgspec
import pytest

import ctxd
import ctxd_client
from ctxd.cli import host_checks
from ctxd.cli.doctor import state_dir_of
from ctxd.config import load
from ctxd_protocol.status_types import DaemonStatus, ProjectionStatus, StoreStatus
from tests.fakes.daemon import smallest


def verdict(check):
    assert bool(check.fix) == (check.verdict != "ok"), "what is not well has a fix"
    return check.verdict


@pytest.fixture
def bound(tmp_path):
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        path.chmod(0o600)
        yield path


def test_the_path_of_a_socket_has_107_bytes_at_most():
    assert verdict(host_checks.socket_path("/" + "a" * 106)) == "ok"
    assert verdict(host_checks.socket_path("/" + "ü" * 54)) == "fail"


def test_the_socket_exists_and_is_closed_to_other_users(bound, tmp_path):
    assert verdict(host_checks.socket_file(str(bound))) == "ok"
    bound.chmod(0o660)
    assert verdict(host_checks.socket_file(str(bound))) == "ok"
    bound.chmod(0o666)
    assert "open to all users" in host_checks.socket_file(str(bound)).found
    bound.chmod(0o600)
    tmp_path.chmod(0o777)
    assert "may replace it" in host_checks.socket_file(str(bound)).found
    assert verdict(host_checks.socket_file(str(tmp_path / "none"))) == "fail"
    assert host_checks.socket_file(str(tmp_path)).found.endswith("is not a socket")


def status(**store):
    healthy = StoreStatus(state="ok", reason="", head_seq=1, head_chain="c", pending_writes=0, commits=1, rows=1,
                          flush_ms_p50=1, flush_ms_p99=1)  # fmt: skip
    return msgspec.structs.replace(
        msgspec.convert(smallest(DaemonStatus), DaemonStatus),
        version="1",
        store=msgspec.structs.replace(healthy, **store),
    )


def test_the_daemon_responds_with_our_version_and_accepts_writes():
    assert [verdict(check) for check in host_checks.daemon(status(), "", "1")] == ["ok", "ok", "ok"]
    assert [verdict(check) for check in host_checks.daemon(status(), "", "2")] == ["ok", "warn", "ok"]
    full = status(state="read_only", reason="disk_full")
    assert [check.found for check in host_checks.daemon(full, "", "1")][2] == "read_only: disk_full"
    assert [verdict(check) for check in host_checks.daemon(None, "nobody listens", "1")] == ["fail"]


def test_valid_times_ahead_of_the_clock_are_a_warning_with_a_remedy():
    ahead = "valid times are 90000 ms ahead of the host's clock"
    *_, store = host_checks.daemon(status(reason=ahead), "", "1")
    assert (store.name, store.verdict) == ("store", "warn")
    assert ahead in store.found and "clock" in store.fix


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, "ok"),
        ({"state": "connecting", "reason": "not there yet"}, "warn"),
        ({"quarantined": (7,), "reason": "1 row quarantined: 7 (invalid tx-op)"}, "warn"),
        ({"reason": "backlog at 55%"}, "warn"),
        ({"state": "unreachable", "reason": "nobody listens"}, "fail"),
        ({"state": "failed", "reason": "the node's ingester has failed: restart the node"}, "fail"),
        ({"state": "stopped", "reason": "row 7 at the node is not the journal's"}, "fail"),
    ],
)
def test_a_stalled_projection_is_reported_with_its_reason_and_a_remedy(change, expected):
    level = ProjectionStatus(url="unix:/s", state="projecting", reason="", seq=9, lag_rows=0, lag_s=0.0,
                             backlog_share=0.0, rows_per_s=0.0, quarantined=())  # fmt: skip
    *_, found = host_checks.daemon(status(backend="xtdb", projection=msgspec.structs.replace(level, **change)), "", "1")
    assert (found.name, verdict(found)) == ("projection", expected)
    assert change.get("reason", "") in found.found


def test_another_distribution_called_ctxd_is_a_failure(monkeypatch):
    assert verdict(host_checks.distribution()) == "ok"
    monkeypatch.setattr("importlib.metadata.version", lambda name: {"ctxd": "0.1.16"}[name])
    assert "0.1.16" in host_checks.distribution().found


def test_the_executable_is_the_one_that_belongs_to_this_program(tmp_path, monkeypatch):
    assert verdict(host_checks.executables(str(tmp_path))) == "warn"
    other = tmp_path / "ctxd"
    other.write_text("#!/bin/sh\n")
    other.chmod(0o755)
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "bin" / "ctx"), "doctor"])
    found = host_checks.executables(str(tmp_path))
    assert found.found == f"{other} belongs to another installation than this ctx"
    assert found.fix == f"put {tmp_path / 'bin'} first on the PATH"
    monkeypatch.setattr(sys, "argv", [str(tmp_path / "ctx"), "doctor"])
    assert verdict(host_checks.executables(str(tmp_path))) == "ok", "both lie in one folder"
    monkeypatch.undo()
    other.unlink()
    other.symlink_to(Path(sys.executable).with_name("ctxd"))
    assert verdict(host_checks.executables(str(tmp_path))) == "ok", "a link to it is it"


def test_the_state_directory_is_closed_to_others(tmp_path):
    tmp_path.chmod(0o700)
    assert verdict(host_checks.state_dir(tmp_path)) == "ok"
    tmp_path.chmod(0o755)
    assert verdict(host_checks.state_dir(tmp_path)) == "fail"
    assert verdict(host_checks.state_dir(tmp_path / "none")) == "warn"
    (tmp_path / "file").touch()
    assert verdict(host_checks.state_dir(tmp_path / "file")) == "fail"


def test_disk_space_is_checked_where_the_state_will_be(tmp_path):
    mib = 2**20
    expected = {
        2**40: "ok",
        1024 * mib: "ok",
        1024 * mib - 1: "warn",
        64 * mib: "warn",
        64 * mib - 1: "fail",
        0: "fail",
    }
    assert {free: verdict(host_checks.disk(tmp_path / "not/yet", free)) for free in expected} == expected
    assert str(tmp_path) in host_checks.disk(tmp_path / "not/yet").found


@pytest.mark.parametrize(("version", "expected"), [("3.51.3.0", "ok"), ("3.54.1.0", "ok"), ("3.46.0.1", "fail")])
def test_sqlite_is_new_enough(version, expected):
    assert verdict(host_checks.sqlite(version)) == expected
    assert verdict(host_checks.sqlite()) == "ok"


def test_the_host_has_an_identity(tmp_path):
    path = tmp_path / "machine-id"
    assert verdict(host_checks.machine_id(path)) == "warn"
    path.write_text("uninitialized\n")
    assert verdict(host_checks.machine_id(path)) == "warn"
    path.write_text("0" * 32 + "\n")
    assert verdict(host_checks.machine_id(path)) == "ok"


def test_inotify_allows_enough_watches(tmp_path):
    (tmp_path / "max_user_watches").write_text("8192\n")
    (tmp_path / "max_user_instances").write_text("128\n")
    assert [verdict(check) for check in host_checks.inotify(tmp_path)] == ["warn", "ok"]
    assert [verdict(check) for check in host_checks.inotify(tmp_path / "none")] == ["warn", "warn"]


def test_there_is_a_descriptor_for_each_connection():
    assert [verdict(host_checks.descriptors(100, soft)) for soft in (227, 228, -1)] == ["warn", "ok", "ok"]


def test_an_unset_clock_or_one_behind_stored_times_is_reported(tmp_path):
    now = 1_800_000_000_000
    assert verdict(host_checks.clock(now, None)) == "ok"
    assert verdict(host_checks.clock(now, now + 59_000)) == "ok"
    assert verdict(host_checks.clock(now, now + 61_000)) == "warn"
    assert verdict(host_checks.clock(86_400_000, None)) == "fail"
    assert host_checks.newest_file_ms(tmp_path / "none") is None
    (tmp_path / "a").touch()
    os.utime(tmp_path / "a", (5, 5))
    assert host_checks.newest_file_ms(tmp_path) == 5000


def test_every_variable_that_is_read_is_known():
    sources = [*Path(ctxd.__file__).parent.rglob("*.py"), *Path(ctxd_client.__file__).parent.rglob("*.py")]
    read = {name for path in sources for name in re.findall(r"\bCTXD_[A-Z_]*[A-Z]\b", path.read_text())}
    assert {"CTXD_SESSION", "CTXD_CONTEXT_ID"} <= read
    assert host_checks.environment(dict.fromkeys(read, "x")).found == "every CTXD_ variable is known"


def test_a_variable_that_nothing_reads_is_named():
    assert verdict(host_checks.environment({"CTXD_SOCKET": "x", "CTXD_SESSION": "y", "PATH": "z"})) == "ok"
    assert "CTXD_SOKCET" in host_checks.environment({"CTXD_SOKCET": "x"}).found


@pytest.mark.requirement("XDB-8")
def test_the_node_of_the_store_is_checked_by_the_command_that_knows_nodes(tmp_path):
    def told(script):
        program = tmp_path / "ctxd"
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return list(host_checks.node("unix:/run/node", [str(program)]))

    finding = '{"name":"%s","verdict":"%s","found":"%s","fix":"%s"}'
    two = f"[{finding % ('lag', 'ok', 'none', '')},{finding % ('node', 'fail', 'no node', 'start it')}]"
    found = told(f"test \"$5\" = unix:/run/node && echo '{two}'; exit 1")
    assert [(each.name, verdict(each)) for each in found] == [("xtdb lag", "ok"), ("xtdb node", "fail")]
    (broken,) = told("echo it broke >&2; exit 70")
    assert (verdict(broken), broken.found) == ("fail", "ctxd xtdb check: it broke")
    (absent,) = host_checks.node("unix:/run/node", [str(tmp_path / "none")])
    assert verdict(absent) == "fail"


@pytest.mark.parametrize(
    ("status_dir", "socket", "expected"),
    [
        ("/srv/state", "/x.sock", "/srv/state"),
        ("temporary", "/x.sock", None),
        (None, "/run/ctxd/ctxd.sock", "/var/lib/ctxd"),
        (None, "/x.sock", "/home/u/.local/state/ctxd"),
    ],
)
def test_the_state_directory_is_that_of_the_daemon_in_question(status_dir, socket, expected):
    config = dataclasses.replace(load({}, {"HOME": "/home/u"}), state_dir=Path("/home/u/.local/state/ctxd"))
    answered = None
    if status_dir is not None:
        answered = msgspec.convert({**smallest(DaemonStatus), "state_dir": status_dir}, DaemonStatus)
    assert state_dir_of(answered, config, socket) == (None if expected is None else Path(expected))
