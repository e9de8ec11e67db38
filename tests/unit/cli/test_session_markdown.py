"""A session's transcript as Markdown: its headings, each once, and fences that its content cannot end."""

from typing import Any

from ctxd.cli.session_markdown import markdown

FILE = {"record": "file", "path": "/w/a.py", "state": "active", "level": "full", "pinned": False, "char_count": 1}
CALL = {"record": "toolcall", "object": "c1", "tool": "bash", "state": "active", "content": "out"}
SAID = {"record": "message", "turn": 1, "role": "user", "content": "go"}


def lines(*records: dict[str, Any]) -> list[str]:
    return "".join(markdown(records)).splitlines()


def test_objects_outside_all_turns_are_listed_under_one_heading() -> None:
    told = lines(SAID, {**CALL, "turn": 1}, FILE, CALL, {**FILE, "path": "/w/b.py"})
    assert told.count("## What else the session knows") == 1
    heading = told.index("## What else the session knows")
    assert "### tool call `bash`, active" in told[:heading], "the call of the turn"
    assert told.index("- `/w/a.py`: active, full, 1 character") > heading
    assert "## What else the session knows" not in lines(SAID, {**CALL, "turn": 1})


def test_each_turn_has_one_heading() -> None:
    told = lines(SAID, {**SAID, "role": "assistant"}, {**SAID, "turn": 2})
    assert [line for line in told if line.startswith("## ")] == ["## Turn 1", "## Turn 2"]


def test_a_fence_is_longer_than_any_within_it_and_ends_on_a_line_of_its_own() -> None:
    for content, fence in (("plain", "```"), ("a ``` b", "````"), ("`````\n", "``````")):
        told = lines({**SAID, "content": content})
        assert told[-3:] == [f"{fence}text", content.rstrip("\n"), fence]


def test_a_call_without_content_shows_its_state_and_its_arguments() -> None:
    told = lines({**CALL, "content": None, "state": "purged", "args": {"command": "ls"}})
    assert told[-1] == "(purged)"
    assert told[told.index("```json") : told.index("(purged)")] == ["```json", "{", ' "command": "ls"', "}", "```", ""]
    assert lines({**FILE, "pinned": True})[-1] == "- `/w/a.py`: active, full, pinned, 1 character"


def test_a_name_with_ticks_is_quoted_with_more_of_them() -> None:
    assert lines({**FILE, "path": "/w/`a`"})[-1].startswith("- `` /w/`a` ``: ")


def test_a_message_that_only_names_a_result_shows_which_and_another_its_attachments() -> None:
    assert lines({"record": "message", "turn": 1, "role": "toolcall", "toolcall": "c1"})[-1] == "### result of `c1`"
    told = lines({**SAID, "attachments": [{"name": "a.png"}]})
    assert "### user" in told
    assert ' "name": "a.png"' in [line[1:] for line in told]
