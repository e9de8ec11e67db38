"""Commits in lists on a terminal."""

import json

import pytest

from ctxd_client import connect_sync
from tests.unit.cli.conftest import terminal

LINES = "claude-code-v1"


@pytest.mark.requirement("CMT-17")
def test_a_terminal_gets_one_row_for_each_commit_with_the_text_in_one_column(real, running):
    def line(text):
        return json.dumps({"type": "user", "message": {"role": "user", "content": text}}) + "\n"

    parent = None
    with connect_sync(running.socket) as client:
        id = client.session_create("demo").session.session
        for text in ("first", "second " * 20, "third"):
            made = client.commit_checkpoint(LINES, line(text), session=id, parent=parent, checkpoint="turn_boundary")
            parent = made.commit.commit
    for words in (("log",), ("log", "--graph"), ("branch",)):
        narrow = terminal(*words, "-s", id, columns=80, NO_COLOR="1").splitlines()
        assert narrow and all(len(row) <= 80 for row in narrow), narrow
        in_colours = terminal(*words, "-s", id, columns=80)
        assert "\x1b[33m" in in_colours and in_colours.count("…") == "\n".join(narrow).count("…")
    third, second, first = terminal("log", "-s", id, columns=80, NO_COLOR="1").splitlines()
    assert second.endswith("…") and "[turn_boundary" not in second, "the text has all of the row"
    assert third.index("third") == second.index("second") == first.index("(root)  first")
    assert real("log", "-s", id).out.splitlines()[1].endswith("second… [turn_boundary, 1 message]")
