"""The commands against the daemon as it is: what they print for people, and which JSON for programs."""

import io
import json
import re
import subprocess
import sysconfig
from pathlib import Path
from time import sleep

import cbor2
import msgspec
import pytest

from ctxd.cli.top import between, sample
from ctxd_client import connect_sync
from ctxd_protocol.methods import METHODS
from tests.fakes.daemon import HOLD, Refusal, smallest
from tests.unit.cli.conftest import process

pytestmark = pytest.mark.timeout(120)


def test_status_reports_a_healthy_daemon(real):
    ran = real("status")
    assert ran.code == 0
    assert re.match(r"state        ready\nversion      \S+, pid \d+, start 1, up \d+s\n", ran.out)
    assert real("status", "--json").json["store"]["state"] == "ok"


def test_sessions_are_made_listed_shown_paused_resumed_and_closed(real, tmp_path):
    made = real("session", "new", "cli", "--id", f"cli-{tmp_path.name}", "--label", "k=v", "--budget", "100", "-q")
    id = made.out.strip()
    assert (made.code, id) == (0, f"cli-{tmp_path.name}")
    assert real("session", "new", "cli", "--id", id).code == 4
    listed = real("session", "ls", "--agent", "cli", "--json").json
    assert set(listed) == {"items", "next_cursor", "total"}
    assert [item["session"] for item in listed["items"]] == [id]
    assert real("session", "ls", "--agent", "cli", "-q").out == f"{id}\n"
    table = real("session", "ls", "--agent", "cli").out.splitlines()
    columns = ["SESSION", "UPDATED", "AGENT", "STATE", "PROJECT", "TURNS", "ACTIVE", "INDEX", "TITLE"]
    assert table[0].split() == columns
    assert table[1].split()[:5] == [id, table[1].split()[1], "ago", "cli", "active"]
    shown = real("session", "show", id)
    assert "budget    100 tokens\nlabel     k=v\n" in shown.out
    assert real("session", "show", id, "--json").json["labels"] == {"k": "v"}
    assert real("session", "pause", id).out == f"{id} is paused\n"
    assert real("session", "resume", id).out.startswith(f"{id} is active: 0 files unchanged")
    closed = real("session", "close", id, "--json").json
    assert closed["session"]["state"] == "closed"
    assert real("session", "resume", id).code == 1
    assert real("session", "show", "nobody").code == 3


@pytest.mark.requirement("LST-11")
def test_a_session_of_a_harness_whose_turns_are_in_commits_is_not_listed_with_0(real, tmp_path):
    id = real("session", "new", "imported", "--id", f"i-{tmp_path.name}", "-q").out.strip()

    def turns() -> str:
        head, row = real("session", "ls", "--agent", "imported").out.splitlines()
        return row[head.index("TURNS") : head.index("ACTIVE")].strip()

    assert turns() == "0"
    assert real("session", "label", id, "harness=pi").code == 0
    assert turns() == ""


def test_a_session_that_detects_filesystems_by_device_is_labelled(real):
    assert "devices   distinguish filesystems" in real("session", "new", "disks", "--detect-filesystems").out
    assert "tell filesystems" not in real("session", "new", "disks").out


@pytest.mark.requirement("CLI-3")
def test_the_context_is_shown_as_a_bar_to_scale_and_a_table_of_blocks_with_reasons(real, session):
    ran = real("context")
    head, context, drawn, *rest = ran.out.splitlines()
    newest = session.assemblies().assemblies[-1]
    assert head.startswith(f"{session.id}  turn 2  assembly 2  {newest.tokens} tokens  ")
    assert re.fullmatch(rf"context       {newest.context_id}  \d+ B unchanged at the start", context)
    assert re.fullmatch(r"\[S+M+C+A+\]", drawn)
    assert len(drawn) == 74
    assert [line[0] for line in rest[:4]] == ["S", "M", "C", "A"]
    header = rest.index("") + 1
    assert rest[header].split() == ["SECTION", "OBJECT", "TOKENS", "REASON", "TEXT"]
    assert "system prompt" in rest[header + 1]
    assert "\x1b" not in ran.out, "a table never carries a control character, not even into a pipe"
    assert "first\\x1b[2J" in ran.out


