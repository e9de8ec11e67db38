"""HOK: what a compaction leaves in the window of a model, where hooks record the session."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ctxd.hook.delivery import EventOrder, HookedEvent, with_transcript_lines
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import CompactionEvent
from tests.client.running import Running
from tests.spec.test_hooks import Harness, events
from tests.waiting import block_until


@pytest.fixture
def harness(tmp_path: Path) -> Iterator["Compacted"]:
    with Running(tmp_path, keep_state=True) as running:
        yield Compacted(running, tmp_path / "home")


class Compacted(Harness):
    """A harness with a transcript, whose records have ids that are easy to read."""

    def __init__(self, daemon: Running, home: Path) -> None:
        super().__init__(daemon, home)
        self.transcript = str(home / "transcript.jsonl")
        self.last: str | None = None
        (home / "transcript.jsonl").touch()

    def write(self, id: str, kind: str, **members: Any) -> None:
        record = {"type": kind, "uuid": id, "parentUuid": self.last, "sessionId": self.native, **members}
        self.last = id
        with open(self.transcript, "a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def says(self, id: str, kind: str, text: str) -> None:
        content = [{"type": "text", "text": text}] if kind == "assistant" else text
        self.write(id, kind, message={"role": kind, "content": content})

    def turn(self, name: str) -> None:
        """A prompt, a text and a call with its output, and an answer: ``p``, ``t``, ``c``, ``o``, ``a`` in the file."""
        self.hook("UserPromptSubmit", prompt=f"prompt {name}", prompt_id=f"id-{name}")
        self.says(f"p{name}", "user", f"prompt {name}")
        call = {"type": "tool_use", "id": f"call-{name}", "name": "Bash", "input": {"command": f"run {name}"}}
        self.says(f"t{name}", "assistant", f"before {name}")
        self.write(f"c{name}", "assistant", message={"role": "assistant", "content": [call]})
        self.start(f"call-{name}")
        self.tool(f"call-{name}", f"output {name}")
        result = {"type": "tool_result", "tool_use_id": f"call-{name}", "content": f"output {name}"}
        self.write(f"o{name}", "user", message={"role": "user", "content": [result]})
        self.says(f"a{name}", "assistant", f"answer {name}")
        self.hook("Stop", prompt_id=f"id-{name}", last_assistant_message=f"answer {name}")

    def compact(self, *kept: str, seconds: float = 0.2, **members: Any) -> float:
        """Compact as Claude Code does, which writes the record ``seconds`` after the hook. Returns: the seconds that it
        waited for the hook."""
        began = time.monotonic()
        self.hook("PostCompact", trigger="manual", compact_summary="The summary.")
        waited = time.monotonic() - began

        def write() -> None:
            time.sleep(seconds)
            metadata = {
                "trigger": "manual",
                **({"preservedMessages": {"uuids": list(kept)}} if kept else {}),
                **members,
            }
            self.write("boundary", "system", subtype="compact_boundary", compactMetadata=metadata)
            self.write("sum", "user", isCompactSummary=True, message={"role": "user", "content": "The summary."})

        writer = threading.Thread(target=write)
        writer.start()
        writer.join()
        block_until(lambda: any(isinstance(event, CompactionEvent) for event in events(self)))
        return waited


def context(client: SyncClient, session: str) -> str:
    made = client.context_current(session=session).context_id
    return str(client.commit_materialize(made, format="narrative-v1").content)


def places(text: str, *parts: str) -> list[int]:
    return [text.find(part) for part in parts]


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("form", ["messages", "segment"])
def test_messages_that_a_compaction_keeps_stay_in_the_context(harness: Compacted, form: str) -> None:
    harness.turn("a")
    harness.turn("b")
    if form == "messages":
        waited = harness.compact("pb", "tb", "cb", "ob", "ab")
    else:
        waited = harness.compact(preservedSegment={"headUuid": "pb", "tailUuid": "ab", "anchorUuid": "sum"})
    assert waited < 1.5, "the harness does not wait for what it writes after the hook"
    harness.turn("c")
    harness.hook("SessionEnd", reason="other")
    # The chat has each event once.
    assert [event.text for event in events(harness) if event.__struct_config__.tag == "prompt"] == [
        "prompt a", "prompt b", "prompt c",
    ]  # fmt: skip
    with connect_sync(harness.daemon.socket) as client:
        text = context(client, harness.session)
        wanted = ("The summary.", "prompt b", "before b", "output b", "answer b", "prompt c", "answer c")
        found = places(text, *wanted)
        assert min(found) >= 0 and found == sorted(found), text
        assert [text.count(part) for part in ("prompt b", "output b", "prompt c", "answer a", "prompt a")] == [
            1, 1, 1, 0, 0,
        ]  # fmt: skip
        # Nor is it there twice before the compaction.
        now = client.context_current(session=harness.session).context_id
        assert str(client.commit_materialize(now, stop="root", format="narrative-v1").content).count("prompt a") == 1


@pytest.mark.requirement("HOK-19")
def test_an_answer_right_after_the_compaction_hides_no_kept_message(
    harness: Compacted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A busy machine may run the hook again only after the answer."""
    harness.turn("a")
    harness.turn("b")
    event = HookedEvent(
        "claude-code",
        json.dumps(
            {"hook_event_name": "PostCompact", "compact_summary": "S", "transcript_path": harness.transcript}
        ).encode(),
    )
    order = EventOrder("/run/none.sock", "0-1", event)

    def detach() -> None:
        metadata = {"preservedMessages": {"uuids": ["ab"]}}
        harness.write("boundary", "system", subtype="compact_boundary", compactMetadata=metadata)
        harness.says("later", "assistant", "at once")

    monkeypatch.setattr(order, "detach", detach)
    assert b"answer b" in with_transcript_lines(event, order)


