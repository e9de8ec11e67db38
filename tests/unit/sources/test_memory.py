"""The port holds for sources that are no files."""

import pytest

from ctxd_protocol.object_types import Source
from tests.fakes.memory_source import MemoryBlobs, blob
from tests.suites.source import SourceSuite


class MemoryTree:
    def __init__(self) -> None:
        self.source = MemoryBlobs()

    def bound(self, name: str) -> Source:
        return blob(name)

    def write(self, name: str, raw: bytes) -> None:
        self.source.blobs[name] = raw

    def write_sparse(self, name: str, size_bytes: int) -> None:
        self.write(name, b"")
        self.source.sizes[name] = size_bytes

    def remove(self, name: str) -> None:
        del self.source.blobs[name]


@pytest.fixture
def tree() -> MemoryTree:
    return MemoryTree()


class TestMemoryBlobs(SourceSuite):
    """The suite, over blobs in memory."""
