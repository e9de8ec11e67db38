"""Secrets: the content of an object or a chat is destroyed, with proof."""

import base64
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ctxd.formats import events_v1
from ctxd.formats.cbor_array import encoded, joined
from ctxd_client import CallFailed, InvalidState, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.event_types import PromptEvent
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.methods.commits import StartContext
from ctxd_protocol.session_types import Message
from tests import programs
from tests.client.running import Running
from tests.spec.secrecy import ENVIRON, OTHER, TOKEN, Start, ctx, files_with, until_in_no_file


@pytest.mark.requirement("SEC-8")
def test_after_a_purge_no_file_of_the_state_holds_a_byte_of_it_and_reads_say_purged(
    kept: Running, tree: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    (tree / "other.txt").write_text("other\n")
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree))
        s.read("other.txt")
        (tree / ".env").write_text(f"TOKEN={TOKEN}\n")
        id = s.read(".env").object
        (tree / ".env").write_text(f"TOKEN={TOKEN}\nKEY={OTHER}\n")
        s.read(".env")
        client.toolcall_record("s", "big", "bash", f"{OTHER} {'x' * 99}\n" * 12_000, args={"token": TOKEN})
        recorded = client.context_assemble("s", op_id="recorded")
        assert TOKEN in recorded.text and files_with(state, TOKEN, OTHER)

        first = ctx(kept.socket, "purge", id, "--yes", "--json")
        assert first.returncode == 0 and json.loads(first.stdout)["residue"] == []
        assert "state.db" in searched(state, TOKEN, OTHER), "the tool call holds the same secrets"
        done = client.object_purge("big")
        assert (done.residue, done.complete, done.versions, done.objects) == ((), True, 1, ("big",))
        assert searched(state, TOKEN, OTHER) == set()
        assert files_with(state, TOKEN, OTHER) == set()

        shown = client.object_get(id).object
        assert shown.state == "purged" and shown.payload["content"] is None
        assert [row.state for row in client.object_history(id).versions] == ["purged", "purged"]
        text = s.assemble().text
        assert TOKEN not in text and OTHER not in text and "[purged]" in text and "other\n" in text
        assert s.read(".env").outcome == "unchanged", "the same bytes do not come back"
        with pytest.raises(InvalidState) as refused:
            client.toolcall_record("s", "big", "bash", f"{OTHER} {'x' * 99}\n" * 12_000, args={"token": TOKEN})
        assert refused.value.code == "purged"
        with pytest.raises(InvalidState) as gone:
            client.context_show("s", number=recorded.number)
        assert gone.value.code == "purged"
        with pytest.raises(InvalidState) as resent:
            client.context_assemble("s", op_id="recorded")
        assert resent.value.code == "purged"
        again = client.object_purge(id)
        assert (again.versions, again.receipt, again.complete) == (0, None, True)
        until_in_no_file(state, TOKEN, OTHER)
    verified = programs.run("ctxd", ["verify", "--state-dir", state, "--json"], env=ENVIRON)
    assert (verified.returncode, json.loads(verified.stdout)["problems"]) == (0, [])
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.object_get(id).object.state == "purged"
    assert files_with(state, TOKEN, OTHER) == set()


def searched(state: Path, *texts: str) -> set[str]:
    """The files in which ``ctxd verify --absent`` finds one of ``texts``."""
    command = ["verify", "--state-dir", state, "--json", "--absent", "-"]
    done = programs.run("ctxd", command, input="\n".join(texts), env=ENVIRON)
    report = json.loads(done.stdout)
    assert done.returncode == (1 if report["residue"] else 0), report["problems"]
    return set(report["residue"])


