"""Outputs of tools as hooks and transcripts have them."""

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from ctxd.transcripts import claude_code, codex, opencode, pi
from ctxd.transcripts.hooked_outputs import output_of
from ctxd.transcripts.record_decoding import Line
from ctxd_protocol.event_types import Attachment, ToolResultEvent

BYTES = b"\x89PNG\r\n\x1a\n of a picture"
DATA = b64encode(BYTES).decode()
URL = f"data:image/png;base64,{DATA}"
IMAGE = Attachment(media_type="image/png", data=BYTES)

CLAUDE: dict[str, Any] = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}}
PI: dict[str, Any] = {"type": "image", "data": DATA, "mimeType": "image/png"}
FILE: dict[str, Any] = {"type": "file", "mime": "image/png", "url": URL, "filename": "a.png"}
SAID = {"type": "text", "text": "seen"}
RESOURCE: dict[str, Any] = {
    "type": "resource", "resource": {"uri": "file:///a.png", "mimeType": "image/png", "blob": DATA}
}  # fmt: skip
NAMED = {**FILE, "filename": "file:///a.png"}
CELLS: list[dict[str, Any]] = [
    {"cellType": "markdown", "source": "# Sums", "cell_id": "a"},
    {
        "cellType": "code", "source": "plot()", "execution_count": 1, "cell_id": "b", "language": "python",
        "outputs": [
            {"output_type": "stream", "text": "1\n"},
            {"output_type": "display_data", "text": "", "image": {"image_data": DATA, "media_type": "image/png"}},
        ],
    },
    {"cellType": "code", "source": "y <- 2", "cell_id": "c", "language": "R"},
]  # fmt: skip
SHOWN = '<cell id="a"><cell_type>markdown</cell_type># Sums</cell id="a">\n<cell id="b">plot()</cell id="b">\n\n1\n'
"""The cells up to the image, as the model of Claude Code sees them."""


def in_transcript(harness: str, output: Any) -> ToolResultEvent:
    """The result that a transcript of ``harness`` has."""
    records: dict[str, dict[str, Any]] = {
        "claude": {
            "type": "user", "uuid": "u", "sessionId": "s",
            "message": {"content": [{"type": "tool_result", "tool_use_id": "c1", "content": output}]},
        },
        "codex": {
            "type": "response_item", "payload": {"type": "function_call_output", "call_id": "c1", "output": output},
        },
        "pi": {
            "type": "message", "id": "e",
            "message": {"role": "toolResult", "toolCallId": "c1", "toolName": "read", "content": output},
        },
        "opencode": {
            "info": {"role": "assistant"},
            "parts": [{"type": "tool", "callID": "c1", "tool": "read", "state": {"status": "completed", **output}}]
            if isinstance(output, dict) else [],
        },
    }  # fmt: skip
    read = {
        "claude": claude_code.read_session, "codex": codex.read_rollout, "pi": pi.read_session,
        "opencode": opencode.read_session,
    }[harness]  # fmt: skip
    (found,) = (each.event for each in read([Line(1, records[harness])]) if isinstance(each.event, ToolResultEvent))
    return found


@pytest.mark.requirement("HOK-23")
@pytest.mark.parametrize(
    ("harness", "hooked", "written"),
    [
        ("claude", {"type": "image", "file": {"base64": DATA, "type": "image/png"}}, [CLAUDE]),
        ("claude", {"stdout": URL, "stderr": "", "isImage": True}, [CLAUDE]),
        ("claude", [SAID, CLAUDE], [SAID, CLAUDE]),
        (
            "claude",
            {"type": "notebook", "file": {"filePath": "/a.ipynb", "cells": CELLS}},
            [
                {"type": "text", "text": SHOWN},
                CLAUDE,
                {"type": "text", "text": '<cell id="c"><language>R</language>y <- 2</cell id="c">'},
            ],
        ),
        ("codex", [{"type": "input_image", "image_url": URL}], [{"type": "input_image", "image_url": URL}]),
        (
            "codex",
            [{"type": "input_image", "image_url": URL.replace("image/png", "application/octet-stream")}],
            [{"type": "input_image", "image_url": URL}],
        ),
        (
            "codex",
            {"content": [SAID, RESOURCE]},
            [
                {"type": "input_text", "text": "seen"},
                {"type": "input_text", "text": msgspec.json.encode(RESOURCE).decode()},
            ],
        ),
        ("opencode", {"content": [SAID, RESOURCE]}, {"output": "seen", "attachments": [NAMED]}),
        ("pi", {"content": [SAID, PI], "details": {}}, [SAID, PI]),
        ("opencode", {"output": "seen", "attachments": [FILE]}, {"output": "seen", "attachments": [FILE]}),
    ],
)
def test_an_output_with_an_image_is_the_same_in_a_hook_and_in_a_transcript(
    harness: str, hooked: Any, written: Any
) -> None:
    found, result = output_of(hooked), in_transcript(harness, written)
    assert (found.text, found.attachments) == (result.text, result.attachments)
    assert [each.data for each in found.attachments] == [BYTES]


@pytest.mark.requirement("HOK-23")
def test_an_image_that_was_cut_is_named_in_the_text() -> None:
    cut = f"{DATA}\n[9,000 characters were cut by ctx-hook: the event is too large]"
    assert output_of({"content": [SAID, {**PI, "data": cut}, PI]}) == (
        "seen\n[image/png, not recorded: the data is incomplete]", (IMAGE,)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("response", "text"),
    [
        (None, ""),
        ("out", "out"),
        ({"stdout": "out", "stderr": "err"}, "out\nerr"),
        ({"file": {"content": "in it"}}, "in it"),
        ([SAID, SAID], "seen\nseen"),
        ([], "[]"),
        ([SAID, {"type": "link"}], '[{"type":"text","text":"seen"},{"type":"link"}]'),
        ({"files": 2}, '{"files":2}'),
        ([SAID, {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "in it"}}], "seen\nin it"),
    ],
)
def test_an_output_without_an_image_is_text_and_of_an_unknown_form_json(response: object, text: str) -> None:
    assert output_of(response) == (text, ())


@pytest.mark.requirement("HOK-23")
def test_a_resource_that_codex_has_cut_stays_text() -> None:
    cut = msgspec.json.encode(RESOURCE).decode()[:90]
    for text in (cut, cut + '…"}}'):
        result = in_transcript("codex", [{"type": "input_text", "text": text}])
        assert (result.text, result.attachments) == (text, ())


def test_unknown_blocks_beside_an_image_are_json() -> None:
    assert output_of([PI, {"type": "link"}, "left out"]) == ('{"type":"link"}\nleft out', (IMAGE,))


def test_a_document_has_its_own_media_type() -> None:
    file = {"type": "pdf", "file": {"base64": b64encode(b"%PDF-1.7").decode()}}
    assert output_of(file) == ("", (Attachment(media_type="application/pdf", data=b"%PDF-1.7"),))
