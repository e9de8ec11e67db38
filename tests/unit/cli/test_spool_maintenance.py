"""Waiting events that quote an object, as a purge of it finds them."""

import json

import pytest

from ctxd.cli.spool_maintenance import _quotes, _quoting

pytestmark = pytest.mark.requirement("HOK-6")


def event(**members: object) -> bytes:
    """A waiting event of the session ``s`` with ``members``."""
    record = {"session_id": "s", "hook_event_name": "UserPromptSubmit", **members}
    return json.dumps({"params": {"harness": "claude-code", "input": json.dumps(record)}}).encode()


@pytest.mark.parametrize(
    "text",
    [
        "a.py",
        "Read a.py.",
        "src/a.py",
        "cat ./a.py|head",
        "--file=a.py",
        "(a.py)",
        '"a.py"',
        "-a.py",
        '{"x": "\\na.py"}',
    ],
)
def test_a_name_is_found_as_a_whole(text: str) -> None:
    assert _quotes(event(prompt=text), ["a.py"], _quoting(["3f9a", "a.py"]))
    assert _quotes(event(tool_input={"edits": [{text: 1}]}), ["a.py"], _quoting(["a.py"]))


@pytest.mark.parametrize(
    "text",
    ["Please rename schema.py to tables.py", "a.pyc", "a.py.orig", "my-a.py", "x.a.py", "a_py", "a.py-old", "éa.py"],
)
def test_a_part_of_another_name_is_not_the_name(text: str) -> None:
    assert not _quotes(event(prompt=text), ["a.py"], _quoting(["a.py"]))


def test_a_name_is_found_below_any_number_of_levels() -> None:
    value: object = {"\\na.py": 1}
    for _ in range(600):
        value = [value]
    frame = event(prompt="DEEP").replace(rb"\"DEEP\"", b"[" * 3000 + rb"\"a.py\"" + b"]" * 3000)
    for each in (event(tool_input=value), frame):
        assert _quotes(each, ["a.py"], _quoting(["a.py"])) and not _quotes(each, ["b.py"], _quoting(["b.py"]))


def test_ids_and_absolute_paths_are_found_as_a_whole() -> None:
    names = ["toolu_1", "/w/a.py", "chat:other"]
    for text, quotes in (("toolu_1", True), ("toolu_12", False), ("/w/a.py", True), ("/home/w/a.py", False)):
        assert _quotes(event(prompt=text), names, _quoting(names)) is quotes


def test_a_chat_is_that_of_the_event_and_what_cannot_be_decoded_might_quote_anything() -> None:
    names = ["chat:claude-code-s"]
    assert _quotes(event(prompt="x"), names, _quoting(names))
    assert not _quotes(event(prompt="chat:claude-code-s"), ["chat:claude-code-t"], _quoting(["chat:claude-code-t"]))
    assert _quotes(b"{", ["a.py"], _quoting(["a.py"]))