def test_context_text_is_the_models_view_byte_for_byte(real, running, session):
    with connect_sync(running.socket) as client:
        text = client.context_assemble(session.id).text
    assert process("context", session.id, "--text", "--socket", running.socket).stdout == text
    whole = real("context", "--json").json
    assert whole["text"] == text
    for block in whole["blocks"]:
        assert text.encode()[block["offset"] :].startswith(block["text"].encode())
    assert {block["reason"] for block in whole["blocks"]} >= {"system prompt", "chat"}


@pytest.mark.requirement("CLI-3")
def test_an_earlier_turn_is_rendered_again_and_two_are_compared(real, session):
    assert "two" not in real("context", "--turn", "1", "--text").out
    assert real("context", "--assembly", "1", "--text").out == real("context", "--turn", "1", "--text").out
    diff = real("context", "--diff", "1", "2").out
    assert diff.startswith("--- assembly 1 (turn 1)\n+++ assembly 2 (turn 2)\n")
    assert "\n+two\n" in diff
    assert real("context", "--diff", "t1", "t2").out == diff
    assert real("context", "--diff", "1", "2", "--json").json == {"from": 1, "to": 2, "diff": diff}
    assert real("context", "--diff", "1", "99").code == 3
    same = real("context", "--diff", "1", "1")
    assert (same.code, same.out, same.err) == (0, "", "no difference\n")


@pytest.mark.requirement("CLI-3")
def test_a_turn_or_time_without_an_assembly_is_rejected_naming_the_existing_ones(real, session):
    refused = real("context", "--turn", "99")
    assert (refused.code, refused.err.count("\n")) == (3, 1)
    newest = real("context", "--json").json["turn"]
    listing = f"ctx context {session.id} --list lists all"
    assert f"no assembly in turn 99; the newest assembly is of turn {newest}; {listing}" in refused.err
    early = real("context", "@{2001-01-01}")
    assert early.code == 3
    assert "choose a later time: the first one was made at 2" in early.err


@pytest.mark.requirement("WHY-1")
def test_why_an_object_is_in_the_window_is_explained(real, session):
    call = f"call-of-{session.id}"
    out = real("context", "--why", call).out.splitlines()
    assert out[0] == "bash: ls is in the window: its call was recorded"
    assert out[1].startswith("since assembly 1, turn 1, ")
    assert out[2].startswith("now active; id ")
    found = real("context", "--why", call, "--json").json
    assert (found["shown"], found["rule"], found["since"]["number"]) == ("whole", "recorded", 1)
    assert real("context", "--why", "nothing-like-it").code == 3
    assert real("context", "--why", call, "--plan", "10").code == 2
    past = real("context", "@~0", "--why", call)
    assert past.code == 2
    assert "--why explains the newest window" in past.err


@pytest.mark.requirement("WHY-1")
def test_why_takes_the_path_of_a_file(real, session, tmp_path):
    file = tmp_path / "why.md"
    file.write_text("# why\n")
    session.read(str(file))
    session.assemble()
    by_path = real("context", "--why", str(file))
    assert by_path.out.splitlines()[0].endswith("why.md is in the window: it was read"), by_path.err


def test_a_plan_lists_the_objects_a_budget_would_drop(real, session):
    ran = real("context", "--plan", "10")
    assert re.match(r"budget 10 tokens, context \d+, \d+ without \d+ objects, over by \d+", ran.out)
    assert real("context", "--plan", "1,000,000").out.startswith("budget 1,000,000 tokens, context ")
    assert real("context", "--plan").out.startswith("no budget, ")
    assert real("context", "--plan", "10", "--json").json["budget_tokens"] == 10


def test_a_paused_session_shows_its_last_context_with_a_note(real, session):
    session.pause()
    ran = real("context", "--text")
    assert ran.code == 0
    assert "two" in ran.out
    assert ran.err.endswith("this is what its model saw last\n")


