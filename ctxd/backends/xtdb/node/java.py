"""The programs of the machine that a node needs: which Java and which Maven there are, and whether they will do."""

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ctxd.backends.xtdb.node.failures import EXIT_MISSING, NodeFailure

JAVA_MIN: Final = 17
"""The oldest Java that serves on Unix sockets; 17 and 21 are the ones to prefer."""

_ANSWER_S_MAX: Final = 60
_INSTALL_JAVA: Final = (
    "Install a JDK, 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME to one."
)
_INSTALL_MAVEN: Final = "Install Maven (Debian: apt-get install maven); it is needed for the installation only."


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that will do: where it is, and its version in full."""

    path: Path
    version: str


def find_java(environ: Mapping[str, str]) -> Java:
    """The Java of ``JAVA_HOME``, or the first on ``PATH``. Raises: NodeFailure if there is none or it is too old."""
    path = java_path(environ)
    told = _told(path, "-version", _INSTALL_JAVA)
    found = re.search(r'version "([^"]+)"', told)
    if found is None:
        raise NodeFailure(
            f"{path} does not say its version: {told[:200]!r}", remedy=_INSTALL_JAVA, exit_code=EXIT_MISSING
        )
    version = found[1]
    if (major := _major(version)) < JAVA_MIN:
        raise NodeFailure(
            f"{path} is Java {version}; a node needs {JAVA_MIN} or newer, and found {major}",
            remedy=_INSTALL_JAVA,
            exit_code=EXIT_MISSING,
        )
    return Java(path, version)


def java_path(environ: Mapping[str, str]) -> Path:
    """Where Java is, not asked for its version. Raises: NodeFailure if it is nowhere."""
    home = environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else environ.get("PATH"))
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise NodeFailure(f"there is no java {where}", remedy=_INSTALL_JAVA, exit_code=EXIT_MISSING)
    return Path(os.path.realpath(found))


def find_maven(environ: Mapping[str, str]) -> Path:
    """The first Maven on ``PATH``. Raises: NodeFailure if there is none."""
    found = shutil.which("mvn", path=environ.get("PATH"))
    if found is None:
        raise NodeFailure("there is no mvn on PATH", remedy=_INSTALL_MAVEN, exit_code=EXIT_MISSING)
    return Path(found)


def _told(path: Path, flag: str, remedy: str) -> str:
    try:
        asked = subprocess.run(
            [path, flag], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeFailure(f"{path} does not run: {error}", remedy=remedy, exit_code=EXIT_MISSING) from error
    return asked.stderr + asked.stdout


def _major(version: str) -> int:
    """Raises nothing: what is no number is older than anything."""
    parts = re.findall(r"\d+", version) or ["0"]
    first = int(parts[0])
    return int(parts[1]) if first == 1 and len(parts) > 1 else first
