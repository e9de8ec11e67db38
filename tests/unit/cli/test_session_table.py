"""The table of sessions on terminals of several widths."""

import io

import pytest

from ctxd.cli.session_table import header, print_table, unique_prefixes
from ctxd.terminal import Screen
from ctxd_client import connect_sync
from ctxd_protocol.session_types import RecordedSession
from tests.unit.cli.conftest import terminal

IDS = [f"claude-code-{digit * 8}-0000" for digit in "ab"]


class Narrow(Screen):
    """A screen on a terminal with ``columns``."""

    def __init__(self, columns):
        super().__init__()
        self.out, self.terminal, self.colour, self._columns = io.StringIO(), True, False, columns

    def _size(self):
        return self._columns, 40


def shown(columns, *, turns="0", prefixes=None):
    screen = Narrow(columns)
    rows = [(id, "12d ago", "claude-code", "paused", "a-project", turns, "0", "0", "t" * 100) for id in IDS]
    print_table(screen, header("TITLE"), rows, lambda: prefixes or {id: id[:16] for id in IDS})
    return screen.out.getvalue().splitlines()


def test_a_narrow_terminal_gets_prefixes_and_keeps_the_times_and_the_titles():
    wide = shown(140)
    assert wide[0].split() == ["SESSION", "UPDATED", "AGENT", "STATE", "PROJECT", "TITLE"], "no column of zeros"
    assert wide[1].startswith(f"{IDS[0]}  12d ago")
    assert "TURNS" in shown(140, turns="3")[0]
    narrow = shown(80)
    assert narrow[0].split() == ["SESSION", "UPDATED", "STATE", "PROJECT", "TITLE"]
    assert narrow[1].startswith("claude-code-aaaa  12d ago") and all(len(row) <= 80 for row in narrow)
    assert shown(40)[0].split() == ["SESSION", "UPDATED", "TITLE"]


def test_a_prefix_is_of_one_session_alone():
    ids = ["s1", "abcdefghijklmnopqrst-1", "abcdefghijklmnopqrst-2", "claude-code-12345678-1"]
    found = unique_prefixes(ids[:3], ids)
    assert found == {"s1": "s1", ids[1]: ids[1], ids[2]: ids[2]}
    assert unique_prefixes([ids[3]], ids) == {ids[3]: "claude-code-1234"}
    assert unique_prefixes([ids[3]], [*ids, "claude-code-1234"])[ids[3]] == "claude-code-12345"


@pytest.mark.requirement("LST-13")
def test_the_ids_on_a_narrow_terminal_name_their_sessions(real, running, session):
    long = "claude-code-4e27c414-a885-46a0-b5c8-d58e1417377d"
    with connect_sync(running.socket) as client:
        client.session_create("claude-code", session=long, labels={"harness": "claude-code"}, state="paused")
        client.session_create("claude-code", session="claude-code-4e27c415", state="paused")
        client.session_annotate(long, recorded=RecordedSession(title="a title\twith a tab, " + "long " * 9))
    rows = terminal("session", "ls", columns=80, NO_COLOR="1").splitlines()
    (row,) = (row for row in rows if "a title with a tab" in row)
    prefix = row.split()[0]
    assert len(prefix) < len(long) and len(row) <= 80
    assert real("session", "show", prefix, "--json").json["session"] == long
    assert real("fork", prefix, "--json").json["origin"]["session"] == long
    assert long in real("session", "ls").out, "whole in a pipe"


def test_a_session_that_continues_another_is_so_marked_after_its_title(real, session):
    made = real("fork", session.id, "--json").json["session"]
    (row,) = (row for row in real("session", "ls").out.splitlines() if row.startswith(made))
    assert row.endswith(f" (continues {session.id})")
