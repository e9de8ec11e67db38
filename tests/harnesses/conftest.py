"""A daemon of its own for each test of a real client."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.running import Running


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as running:
        yield running
