"""The installation of a node: jars, the program compiled ahead of time, and an archive of its classes.

Every step is skipped whose result is there already and is what it should be, and puts its result in place whole: an
installation that was broken off is taken up where it ended.
"""

import fcntl
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ctxd.backends.xtdb.node.ask import ask
from ctxd.backends.xtdb.node.failures import NodeFailure
from ctxd.backends.xtdb.node.installation import PROGRAM, Installation, Record, listed_jars, program_digest
from ctxd.backends.xtdb.node.jars import Say, check_jars, fetch_jars
from ctxd.backends.xtdb.node.java import Java, find_java, find_maven
from ctxd.backends.xtdb.node.launch import Launch, command, environment, find_config, start

_BUILD_S_MAX: Final = 600
_START_S_MAX: Final = 120
_STOP_S_MAX: Final = 120
_LATER: Final = (2100, 1, 1, 0, 0, 0)
"""The date of every class in the program's jar: Clojure takes a source instead if that is newer."""

_EXERCISE: Final[tuple[tuple[str, bytes | None, dict[str, object]], ...]] = (
    ("submit-tx", b'{"~:tx-ops":[["~:xtdb.api/put",{"~:xt/id":"a","~:b":{"c":[1,null,"d"]}},"~m1"]]}', {}),
    ("tx-committed", None, {"tx-id": 0, "await-tx-id": 0}),
    ("entity", None, {"eid": "a", "valid-time": "2020-01-01"}),
    ("entity", None, {"eid": "a", "history": "true", "sort-order": "asc", "with-docs": "true"}),
    ("entity-tx", None, {"eid": "a"}),
    ("entity", None, {}),
    ("query", b'{"~:query":"{:find [e (pull e [*])] :in [[e ...]] :where [[e :xt/id]]}","~:in-args":[["a"]]}', {}),
    ("latest-completed-tx", None, {}),
    ("latest-submitted-tx", None, {}),
    ("sync", None, {}),
    ("status", None, {}),
)
"""What the first node is asked, so that the archive holds the classes that answering takes."""


def install(installation: Installation, say: Say, environ: Mapping[str, str]) -> bool:
    """Make ``installation`` whole; false if it was. One process at a time does so, others wait for it.

    Raises: NodeFailure.
    """
    directory = installation.directory
    try:
        directory.mkdir(mode=0o755, parents=True, exist_ok=True)
    except OSError as error:
        raise NodeFailure(
            f"{directory} cannot be made: {error}", remedy="Choose another with --directory.", exit_code=73
        ) from error
    with _alone(directory):
        java = find_java(environ)
        wanted = Record(program_digest(), str(java.path), java.version)
        steps = 0
        if check_jars(installation.jars, listed_jars()):
            _bring_jars(installation, say, environ)
            steps += 1
        if _compiled(installation) != _mark(wanted):
            _compile(installation, java, _mark(wanted), say, environ)
            steps += 1
        if steps or installation.record() != wanted or not installation.archive.exists():
            installation.archive.unlink(missing_ok=True)
            _write_record(installation, wanted)
            _make_archive(installation, say, environ)
            steps += 1
        return steps > 0


def _bring_jars(installation: Installation, say: Say, environ: Mapping[str, str]) -> None:
    listed = listed_jars()
    say(f"fetching {len(listed)} jars with Maven")
    fetch_jars(find_maven(environ), installation.jars, listed, say, environ)
    say("every jar is the one it should be")


def _mark(record: Record) -> bytes:
    """What a compiled program is marked with: what it was made from, and with."""
    return f"{record.digest} {record.java_version}".encode()


def _compiled(installation: Installation) -> bytes | None:
    """The mark of the program that is there; null if there is none, or a broken one."""
    try:
        with zipfile.ZipFile(installation.program) as packed:
            return packed.comment
    except (FileNotFoundError, zipfile.BadZipFile):
        return None


def _compile(installation: Installation, java: Java, mark: bytes, say: Say, environ: Mapping[str, str]) -> None:
    say("compiling the node program and XTDB")
    with tempfile.TemporaryDirectory(prefix=".compile-", dir=installation.directory) as folder:
        classes, scratch = Path(folder, "classes"), Path(folder, "tmp")
        classes.mkdir()
        scratch.mkdir(mode=0o700)
        paths = [str(classes), str(PROGRAM), *(str(installation.jars / name) for name in sorted(listed_jars()))]
        arguments = [
            *(str(java.path), "-Xmx1g", f"-Djava.io.tmpdir={scratch}", f"-Dclojure.compile.path={classes}"),
            *("-cp", os.pathsep.join(paths), "clojure.main", str(PROGRAM / "build.clj")),
        ]
        _run(arguments, environ)
        _pack(classes, Path(folder, "program.jar"), mark)
        os.replace(Path(folder, "program.jar"), installation.program)


def _run(arguments: list[str], environ: Mapping[str, str]) -> None:
    try:
        done = subprocess.run(
            arguments,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_BUILD_S_MAX,
            check=False,
            env=environment(environ),
        )
    except subprocess.TimeoutExpired as error:
        raise NodeFailure(
            f"the compilation took more than {_BUILD_S_MAX} s", remedy="Run it again on a quieter machine."
        ) from error
    if done.returncode:
        told = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        raise NodeFailure(
            f"the node program does not compile:\n{told}", remedy="Run it again with another JDK (17 or 21)."
        )


def _pack(classes: Path, jar: Path, mark: bytes) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as packed:
        packed.comment = mark
        for path in [*sorted(classes.rglob("*.class")), PROGRAM / "logback.xml"]:
            name = path.relative_to(classes) if path.is_relative_to(classes) else path.name
            packed.writestr(zipfile.ZipInfo(str(name), _LATER), path.read_bytes())


def _make_archive(installation: Installation, say: Say, environ: Mapping[str, str]) -> None:
    """Start a node once and have the JVM keep its classes. A start works without: that it failed is told, no more."""
    say("starting it once, for the archive of classes")
    with tempfile.TemporaryDirectory(prefix=".first-", dir=installation.directory) as folder:
        archive = Path(folder, "classes.jsa")
        launch = Launch(
            find_config("rocksdb"),
            Path(folder, "data"),
            Path(folder, "s"),
            java_options=[f"-XX:ArchiveClassesAtExit={archive}"],
        )
        arguments = command(installation, launch, environ)
        with start(arguments, environ, log=Path(folder, "log"), ready_s=_START_S_MAX) as process:
            try:
                for operation, body, parameters in _EXERCISE:
                    ask(launch.url, operation, parameters, body=body)
                process.terminate()
                process.wait(_STOP_S_MAX)
            finally:
                process.kill()
        if archive.exists():
            os.replace(archive, installation.archive)
        else:
            say("there is no archive of classes: starts will take longer")


def _write_record(installation: Installation, record: Record) -> None:
    written = installation.record_path.with_suffix(".new")
    written.write_bytes(msgspec.json.encode(record))
    os.replace(written, installation.record_path)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with Path(directory, ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
