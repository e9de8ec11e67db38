"""Repositories of git for tests, whatever the user's own configuration says."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

_PLAIN = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null"}
_AUTHOR = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}

needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def git(at: Path, *arguments: str) -> str:
    """Run git in ``at``; returns its output."""
    done = subprocess.run(
        ["git", "-c", "protocol.file.allow=always", *arguments],
        cwd=at, env={"PATH": os.environ["PATH"]} | _PLAIN | _AUTHOR, check=True, capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


def repository(at: Path, remote: str | None = None) -> str:
    """Make a repository with two commits in ``at``; returns its root commit."""
    at.mkdir(parents=True, exist_ok=True)
    git(at, "init", "-q", "-b", "main")
    git(at, "commit", "-q", "--allow-empty", "-m", f"first of {at}")
    git(at, "commit", "-q", "--allow-empty", "-m", "second")
    if remote is not None:
        git(at, "remote", "add", "origin", remote)
    return git(at, "rev-list", "--max-parents=0", "HEAD")
