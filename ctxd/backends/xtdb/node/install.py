"""Installation: fetch the jars with Maven, check each against the list, compile, and train the class archive."""

import fcntl
import hashlib
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec

from ctxd.backends.xtdb.node.launch import Launch, command, environment, find_config, request, start
from ctxd.backends.xtdb.node.node_layout import (
    PROGRAM,
    Installation,
    Java,
    NodeFailure,
    Record,
    find_java,
    find_maven,
    listed_jars,
    program_digest,
)

Say = Callable[[str], None]
"""Receives one line for each step of an installation."""

_NO_NETWORK: Final = ("Unknown host", "Connection refused", "Network is unreachable", "timed out", "Temporary failure")


def check_jars(directory: Path, listed: Mapping[str, str]) -> list[str]:
    """Differences between the jars in ``directory`` and the list, one line each; empty if there are none."""
    present = {path.name for path in directory.glob("*.jar")} if directory.is_dir() else set()
    wrong = [f"{name} is missing" for name in sorted(listed.keys() - present)]
    wrong += [f"{name} is not on the list" for name in sorted(present - listed.keys())]
    for name in sorted(listed.keys() & present):
        if (found := _sha256(directory / name)) != listed[name]:
            wrong.append(f"{name} has SHA-256 {found}, not {listed[name]}")
    return wrong


def fetch_jars(maven: Path, into: Path, listed: Mapping[str, str], say: Say, environ: Mapping[str, str]) -> None:
    """Copy the jars with Maven, and move them to ``into`` once every one is as listed.

    Raises: NodeFailure with the first difference, or with Maven's reason; ``into`` is then unchanged.
    """
    with tempfile.TemporaryDirectory(prefix=".jars-", dir=into.parent) as folder:
        shutil.copy(PROGRAM / "pom.xml", folder)
        fetched = Path(folder, "lib")
        _run_maven(
            [
                str(maven),
                "-B",
                "-f",
                f"{folder}/pom.xml",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={fetched}",
                "-DincludeScope=runtime",
            ],
            say,
            environ,
        )
        if wrong := check_jars(fetched, listed):
            raise NodeFailure(
                "the downloaded jars differ from the expected ones: " + "; ".join(wrong[:5]),
                remedy="Remove them from ~/.m2/repository and run the command again. If they differ again, a proxy or "
                "mirror alters the files: do not use them.",
                exit_code=2,
            )
        if into.exists():
            os.replace(into, Path(folder, "former"))
        os.replace(fetched, into)


def _run_maven(command: list[str], say: Say, environ: Mapping[str, str]) -> None:
    """Run Maven. Raises: NodeFailure with its first errors."""
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
    reason = " ".join(errors[:2]) or f"it ended with {maven.returncode}"
    offline = any(sign in " ".join(errors) for sign in _NO_NETWORK)
    raise NodeFailure(
        f"Maven could not download the jars: {reason[:1000]}",
        remedy="Maven cannot reach its repository: check the network, or the mirror in ~/.m2/settings.xml, and run the "
        "command again; downloaded files are reused."
        if offline
        else "Run the command again; downloaded files are reused. If it fails again, see Maven's errors above.",
    )


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


_BUILD_S_MAX: Final = 600
_START_S_MAX: Final = 120
_STOP_S_MAX: Final = 120
_LATER: Final = (2100, 1, 1, 0, 0, 0)
"""The date of every class in the program's jar: Clojure prefers a source that is newer."""

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
"""Requests to the first node, so that the archive contains the classes needed for responses."""


def install(installation: Installation, say: Say, environ: Mapping[str, str]) -> bool:
    """Complete ``installation``. Returns: False if it was complete. One process at a time does so; others wait.

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
    """Bytes that identify the build from which a compiled program was made."""
    return f"{record.digest} {record.java_version}".encode()


def _compiled(installation: Installation) -> bytes | None:
    """Mark of the compiled program; ``None`` if it is missing or broken."""
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
        output = "\n".join((done.stdout + done.stderr).strip().splitlines()[-10:])
        raise NodeFailure(
            f"the node program does not compile:\n{output}", remedy="Run it again with another JDK (17 or 21)."
        )


def _pack(classes: Path, jar: Path, mark: bytes) -> None:
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_STORED) as packed:
        packed.comment = mark
        for path in [*sorted(classes.rglob("*.class")), PROGRAM / "logback.xml"]:
            name = path.relative_to(classes) if path.is_relative_to(classes) else path.name
            packed.writestr(zipfile.ZipInfo(str(name), _LATER), path.read_bytes())


def _make_archive(installation: Installation, say: Say, environ: Mapping[str, str]) -> None:
    """Start a node once, so that the JVM archives its classes. A failure is only reported: starts work without."""
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
                    request(launch.url, operation, parameters, body=body)
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
