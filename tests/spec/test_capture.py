"""``ctx capture`` in processes of its own: scripted agents that print stream-json, a real daemon, and kills of each."""

import json
import os
import signal
import subprocess
import sys
import sysconfig
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxd.capture.event_chains import EventChains
from ctxd.cli.capture_from_file import _committed
from ctxd.cli.commit_delivery import Chain
from ctxd.clock import SystemClock
from ctxd.formats.delta_formats import DELTA_FORMATS
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import CompactionEvent, Event, OpaqueEvent, PromptEvent, ResponseEvent
from ctxd_protocol.methods.commits import Commit
from tests import programs
from tests.client.running import Running
from tests.waiting import block_until

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
WAIT_S = 60.0

AGENT = """
import json, os, sys, time

def line(**record):
    sys.stdout.write(json.dumps(record, separators=(",", ":")) + "\\n")
    sys.stdout.flush()

def says(*blocks, **more):
    line(type="assistant", session_id="S", message={"id": "m", "role": "assistant", "content": list(blocks)}, **more)

def told(*blocks):
    line(type="user", session_id="S", message={"role": "user", "content": list(blocks)})

capture = os.getppid()

def until(path):
    end = time.monotonic() + 60
    while not os.path.exists(path) and os.getppid() == capture and time.monotonic() < end:
        time.sleep(0.01)

def text(text):
    return {"type": "text", "text": text}

def call(id):
    return {"type": "tool_use", "id": id, "name": "Bash", "input": {"command": "ls"}}

def result(id, content):
    return {"type": "tool_result", "tool_use_id": id, "content": content}

line(type="system", subtype="init", session_id="S", tools=["Bash"], model="m")
"""
"""Start of each scripted agent: the forms of its lines. It waits for a file no longer than its capture lives."""

TURN = """
says({"type": "thinking", "thinking": "hm", "signature": "sig"}, text("look"), call("c1"))
told(result("c1", "a.py"))
says(text("done"))
line(type="result", subtype="success", num_turns=1, total_cost_usd=0.0425,
     usage={"input_tokens": 5, "output_tokens": 2})
"""


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as daemon:
        yield daemon


def environ(socket: str) -> dict[str, str]:
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("CTXD_")},
        "CTXD_SOCKET": socket,
        "XDG_STATE_HOME": str(Path(socket).parent / "user"),
    }


def undelivered(daemon: Running) -> list[Path]:
    """Files of commits that captures could not deliver."""
    return sorted((daemon.folder / "user" / "ctx-capture").rglob("*.jsonl"))


def captured(
    daemon: Running, body: str, *options: str, stdin: bytes | None = None
) -> subprocess.CompletedProcess[bytes]:
    """``ctx capture`` of a scripted agent, or of ``stdin``."""
    agent = [] if stdin is not None else ["--", sys.executable, "-c", AGENT + body]
    words = ["capture", *options, *(["--stdin"] if stdin is not None else []), *agent]
    return programs.run_bytes("ctx", words, input=stdin or b"", timeout=WAIT_S, env=environ(daemon.socket))


@contextmanager
def running(daemon: Running, body: str, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """``ctx capture`` of a scripted agent that does not end by itself."""
    words = [str(CTX), "capture", *options, "--", sys.executable, "-c", AGENT + body]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(daemon.socket))
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=WAIT_S)


def chain(client: SyncClient) -> list[Commit]:
    """All commits, oldest first; each is the child of the one before."""
    found = [*reversed(client.commit_list(limit=1000).commits)]
    assert [commit.parent for commit in found] == [None, *(commit.commit for commit in found)][: len(found)]
    return found


def events(client: SyncClient, commit: str, stop: str = "root") -> list[Event]:
    found = client.commit_materialize(commit, stop=stop)
    content = b64decode(found.content_base64) if found.content_base64 else (found.content or "").encode()
    return list(DELTA_FORMATS["events-v1"].events([content]))


