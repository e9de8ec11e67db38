"""How a run ends: its code, its one line, and where things are written."""

import io
import json
import os
import re
import subprocess
import sys
from importlib.metadata import entry_points

import click
import pytest

from ctxd.cli.entry_point import main as start_ctx
from ctxd.cli.exit_codes import MEANINGS
from ctxd.cli.main import _COMMANDS, cli
from ctxd.remedies import COMMANDS, in_commands
from ctxd_protocol.methods import METHODS
from ctxd_protocol.methods.sessions import SessionResult
from tests import programs
from tests.fakes.daemon import HOLD, Refusal, smallest
from tests.unit.cli.conftest import process
from tests.waiting import interrupt


def refuse(code, message="it is so", **data):
    def script(seen):
        raise Refusal(code, message, **data)

    return script


@pytest.mark.requirement("CLI-1")
@pytest.mark.parametrize("group", ["session", "object", "artifact", "tracker", "sandbox"])
def test_common_options_stand_before_or_after_each_word_of_a_command(ctx, running, group):
    options = ("--json", "--socket", running.socket, "--timeout", "30")
    after = ctx(group, "ls", *options)
    assert (after.code, set(after.json)) == (0, {*after.json, "items"})
    assert ctx(group, *options, "ls").json == ctx(*options, group, "ls").json == after.json


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("session_not_found", 3),
        ("ambiguous_id", 4),
        ("session_exists", 4),
        ("unauthorized", 6),
        ("invalid_params", 2),
        ("method_not_found", 6),
        ("session_closed", 1),
        ("disk_full", 1),
        ("internal_error", 1),
        ("timeout", 124),
    ],
)
@pytest.mark.requirement("CLI-1")
def test_each_failure_has_the_exit_code_that_the_help_promises(scripted, daemon, code, exit_code):
    daemon.script["daemon.status"] = refuse(code, hint="Do this.")
    ran = scripted("status")
    assert (ran.code, ran.out) == (exit_code, "")
    assert ran.err == "ctx: it is so; do this\n", "one line: cause and place, then the remedy"


@pytest.mark.requirement("CLT-9")
def test_a_command_announces_its_retries_once_with_the_reason(scripted, daemon):
    refused = refuse("disk_full", "no room", retry_after_ms=450, outcome="not_applied")
    daemon.script["session.pause"] = lambda seen: refused(seen) if len(daemon.of("session.pause")) < 6 else HOLD
    ran = scripted("session", "pause", "s1", "--timeout", "3")
    assert len(daemon.of("session.pause")) == 6
    assert ran.err.splitlines()[0] == "no room; retrying for up to 3 s"
    assert ran.err.count("retrying for") == 1
    assert not ran.err.endswith("; \n")


@pytest.mark.requirement("CLT-9")
def test_a_brief_failure_is_not_announced(scripted, daemon):
    refused = refuse("disk_full", "no room", retry_after_ms=1, outcome="not_applied")
    daemon.script["daemon.status"] = lambda seen: refused(seen) if len(daemon.of("daemon.status")) < 3 else HOLD
    ran = scripted("status", "--timeout", "0.5")
    assert len(daemon.of("daemon.status")) == 3 and "trying again" not in ran.err


@pytest.mark.parametrize(
    ("hint", "told"),
    [
        ("session.list lists them.", "ctx session ls lists them"),
        ('object.list with {"level": "active"} lists them.', "ctx object ls --level active lists them"),
        ("object.list lists them.", "ctx object ls lists them"),
        ("rpc.discover describes every method.", "ctx rpc rpc.discover describes every method"),
        ("Call session.resume first.", "run ctx session resume first"),
        (
            "Add it with session.pool_add first.",
            """add it with ctx rpc session.pool_add '{"session": …, "object": …}' first""",
        ),
        ('commit.show with {"commit": "ctx-1a2b3c4d"} has it.', "ctx show ctx-1a2b3c4d has it"),
        (
            "commit.list has the commits; commit.history has its ancestors.",
            "ctx log has the commits; ctx log has its ancestors",
        ),
        ("It was destroyed by object.purge.", "it was destroyed by ctx purge"),
        ("Let commit.materialize stop at a later commit.", "let ctx materialize stop at a later commit"),
        ("Among them: /w/object.list, my.session.list.", "among them: /w/object.list, my.session.list"),
    ],
)
def test_a_remedy_names_commands_not_methods(scripted, daemon, hint, told):
    daemon.script["daemon.status"] = refuse("session_not_found", hint=hint)
    assert scripted("status").err == f"ctx: it is so; {told}\n"


