"""Where a node is installed, and whether what is there is whole and of this ctxd."""

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ctxd.backends.xtdb.node.failures import EXIT_MISSING, NodeFailure
from ctxd_protocol import places

PROGRAM: Final = Path(__file__).with_name("program")
"""What ships with ctxd: the Maven project, the node program, its build, its configurations, and the jars' hashes."""

CONFIGURATIONS: Final = ("memory", "rocksdb", "postgres")
"""The configurations that ship, by name."""

_IN_THE_DIGEST: Final = ("pom.xml", "jars.sha256", "**/*.clj", "logback.xml")


class Record(msgspec.Struct, frozen=True):
    """What an installation was made of: ``digest`` of the program, Java's place and version, and the archive's Java."""

    digest: str
    java: str
    java_version: str


@dataclass(frozen=True, slots=True)
class Installation:
    """A directory that holds a node's jars, the compiled program, and the archive of its classes."""

    directory: Path

    @property
    def jars(self) -> Path:
        """XTDB and what it needs."""
        return self.directory / "lib"

    @property
    def program(self) -> Path:
        """The node program, and of XTDB what it runs, compiled."""
        return self.directory / "ctxd-node.jar"

    @property
    def archive(self) -> Path:
        """The archive of classes that makes a start quick; a start does without it if it does not fit the Java."""
        return self.directory / "ctxd-node.jsa"

    @property
    def record_path(self) -> Path:
        """Written last: an installation without it is not whole."""
        return self.directory / "installed.json"

    def record(self) -> Record | None:
        """What it was made of; null if it is not whole."""
        try:
            return msgspec.json.decode(self.record_path.read_bytes(), type=Record)
        except (FileNotFoundError, msgspec.DecodeError):
            return None

    def class_path(self) -> str:
        """The program, and every jar in the order of their names: an archive of classes fits one order only."""
        return os.pathsep.join(map(str, [self.program, *(self.jars / name for name in sorted(listed_jars()))]))

    def whole(self) -> Record:
        """Its record. Raises: NodeFailure if it is not installed, or of another version of ctxd."""
        record = self.record()
        remedy = f"Run: ctxd xtdb install --directory {self.directory}"
        if record is None or not self.program.exists():
            raise NodeFailure(f"no node is installed in {self.directory}", remedy=remedy, exit_code=EXIT_MISSING)
        if record.digest != program_digest():
            message = f"the node in {self.directory} is of another version of ctxd"
            raise NodeFailure(message, remedy=remedy, exit_code=EXIT_MISSING)
        return record


def default_directory(environ: Mapping[str, str]) -> Path:
    """Where a node is installed that is told nothing: ``$CTXD_XTDB_HOME``, or the user's data."""
    if home := environ.get("CTXD_XTDB_HOME"):
        return Path(home)
    data = environ.get("XDG_DATA_HOME") or os.path.join(places.home(environ), ".local", "share")
    return Path(data, "ctxd", "xtdb")


def listed_jars() -> dict[str, str]:
    """The SHA-256 of every jar, as hex, by its name: this list and nothing else is installed."""
    lines = (PROGRAM / "jars.sha256").read_text().splitlines()
    return {name: digest for digest, name in (line.split("  ") for line in lines if line)}


def program_digest() -> str:
    """The SHA-256 of everything that an installation is made from."""
    digest = hashlib.sha256()
    for path in sorted(path for pattern in _IN_THE_DIGEST for path in PROGRAM.glob(pattern)):
        content = path.read_bytes()
        digest.update(b"%s %d\n" % (str(path.relative_to(PROGRAM)).encode(), len(content)) + content)
    return digest.hexdigest()
