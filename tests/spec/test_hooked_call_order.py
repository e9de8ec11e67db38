"""The order of calls that a harness runs at once, whose hooks run in processes of their own."""

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctxd.hook.texts_before_call import SEARCH_BYTES_MAX, CallTranscript
from ctxd.sessions.hook_operations import HELD_S
from tests.client.running import Running
from tests.spec.test_hooked_calls import Transcript, conversation
from tests.spec.test_hooks import Harness, events
from tests.waiting import block_until


def start_in_reverse(harness: Harness, calls: list[str], *, pause_s: float) -> None:
    """Run the hooks of the starts of ``calls`` at once, the last one first."""
    with ThreadPoolExecutor() as pool:
        for call in reversed(calls):
            pool.submit(harness.start, call)
            time.sleep(pause_s)


@pytest.mark.requirement("HOK-1")
@pytest.mark.parametrize("name", ["claude", "codex"])
def test_calls_that_a_harness_runs_at_once_are_recorded_in_the_order_of_its_transcript(
    running: Running, tmp_path: Path, name: str
) -> None:
    harness = Harness(running, tmp_path / "home", name)
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.hook("UserPromptSubmit", prompt="go", prompt_id="p1")
    transcript.add("text", "all at once")
    names = [f"c{number}" for number in range(4)]
    for call in names:
        transcript.add("call", call=call)
    start_in_reverse(harness, names, pause_s=0.1)
    for call in reversed(names):
        harness.tool(call)
    wanted = ["all at once", *(f"call {call}" for call in names), *(f"result {call}" for call in reversed(names))]
    assert conversation(events(harness)) == wanted


@pytest.mark.requirement("HOK-1")
def test_a_call_waits_once_for_an_earlier_one_that_no_hook_reports(harness: Harness) -> None:
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.hook("UserPromptSubmit", prompt="go", prompt_id="p1")
    for call in ("c1", "c2", "c3"):
        transcript.add("call", call=call)
    took = []
    for call in ("c2", "c3"):
        began = time.monotonic()
        harness.start(call)
        took.append(time.monotonic() - began)
    assert took[0] > HELD_S and took[1] < took[0] - HELD_S / 2, took
    assert conversation(events(harness)) == ["call c2", "call c3"]


@pytest.mark.requirement("HOK-1")
def test_a_call_does_not_wait_for_a_change_of_codex_plan_for_which_no_hook_runs(tmp_path: Path) -> None:
    transcript = tmp_path / "t.jsonl"
    names = {"c1": "exec_command", "c2": "update_plan", "c3": "exec_command", "c4": "exec_command"}
    lines = [
        f'{{"type":"response_item","payload":{{"type":"function_call","name":"{name}","arguments":"{{}}","call_id":"{id}"}}}}'
        for id, name in names.items()
    ]
    transcript.write_text("".join(f"{line}\n" for line in lines))
    assert CallTranscript(str(transcript), "c4").parts_before(SEARCH_BYTES_MAX) == ([], ["c1", "c3"])


@pytest.mark.requirement("HOK-1")
@pytest.mark.parametrize("seconds", [0.15, 0.6])
def test_calls_whose_transcript_is_written_after_their_hooks_have_started_are_recorded_in_its_order(
    harness: Harness, seconds: float
) -> None:
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.hook("UserPromptSubmit", prompt="go", prompt_id="p1")
    names = [f"c{number}" for number in range(4)]
    with ThreadPoolExecutor() as pool:
        pool.submit(start_in_reverse, harness, names, pause_s=0.02)
        time.sleep(0.1 + seconds)
        for call in names:
            transcript.add("call", call=call)
    harness.hook("Stop", prompt_id="p1", last_assistant_message="done")
    wanted = [*(f"call {call}" for call in names), "done"]
    block_until(lambda: len(conversation(events(harness))) == len(wanted))
    assert conversation(events(harness)) == wanted


@pytest.mark.requirement("HOK-1")
def test_the_other_calls_keep_their_order_if_no_hook_reports_the_first(harness: Harness) -> None:
    transcript = Transcript(harness)
    transcript.add("user", "go")
    harness.hook("UserPromptSubmit", prompt="go", prompt_id="p1")
    names = [f"c{number}" for number in range(6)]
    for call in names:
        transcript.add("call", call=call)
    start_in_reverse(harness, names[1:], pause_s=0.05)
    assert conversation(events(harness)) == [f"call {call}" for call in names[1:]]


@pytest.mark.requirement("HOK-1", "HOK-16")
@pytest.mark.parametrize(
    "input",
    [
        {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
        {"content": [{"type": "text", "text": "of the input"}]},
        {"name": "update_plan", "type": "system"},
    ],
)
def test_the_input_of_an_earlier_call_is_not_read_as_lines_of_the_transcript(
    tmp_path: Path, input: dict[str, object]
) -> None:
    transcript = tmp_path / "t.jsonl"
    said = {"type": "assistant", "message": {"role": "assistant", "content": [{"type": "text", "text": "I look."}]}}
    lines = [json.dumps(said, separators=(",", ":"))]
    for id in ("c1", "c2"):
        call = {"type": "tool_use", "id": id, "name": "mcp__a__b", "input": input}
        record = {"type": "assistant", "message": {"role": "assistant", "content": [call]}, "uuid": id}
        lines.append(json.dumps(record, separators=(",", ":")))
    transcript.write_text("".join(f"{line}\n" for line in lines))
    found = CallTranscript(str(transcript), "c2").parts_before(SEARCH_BYTES_MAX)
    assert found == ([lines[0].encode()], ["c1"])
