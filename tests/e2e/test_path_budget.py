"""Budgets of what one warm call enters: a reader who follows it opens these modules and no others."""

import json
import re
import socket
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.traced import Entered, Traced, fewest, traced

README = Path(__file__).parents[2] / "ctxd" / "README.md"

RECORD = (30, 90)
"""Modules and functions from bytes to the acknowledged ``toolcall.record``."""

ASSEMBLE = (35, 130)
"""The same of ``context.assemble``."""

PAUSE_S = 1.5
"""Seconds after which a write comes alone: what follows the journal waits, and checks made once a second are due."""

NOTICE = (38, 178)
"""The same from the change of a tracked file to the notice of a subscriber."""


class Wire:
    """A plain connection: one call at a time, notifications kept."""

    def __init__(self, path: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.settimeout(30)
        self._socket.connect(str(path))
        self._lines = self._socket.makefile("rb")
        self._ids = count(1)

    def call(self, method: str, **params: object) -> Any:
        number = next(self._ids)
        frame = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        # In one packet: a frame that arrives in two takes functions of its own.
        self._socket.sendall(frame.encode() + b"\n")
        while (answer := self.next()).get("id") != number:
            continue
        assert "error" not in answer, answer
        return answer["result"]

    def next(self) -> Any:
        return json.loads(self._lines.readline())

    def close(self) -> None:
        self._lines.close()
        self._socket.close()


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with traced(tmp_path_factory.mktemp("daemon")) as running:
        yield running


@pytest.fixture
def wire(daemon: Traced) -> Iterator[Wire]:
    made = Wire(daemon.socket)
    yield made
    made.close()


def warm(wire: Wire, session: str) -> "count[int]":
    wire.call("session.create", session=session, agent="a")
    wire.call("session.append", session=session, messages=[{"role": "user", "content": "u"}])
    numbers = count()
    for _ in range(60):
        record(wire, session, next(numbers))
    wire.call("context.assemble", session=session)
    return numbers


def record(wire: Wire, session: str, number: int) -> None:
    id = f"{session}-{number}"
    wire.call("toolcall.record", session=session, id=id, tool="bash", content="x" * 200, op_id=id)


def within(entered: Entered, budget: tuple[int, int]) -> None:
    assert entered.within(budget), (sorted(entered.modules), sorted(entered.functions))


def test_a_recorded_tool_call_stays_within_its_budget(daemon: Traced, wire: Wire) -> None:
    numbers = warm(wire, "recorded")

    def recorded() -> Entered:
        time.sleep(PAUSE_S)
        return daemon.enters(lambda: record(wire, "recorded", next(numbers)))

    entered = fewest(recorded, RECORD)
    within(entered, RECORD)
    described = README.read_text().partition("## One call through the tree")[2].partition(" → the reply.")[0]
    assert {f"ctxd/{name}" for name in re.findall(r"`(\w+/\w+\.py)`", described)} <= entered.modules


def test_an_assembled_context_stays_within_its_budget(daemon: Traced, wire: Wire) -> None:
    numbers = warm(wire, "assembled")

    def assembled() -> Entered:
        record(wire, "assembled", next(numbers))
        return daemon.enters(lambda: wire.call("context.assemble", session="assembled"))

    within(fewest(assembled, ASSEMBLE), ASSEMBLE)


def test_a_changed_file_reaches_its_subscriber_within_its_budget(daemon: Traced, wire: Wire, tmp_path: Path) -> None:
    file, texts = tmp_path / "f.txt", count()
    file.write_text("first")
    wire.call("session.create", session="reader", agent="a")
    wire.call("file.index", session="reader", path=str(file), cause="read")
    wire.call("events.subscribe", session="reader")

    def change() -> None:
        file.write_text(f"text {next(texts)}")
        assert wire.next()["method"] == "events.notice"

    change()

    def changed() -> Entered:
        time.sleep(PAUSE_S)
        return daemon.enters(change)

    within(fewest(changed, NOTICE), NOTICE)