def test_each_command_that_a_remedy_may_name_exists():
    for method, words in COMMANDS.items():
        assert method in METHODS
        command, context = cli, click.Context(cli)
        for word in words.split():
            if word in METHODS:
                assert command.name == "rpc"
            elif word.startswith("{"):
                assert word.strip("{}") in METHODS[method].params.__struct_fields__, words
            elif word.startswith("-"):
                assert any(word in option.opts for option in command.params), words
            else:
                command = command.get_command(context, word)
                assert command is not None, words


def test_without_a_daemon_the_exit_code_is_5_and_the_line_names_path_and_remedy(ctx, tmp_path):
    path = str(tmp_path / "none.sock")
    ran = ctx("status", "--socket", path)
    assert ran.code == 5
    remedy = f"start the daemon: ctxd run --state-dir DIR --socket {path} (DIR is its state directory)"
    assert ran.err == f"ctx: no daemon at {path}: there is no socket; {remedy}\n"


def test_a_socket_without_permission_is_a_permission_error(ctx, monkeypatch):
    def deny(path, runner, deadline):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("ctxd_client._sync.reconnecting_connection.open_connection", deny)
    ran = ctx("status", "--socket", "/x.sock")
    assert ran.code == 6
    assert "another user or group" in ran.err


@pytest.mark.parametrize("words", [("status",), ("--version",), ("session", "ls", "--json")])
def test_closed_standard_output_is_a_failure_with_one_line(words):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "ctxd.cli.main", *words],
        stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1
    assert "standard output is closed" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize("words", ["rpc session.list -", "scan -", "query", "artifact put -", "capture --stdin"])
def test_closed_standard_input_is_a_failure_with_one_line_if_it_is_read(own, words):
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", programs.SCRIPTS / "ctx", *words.split()],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    remedy = "redirect it: <FILE, or </dev/null"
    assert (done.returncode, done.stderr) == (1, f"ctx: standard input is closed; {remedy}\n")


@pytest.mark.parametrize("words", [("status",), ("rpc",), ("rpc", "rpc.discover"), ("status", "--json")])
def test_output_that_cannot_be_written_is_a_failure_with_one_line(running, words):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "ctxd.cli.main", *words, "--socket", running.socket],
            stdout=full, stderr=subprocess.PIPE, text=True, timeout=60,
        )  # fmt: skip
    assert done.returncode == 1
    assert "standard output cannot be written: No space left on device" in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("ctx", "--help"),
        ("ctx", "current"),
        ("ctxd", "config"),
        ("ctx", "artifact", "get", "tag:out/full"),
        ("ctx", "materialize"),
        ("ctx", "transcript", "t.jsonl", "--as", "claude-code-v1"),
    ],
)
def test_unwritable_output_is_one_line_and_without_a_reader_the_program_ends_quietly(own, tmp_path, words):
    own.user("one")
    own.client.artifact_tag("out/full", artifact=own.client.artifact_put(data=bytes(200_000)).artifact)
    own.client.context_current(session=own.id)
    (tmp_path / "t.jsonl").write_text('{"type":"user","uuid":"u","sessionId":"S","message":{"content":"hi"}}\n')
    full, (read, unread) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    os.close(read)
    for stdout, code, told in (
        (full, 1, "standard output cannot be written: No space left on device"),
        (unread, 0, ""),
    ):
        with (tmp_path / "errors").open("w+b") as errors:
            ran = programs.start(words[0], words[1:], cwd=tmp_path, stdout=stdout, stderr=errors)
            assert ran.wait(60) == code
            errors.seek(0)
            said = errors.read().decode()
        assert told in said and "Traceback" not in said, said
        os.close(stdout)


def test_the_id_of_the_current_context_without_standard_output_is_a_failure_with_one_line(own):
    own.user("one")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" >&-', "sh", programs.SCRIPTS / "ctx", "current"],
        stderr=subprocess.PIPE, text=True, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, "ctx: standard output is closed; redirect it: >/dev/null\n")