@pytest.mark.requirement("HOK-19")
def test_the_newest_of_equal_messages_stay(harness: Compacted) -> None:
    harness.turn("a")
    harness.turn("a")
    harness.turn("b")
    harness.compact("aa", "pb", "tb", "cb", "ob", "ab")
    harness.hook("SessionEnd", reason="other")
    with connect_sync(harness.daemon.socket) as client:
        text = context(client, harness.session)
    assert [text.count(part) for part in ("answer a", "prompt a", "prompt b", "answer b")] == [1, 0, 1, 1], text


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("what", ["nothing kept", "unknown ids", "written too late", "no transcript", "damaged"])
def test_a_compaction_of_which_nothing_is_known_is_recorded_as_it_was(harness: Compacted, what: str) -> None:
    harness.turn("a")
    match what:
        case "nothing kept":
            harness.compact()
        case "unknown ids":
            harness.compact("elsewhere", "no-such-id")
        case "written too late":
            harness.compact("aa", seconds=3.0)
        case "no transcript":
            Path(harness.transcript).unlink()
            harness.compact("aa")
        case "damaged":
            with open(harness.transcript, "a") as file:
                file.write('{"type":"system","subtype":"compact_boundary",\n')
            harness.compact("aa")
    harness.turn("b")
    harness.hook("SessionEnd", reason="other")
    with connect_sync(harness.daemon.socket) as client:
        text = context(client, harness.session)
    assert "The summary." in text and "answer b" in text and "answer a" not in text


@pytest.mark.requirement("HOK-19")
def test_a_pi_compaction_with_its_kept_entry_does_not_wait_for_the_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript = tmp_path / "session.jsonl"
    transcript.touch()
    hooked = {"hook_event_name": "PostCompact", "compact_summary": "Short.", "kept_from": "a1b2"}
    event = HookedEvent("claude-code", json.dumps({**hooked, "transcript_path": str(transcript)}).encode())
    order = EventOrder("/run/none.sock", "0-1", event)
    monkeypatch.setattr(order, "detach", lambda: pytest.fail("it waits"))
    assert with_transcript_lines(event, order) == event.raw


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("metadata", ["x", ["x"], 1, {"preservedMessages": "x", "preservedSegment": ["x"]}])
def test_an_odd_record_of_a_compaction_does_not_lose_its_event(tmp_path: Path, metadata: object) -> None:
    transcript = tmp_path / "session.jsonl"
    record = {"type": "system", "subtype": "compact_boundary", "compactMetadata": metadata}
    transcript.write_text(json.dumps(record, separators=(",", ":")) + "\n")
    hooked = {"hook_event_name": "PostCompact", "compact_summary": "Short.", "transcript_path": str(transcript)}
    event = HookedEvent("claude-code", json.dumps(hooked).encode())
    order = EventOrder("/run/none.sock", "0-1", event)
    order.detach = lambda: None  # type: ignore[method-assign]
    assert with_transcript_lines(event, order) == event.raw


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("place", ["before", "after"])
def test_a_call_whose_input_has_the_mark_of_a_compaction_is_not_one(
    harness: Compacted, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    harness.turn("a")
    hooked = {"hook_event_name": "PostCompact", "compact_summary": "S", "transcript_path": harness.transcript}
    event = HookedEvent("claude-code", json.dumps(hooked).encode())
    order = EventOrder("/run/none.sock", "0-1", event)

    def call() -> None:
        used = {"type": "tool_use", "id": "c", "name": "Search", "input": {"subtype": "compact_boundary"}}
        harness.write("call", "assistant", message={"role": "assistant", "content": [used]})

    def detach() -> None:
        if place == "after":
            call()
        metadata = {"preservedMessages": {"uuids": ["aa"]}}
        harness.write("boundary", "system", subtype="compact_boundary", compactMetadata=metadata)

    if place == "before":
        call()
    monkeypatch.setattr(order, "detach", detach)
    assert b"answer a" in with_transcript_lines(event, order)


class Rollout(Harness):
    """A session of codex with its rollout."""

    def __init__(self, daemon: Running, home: Path) -> None:
        super().__init__(daemon, home, "codex", "01a203ab-b617-74c3-8c72-359424c2f211")
        self.transcript = str(home / "rollout.jsonl")
        (home / "rollout.jsonl").touch()

    def write(self, kind: str, **payload: Any) -> None:
        record = {"timestamp": "2026-01-02T03:04:05.000Z", "type": kind, "payload": payload}
        with open(self.transcript, "a") as file:
            file.write(json.dumps(record, separators=(",", ":")) + "\n")

    def turn(self, name: str) -> None:
        self.hook("UserPromptSubmit", prompt=f"prompt {name}", turn_id=f"id-{name}")
        self.write("response_item", **item("user", f"prompt {name}"))
        self.write("response_item", **item("assistant", f"answer {name}"))
        self.hook("Stop", turn_id=f"id-{name}", last_assistant_message=f"answer {name}")

    def compacted(self, *prompts: str, summary: str = "The summary.", **members: Any) -> None:
        """The record of a compaction, and the others that codex writes after it."""
        history = [item("user", text) for text in (*prompts, *filter(None, [summary]))]
        self.write("compacted", message=summary, replacement_history=history, window_number=2, **members)
        self.write("turn_context", cwd="/srv")


def item(role: str, text: str) -> dict[str, Any]:
    kind = "input_text" if role == "user" else "output_text"
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def last_window(harness: Rollout) -> str:
    harness.hook("SessionEnd", reason="other")
    with connect_sync(harness.daemon.socket) as client:
        return context(client, harness.session)


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Rollout]:
    with Running(tmp_path, keep_state=True) as running:
        yield Rollout(running, tmp_path / "home")


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("summary", ["The summary.", ""])
def test_a_compaction_of_codex_has_the_window_of_its_rollout(rollout: Rollout, summary: str) -> None:
    rollout.turn("a")
    rollout.turn("b")
    rollout.compacted("prompt b", summary=summary, retained_context={"text": "answer a"})
    rollout.hook("PostCompact", turn_id="id-b", trigger="auto")
    rollout.turn("c")
    text = last_window(rollout)
    wanted = (*filter(None, [summary]), "prompt b", "prompt c", "answer c")
    found = places(text, *wanted)
    assert min(found) >= 0 and found == sorted(found), text
    assert [text.count(part) for part in ("The summary.", "prompt b", "answer b", "answer a")] == [
        bool(summary),
        1,
        0,
        0,
    ]
    with connect_sync(rollout.daemon.socket) as client:
        whole = client.commit_materialize(client.context_current(session=rollout.session).context_id, format="codex-v1")
    assert str(whole.content).count("prompt b") == 1


