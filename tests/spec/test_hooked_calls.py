"""Calls of tools as hooks report them, in processes of their own: their start, their end, and the text before them."""

import json
import os
import socket
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ctxd.hook import delivery, texts_before_call
from ctxd.transcripts.hook_events import native_call_id
from ctxd_client import connect_sync
from ctxd_protocol.event_types import Event, PromptEvent, ResponseEvent, SystemEvent, ToolCallEvent, ToolResultEvent
from tests.client.running import Running
from tests.spec.test_hooks import NATIVE, Harness, content, ctx, events
from tests.waiting import block_until


def calls(found: list[Event]) -> list[str]:
    """The calls of tools and their results, in order."""
    return [
        f"{'call' if isinstance(event, ToolCallEvent) else 'result'} {event.call}"
        for event in found
        if isinstance(event, ToolCallEvent | ToolResultEvent)
    ]


@pytest.mark.requirement("HOK-15")
def test_a_call_is_recorded_when_it_starts_and_its_output_once(harness: Harness) -> None:
    harness.hook("UserPromptSubmit", prompt="look", prompt_id="p1")
    for call in ("toolu_1", "toolu_2"):
        harness.start(call)
    assert calls(events(harness)) == ["call toolu_1", "call toolu_2"]
    for _ in range(2):
        harness.tool("toolu_2")
        harness.start("toolu_1")
        harness.tool("toolu_1")
    # A hook of the start that comes late adds nothing, and a call whose start no hook reported is whole.
    harness.tool("toolu_3")
    harness.start("toolu_3")
    found = events(harness)
    assert calls(found) == (
        ["call toolu_1", "call toolu_2", "result toolu_2", "result toolu_1", "call toolu_3", "result toolu_3"]
    )
    with connect_sync(harness.daemon.socket) as client:
        assert content(client, harness.session, "toolu_1") == "a.txt\n"


@pytest.mark.requirement("HOK-15")
def test_calls_with_ids_reused_in_each_reply_stay_distinct(harness: Harness) -> None:
    def run(command: str, output: str, *, is_started: bool = True) -> None:
        call = {"tool_name": "Bash", "tool_input": {"command": command}, "tool_use_id": "call_0"}
        for _ in range(2):  # As two settings files with the same hooks report it.
            if is_started:
                harness.hook("PreToolUse", **call)
        for _ in range(2):
            harness.hook("PostToolUse", tool_response=output, **call)

    ran = [("ls", "a.txt"), ("cat a.txt", "one"), ("cat a.txt", "two"), ("ls", "b.txt")]
    for number, (command, output) in enumerate(ran):
        harness.hook("UserPromptSubmit", prompt=f"prompt {number}", prompt_id=f"p{number}")
        run(command, output, is_started=number != 3)
    found = events(harness)
    made = [event for event in found if isinstance(event, ToolCallEvent)]
    assert [each.args["command"] for each in made if isinstance(each.args, dict)] == [command for command, _ in ran]
    assert len({each.call for each in made}) == 4
    assert [native_call_id(each.call) for each in made] == ["call_0"] * 4
    with connect_sync(harness.daemon.socket) as client:
        assert [content(client, harness.session, each.call) for each in made] == [output for _, output in ran]
    assert calls(found) == [f"{kind} {each.call}" for each in made for kind in ("call", "result")]


@pytest.mark.requirement("HOK-15")
def test_a_call_with_the_id_of_one_that_was_denied_is_a_call_of_its_own(harness: Harness) -> None:
    harness.hook("PreToolUse", tool_name="Bash", tool_input={"command": "rm -rf /"}, tool_use_id="call_0")
    for event in ("PreToolUse", "PostToolUse", "PostToolUse"):
        response = {} if event == "PreToolUse" else {"tool_response": "a.txt"}
        harness.hook(event, tool_name="Bash", tool_input={"command": "ls"}, tool_use_id="call_0", **response)
    denied, ran, result = events(harness)
    assert isinstance(denied, ToolCallEvent) and isinstance(ran, ToolCallEvent) and isinstance(result, ToolResultEvent)
    assert (denied.call, denied.args, ran.args) == ("call_0", {"command": "rm -rf /"}, {"command": "ls"})
    assert result.call == ran.call != denied.call


