"""``ctxd service``: units, completions and man pages are installed, upgraded and removed, and changed files stay."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def service(*words, **environ):
    done = subprocess.run(
        [sys.executable, "-m", "ctxd", "service", *map(str, words), "--json"],
        capture_output=True, text=True, timeout=60, env={**os.environ, **environ},
    )  # fmt: skip
    return done.returncode, json.loads(done.stdout or done.stderr)


@pytest.fixture
def home(tmp_path):
    return {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": ""}


@pytest.mark.requirement("SVC-14")
def test_a_users_service_is_installed_upgraded_and_removed(tmp_path, home):
    code, done = service("install", "--program", "/opt/ctxd", **home)
    assert code == 0
    unit = tmp_path / "home/.config/systemd/user/ctxd.service"
    assert "ExecStart=/opt/ctxd run\n" in unit.read_text()
    assert len(done["installed"]) == len([path for path in (tmp_path / "home").rglob("*") if path.is_file()]) - 1
    assert service("install", "--program", "/usr/bin/ctxd", **home)[0] == 0, "an upgrade"
    assert "ExecStart=/usr/bin/ctxd run\n" in unit.read_text()
    code, removed = service("uninstall", **home)
    assert (code, removed["kept"]) == (0, [])
    assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
    assert service("uninstall", **home) == (0, {"removed": [], "kept": [], "dry_run": False})


@pytest.mark.requirement("SVC-14")
def test_a_dry_run_names_the_files_and_changes_none(tmp_path, home):
    def files():
        return sorted(path for path in tmp_path.rglob("*") if path.is_file())

    code, planned = service("install", "--dry-run", **home)
    assert (code, planned["dry_run"], files()) == (0, True, [])
    done = service("install", **home)[1]
    assert done["installed"] == planned["installed"]
    placed = files()
    code, planned = service("uninstall", "--dry-run", **home)
    assert (code, sorted(planned["removed"])) == (0, sorted(done["installed"]))
    assert files() == placed


@pytest.mark.requirement("SVC-14")
def test_a_file_that_was_changed_is_neither_replaced_nor_removed(tmp_path, home):
    service("install", "--program", "/opt/ctxd", **home)
    unit = tmp_path / "home/.config/systemd/user/ctxd.service"
    unit.write_text("[Service]\n# mine\n")
    assert service("install", "--program", "/usr/bin/ctxd", **home)[1]["kept"] == [str(unit)]
    assert service("uninstall", **home)[1]["kept"] == [str(unit)]
    assert unit.read_text() == "[Service]\n# mine\n"


@pytest.mark.requirement("SVC-14")
def test_the_hosts_service_is_installed_below_a_root(tmp_path):
    code, done = service("install", "--system", "--root", tmp_path, "--program", "/usr/local/bin/ctxd")
    assert code == 0
    placed = {str(Path(path).relative_to(tmp_path)) for path in done["installed"]}
    assert {"etc/systemd/system/ctxd.service", "usr/lib/sysusers.d/ctxd.conf", "usr/lib/tmpfiles.d/ctxd.conf"} < placed
    assert service("uninstall", "--system", "--root", tmp_path)[0] == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_place_that_cannot_be_written_is_refused_with_a_remedy(tmp_path):
    (tmp_path / "etc").write_text("a file")
    code, error = service("install", "--system", "--root", tmp_path)
    assert code == 1
    assert "cannot write" in error["error"]["message"]
    assert error["error"]["hint"]


@pytest.mark.parametrize("program", ["ctx", "ctxd"])
def test_a_man_page_names_every_command(tmp_path, program):
    man = shutil.which("man")
    if man is None:
        pytest.skip("needs man: apt-get install man-db")
    service("install", "--system", "--root", tmp_path)
    page = tmp_path / "usr/local/share/man/man1" / f"{program}.1"
    done = subprocess.run([man, "-l", "-P", "cat", page], capture_output=True, text=True, timeout=60, check=True)
    commands = ("session ls", "object history", "purge") if program == "ctx" else ("run", "verify", "service install")
    for command in commands:
        assert f"{program} {command}" in done.stdout
