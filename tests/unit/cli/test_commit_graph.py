"""The graph of ``ctx log``."""

from ctxd.cli.commit import drawn
from ctxd_protocol.methods.commits import Commit


def commit(id, parent):
    return Commit(
        commit=id, parent=parent, commit_type="delta", artifact_ref=None, format="f", template="", principal="p",
        machine="", session=None, checkpoint="explicit", ticket_id="", thread_id="", summary="", tags=(),
        message_count=0, token_count=0, depth=0, created_at="", created_at_ms=0, version=1, tx=1,
    )  # fmt: skip


def test_lanes_of_a_graph_begin_at_tips_and_end_in_common_parents():
    commits = [commit("f", "c"), commit("e", "b"), commit("d", "a"), commit("c", "a"), commit("b", "a")]
    found = drawn((*commits, commit("a", None), commit("z", None)))
    assert [(lanes.rstrip(), None if each is None else each.commit) for lanes, each in found] == [
        ("*", "f"),
        ("| *", "e"),
        ("| | *", "d"),
        ("* | |", "c"),
        ("| * |", "b"),
        ("|/ /", None),
        ("*", "a"),
        ("*", "z"),
    ]


def test_a_child_that_is_older_than_its_parent_is_drawn_above_it():
    """As an imported commit is that continues one of today."""
    commits = (commit("c", "b"), commit("b", "a"), commit("a", None), commit("x", "a"), commit("y", "b"))
    found = [(lanes.rstrip(), each.commit) for lanes, each in drawn(commits) if each is not None]
    assert found == [("*", "c"), ("| *", "x"), ("| | *", "y"), ("* |", "b"), ("*", "a")]