@pytest.mark.parametrize("command", [("artifact", "get", "tag:out/file"), ("materialize",)])
def test_an_output_file_is_written_whole_or_reported_with_its_path(real, own, tmp_path, command):
    own.user("one")
    own.client.artifact_tag("out/file", artifact=own.client.artifact_put(data=b"text").artifact)
    own.client.context_current(session=own.id)
    refused = real(*command, "-o", str(tmp_path / "none/x"))
    assert (refused.code, refused.err) == (1, f"ctx: {tmp_path}/none/x cannot be written: No such file or directory\n")
    assert "cannot be written: No space left on device" in real(*command, "-o", "/dev/full").err
    made, before = tmp_path / "made", tmp_path / "before"
    before.write_text("earlier")
    before.chmod(0o640)
    umask = os.umask(0o027)
    try:
        assert (real(*command, "-o", str(made)).code, real(*command, "-o", str(before)).code) == (0, 0)
    finally:
        os.umask(umask)
    assert made.read_bytes() == before.read_bytes() != b"earlier"
    assert (made.stat().st_mode & 0o777, before.stat().st_mode & 0o777) == (0o640, 0o640)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["before", "made"]


def test_an_interrupt_during_the_imports_is_130_without_a_word(monkeypatch, capsys):
    def interrupted():
        raise KeyboardInterrupt

    monkeypatch.setattr("ctxd.cli.main.main", interrupted)
    monkeypatch.setattr(sys, "argv", ["ctx", "status"])
    with pytest.raises(SystemExit) as ended:
        start_ctx()
    assert (ended.value.code, capsys.readouterr()) == (130, ("", ""))


def test_no_answer_in_time_is_124(scripted, daemon):
    daemon.script["daemon.status"] = lambda seen: HOLD
    ran = scripted("--timeout", "0.1", "status")
    assert ran.code == 124
    assert "within 0.1 s" in ran.err


def test_a_write_without_a_response_reports_an_unknown_outcome(scripted, daemon):
    daemon.script["session.pause"] = lambda seen: HOLD
    ran = scripted("session", "pause", "s1", "--timeout", "1")
    assert "; the operation may have been applied; ctx status" in ran.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sesion"], "ctx: no such command: 'sesion'; did you mean 'session'?; see ctx --help\n"),
        (["session", "shw"], "did you mean 'show'?; see ctx session --help"),
        (["status", "--nope"], "see ctx status --help"),
        (["context", "-s", "s1"], "ctx: No such option '-s'; name the session as an argument: ctx context REV\n"),
        (["session", "close", "--session", "s1"], "name the session as an argument: ctx session close SESSION\n"),
        (["--timeout", "nan", "status"], "'nan' is not a finite number"),
        (["top", "--interval", "nan", "--once"], "'nan' is not a finite number"),
        (["query", "{:find [e]}", "--time", "nan"], "'nan' is not a finite number"),
        (["artifact", "get", "3f9a01bc", "--json"], "--json requires -o FILE"),
        (["materialize", "--json", "-o", "f"], "-o and --json exclude each other: only"),
        (["capture", "--wait", "nan", "--", "true"], "'nan' is not a finite number"),
        (["session", "ls", "--limit", "0"], "Invalid value for '--limit'"),
        (["session", "new", "demo", "--mount", "/w"], "ctx: --mount '/w' has no '='; write --mount AGENT=HOST"),
        (["session", "new", "demo", "--mount", "w=/w"], "--mount 'w': the agent's path is not absolute"),
        (["session", "new", "demo", "--mount", "/w=a", "--mount", "/w=b"], "--mount gives '/w' twice"),
        (["session", "new", "demo", "--label", "a=b", "--label", "a=c"], "--label gives 'a' twice"),
        (["session", "new", "demo", "--system-prompt", "@"], "no file name after @; write --system-prompt @FILE"),
        (["transcript", "f.jsonl", "--as", "codex-v1", "--json"], "--as and --json exclude each other"),
        (["transcript", "f.jsonl", "--as", "codex-v1", "--summary"], "--as and --summary exclude each other"),
        (["--timeout", "1e300", "status"], "Invalid value for '--timeout': '1e300' is more than 1,000,000,000"),
        (
            ["context", "s1", "--turn", "9" * 20],
            f"Invalid value for '--turn': {'9' * 20} is more than 9,007,199,254,740,991",
        ),
        (["artifact", "gc", "--grace", "9" * 20], "is more than 9,007,199,254,740,991"),
        (["session", "new", "demo", "--system-prompt", "@/nowhere"], "ctx: --system-prompt @/nowhere: No such file"),
        (["context", "s1", "--plan", "many"], "not a number of tokens"),
        (["context", "s1", "--diff", "1", "x"], "'x' is not an assembly"),
        (["context", "s1", "--turn", "1", "--plan"], "--plan and --turn exclude each other; leave one of them out"),
        (["context", "s1", "--turn", "0", "--assembly", "1"], "--turn and --assembly exclude each other"),
        (["context", "s1", "--list", "--text"], "--text applies only to a context"),
        (["context", "s1", "--commit", "HEAD"], "--commit and REV exclude each other"),
        (["context", "s1", "--turn", "1", "--layout", "append"], "--layout applies only to a new assembly"),
        (["context", "s1", "--diff", "1", "2", "--layout", "append"], "--layout applies only to a new assembly"),
        (["context", "s1", "--plan", "--layout", "append"], "--layout applies only to a new assembly"),
        (["context", "s1", "--model", "m"], "--model applies only to a request; add --format"),
        (["context", "s1", "--record"], "--record applies only to a request; add --format"),
        (["context", "s1", "--text", "--format", "openai-chat"], "--text applies only to a context; leave it out"),
        (["context", "s1", "--text", "--plan"], "--text applies only to a context; leave it out"),
        (["object", "as-of", "f", "tomorrow"], "invalid time: 'tomorrow'"),
        (["rpc", "sesion.get"], "ctx: there is no method 'sesion.get'; did you mean session.get?"),
        (["rpc", "session.get", "{}"], "its parameters: session"),
        (["rpc", "session.get", '{"sesion": 1}'], "Object contains unknown field `sesion`"),
        (["rpc", "session.get", "{"], "its parameters: session"),
        (["rpc", "session.list", '{"state": "x"}'], "it is one of active, closed, paused"),
    ],
)
@pytest.mark.requirement("CLI-2")
def test_a_wrong_command_line_is_2_with_one_line(scripted, words, message):
    ran = scripted(*words)
    assert (ran.code, ran.out) == (2, "")
    assert message in ran.err
    assert ran.err.count("\n") == 1


