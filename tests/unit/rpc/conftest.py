"""The edge runs on asyncio under uvloop, in tests as in the daemon."""

import pytest


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, bool]]:
    return "asyncio", {"use_uvloop": True}
