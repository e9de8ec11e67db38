"""One request to a node and its answer, blocking: what the commands ask. The daemon has a client of its own."""

import http.client
import socket
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlencode, urlsplit

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.node.failures import EXIT_MISSING, NodeFailure

_TYPE: Final = "application/transit+json"


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def ask(
    url: str,
    operation: str,
    parameters: Mapping[str, object] | None = None,
    *,
    body: bytes | None = None,
    timeout_s: float = 10.0,
) -> tuple[int, Any]:
    """The status and the value that the node at ``url`` (``unix:/path`` or ``http://host:port``) answers; null for a
    value that is not transit.

    Raises: NodeFailure if no node answers.
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
            f"no node answers at {url}: {error or type(error).__name__}",
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
        raise NodeFailure(f"{url} is no address of a node", remedy="Give unix:/path or http://host:port.", exit_code=64)
    return http.client.HTTPConnection(parts.hostname, parts.port or 3000, timeout=timeout_s)


def _read(answer: http.client.HTTPResponse, content: bytes) -> Any:  # noqa: ANN401 - whatever the node answers
    if not (answer.getheader("Content-Type") or "").startswith(_TYPE):
        return None
    try:
        return transit.decode(content)
    except transit.NotTransit:
        return None