def test_objects_are_listed_read_compared_and_read_as_of_a_time(real, session):
    listed = real("object", "ls", "--json").json
    (file,) = [item["object"] for item in listed["items"] if item["type"] == "file"]
    assert set(listed) == {"items", "next_cursor"}
    assert real("object", "ls", "--type", "file", "-q").out == f"{file}\n"
    assert file[:12] in real("object", "ls").out
    for name in (file, file[:12], "/w/a.py"):
        assert real("object", "cat", name).out == "one\ntwo\n"
    rows = real("object", "history", file, "--json").json["items"]
    assert [row["state"] for row in rows] == ["present", "present", "unread"]
    first = real("object", "history", file, "--limit", "2")
    cursor = re.fullmatch(r"more results: --cursor (\S+)\n", first.err)[1]
    assert len(first.out.splitlines()) == 3, "a header and two versions"
    last = real("object", "history", file, "--limit", "2", "--cursor", cursor)
    assert "unread" in last.out.splitlines()[1] and last.err == ""
    assert real("object", "history", file, "-q").out.split() == [str(row["tx"]) for row in rows]
    assert real("object", "history", file).out.splitlines()[0].split() == [
        "VALID",
        "FROM",
        "SEQ",
        "STATE",
        "CHARS",
        "CONTENT",
    ]
    assert "\n one\n+two\n" in real("object", "diff", file).out
    assert real("object", "diff", file, str(rows[1]["tx"]), str(rows[0]["tx"])).out == real("object", "diff", file).out
    old = real("object", "as-of", file, str(rows[1]["valid_time"]))
    assert old.out == "one\n"
    assert "journal sequence" in old.err
    assert real("object", "as-of", file, "--tx", str(rows[1]["tx"])).out == "one\n"
    assert real("object", "as-of", file, "1h").code == 3, "there was no such file then"
    assert real("object", "cat", file, "--json").json["payload"]["content"] == "one\ntwo\n"
    assert real("object", "as-of", file, str(rows[2]["valid_time"])).code == 3, "unread: there is no text"


def test_an_object_is_named_by_a_path_from_here_or_from_where_its_agent_works(real, running, session, monkeypatch):
    id = real("object", "ls", "--type", "file", "-q").out.strip()
    assert real("object", "cat", "a.py").out == "one\ntwo\n", "from the session's working directory"
    monkeypatch.setattr("os.getcwd", lambda: "/w")
    assert real("object", "cat", "./a.py").out == "one\ntwo\n"
    assert real("activate", "a.py").out.startswith(id)
    call = f"call-of-{session.id}"
    with connect_sync(running.socket) as client:
        client.file_index(session.id, f"/w/{call}", content="a file that is called as a tool call is")
    assert real("object", "cat", call).out == "a.py\n", "an id goes before a name"


def test_the_error_for_a_path_without_object_names_the_typed_path(real, session):
    ran = real("object", "cat", "/w/none.py")
    assert (ran.code, ran.out) == (3, "")
    assert ran.err.startswith("ctx: no object for the file /w/none.py; ctx object ls lists known objects")
    assert "no object none.py" in real("object", "cat", "none.py").err


def test_a_diff_is_in_patch_format_for_every_line_ending(real, running, session):
    with connect_sync(running.socket) as client:
        for text in ("a\fb", "a\fc\n", "a\fc\r\nd"):
            file = client.file_index(session.id, "/w/odd.txt", content=text).object
    newest, middle, oldest = [str(row["tx"]) for row in real("object", "history", file, "--json").json["items"]]
    ran = real("object", "diff", file, oldest, middle)
    assert ran.out.split("\n")[2:] == ["@@ -1 +1 @@", "-a\fb", "\\ No newline at end of file", "+a\fc", ""]
    assert real("object", "diff", file, oldest, middle, "--json").json["diff"] == ran.out
    last = real("object", "diff", file, middle, newest).out
    assert last.split("\n")[3:] == ["-a\fc", "+a\fc\r", "+d", "\\ No newline at end of file", ""]