@pytest.mark.requirement("HOK-15")
def test_a_late_start_with_changed_arguments_is_not_a_separate_call(
    harness: Harness,
) -> None:
    harness.tool("toolu_1")
    record = {
        "session_id": NATIVE, "cwd": "/", "hook_event_name": "PreToolUse", "tool_name": "Bash",
        "tool_use_id": "toolu_1", "tool_input": {"command": "ls -l"},
    }  # fmt: skip
    with connect_sync(harness.daemon.socket) as client:
        assert client.session_hook("claude-code", json.dumps(record), at=1).outcome == "known"
    assert calls(events(harness)) == ["call toolu_1", "result toolu_1"]


@pytest.mark.requirement("HOK-15")
def test_a_sub_agent_may_number_its_calls_as_the_conversation_does(harness: Harness) -> None:
    for members in ({}, {"agent_id": "a1"}):
        for event in ("PreToolUse", "PostToolUse"):
            harness.hook(event, tool_name="Bash", tool_input={}, tool_response="x", tool_use_id="call_0", **members)
    assert [event.sidechain for event in events(harness)] == [None, None, "a1", "a1"]


@pytest.mark.requirement("HOK-15")
def test_a_call_of_a_sub_agent_that_starts_is_recorded_once(harness: Harness) -> None:
    for _ in range(2):
        harness.start("toolu_1", agent_id="a1")
    harness.hook(
        "PostToolUse", tool_name="Bash", tool_input={}, tool_response="x", tool_use_id="toolu_1", agent_id="a1"
    )
    harness.start("toolu_1", agent_id="a1")
    found = events(harness)
    assert calls(found) == ["call toolu_1", "result toolu_1"]
    assert {event.sidechain for event in found} == {"a1"}


@pytest.mark.requirement("HOK-15")
@pytest.mark.parametrize("agent", [None, "a1"], ids=["main", "sub-agent"])
def test_the_end_of_a_call_and_a_late_start_that_come_at_once_are_recorded_once(
    harness: Harness, agent: str | None
) -> None:
    """A large output takes the daemon long enough for the start to come meanwhile."""
    record = {"session_id": NATIVE, "cwd": "/", "tool_name": "Bash", "tool_input": {"command": "ls"}, "agent_id": agent}
    names = [f"toolu_{number}" for number in range(5)]
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        for wire in (one, other):
            wire.connect(harness.daemon.socket)
        for call in names:
            ended = {"hook_event_name": "PostToolUse", "tool_response": "x" * 1_000_000}
            for wire, event in ((one, ended), (other, {"hook_event_name": "PreToolUse"})):
                given = json.dumps({**record, **event, "tool_use_id": call})
                params = {"harness": "claude-code", "input": given}
                sent = {"jsonrpc": "2.0", "id": 1, "method": "session.hook", "params": params}
                wire.sendall(json.dumps(sent).encode() + b"\n")
            for wire in (one, other):
                with wire.makefile("rb") as lines:
                    assert b'"error"' not in lines.readline()
    assert calls(events(harness)) == [f"{kind} {call}" for call in names for kind in ("call", "result")]


@pytest.mark.requirement("HOK-15")
def test_the_start_of_a_call_waits_for_the_daemon_and_its_output_follows(harness: Harness) -> None:
    harness.start("toolu_1")
    harness.daemon.kill()
    harness.start("toolu_2")
    harness.tool("toolu_1")
    harness.daemon.start()
    harness.tool("toolu_2")
    assert calls(events(harness)) == ["call toolu_1", "call toolu_2", "result toolu_1", "result toolu_2"]


