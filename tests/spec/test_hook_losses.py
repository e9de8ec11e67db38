"""What ``ctx-hook`` does with events that it can hardly keep or deliver: none is lost without a note."""

import importlib
import json
import os
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ctxd.hook import delivery, large_event_shortening
from ctxd_client import connect_sync
from ctxd_protocol.event_types import PromptEvent, SystemEvent
from tests.spec.test_hooks import HOOK, NATIVE, Harness, content, events, texts

SMALL_DISK = ("sh", "-c", 'ulimit -f 4; exec "$@"', "sh")
"""No file may have more than 2 or 4 KiB, by the shell: a write beyond that fails as on a full disk."""


def lost(harness: Harness) -> list[str]:
    """The reasons for which events were lost."""
    found = harness.home.glob(".local/state/ctx-hook/*/lost")
    return [line.split()[1] for path in found for line in path.read_text().splitlines()]


def fill(harness: Harness, name: str) -> None:
    """Leave no room among the waiting events: an event at ``name``, damaged, has as many bytes as all may have."""
    with (harness.waiting()[0].parent / f"{name}-0.event").open("wb") as file:
        file.truncate(256 << 20)
    (harness.waiting()[0].parent / "usage").unlink()  # As if the file had come before it.


@pytest.mark.requirement("HOK-5")
@pytest.mark.parametrize("full", ["disk", "spool"])
def test_events_in_a_full_spool_are_delivered_before_the_new_event(harness: Harness, full: str) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    if full == "spool":
        fill(harness, "9" * 20)
    else:
        importlib.import_module("ctxd.hook.spool_delivery")  # Python 3.11 truncates bytecode on a full disk.
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


@pytest.mark.requirement("HOK-3", "HOK-5")
@pytest.mark.parametrize("kind", ["pipe", "directory", "link", "empty", "other"])
def test_a_file_that_is_no_event_is_dropped_without_blocking_events(harness: Harness, kind: str) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    place = harness.waiting()[0].with_name(f"{'0' * 20}-0.event")
    {
        "pipe": lambda: os.mkfifo(place), "directory": place.mkdir, "link": lambda: place.symlink_to("lock"),
        "empty": lambda: place.write_text("{}\n"),
        "other": lambda: place.write_text(harness.waiting()[-1].read_text().replace('"method"', '"methodx"')),
    }[kind]()  # fmt: skip
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert texts(events(harness)) == ["one", "two"]
    assert harness.waiting() == []
    assert lost(harness) == ["invalid_request" if kind in ("empty", "other") else "damaged"]


@pytest.mark.requirement("HOK-4", "HOK-5")
@pytest.mark.slow
def test_a_large_structured_output_is_recorded_with_its_beginning(harness: Harness) -> None:
    names = [f"src/module_{number:06}/file_{number}.py" for number in range(600_000)]
    rows = [{"x": number, "y": number * 1.1} for number in range(480_000)]
    sizes = {f"file_{number}": number for number in range(800_000)}
    outputs = {"filenames": names}, rows, {"sizes": sizes, "total": 800_000}
    for number, output in enumerate(outputs):
        given = {"pattern": "**", "long": "x" * 300, "deep": deep(80)}
        harness.hook(
            "PostToolUse", tool_name="T", tool_input=given, tool_response=output, tool_use_id=f"t{number}", n=1
        )
    with connect_sync(harness.daemon.socket) as client:
        found = [json.loads(content(client, harness.session, f"t{number}") or "") for number in range(3)]
    kept, notice = found[0]["filenames"][:-1], found[0]["filenames"][-1]
    assert len(kept) > 20_000 and kept == names[: len(kept)]
    assert notice == f"[{600_000 - len(kept):,} items were left out by ctx-hook: the event is too large]"
    assert len(found[1]) > 20_000 and found[1][:-1] == rows[: len(found[1]) - 1]
    left_out = "[left out by ctx-hook]"
    members = {name: value for name, value in found[2]["sizes"].items() if name != left_out}
    assert len(members) > 20_000 and members.items() <= sizes.items()
    assert found[2]["sizes"][left_out] == f"{800_000 - len(members):,} members: the event is too large"
    assert found[2]["total"] == 800_000
    assert lost(harness) == []