def test_an_object_without_text_is_shown_with_the_reason(real, running, session, tmp_path):
    (tmp_path / "tree/b.bin").write_bytes(b"\x00")
    with (tmp_path / "tree/large").open("wb") as large:
        large.truncate(2**30)
    with connect_sync(running.socket) as client:
        file = client.file_index(session.id, "/w/b.bin").object
        client.file_index(session.id, "/w/large")
        (tmp_path / "tree/b.bin").write_bytes(b"\x01\x00")
        client.file_index(session.id, "/w/b.bin")
        (tmp_path / "tree/seen").write_text("x")
        client.file_discover(session.id, ["/w/seen"])
    assert (
        "/w/b.bin has no text: it is binary: application/octet-stream, 2 B; --json shows"
        in real("object", "cat", file).err
    )
    assert "/w/large has no text: it is too large: 1.0 GiB" in real("object", "cat", "/w/large").err
    assert "/w/seen has no text: it is unread; ctx activate reads it" in real("object", "cat", "/w/seen").err
    assert re.fullmatch(
        r"/w/b\.bin seq \d+ and /w/b\.bin seq \d+ differ: of seq \d+ no text is kept, it is binary: [a-z/-]+, \d B\n",
        real("object", "diff", file).out,
    )


def test_chats_and_sessions_are_printed_and_compared(real, session):
    assert '"content": "second"' in real("object", "cat", f"chat:{session.id}").out
    assert f'"chat_ref": "chat:{session.id}"' in real("object", "cat", f"session:{session.id}").out
    diff = real("object", "diff", f"chat:{session.id}").out
    assert [line for line in diff.splitlines() if line.startswith("+") and "second" in line]
    assert "second" not in real("object", "as-of", f"chat:{session.id}", "--tx", "1").out


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_declined_purge_destroys_nothing_and_prompts_on_stderr(real, session, monkeypatch, more):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stdin", Terminal("n\n"))
    id = f"call-of-{session.id}"
    ran = real("purge", id, *more)
    assert (ran.code, ran.out.strip()) == (1, "")
    assert ran.err.startswith("Erase every version of") and "nothing was purged" in ran.err
    assert real("object", "cat", id).out == "a.py\n"


def test_a_purge_without_a_terminal_needs_yes(real, session):
    id = f"call-of-{session.id}"
    ran = real("purge", id)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("; add --yes\n")
    assert real("object", "cat", id).out == "a.py\n"


def test_objects_are_moved_in_and_out_of_the_window(real, session):
    with_id = real("pin", "/w/a.py")
    assert with_id.out.endswith(" is active, pinned\n")
    assert real("pin", "/w/a.py").out.endswith("(it was so already)\n")
    assert real("unpin", "/w/a.py").code == 0
    assert real("deactivate", "/w/a.py", "--json").json["items"][0]["level"] == "inactive"
    assert real("activate", "/w/a.py").out.endswith(" is active\n")
    assert real("activate", "0" * 64).code in (1, 3)


def test_rpc_calls_any_method_and_lists_them(real, session, monkeypatch):
    assert real("rpc", "context.current", f'{{"session": "{session.id}"}}').json["turn"] == 2
    lines = real("rpc").out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(METHODS)
    assert [item["method"] for item in real("rpc", "--json").json["items"]] == list(METHODS)

    import io

    monkeypatch.setattr("sys.stdin", io.StringIO('{"limit": 1}'))
    assert len(real("rpc", "session.list", "-").json["sessions"]) == 1


def test_watch_prints_foreign_changes_one_line_each(real, running, session, tmp_path):
    path = tmp_path / "tree" / "a.py"
    with connect_sync(running.socket) as client:
        other = client.session(agent="other", workdir=str(path.parent))
        path.write_text("three\n")
        other.edited(str(path))
    ran = real("watch", "--after", "0", "--count", "1")
    assert re.match(r"\S+ \S+Z  \d+  updated  /w/a\.py by \S+\n$", ran.out), ran.out
    assert real("watch", "--after", "0", "--count", "1", "--json").json["change"] == "updated"


def test_doctor_checks_the_host_and_exits_with_7_only_when_a_check_failed(real, running, tmp_path, monkeypatch):
    monkeypatch.setenv("CTXD_STATE_DIR", str(tmp_path / "state"))
    ran = real("doctor")
    assert ran.code == 0, ran.out
    assert "✓ daemon                       ready, pid" in ran.out
    assert re.match(r"^[✓!✗ ] ", ran.out)
    report = real("doctor", "--json").json
    assert report["failed"] == 0
    assert len({check["name"] for check in report["items"]}) >= 15
    lost = real("doctor", "--socket", str(tmp_path / "none.sock"))
    assert lost.code == 7
    assert "✗ daemon" in lost.out
    assert "fix: " in lost.out


