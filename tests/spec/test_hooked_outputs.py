"""Images in the outputs of tools, as hooks report them: they are recorded as an import stores them, and once."""

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest

from ctxd.transcripts.codex import read_rollout
from ctxd.transcripts.hook_events import native_call_id
from ctxd.transcripts.record_decoding import Line
from ctxd_client import connect_sync
from ctxd_protocol.event_types import PromptEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.spec.harness_files import Pi, Thread
from tests.spec.test_exactly_once import FORMAT, Session
from tests.spec.test_hooks import Harness, content, events
from tests.spec.test_import import Record, commits, imported

BYTES = b"\x89PNG\r\n\x1a\n of a picture"
DATA = b64encode(BYTES).decode()
URL = f"data:image/png;base64,{DATA}"


def file_of(data: bytes) -> Record:
    """The output of Claude Code's tool ``Read`` for an image."""
    return {"type": "image", "file": {"base64": b64encode(data).decode(), "type": "image/png"}}


def notebook_of(data: bytes) -> Record:
    """The output of Claude Code's tool ``Read`` for a notebook whose only cell shows an image."""
    image = {"image_data": b64encode(data).decode(), "media_type": "image/png"}
    shown = {"output_type": "display_data", "text": "", "image": image}
    cell = {"cellType": "code", "source": "plot()", "cell_id": "a", "language": "python", "outputs": [shown]}
    return {"type": "notebook", "file": {"filePath": "/a.ipynb", "cells": [cell]}}


def look(harness: Harness, response: Any, call: str = "c1", *, is_started: bool = True, **args: str) -> None:
    """A call of a tool, each end of which two hooks report."""
    members = {"tool_name": "Read", "tool_input": args, "tool_use_id": call}
    for _ in range(2 if is_started else 0):
        harness.hook("PreToolUse", **members)
    for _ in range(2):
        harness.hook("PostToolUse", tool_response=response, **members)


def results(harness: Harness) -> list[ToolResultEvent]:
    return [event for event in events(harness) if isinstance(event, ToolResultEvent)]


def stored(daemon: Running, session: str) -> int:
    """How often the image is in the commits of a session."""
    with connect_sync(daemon.socket) as client:
        client.context_current(session=session)
        deltas = [client.commit_materialize(each, stop=each, format=FORMAT) for each in commits(client, session)]
    return sum(str(each.content).count(DATA) for each in deltas)


def written(source: str, folder: Path) -> tuple[str, Any]:
    """A transcript with a prompt and a call whose output is an image; its session, and the output as a hook has it."""
    if source.startswith("codex"):
        thread = Thread()
        thread.begin()
        thread.ask("a")
        thread.add("", type="function_call", name="view_image", call_id="c1", arguments="{}")
        block: Record = {"type": "input_image", "image_url": URL}
        hooked: Any = [block]
        if source == "codex-resource":
            resource = {"type": "resource", "resource": {"uri": "a", "mimeType": "image/png", "blob": DATA}}
            block = {"type": "input_text", "text": json.dumps(resource, separators=(",", ":"))}
            hooked = {"content": [resource]}
        thread.add("", type="function_call_output", call_id="c1", output=[block])
        thread.write(folder)
        return thread.thread, hooked
    pi = Pi()
    call = {"type": "toolCall", "id": "c1", "name": "read", "arguments": {}}
    output = [{"type": "text", "text": "seen"}, {"type": "image", "data": DATA, "mimeType": "image/png"}]
    pi.write(
        folder,
        pi.says("a"),
        pi.says("b", "assistant", content=[call]),
        pi.says("c", "toolResult", toolCallId="c1", toolName="read", content=output, isError=False),
    )
    return pi.native, {"content": output}


@pytest.mark.requirement("HOK-23")
@pytest.mark.parametrize("name", ["codex", "codex-resource", "pi"])
def test_an_image_that_hooks_and_an_import_see_is_stored_once(running: Running, tmp_path: Path, name: str) -> None:
    native, response = written(name, tmp_path / "sources")
    name = name.removesuffix("-resource")
    harness = Harness(running, tmp_path / "home", name, native)
    harness.hook("UserPromptSubmit", prompt="text a", prompt_id="p1")
    look(harness, response)
    harness.hook("SessionEnd", reason="other")
    (result,) = results(harness)
    (image,) = result.attachments
    assert (image.media_type, image.data) == ("image/png", BYTES) and DATA not in result.text
    imported(running, name, tmp_path / "sources")
    assert stored(running, harness.session) == 1


@pytest.mark.requirement("HOK-23")
@pytest.mark.parametrize("response", [file_of(BYTES), notebook_of(BYTES)])
def test_an_image_that_hooks_and_an_import_of_claude_code_see_is_stored_once(
    running: Running, tmp_path: Path, response: Record
) -> None:
    session = Session(running, tmp_path / "home")
    session.hook("UserPromptSubmit", prompt="prompt a", prompt_id="p-a")
    session.write("user", text="prompt a")
    session.write("assistant", {"type": "tool_use", "id": "c1", "name": "Read", "input": {}})
    session.hook("PreToolUse", tool_name="Read", tool_use_id="c1", tool_input={})
    session.hook("PostToolUse", tool_name="Read", tool_use_id="c1", tool_input={}, tool_response=response)
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
    session.write("user", {"type": "tool_result", "tool_use_id": "c1", "content": [block]})
    session.hook("SessionEnd", reason="other")
    assert session.imported()["recorded"] == 3
    assert stored(running, session.id) == 1