def commits_within(client: SyncClient, number: int) -> list[Commit]:
    """The chain, once it has ``number`` commits."""
    return block_until(lambda: found if len(found := chain(client)) >= number else None) or []


def kinds(found: list[Event]) -> list[str]:
    return [type(event).__name__.removesuffix("Event") for event in found]


TURN_KINDS = ["System", "Thinking", "Response", "ToolCall", "ToolResult", "Response", "Opaque"]


# --- the agent notices nothing ---


@pytest.mark.requirement("CAP-5")
def test_output_and_exit_code_of_the_agent_are_unchanged(own: Running) -> None:
    odd = "sys.stdout.buffer.write(b'no JSON \\xff\\r\\n\\n' + b'x' * 2_000_000 + b'\\nno end'); sys.exit(7)"
    alone = subprocess.run([sys.executable, "-c", AGENT + TURN + odd], capture_output=True, timeout=WAIT_S)
    ran = captured(own, TURN + odd)
    assert ran.stdout == alone.stdout
    assert ran.returncode == alone.returncode == 7
    with connect_sync(own.socket) as client:
        commits = chain(client)
        assert ran.stderr.decode() == (
            f"ctx capture: 4 commits, the newest is {commits[-1].commit}, in no session (--session names one)\n"
        )
        found = events(client, commits[-1].commit)
    assert kinds(found) == [*TURN_KINDS, "Opaque", "Opaque", "Opaque"]
    raw = [event.data for event in found[-3:] if isinstance(event, OpaqueEvent)]
    assert raw == [b"no JSON \xff", "x" * 2_000_000, "no end"]


@pytest.mark.requirement("CAP-5")
def test_signals_reach_the_agent_and_death_by_signal_has_a_shells_exit_code(own: Running) -> None:
    with running(own, TURN + "until('/no/such/path')") as process, connect_sync(own.socket) as client:
        commits_within(client, 3)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_a_command_that_cannot_run_ends_as_in_a_shell(own: Running) -> None:
    def code(*words: str) -> int:
        env = environ(own.socket)
        return subprocess.run([CTX, "capture", *words], capture_output=True, timeout=WAIT_S, env=env).returncode

    assert code("--", "/no/such/agent") == 127
    assert code("--", "/etc/passwd") == 126
    assert code() == 2
    assert code("--stdin", "--", "true") == 2


@pytest.mark.requirement("CAP-5")
def test_an_agent_with_closed_output_ends_as_in_a_pipe(own: Running) -> None:
    body = "signal.signal(signal.SIGPIPE, signal.SIG_DFL)\nwhile True: says(text('on'))"
    with running(own, "import signal\n" + body) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(WAIT_S) == 128 + signal.SIGPIPE
        process.stdout = None
    with connect_sync(own.socket) as client:
        # Usually thousands: also of the piece that could not be written whole.
        assert client.commit_list(limit=1).commits


@pytest.mark.requirement("CAP-5")
@pytest.mark.parametrize("code", [0, 3])
def test_an_agent_ends_and_is_captured_whole_if_its_output_cannot_be_written(own: Running, code: int) -> None:
    body = f"print('x' * 400_000)\n{TURN}\nsys.exit({code})"
    words = [str(CTX), "capture", "--", sys.executable, "-c", AGENT + body]
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(words, stdout=full, stderr=subprocess.PIPE, timeout=WAIT_S, env=environ(own.socket))
    assert ran.returncode == (code or 1)
    note, commits = ran.stderr.decode().splitlines()
    assert note.startswith("ctx capture: standard output cannot be written: No space left on device; the rest of")
    assert commits.startswith("ctx capture: 3 commits, the newest is ")
    with connect_sync(own.socket) as client:
        assert kinds(events(client, chain(client)[-1].commit)) == [TURN_KINDS[0], "Opaque", *TURN_KINDS[1:]]