def test_doctor_reports_a_socket_without_a_listener(ctx, tmp_path):
    import socket

    path = tmp_path / "stale.sock"
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(path))
    path.chmod(0o600)
    ran = ctx("doctor", "--socket", str(path))
    assert ran.code == 7
    assert "connection refused" in ran.out
    assert f"ctxd run --state-dir DIR --socket {path}" in ran.out


def test_doctor_distinguishes_a_stuck_daemon_from_a_missing_one(ctx, tmp_path, monkeypatch):
    import socket

    monkeypatch.setattr("ctxd.cli.doctor.ANSWER_S_MAX", 0.2)
    path = tmp_path / "stuck.sock"
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.bind(str(path))
        path.chmod(0o600)
        stuck.listen()
        ran = ctx("doctor", "--socket", str(path))
    assert ran.code == 7
    assert re.search(r"✗ daemon +no reply from .*\n +fix: look for the reason", ran.out), ran.out


GOLDEN = """\
OBJECT        TYPE      STATE    LEVEL          CHARS  LABEL
0123456789ab  file      present  active pinned  1,204  /workspace/a\\nb.py
call_1        toolcall  present                        bash
"""


def test_a_listing_for_a_terminal_has_the_expected_form(scripted, daemon):
    daemon.script["object.list"] = lambda seen: {
        "objects": [
            {"object": "0123456789abcdef" * 4, "type": "file", "state": "present", "label": "/workspace/a\nb.py",
             "char_count": 1204, "level": "active", "pinned": True},
            {"object": "call_1", "type": "toolcall", "state": "present", "label": "bash", "char_count": None,
             "level": None, "pinned": False},
        ],
        "next_cursor": "more",
    }  # fmt: skip
    ran = scripted("object", "ls", "--all")
    assert ran.out == GOLDEN
    assert ran.err == "more results: --cursor more\n"


def test_several_objects_are_moved_until_one_fails(scripted, daemon):
    def second_fails(seen):
        if seen.params["object"] == "bad":
            raise Refusal("not_in_index", "it is not there", outcome="not_applied")
        return {"object": seen.params["object"], "level": "active", "pinned": False, "changed": True, "receipt": None}

    daemon.script["session.activate"] = second_fails
    ran = scripted("activate", "good", "bad", "never", "-s", "s1")
    assert (ran.code, ran.out) == (3, "good is active\n")
    assert ran.err == "ctx: it is not there\n"
    assert [seen.params["object"] for seen in daemon.of("session.activate")] == ["good", "bad"]


@pytest.mark.requirement("CLI-8")
def test_top_shows_rates_between_two_samples(real, session):
    found = real("top", "--once", "--interval", "0.1", "--json").json
    assert found["calls_per_s"] > 0
    assert found["writes_per_s"] == 0
    assert found["status"]["sessions_live"] >= 1
    shown = real("top", "--once", "--interval", "0.1").out
    assert re.match(r"ctxd \S+  ready  pid \d+  up \S+", shown)
    assert "\x1b" not in shown, "nothing moves the cursor of what is no terminal"
    assert real("top", "--interval", "0").code == 2


@pytest.mark.requirement("CLI-8")
def test_top_counts_from_its_start_when_the_daemon_was_restarted_meanwhile(running):
    with connect_sync(running.socket) as client:
        now = sample(client)
    earlier = msgspec.structs.replace(now.status, incarnation=now.status.incarnation - 1, requests=10**9)
    found = between(msgspec.structs.replace(now, status=earlier), now)
    assert found.calls_per_s == round(now.status.requests / found.seconds, 1)
    assert found.writes_per_s == 0


def offered(socket, line):
    """Complete ``line`` as bash would."""
    environ = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1), "_CTX_COMPLETE": "bash_complete"}
    done = process(**environ, CTXD_SOCKET=socket)
    assert (done.returncode, done.stderr) == (0, "")
    return [each.partition(",")[2] for each in done.stdout.splitlines() if each]


@pytest.mark.requirement("CLI-12")
def test_a_shell_completes_ids_and_paths_that_the_daemon_knows(running, session):
    assert session.id in offered(running.socket, f"ctx session show {session.id[:2]}")
    assert offered(running.socket, f"ctx object cat -s {session.id} /w/") == ["/w/a.py"]
    assert offered(running.socket, f"ctx pin -s {session.id} call-of-") == [f"call-of-{session.id}"]


