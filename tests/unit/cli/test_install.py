"""``ctx install`` and ``ctx uninstall``: reports, dry runs, and a person who edits the same file meanwhile."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest

from ctxd.cli import install


@pytest.mark.requirement("HOK-12")
@pytest.mark.parametrize("was_there", [False, True])
def test_a_file_that_is_saved_during_an_uninstall_stays_as_saved(
    ctx: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, was_there: bool
) -> None:
    file = tmp_path / ".claude/settings.json"
    file.parent.mkdir()
    if was_there:
        file.write_text('{"model": "opus"}\n')
    assert ctx("install", "claude", "--socket", str(tmp_path / "s")).code == 0
    assert file.exists()
    restored = install._restored

    def saved(*given: Any) -> str:
        after = restored(*given)
        file.write_text('{"model": "another"}\n')
        return after

    monkeypatch.setattr(install, "_restored", saved)
    done = ctx("uninstall", "claude")
    assert done.code == 1 and "changed meanwhile" in done.err
    assert file.read_text() == '{"model": "another"}\n'


@pytest.mark.requirement("HOK-12")
def test_a_file_that_is_deleted_is_reported_as_removed(ctx: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / ".claude/settings.json"
    assert ctx("install", "claude").out == f"changed: {file}\n"
    assert ctx("uninstall", "claude").out == f"removed: {file}\n"
    assert not file.exists()


@pytest.mark.requirement("HOK-11")
def test_a_dry_run_has_the_warning_of_the_real_run(ctx: Callable[..., Any]) -> None:
    socket = f"{gettempdir()}/ctxd.sock"
    warning = f"{socket}, which is temporary: run this again once an installed daemon runs\n"
    assert ctx("install", "claude", "--dry-run", "--socket", socket).err == f"the hooks would use {warning}"
    assert ctx("install", "claude", "--socket", socket).err.startswith(f"the hooks use {warning}")


@pytest.mark.requirement("CLI-7")
def test_a_dry_run_prints_the_change_of_the_hook_of_git(ctx: Callable[..., Any], tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    hook, kept = (tmp_path / ".git/hooks" / name for name in ("commit-msg", "commit-msg.before-ctxd"))
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\nexit 0\n")
    options = ("--repo", str(tmp_path))
    dry = ctx("install", "git", *options, "--dry-run")
    assert dry.out.startswith(f"--- {hook}\n+++ {hook}\n") and "\n+# Made by ctx install git" in dry.out
    assert dry.err == f"{hook} would be renamed to {kept}\n"
    assert ctx("install", "git", *options, "--dry-run", "--json").json["patch"] == dry.out
    assert hook.read_text() == "#!/bin/sh\nexit 0\n" and not kept.exists()
    done = ctx("install", "git", *options)
    assert done.out == f"installed: {hook}\n" and done.err.startswith("while several sessions are open, only commits")
    assert ctx("install", "git", *options, "--dry-run").out == ""
    for words in (("uninstall", "git"), ("install", "git", "--uninstall")):
        dry = ctx(*words, *options, "--dry-run")
        assert "\n-# Made by ctx install git" in dry.out and kept.exists()
        assert dry.err == f"{kept} would be renamed to {hook}\n"
    assert ctx("uninstall", "git", *options).out == f"removed: {hook}\n"
    assert hook.read_text() == "#!/bin/sh\nexit 0\n" and not kept.exists()