def test_an_invalid_settings_file_is_reported_with_its_path(ctx, tmp_path):
    (tmp_path / "config/ctxd").mkdir(parents=True)
    (tmp_path / "config/ctxd/ctxd.toml").write_text("sokcet = 1")
    ran = ctx("status")
    assert ran.code == 1
    assert ran.err == f"ctx: {tmp_path}/config/ctxd/ctxd.toml: there is no setting 'sokcet'; did you mean 'socket'?\n"


def test_the_socket_of_the_settings_is_used_unless_a_flag_or_variable_names_another(ctx, daemon, tmp_path, monkeypatch):
    (tmp_path / "config/ctxd").mkdir(parents=True)
    (tmp_path / "config/ctxd/ctxd.toml").write_text(f"socket = '{daemon.path}'")
    assert ctx("status").code == 0
    assert ctx("status", "--socket", str(tmp_path / "other.sock")).code == 5
    monkeypatch.setenv("CTXD_SOCKET", str(tmp_path / "third.sock"))
    assert "third.sock" in ctx("status").err


@pytest.mark.requirement("CLI-2")
def test_with_json_an_error_is_one_json_document_on_standard_error(scripted, daemon):
    daemon.script["daemon.status"] = refuse("session_not_found", hint="look")
    for words in (("--json", "status"), ("status", "--json")):
        ran = scripted(*words)
        assert ran.out == ""
        assert json.loads(ran.err) == {
            "error": {"code": "session_not_found", "message": "it is so", "hint": "look", "exit": 3}
        }


@pytest.mark.requirement("CLI-2")
def test_json_among_the_words_of_a_captured_command_is_not_an_option_of_ctx(ctx, tmp_path):
    missing = str(tmp_path / "missing")
    assert ctx("capture", "--", missing, "--json").err == f"ctx: {missing}: command not found\n"
    assert json.loads(ctx("capture", "--json", "--", missing).err)["error"]["exit"] == 127


def test_control_characters_in_a_message_are_escaped(scripted, daemon):
    daemon.script["daemon.status"] = refuse("session_not_found", "no \x1b[31m\nsession")
    assert scripted("status").err == "ctx: no \\x1b[31m\\nsession\n"


def test_the_help_of_every_command_has_examples_below_its_usage(ctx):
    import click

    from ctxd.cli.main import cli

    def walk(command, path):
        yield path, command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield from walk(command.get_command(click.Context(command), name), (*path, name))

    paths = [path for path, _ in walk(cli, ())]
    assert len(paths) > 20
    for path in paths:
        ran = ctx(*path, "--help")
        assert ran.code == 0
        usage, _, examples = ran.out.partition("\n\nExamples:\n  ")
        assert usage.startswith("Usage: ctx"), path
        assert examples, path
        assert max(map(len, ran.out.splitlines())) <= 80, path


