"""A query in CBOR has a time limit until it is complete."""

import asyncio
from types import SimpleNamespace
from typing import Any

import cbor2
import pytest

from ctxd.sandboxes.sandbox_connection import SandboxConnection

pytestmark = pytest.mark.anyio

QUERY = cbor2.dumps({"action": "current-context"})


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.requirement("BOX-6")
@pytest.mark.parametrize(("sent", "aborts"), [(QUERY, 0), (QUERY[:-1], 1)])
async def test_only_an_incomplete_query_is_aborted(sent: bytes, aborts: int) -> None:
    aborted: list[int] = []
    listener: Any = SimpleNamespace(
        limits=SimpleNamespace(frame_bytes=1000),
        timing=SimpleNamespace(frame_s=0.01),
        loop=asyncio.get_running_loop(),
        requests=0,
    )
    connection = SandboxConnection(listener, lambda answer: None)
    connection._transport = SimpleNamespace(abort=lambda: aborted.append(1))  # type: ignore[assignment]
    connection.data_received(sent)
    await asyncio.sleep(0.05)
    assert len(aborted) == aborts