@pytest.mark.requirement("HOK-15")
def test_an_unfinished_call_is_handed_over_as_interrupted(harness: Harness) -> None:
    """The harness is killed while its tool runs: no hook reports the end of either."""
    harness.hook("UserPromptSubmit", prompt="look", prompt_id="p1")
    harness.start("toolu_1")
    made = json.loads(
        ctx(harness, "resume", harness.session, "--in", "pi", "--cwd", str(harness.home), "--json").stdout
    )
    assert made["left_out"] == {"output of an interrupted call": 1}
    entries = [json.loads(line) for line in Path(made["file"]).read_text().splitlines()]
    last = entries[-1]["message"]
    assert (last["toolCallId"], last["isError"]) == ("toolu_1", True) and "interrupted" in last["content"][0]["text"]


@pytest.mark.requirement("HOK-15")
def test_the_start_of_a_call_without_an_id_is_left_out(harness: Harness) -> None:
    harness.hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"})
    harness.hook("PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response="x")
    long = "x" * 2_000
    harness.start(long)
    harness.tool(long)
    kinds = [call.split()[0] for call in calls(events(harness))]
    assert kinds == ["call", "result"] * 2


class Transcript:
    """The transcript that Claude Code or codex writes beside its hooks."""

    def __init__(self, harness: Harness) -> None:
        self.file = harness.home / "t.jsonl"
        harness.transcript = str(self.file)
        self.is_codex = harness.name == "codex"
        self.lines = 0

    def add(self, kind: str, text: str = "", call: str = "") -> None:
        """One record: ``user``, ``text``, ``last`` (of a turn), ``call`` or ``result``."""
        self.lines += 1
        line = self._codex(kind, text, call) if self.is_codex else self._claude(kind, text, call)
        with self.file.open("a") as file:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")

    def _claude(self, kind: str, text: str, call: str) -> dict[str, Any]:
        role = "user" if kind in ("user", "result") else "assistant"
        block = {
            "user": {"type": "text", "text": text},
            "text": {"type": "text", "text": text},
            "last": {"type": "text", "text": text},
            "call": {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "ls"}},
            "result": {"type": "tool_result", "tool_use_id": call, "content": text},
        }[kind]
        message = {
            "id": "msg_1",
            "role": role,
            "content": [block],
            "stop_reason": "end_turn" if kind == "last" else None,
        }
        return {"type": role, "uuid": f"u{self.lines}", "sessionId": NATIVE, "message": message}

    def _codex(self, kind: str, text: str, call: str) -> dict[str, Any]:
        item = {
            "user": {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]},
            "text": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
            "last": {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]},
            "call": {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": call},
            "result": {"type": "function_call_output", "call_id": call, "output": text},
        }[kind]
        at = f"2026-01-02T03:04:05.{self.lines:03}Z"
        return {"timestamp": at, "type": "response_item", "payload": item}


def conversation(found: list[Event]) -> list[str]:
    """The calls, their results and the model's texts, in order."""
    return [
        event.text if isinstance(event, ResponseEvent) else calls([event])[0]
        for event in found
        if isinstance(event, ResponseEvent | ToolCallEvent | ToolResultEvent)
    ]


@pytest.mark.requirement("HOK-16")
@pytest.mark.parametrize("name", ["claude", "codex"])
def test_the_text_before_a_call_is_recorded_once(running: Running, tmp_path: Path, name: str) -> None:
    harness = Harness(running, tmp_path / "home", name)
    transcript = Transcript(harness)
    transcript.add("user", 'an "type":"text" of a person')
    transcript.add("text", 'é "type":"user"')
    transcript.add("text", "and")
    for call in ("c1", "c2"):
        transcript.add("call", call=call)
    for call in ("c2", "c1"):  # codex runs the hooks of several calls at once.
        harness.start(call)
    for call in ("c1", "c2"):
        harness.tool(call)
        transcript.add("result", "out", call)
    spoken = ['é "type":"user"', "and"]
    assert conversation(events(harness)) == [*spoken, "call c2", "call c1", "result c1", "result c2"]
    transcript.add("call", call="c3")
    harness.start("c3")
    harness.tool("c3")
    transcript.add("result", "out", "c3")
    # The harness has not written the text yet when the call begins, and does not wait for the hook.
    harness.start("c4")
    transcript.add("text", "late")
    transcript.add("call", call="c4")
    harness.tool("c4")
    transcript.add("result", "out", "c4")
    transcript.add("last", "last")
    harness.hook("Stop", prompt_id="p1", last_assistant_message="last")
    harness.start("c5")
    transcript.add("user", "again")
    transcript.add("call", call="c5")
    harness.tool("c5")
    wanted = ["call c3", "result c3", "late", "call c4", "result c4", "last", "call c5", "result c5"]
    assert conversation(events(harness))[6:] == wanted


