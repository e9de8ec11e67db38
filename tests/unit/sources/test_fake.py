"""The fake source keeps the promises of a source."""

import pytest

from ctxd.sources.host_files import HostFiles
from ctxd_protocol.object_types import FilesystemSource
from tests.fakes.source import FakeFiles, at
from tests.suites.source import FilesSuite


class FakeTree:
    def __init__(self) -> None:
        self.files = FakeFiles()
        self.source: HostFiles = self.files
        self.files.mkdir("/tree")

    def bound(self, name: str) -> FilesystemSource:
        return at(self.path(name))

    def path(self, name: str) -> str:
        return f"/tree/{name}"

    def write(self, name: str, raw: bytes) -> None:
        self.files.write(self.path(name), raw)

    def write_sparse(self, name: str, size_bytes: int) -> None:
        self.files.write_sparse(self.path(name), size_bytes)

    def mkdir(self, name: str) -> None:
        self.files.mkdir(self.path(name))

    def fifo(self, name: str) -> None:
        self.files.special(self.path(name), "fifo")

    def symlink(self, name: str, target: str) -> None:
        self.files.symlink(self.path(name), target)

    def remove(self, name: str) -> None:
        self.files.remove(self.path(name))


@pytest.fixture
def tree() -> FakeTree:
    return FakeTree()


class TestFakeFiles(FilesSuite):
    """The suite, over files in memory."""