def test_an_agent_whose_child_holds_its_output_open_ends_all_the_same(own: Running) -> None:
    left = "import subprocess; p = subprocess.Popen(['sleep', '600'])\n"
    with running(own, left + TURN + "print(p.pid, flush=True)") as process:
        code = process.wait(WAIT_S)
        assert process.stdout is not None
        os.kill(int(process.stdout.read().split()[-1]), signal.SIGKILL)
    assert code == 0


# --- the chain ---


@pytest.mark.requirement("CAP-3")
def test_a_conversation_is_a_chain_of_commits_with_exact_figures(own: Running) -> None:
    captured(own, TURN, "--template", "bureau/template:x", "--ticket", "tkt-1", "--thread", "$t")
    with connect_sync(own.socket) as client:
        commits = chain(client)
        assert [commit.checkpoint for commit in commits] == ["turn_boundary", "turn_boundary", "session_end"]
        assert [commit.message_count for commit in commits] == [3, 2, 0]
        assert {(commit.template, commit.ticket_id, commit.thread_id) for commit in commits} == {
            ("bureau/template:x", "tkt-1", "$t")
        }
        found = events(client, commits[-1].commit)
        assert kinds(found) == TURN_KINDS
        assert kinds(events(client, commits[0].commit)) == TURN_KINDS[:4], "before the tool ran"
    metric = found[-1]
    assert isinstance(metric, OpaqueEvent)
    assert metric.data == {
        "status": "success", "turn_count": 1, "input_tokens": 5, "output_tokens": 2, "cost_usd": 0.0425,
        "cost_microdollars": 42500,
    }  # fmt: skip


@pytest.mark.requirement("CAP-5")
def test_output_on_standard_input_continues_a_chain_at_the_policy_that_was_chosen(own: Running) -> None:
    flat = [
        {"type": "user", "content": "go"},
        {"type": "assistant", "subtype": "tool_use", "tool_use_id": "c", "name": "Bash", "input": {}},
        {"type": "tool", "subtype": "result", "tool_use_id": "c", "content": "out"},
        {"type": "assistant", "subtype": "text", "text": "done"},
    ]
    stdin = b"".join(json.dumps(line).encode() + b"\n" for line in flat)
    ran = captured(own, "", "--checkpoint", "tool_call", stdin=stdin)
    assert (ran.returncode, ran.stdout) == (0, stdin)
    with connect_sync(own.socket) as client:
        commits = chain(client)
        assert [commit.checkpoint for commit in commits] == ["tool_call", "session_end"]
        captured(own, "", "--parent", commits[-1].commit, stdin=stdin)
        continued = chain(client)
        assert len(continued) == 4
        assert kinds(events(client, continued[-1].commit)) == ["Prompt", "ToolCall", "ToolResult", "Response"] * 2


@pytest.mark.requirement("CAP-4")
def test_a_compaction_is_a_commit_with_its_summary_where_the_context_begins(own: Running) -> None:
    body = """
line(type="system", subtype="compact_boundary", session_id="S", uuid="u", compact_metadata={"pre_tokens": 128000})
line(type="user", isSynthetic=True, session_id="S", message={"role": "user", "content": "we listed a.py"})
says(text("on"))
"""
    captured(own, TURN + body)
    with connect_sync(own.socket) as client:
        commits = chain(client)
        (compaction,) = [commit for commit in commits if commit.commit_type == "compaction"]
        assert (compaction.summary, compaction.checkpoint) == ("we listed a.py", "compaction")
        summary, answer = events(client, commits[-1].commit, stop="compaction")
        assert isinstance(summary, CompactionEvent)
        assert (summary.summary, summary.tokens_before) == ("we listed a.py", 128000)
        assert isinstance(answer, ResponseEvent)
        assert kinds(events(client, commits[-1].commit)) == [*TURN_KINDS, "Response"], "the root has each delta once"