@pytest.mark.requirement("HOK-19")
def test_a_compaction_that_codex_writes_after_the_hook_is_not_confused_with_an_earlier_one(rollout: Rollout) -> None:
    rollout.turn("a")
    rollout.compacted("prompt a", summary="The first summary.")
    rollout.hook("PostCompact", turn_id="id-a", trigger="auto")
    rollout.turn("b")
    began = time.monotonic()
    rollout.hook("PostCompact", turn_id="id-b", trigger="manual")
    assert time.monotonic() - began < 1.5, "the harness does not wait for what it writes after the hook"
    time.sleep(0.2)
    rollout.compacted("prompt b")
    rollout.turn("c")
    block_until(lambda: sum(isinstance(event, CompactionEvent) for event in events(rollout)) == 2)
    text = last_window(rollout)
    assert [text.count(part) for part in ("The first summary.", "The summary.", "prompt a", "prompt c")] == [0, 1, 0, 1]
    # The events after the hook have waited for it.
    assert places(text, "The summary.", "prompt c")[0] < text.find("prompt c")


@pytest.mark.requirement("HOK-19")
@pytest.mark.parametrize("what", ["never written", "no rollout", "damaged", "too large"])
def test_a_compaction_of_codex_of_which_nothing_is_known_replaces_nothing(rollout: Rollout, what: str) -> None:
    rollout.turn("a")
    match what:
        case "no rollout":
            Path(rollout.transcript).unlink()
        case "damaged":
            with open(rollout.transcript, "a") as file:
                file.write('{"type":"compacted","payload":{\n')
        case "too large":
            rollout.compacted("x" * 4 * 1024 * 1024)
    rollout.hook("PostCompact", turn_id="id-a", trigger="auto")
    block_until(lambda: "post_compact" in [getattr(event, "kind", None) for event in events(rollout)])
    rollout.turn("b")
    text = last_window(rollout)
    assert places(text, "prompt a", "answer a", "prompt b") == sorted(places(text, "prompt a", "answer a", "prompt b"))
    assert "prompt a" in text and "The summary." not in text


@pytest.mark.requirement("HOK-19")
def test_arguments_of_an_mcp_tool_with_the_mark_of_a_compaction_are_not_one(
    rollout: Rollout, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout.turn("a")
    rollout.write("event_msg", type="mcp_tool_call_end", invocation={"arguments": {"type": "compacted"}})
    event = HookedEvent(
        "codex", json.dumps({"hook_event_name": "PostCompact", "transcript_path": rollout.transcript}).encode()
    )
    order = EventOrder("/run/none.sock", "0-1", event)
    monkeypatch.setattr(order, "detach", lambda: rollout.compacted("prompt a"))
    assert b"The summary." in with_transcript_lines(event, order)