@pytest.mark.requirement("SEC-8")
@pytest.mark.parametrize("purges", [5, pytest.param(25, marks=pytest.mark.slow)])
def test_purges_beside_writers_and_verifications_all_complete(
    kept: Running, tree: Path, tmp_path: Path, purges: int
) -> None:
    state, stop = tmp_path / "state", threading.Event()

    def write(name: str) -> int:
        with connect_sync(kept.socket) as client:
            s, count = client.session(name, agent="a", workdir=str(tree)), 0
            while not stop.is_set():
                client.toolcall_record(s.id, f"{name}-{count}", "bash", f"{name} {count} " * 5_000)
                count += 1
        return count

    def purge(name: str) -> list[bool]:
        done = []
        with connect_sync(kept.socket) as client:
            s = client.session(name, agent="a", workdir=str(tree))
            for number in range(purges):
                id = f"{name}-{number}"
                client.toolcall_record(s.id, id, "bash", f"{TOKEN} {name} {number} " * 1_500)
                done.append(client.object_purge(id).versions == 1)
        return done

    def verify() -> set[int]:
        codes = set()
        while not stop.is_set():
            codes.add(programs.run("ctxd", ["verify", "--state-dir", state, "--json"], env=ENVIRON).returncode)
        return codes

    with ThreadPoolExecutor(6) as pool:
        writers = [pool.submit(write, f"w{number}") for number in range(3)]
        verifying = pool.submit(verify)
        try:
            purged = [one.result(120) for one in [pool.submit(purge, f"p{number}") for number in range(2)]]
        finally:
            stop.set()
        assert purged == [[True] * purges] * 2
        assert all(writer.result(30) for writer in writers)
        assert verifying.result(60) <= {0, 1}, "a purge that is under way is a warning at most"
    with connect_sync(kept.socket) as client:
        assert client.object_purge("p0-0").complete
    assert searched(state, TOKEN) == set()


@pytest.mark.requirement("SEC-8")
def test_objects_shared_or_missing_cannot_be_purged(s: SyncSession, client: SyncClient) -> None:
    for id, code in ((f"session:{s.id}", "unsupported"), ("0" * 64, "object_not_found")):
        with pytest.raises(CallFailed) as refused:
            client.object_purge(id)
        assert refused.value.code == code


@pytest.mark.requirement("RPC-4")
def test_a_resend_after_a_purge_is_refused_if_it_is_of_another_method_or_session(
    s: SyncSession, client: SyncClient
) -> None:
    first = client.toolcall_record(s.id, f"call-{s.id}", "bash", "output", op_id=f"op-{s.id}")
    client.object_purge(f"call-{s.id}")
    second = client.session_create("demo").session.session
    other: list[Callable[[], object]] = [
        lambda: client.session_append(s.id, [Message(role="user", content="a")], op_id=f"op-{s.id}"),
        lambda: client.session_set_system_prompt(s.id, "a", op_id=f"op-{s.id}"),
        lambda: client.context_assemble(s.id, op_id=f"op-{s.id}"),
        lambda: client.artifact_put(data=b"a", op_id=f"op-{s.id}"),
        lambda: client.toolcall_record(second, f"call-{s.id}", "bash", "output", op_id=f"op-{s.id}"),
    ]
    for call in other:
        with pytest.raises(CallFailed) as refused:
            call()
        assert refused.value.code == "idempotency_mismatch"
    again = client.toolcall_record(s.id, f"call-{s.id}", "bash", "output", op_id=f"op-{s.id}")
    assert again.receipt == first.receipt


def chatter(client: SyncClient, s: SyncSession, count: int, secret_at: int) -> None:
    """Small turns beyond the runs that are kept a second time, one of which contains a secret."""
    for number in range(1, count):
        said = f'use "{TOKEN}"\nand\\or {OTHER}' if number == secret_at else f"question {number}"
        client.session_append(
            s.id, [Message(role="user", content=said), Message(role="assistant", content=f"answer {number}")]
        )


