"""``ctx-hook`` in processes of its own, with the input that the real harnesses give their hooks, and a real daemon."""

import json
import os
import socket
import stat
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ctxd.hook import delivery
from ctxd.transcripts.harness_names import HARNESS_OF
from ctxd_client import connect_sync
from ctxd_client.sync import SyncClient
from ctxd_protocol.event_types import (
    CompactionEvent,
    Event,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from ctxd_protocol.ids import captured_session_id
from tests import programs
from tests.client.running import Running

SCRIPTS = Path(sysconfig.get_path("scripts"))
HOOK = SCRIPTS / "ctx-hook"
NATIVE = "11111111-2222-4333-8444-555555555555"


class Harness:
    """A harness that runs hooks: its home, its own id of the session, the working directory. It keeps no transcript
    unless one is named."""

    def __init__(self, daemon: Running, home: Path, name: str = "claude", native: str = NATIVE) -> None:
        self.daemon = daemon
        self.home = home
        self.name = name
        self.native = native
        self.options: tuple[str, ...] = ()
        self.runner: tuple[str, ...] = ()
        self.transcript = ""
        # A busy machine takes longer than a person should wait for a hook.
        self.environ = {"CTXD_HOOK_SECONDS": "30"}
        home.mkdir(exist_ok=True)

    @property
    def session(self) -> str:
        return captured_session_id({"claude": "claude-code"}.get(self.name, self.name), self.native)

    def run(self, stdin: bytes) -> subprocess.CompletedProcess[bytes]:
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(self.home), "CTXD_SOCKET": self.daemon.socket, **self.environ}
        words = [*self.runner, str(HOOK), self.name, *self.options]
        return subprocess.run(words, input=stdin, capture_output=True, timeout=60, env=environ)

    def hook(self, event: str, **members: Any) -> bytes:
        """Run the hook of ``event``. Returns: what it printed for the harness."""
        record = {
            "session_id": self.native,
            "transcript_path": self.transcript,
            "cwd": str(self.home),
            "hook_event_name": event,
            **members,
        }
        done = self.run(json.dumps(record).encode())
        assert (done.returncode, done.stderr) == (0, b""), done
        return done.stdout

    def tool(self, call: str, output: str = "a.txt\n") -> bytes:
        response = {"stdout": output, "stderr": "", "interrupted": False}
        return self.hook(
            "PostToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_response=response, tool_use_id=call
        )

    def start(self, call: str, **members: Any) -> bytes:
        return self.hook("PreToolUse", tool_name="Bash", tool_input={"command": "ls"}, tool_use_id=call, **members)

    def waiting(self) -> list[Path]:
        return sorted(self.home.glob(".local/state/ctx-hook/*/*.event"))


def events(harness: Harness) -> list[Event]:
    with connect_sync(harness.daemon.socket) as client:
        return [msgspec.convert(logged.event, Event) for logged in client.session_events(harness.session).events]


def texts(found: list[Event]) -> list[str]:
    return [getattr(event, "text", "") for event in found if isinstance(event, PromptEvent)]


def content(client: SyncClient, session: str, call: str) -> str | None:
    text: str | None = client.object_get(call, session=session).object.payload["content"]
    return text