def deep(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


@pytest.mark.requirement("HOK-4")
@pytest.mark.parametrize(
    "output",
    [
        ["a short text"] * 1_500_000,
        [[number] for number in range(900_000)],
        ["x" * 1_000_000] * 40,
        {"a": {"b": {"c": {"d": {"e": [{"name": "é" * 50, "at": number * 0.1} for number in range(150_000)]}}}}},
        [{str(number): {} for number in range(1_000)}] * 700,
        ['\x01\n"\\' * 1_000_000],
    ],
    ids=["texts", "lists", "long", "nested", "objects", "escaped"],
)
def test_an_event_is_cut_to_the_bound_well_within_the_time(output: object) -> None:
    event = {"session_id": "s", "tool_use_id": "t1", "tool_response": output, "transcript_lines": ['{"a":1}'], "n": 7}
    raw = json.dumps(event, ensure_ascii=False).encode()
    began = time.process_time()
    cut = large_event_shortening.cut(raw, delivery.CUT_BYTES)
    assert time.process_time() - began < 1.5
    found = json.loads(cut)
    assert 500_000 < len(cut) < 1.1 * delivery.CUT_BYTES
    assert {name: found[name] for name in event if name != "tool_response"} == {
        name: event[name] for name in event if name != "tool_response"
    }
    assert b"by ctx-hook" in cut


@pytest.mark.requirement("HOK-4")
def test_one_long_text_is_cut_to_the_whole_available_room() -> None:
    raw = json.dumps({"session_id": "s", "tool_response": "x" * (8 << 20)}).encode()
    size = len(large_event_shortening.cut(raw, delivery.CUT_BYTES))
    assert 0.99 * delivery.CUT_BYTES < size < 1.01 * delivery.CUT_BYTES


@pytest.mark.requirement("HOK-4")
def test_short_texts_and_deep_values_are_cut_without_becoming_longer() -> None:
    event = {"deep": deep(800), "many": [deep(50)] * 2_000, "texts": ["a text of twenty…"] * 20_000, "z": "z" * 90}
    cut = large_event_shortening.cut(json.dumps(event).encode(), 30_000)
    found = json.loads(cut)
    assert len(cut) < 40_000
    assert found["z"] == "z" * 90 and set(found["texts"][:-1]) == {"a text of twenty…"}


@pytest.mark.requirement("HOK-5")
def test_an_event_that_cannot_be_cut_is_noted_as_lost(harness: Harness) -> None:
    assert harness.run(b'{"tool_response": "' + b"x" * 16_000_000).returncode == 0
    assert lost(harness) == ["failed"]


@pytest.mark.requirement("HOK-5")
def test_an_event_whose_time_ends_is_noted_as_lost(harness: Harness) -> None:
    """The harness never closes the input."""
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(harness.home), "CTXD_SOCKET": harness.daemon.socket}
    environ["CTXD_HOOK_SECONDS"] = "0.1"
    with subprocess.Popen([HOOK, "claude"], stdin=subprocess.PIPE, env=environ) as hook:
        assert hook.wait(60) == 0
    assert lost(harness) == ["time"]


@pytest.mark.requirement("HOK-4", "HOK-9")
@pytest.mark.parametrize("what", ["absent", "folder", "other bytes", "unfinished line"])
def test_an_event_is_recorded_for_every_kind_of_environment_file(harness: Harness, what: str) -> None:
    file = harness.home / "env.sh"
    before = {"other bytes": b"export NAME='J\xfcrgen'\n", "unfinished line": b"export A=1"}.get(what, b"")
    if what == "folder":
        file.mkdir()
    elif what == "absent":
        file = file / "in" / "none"
    else:
        file.write_bytes(before)
    harness.environ |= {"CLAUDE_ENV_FILE": str(file), "CLAUDE_CODE_SESSION_ID": NATIVE}
    for source in ("startup", "resume"):
        harness.hook("SessionStart", source=source)
    assert [type(event) for event in events(harness)] == [SystemEvent, SystemEvent]
    if before:
        added = f"export CTXD_SESSION={harness.session}\n".encode()
        assert file.read_bytes() == before.removesuffix(b"\n") + b"\n" + added
    assert lost(harness) == []


@pytest.mark.requirement("HOK-4", "HOK-5")
@pytest.mark.parametrize(
    "output", [b"[" + b"[]," * 15_000_000 + b"1]", b"[" + b'"","\\"",' * 6_000_000 + b"1]"], ids=["lists", "texts"]
)
def test_an_event_of_too_many_values_is_noted_as_lost_at_once(output: bytes) -> None:
    raw = b'{"session_id":"s","tool_response":' + output + b"}"
    began = time.process_time()
    with pytest.raises(OverflowError):
        large_event_shortening.cut(raw, delivery.CUT_BYTES)
    assert time.process_time() - began < 1