@pytest.mark.requirement("SEC-10")
def test_messages_of_a_turn_are_purged_with_proof_and_the_session_continues(
    kept: Running, tree: Path, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree))
        other = client.session("s2", agent="a", workdir=str(tree))
        other.user("of another session")
        chatter(client, s, 300, secret_at=40)
        s.user(f"again {TOKEN}")
        recorded = s.assemble()
        client.toolcall_record("s", "call", "bash", "out\n")
        client.session_append("s", [Message(role="toolcall", toolcall="call", meta={"note": TOKEN})])
        assert TOKEN in recorded.text and TOKEN in str(client.session_list().sessions)
        before = client.session_get("s").session

        first = ctx(kept.socket, "purge", "chat:s", "--turn", "40", "--yes", "--json")
        assert first.returncode == 0 and "state.db" in searched(state, TOKEN), "the last turn holds the same secret"
        done = client.object_purge("chat:s", turns=(300,), op_id="purge-1")
        assert (done.residue, done.complete, done.objects, done.texts) == ((), True, ("chat:s",), 2)
        assert files_with(state, TOKEN, OTHER) == set()
        assert client.session_list(text=TOKEN[:30]).sessions == (), "nor is a listing searched by it"
        again = client.object_purge("chat:s", turns=(300,), op_id="purge-1")
        assert (again.objects, again.texts, again.receipt) == (done.objects, done.texts, done.receipt)
        assert client.object_purge("chat:s", turns=(40, 300)).receipt is None, "nothing of it is left"

        after = client.session_get("s").session
        assert (after.turn_count, after.session_index, after.active_set) == (
            before.turn_count, before.session_index, before.active_set
        )  # fmt: skip
        turn = client.session_chat("s", first_turn=40, limit=1).turns[0]["messages"]
        assert [message["content"] for message in turn] == ["[purged]", "[purged]"]
        assert client.session_chat("s2").turns[0]["messages"][0]["content"] == "of another session"
        text = s.assemble().text
        assert TOKEN not in text and "[purged]" in text and "question 41" in text and "out\n" in text
        assert TOKEN not in str(client.session_list().sessions)
        with pytest.raises(InvalidState) as gone:
            client.context_show("s", number=recorded.number)
        assert gone.value.code == "purged"
        # The run that is under way is kept a second time later on: without what is gone.
        chatter(client, s, 260, secret_at=0)
        assert files_with(state, TOKEN, OTHER) == set()
        shown = s.assemble().text
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.session("s", agent="a").assemble().text == shown
        assert ctx(kept.socket, "scan", "--all", "--history").returncode == 0
    verified = programs.run("ctxd", ["verify", "--state-dir", state, "--json"], env=ENVIRON)
    assert (verified.returncode, json.loads(verified.stdout)["problems"]) == (0, [])
    assert files_with(state, TOKEN, OTHER) == set()


@pytest.mark.requirement("SEC-10")
def test_only_a_chat_has_turns_and_a_whole_chat_can_be_purged(s: SyncSession, client: SyncClient, tree: Path) -> None:
    (tree / "a.txt").write_text("text\n")
    id = s.read("a.txt").object
    client.session_append(s.id, [Message(role="user", content="first"), Message(role="assistant", content="second")])
    with pytest.raises(CallFailed) as refused:
        client.object_purge(id, turns=(1,))
    assert refused.value.code == "invalid_params"
    with pytest.raises(CallFailed) as missing:
        client.object_purge("chat:nobody")
    assert missing.value.code == "session_not_found"
    assert client.object_purge(f"chat:{s.id}", turns=(7,)).receipt is None
    assert client.object_purge(f"chat:{s.id}").texts == 2
    assert {message["content"] for turn in client.session_chat(s.id).turns for message in turn["messages"]} == {
        "[purged]"
    }


