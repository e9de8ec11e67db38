"""SES: forks through the client: at a commit, a turn or now, with the requests and the context epoch of the parent."""

import json
from pathlib import Path

import pytest

from ctxd_client import SyncClient, SyncSession, connect_sync
from ctxd_protocol.context_types import Layout
from ctxd_protocol.event_types import PromptEvent, ResponseEvent
from tests.client.running import Running
from tests.spec.refusal import refused
from tests.spec.sessions import call, said, sets
from tests.spec.test_commands import ctx
from tests.spec.test_context_epochs import body, request, told


def lived(s: SyncSession, tree: Path) -> None:
    """A session of two requests with an entry, a file and a tool call."""
    (tree / "a.py").write_text("one\n")
    s.set_system_prompt("Be brief.")
    s.set_entry("mode", "Plan only.")
    s.user("Begin.")
    s.read("a.py")
    request(s)
    s.append(events=[ResponseEvent(text="Ready.")])
    call(s, "before")
    s.set_entry("mode", "Write.")
    s.user("Go on.")
    request(s)
    s.append(events=[ResponseEvent(text="Done.")])


@pytest.mark.requirement("SES-28")
def test_a_fork_at_a_commit_has_the_sets_and_the_chat_of_that_moment(
    s: SyncSession, client: SyncClient, tree: Path
) -> None:
    lived(s, tree)
    made = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=s.id).commit
    before = sets(s), said(s)
    s.user("Not in the fork.")
    call(s, "after")
    client.commit_annotate(made.commit, "a later version of the commit")
    done = s.fork(commit=made.commit)
    assert (done.base, done.tx, done.turn) == (s.id, made.tx, 2)
    fork = client.session(done.session)
    assert (sets(fork), said(fork)) == before
    assert fork.view().session.entries == ("mode",)
    assert client.object_get(f"system_prompt:{fork.id}").object.payload["content"] == "Be brief."
    fork.user("Only in the fork.")
    after = sets(s), said(s)
    call(fork, "fork")
    fork.set_entry("mode", "Review.")
    fork.set_system_prompt("Be long.")
    assert (sets(s), said(s)) == after
    assert client.object_get(f"system_prompt:{s.id}").object.payload["content"] == "Be brief."
    again = client.session(fork.fork(tx=made.tx).session)
    assert (sets(again), said(again)) == before, "a fork rewound to before it began is its parent at that moment"
    with refused("invalid_params"):
        client.session_fork(client.session_create("other").session.session, commit=made.commit)


@pytest.mark.requirement("SES-29")
@pytest.mark.parametrize("at", ["now", "first request"])
def test_the_next_request_of_a_fork_begins_with_the_bytes_of_its_parents(kept: Running, tree: Path, at: str) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("parent", agent="a", workdir=str(tree))
        lived(s, tree)
        shown = {number: s.show(number=number) for number in (1, 2)}
        tx = None if at == "now" else client.session_turn(s.id, turn=1).tx
        last = shown[2 if at == "now" else 1]
        fork = client.session(s.fork(fork="fork", tx=tx).session)
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        s, fork = client.session("parent"), client.session("fork")
        assert fork.show().request == last.request
        assert told(fork.epoch()) == told(s.epoch(number=last.number))
        fork.user("What now?")
        made = request(fork)
        assert made.number == last.number + 1
        assert made.request is not None and last.request is not None
        sent = last.request["messages"]
        assert made.request["messages"][: len(sent) - 1] == sent[:-1]
        assert made.stable_prefix is not None and made.stable_prefix >= last.bytes - 20, "no word is written anew"
        assert made.request["system"] == last.request["system"]
        assert "The system prompt is now" not in body(made), "it is the parent's"
        assert body(made).count("mode: Plan only.") == 1
        numbers = [record.number for record in client.context_list(fork.id).assemblies]
        assert numbers == [*range(1, last.number + 1), last.number + 1]
        assert {number: s.show(number=number) for number in (1, 2)} == shown
        own = request(s)
        assert own.number == 3 and "What now?" not in body(own)
        assert fork.show(number=made.number).request == made.request


