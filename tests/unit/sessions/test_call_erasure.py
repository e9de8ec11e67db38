"""Purge of one tool call from transcript lines."""

import json
from io import BytesIO
from typing import Any

import pytest

from ctxd.formats import bureau_agent_v1
from ctxd.formats.cbor_array import encoded, joined
from ctxd.objects.commit_document import STORED_NAMES
from ctxd.objects.document import Document
from ctxd.sessions.call_erasure import native_id, without_calls
from ctxd.sessions.event_erasure import ErasedContent, make_eraser
from ctxd.transcripts.source_lines import source_lines
from ctxd_protocol.ids import toolcall_alias

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


@pytest.mark.requirement("SEC-10")
def test_a_damaged_part_is_erased_if_it_names_a_call_and_stops_no_purge() -> None:
    damaged = f'{{"type":"ctxd-part","text":"\\"c1\\" {SECRET}'
    assert without_calls(f"{damaged}\n", {"c1"}, ErasedContent([SECRET])) == '"[purged]"\n'
    other = '{"type":"ctxd-part","text":'
    assert without_calls(f"{other}\n", {"c1"}, ErasedContent([SECRET])) == f"{other}\n"


def stored(line: bytes) -> list[str]:
    return [each.to_store.decode() for each in source_lines(BytesIO(line + b"\n"))]


@pytest.mark.requirement("SEC-10")
def test_lines_that_imports_wrap_and_json_inside_of_texts_lose_the_call() -> None:
    gone = ErasedContent([SECRET, "y" * 8_000_000])
    result = {"tool_use_id": "c1", "content": SECRET}
    (invalid,) = stored(json.dumps(result).encode().replace(b"=x", b"=x\xff"))
    inner = json.dumps({"type": "api-request-blob", "blob": json.dumps({**result, "content": f"a\n{SECRET}"})})
    for line in (invalid, inner):
        assert SECRET in line
        left = without_calls(line, {"c1"}, gone)
        assert isinstance(left, str) and SECRET not in left
    parts = stored(json.dumps({**result, "content": "y" * 8_000_000}).encode())
    assert len(parts) > 2
    for content in ("".join(parts), *parts):
        left = without_calls(content, {"c1"}, gone)
        assert isinstance(left, str) and "yy" not in left
    other = json.dumps({"text": 'see "c1"', "toolUseResult": "kept"})
    assert without_calls(other, {"c1"}, gone) is other


@pytest.mark.requirement("SEC-10")
def test_a_delta_that_is_not_lines_stays_whole() -> None:
    data = joined([encoded({"Role": "user", "Content": [{"Text": 'The call "c1" failed.\nGo on.'}]})])
    gone = ErasedContent([SECRET])
    restate = make_eraser(gone, lambda content: without_calls(content, {"c1"}, gone))
    for format in (bureau_agent_v1.NAME, "unknown"):
        document = Document(
            id="commit:c", type="commit", identity_hash="", content_hash="",
            payload={STORED_NAMES["format"]: format}, content=data,
        )  # fmt: skip
        assert restate(document) is None


@pytest.mark.requirement("SEC-10")
def test_the_native_id_of_an_alias_is_the_harness_s() -> None:
    assert native_id(toolcall_alias("cc:1", "c1")) == "c1"
    assert native_id(toolcall_alias("s", "a:b") + "~") == "a:b"
    assert native_id("c1") == "c1"