@pytest.mark.requirement("CLI-12")
def test_completion_offers_nothing_when_no_daemon_answers(daemon, tmp_path):
    assert offered(str(tmp_path / "none.sock"), "ctx session show ") == []
    daemon.script["session.list"] = lambda seen: HOLD
    assert offered(daemon.path, "ctx session show ") == []


@pytest.mark.requirement("CLI-12")
def test_completion_finds_the_socket_of_the_settings(running, session, clean, tmp_path):
    (tmp_path / "config/ctxd").mkdir(parents=True)
    (tmp_path / "config/ctxd/ctxd.toml").write_text(f"socket = '{running.socket}'")
    assert session.id in offered("", f"ctx session show {session.id[:2]}")


@pytest.mark.requirement("CLI-12")
def test_completion_offers_nothing_if_its_calls_together_take_too_long(daemon):
    def slow(seen):
        sleep(0.15)
        return smallest(METHODS[seen.method].result)

    daemon.script["commit.list"] = daemon.script["session.list"] = slow
    assert offered(daemon.path, "ctx show ") == []
    assert len(daemon.of("session.list")) == 1, "each call alone is in time"


@pytest.mark.requirement("FMT-6")
def test_a_transcript_is_written_in_another_format(tmp_path):
    file = tmp_path / "session.jsonl"
    file.write_text(
        '{"type":"user","uuid":"u1","sessionId":"S","message":{"role":"user","content":"hi"}}\n'
        '{"type":"queue-operation","operation":"popAll","sessionId":"S"}\n'
    )

    def run(wanted):
        program = Path(sysconfig.get_path("scripts")) / "ctx"
        return subprocess.run([program, "transcript", file, "--as", wanted], capture_output=True, timeout=60)

    message = cbor2.loads(run("bureau-agent-v1").stdout)[0]
    assert (message["Role"], message["Content"][0]["Text"]) == ("user", "hi")
    assert run("bureau-agent-v1").stderr.decode().splitlines() == [
        "lost: 1 of prompt.id", "lost: 1 of prompt.meta", "lost: 1 of queue-operation",
    ]  # fmt: skip
    assert run("claude-code-v1").stdout == file.read_bytes()
    narrative = run("codex-v1")
    assert narrative.stdout.decode() == "# Conversation of an earlier session\n\n## User\n\nhi\n"
    assert "cannot be written as codex-v1; the output is narrative-v1" in narrative.stderr.decode()
    assert run("nonsense").returncode == 2