@pytest.mark.requirement("SES-28")
def test_the_text_of_an_inherited_assembly_is_shown_byte_for_byte(s: SyncSession, client: SyncClient) -> None:
    s.user("One.")
    call(s)
    first = s.assemble()
    fork = client.session(s.fork().session)
    s.user("Two.")
    s.assemble()
    assert fork.show(number=first.number).text == first.text
    fork.user("Three.")
    made = fork.assemble()
    assert made.number == first.number + 1
    assert "Two." not in made.text and "Three." in made.text
    assert fork.usage({"input": 5, "output": 1}, context_id=made.context_id, model="claude-sonnet-5").receipt
    assert s.usage({"input": 7, "output": 1}, model="claude-sonnet-5").receipt
    assert client.session_usage_totals(fork.id).total.input == 5
    again = client.session(fork.fork().session)
    assert client.session_usage_totals(again.id).total.requests == 0, "they count where they were made"


@pytest.mark.requirement("SES-29")
@pytest.mark.parametrize("layout", ["append", "spec"])
def test_a_fork_shares_the_prompt_cache_of_its_parent(s: SyncSession, client: SyncClient, layout: Layout) -> None:
    s.user("One.")
    first = request(s, "openai-responses", layout=layout)
    fork = client.session(s.fork().session)
    assert fork.show(number=first.number).request == first.request
    fork.user("Two.")
    made = request(fork, "openai-responses", layout=layout)
    assert made.request is not None and made.request["prompt_cache_key"] == s.id
    assert fork.show(number=made.number).request == made.request


@pytest.mark.requirement("SES-28")
def test_a_fork_of_a_session_without_a_chat_keeps_reads_after_its_newest_commit(
    daemon: Running, s: SyncSession, client: SyncClient, tree: Path
) -> None:
    client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=s.id)
    (tree / "late.py").write_text("late = True\n")
    s.read(str(tree / "late.py"))
    made = json.loads(ctx(daemon, "fork", s.id, "--json").stdout)
    assert client.session_get(made["session"]).session.session_index == s.view().session.session_index != ()


@pytest.mark.requirement("SES-28")
def test_fork_takes_a_turn_a_commit_or_nothing(daemon: Running, s: SyncSession, client: SyncClient) -> None:
    for n in range(3):
        s.user(f"turn {n}")
    made = client.commit_checkpoint("claude-code-v1", '{"n":1}\n', session=s.id).commit
    s.user("late")
    done = ctx(daemon, "session", "fork", f"{s.id}@2", "--id", f"{s.id}-two")
    assert done.stdout == f"{s.id}-two continues from {s.id} at turn 2\n"
    at = json.loads(ctx(daemon, "session", "fork", s.id, "--at", made.commit, "--json").stdout)
    assert (at["turn"], at["tx"]) == (3, made.tx)
    assert json.loads(ctx(daemon, "session", "fork", "--at", made.commit, "--json").stdout)["base"] == s.id
    quiet = ctx(daemon, "session", "fork", s.id, "-q").stdout.strip()
    assert len(said(client.session(quiet))) == 4
    # The id of a session may look like a moment; a bare @ after it is none.
    named = client.session_fork(s.id, fork=f"{s.id}@2").session
    client.session(named).user("later")
    own = client.commit_checkpoint("claude-code-v1", '{"n":2}\n', session=named).commit
    for session in (named, f"{named}@"):
        assert json.loads(ctx(daemon, "session", "fork", session, "--at", own.commit, "--json").stdout)["base"] == named
    refused = ctx(daemon, "session", "fork", f"{s.id}@1", "--at", made.commit)
    assert refused.returncode == 2 and "--at and a moment in REV exclude each other" in refused.stderr


@pytest.mark.requirement("SES-28")
@pytest.mark.parametrize("command", [("fork",), ("session", "fork")])
def test_a_fork_at_a_turn_that_one_write_added_with_the_next_is_refused(
    daemon: Running, s: SyncSession, client: SyncClient, command: tuple[str, ...]
) -> None:
    s.append(events=[PromptEvent(text=f"turn {n}") for n in (1, 2)])
    s.user("turn 3")
    assert [client.session_turn(s.id, turn=n).has_later for n in (1, 2, 3)] == [True, False, False]
    before = client.session_list().sessions
    done = ctx(daemon, *command, f"{s.id}@1")
    assert done.returncode == 4 and client.session_list().sessions == before
    assert f"session {s.id} cannot be forked at the end of turn 1: one write holds it and the next turn" in done.stderr
    assert f"ctx log {s.id}" in done.stderr
    made = ctx(daemon, *command, f"{s.id}@2", "-q").stdout.strip()
    assert len(said(client.session(made))) == 2