@pytest.mark.requirement("SEC-10")
def test_a_commit_that_its_purge_makes_longer_than_a_text_in_the_database_is_purged(
    s: SyncSession, client: SyncClient
) -> None:
    item = encoded(events_v1.item_of(PromptEvent(text="x")))
    delta = joined([item] * (1_040_000 // len(item)))
    s.user("x")
    commit = client.commit_checkpoint("events-v1", session=s.id, delta_base64=base64.b64encode(delta).decode()).commit
    assert client.object_purge(f"chat:{s.id}").complete
    assert client.object_purge(f"chat:{s.id}").versions == 0
    ref, left, at = client.commit_show(commit.commit).commit.artifact_ref, b"", 0
    assert ref is not None
    while at is not None:
        page = client.artifact_get(ref, offset=at)
        left, at = left + page.data, page.next_offset
    purged = encoded(events_v1.item_of(PromptEvent(text="[purged]")))
    assert left == joined([purged] * (1_040_000 // len(item)))


@pytest.mark.requirement("LST-9", "SEC-8", "SEC-10")
def test_the_purge_of_a_chat_erases_titles_labels_and_tags_that_quote_it(kept: Running, tmp_path: Path) -> None:
    state = tmp_path / "state"
    text, word = f"my password is {TOKEN}", "xyzzy-plugh"
    with connect_sync(kept.socket) as client:
        client.session_create("a", session="s", labels={"k": text, "note": f"see {OTHER}", "team": "blue"})
        client.session_append("s", [Message(role="user", content=f"my password\n  is {TOKEN}")])
        client.session_append("s", [Message(role="assistant", content=text)])
        client.session_append("s", [Message(role="user", content=OTHER), Message(role="user", content="x")])
        client.session_append("s", [Message(role="user", content=word)])
        commit = client.context_current(session="s").context_id
        client.commit_tag(commit, word)
        client.commit_tag(commit, "kept")
        client.commit_tag(commit, word, remove=True)
        client.commit_annotate(commit, f"quotes {OTHER}")
        client.commit_annotate(commit, "my summary")
        large = client.commit_checkpoint(
            "narrative-v1", "x" * (CONTENT_INLINE_BYTES_MAX + 1), session="s", summary=f"about {OTHER}"
        ).commit.commit
        client.commit_tag(large, f"v-{word}")
        client.commit_tag(large, f"v-{word}", remove=True)
        client.commit_tag(large, "v1")
        client.commit_annotate(large, "a large commit")
        client.session_annotate("s", title=f"title of {OTHER}")
        client.session_annotate("s", title=f"password is {TOKEN}")
        client.session_annotate("s", title=f"my password\n  is {TOKEN} indeed")
        fork = client.session_fork("s").session
        client.session_annotate("s", labels={"k": "y", "short": "x"})
        client.session_annotate(fork, title="x")
        assert client.session_list(text=TOKEN[:30]).sessions and client.commit_list(tag="v1").commits

        done = client.object_purge("chat:s")
        assert (done.residue, done.complete) == ((), True)
        assert searched(state, TOKEN, OTHER, word) == set() and files_with(state, TOKEN, OTHER, word) == set()
        seen = {id: client.session_get(id).session for id in ("s", fork)}
        assert {id: each.title for id, each in seen.items()} == {"s": "[purged]", fork: "[purged]"}
        assert seen["s"].labels == {"k": "y", "note": "[purged]", "team": "blue", "short": ""}
        assert seen[fork].labels == {"k": "[purged]", "note": "[purged]", "team": "blue"}
        assert client.session_list(text=TOKEN[:30]).sessions == () and not client.search_query(TOKEN[:30]).hits
        shown = client.commit_show(commit).commit
        assert (shown.tags, shown.summary) == (("kept",), "my summary"), "the newest version was not rewritten"
        assert client.commit_list(tag="kept").commits[0].commit == commit
        assert client.commit_list(tag="v1").commits[0].summary == "a large commit"
        assert client.commit_materialize(large, stop="root").size > CONTENT_INLINE_BYTES_MAX
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.session_get("s").session.title == "[purged]"
    verified = programs.run("ctxd", ["verify", "--state-dir", state, "--json"], env=ENVIRON)
    assert (verified.returncode, json.loads(verified.stdout)["problems"]) == (0, [])
    assert files_with(state, TOKEN, OTHER, word) == set()


@pytest.mark.requirement("SEC-10")
def test_a_purge_of_a_chat_names_the_sessions_that_began_with_its_commits(
    daemon: Running, client: SyncClient, start: Start
) -> None:
    origin = start(state="paused")
    line = json.dumps({"type": "user", "message": {"role": "user", "content": f"Use {TOKEN}."}}) + "\n"
    made = client.commit_checkpoint("claude-code-v1", line, session=origin.id, summary="s").commit.commit
    copy = client.session_create("a", context=StartContext(commit=made)).session.session
    client.session(copy).user("My own.")
    client.session(client.session_create("a").session.session).user("Another one.")
    done = ctx(daemon.socket, "purge", f"chat:{origin.id}", "--commits", "--yes")
    assert done.returncode == 0 and "no version of it is left" not in done.stdout
    assert f"1 session, which began with its commits, has a copy: ctx purge chat:{copy} --commits\n" in done.stdout
    assert ctx(daemon.socket, "purge", f"chat:{copy}", "--commits", "--yes").returncode == 0
    assert "no version of it is left" in ctx(daemon.socket, "purge", f"chat:{origin.id}", "--yes").stdout
    assert client.object_purge(f"chat:{origin.id}").copies == ()
