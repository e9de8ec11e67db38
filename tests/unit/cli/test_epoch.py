"""``ctx epoch show``: texts with their sources at a turn, a time and a context, from a real and a scripted daemon."""

import pytest

from ctxd_client import connect_sync
from ctxd_protocol.event_types import ResponseEvent
from ctxd_protocol.methods.epochs import EpochShowResult, EpochSource, EpochText
from tests.fakes.daemon import smallest
from tests.unit.cli.conftest import process


@pytest.fixture
def real(ctx, running, monkeypatch):
    monkeypatch.setenv("CTXD_SOCKET", running.socket)
    return ctx


@pytest.fixture
def session(running, monkeypatch):
    """A session of three turns with a request each; an entry is set, changed and deleted between them."""
    with connect_sync(running.socket) as client:
        s = client.session(agent="demo", system_prompt="Be brief.")
        steps = (
            (s.set_entry, ("mode", "Plan only.\nNo writes.")),
            (s.set_entry, ("mode", "Write.")),
            (s.delete_entry, ("mode",)),
        )
        for number, (step, given) in enumerate(steps, 1):
            step(*given)
            s.user(f"question {number}")
            s.assemble(format="anthropic-messages", model="claude-sonnet-4-5")
            s.append(events=[ResponseEvent(text="answer")])
        monkeypatch.setenv("CTXD_SESSION", s.id)
        yield s


PARTS = ["baseline", "changed", "removed"]


@pytest.mark.requirement("REV-5")
def test_an_epoch_is_shown_with_every_text_and_the_version_that_it_came_from(real, session):
    ran = real("epoch", "show")
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{session.id}  epoch ") and "turn 3  assembly 3" in lines[0]
    assert lines[2].startswith("baseline api/mode  turn 1  assembly 1  20")
    (source,) = session.epoch().texts[0].sources
    assert lines[3] == f"  from mode  {source.object} seq {source.tx}  {source.content_hash[:12]}"
    assert lines[4:7] == ["  mode: Plan only.", "  No writes.", ""]
    assert [line.split()[0] for line in lines if " api/mode  turn " in line] == PARTS
    shown = real("epoch", "show", "--json").json
    assert [text["part"] for text in shown["texts"]] == PARTS and "next_after" not in shown


@pytest.mark.requirement("REV-5")
def test_an_epoch_is_shown_as_of_a_revision(real, session):
    records = session.assemblies().assemblies
    for revision, parts in (
        (f"{session.id}@1", 1),
        ("@2", 2),
        ("@~1", 2),
        ("@", 3),
        (f"@{{{records[1].assembled_at}}}", 2),
        (f"@{{{records[2].assembled_at + 60_000}}}~2", 1),
        (records[0].context_id, 1),
    ):
        ran = real("epoch", "show", revision, "--json")
        assert ran.code == 0, (revision, ran.err)
        assert [text["part"] for text in ran.json["texts"]] == PARTS[:parts], revision
    for missing in ("@9", "@0", "@{1h}", "ctx-00000000"):
        assert real("epoch", "show", missing).code == 3, missing


def test_a_long_epoch_is_read_by_pages_at_one_assembly_and_nothing_of_it_moves_a_terminal(scripted, daemon):
    source = smallest(EpochSource, path="/w/\x1b[2J.md", object="0" * 64)
    texts = [smallest(EpochText, key=f"k{n}", text=f"one\x1b[2J\r{n}\n") | {"sources": [source]} for n in range(3)]

    def page(seen):
        first = seen.params["after"]
        base = smallest(EpochShowResult, session="s1") | {"number": 7, "tools": ["bash", "\x1bx"]}
        return base | {"texts": texts[first : first + 2], "next_after": 2 if first == 0 else None}

    daemon.script["epoch.show"] = page
    ran = scripted("epoch", "show", "s1")
    assert (ran.code, ran.err) == (0, "")
    assert "\x1b" not in ran.out and "\r" not in ran.out
    assert [line for line in ran.out.splitlines() if "one" in line] == [f"  one\\x1b[2J\\x0d{n}" for n in range(3)]
    assert daemon.of("epoch.show")[1].params["number"] == 7
    assert len(scripted("epoch", "show", "s1", "--json").json["texts"]) == 3


def test_the_sessions_of_epoch_show_are_completed(running, session):
    line = f"ctx epoch show {session.id[:6]}"
    done = process(CTXD_SOCKET=running.socket, _CTX_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD="3")
    assert f"plain,{session.id}" in done.stdout.split()
