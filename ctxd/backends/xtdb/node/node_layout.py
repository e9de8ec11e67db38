"""The installation of a node: its directory, and the Java and Maven that it needs."""

import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ctxd_protocol import default_paths


class NodeFailure(Exception):
    """Failure to install, start or reach a node, with its ``remedy`` and the ``exit_code`` for the command."""

    def __init__(self, message: str, *, remedy: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.exit_code = exit_code


EXIT_MISSING = os.EX_UNAVAILABLE
"""A required program is missing, or too old."""

EXIT_CONFIG = os.EX_CONFIG
"""The configuration cannot be used."""

PROGRAM: Final = Path(__file__).with_name("program")
"""What ships with ctxd: the Maven project, the node program, its build, its configurations, and the jars' hashes."""

CONFIGURATIONS: Final = ("memory", "rocksdb", "postgres")
"""The names of the configurations that ship with ctxd."""

_IN_THE_DIGEST: Final = ("pom.xml", "jars.sha256", "**/*.clj", "logback.xml")


class Record(msgspec.Struct, frozen=True):
    """Record of an installation: ``digest`` of the program, path and version of the Java that made the archive."""

    digest: str
    java: str
    java_version: str


@dataclass(frozen=True, slots=True)
class Installation:
    """A directory that holds a node's jars, the compiled program, and the archive of its classes."""

    directory: Path

    @property
    def jars(self) -> Path:
        """The folder of XTDB and its dependencies."""
        return self.directory / "lib"

    @property
    def program(self) -> Path:
        """The compiled node program, with the parts of XTDB that it runs."""
        return self.directory / "ctxd-node.jar"

    @property
    def archive(self) -> Path:
        """The class archive, which makes starts faster; it is ignored if it does not fit the Java version."""
        return self.directory / "ctxd-node.jsa"

    @property
    def record_path(self) -> Path:
        """The record, written last: an installation without it is incomplete."""
        return self.directory / "installed.json"

    def record(self) -> Record | None:
        """Record of the installation; ``None`` if it is incomplete."""
        try:
            return msgspec.json.decode(self.record_path.read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def class_path(self) -> str:
        """The program and all jars, ordered by name: a class archive fits only one order."""
        return os.pathsep.join(map(str, [self.program, *(self.jars / name for name in sorted(listed_jars()))]))

    def whole(self) -> Record:
        """The record. Raises: NodeFailure if the node is not installed, or by another version of ctxd."""
        record = self.record()
        remedy = f"Run ctxd xtdb install --directory {self.directory}"
        if record is None or not self.program.exists():
            raise NodeFailure(f"no node is installed in {self.directory}", remedy=remedy, exit_code=EXIT_MISSING)
        if record.digest != program_digest():
            message = f"the node in {self.directory} was built by another version of ctxd"
            raise NodeFailure(message, remedy=remedy, exit_code=EXIT_MISSING)
        return record


def default_directory(environ: Mapping[str, str]) -> Path:
    """Default installation directory: ``$CTXD_XTDB_HOME``, or below the user's data directory."""
    if home := environ.get("CTXD_XTDB_HOME"):
        return Path(home)
    data = environ.get("XDG_DATA_HOME") or os.path.join(default_paths.home(environ), ".local", "share")
    return Path(data, "ctxd", "xtdb")


def listed_jars() -> dict[str, str]:
    """The SHA-256 of every jar in hex, by name: exactly these are installed."""
    lines = (PROGRAM / "jars.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines if line)}


def program_digest() -> str:
    """The SHA-256 of everything that an installation is built from."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _IN_THE_DIGEST for path in PROGRAM.glob(pattern)):
        content = path.read_bytes()
        digest.update(b"%s %d\n" % (str(path.relative_to(PROGRAM)).encode(), len(content)) + content)
    return digest.hexdigest()


JAVA_MIN: Final = 17
"""The oldest Java that supports servers on Unix sockets; prefer 17 or 21."""

_ANSWER_S_MAX: Final = 60
_INSTALL_JAVA: Final = (
    "Install a JDK, 17 or 21 (Debian: apt-get install openjdk-17-jdk-headless), or set JAVA_HOME to one."
)
_INSTALL_MAVEN: Final = "Install Maven (Debian: apt-get install maven); it is needed for the installation only."


@dataclass(frozen=True, slots=True)
class Java:
    """A suitable Java: its path, and its full version."""

    path: Path
    version: str


def find_java(environ: Mapping[str, str]) -> Java:
    """Java of ``JAVA_HOME``, or the first on ``PATH``. Raises: NodeFailure if it is missing or too old."""
    path = java_path(environ)
    printed = _output_of(path, "-version", _INSTALL_JAVA)
    found = re.search(r'version "([^"]+)"', printed)
    if found is None:
        raise NodeFailure(f"{path} prints no version: {printed[:200]!r}", remedy=_INSTALL_JAVA, exit_code=EXIT_MISSING)
    version = found[1]
    if (major := _major(version)) < JAVA_MIN:
        raise NodeFailure(
            f"{path} is Java {version}; a node needs {JAVA_MIN} or newer, and found {major}",
            remedy=_INSTALL_JAVA,
            exit_code=EXIT_MISSING,
        )
    return Java(path, version)


def java_path(environ: Mapping[str, str]) -> Path:
    """Path of Java, without its version. Raises: NodeFailure if it is missing."""
    home = environ.get("JAVA_HOME")
    found = shutil.which("java", path=os.path.join(home, "bin") if home else environ.get("PATH"))
    if found is None:
        where = f"in JAVA_HOME={home}" if home else "on PATH"
        raise NodeFailure(f"there is no java {where}", remedy=_INSTALL_JAVA, exit_code=EXIT_MISSING)
    return Path(os.path.realpath(found))


def find_maven(environ: Mapping[str, str]) -> Path:
    """First Maven on ``PATH``. Raises: NodeFailure if it is missing."""
    found = shutil.which("mvn", path=environ.get("PATH"))
    if found is None:
        raise NodeFailure("there is no mvn on PATH", remedy=_INSTALL_MAVEN, exit_code=EXIT_MISSING)
    return Path(found)


def _output_of(path: Path, flag: str, remedy: str) -> str:
    try:
        run = subprocess.run(
            [path, flag], capture_output=True, text=True, errors="replace", timeout=_ANSWER_S_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NodeFailure(f"{path} does not run: {error}", remedy=remedy, exit_code=EXIT_MISSING) from error
    return run.stderr + run.stdout


def _major(version: str) -> int:
    """The major version; 0 if there is no number. Raises nothing."""
    parts = re.findall(r"\d+", version) or ["0"]
    first = int(parts[0])
    return int(parts[1]) if first == 1 and len(parts) > 1 else first