@pytest.mark.requirement("HOK-16")
@pytest.mark.parametrize("seconds", [0.5, 0.05], ids=["written", "created"])
def test_a_text_that_a_busy_harness_writes_late_is_recorded_before_its_call(harness: Harness, seconds: float) -> None:
    transcript = Transcript(harness)
    if seconds == 0.5:
        transcript.add("user", "go")
    harness.start("c1")
    time.sleep(seconds)
    transcript.add("text", "late")
    transcript.add("call", call="c1")
    harness.tool("c1")
    assert conversation(events(harness)) == ["late", "call c1", "result c1"]


@pytest.mark.requirement("HOK-15", "HOK-16")
@pytest.mark.parametrize("seconds", [0.4, 0.0], ids=["late", "never"])
def test_a_call_that_was_denied_is_recorded_before_the_answer(harness: Harness, seconds: float) -> None:
    """No hook reports its end, and the harness writes its transcript late, or not at all."""
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.hook("UserPromptSubmit", prompt="go", prompt_id="p1")
    took: list[float] = []

    def hook(event: str, **members: Any) -> None:
        began = time.monotonic()
        harness.hook(event, **members)
        took.append(time.monotonic() - began)

    hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_use_id="c1")
    hook("Stop", last_assistant_message="You denied it.", prompt_id="p1")
    hook("UserPromptSubmit", prompt="next", prompt_id="p2")
    # Neither the start of the next call nor the end of the session goes ahead, and another session does not wait.
    hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_use_id="c2", transcript_path="")
    hook("SessionEnd", reason="other")
    other = Harness(harness.daemon, harness.home, native="another")
    other.hook("UserPromptSubmit", prompt="other", prompt_id="p1")
    assert [type(event) for event in events(other)] == [PromptEvent]
    if seconds:
        time.sleep(seconds)
        transcript.add("text", "I look.")
        transcript.add("call", call="c1")
    block_until(lambda: isinstance(events(harness)[-1], SystemEvent))
    found = [getattr(event, "text", None) or getattr(event, "call", "") for event in events(harness)]
    said = ["I look."] if seconds else []
    assert found == ["go", *said, "c1", "You denied it.", "next", "c2", "other"]
    assert max(took) < delivery.START_WRITTEN_S
    with connect_sync(harness.daemon.socket) as client:
        block_until(lambda: client.session_get(harness.session).session.state == "paused")
    block_until(lambda: not list(harness.home.glob(".local/state/ctx-hook/*/late/*.late")))
    assert harness.waiting() == []


@pytest.mark.requirement("HOK-16")
def test_a_killed_hook_blocks_its_session_only_for_seconds(harness: Harness) -> None:
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.start("c1")
    (late,) = harness.home.glob(".local/state/ctx-hook/*/late/*.late")
    block_until(lambda: not late.exists())
    late.touch()
    harness.hook("Stop", last_assistant_message="Done.", prompt_id="p1")
    block_until(lambda: conversation(events(harness)) == ["call c1", "Done."])
    name = f"{time.time_ns() - 10**10:020}{late.name[20:]}"
    late.rename(late.with_name(name))
    harness.hook("UserPromptSubmit", prompt="next", prompt_id="p2")
    assert isinstance(events(harness)[-1], PromptEvent)
    assert not late.with_name(name).exists()