@pytest.mark.requirement("HOK-1")
def test_every_event_of_a_session_is_recorded_in_order(harness: Harness) -> None:
    harness.hook("SessionStart", source="startup")
    harness.hook("UserPromptSubmit", prompt="fix it", prompt_id="p1")
    harness.tool("toolu_1")
    file = {"type": "text", "file": {"filePath": "/a.txt", "content": "hello\n"}}
    harness.hook(
        "PostToolUse", tool_name="Read", tool_input={"file_path": "/a.txt"}, tool_response=file, tool_use_id="toolu_2"
    )
    harness.hook(
        "PostToolUseFailure",
        tool_name="Bash",
        tool_input={"command": "exit 3"},
        error="Exit code 3",
        is_interrupt=False,
        tool_use_id="toolu_3",
    )
    harness.hook("SubagentStart", agent_id="agent1", agent_type="explore", prompt_id="p1")
    harness.hook(
        "PostToolUse",
        tool_name="Bash",
        tool_input={"command": "id"},
        tool_response="root",
        tool_use_id="toolu_4",
        agent_id="agent1",
    )
    harness.hook("SubagentStop", agent_id="agent1", prompt_id="p1", last_assistant_message="found it")
    harness.hook("PreCompact", trigger="manual", prompt_id="p1")
    harness.hook("PostCompact", trigger="manual", prompt_id="p1", compact_summary="they fixed it")
    harness.hook("Stop", prompt_id="p1", last_assistant_message="All done.")
    harness.hook("SessionEnd", reason="other")

    found = events(harness)
    kinds = [type(event).__name__.removesuffix("Event") for event in found]
    assert kinds == (
        ["System", "Prompt", *["ToolCall", "ToolResult"] * 3, "System", "ToolCall", "ToolResult", "Response"]
        + ["System", "Compaction", "Response", "System"]
    )
    assert isinstance(found[1], PromptEvent) and (found[1].text, found[1].id) == ("fix it", "p1")
    assert [event.call for event in found if isinstance(event, ToolCallEvent)] == [f"toolu_{n}" for n in range(1, 5)]
    results = [event for event in found if isinstance(event, ToolResultEvent)]
    assert [event.is_error for event in results] == [False, False, True, False]
    assert {event.sidechain for event in found[8:12]} == {"agent1"}
    assert results[3].text == "root"
    assert isinstance(found[11], ResponseEvent) and found[11].text == "found it"
    assert isinstance(found[13], CompactionEvent) and found[13].summary == "they fixed it"
    assert isinstance(found[14], ResponseEvent) and found[14].text == "All done."
    assert isinstance(found[15], SystemEvent) and (found[15].kind, found[15].text) == ("session_end", "other")
    with connect_sync(harness.daemon.socket) as client:
        outputs = [content(client, harness.session, f"toolu_{n}") for n in range(1, 4)]
        session = client.session_get(harness.session).session
    assert outputs == ["a.txt\n", "hello\n", "Exit code 3"]
    assert session.state == "paused" and session.agent == "claude-code" and session.workdir == str(harness.home)
    assert session.labels == {"harness": "claude-code", "native_session": NATIVE}


@pytest.mark.requirement("HOK-1")
def test_a_resumed_codex_session_continues(running: Running, tmp_path: Path) -> None:
    harness = Harness(running, tmp_path / "home", "codex", "01a203ab-b617-74c3-8c72-359424c2f211")
    harness.hook("SessionStart", source="startup", model="gpt-5.5")
    harness.hook("UserPromptSubmit", turn_id="t1", prompt="first", model="gpt-5.5")
    mcp = {"content": [{"type": "text", "text": "x=42"}]}
    harness.hook(
        "PostToolUse", turn_id="t1", tool_name="mcp__p__p", tool_input={"x": "42"}, tool_response=mcp, tool_use_id="c1"
    )
    harness.hook("Stop", turn_id="t1", model="gpt-5.5", last_assistant_message="Done.")
    harness.hook("PostCompact", turn_id="t1", trigger="auto")
    harness.hook("SessionEnd", reason="other")
    harness.hook("SessionStart", source="resume")
    # A prompt that steers the turn under way has that turn's id.
    harness.hook("UserPromptSubmit", turn_id="t2", prompt="second")
    harness.hook("UserPromptSubmit", turn_id="t2", prompt="no, third")

    found = events(harness)
    assert texts(found) == ["first", "second", "no, third"]
    assert [event.model for event in found if isinstance(event, ResponseEvent)] == ["gpt-5.5"]
    with connect_sync(running.socket) as client:
        assert content(client, harness.session, "c1") == "x=42"
        assert client.session_get(harness.session).session.state == "active"


@pytest.mark.requirement("HOK-2")
def test_an_event_that_comes_twice_is_recorded_once(harness: Harness) -> None:
    for _ in range(2):
        harness.hook("UserPromptSubmit", prompt="fix it", prompt_id="p1")
        harness.tool("toolu_1")
        harness.hook("Stop", prompt_id="p1", last_assistant_message="Done.")
    assert [type(event).__name__ for event in events(harness)] == [
        "PromptEvent",
        "ToolCallEvent",
        "ToolResultEvent",
        "ResponseEvent",
    ]


@pytest.mark.requirement("HOK-1")
def test_a_prompt_that_the_harness_wrote_is_a_notice(harness: Harness) -> None:
    for _ in range(2):
        harness.hook("UserPromptSubmit", prompt="<task-notification>\nd</task-notification>", prompt_id="p1")
    harness.hook("UserPromptSubmit", prompt="<b> what is this?", prompt_id="p2")
    found = events(harness)
    assert [getattr(event, "kind", None) for event in found] == ["task-notification", None]
    assert texts(found) == ["<b> what is this?"]


