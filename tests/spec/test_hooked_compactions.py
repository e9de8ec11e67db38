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