@pytest.mark.requirement("HOK-15")
@pytest.mark.parametrize("what", ["new", "known", "unordered"])
def test_a_hook_that_comes_after_the_end_of_its_session_leaves_the_session_paused(harness: Harness, what: str) -> None:
    """The hook of the start waits for a transcript that never has the call, and the harness ends meanwhile."""
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.start("c1")
    (late,) = harness.home.glob(".local/state/ctx-hook/*/late/*.late")
    if what == "known":
        harness.tool("c1")
        assert not late.exists()
    elif what == "unordered":
        late.unlink()
    harness.hook("SessionEnd", reason="prompt_input_exit")
    with connect_sync(harness.daemon.socket) as client:
        block_until(lambda: harness.session in {each.session for each in client.session_list().sessions})
        block_until(lambda: client.session_get(harness.session).session.state == "paused")
        block_until(lambda: "call c1" in calls(events(harness)))
        time.sleep(delivery.START_WRITTEN_S + 0.5)
        assert calls(events(harness)) == ["call c1", "result c1"][: 1 + (what == "known")]
        assert client.session_get(harness.session).session.state == "paused"
        newest = partial(client.commit_resolve, session=harness.session)
        block_until(lambda: b"c1" in (client.commit_deltas([newest().commit.commit]).deltas[0].data or b""))
        # A prompt is work, also by a clock that went back.
        given = {"session_id": NATIVE, "cwd": "/", "hook_event_name": "UserPromptSubmit", "prompt": "again"}
        client.session_hook("claude-code", json.dumps(given), at=1)
        assert client.session_get(harness.session).session.state == "active"


def with_texts(raw: bytes) -> bytes:
    event = delivery.HookedEvent("claude-code", raw)
    return delivery.with_transcript_lines(event, delivery.EventOrder("/run/none.sock", "0-1", event))


@pytest.mark.requirement("HOK-16")
@pytest.mark.parametrize("spaces", [None, (",", ":")])
def test_the_events_own_member_decides_whether_it_is_a_sub_agents(spaces: tuple[str, str] | None) -> None:
    def event(harness: str = "claude-code", **members: Any) -> delivery.HookedEvent:
        return delivery.HookedEvent(harness, json.dumps(members, separators=spaces).encode())

    def is_main(**members: Any) -> bool:
        return event(**members).is_main

    deep = {"agent_id": "a", "list": [{"agent_id": "b"}, "agent_id", '{"agent_id": "c"}', "\\", "{"]}
    assert is_main(session_id="s", tool_input=deep)
    assert is_main(session_id="s", tool_input="agent_id", agent_id=None)
    assert is_main(tool_input=deep, agent_id="")
    assert not is_main(session_id="s", agent_id="a9")
    assert not is_main(tool_input=deep, agent_id="a9", tool_response=[deep])
    spawned = event("codex", session_id="s", tool_input=deep, agent_id="a9")
    assert spawned.is_main and spawned.session == "a9", "a session of its own"
    assert event("codex", session_id="s", tool_input=deep).session == "s"