def test_the_examples_in_the_help_are_command_lines_that_parse(scripted, daemon):
    import shlex

    import click

    from ctxd.cli.main import cli

    def walk(command):
        yield command
        if isinstance(command, click.Group):
            for name in command.list_commands(click.Context(command)):
                yield from walk(command.get_command(click.Context(command), name))

    for command in walk(cli):
        for line in command.examples.strip().splitlines():
            words = shlex.split(re.sub(r"\s[|>].*", "", line.strip()))
            if words[0] != "ctx":
                continue
            context = cli.make_context("ctx", list(words[1:]), resilient_parsing=False)
            while isinstance(context.command, click.Group):
                name, found, rest = context.command.resolve_command(context, [*context._protected_args, *context.args])
                context = found.make_context(name, rest, parent=context)


@pytest.mark.requirement("CLI-1")
def test_the_exit_codes_are_in_the_help(ctx):
    told = dict(re.findall(r"^    (\d+) +(.+)$", ctx("--help").out, re.MULTILINE))
    assert told == {str(code): meaning for code, meaning in MEANINGS}


def test_an_empty_command_line_shows_the_help_and_is_a_usage_error(ctx):
    ran = ctx()
    assert ran.code == 2
    assert ran.out == ""
    assert "Examples:" in ran.err


def test_the_version_comes_without_loading_client_loop_or_tables():
    program = (
        "import sys\nfrom ctxd.cli.main import run\nassert run(['--version']) == 0\n"
        "heavy = {'ctxd_client', 'ctxd_protocol', 'msgspec', 'anyio', 'asyncio', 'rich', 'apsw', 'tomllib'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("ctx, version ")


def test_a_reader_that_closes_early_is_no_failure():
    command = f"{sys.executable} -m ctxd.cli.main rpc --json | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    assert done.returncode == 0


def test_an_interrupt_ends_with_130_and_without_a_trace(daemon):
    daemon.script["daemon.status"] = lambda seen: HOLD
    child = subprocess.Popen(
        [sys.executable, "-m", "ctxd.cli.main", "--socket", daemon.path, "status"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    daemon.wait("daemon.status")
    interrupt(child)
    out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.strip()) == (130, "", "")


@pytest.mark.requirement("SES-22")
def test_an_import_that_is_interrupted_names_its_session(daemon, tmp_path):
    prompt = {"type": "user", "sessionId": "S", "uuid": "1", "message": {"content": "hi"}}
    file = tmp_path / "t.jsonl"
    file.write_text(json.dumps(prompt) + "\n")
    daemon.script["session.append"] = lambda seen: HOLD
    daemon.script["session.create"] = lambda seen: smallest(SessionResult, session="cut")
    child = subprocess.Popen(
        [sys.executable, "-m", "ctxd.cli.main", "--socket", daemon.path, "session", "import", str(file)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    daemon.wait("session.append")
    interrupt(child)
    out, err = child.communicate(timeout=30)
    remedy = "run ctx session close cut, then import again as another session"
    assert (child.returncode, out) == (130, "")
    assert err == f"ctx: interrupted; session cut holds at least the first 0 events; {remedy}\n"


def test_the_executable_is_declared():
    (found,) = [each for each in entry_points(group="console_scripts") if each.name == "ctx"]
    assert found.value == "ctxd.cli.entry_point:main"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script_for_the_shell(ctx, shell):
    ran = ctx("completion", shell)
    assert ran.code == 0
    assert "_CTX_COMPLETE" in ran.out


def test_the_completion_knows_the_commands():
    done = process("se", _CTX_COMPLETE="bash_complete", COMP_WORDS="ctx se", COMP_CWORD="1")
    assert "plain,session" in done.stdout


def test_the_completion_knows_the_methods():
    done = process("rpc", _CTX_COMPLETE="bash_complete", COMP_WORDS="ctx rpc mount", COMP_CWORD="2")
    assert done.stdout == "plain,mount.detect\n"


def test_the_help_names_every_command_once_with_its_whole_first_sentence(ctx):
    shown = ctx("--help").out
    commands = shown.partition("Sessions and the window:")[2].partition("Exit codes:")[0]
    names = [line.split()[0] for line in commands.splitlines() if line[:2] == "  " and line[2:3].strip()]
    assert sorted(names) == sorted([*_COMMANDS, "completion"])
    assert "..." not in commands and "\nCommands:" not in shown


def test_the_summaries_of_commands_are_short():
    import click

    context = click.Context(cli)
    found = {name: cli.get_command(context, name).get_short_help_str(1000) for name in cli.list_commands(context)}
    assert {name: text for name, text in found.items() if len(text) > 75} == {}


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (("session", "chat"), True), (("session", "export"), True), (("transcript",), True), (("watch",), True),
        (("top",), True), (("status",), False), (("log",), False),
    ],
)  # fmt: skip
def test_the_help_of_json_states_whether_there_are_several_documents(ctx, words, lines):
    shown = re.sub(r"\s+", " ", ctx(*words, "--help").out)
    assert ("--json JSON lines instead of text." in shown) == lines
    assert ("--json One JSON document instead of text." in shown) != lines


@pytest.mark.requirement("CLI-2")
@pytest.mark.parametrize(
    "words",
    [
        ("session", "new", "demo"),
        ("session", "ls", "--project", "."),
        ("session", "moved", "/old", "."),
        ("search", "x", "--project", "."),
        ("resume",),
    ],
)
def test_a_deleted_current_directory_is_named_as_the_cause(ctx, running, monkeypatch, tmp_path, words):
    _enter_deleted(monkeypatch, tmp_path)
    ran = ctx("--socket", running.socket, "--json", *words)
    assert (ran.code, json.loads(ran.err)["error"]["code"]) == (1, "no_directory")


@pytest.mark.requirement("CLI-2")
def test_commands_that_can_do_without_the_current_directory_ignore_that_it_is_deleted(
    ctx, running, monkeypatch, tmp_path
):
    socket = ("--socket", running.socket, "--json")
    for id in ("first-open", "second-open"):
        assert ctx(*socket, "session", "new", "demo", "--id", id, "--workdir", "/w").code == 0
    _enter_deleted(monkeypatch, tmp_path)
    assert ctx(*socket, "session", "new", "demo", "--id", "third-open", "--workdir", "/w").code == 0
    assert "several sessions are open" in ctx(*socket, "context").err
    missing = ctx(*socket, "object", "cat", "a.py", "-s", "first-open")
    assert (missing.code, json.loads(missing.err)["error"]["code"]) == (3, "object_not_found")


def _enter_deleted(monkeypatch, tmp_path):
    (tmp_path / "deleted").mkdir()
    monkeypatch.chdir(tmp_path / "deleted")
    (tmp_path / "deleted").rmdir()


@pytest.mark.requirement("CLI-2")
@pytest.mark.parametrize("text", [b"\xff\xfe", b'{"session": ' + b"[" * 2_000 + b"]" * 2_000 + b"}"])
def test_parameters_that_are_no_json_are_refused_as_such(scripted, monkeypatch, text):
    ran = scripted("rpc", "session.get", "--json", os.fsdecode(text))
    assert (ran.code, json.loads(ran.err)["error"]["code"]) == (2, "invalid_params")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), "utf-8"))
    ran = scripted("rpc", "session.get", "--json", "-")
    assert (ran.code, json.loads(ran.err)["error"]["code"]) == (2, "invalid_params")


