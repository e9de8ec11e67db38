"""What reaches a terminal and what reaches a pipe."""

import io

import pytest

from ctxd import formatting
from ctxd.terminal import _UNSAFE, Screen, cell, cut, visible, wants_colour, width
from tests.programs import run
from tests.unit.cli.conftest import process, terminal

HOSTILE = "a\x1b]0;owned\x07b\x9b31mc\u202egnp.exe\ud800\r\x7f\u200b\ttab\n"


def test_no_terminal_control_character_is_left():
    shown = visible(HOSTILE)
    assert shown == "a\\x1b]0;owned\\x07b\\x9b31mc\\u202egnp.exe\\ud800\\x0d\\x7f\\u200b\ttab\n"
    assert cell("two\nlines\t.") == "two\\nlines\\t."
    assert visible("plain, ümläut, 漢字, 👍 stays") == "plain, ümläut, 漢字, 👍 stays"


@pytest.mark.parametrize(
    ("environ", "terminal", "colour"),
    [
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "xterm"}, False, False),
        ({"TERM": "dumb"}, True, False),
        ({}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": ""}, True, True),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "0"}, False, False),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_colour_depends_on_the_terminal_unless_the_environment_overrides_it(environ, terminal, colour):
    assert wants_colour(environ, terminal=terminal) is colour


def made(*, is_terminal):
    made = Screen()
    made.out, made.terminal = io.StringIO(), is_terminal
    return made


def test_content_is_unchanged_in_a_pipe_and_escaped_on_a_terminal():
    pipe, person = made(is_terminal=False), made(is_terminal=True)
    pipe.content("\x1b[2Jx")
    person.content("\x1b[2Jx")
    assert pipe.out.getvalue() == "\x1b[2Jx"
    assert person.out.getvalue() == "\\x1b[2Jx\n"


def test_json_is_one_line_in_a_pipe_and_has_nothing_but_ascii_on_a_terminal():
    pipe, person = made(is_terminal=False), made(is_terminal=True)
    pipe.document({"text": "ü\u202e\x1b\x7f"})
    person.document({"text": "ü\u202e\x1b\x7f"})
    assert pipe.out.getvalue() == '{"text": "ü\u202e\\u001b\x7f"}\n'
    assert person.out.getvalue() == '{\n  "text": "\\u00fc\\u202e\\u001b\\u007f"\n}\n'


def test_a_table_sets_its_columns_to_their_widest_cell():
    shown = made(is_terminal=False)
    shown.table(("NAME", "N", "TEXT"), [("a", "1", "x\ny"), ("long-name", "1,000", "")], right=(1,))
    assert shown.out.getvalue().splitlines() == [
        "NAME           N  TEXT",
        "a              1  x\\ny",
        "long-name  1,000",
    ]


def test_wide_characters_fill_two_columns_and_combining_marks_none(monkeypatch):
    shown = made(is_terminal=True)
    shown.colour = False
    monkeypatch.setattr(Screen, "_size", lambda _: (18, 24))
    shown.table(("NAME", "TEXT"), [("漢字かな", "one"), ("e\u0301", "修正してください"), ("👍🏽", "three")])
    lines = shown.out.getvalue().splitlines()
    assert lines == ["NAME      TEXT", "漢字かな  one", "e\u0301         修正し …", "👍🏽        three"]
    assert max(map(width, lines)) <= 18


@pytest.mark.parametrize(
    ("text", "columns", "shown"),
    [
        ("plain", 5, "plain"),
        ("plain", 4, "pla…"),
        ("漢字", 4, "漢字"),
        ("漢字", 3, "漢…"),
        ("a漢字", 3, "a …"),
        ("漢字", 1, "…"),
    ],
)
def test_a_text_is_cut_to_the_columns_it_may_fill(text, columns, shown):
    assert cut(text, columns) == shown
    assert width(cut(text, columns)) <= columns


def test_a_line_of_coloured_parts_ends_at_the_edge_of_the_terminal(monkeypatch):
    screen = made(is_terminal=True)
    screen.colour = True
    monkeypatch.setattr(Screen, "_size", lambda _: (8, 24))
    assert screen.spans(("ab", "yellow"), (" 漢字", None), ("gone", "dim")) == "\x1b[33mab\x1b[0m 漢字\x1b[2m…\x1b[0m"
    assert screen.spans(("ab", None), ("cdefghij", "dim"), ("k", "dim")) == "ab\x1b[2mcdefg…\x1b[0m"
    assert screen.spans(("ab", None), ("cdefgh", "dim")) == "ab\x1b[2mcdefgh\x1b[0m"


def test_a_terminal_gets_colour_and_safe_content_and_a_pipe_gets_neither(daemon):
    daemon.script["session.list"] = lambda seen: {
        "sessions": [
            {
                "session": "s1", "agent": "demo", "state": "active", "created_at": 1, "updated_at": 1, "turn_count": 1,
                "index_count": 0, "active_count": 0, "preview": "\x1b[31mred", "labels": {},
            }
        ],
        "next_cursor": None,
    }  # fmt: skip
    words = ("session", "ls", "--socket", daemon.path)
    shown = terminal(*words)
    assert shown.startswith("\x1b[1mSESSION")
    assert "\\x1b[31mred" in shown
    assert "\x1b[31m" not in shown
    assert "\x1b" not in terminal(*words, NO_COLOR="1")
    assert "\x1b" not in terminal(*words, TERM="dumb")
    assert "\x1b" not in process(*words).stdout
    assert process(*words, FORCE_COLOR="1").stdout.startswith("\x1b[1m")


def test_the_unsafe_set_has_every_control_character_but_tab_and_line_feed():
    controls = [*range(0x20), *range(0x7F, 0xA0)]
    assert {chr(point) for point in controls if not _UNSAFE.match(chr(point))} == {"\t", "\n"}


def test_a_time_beyond_the_year_9999_is_shown_as_its_number():
    assert formatting.moment(253_402_300_799_000) == "9999-12-31 23:59:59.000Z"
    assert formatting.moment(253_402_300_800_000) == "253402300800000 ms after 1970"


@pytest.mark.requirement("CLI-2")
def test_characters_that_the_locale_cannot_encode_are_escaped(tmp_path):
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONIOENCODING": "ascii"}
    done = run("ctx", ("doctor", "--socket", str(tmp_path / "none")), env=env)
    assert "\\u2717 socket file" in done.stdout and "Traceback" not in done.stderr
