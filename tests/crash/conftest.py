import pytest


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the daemon under test is another process."""
    return "asyncio"