def test_a_transcript_is_shown_without_a_daemon(ctx, tmp_path):
    file = tmp_path / "rollout.jsonl"
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi \x1b[2J"}]}
    file.write_text(json.dumps({"type": "response_item", "payload": item}) + "\n")
    assert ctx("transcript", str(file)).out.split() == ["prompt", "hi", "\\x1b[2J"]
    assert json.loads(ctx("transcript", str(file), "--json").out) == {
        "event": "prompt",
        "line": 1,
        "text": "hi \x1b[2J",
    }
    summary = ctx("transcript", str(file), "--summary", "--json").json
    assert (summary["format"], summary["events"]) == ("codex", {"prompt": 1})
    assert ctx("transcript", str(tmp_path)).err == f"ctx: cannot read {tmp_path}: Is a directory\n"
    file.write_text("{}\n")
    ran = ctx("transcript", str(file))
    assert (ran.code, ran.out) == (2, "")
    assert "not a transcript of Claude Code, codex, pi or opencode" in ran.err


def test_rows_of_a_query_are_printed_one_a_line_as_they_read(scripted, daemon):
    daemon.script["object.query"] = lambda _: {"rows": [["grün", 1], ["b", None]], "complete": False, "tx": 1}
    ran = scripted("query", "{:find [e]}", '"s1"', "--limit", "2", "--time", "1.5")
    assert ran.out == '["grün", 1]\n["b", null]\n'
    assert ran.err == "more than 2 rows: raise --limit, or narrow the query\n"
    (asked,) = daemon.of("object.query")
    assert (asked.params["args"], asked.params["limit"], asked.params["timeout_ms"]) == (["s1"], 2, 1500)
    daemon.script["object.query"] = lambda _: {"rows": [], "complete": True, "tx": 1}
    assert (scripted("query", "{:find [e]}").out, scripted("query", "{:find [e]}").err) == ("", "")


def test_each_event_of_a_transcript_is_one_line_cut_to_200_characters(ctx, tmp_path):
    def user(text, **more):
        return {"type": "user", "sessionId": "S", "uuid": "u", "message": {"role": "user", "content": text}, **more}

    call = {"type": "tool_use", "id": "1", "name": "bash", "input": {"command": "ls"}}
    file = tmp_path / "session.jsonl"
    records = [
        user("x" * 300),
        user("the story so far", isCompactSummary=True),
        {"type": "assistant", "sessionId": "S", "message": {"id": "m", "role": "assistant", "content": [call]}},
    ]
    file.write_text("".join(json.dumps(record) + "\n" for record in records))
    lines = ctx("transcript", str(file)).out.splitlines()
    assert [line.split()[0] for line in lines] == ["prompt", "compaction", "tool_call"]
    assert (lines[0].count("x"), lines[1].split(maxsplit=1)[1]) == (200, "the story so far")
    assert lines[2].endswith("bash {'command': 'ls'}")


def test_doctor_on_a_sandbox_socket_runs_only_sandbox_checks(real, running, session):
    with connect_sync(running.socket) as client:
        box = client.sandbox_register([session.id], grants=()).sandbox
        ran = real("doctor", "--socket", box.socket)
        assert ran.code == 0 and "replies on a sandbox's socket" in ran.out and "state dir" not in ran.out
        refused = real("session", "ls", "--socket", box.socket)
        assert refused.code == 6 and "this connection may not call session.list: its socket or" in refused.err
        assert "ctx rpc hello lists its methods" in refused.err


def test_an_import_that_a_sandbox_may_not_make_ends_at_its_first_refusal(real, running, session, tmp_path):
    for number in range(3):
        line = {"type": "user", "uuid": f"u{number}", "parentUuid": None, "message": {"role": "user", "content": "x"}}
        (tmp_path / f"s{number}.jsonl").write_text(json.dumps(line) + "\n")
    with connect_sync(running.socket) as client:
        box = client.sandbox_register([session.id], grants=()).sandbox
        ran = real("import", "claude", str(tmp_path), "--socket", box.socket)
    assert (ran.code, ran.out, ran.err.count("\n")) == (6, "", 1) and "this connection may not call" in ran.err


def test_a_session_without_a_commit_is_named_with_the_command_that_makes_one(real, session):
    ran = real("show", session.id)
    assert (ran.code, ran.out) == (3, "")
    assert ran.err == f"ctx: session {session.id} has no commit yet; ctx current -s {session.id} creates one\n"


def test_an_export_of_a_session_whose_conversation_is_in_commits_names_them(real, running, tmp_path):
    (tmp_path / "delta").write_text('{"type":"user","message":{"role":"user","content":"x"}}\n')
    with connect_sync(running.socket) as client:
        id = client.session_create("demo").session.session
    made = real("checkpoint", "-s", id, "--format", "claude-code-v1", "--json", str(tmp_path / "delta")).json
    for words in ((), ("--json",)):
        ran = real("session", "export", id, *words)
        assert ran.code == 0 and f"ctx materialize {made['commit']} --stop root" in ran.err


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (("search", ""), "`query` is empty"),
        (("artifact", "get", "zz"), "`artifact` has fewer than 4 characters"),
        (
            ("session", "new", "demo", "--id", "x y"),
            "`session` is not valid: it must be a letter or digit, then letters, digits or . _ : @ / -, at most",
        ),
        (
            ("rpc", "commit.annotate", '{"commit": "x"}'),
            "`commit` is not valid: it must be ctx- and 8 to 64 lower-case hexadecimal digits",
        ),
        (
            ("rpc", "commit.tag", '{"commit": "ctx-12345678", "tag": "a b"}'),
            "digits or . _ / -, at most 128 characters",
        ),
    ],
)
def test_a_value_of_the_wrong_form_is_refused_in_words(real, session, command, reason):
    ran = real(*command)
    assert ran.code == 2 and reason in ran.err, ran.err