@pytest.mark.requirement("CLI-2")
@pytest.mark.parametrize(
    ("words", "code", "symbol"),
    [
        (["log", "HEAD", "--all"], 2, "usage"),
        (["capture", "--stdin", "--parent", "HEAD", "--new"], 2, "usage"),
        (["capture"], 2, "usage"),
        (["import", "--watch", "--dry-run"], 2, "usage"),
        (["context", "s1", "--commit", "HEAD"], 2, "usage"),
        (["install", "git", "--repo", "/"], 3, "not_found"),
        (["materialize", "-o", "f", "--counts"], 2, "usage"),
    ],
)
def test_the_error_code_in_json_follows_from_the_exit_code(scripted, words, code, symbol):
    ran = scripted(*words, "--json")
    assert (ran.code, json.loads(ran.err)["error"]["code"]) == (code, symbol)


@pytest.mark.requirement("CLI-2")
@pytest.mark.parametrize(
    ("method", "remedy", "shown"),
    [
        (
            "object.query",
            "Give tx 12 or later, or an earlier valid_time.",
            "Give --tx 12 or later, or an earlier --at.",
        ),
        ("object.list", "Give session too, from session.list.", "Give --session too, from ctx session ls."),
        ("session.get", "Give tx 12.", "Give tx 12."),
    ],
)
def test_parameters_in_remedies_become_options_of_the_command(method, remedy, shown):
    assert in_commands(remedy, method) == shown