@pytest.mark.requirement("HOK-23")
def test_an_image_is_recorded_once_however_its_call_is_reported(harness: Harness) -> None:
    look(harness, file_of(BYTES), "c1")
    look(harness, file_of(BYTES), "c2", is_started=False)
    harness.hook("PreToolUse", tool_name="Read", tool_input={}, tool_use_id="c2")
    found = [event.call for event in events(harness) if isinstance(event, ToolCallEvent | ToolResultEvent)]
    assert found == ["c1", "c1", "c2", "c2"]


@pytest.mark.requirement("HOK-15")
@pytest.mark.requirement("HOK-23")
@pytest.mark.parametrize("is_restarted", [False, True])
def test_outputs_with_and_without_images_under_one_native_id_are_all_recorded(
    harness: Harness, is_restarted: bool
) -> None:
    outputs = [file_of(BYTES), file_of(BYTES + b"2"), "no picture", file_of(BYTES + b"3"), "no picture either"]
    for response in outputs:
        look(harness, response, "call_0", path="screen")
        if is_restarted:
            harness.daemon.kill()
            harness.daemon.start()
    found = results(harness)
    seen: list[Any] = [each.attachments[0].data if each.attachments else None for each in found]
    assert seen == [BYTES, BYTES + b"2", None, BYTES + b"3", None]
    made = [event.call for event in events(harness) if isinstance(event, ToolCallEvent)]
    assert made == [each.call for each in found] and len({*made}) == len(outputs)
    assert {native_call_id(call) for call in made} == {"call_0"}


@pytest.mark.requirement("HOK-23")
def test_an_image_of_a_sub_agent_is_an_attachment(harness: Harness) -> None:
    members = {"tool_name": "Read", "tool_input": {}, "tool_use_id": "c1", "agent_id": "a1"}
    harness.hook("PostToolUse", tool_response=file_of(BYTES), **members)
    (result,) = results(harness)
    assert (result.sidechain, result.text, len(result.attachments)) == ("a1", "", 1)


@pytest.mark.requirement("HOK-23")
def test_a_large_image_is_kept_and_one_above_the_limit_of_an_event_is_named(harness: Harness) -> None:
    for call, size in (("c1", 11_000_000), ("c2", 12_000_000)):
        look(harness, file_of(BYTES.ljust(size, b".")), call)
    kept, named = results(harness)
    assert [len(each.data or b"") for each in kept.attachments] == [11_000_000]
    with connect_sync(harness.daemon.socket) as client:
        text = content(client, harness.session, str(named.object))
    assert text == "[image/png, not recorded: the data is incomplete]"


@pytest.mark.requirement("IMP-25")
@pytest.mark.parametrize("code", [0, 127])
def test_a_command_of_codex_fails_in_its_hook_as_in_its_rollout(running: Running, tmp_path: Path, code: int) -> None:
    transcript = tmp_path / "t.jsonl"
    call = {"type": "function_call", "name": "exec_command", "call_id": "c1", "arguments": "{}"}
    item = {"type": "CommandExecution", "id": "c1", "aggregated_output": '"exit_code":7,', "exit_code": code}
    end = {"type": "item_completed", "thread_id": "n1", "item": {**item, "duration": {"secs": 0}}}
    output = f"Chunk ID: 1\nWall time: 0.0 seconds\nProcess exited with code {code}\nOutput:\na"
    result = {"type": "function_call_output", "call_id": "c1", "output": output}
    records = [("response_item", call), ("event_msg", end), ("response_item", result)]
    lines = [json.dumps({"type": kind, "payload": each}, separators=(",", ":")) + "\n" for kind, each in records]
    transcript.write_text("".join(lines[:2]))
    harness = Harness(running, tmp_path / "home", "codex")
    harness.transcript = str(transcript)
    harness.hook("UserPromptSubmit", prompt="text a", turn_id="p1")
    command = {"tool_name": "Bash", "tool_input": {"command": "ls"}, "tool_use_id": "c1"}
    harness.hook("PreToolUse", **command)
    harness.hook("PostToolUse", **command, tool_response="a")
    with connect_sync(running.socket) as client:
        status = client.object_get("c1", session=harness.session).object.payload["status"]
    assert status == ("fail" if code else "ok")
    (read,) = (each.event for each in read_rollout([Line(0, json.loads(lines[2]))]))
    assert isinstance(read, ToolResultEvent) and read.is_error == (status == "fail")


@pytest.mark.requirement("IMP-20")
def test_a_prompt_of_codex_that_begins_with_a_tag_of_claude_code_is_recorded_once(
    running: Running, tmp_path: Path
) -> None:
    text = "<terminal>ls</terminal>\nwhy?"
    thread = Thread()
    thread.begin()
    thread.add("", type="message", role="user", content=[{"type": "input_text", "text": text}])
    thread.answer("a")
    thread.write(tmp_path / "sources")
    harness = Harness(running, tmp_path / "home", "codex", thread.thread)
    harness.hook("UserPromptSubmit", prompt=text, turn_id="p1")
    harness.hook("Stop", last_assistant_message="text a", turn_id="p1")
    harness.hook("SessionEnd", reason="other")
    counted = imported(running, "codex", tmp_path / "sources")["events"]
    assert not {"prompt", "response"} & counted.keys(), "the hooks have recorded them"
    assert [event.text for event in events(harness) if isinstance(event, PromptEvent)] == [text]
