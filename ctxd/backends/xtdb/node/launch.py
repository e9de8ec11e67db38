"""Node processes: their command lines, their start, and blocking requests to them."""

import http.client
import select
import socket
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.node.node_layout import (
    CONFIGURATIONS,
    EXIT_CONFIG,
    EXIT_MISSING,
    PROGRAM,
    Installation,
    NodeFailure,
    java_path,
)

_TYPE: Final = "application/transit+json"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def request(
    url: str,
    operation: str,
    parameters: Mapping[str, object] | None = None,
    *,
    body: bytes | None = None,
    timeout_s: float = 10.0,
) -> tuple[int, Any]:
    """Status and value of one blocking request to the node at ``url`` (``unix:/path`` or ``http://host:port``);
    ``None`` for a value that is not transit.

    Raises: NodeFailure if no node responds.
    """
    query = urlencode(parameters or {})
    connection = _connection(url, timeout_s)
    try:
        connection.request(
            "GET" if body is None else "POST",
            f"/_xtdb/{operation}?{query}",
            body=body,
            headers={"Accept": _TYPE, "Content-Type": _TYPE},
        )
        answer = connection.getresponse()
        content = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise NodeFailure(
            f"no node responds at {url}: {error or type(error).__name__}",
            remedy="Start it with ctxd xtdb run, or name the one that runs with --url.",
            exit_code=EXIT_MISSING,
        ) from error
    finally:
        connection.close()
    return answer.status, _read(answer, content)


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    if url.startswith("unix:"):
        return _UnixConnection(url.removeprefix("unix:"), timeout_s)
    parts = urlsplit(url)
    if parts.scheme != "http" or not parts.hostname:
        raise NodeFailure(
            f"{url} is not an address of a node", remedy="Give unix:/path or http://host:port.", exit_code=64
        )
    return http.client.HTTPConnection(parts.hostname, parts.port or 3000, timeout=timeout_s)


def _read(answer: http.client.HTTPResponse, content: bytes) -> Any:  # noqa: ANN401 - any JSON value
    if not (answer.getheader("Content-Type") or "").startswith(_TYPE):
        return None
    try:
        return transit.decode(content)
    except transit.NotTransit:
        return None


HEAP: Final = "2g"
"""Default heap of the JVM."""


@dataclass(frozen=True, slots=True)
class Launch:
    """Settings of one node process: configuration, data, address, heap and options of the JVM."""

    config: Path
    data: Path
    socket: Path
    tcp: str | None = None
    heap: str = HEAP
    limits: str | None = None
    java_options: Sequence[str] = ()

    @property
    def url(self) -> str:
        """Address of the node, as clients name it."""
        return f"http://{self.tcp}" if self.tcp else f"unix:{self.socket}"


def find_config(name: str) -> Path:
    """The configuration that ships by that name, or the file. Raises: NodeFailure if it is neither."""
    if name in CONFIGURATIONS:
        return PROGRAM / f"{name}.edn"
    if (path := Path(name)).is_file():
        return path.absolute()
    raise NodeFailure(
        f"there is no configuration {name}",
        remedy=f"Give one of {', '.join(CONFIGURATIONS)}, or a file of EDN.",
        exit_code=EXIT_CONFIG,
    )


def command(installation: Installation, launch: Launch, environ: Mapping[str, str]) -> list[str]:
    """Command that runs the node. Makes its directories, with mode 0700.

    Raises: NodeFailure if it is not installed, or its directories cannot be created.
    """
    record = installation.whole()
    java = java_path(environ)
    try:
        scratch = _private(launch.data.absolute()) / "tmp"
        scratch.mkdir(mode=0o700, exist_ok=True)
        scratch.chmod(0o700)
        if launch.tcp is None:
            launch.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise NodeFailure(
            f"the node cannot have its directory: {error}", remedy="Choose another with --data.", exit_code=73
        ) from error
    served = ["--tcp", launch.tcp] if launch.tcp else ["--socket", str(launch.socket.absolute())]
    limits = ["--limits", launch.limits] if launch.limits else []
    return [
        str(java),
        *java_flags(installation, launch.heap, scratch, archive=record.java == str(java)),
        *launch.java_options,
        *("-cp", installation.class_path(), "ctxd_node"),
        *("--config", str(launch.config), "--data", str(launch.data.absolute()), *served, *limits),
    ]


def java_flags(installation: Installation, heap: str, scratch: Path, *, archive: bool) -> list[str]:
    """The JVM's own flags. The JVM exits when memory runs out, so that a supervisor restarts it: without some of its
    threads, a node would give wrong responses."""
    shared = [f"-XX:SharedArchiveFile={installation.archive}", "-Xshare:auto", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
    return [
        f"-Xmx{heap}",
        "-XX:MaxDirectMemorySize=1g",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={scratch}",
        "-Duser.timezone=UTC",
        "-Dfile.encoding=UTF-8",
        *(shared if archive and installation.archive.exists() else []),
    ]


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The node's environment: ours, with few malloc arenas, so that memory freed by native code is given back."""
    return {"MALLOC_ARENA_MAX": "2", **environ}


def start(
    arguments: Sequence[str], environ: Mapping[str, str], *, log: Path, ready_s: float
) -> subprocess.Popen[bytes]:
    """Start a node as a child process, and return it once it serves; its log goes to ``log``.

    Raises: NodeFailure with the end of its log if it ends, or does not serve within ``ready_s``.
    """
    with log.open("ab") as errors:
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment(environ),
            umask=0o077,
        )
    assert process.stdout is not None
    readable, _, _ = select.select([process.stdout], [], [], ready_s)
    if readable and process.stdout.readline().startswith(b"ready "):
        return process
    with suppress(ProcessLookupError):
        process.kill()
    process.wait()
    process.stdout.close()
    lines = log.read_text(errors="replace").strip().splitlines()
    why = "\n".join(lines[-5:]) or f"it did not serve within {ready_s:.0f} s"
    raise NodeFailure(f"the node did not start:\n{why}", remedy=f"Its log is {log}.", exit_code=EXIT_CONFIG)


def _private(path: Path) -> Path:
    """Create the directory for its owner only; an existing one keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
    return path
