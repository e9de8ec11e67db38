"""The checks of ``ctx doctor`` that look at a running daemon: real sandboxes, a real bubblewrap."""

import os
from pathlib import Path

import msgspec
import pytest

from ctxd.cli import daemon_checks
from ctxd_client import connect_sync
from ctxd_protocol.session_types import Mount
from ctxd_protocol.tracker_types import Watching
from tests.client.running import Running
from tests.unit.cli.test_host_checks import verdict
from tests.waiting import block_until


@pytest.fixture
def box(running, tmp_path):
    tree = (tmp_path / "tree").resolve()
    tree.mkdir()
    with connect_sync(running.socket) as client:
        mount = Mount(agent_prefix="/w", canonical_prefix=str(tree))
        made = client.session_create("a", filesystem_id="b" * 64, mounts=(mount,)).session.session
        view = client.sandbox_register([made], ttl_s=600).sandbox
        yield view
        client.sandbox_release(view.sandbox)


@pytest.fixture
def pid(running):
    with connect_sync(running.socket) as client:
        return client.daemon_status().pid


@pytest.mark.requirement("CLI-9")
def test_nearly_exhausted_descriptors_are_a_warning(tmp_path):
    assert verdict(daemon_checks.daemon_descriptors(os.getpid())) == "ok"
    process = tmp_path / "7"
    (process / "fd").mkdir(parents=True)
    for number in range(9):
        (process / "fd" / str(number)).touch()
    (process / "limits").write_text("Limit  Soft Limit\nMax open files            10   10  files\n")
    assert verdict(daemon_checks.daemon_descriptors(7, tmp_path)) == "warn"
    assert verdict(daemon_checks.daemon_descriptors(8, tmp_path)) == "ok", "there is nothing to see"


@pytest.mark.requirement("CLI-9")
def test_polled_directories_are_a_warning():
    followed = Watching(watcher="inotify", files=10, directories=3)
    assert verdict(daemon_checks.watching(followed)) == "ok"
    assert verdict(daemon_checks.watching(Watching(watcher=None))) == "ok"
    assert verdict(daemon_checks.watching(msgspec.structs.replace(followed, polled=1))) == "warn"
    assert verdict(daemon_checks.watching(msgspec.structs.replace(followed, refused=1))) == "warn"


@pytest.mark.requirement("CLI-9")
def test_followed_files_match_the_daemons_status(ctx, tmp_path):
    (tmp_path / "a.py").write_text("1\n")
    with Running(tmp_path, watcher="polling") as following:
        with connect_sync(following.socket) as client:
            made = client.session_create("a").session.session
            client.file_index(made, str(tmp_path / "a.py"))
            block_until(lambda: client.daemon_status().tracking.directories)
        ran = ctx("--socket", following.socket, "doctor", "--json")
    (found,) = (each["found"] for each in ran.json["items"] if each["name"] == "tracked files")
    assert found == "1 in 1 directory by polling"


@pytest.mark.requirement("CLI-9")
def test_a_missing_sandbox_socket_is_a_failure(box):
    assert verdict(daemon_checks.sandboxes([box])) == "ok"
    Path(box.socket).rename(f"{box.socket}.away")
    assert verdict(daemon_checks.sandboxes([box])) == "fail"
    Path(f"{box.socket}.away").rename(box.socket)
    assert verdict(daemon_checks.sandboxes([])) == "ok"


@pytest.mark.requirement("CLI-9")
def test_a_mount_missing_or_different_for_the_daemon_is_reported(box, pid, tmp_path):
    assert verdict(daemon_checks.mounts([box], pid)) == "ok"
    (root,) = (mount.canonical_prefix for mount in box.mounts)
    elsewhere = tmp_path / "proc" / str(pid) / "root"
    (elsewhere / root.lstrip("/")).mkdir(parents=True)
    assert "another directory" in daemon_checks.mounts([box], pid, tmp_path / "proc").found
    (elsewhere / root.lstrip("/")).rmdir()
    assert "does not see it" in daemon_checks.mounts([box], pid, tmp_path / "proc").found
    Path(root).rmdir()
    assert verdict(daemon_checks.mounts([box], pid)) == "warn"


@pytest.mark.requirement("CLI-9")
@pytest.mark.usefixtures("bubblewrap")
def test_a_sandbox_is_reached_from_inside_a_real_one(box):
    (found,) = daemon_checks.check_sandbox_access([box])
    assert (found.verdict, found.found) == ("ok", "reachable inside a sandbox without network")
    Path(box.socket).rename(f"{box.socket}.away")
    (found,) = daemon_checks.check_sandbox_access([box])
    assert verdict(found) == "fail"
    Path(f"{box.socket}.away").rename(box.socket)


@pytest.mark.requirement("CLI-9")
def test_an_untestable_sandbox_is_reported_as_such(box, monkeypatch, tmp_path):
    (none,) = daemon_checks.check_sandbox_access([])
    assert verdict(none) == "ok"
    refuses = tmp_path / "bwrap"
    refuses.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    refuses.chmod(0o755)
    (found,) = daemon_checks.check_sandbox_access([box], str(refuses))
    assert verdict(found) == "warn"
    own = os.stat(box.directory).st_uid
    monkeypatch.setattr(os, "geteuid", lambda: own + 1)
    for uid, user in ((None, own), (own + 2, own + 2)):
        (found,) = daemon_checks.check_sandbox_access([msgspec.structs.replace(box, uid=uid)], str(refuses))
        assert (found.verdict, found.found) == ("ok", f"not tested: it belongs to user {user}; run ctx doctor as root")
    (found,) = daemon_checks.check_sandbox_access([msgspec.structs.replace(box, uid=own + 1)], str(refuses))
    assert verdict(found) == "warn", "its own user can try it"
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (found,) = daemon_checks.check_sandbox_access([box])
    assert "bubblewrap" in found.fix