@pytest.mark.requirement("HOK-2")
def test_an_event_without_an_id_is_recorded_once_under_its_operation(running: Running) -> None:
    text = json.dumps({"session_id": "n1", "hook_event_name": "SessionEnd", "reason": "other"})
    with connect_sync(running.socket) as client:
        for _ in range(2):
            client.session_hook("codex", text, op_id="hook-1")
        found = client.session_events("codex-n1").events
    assert [logged.event["kind"] for logged in found] == ["session_end"]


@pytest.mark.requirement("HOK-3")
def test_events_wait_for_the_daemon_and_the_next_hook_delivers_them_in_order(harness: Harness) -> None:
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    harness.tool("toolu_1", "kept")
    waiting = harness.waiting()
    assert len(waiting) == 2
    assert {stat.S_IMODE(path.stat().st_mode) for path in waiting} == {0o600}
    assert stat.S_IMODE(waiting[0].parent.stat().st_mode) == 0o700
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    found = events(harness)
    assert texts(found) == ["one", "two", "three"]
    assert isinstance(found[2], ToolCallEvent) and isinstance(found[-1], PromptEvent)
    assert harness.waiting() == []


@pytest.mark.requirement("HOK-3")
def test_events_that_wait_are_delivered_in_order_although_the_clock_was_set_back(harness: Harness) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    (first,) = harness.waiting()
    # As if the first event had come an hour later.
    first.with_name("usage").unlink()
    first.rename(first.with_name(f"{int(first.name[:20]) + 3600 * 10**9:020}{first.name[20:]}"))
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    assert texts(events(harness)) == ["one", "two", "three"]
    assert harness.waiting() == []


@pytest.mark.requirement("HOK-3")
def test_an_event_whose_reply_was_lost_is_recorded_once(harness: Harness) -> None:
    """The daemon has the event, and the hook is not answered: it waits, and comes again."""
    lost = harness.daemon.socket
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as threads:
        harness.environ["CTXD_SOCKET"] = path = str(harness.home / "front.sock")
        listener.bind(path)
        listener.listen()

        def forward() -> bytes:
            wire, _ = listener.accept()
            with wire, wire.makefile("rb") as lines, socket.socket(socket.AF_UNIX) as behind:
                line = lines.readline()
                behind.connect(lost)
                behind.sendall(line)
                return behind.makefile("rb").readline()

        answered = threads.submit(forward)
        harness.hook("SessionStart", source="startup")
        assert b'"outcome":"captured"' in answered.result(60)
    assert len(harness.waiting()) == 1
    os.unlink(path)
    os.symlink(lost, path)
    harness.hook("UserPromptSubmit", prompt="go on", prompt_id="p1")
    assert [type(event).__name__ for event in events(harness)] == ["SystemEvent", "PromptEvent"]


@pytest.mark.requirement("HOK-4")
@pytest.mark.parametrize("stdin", [b"", b"{", b"[1]", b"\xff\x00", b'{"session_id": 1}', b"[" * 100_000])
def test_a_hook_with_invalid_input_exits_with_0_and_prints_nothing(harness: Harness, stdin: bytes) -> None:
    done = harness.run(stdin)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    harness.hook("UserPromptSubmit", prompt="go on", prompt_id="p1")
    assert texts(events(harness)) == ["go on"]


@pytest.mark.requirement("HOK-4")
def test_a_hanging_daemon_delays_one_hook_and_loses_nothing(harness: Harness) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        harness.environ = {"CTXD_SOCKET": (path := str(harness.home / "hung.sock"))}
        listener.bind(path)
        listener.listen()
        harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
        listener.settimeout(0)
        listener.accept()[0].close()
        # As if it had been a moment ago, however slow the machine is.
        held = harness.waiting()[0].parent / "held"
        soon = held.stat().st_mtime + 4
        os.utime(held, (soon, soon))
        harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
        # The second hook did not try: nothing else is connected.
        with pytest.raises(BlockingIOError):
            listener.accept()
    assert len(harness.waiting()) == 2
    held.unlink()
    harness.environ["CTXD_HOOK_SECONDS"] = "30"
    os.unlink(path)
    os.symlink(harness.daemon.socket, path)
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    assert texts(events(harness)) == ["one", "two", "three"]


@pytest.mark.requirement("HOK-4")
def test_a_directory_of_waiting_events_that_is_a_link_or_open_to_others_is_not_used(harness: Harness) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    folder = harness.waiting()[0].parent
    elsewhere = harness.home / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert len(list(elsewhere.glob("*.event"))) == 1
    folder.unlink()
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    assert list(folder.iterdir()) == []
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="four", prompt_id="p4")
    assert texts(events(harness)) == ["four"]


