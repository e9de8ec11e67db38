"""Places to watch: on the disk, and in memory."""

import os
import shutil
from pathlib import Path

from ctxd.trackers.watcher_interface import Watcher
from tests.fakes.watcher import FakeWatcher


class DiskYard:
    """See ``tests.suites.watcher.Yard``. ``names_of`` knows every name that was ever written."""

    watcher: Watcher

    def __init__(self, root: Path) -> None:
        self.root = str(root)
        self._names: dict[str, dict[str, None]] = {}
        self._written = 0

    def names_of(self, directory: str) -> list[str]:
        return list(self._names.get(directory, ()))

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def _known(self, name: str) -> str:
        path = self.path(name)
        self._names.setdefault(os.path.dirname(path), {})[os.path.basename(path)] = None
        return path

    def mkdir(self, name: str) -> None:
        os.makedirs(self.path(name), exist_ok=True)

    def _text(self) -> str:
        self._written += 1
        return f"{'x' * self._written}\n"

    def write(self, name: str) -> None:
        with open(self._known(name), "w") as file:
            file.write(self._text())

    def append(self, name: str) -> None:
        with open(self._known(name), "a") as file:
            file.write(self._text())

    def replace(self, name: str) -> None:
        path = self._known(name)
        with open(f"{path}.new", "w") as file:
            file.write(self._text())
        os.replace(f"{path}.new", path)

    def rename(self, old: str, new: str) -> None:
        os.rename(self.path(old), self._known(new))

    def remove(self, name: str) -> None:
        path = self.path(name)
        if os.path.isdir(path):
            shutil.rmtree(path)
        else:
            os.remove(path)

    def link(self, name: str, target: str) -> None:
        os.symlink(self.path(target), self.path(name))
        self._names[self.path(name)] = self._names.setdefault(self.path(target), {})


class MemoryYard:
    """See ``tests.suites.watcher.Yard``."""

    def __init__(self) -> None:
        self.fake = FakeWatcher()
        self.watcher: Watcher = self.fake
        self.fake.mkdir("/yard")

    def path(self, name: str) -> str:
        return f"/yard/{name}"

    def mkdir(self, name: str) -> None:
        self.fake.mkdir(self.path(name))

    def write(self, name: str) -> None:
        self.fake.write(self.path(name))

    append = replace = write

    def rename(self, old: str, new: str) -> None:
        self.fake.rename(self.path(old), self.path(new))

    def remove(self, name: str) -> None:
        self.fake.remove(self.path(name))

    def link(self, name: str, target: str) -> None:
        self.fake.link(self.path(name), self.path(target))