@pytest.mark.requirement("CAP-3")
def test_a_signal_commits_at_once(own: Running, tmp_path: Path) -> None:
    body = f"line(type='user', content='pending')\nuntil({str(tmp_path / 'go')!r})"
    with running(own, body) as process, connect_sync(own.socket) as client:
        assert process.stdout is not None
        assert b"init" in process.stdout.readline()
        assert b"pending" in process.stdout.readline()
        commits: list[Commit] = []
        while sum(commit.message_count for commit in commits) < 1:
            # The line passes through before it is taken, so that the first signal may come too early.
            process.send_signal(signal.SIGUSR1)
            commits = chain(client)
        assert {commit.checkpoint for commit in commits} == {"explicit"}
        (tmp_path / "go").touch()
        assert process.wait(WAIT_S) == 0


@pytest.mark.requirement("CAP-6")
def test_a_secret_in_the_output_is_stored_nowhere(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    secret = "AKIAIOSFODNN7EXAMPLQ"
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            client.session("box", agent="a", secrets="redact")
        ran = captured(daemon, f"says(text('the key is {secret}'), call('c'))", "--session", "box")
        assert secret.encode() in ran.stdout
        with connect_sync(daemon.socket) as client:
            found = events(client, chain(client)[-1].commit)
    assert any("[REDACTED:" in event.text for event in found if isinstance(event, ResponseEvent))
    stored = [path for path in (tmp_path / "state").rglob("*") if path.is_file()]
    assert stored
    assert not [path for path in stored if secret.encode() in path.read_bytes()]


# --- whole transcripts ---


def session_line(kind: str, id: str, content: object, **more: object) -> str:
    record = {"type": kind, "uuid": id, "sessionId": "S", "message": {"role": kind, "content": content}, **more}
    return json.dumps(record) + "\n"


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    """A session of Claude Code of January 2025, with a sub-agent in a file of its own."""
    task = {"type": "tool_use", "id": "c1", "name": "Task", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "found it"}
    main = [
        session_line("user", "u1", "look", timestamp="2025-01-01T10:00:00.000Z"),
        session_line("assistant", "a1", [task], timestamp="2025-01-01T10:00:01.000Z"),
        session_line("user", "u2", [result], toolUseResult={"agentId": "a9"}, timestamp="2025-01-01T10:00:09.000Z"),
        session_line("assistant", "a2", "done", timestamp="2025-01-01T10:00:10.000Z"),
    ]
    side: dict[str, object] = {"isSidechain": True, "agentId": "a9"}
    agent = [session_line("user", "s1", "search", **side), session_line("assistant", "s2", "found it", **side)]
    (tmp_path / "S" / "subagents").mkdir(parents=True)
    (tmp_path / "S.jsonl").write_text("".join(main))
    (tmp_path / "S" / "subagents" / "agent-a9.jsonl").write_text("".join(agent))
    return tmp_path / "S.jsonl"


def imported(daemon: Running, *words: object) -> subprocess.CompletedProcess[str]:
    return programs.run("ctx", ["capture", *words], timeout=WAIT_S, env=environ(daemon.socket))


@pytest.mark.requirement("CAP-10")
def test_a_transcript_becomes_a_chain_and_its_sub_agent_one_from_where_it_was_spawned(
    own: Running, transcript: Path
) -> None:
    ran = imported(own, "--from", transcript, "--template", "t", "--json")
    assert ran.returncode == 0, ran.stderr
    outcome = json.loads(ran.stdout)
    assert outcome["commits"] == 3
    with connect_sync(own.socket) as client:
        last, first = client.commit_history(outcome["newest"]).commits
        agent, spawned_at = client.commit_history(outcome["sub_agents"]["a9"]).commits
        assert spawned_at == first
        assert [commit.created_at for commit in (first, last)] == ["2025-01-01T10:00:01Z", "2025-01-01T10:00:10Z"]
        assert {commit.template for commit in (first, last, agent)} == {"t"}
        assert kinds(events(client, last.commit)) == ["Prompt", "ToolCall", "ToolResult", "Response"]
        assert kinds(events(client, agent.commit)) == ["Prompt", "ToolCall", "Prompt", "Response"]
        again = json.loads(imported(own, "--from", transcript, "--template", "t", "--json").stdout)
        assert again == outcome
        assert len(client.commit_list().commits) == 3
        other = imported(own, "--from", transcript, "--template", "other", "--json")
        assert json.loads(other.stdout)["newest"] != outcome["newest"], other.stderr


@pytest.mark.requirement("CAP-10")
@pytest.mark.parametrize("time", ["2999-01-01T00:00:00Z", "1066-10-14T09:00:00Z", "no time"])
def test_a_transcript_with_an_impossible_time_is_imported(own: Running, tmp_path: Path, time: str) -> None:
    (tmp_path / "S.jsonl").write_text(session_line("user", "u1", "look", timestamp=time))
    ran = imported(own, "--from", tmp_path / "S.jsonl")
    assert (ran.returncode, ran.stderr.startswith("ctx capture: 1 commit, the newest is ctx-")) == (0, True), ran.stderr


@pytest.mark.requirement("CAP-10")
def test_a_time_that_is_in_the_future_in_one_run_alone_makes_no_second_commit(own: Running, tmp_path: Path) -> None:
    policy, wanted = frozenset({"session_end"}), Chain(parent=None, session=None, template="t", ticket="", thread="")
    at = SystemClock().wall_ms() - 1000
    with connect_sync(own.socket) as client:
        for text, clocks in (("ahead", (at, at + 1, at)), ("corrected", (at + 1, at, at + 1))):
            (planned,) = EventChains(policy).commits([PromptEvent(text=text, at=at)])
            assert len({_committed(client, planned, None, wanted, now) for now in clocks}) == 1
        assert len(client.commit_list().commits) == 2


@pytest.mark.requirement("CAP-10")
def test_a_file_that_is_not_a_transcript_is_rejected(own: Running, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("hello\n")
    ran = imported(own, "--from", tmp_path / "a.txt")
    assert (ran.returncode, "not a transcript" in ran.stderr) == (2, True)
    assert imported(own, "--from", tmp_path / "a.txt", "--stdin").returncode == 2


# --- kills ---


@pytest.mark.requirement("CAP-7")
def test_the_newest_commit_is_there_after_a_kill_of_the_agent(own: Running) -> None:
    ran = captured(own, TURN + "says(text('cut'), call('c2'))\nline(type='user', content='late')\n"
                   "sys.stdout.write('{\"torn'); sys.stdout.flush(); os.kill(os.getpid(), 9)")  # fmt: skip
    assert ran.returncode == 128 + signal.SIGKILL
    with connect_sync(own.socket) as client:
        found = events(client, chain(client)[-1].commit)
    assert kinds(found) == [*TURN_KINDS, "Response", "ToolCall", "Prompt", "Opaque"]


@pytest.mark.requirement("CAP-7")
def test_the_newest_commit_is_there_after_a_kill_of_the_capture(own: Running, tmp_path: Path) -> None:
    with running(own, TURN + f"says(text('last'))\nuntil({str(tmp_path / 'over')!r})") as process:
        with connect_sync(own.socket) as client:
            commits = commits_within(client, 4)
        process.kill()
        process.wait(WAIT_S)
        (tmp_path / "over").touch()
    with connect_sync(own.socket) as client:
        assert chain(client) == commits
        assert kinds(events(client, commits[-1].commit)) == [*TURN_KINDS, "Response"]
        captured(own, "", "--parent", commits[-1].commit, stdin=b'{"type":"user","content":"resumed"}\n')
        last = events(client, chain(client)[-1].commit)[-1]
    assert isinstance(last, PromptEvent)


@pytest.mark.requirement("CAP-7")
def test_commits_follow_once_after_a_kill_of_the_daemon(own: Running, tmp_path: Path) -> None:
    """The agent works on while the daemon is away, and each of its events is in the chain once."""
    body = f"""
until({str(tmp_path / "away")!r})
for number in range(5):
    says(text("alone " + str(number)))
open({str(tmp_path / "done")!r}, "w").close()
until({str(tmp_path / "back")!r})
says(text("together"))
"""
    with running(own, TURN + body) as process:
        with connect_sync(own.socket) as client:
            commits_within(client, 3)
        own.kill()
        (tmp_path / "away").touch()
        block_until(lambda: (tmp_path / "done").exists())
        own.start()
        (tmp_path / "back").touch()
        assert process.wait(WAIT_S) == 0
        with connect_sync(own.socket) as client:
            found = events(client, chain(client)[-1].commit)
    texts = [event.text for event in found if isinstance(event, ResponseEvent)]
    assert texts == ["look", "done", *(f"alone {number}" for number in range(5)), "together"]


MANY = """
for number in range(200):
    says(text("alone " + str(number)))
"""
"""An agent that makes many more commits than memory holds."""


def texts_of(client: SyncClient) -> list[str]:
    found = events(client, chain(client)[-1].commit)
    return [event.text for event in found if isinstance(event, ResponseEvent)]


@pytest.mark.requirement("CAP-8")
def test_without_a_daemon_the_agent_runs_and_the_next_capture_delivers_its_commits(tmp_path: Path) -> None:
    """Also many more commits than memory holds; none is lost or doubled, and the files are the user's alone."""
    daemon = Running(tmp_path, keep_state=True)
    ran = captured(daemon, MANY + "sys.exit(3)", "--wait", "0.1")
    assert (ran.returncode, ran.stdout.count(b"\n")) == (3, 201)
    (file,) = undelivered(daemon)
    assert f"200 commits not delivered, stored in {file}: the daemon did not respond in time".encode() in ran.stderr
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    with daemon:
        ran = captured(daemon, "", stdin=b"")
        assert b"200 commits of an earlier capture delivered" in ran.stderr
        assert undelivered(daemon) == []
        with connect_sync(daemon.socket) as client:
            assert len(chain(client)) == 200
            assert texts_of(client) == [f"alone {number}" for number in range(200)]


@pytest.mark.requirement("CAP-8")
@pytest.mark.parametrize("signals", [[signal.SIGTERM], [signal.SIGUSR1, signal.SIGTERM]], ids=["end", "commit"])
def test_signals_are_handled_while_many_commits_wait_for_the_daemon(
    tmp_path: Path, signals: list[signal.Signals]
) -> None:
    daemon = Running(tmp_path, keep_state=True)
    done = f"open({str(tmp_path / 'done')!r}, 'w').close()\nuntil('/no/such/path')"
    with running(daemon, MANY + done, "--wait", "0.1") as process:
        block_until(lambda: (tmp_path / "done").exists())
        for each in signals:
            process.send_signal(each)
        assert process.wait(WAIT_S) == 128 + signal.SIGTERM
    assert len(undelivered(daemon)) == 1


@pytest.mark.requirement("CAP-8")
def test_a_capture_without_commits_does_not_wait_for_the_daemon(tmp_path: Path) -> None:
    ran = captured(Running(tmp_path), "sys.exit(3)", "--wait", "3600")
    assert ran.returncode == 3
    assert ran.stderr.startswith(b"ctx capture: the output had no message, and nothing was committed")


@pytest.mark.requirement("CAP-8")
def test_a_signal_ends_the_wait_for_the_daemon(tmp_path: Path) -> None:
    daemon = Running(tmp_path, keep_state=True)
    with running(daemon, TURN + "print('over', flush=True)", "--wait", "3600") as process:
        assert process.stdout is not None
        block_until(lambda: undelivered(daemon))
        # The agent has ended long ago.
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert b"4 commits not delivered" in process.stderr.read()


@pytest.mark.requirement("CAP-8")
def test_a_kill_of_the_capture_while_the_daemon_is_away_loses_no_commit(own: Running, tmp_path: Path) -> None:
    """Commits that wait are put into the file, also those that memory would hold; the chain goes on where it was."""
    body = f"""
until({str(tmp_path / "away")!r})
for number in range(5):
    says(text("alone " + str(number)))
until("/no/such/path")
"""
    with connect_sync(own.socket) as client:
        client.session("s", agent="a")
    with running(own, TURN + body, "--session", "s") as process:
        with connect_sync(own.socket) as client:
            commits_within(client, 3)
        own.kill()
        (tmp_path / "away").touch()
        block_until(lambda: undelivered(own) and undelivered(own)[0].read_bytes().count(b'"type":"commit"') >= 5)
        process.kill()
        process.wait(WAIT_S)
    own.start()
    ran = captured(own, "", "--session", "s", stdin=b'{"type":"user","content":"resumed"}\n')
    assert b"5 commits of an earlier capture delivered" in ran.stderr
    with connect_sync(own.socket) as client:
        assert texts_of(client) == ["look", "done", *(f"alone {number}" for number in range(5))]
        assert isinstance(events(client, chain(client)[-1].commit)[-1], PromptEvent), "one chain"


@pytest.mark.requirement("CAP-8")
def test_a_kill_of_the_daemon_in_the_middle_of_a_delivery_doubles_no_commit(own: Running) -> None:
    own.kill()
    captured(own, MANY, "--wait", "0")
    own.start()
    with running(own, "until('/no/such/path')"), connect_sync(own.socket) as client:
        commits_within(client, 5)
        own.kill()
    own.start()
    captured(own, "", stdin=b"")
    with connect_sync(own.socket) as client:
        assert texts_of(client) == [f"alone {number}" for number in range(200)]
    assert undelivered(own) == []


@pytest.mark.requirement("CAP-6")
def test_a_secret_is_in_no_file_of_commits_that_wait(tmp_path: Path) -> None:
    """The policy of the session is unknown while the daemon is away, so that the strictest one applies."""
    secret = "AKIAIOSFODNN7EXAMPLQ"
    daemon = Running(tmp_path, keep_state=True)
    captured(daemon, f"says(text('the key is {secret}'), call('c'))", "--session", "box", "--wait", "0")
    (file,) = undelivered(daemon)
    assert secret.encode() not in file.read_bytes()
    with daemon:
        with connect_sync(daemon.socket) as client:
            client.session("box", agent="a")
        captured(daemon, "", stdin=b"")
        with connect_sync(daemon.socket) as client:
            (text,) = texts_of(client)
    assert "the key is [REDACTED:" in text


def test_the_outcome_as_json_is_beside_the_output(own: Running) -> None:
    ran = captured(own, TURN, "--json")
    with connect_sync(own.socket) as client:
        newest = chain(client)[-1].commit
    assert json.loads(ran.stderr) == {
        "commits": 3, "left_to_hooks": 0, "newest": newest,
        "stored": 0, "file": None, "lost": 0, "reason": None, "notes": [],
    }  # fmt: skip


def test_a_refusal_is_reported_and_the_agent_runs_on(own: Running) -> None:
    ran = captured(own, TURN, "--parent", "ctx-00000000")
    assert (ran.returncode, ran.stdout.count(b"\n")) == (0, 5)
    (file,) = undelivered(own)
    assert f"3 commits not delivered, stored in {file}: there is no commit ctx-00000000".encode() in ran.stderr
    again = captured(own, "", stdin=b"")
    assert f"3 commits of an earlier capture stay in {file}: there is no commit ctx-00000000".encode() in again.stderr
    assert b"delete the file to give them up" in again.stderr
