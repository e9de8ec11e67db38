"""What ``ctx-hook`` does with events that it can hardly keep or deliver: none is lost without a note."""

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctxd_protocol.event_types import PromptEvent, SystemEvent
from tests.client.running import Running
from tests.spec.test_hooks import Harness, events, texts

SMALL_DISK = ("sh", "-c", 'ulimit -f 4; exec "$@"', "sh")
"""No file may have more than 2 or 4 KiB, by the shell: a write beyond that fails as on a full disk."""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as running:
        yield running


@pytest.fixture
def harness(running: Running, tmp_path: Path) -> Harness:
    return Harness(running, tmp_path / "home")


def lost(harness: Harness) -> list[str]:
    """The reasons for which events were lost."""
    found = harness.home.glob(".local/state/ctx-hook/*/lost")
    return [line.split()[1] for path in found for line in path.read_text().splitlines()]


def fill(harness: Harness, name: str) -> None:
    """Leave no room among the waiting events: an event at ``name``, damaged, has as many bytes as all may have."""
    with (harness.waiting()[0].parent / f"{name}-0.event").open("wb") as file:
        file.truncate(256 << 20)


@pytest.mark.requirement("HOK-5")
@pytest.mark.parametrize("full", ["disk", "spool"])
def test_what_waits_in_a_full_spool_is_delivered_and_the_new_event_after_it(harness: Harness, full: str) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    if full == "spool":
        fill(harness, "9" * 20)
    else:
        harness.runner = SMALL_DISK
    harness.hook("UserPromptSubmit", prompt="dropped" * 1_000, prompt_id="p2")
    reason = "full" if full == "spool" else "disk"
    assert lost(harness) == [reason]
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="two" * 2_000, prompt_id="p3")
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p4")
    assert texts(events(harness)) == ["one", "two" * 2_000, "three"]
    assert harness.waiting() == []
    assert lost(harness) == [reason, *(["damaged"] if full == "spool" else [])]


@pytest.mark.requirement("HOK-3", "HOK-5")
def test_an_event_that_found_no_room_is_recorded_once_though_the_daemon_is_killed_before_it_answers(
    harness: Harness,
) -> None:
    """The delivery makes room for it."""
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    fill(harness, "0" * 20)
    harness.daemon.start()
    behind = harness.daemon.socket
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as threads:
        harness.environ["CTXD_SOCKET"] = path = str(harness.home / "front.sock")
        (folder,) = harness.home.glob(".local/state/ctx-hook/*")
        folder.rename(str(folder).replace(behind.replace("/", "%2F"), path.replace("/", "%2F")))
        listener.bind(path)
        listener.listen()
        listener.settimeout(60)

        def answer_the_first() -> None:
            wire, _ = listener.accept()
            with wire, wire.makefile("rwb") as lines, socket.socket(socket.AF_UNIX) as daemon:
                daemon.connect(behind)
                with daemon.makefile("rwb") as answers:
                    for is_answered in (True, False):
                        answers.write(lines.readline())
                        answers.flush()
                        reply = answers.readline()
                        if is_answered:
                            lines.write(reply)
                            lines.flush()

        done = threads.submit(answer_the_first)
        harness.hook("SessionStart", source="startup")
        done.result(60)
    assert len(harness.waiting()) == 1
    os.unlink(path)
    os.symlink(behind, path)
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    found = events(harness)
    assert [type(event) for event in found] == [PromptEvent, SystemEvent, PromptEvent]
    assert (harness.waiting(), lost(harness)) == ([], ["damaged"])
