from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.daemon import DaemonProcess, daemon_process


@pytest.fixture
def anyio_backend() -> str:
    """One loop is enough here: the daemon under test is another process."""
    return "asyncio"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[DaemonProcess]:
    with daemon_process(tmp_path) as process:
        yield process
