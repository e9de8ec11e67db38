"""What transcripts hold that no short one shows: the reader drops no record and hands on nothing a session refuses."""

import json
from pathlib import Path

from tests.e2e.transcripts import Ran, Said, steps


def lines(path: Path, *records: object) -> Path:
    path.write_text("".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records), "utf-8", "replace")
    return path


def said(text: str) -> dict[str, object]:
    return {"message": {"role": "user", "content": text}}


def test_a_line_separator_within_a_text_splits_no_record(tmp_path: Path) -> None:
    text = "a\u2028b\x85c\x1cd"
    assert steps(lines(tmp_path / "a.jsonl", said(text))) == [Said("user", text)]


def test_half_a_character_that_a_harness_cut_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"message": {"role": "user", "content": "cut \\ud83d, whole \\ud83d\\ude00"}}\n')
    assert steps(path) == [Said("user", "cut \ufffd, whole \U0001f600")]


def test_a_number_no_double_holds_becomes_text(tmp_path: Path) -> None:
    call = {"type": "tool_use", "id": "1", "name": "logs", "input": {"since": [1732224240123456789, 5, True]}}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "ok"}
    records = [{"message": {"role": role, "content": [block]}} for role, block in (("a", call), ("user", result))]
    (ran,) = steps(lines(tmp_path / "a.jsonl", *records))
    assert isinstance(ran, Ran)
    assert ran.args == {"since": ["1732224240123456789", 5, True]}


def test_words_of_a_command_and_its_directory_are_told_as_they_ran(tmp_path: Path) -> None:
    def shell(id: str, **action: object) -> list[dict[str, object]]:
        call = {"type": "local_shell_call", "call_id": id, "action": {"type": "exec", **action}}
        return [{"payload": call}, {"payload": {"type": "local_shell_call_output", "call_id": id, "output": "x"}}]

    records = [
        {"payload": {"cwd": "/w"}},
        *shell("1", command=["cat", "my file"], working_directory="/w/sub"),
        *shell("2", command=["bash", "-lc", "cd a && ls"], workdir="b"),
        *shell("3", command=["ls"], workdir=None),
    ]
    ran = [step for step in steps(lines(tmp_path / "a.jsonl", *records)) if isinstance(step, Ran)]
    assert [(step.command, step.cwd) for step in ran] == [
        ("cat 'my file'", "/w/sub"),
        ("bash -lc 'cd a && ls'", "/w/b"),
        ("ls", "/w"),
    ]


def test_blocks_that_lack_what_they_should_have_are_left_out(tmp_path: Path) -> None:
    records = [
        {"message": {"role": "assistant", "content": [{"type": "tool_use", "name": "x"}, {"type": "text", "text": 7}]}},
        {"message": {"role": "user", "content": [{"type": "tool_result", "tool_use_id": ["?"]}, "bare"]}},
        {"payload": {"type": None}},
        {"item": {"type": "command_execution"}, "type": "item.completed"},
        {"part": {"type": "tool", "tool": "bash", "state": {"input": None, "output": None}}},
        said("still here"),
    ]
    assert Said("user", "still here") in steps(lines(tmp_path / "a.jsonl", *records))
