"""Secrets: what is captured, what is told of it, how it is looked for, and how it is destroyed."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ctxd_client import CallFailed, InvalidState, connect_sync
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.sessions import Message
from tests.client.running import Running
from tests.suites.secret_corpus import made_up

SCRIPTS = Path(sysconfig.get_path("scripts"))
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CTXD_")}
TOKEN = made_up("github-token", seed=41)
OTHER = made_up("openai-key", seed=42)
KEY = made_up("private-key", seed=43)
PASSWORD = made_up("assigned-password", seed=44)

Start = Callable[..., SyncSession]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Running]:
    """A daemon of the test's own, whose state directory can be looked into."""
    with Running(tmp_path, keep_state=True) as running:
        yield running


def ctx(socket: str, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    environ = {**ENVIRON, "CTXD_SOCKET": socket}
    return subprocess.run(
        [SCRIPTS / "ctx", *words], capture_output=True, text=True, timeout=60, env=environ, input=stdin
    )


def say(s: SyncSession, tree: Path) -> str:
    """Secrets by every way into a session. Returns: the id of the file."""
    (tree / ".env").write_text(f"TOKEN={TOKEN}\nMODE=test\n")
    s.set_system_prompt(f"Use {TOKEN}.")
    s.user(f"my key is {TOKEN}")
    s.client.session_append(s.id, [Message(role="assistant", content="noted", meta={"auth": TOKEN})])
    s.client.toolcall_record(
        s.id, f"{s.id}-call", "bash", f"{KEY}\n", args={"command": "login", "env": {"DB_PASSWORD": PASSWORD}}
    )
    return s.read(".env").object


def files_with(state: Path, *needles: str) -> set[str]:
    return {
        path.name
        for path in state.rglob("*")
        if path.is_file()
        for data in [path.read_bytes()]
        if any(needle.encode() in data for needle in needles)
    }


@pytest.mark.requirement("SEC-1")
def test_under_redact_no_byte_of_a_secret_is_kept_whichever_way_it_came(
    kept: Running, tree: Path, tmp_path: Path
) -> None:
    with connect_sync(kept.socket) as client:
        s = client.session("s", agent="a", workdir=str(tree), secrets="redact", labels={"deploy": f"with {TOKEN}"})
        assert client.session_get("s").session.labels["deploy"].startswith("with [REDACTED:github-token:")
        client.session_configure("s", labels={"deploy": f"now {TOKEN}"})
        id = say(s, tree)
        text = s.assemble().text
        secret = client.object_get(id).object.payload["secrets"]["found"][0]
        span = f"[REDACTED:github-token:{secret['tag']}]"
        # The same in prompt, chat and file: equal secrets have equal tags.
        assert text.count(span) == 3
        assert "[REDACTED:private-key:" in text and "MODE=test" in text
        call = client.object_get("s-call").object.payload
        assert call["args"]["env"]["DB_PASSWORD"].startswith("[REDACTED:assigned-password:")
        assert client.session_get("s").session.secrets == "redact"
    line = KEY.splitlines()[2]
    assert files_with(tmp_path / "state", TOKEN, PASSWORD, line) == set()
    assert TOKEN not in (tmp_path / "ctxd.log").read_text()


@pytest.mark.requirement("SEC-1")
def test_the_policy_is_the_sessions_own_and_may_be_changed(start: Start, tree: Path) -> None:
    off = start(secrets="off")
    assert off.client.session_get(off.id).session.secrets == "off"
    off.user(TOKEN)
    off.client.session_configure(off.id, secrets="redact")
    off.user(TOKEN)
    first, second = [turn["messages"][0] for turn in off.client.session_chat(off.id).turns]
    assert first["content"] == TOKEN and "secrets" not in {name for name, value in first.items() if value}
    assert second["content"].startswith("[REDACTED:github-token:")


@pytest.mark.requirement("SEC-2")
def test_under_flag_the_context_is_as_it_came_and_metadata_tells_rule_and_tag_alone(start: Start, tree: Path) -> None:
    flagged = start()
    id = say(flagged, tree)
    text = flagged.assemble().text
    assert text.count(TOKEN) == 3 and KEY in text and "REDACTED" not in text
    shown = flagged.client.object_get(id, content=False).object
    told = shown.payload["secrets"]
    assert told["policy"] == "flag" and [found["rule"] for found in told["found"]] == ["github-token"]
    assert TOKEN not in json.dumps(shown.payload)
    chat = flagged.client.session_chat(flagged.id).turns[0]["messages"]
    assert chat[0]["secrets"]["found"] == [{"rule": "github-token", "tag": told["found"][0]["tag"]}]
    listed = {row.object: row.secrets for row in flagged.client.object_list(session=flagged.id).objects}
    assert listed[id] == ("github-token",)
    assert set(listed[f"{flagged.id}-call"]) == {"private-key", "assigned-password"}


@pytest.mark.requirement("SEC-3")
def test_a_redacted_files_source_hash_is_keyed_and_indexing_it_again_writes_nothing(start: Start, tree: Path) -> None:
    import hashlib

    s = start(secrets="redact")
    (tree / "pin").write_text(f"token={TOKEN}\n")
    first = s.read("pin")
    assert first.outcome == "created" and first.source_hash != hashlib.sha256((tree / "pin").read_bytes()).hexdigest()
    again = s.read("pin")
    assert (again.outcome, again.receipt, again.source_hash) == ("unchanged", None, first.source_hash)
    assert s.client.file_index(s.id, "pin", content=f"token={TOKEN}\n").outcome == "unchanged"
    assert len(s.client.object_history(first.object).versions) == 1
    (tree / "pin").write_text(f"token={OTHER}\n")
    assert s.read("pin").outcome == "updated"


@pytest.mark.requirement("SEC-4")
def test_what_one_session_redacts_another_does_not_bring_back(start: Start, tree: Path) -> None:
    strict, lax = start(secrets="redact"), start(secrets="off")
    (tree / "a.env").write_text(f"A={TOKEN}\n")
    id = lax.read("a.env").object
    assert TOKEN in lax.assemble().text
    assert strict.read("a.env").outcome == "updated"
    assert TOKEN not in strict.assemble().text and TOKEN not in lax.assemble().text
    assert lax.read("a.env").outcome == "unchanged"
    (tree / "a.env").write_text(f"A={TOKEN}\nB={OTHER}\n")
    assert lax.read("a.env").outcome == "updated"
    newest = strict.client.object_get(id).object.payload["content"]
    assert TOKEN not in newest and OTHER not in newest


@pytest.mark.requirement("SEC-4")
def test_a_session_that_begins_to_redact_has_what_it_holds_read_again(start: Start, tree: Path) -> None:
    s = start()
    (tree / "b.env").write_text(f"B={TOKEN}\n")
    s.read("b.env")
    assert TOKEN in s.assemble().text
    s.client.session_configure(s.id, secrets="redact")
    assert TOKEN not in s.assemble().text


@pytest.mark.requirement("SEC-5")
def test_a_daemon_does_not_start_with_rules_that_cannot_be_used_and_says_which(tmp_path: Path) -> None:
    rules = tmp_path / "rules.toml"
    rules.write_text("[[rule]]\nname = 'back-reference'\npattern = '(a)\\1'\n")
    environ = {**ENVIRON, "CTXD_SECRETS_RULES": str(rules)}
    command = [SCRIPTS / "ctxd", "run", "--ephemeral", "--socket", str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environ)
    assert done.returncode == 78
    assert "rules.toml" in done.stderr and "back-reference" in done.stderr and "RE2" in done.stderr


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_on_disk_and_never_shows_them(daemon: Running, tree: Path) -> None:
    (tree / "a").mkdir()
    (tree / "a" / "conf").write_text(f"x = 1\ntoken = {TOKEN}\n")
    (tree / "clean.txt").write_text("nothing\n")
    found = ctx(daemon.socket, "scan", str(tree), "--json")
    assert found.returncode == 8
    (hit,) = json.loads(found.stdout)["items"]
    assert (hit["rule"], hit["line"]) == ("github-token", 2) and hit["place"].endswith("a/conf")
    assert TOKEN not in found.stdout + found.stderr
    assert ctx(daemon.socket, "scan", str(tree / "clean.txt")).returncode == 0
    assert ctx(daemon.socket, "scan", "-", stdin=f"a {OTHER}").returncode == 8
    assert ctx(daemon.socket, "scan", str(tree / "none")).returncode == 1


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_what_a_session_holds_also_if_nobody_looked_then(
    daemon: Running, start: Start, tree: Path
) -> None:
    s = start(secrets="off")
    id = say(s, tree)
    found = ctx(daemon.socket, "scan", "-s", s.id, "--json")
    assert found.returncode == 8 and TOKEN not in found.stdout
    rules = {(item["place"].split()[0], item["rule"]) for item in json.loads(found.stdout)["items"]}
    assert (id, "github-token") in rules and (f"{s.id}-call", "private-key") in rules
    assert (f"system_prompt:{s.id}", "github-token") in rules
    assert ctx(daemon.socket, "scan", "--all").returncode == 8


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
        recorded = s.assemble()
        assert TOKEN in recorded.text and files_with(state, TOKEN, OTHER)

        first = ctx(kept.socket, "purge", id, "--yes", "--json")
        assert first.returncode == 1, "the tool call holds the same secrets, which is said"
        assert "state.db" in json.loads(first.stdout)["residue"]
        done = client.object_purge("big")
        assert (done.residue, done.complete, done.versions, done.objects) == ((), True, 1, ("big",))
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
        again = client.object_purge(id)
        assert (again.versions, again.receipt, again.complete) == (0, None, True)
        assert files_with(state, TOKEN, OTHER) == set()
    verified = subprocess.run(
        [SCRIPTS / "ctxd", "verify", "--state-dir", state, "--json"], capture_output=True, text=True, env=ENVIRON
    )
    assert (verified.returncode, json.loads(verified.stdout)["problems"]) == (0, [])
    kept.kill()
    kept.start()
    with connect_sync(kept.socket) as client:
        assert client.object_get(id).object.state == "purged"
    assert files_with(state, TOKEN, OTHER) == set()


@pytest.mark.requirement("SEC-8")
def test_what_is_not_one_objects_own_cannot_be_purged(s: SyncSession, client: SyncClient) -> None:
    for id, code in ((f"session:{s.id}", "unsupported"), ("0" * 64, "object_not_found")):
        with pytest.raises(CallFailed) as refused:
            client.object_purge(id)
        assert refused.value.code == code


def chatter(client: SyncClient, s: SyncSession, count: int, secret_at: int) -> None:
    """Small turns beyond the runs that are kept a second time, one of which says a secret."""
    for number in range(1, count):
        said = f'use "{TOKEN}"\nand\\or {OTHER}' if number == secret_at else f"question {number}"
        client.session_append(
            s.id, [Message(role="user", content=said), Message(role="assistant", content=f"answer {number}")]
        )


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_in_turns_metadata_paths_and_earlier_versions(
    daemon: Running, start: Start, tree: Path
) -> None:
    s = start(labels={"deploy": f"with {OTHER}"})
    s.user("hello")
    s.user(f"use {TOKEN}")
    s.client.session_append(s.id, [Message(role="assistant", content="done", meta={"env": {"DB_PASSWORD": PASSWORD}})])
    (tree / f"{TOKEN}.txt").write_text("plain\n")
    s.read(f"{TOKEN}.txt")
    (tree / "was.txt").write_text(f"{OTHER}\n")
    was = s.read("was.txt").object
    (tree / "was.txt").write_text("clean\n")
    s.read("was.txt")

    def found(*words: str) -> tuple[str, set[tuple[str, str]]]:
        done = ctx(daemon.socket, "scan", *words, "--json")
        assert done.returncode == 8
        return done.stdout, {(item["place"], item["rule"]) for item in json.loads(done.stdout)["items"]}

    for which in (("-s", s.id), ("--all",)):
        text, places = found(*which)
        assert TOKEN not in text and OTHER not in text and PASSWORD not in text
        assert (f"chat:{s.id} turn 2", "github-token") in places
        assert (f"chat:{s.id} turn 2", "assigned-password") in places
        assert not {place for place, _ in places if place == f"chat:{s.id} turn 1"}
        assert (f"session:{s.id} session", "openai-key") in places
        assert any(".txt" in place and rule == "github-token" for place, rule in places), "a path is looked at too"
        assert not any(place.startswith(was) for place, _ in places)
        assert any(place.startswith(was) for place, _ in found(*which, "--history")[1])


@pytest.mark.requirement("SEC-10")
def test_what_was_said_in_a_turn_is_purged_with_proof_and_the_session_goes_on(
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
        assert first.returncode == 1, "the last turn holds the same secret, which is said"
        assert "state.db" in json.loads(first.stdout)["residue"]
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
    verified = subprocess.run(
        [SCRIPTS / "ctxd", "verify", "--state-dir", state, "--json"], capture_output=True, text=True, env=ENVIRON
    )
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


@pytest.mark.requirement("SEC-11")
@pytest.mark.parametrize("policy", ["off", "flag", "redact"])
def test_an_export_tells_all_in_order_and_no_secret_whatever_the_policy(
    daemon: Running, start: Start, tree: Path, policy: str
) -> None:
    s = start(secrets=policy, labels={"deploy": f"with {OTHER}"})
    id, call = say(s, tree), f"{s.id}-call"
    s.client.session_append(s.id, [Message(role="toolcall", toolcall=call), Message(role="user", content="```\n# no")])
    s.client.toolcall_record(s.id, f"{s.id}-unsaid", "ls", "a\n")
    (tree / f"{TOKEN}.txt").write_text("plain\n")
    s.read(f"{TOKEN}.txt")

    lines = ctx(daemon.socket, "session", "export", s.id, "--json")
    shown = ctx(daemon.socket, "session", "export", s.id)
    assert (lines.returncode, shown.returncode) == (0, 0)
    for text in (lines.stdout, shown.stdout):
        assert not any(secret in text for secret in (TOKEN, OTHER, PASSWORD, KEY.splitlines()[2]))
    records = [json.loads(line) for line in lines.stdout.splitlines()]
    assert [record["record"] for record in records] == [
        "session", "system_prompt", "message", "message", "message", "toolcall", "message", "file", "toolcall", "file"
    ]  # fmt: skip
    assert records[1]["content"].startswith("Use [REDACTED:github-token:")
    assert [record["turn"] for record in records[2:7]] == [1, 1, 1, 1, 2]
    assert records[5]["object"] == call and records[5]["args"]["env"]["DB_PASSWORD"].startswith("[REDACTED:assigned-")
    assert records[7]["object"] == id and records[7]["char_count"] > 0 and "content" not in records[7]
    assert "[REDACTED:github-token:" in records[9]["path"] and records[0]["labels"]["deploy"].startswith("with [REDACT")
    assert "## Turn 2\n\n### user\n\n````text\n```\n# no\n````\n" in shown.stdout, "what is said ends no fence"
    pages, cursor = [], None
    while True:
        page = s.client.session_export(s.id, limit=2, cursor=cursor)
        pages += page.records
        assert 0 < len(page.records) <= 2
        if (cursor := page.next_cursor) is None:
            break
    assert pages == records


@pytest.mark.requirement("SEC-11")
def test_a_page_of_an_export_ends_where_it_would_be_long(start: Start) -> None:
    s = start()
    for number in range(4):
        s.client.session_append(s.id, [Message(role="user", content=f"{number} " * 400_000)])
    begun = s.client.session_export(s.id, limit=100)
    first = s.client.session_export(s.id, limit=100, cursor=begun.next_cursor)
    assert len(first.records) == 3, "the prompt, and two messages of 800,000 characters"
    rest = s.client.session_export(s.id, limit=100, cursor=first.next_cursor)
    assert [record["content"][0] for record in rest.records] == ["2", "3"] and rest.next_cursor is None
    with pytest.raises(CallFailed) as refused:
        s.client.session_export(s.id, cursor="x")
    assert refused.value.code == "invalid_params"
