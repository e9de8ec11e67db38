"""The jars of a node: fetched by Maven, and taken only if each is the one that the checked-in list names."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ctxd.backends.xtdb.node.failures import NodeFailure
from ctxd.backends.xtdb.node.installation import PROGRAM

Say = Callable[[str], None]
"""Told of every step of an installation, one line each."""

_NO_NETWORK: Final = ("Unknown host", "Connection refused", "Network is unreachable", "timed out", "Temporary failure")


def check_jars(directory: Path, listed: Mapping[str, str]) -> list[str]:
    """What is wrong with the jars in ``directory``, one line each; empty if they are exactly those listed."""
    present = {path.name for path in directory.glob("*.jar")} if directory.is_dir() else set()
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - present)]
    wrong += [f"{name} is not on the list" for name in sorted(present - listed.keys())]
    for name in sorted(listed.keys() & present):
        if (found := _sha256(directory / name)) != listed[name]:
            wrong.append(f"{name} has SHA-256 {found}, not {listed[name]}")
    return wrong


def fetch_jars(maven: Path, into: Path, listed: Mapping[str, str], say: Say, environ: Mapping[str, str]) -> None:
    """Have Maven copy the jars, and put them at ``into`` once every one of them is as listed.

    Raises: NodeFailure naming the first difference, or why Maven failed; ``into`` is then as it was.
    """
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=into.parent) as folder:
        shutil.copy(PROGRAM / "pom.xml", folder)
        fetched = Path(folder, "lib")
        _run_maven(
            [str(maven), "-B", "-f", f"{folder}/pom.xml", "dependency:copy-dependencies", *_flags(fetched)],
            say,
            environ,
        )
        if wrong := check_jars(fetched, listed):
            raise NodeFailure(
                "the jars that Maven brought are not those this ctxd was made with: " + "; ".join(wrong[:5]),
                remedy="Remove them from Maven's own store (~/.m2/repository) and run it again. If it says so again, "
                "do not use them: a server in between changes what it passes on.",
                exit_code=2,
            )
        if into.exists():
            os.replace(into, Path(folder, "former"))
        os.replace(fetched, into)


def _flags(into: Path) -> list[str]:
    return [f"-DoutputDirectory={into}", "-DincludeScope=runtime"]


def _run_maven(command: list[str], say: Say, environ: Mapping[str, str]) -> None:
    """Raises: NodeFailure with the first errors that Maven told."""
    errors: list[str] = []
    downloads = 0
    maven = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=dict(environ)
    )
    with maven:
        assert maven.stdout is not None
        for line in maven.stdout:
            if "Downloaded from" in line and line.rstrip().endswith(")"):
                downloads += 1
                if downloads % 25 == 0:
                    say(f"fetched {downloads} files")
            if "ERROR" in line:
                errors.append(line.strip())
    if maven.returncode == 0:
        return
    told = " ".join(errors[:2]) or f"it ended with {maven.returncode}"
    offline = any(sign in " ".join(errors) for sign in _NO_NETWORK)
    raise NodeFailure(
        f"Maven could not bring the jars: {told[:1000]}",
        remedy="Maven has no way to its repository: check the network, or the mirror in ~/.m2/settings.xml, and run it "
        "again; what is there already is kept."
        if offline
        else "Run it again: what is there already is kept. If it goes on, the lines above are Maven's own.",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
