"""Record of the functions of the product that each test enters, in the test process and in those that it starts.

``pytest -p tests.entered_functions`` writes it to the folder that ``ENTERED_FOLDER`` names; ``read`` returns it. A
process that a test starts takes part if its ``PYTHONPATH`` leads to ``sitecustomize.py`` of that folder, which
``prepare`` writes.

A function is named by its file and qualified name. What a test shares with others of its file, such as a daemon, counts
for the test that runs while the function is entered. PYTEST_DONT_REWRITE, as the module is imported before pytest.
"""

import mmap
import os
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:  # every process of the tests imports this module
    import pytest

FOLDER: Final = "ENTERED_FOLDER"
TREE: Final = "ENTERED_TREE"
"""Variables of the environment: the folder of the record, and the tree whose functions count."""

PRODUCT: Final = ("ctxd/", "ctxd_client/", "protocol/ctxd_protocol/")


class Test(NamedTuple):
    """A test that passed: ``entered`` are the functions, each a path in the tree and a qualified name."""

    node: str
    seconds: float
    entered: frozenset[tuple[str, str]]


def prepare(folder: Path) -> None:
    """Make ``folder`` ready for the record of one run of pytest."""
    folder.mkdir()
    (folder / "current").write_bytes(bytes(4))
    (folder / "sitecustomize.py").write_text("from tests import entered_functions\nentered_functions.start()\n")


def read(folder: Path) -> list[Test]:
    """The tests that passed in the run that ``folder`` records."""
    entered: dict[int, set[tuple[str, str]]] = {}
    if not (folder / "tests").is_file():
        return []
    for line in (folder / "entered").read_text().splitlines():
        number, path, name = line.split("\t")
        entered.setdefault(int(number), set()).add((path, name))
    tests = []
    for line in (folder / "tests").read_text().splitlines():
        number, seconds, node = line.split("\t", 2)
        tests.append(Test(node, float(seconds), frozenset(entered.get(int(number), ()))))
    return tests


def start() -> None:
    """Record the functions that this process enters from now on; nothing without a folder."""
    if FOLDER not in os.environ:
        return
    folder = Path(os.environ[FOLDER])
    tree = os.environ[TREE] + "/"
    ours = tuple(tree + each for each in PRODUCT)
    with (folder / "current").open("r+b") as file:
        current = memoryview(mmap.mmap(file.fileno(), 4)).cast("I")
    out = os.open(folder / "entered", os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    seen: set[int] = set()
    seen_for = current[0]

    def enter(frame: FrameType, event: str, arg: object) -> None:
        nonlocal seen_for
        code = frame.f_code
        number = current[0]
        if number != seen_for:
            seen.clear()
            seen_for = number
        # The id, as a code object compares by its content.
        if id(code) not in seen:
            seen.add(id(code))
            if code.co_filename.startswith(ours):
                path = code.co_filename.removeprefix(tree)
                os.write(out, f"{number}\t{path}\t{code.co_qualname}\n".encode())

    threading.settrace(enter)  # type: ignore[arg-type]
    sys.settrace(enter)  # type: ignore[arg-type]


class _Recorder:
    """Numbers the tests, and lists those that passed."""

    def __init__(self, folder: Path) -> None:
        with (folder / "current").open("r+b") as file:
            self._current = memoryview(mmap.mmap(file.fileno(), 4)).cast("I")
        self._tests = folder / "tests"
        self._seconds = 0.0
        self._passed = True

    def pytest_runtest_logstart(self) -> None:
        self._current[0] += 1
        self._seconds, self._passed = 0.0, True

    def pytest_runtest_logreport(self, report: "pytest.TestReport") -> None:
        self._seconds += report.duration
        self._passed = self._passed and report.passed
        if report.when == "teardown" and self._passed:
            with self._tests.open("a") as out:
                out.write(f"{self._current[0]}\t{self._seconds:.3f}\t{report.nodeid}\n")


def pytest_configure(config: "pytest.Config") -> None:
    """Take part as a plugin."""
    config.pluginmanager.register(_Recorder(Path(os.environ[FOLDER])))
