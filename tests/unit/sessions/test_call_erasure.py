"""Purge of one tool call from transcript lines."""

import json
from typing import Any

import pytest

from ctxd.sessions.call_erasure import without_calls
from ctxd.sessions.event_erasure import ErasedContent

SECRET = "AWS_ACCESS_KEY_ID=x"


@pytest.mark.requirement("SEC-10")
@pytest.mark.parametrize(
    "record",
    [
        {"type": "api-request-blob", "part": {"tool_use_id": "c1", "type": "tool_result", "content": SECRET}},
        {
            "type": "user",
            "toolUseResult": {"stdout": SECRET},
            "message": {"content": [{"tool_use_id": "c1", "content": [{"type": "text", "text": SECRET}]}]},
        },
        {"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "c1", "input": {"command": SECRET}}]}},
        {"type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": SECRET}},
        {"type": "tool", "callID": "c1", "state": {"status": "completed", "input": {"a": SECRET}, "output": SECRET}},
        {"type": "tool", "callID": "c1", "beside": [f"it printed {SECRET}"]},
    ],
)
def test_a_line_that_names_a_call_loses_its_content_and_keeps_its_form(record: dict[str, Any]) -> None:
    other = json.dumps({"tool_use_id": "c2", "content": "another"})
    content = f"{json.dumps(record)}\n{other}\n"
    left = without_calls(content, {"c1"}, ErasedContent([SECRET]))
    assert isinstance(left, str) and SECRET not in left
    first, second, end = left.split("\n")
    assert (second, end) == (other, "") and json.loads(first).keys() == record.keys()
    assert json.loads(first)["type"] == record["type"] and '"c1"' in first
    assert without_calls(content, {"c9"}, ErasedContent([SECRET])) is content


@pytest.mark.requirement("SEC-10")
def test_a_part_of_a_long_line_that_names_a_call_is_erased_whole() -> None:
    left = without_calls(f'{{"tool_use_id":"c1","content":"{SECRET}', {"c1"}, ErasedContent())
    assert left == '"[purged]"'
