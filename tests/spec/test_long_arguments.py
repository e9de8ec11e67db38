"""Long arguments of tool calls: cut when they enter a window, marked, and loaded on demand."""

import json
from pathlib import Path
from typing import Any

import pytest

from ctxd_client import connect_sync
from ctxd_client.sync import SyncSession
from ctxd_protocol.event_types import ResponseEvent, ToolCallEvent
from tests.client.running import Running
from tests.spec.test_provider_requests import request, text_of
from tests.unit.assembly.provider_rules import FORMATS

LINES = "".join(f"line {number} of a long file\n" for number in range(16_000))
CUT_CHARS_MAX = 60_000


def arguments(body: Any) -> dict[str, Any]:
    found: dict[str, Any] = next(
        part["input"] for message in body["messages"] for part in message["content"] if part["type"] == "tool_use"
    )
    return found


@pytest.mark.requirement("REQ-8")
@pytest.mark.parametrize("way", ["tool", "record", "reply"])
def test_long_arguments_are_cut_and_marked_and_the_call_can_be_loaded(s: SyncSession, way: str) -> None:
    s.user("Write it.")
    args = {"file_path": "/w/long.txt", "content": LINES}
    if way == "tool":
        s.tool("Write", args, output="ok", id=f"{s.id}-w")
    elif way == "record":
        s.record(f"{s.id}-w", "Write", "ok", args=args)
    else:
        s.append(events=[ResponseEvent(text="I write."), ToolCallEvent(call=f"{s.id}-w", tool="Write", args=args)])
        s.tool("Write", args, output="ok", id=f"{s.id}-w", in_chat=True)
    made = request(s)
    shown = arguments(made.request)
    assert shown["file_path"] == "/w/long.txt"
    assert len(shown["content"]) < CUT_CHARS_MAX
    assert shown["content"].startswith("line 0 of") and shown["content"].endswith("line 15999 of a long file\n")
    assert f"tokens left out here; activate {s.id}-w to load it" in shown["content"]
    for format in FORMATS:
        assert len(text_of(request(s, format))) < 2 * CUT_CHARS_MAX
    before = request(s)
    s.activate(f"{s.id}-w")
    loaded = request(s)
    assert "line 8000 of a long file" in text_of(loaded)
    assert loaded.stable_prefix is not None and loaded.stable_prefix >= before.bytes - len("]}]}")


@pytest.mark.requirement("REQ-8")
def test_long_arguments_of_a_call_without_a_record_name_the_event_that_has_them(s: SyncSession) -> None:
    s.user("Write it.")
    s.append(events=[ToolCallEvent(call="t1", tool="Write", args={"content": LINES})])
    s.user("Stop.")
    assert "all of it is event 1.1 of the chat" in arguments(request(s).request)["content"]


@pytest.mark.requirement("REQ-8")
@pytest.mark.parametrize(
    "args",
    [
        {f"argument {number}": "x" * 40 for number in range(20_000)},
        {"k" * 1_000_000: 1},
        {"edits": [{"old": f"old {number}", "new": f"new {number}"} for number in range(40_000)]},
        {"content": "\x01\"\\\n" * 200_000},
        {"content": "\u6f22\U0001f600" * 200_000, "more": LINES},
    ],
    ids=["many", "long name", "list", "escapes", "scripts"],
)  # fmt: skip
def test_arguments_never_exceed_the_window(s: SyncSession, args: dict[str, object]) -> None:
    s.configure(budget_tokens=32_000)
    s.user("Write it.")
    s.tool("Write", args, output="ok", id="t1")
    for format in FORMATS:
        made = request(s, format)
        assert made.tokens <= 32_000 and made.plan.over_by == 0
        assert "tokens left out here; activate" in text_of(made)


@pytest.mark.requirement("REQ-8")
def test_cut_arguments_are_the_same_bytes_after_a_restart_and_short_after_a_repack(tmp_path: Path) -> None:
    args = {"file_path": "/w/long.txt", "content": LINES}
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s", agent="agent", budget_tokens=32_000)
            s.user("Write it.")
            s.tool("Write", args, output="ok", id="t1")
            before = request(s)
            s.assistant("Written.")
            s.user("Next.")
            for number in range(40):
                s.tool("bash", {"command": f"make {number}"}, output="word " * 900, id=f"c{number}")
                s.assistant("On.")
                request(s)
            numbers = [row.number for row in s.assemblies().assemblies]
        daemon.kill()
        daemon.start()
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            assert s.show(number=before.number).sha256 == before.sha256
            for number in numbers:
                s.show(number=number)
            s.user("Go on.")
            after = request(s)
    assert "left out here" in json.dumps(arguments(before.request))
    assert len(json.dumps(arguments(after.request))) < 300