@pytest.mark.requirement("HOK-4")
def test_a_session_in_the_trash_records_no_events_and_the_next_one_is_captured(harness: Harness) -> None:
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    with connect_sync(harness.daemon.socket) as client:
        client.session_remove(harness.session)
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert harness.waiting() == []
    harness.native = "another"
    harness.hook("UserPromptSubmit", prompt="three", prompt_id="p3")
    assert texts(events(harness)) == ["three"]


@pytest.mark.requirement("HOK-4")
def test_an_event_beyond_the_bound_of_a_call_is_recorded_cut(harness: Harness) -> None:
    harness.tool("toolu_1", "é\n" * 3_000_000)
    with connect_sync(harness.daemon.socket) as client:
        found = content(client, harness.session, "toolu_1")
    assert found is not None and found.startswith("é\n") and "cut by ctx-hook" in found


@pytest.mark.requirement("HOK-5")
def test_events_that_wait_are_bounded_and_a_dropped_one_is_reported(harness: Harness) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    folder = harness.waiting()[0].parent
    with (folder / "99999999999999999999-0.event").open("wb") as file:
        file.truncate(256 << 20)
    (folder / "usage").unlink()  # As if the file had come before it.
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert len(harness.waiting()) == 2
    done = ctx(harness, "doctor", "--json")
    found = {item["name"]: item for item in json.loads(done.stdout)["items"]}["hooks"]
    assert found["verdict"] == "warn" and "1 event dropped, the last one: full" in found["found"]


@pytest.mark.requirement("HOK-5")
def test_a_damaged_event_is_reported_and_blocks_no_other(harness: Harness) -> None:
    harness.daemon.kill()
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    folder = harness.waiting()[0].parent
    (folder / "00000000000000000000-0.event").touch()
    (folder / "00000000000000000000-1.event").write_bytes(os.urandom(100))
    (folder / "00000000000000000000-2.event").symlink_to("/etc/hostname")
    harness.daemon.start()
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert texts(events(harness)) == ["one", "two"]
    assert harness.waiting() == []
    found = {item["name"]: item for item in json.loads(ctx(harness, "doctor", "--json").stdout)["items"]}["hooks"]
    assert "3 events dropped, the last one: damaged" in found["found"]


@pytest.mark.requirement("HOK-3")
def test_an_event_waits_for_a_daemon_that_knows_no_hooks_yet(harness: Harness) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as threads:
        path = str(harness.home / "old.sock")
        listener.bind(path)
        listener.listen()
        harness.environ["CTXD_SOCKET"] = path

        def refuse() -> None:
            wire, _ = listener.accept()
            with wire, wire.makefile("rwb") as lines:
                lines.readline()
                error = {"code": -32601, "message": "no", "data": {"code": "method_not_found", "retryable": False}}
                lines.write(json.dumps({"jsonrpc": "2.0", "error": error, "id": 1}, separators=(",", ":")).encode())
                lines.write(b"\n")

        refused = threads.submit(refuse)
        harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
        refused.result(60)
    assert len(harness.waiting()) == 1
    os.unlink(path)
    os.symlink(harness.daemon.socket, path)
    harness.hook("UserPromptSubmit", prompt="two", prompt_id="p2")
    assert texts(events(harness)) == ["one", "two"]


@pytest.mark.requirement("HOK-7")
def test_a_hundred_sessions_at_once_lose_nothing(running: Running, tmp_path: Path) -> None:
    """Their hooks run at the same time, and the daemon is killed while they do."""
    names = [f"native-{number}" for number in range(100)]

    def session(native: str) -> None:
        harness = Harness(running, tmp_path / "home", "claude", native)
        harness.environ["CTXD_HOOK_DEBUG"] = "1"
        for number in range(4):
            harness.hook("UserPromptSubmit", prompt=f"{native} {number}", prompt_id=f"p{number}")

    with ThreadPoolExecutor(16) as threads:
        running_sessions = [threads.submit(session, native) for native in names]
        running_sessions[10].result(120)
        running.kill()
        running_sessions[30].result(120)
        running.start()
        for each in running_sessions:
            each.result(120)
    last = Harness(running, tmp_path / "home", "claude", "last")
    while last.waiting():
        last.hook("UserPromptSubmit", prompt="last", prompt_id="p1")
    assert [path.read_text() for path in last.home.glob(".local/state/ctx-hook/*/lost")] == []
    for native in names:
        found = texts(events(Harness(running, tmp_path / "home", "claude", native)))
        assert found == [f"{native} {number}" for number in range(4)]


