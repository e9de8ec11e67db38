"""The three loops that every client test runs on, and a scripted daemon."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.daemon import ScriptedDaemon

LOOPS = {
    "asyncio": ("asyncio", {"use_uvloop": False}),
    "uvloop": ("asyncio", {"use_uvloop": True}),
    "trio": ("trio", {}),
}


@pytest.fixture(params=[pytest.param(loop, id=name) for name, loop in LOOPS.items()])
def anyio_backend(request):
    return request.param


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[ScriptedDaemon]:
    with ScriptedDaemon(tmp_path / "ctxd.sock") as scripted:
        yield scripted