@pytest.mark.requirement("HOK-16")
def test_a_transcript_is_read_again_only_when_it_has_grown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hundred hooks may wait at once."""
    transcript, clock, reads = tmp_path / "t.jsonl", [0.0], list[float]()
    transcript.write_text('{"type":"user"}\n')
    real = texts_before_call.CallTranscript.parts_before

    def read(transcript: texts_before_call.CallTranscript, most: int) -> tuple[list[bytes], list[str]] | None:
        reads.append(clock[0])
        return real(transcript, most)

    def wait(seconds: float) -> None:
        before, clock[0] = clock[0], clock[0] + seconds
        if before < 0.2 <= clock[0]:
            transcript.write_text('{"type":"user"}\n{"type":"system"}\n')

    monkeypatch.setattr(texts_before_call, "clock_gettime", lambda _: clock[0])
    monkeypatch.setattr(texts_before_call, "sleep", wait)
    monkeypatch.setattr(texts_before_call.CallTranscript, "parts_before", read)
    hooked = {"hook_event_name": "PostToolUse", "transcript_path": str(transcript), "tool_use_id": "c1"}
    with_texts(json.dumps(hooked).encode())
    assert len(reads) == 3 and reads[:2] == [0.0, 0.0] and 0.2 <= reads[2] < 0.3


@pytest.mark.requirement("HOK-16")
def test_the_end_of_a_short_call_waits_for_the_text_before_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tool has ended before the harness has written its call. A harness without a transcript is not held up."""
    transcript, clock = tmp_path / "t.jsonl", [0.0]
    said = '{"type":"assistant","message":{"content":[{"type":"text","text":"late"}]}}\n'

    def wait(seconds: float) -> None:
        clock[0] += seconds
        if 0.4 <= clock[0] < 0.5:
            transcript.write_text(f'{{"type":"user"}}\n{said}{{"type":"assistant","id":"c1"}}\n')

    def ended(call: str) -> bytes:
        hooked = {"hook_event_name": "PostToolUse", "transcript_path": str(transcript), "tool_use_id": call}
        return json.dumps(hooked).encode()

    monkeypatch.setattr(texts_before_call, "clock_gettime", lambda _: clock[0])
    monkeypatch.setattr(texts_before_call, "sleep", wait)
    assert (with_texts(ended("c1")), clock) == (ended("c1"), [0.0])
    transcript.write_text('{"type":"user"}\n')
    assert json.loads(with_texts(ended("c1")))["transcript_lines"] == [said.rstrip()]
    began = clock[0]
    assert with_texts(ended("c2")) == ended("c2")
    assert clock[0] - began == pytest.approx(delivery.END_WRITTEN_S, abs=0.02)


@pytest.mark.requirement("HOK-16")
@pytest.mark.parametrize("name", ["claude", "codex"])
@pytest.mark.parametrize("size", [300_000, 3_000_000])
def test_the_text_before_a_call_with_a_large_input_is_found_without_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, size: int
) -> None:
    """The id of the call is at the start of its line, or its end, and calls of the same answer follow."""
    transcript, clock = tmp_path / "t.jsonl", [0.0]
    content, other = "x" * size, "y" * size
    if name == "claude":
        lines = [
            '{"type":"user","message":{"role":"user","content":"go"}}',
            '{"type":"assistant","message":{"content":[{"type":"text","text":"I write."}]}}',
            f'{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"c1","input":"{content}"}}]}}}}',
            f'{{"type":"assistant","message":{{"content":[{{"type":"tool_use","id":"c2","input":"{other}"}}]}}}}',
            '{"type":"attachment","text":"other"}',
            '{"type":"progress","toolUseID":"c1"}',
        ]
    else:
        lines = [
            '{"payload":{"type":"message","role":"user","content":[]}}',
            '{"payload":{"type":"message","content":[{"type":"output_text","text":"I write."}]}}',
            f'{{"payload":{{"type":"function_call","arguments":"{content}","call_id":"c1"}}}}',
            f'{{"payload":{{"type":"function_call_output","call_id":"c1","output":"{other}"}}}}',
            '{"payload":{"type":"function_call_output","call_id":"c1"}}',
        ]
    transcript.write_text("".join(f"{line}\n" for line in lines))
    hooked = {"hook_event_name": "PostToolUse", "transcript_path": str(transcript), "tool_use_id": "c1"}
    monkeypatch.setattr(texts_before_call, "clock_gettime", lambda _: clock[0])
    monkeypatch.setattr(texts_before_call, "sleep", clock.append)
    assert json.loads(with_texts(json.dumps(hooked).encode()))["transcript_lines"] == [lines[1]]
    assert clock == [0.0]