@pytest.mark.requirement("HOK-8")
def test_a_large_output_is_shortened_for_the_model_on_request(harness: Harness) -> None:
    large = "begin " + "x" * 5_000 + " end"
    assert harness.tool("toolu_1", large) == b""
    harness.options = ("--shorten", "1000")
    assert harness.tool("toolu_2", "short") == b""
    printed = json.loads(harness.tool("toolu_3", large))["hookSpecificOutput"]
    shown = printed["updatedToolOutput"]["stdout"]
    assert printed["hookEventName"] == "PostToolUse"
    assert shown.startswith("begin ") and shown.endswith(" end") and "ctx object cat toolu_3" in shown
    assert len(shown) < 1_200
    mcp = [{"type": "text", "text": large}]
    printed = json.loads(harness.hook("PostToolUse", tool_name="mcp__a__b", tool_response=mcp, tool_use_id="toolu_4"))
    assert "ctx object cat toolu_4" in printed["hookSpecificOutput"]["updatedToolOutput"]
    codex = Harness(harness.daemon, harness.home, "codex", "n1")
    codex.options = harness.options
    printed = json.loads(
        codex.hook("PostToolUse", tool_name="Bash", tool_input={}, tool_response=large, tool_use_id="c1")
    )
    assert printed["decision"] == "block" and "ctx object cat c1" in printed["reason"]
    with connect_sync(harness.daemon.socket) as client:
        assert content(client, harness.session, "toolu_3") == large


@pytest.mark.requirement("HOK-9")
def test_commands_of_claude_code_know_their_session(harness: Harness) -> None:
    file = harness.home / "env.sh"
    harness.environ |= {"CLAUDE_ENV_FILE": str(file), "CLAUDE_CODE_SESSION_ID": NATIVE}
    for source in ("startup", "resume"):
        harness.hook("SessionStart", source=source)
    assert file.read_text() == f"export CTXD_SESSION={harness.session}\n"
    harness.hook("UserPromptSubmit", prompt="one", prompt_id="p1")
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(harness.home), "CTXD_SOCKET": harness.daemon.socket}
    assert first_answer("sh", "-c", f'. "{file}"; "{SCRIPTS / "ctx"}" current', **environ).startswith("ctx-")


@pytest.mark.requirement("HOK-9")
@pytest.mark.parametrize(("name", "variable"), [("codex", "CODEX_THREAD_ID"), ("pi", "PI_SESSION_ID")])
def test_commands_of_codex_and_pi_know_their_session(
    running: Running, tmp_path: Path, name: str, variable: str
) -> None:
    for native in ("n1", "n2"):
        Harness(running, tmp_path / "home", name, native).hook("UserPromptSubmit", prompt=native, prompt_id="p1")
    with connect_sync(running.socket) as client:
        current = {native: client.context_current(session=f"{name}-{native}").context_id for native in ("n1", "n2")}
    assert len(set(current.values())) == 2
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), "CTXD_SOCKET": running.socket}
    for native, context in current.items():
        assert first_answer(str(SCRIPTS / "ctx"), "current", **environ, **{variable: native}) == context


def first_answer(*command: str, **environ: str) -> str:
    """What ``ctx current`` prints once it finds a context: on a busy machine 200 ms may end before that."""
    for _ in range(60):
        done = subprocess.run(command, capture_output=True, text=True, env=environ)
        if done.returncode != 3:
            break
    assert done.returncode == 0, done
    return done.stdout.strip()


def ctx(harness: Harness, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "HOME": str(harness.home), "CTXD_SOCKET": harness.daemon.socket}
    environ.pop("XDG_STATE_HOME", None)
    return programs.run("ctx", words, env=environ)


@pytest.mark.requirement("HOK-1")
def test_the_program_knows_the_harnesses_that_the_rest_knows() -> None:
    assert delivery.HARNESSES == HARNESS_OF


@pytest.mark.requirement("HOK-7")
def test_an_event_is_spooled_while_another_hook_delivers_earlier_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = delivery.make_spool("/run/none.sock", {"HOME": str(tmp_path)})
    monkeypatch.setattr(spool, "names", lambda: ["00000000000000000001-1.event"])
    spool.add("00000000000000000002-1", b"{}\n")
    assert spool.read("00000000000000000002-1.event") == b"{}\n"
    spool.close()
