"""Secrets: how `ctx scan` looks for them, and that it never shows one."""

import json
import os
import sqlite3
import subprocess
from base64 import b64encode
from contextlib import closing
from pathlib import Path

import pytest

from ctxd.commits.stored_secrets import SCANNED_DELTA_BYTES_MAX
from ctxd_client import SyncClient, connect_sync
from ctxd_protocol.context_types import ToolDeclaration
from ctxd_protocol.session_types import Message
from tests import programs
from tests.client.running import Running
from tests.spec.secrecy import OTHER, PASSWORD, TOKEN, Start, ctx, say
from tests.spec.test_artifacts import upload


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_on_disk_and_never_shows_them(daemon: Running, tree: Path) -> None:
    (tree / "a").mkdir()
    (tree / "a" / "conf").write_text(f"x = 1\ntoken = {TOKEN}\n")
    (tree / "clean.txt").write_text("nothing\n")
    found = ctx(daemon.socket, "scan", str(tree), "--json")
    assert found.returncode == 8
    (hit,) = json.loads(found.stdout)["items"]
    assert (hit["rule"], hit["line"]) == ("github-token", 2) and hit["place"].endswith("a/conf")
    texts = [ctx(daemon.socket, "scan", str(tree)).stdout for _ in range(2)]
    assert texts[0] == texts[1] and texts[0].split("\n")[0].split() == ["PLACE", "LINE", "RULE"] and "tag" not in hit
    assert TOKEN not in found.stdout + found.stderr
    assert ctx(daemon.socket, "scan", str(tree / "clean.txt")).returncode == 0
    assert ctx(daemon.socket, "scan", "-", stdin=f"a {OTHER}").returncode == 8
    assert ctx(daemon.socket, "scan", str(tree / "none")).returncode == 1


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_fails_and_names_what_it_has_not_read(daemon: Running, tree: Path) -> None:
    (tree / "key.pem").symlink_to("/proc/self/mem")
    with (tree / "dump.sql").open("wb") as large:
        large.truncate(65 * 1024 * 1024)
    (tree / "private").mkdir(mode=0)
    (tree / "conf").write_text(f"token = {TOKEN}\n")
    found = ctx(daemon.socket, "scan", str(tree), "--json")
    left_out = {Path(each["place"]).name: each["reason"] for each in json.loads(found.stdout)["left_out"]}
    if os.geteuid() == 0:
        # The superuser can read every directory.
        left_out["private"] = "Permission denied"
    assert left_out == {
        "key.pem": "Input/output error",
        "dump.sql": "more than 64 MiB",
        "private": "Permission denied",
    }
    assert found.returncode == 1 and "not searched" in found.stderr
    assert [each["rule"] for each in json.loads(found.stdout)["items"]] == ["github-token"]
    named = ctx(daemon.socket, "scan", str(tree / "dump.sql"))
    assert named.returncode == 1 and f"1 path was not searched: {tree}/dump.sql (more than 64 MiB)" in named.stderr
    endless = ctx(daemon.socket, "scan", "/dev/zero")
    assert endless.returncode == 1 and "/dev/zero (more than 64 MiB)" in endless.stderr
    (tree / "dump.sql").rename(tree / TOKEN)
    secret = ctx(daemon.socket, "scan", str(tree / TOKEN))
    assert secret.returncode == 1 and "[REDACTED:github-token" in secret.stderr and TOKEN not in secret.stderr


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_of_a_deleted_directory_fails(daemon: Running, tmp_path: Path) -> None:
    deleted = tmp_path / "deleted"
    deleted.mkdir()
    command = ["sh", "-c", 'rmdir "$PWD"; exec "$@"', "sh", programs.SCRIPTS / "ctx", "scan"]
    done = subprocess.run(command, cwd=deleted, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("ctx: the current directory has been deleted")


@pytest.mark.requirement("SEC-7")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("scan --all -s s1", "--all and --session exclude each other"),
        ("scan --all --rules rules.toml", "--rules applies only to PATHS"),
        ("scan -s s1 --rules rules.toml", "--rules applies only to PATHS"),
        ("object ls --all -s s1", "--all and --session exclude each other"),
        ("search --rebuild -s s1", "--rebuild and all other options but --json exclude each other"),
        ("search --rebuild --kind prompt", "--rebuild and all other options but --json exclude each other"),
    ],
)
def test_options_that_would_be_ignored_are_refused(daemon: Running, words: str, message: str) -> None:
    done = ctx(daemon.socket, *words.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


@pytest.mark.own_daemon
@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_recorded_with_scanning_off(daemon: Running, start: Start, tree: Path) -> None:
    s = start(secrets="off")
    id = say(s, tree)
    found = ctx(daemon.socket, "scan", "-s", s.id, "--json")
    assert found.returncode == 8 and TOKEN not in found.stdout
    rules = {(item["place"].split()[0], item["rule"]) for item in json.loads(found.stdout)["items"]}
    assert (id, "github-token") in rules and (f"{s.id}-call", "private-key") in rules
    assert (f"system_prompt:{s.id}", "github-token") in rules
    assert ctx(daemon.socket, "scan", "--all").returncode == 8


@pytest.mark.own_daemon
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
        items = json.loads(done.stdout)["items"]
        assert {item["line"] for item in items if item["place"].startswith("chat:")} == {0}, "a turn has no lines"
        return done.stdout, {(item["place"], item["rule"]) for item in items}

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


@pytest.mark.own_daemon
@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_in_entries_and_in_declared_tools(daemon: Running, start: Start) -> None:
    s = start(secrets="off")
    s.set_entry("was", f"Use {OTHER}.")
    s.set_entry("was", "Use none.")
    s.set_entry("token", f"Use {TOKEN}.")
    tool = ToolDeclaration(name="push", description=f"Pushes with {OTHER}.", input_schema={"type": "object"})
    for number in range(3):
        s.user(f"Turn {number}.")
        s.assemble(format="anthropic-messages", model="claude-sonnet-4-5", tools=[tool])
    entry, declared = f"session_entry:{s.id}#token entry token", f"session:{s.id} tools declared in assembly 1"
    for which in (("-s", s.id), ("--all",)):
        done = ctx(daemon.socket, "scan", *which, "--json")
        assert done.returncode == 8 and TOKEN not in done.stdout and OTHER not in done.stdout
        places = [item["place"] for item in json.loads(done.stdout)["items"] if s.id in item["place"]]
        assert sorted(places) == sorted((entry, declared)), "equal declarations are named once"
        history = ctx(daemon.socket, "scan", *which, "--history", "--json").stdout
        assert f"session_entry:{s.id}#was entry was" in history
    rows, cursor = [], None
    while True:
        page = s.client.object_scan(session=s.id, limit=1, cursor=cursor)
        rows += page.objects
        if (cursor := page.next_cursor) is None:
            break
    assert {(row.object, row.label) for row in rows} == {
        (f"session_entry:{s.id}#token", "entry token"),
        (f"session:{s.id}", "tools declared in assembly 1"),
    }


@pytest.mark.own_daemon
@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_secrets_in_deltas_and_summaries_of_commits_of_clients(
    daemon: Running, client: SyncClient, start: Start
) -> None:
    s = start(secrets="off", checkpoint="turn")
    s.user(f"use {TOKEN}")
    own = client.context_current(session=s.id).context_id
    line = json.dumps({"type": "user", "message": {"role": "user", "content": f"Use {OTHER}."}}) + "\n"
    captured = client.commit_checkpoint("claude-code-v1", line, session=s.id).commit.commit
    unknown = client.commit_checkpoint("own-v1", f"it is {TOKEN}", session=s.id, summary=f"with {OTHER}").commit.commit
    binary = client.commit_checkpoint("own-v1", delta_base64=b64encode(b"\xff" + TOKEN.encode()).decode(), session=s.id)
    for which in (("-s", s.id), ("--all",), ("--all", "--history")):
        done = ctx(daemon.socket, "scan", *which, "--json")
        assert done.returncode == 8 and TOKEN not in done.stdout and OTHER not in done.stdout
        found = {(item["place"].split()[0], item["rule"]) for item in json.loads(done.stdout)["items"]}
        wanted = {(captured, "openai-key"), (unknown, "github-token"), (unknown, "openai-key")}
        assert wanted <= {(place.removeprefix("commit:"), rule) for place, rule in found}
        places = {place for place, _ in found}
        assert f"commit:{own}" not in places, "the chat has the same text"
        assert f"commit:{binary.commit.commit}" not in places, "bytes are not searched"


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_finds_a_secret_in_an_earlier_summary_of_a_commit_with_history(
    daemon: Running, client: SyncClient, start: Start
) -> None:
    s = start(secrets="off")
    made = client.commit_checkpoint("own-v1", "plain", session=s.id, summary=f"with {OTHER}").commit.commit
    client.commit_annotate(made, "nothing secret")
    assert ctx(daemon.socket, "scan", "-s", s.id).returncode == 0
    done = ctx(daemon.socket, "scan", "-s", s.id, "--history", "--json")
    assert done.returncode == 8
    assert [(each["place"].split()[0], each["rule"]) for each in json.loads(done.stdout)["items"]] == [
        (f"commit:{made}", "openai-key")
    ]


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_leaves_out_deltas_above_its_limit_and_reports_their_number(
    daemon: Running, client: SyncClient, start: Start
) -> None:
    s = start(secrets="off")
    s.user("hello")
    upload(client, "large", b"\xff" * (SCANNED_DELTA_BYTES_MAX + 1))
    put = client.artifact_put(upload="large")
    client.commit_checkpoint("own-v1", artifact=put.artifact, session=s.id)
    done = ctx(daemon.socket, "scan", "-s", s.id)
    assert done.returncode == 0
    assert "1 commit is left out: its delta has more than 16 MiB" in done.stderr


@pytest.mark.requirement("SEC-7")
def test_ctx_scan_names_a_damaged_commit_beside_the_secrets_that_it_finds(tmp_path: Path) -> None:
    line = json.dumps({"type": "user", "message": {"role": "user", "content": "unique text " * 40}}) + "\n"
    with Running(tmp_path, keep_state=True) as daemon, connect_sync(daemon.socket) as client:
        s = client.session(agent="a", secrets="off")
        s.user(f"use {TOKEN}")
        made = client.commit_checkpoint("claude-code-v1", line, session=s.id).commit
    with closing(sqlite3.connect(tmp_path / "state/state.db")) as database, database:
        changed = "UPDATE content SET bytes=zeroblob(length(bytes)) WHERE hash=?"
        assert database.execute(changed, [bytes.fromhex(str(made.artifact_ref))]).rowcount == 1
    with Running(tmp_path, keep_state=True) as daemon:
        done = ctx(daemon.socket, "scan", "--all", "--json")
    assert done.returncode == 1
    assert f"chat:{s.id} turn 1" in [item["place"] for item in json.loads(done.stdout)["items"]]
    assert f"1 commit cannot be read: commit:{made.commit}" in done.stderr


@pytest.mark.own_daemon
@pytest.mark.requirement("SEC-7")
def test_a_scan_of_all_objects_is_independent_of_the_page_size(start: Start) -> None:
    sessions = [start(labels={"deploy": f"with {OTHER}"}) for _ in range(4)]
    for s in sessions:
        s.user(f"use {TOKEN}")
    client = sessions[0].client

    def found(limit: int) -> list[str]:
        ids: list[str] = []
        cursor: str | None = None
        while True:
            page = client.object_scan(cursor=cursor, limit=limit)
            ids += [row.object for row in page.objects]
            cursor = page.next_cursor
            if cursor is None:
                return ids

    expected = found(1000)
    assert {f"{kind}:{s.id}" for s in sessions for kind in ("chat", "session")} <= set(expected)
    assert found(1) == found(3) == expected