@pytest.mark.requirement("HOK-16")
def test_a_large_transcript_is_searched_once_and_then_only_its_new_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, reads = tmp_path / "t.jsonl", list[int]()
    path.write_text(
        '{"type":"assistant","content":[{"type":"tool_use","id":"far"}]}\n' + f'{{"a":"{"x" * 99_980}"}}\n' * 400
    )
    real = os.pread

    def read(file: int, size: int, at: int) -> bytes:
        found = real(file, size, at)
        reads.append(len(found))
        return found

    monkeypatch.setattr(texts_before_call.os, "pread", read)
    far, near = texts_before_call.CallTranscript(str(path), "far"), texts_before_call.CallTranscript(str(path), "near")
    for transcript in (far, near):
        reads.clear()
        assert transcript.parts_before(texts_before_call.SEARCH_BYTES_MAX) is None
        assert (
            max(reads) == texts_before_call.SEARCH_BYTES_MAX and sum(reads) < 1.5 * texts_before_call.SEARCH_BYTES_MAX
        )
        reads.clear()
        assert transcript.parts_before(texts_before_call.SEARCH_BYTES_MAX) is None
        assert reads == [texts_before_call.TAIL_BYTES_MAX]
    with path.open("a") as file:
        file.write('{"type":"user"}\n{"type":"text"}\n{"type":"tool_use","id":"near"}\n' + f'"{"x" * 500_000}"\n')
    reads.clear()
    assert near.parts_before(texts_before_call.SEARCH_BYTES_MAX) == ([b'{"type":"text"}'], [])
    assert reads == [texts_before_call.TAIL_BYTES_MAX, 4 * texts_before_call.TAIL_BYTES_MAX]


@pytest.mark.requirement("HOK-16")
@pytest.mark.parametrize("what", ["none", "folder", "pipe", "long", "damaged", "empty", "escaped"])
def test_a_transcript_that_cannot_be_read_changes_nothing_else(harness: Harness, what: str) -> None:
    transcript = Transcript(harness)
    file = transcript.file
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "empty":
        file.touch()
    elif what == "long":
        transcript.add("text", "far")
        transcript.add("call", call="other")
        transcript.add("result", "x" * 400_000, "other")
        transcript.add("text", "y" * 400_000)
    elif what == "damaged":
        file.write_bytes(
            b'{"type":"text"\n\xff"type":"text"\n{"type":"assistant","message":{"content":[{"type":"text"}]}}\n'
        )
    elif what == "escaped":
        harness.home = harness.home / 'a "quoted" place\n'
        harness.home.mkdir()
        elsewhere = Transcript(harness)
        elsewhere.add("text", "found")
        elsewhere.add("call", call="toolu_1")
    harness.start("toolu_1")
    harness.tool("toolu_1")
    said = ["found"] if what == "escaped" else []
    assert conversation(events(harness)) == [*said, "call toolu_1", "result toolu_1"]
    assert harness.waiting() == []


@pytest.mark.requirement("HOK-16")
def test_a_call_with_a_non_text_id_is_recorded(harness: Harness) -> None:
    Transcript(harness).add("text", "found")
    harness.tool("\ud800")
    assert [each.partition(" ")[0] for each in conversation(events(harness))] == ["call", "result"]
    assert harness.waiting() == []


@pytest.mark.requirement("HOK-16")
def test_text_of_the_session_is_not_attributed_to_a_sub_agent(harness: Harness) -> None:
    transcript = Transcript(harness)
    transcript.add("text", "main")
    harness.start("toolu_1", agent_id="a1")
    assert conversation(events(harness)) == ["call toolu_1"]


@pytest.mark.requirement("HOK-1")
def test_a_call_is_listed_with_a_label_from_its_input(harness: Harness) -> None:
    harness.tool("toolu_1")
    harness.hook("PostToolUse", tool_name="Read", tool_input={"file_path": "/a.py"}, tool_response="", tool_use_id="t2")
    harness.hook("PostToolUse", tool_name="Bash", tool_input={"command": " \n"}, tool_response="", tool_use_id="t3")
    long = {"command": "echo one\necho two " + "x" * 500}
    harness.hook("PostToolUse", tool_name="Bash", tool_input=long, tool_response="", tool_use_id="t4")
    with connect_sync(harness.daemon.socket) as client:
        labels = {each.object: each.label for each in client.object_list(session=harness.session).objects}
    assert (labels["toolu_1"], labels["t2"], labels["t3"]) == ("ls", "/a.py", "Bash")
    assert labels["t4"].startswith("echo one echo two xxx") and len(labels["t4"]) <= 200
