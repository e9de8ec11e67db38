"""What no log may hold: what clients say and what files hold, whichever way it goes wrong."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any, get_type_hints

import anyio.lowlevel
import pytest

from ctxd.observe.logs import open_log
from ctxd.rpc.wire_errors import log_uncaught_exceptions
from ctxd_client import connect_sync
from ctxd_protocol.methods import METHODS
from tests.fakes.service_manager import ServiceManager, service_manager

MARK = "xyzzy-plugh"
"""No word of ours, and no secret that a rule knows."""

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ServiceManager]:
    with service_manager(tmp_path, env={"CTXD_LOG_LEVEL": "debug"}) as made:
        yield made


def params_of(method: str) -> dict[str, Any]:
    """Params of ``method`` with the mark wherever text may be, and of the wrong type elsewhere."""
    return dict.fromkeys(get_type_hints(METHODS[method].params), MARK)


def spoken(manager: ServiceManager, *lines: bytes) -> list[bytes]:
    """What is answered to each line; empty where the connection ends."""
    answers = []
    for line in lines:
        with closing(socket.socket(socket.AF_UNIX)) as connection, connection.makefile("rb") as reader:
            connection.settimeout(20)
            connection.connect(str(manager.socket))
            connection.sendall(line + b"\n")
            answers.append(reader.readline())
    return answers


def call(method: str, params: Any) -> bytes:
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()


@pytest.mark.requirement("SVC-9")
def test_no_client_or_file_content_reaches_the_log(manager: ServiceManager, tmp_path: Path) -> None:
    manager.start()
    (tmp_path / "a.py").write_text(f"# {MARK}\n")
    (tmp_path / "b.py").write_bytes(b"\0\xff" + MARK.encode())
    with connect_sync(manager.socket) as client:
        s = client.session("s1", agent=MARK, system_prompt=MARK)
        s.user(MARK)
        client.toolcall_record("s1", "call-1", MARK, MARK, args={MARK: MARK})
        for name in ("a.py", "b.py"):
            client.file_index("s1", str(tmp_path / name))
        assert MARK in client.context_assemble("s1").text, "it is what the daemon holds"
    answers = spoken(
        manager,
        *(call(method, params_of(method)) for method in METHODS),
        *(call(method, [MARK]) for method in METHODS),
        call(f"{MARK}.method", {}),
        b'{"jsonrpc": "2.0", "' + MARK.encode(),
        MARK.encode() + b"\xff",
        call("session.append", {"session": "s1", "messages": [{"role": MARK, "content": MARK}], MARK: MARK}),
    )
    assert sum(b'"error"' in answer for answer in answers) > len(METHODS), "most of it is wrong"
    assert manager.end() == 0
    said = manager.log.read_text()
    assert "daemon.stopped" in said
    assert MARK not in said


@pytest.mark.requirement("SVC-9")
@pytest.mark.parametrize("format", ["json", "console"])
def test_exception_messages_are_not_logged_but_their_location_is(format: Any) -> None:
    stream = StringIO()
    log = open_log(format=format, stream=stream)
    try:
        try:
            raise KeyError(MARK)
        except KeyError as first:
            first.add_note(MARK)
            raise ExceptionGroup(MARK, [ValueError(MARK), OSError(2, MARK)]) from first
    except ExceptionGroup as error:
        log.critical("rpc.internal_error", exc_info=error)
    said = stream.getvalue()
    assert MARK not in said
    assert "KeyError" in said
    assert "test_log_content.py" in said


@pytest.mark.anyio
@pytest.mark.requirement("SVC-9")
async def test_uncaught_exceptions_are_logged_without_their_message(anyio_backend: str) -> None:
    stream = StringIO()
    log_uncaught_exceptions(open_log(format="json", stream=stream))

    def handles(data: str) -> None:
        raise ValueError(data)

    asyncio.get_running_loop().call_soon(handles, MARK)
    await anyio.lowlevel.checkpoint()
    await anyio.lowlevel.checkpoint()
    assert "loop.failed" in stream.getvalue()
    assert "ValueError" in stream.getvalue()
    assert MARK not in stream.getvalue()
