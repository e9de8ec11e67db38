"""The executable ``ctx`` in processes of its own, on pipes, against a real daemon."""

import json
import os
import re
import shlex
import socket
import subprocess
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from blake3 import blake3

from ctxd.cli.main import cli
from ctxd.formatting import moment
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.event_types import ResponseEvent, ThinkingEvent
from tests import programs
from tests.client.running import Running
from tests.unit.assembly.provider_rules import check_request
from tests.waiting import interrupt

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
ENVIRON = {name: value for name, value in os.environ.items() if not name.startswith("CTXD_")}


def ctx(
    daemon: Running, *words: str, stdin: str = "", folder: Path | None = None, **environ: str
) -> subprocess.CompletedProcess[str]:
    """``ctx`` with ``words``, on pipes, in ``folder``, with further variables in its environment."""
    environ = {**ENVIRON, "CTXD_SOCKET": daemon.socket, **environ}
    return programs.run("ctx", words, env=environ, input=stdin, cwd=folder)


@pytest.fixture
def lived(s: SyncSession, tree: Path) -> SyncSession:
    """A session of two turns and two assemblies, with a tool call and a file that was edited in between."""
    (tree / "a.py").write_text("one\n")
    s.set_system_prompt("Be brief.")
    s.user("first")
    s.record(f"{s.id}-call", "bash", "out\n")
    s.read("a.py")
    s.assemble()
    (tree / "a.py").write_text("one\ntwo\n")
    s.edited("a.py")
    s.user("second")
    s.assemble()
    return s


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Every command by its words."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from leaves(found, (*path, name))
    else:
        yield " ".join(path)


USES = {
    "status": "",
    "top": "--once --interval 0.1",
    "session ls": "",
    "session show": "{s}",
    "session chat": "{s}",
    "search": "nothing",
    "session new": "demo",
    "context": "{s}",
    "epoch show": "{s}",
    "object ls": "-s {s}",
    "object cat": "{file}",
    "object as-of": "{file} 0s",
    "object history": "{file}",
    "object diff": "{file} {first} {last}",
    "deactivate": "{file} -s {s}",
    "checkpoint": "{transcript} --format claude-code-v1 -s {s}",
    "log": "-s {s}",
    "show": "-s {s}",
    "branch": "-s {s}",
    "fork": "{s}",
    "resume": "{principal}",
    "materialize": "-s {s} --counts",
    "diff": "HEAD HEAD -s {s}",
    "resolve": "@now",
    "annotate": "-m done -s {s}",
    "tag": "here -s {s}",
    "artifact put": "{transcript}",
    "artifact tag": "kept {artifact}",
    "artifact get": "{artifact} -o {copy}",
    "artifact stat": "{artifact}",
    "artifact ls": "",
    "artifact gc": "--dry-run",
    "artifact fsck": "",
    "activate": "{file} -s {s}",
    "pin": "{file} -s {s}",
    "unpin": "{file} -s {s}",
    "watch": "{s} --after 0 --count 1",
    "current": "-s {s}",
    "sandbox ls": "",
    "sandbox release": "{sandbox}",
    "install claude": "--dry-run",
    "install codex": "--dry-run",
    "install pi": "--dry-run",
    "install opencode": "--dry-run",
    "install status": "",
    "install git": "--repo {repo}",
    "uninstall claude": "--dry-run",
    "uninstall codex": "--dry-run",
    "uninstall pi": "--dry-run",
    "uninstall opencode": "--dry-run",
    "uninstall git": "--repo {repo}",
    "tracker ls": "",
    "transcript": "{transcript}",
    "import": "claude {transcript} --dry-run",
    "rpc": "daemon.status",
    "scan": "-s {s}",
    "doctor": "",
    "completion": "fish",
    "purge": "{file} --yes",
    "session pause": "{s}",
    "session resume": "{s}",
    "session export": "{s}",
    "session import": "{transcript}",
    "session close": "{s}",
    "session fork": "{s}",
    "session rm": "{s}",
    "session restore": "{s}",
    "session archive": "{s}",
    "session unarchive": "{s}",
    "session title": "{s} Named",
    "session label": "{s} task=mend",
    "session moved": "{tree} {tree}",
}

STREAMS = {"session chat", "session export", "transcript"}
"""Commands that print one document per item."""


@pytest.mark.requirement("CLI-1")
def test_every_command_answers_with_json_on_request_and_nothing_else(
    daemon: Running, client: SyncClient, lived: SyncSession, start: Any, tree: Path
) -> None:
    # Two need a node; the output of the third is an agent's, and that of the fourth is its protocol.
    elsewhere = {"query", "session hosts", "capture", "mcp"}
    assert {*USES, *elsewhere} == set(leaves(cli))
    lived.assemble(layout="append")
    other = start()
    (tree / "a.py").write_text("three\n")
    other.edited("a.py")
    file = lived.resolve("a.py").object
    rows = client.object_history(file).versions
    repo = tree / "repo"
    subprocess.run(["git", "init", "-q", repo], check=True)
    sandbox = client.sandbox_register([other.id], grants=()).sandbox.sandbox
    transcript = tree / "session.jsonl"
    transcript.write_text('{"type": "user", "sessionId": "S", "message": {"content": "hi"}}\n')
    names = {
        "transcript": str(transcript),
        "artifact": blake3(transcript.read_bytes()).hexdigest(),
        "copy": str(tree / "copy"),
        "repo": str(repo),
        "tree": str(tree),
        "sandbox": sandbox,
        "s": lived.id,
        "principal": lived.view().session.principal,
        "file": file,
        "first": str(rows[0].tx),
        "last": str(rows[-1].tx),
    }
    for command, use in USES.items():
        for _ in range(60 if command == "current" else 1):
            done = ctx(daemon, *shlex.split(f"{command} {use.format(**names)}"), "--json")
            if done.returncode == 0:
                break  # 200 ms may end before a context is found on a machine that does other work.
        assert done.returncode in ((0, 7) if command == "doctor" else (0,)), (command, done.stderr)
        documents = [json.loads(line) for line in done.stdout.removesuffix("\n").split("\n")]
        assert all(isinstance(document, dict) for document in documents), command
        assert len(documents) == 1 or command in STREAMS, f"{command}: one document, one line"
        assert done.stderr == "", command


def promised(daemon: Running) -> dict[int, str]:
    """The exit codes that the help names."""
    return {int(code): told for code, told in re.findall(r"^    (\d+) +(.+)$", ctx(daemon, "--help").stdout, re.M)}


@pytest.mark.requirement("CLI-1")
@pytest.mark.requirement("CLI-2")
def test_every_exit_has_its_documented_code_and_errors_are_one_line(
    daemon: Running, lived: SyncSession, tmp_path: Path
) -> None:
    documented = promised(daemon)
    nowhere = str(tmp_path / "nowhere.sock")
    ends: list[tuple[int, str, tuple[str, ...]]] = [
        (0, "status", ()),
        (1, f"session resume {closed(lived)}", (lived.id, "closed")),
        (2, "sesion", ("'sesion'", "did you mean 'session'", "ctx --help")),
        (2, "session ls --limit none", ("--limit", "ctx session ls --help")),
        (3, "session show nobody", ("nobody", "; ctx session ls")),
        (3, f"object cat {'0' * 64} -s {lived.id}", ("0" * 64, ";")),
        (4, f"session new demo --id {lived.id}", (lived.id, ";")),
        (5, f"status --socket {nowhere}", (nowhere, "there is no socket", "ctxd run")),
        (124, "status --timeout 0.001 --socket {silent}", ("0.001 s",)),
    ]
    with silent(tmp_path / "silent.sock") as path:
        for code, words, parts in ends:
            done = ctx(daemon, *shlex.split(words.format(silent=path)))
            assert done.returncode == code, (words, done)
            assert code in documented
            if code:
                assert done.stdout == ""
                assert re.fullmatch(r"ctx: [^\n]+\n", done.stderr), f"one line: {done.stderr!r}"
                for part in parts:
                    assert part in done.stderr, words
                as_json = ctx(daemon, *shlex.split(words.format(silent=path)), "--json")
                assert (as_json.returncode, as_json.stdout) == (code, "")
                error = json.loads(as_json.stderr)["error"]
                assert error["exit"] == code
                assert error["message"]
    assert documented.keys() >= {0, 1, 2, 3, 4, 5, 6, 7, 124, 130}


def closed(s: SyncSession) -> str:
    s.close()
    return s.id


@contextmanager
def silent(path: Path) -> Iterator[str]:
    """A socket that accepts connections and does not reply."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        yield str(path)


@pytest.mark.requirement("CLI-1")
def test_an_interrupted_command_exits_with_130_and_no_output(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        path = str(tmp_path / "silent.sock")
        listener.bind(path)
        listener.listen()
        command = [CTX, "status", "--socket", path]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRON)
        connection, _ = listener.accept()
        with connection:
            connection.recv(1)
            interrupt(child)
            out, err = child.communicate(timeout=30)
    assert (child.returncode, out, err.strip()) == (130, "", "")


@pytest.mark.requirement("CLI-6")
def test_without_a_context_current_prints_nothing_or_null_in_json_and_exits_with_3(
    daemon: Running, s: SyncSession
) -> None:
    plain = ctx(daemon, "current", "-s", s.id)
    assert (plain.returncode, plain.stdout, plain.stderr) == (3, "", "")
    for words in (("--json", "current", "-s", s.id), ("current", "-s", s.id, "--json")):
        as_json = ctx(daemon, *words)
        assert (as_json.returncode, json.loads(as_json.stdout), as_json.stderr) == (3, None, "")


@pytest.mark.requirement("CLI-6")
def test_current_names_a_session_that_does_not_exist(daemon: Running, s: SyncSession) -> None:
    for words, environ in ((["current"], {"CTXD_SESSION": f"{s.id}x"}), (["current", "-s", f"{s.id}x"], {})):
        # On a machine that does other work it may end before it has an answer.
        tried = (ctx(daemon, *words, **environ) for _ in range(60))
        done = next(done for done in tried if done.stderr)
        assert (done.returncode, done.stdout) == (3, "")
        assert done.stderr == f"ctx: no such session: {s.id}x; give its full id: ctx session ls lists them\n"


@pytest.mark.requirement("CLI-6")
def test_current_takes_a_unique_prefix_of_a_session(daemon: Running, s: SyncSession, client: SyncClient) -> None:
    for end in "ab":
        client.session_create("spec", session=f"{s.id}-prefixed-{end}")
        client.session(f"{s.id}-prefixed-{end}").user("a prompt")
    wanted = client.context_current(session=f"{s.id}-prefixed-a").context_id
    # On a machine that does other work it may end before it has an answer.
    tried = (ctx(daemon, "current", "-s", f"{s.id}-pref") for _ in range(60))
    assert "no such session" in next(done for done in tried if done.stderr).stderr, "of two sessions"
    client.session_annotate(f"{s.id}-prefixed-b", archived=True)
    tried = (ctx(daemon, "current", "-s", f"{s.id}-pref") for _ in range(60))
    assert next(done for done in tried if done.returncode == 0).stdout == f"{wanted}\n"


@pytest.mark.requirement("CLI-2")
def test_a_time_before_the_first_version_of_a_file_names_the_file_and_that_version(
    daemon: Running, s: SyncSession, client: SyncClient, tree: Path
) -> None:
    (tree / "a.py").write_text("one\n")
    first = s.read("a.py").receipt
    assert first is not None
    id = s.resolve("a.py").object
    done = ctx(daemon, "object", "as-of", id, "2001-01-01", "-s", s.id)
    assert done.returncode == 3
    assert re.match(r"ctx: /\S*a\.py had no version at 2001-01-01 ", done.stderr), done.stderr
    assert f"its first one is of {moment(first.vt)}, sequence {first.seq}; " in done.stderr
    elsewhere = ctx(daemon, "rpc", "object.get", json.dumps({"object": id, "tx": first.seq - 1}))
    assert f"{tree / 'a.py'} had no version at sequence {first.seq - 1}; " in elsewhere.stderr


@pytest.mark.requirement("CLI-2")
def test_a_remedy_names_the_command_that_lists_the_assemblies_of_a_session(daemon: Running, lived: SyncSession) -> None:
    done = ctx(daemon, "context", lived.id, "--turn", "9")
    assert done.returncode == 3
    command = f"ctx context {lived.id} --list"
    assert done.stderr.endswith(f"; {command} lists all\n")
    listed = ctx(daemon, *shlex.split(command)[1:])
    head, *rows = listed.stdout.splitlines()
    assert head.split() == ["NUMBER", "TURN", "CONTEXT", "FORMAT", "TOKENS", "TIME"]
    assert [row.split()[:2] for row in rows] == [["1", "1"], ["2", "2"]]
    items = json.loads(ctx(daemon, "context", lived.id, "--list", "--json").stdout)["items"]
    assert [(each["number"], each["turn"], each["format"]) for each in items] == [(1, 1, None), (2, 2, None)]
    for words in (["--turn", "1"], ["--text"], ["--plan"], ["--commit", "HEAD"]):
        assert ctx(daemon, "context", lived.id, "--list", *words).returncode == 2
    assert ctx(daemon, "context", f"{lived.id}@1", "--list").returncode == 2


@pytest.mark.requirement("CLI-2")
@pytest.mark.parametrize("words", [("query",), ("query", " ")])
def test_an_empty_query_is_a_usage_error_that_names_the_missing_text(daemon: Running, words: tuple[str, ...]) -> None:
    done = ctx(daemon, *words, stdin="\n")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("ctx: there is no query; give one, or pipe it in: ctx query '{:find ")


@pytest.mark.requirement("CLI-14")
def test_nouns_agree_with_their_numbers(daemon: Running, s: SyncSession, tree: Path) -> None:
    (tree / "one.py").write_text("password = 'Xk9-fqW2-pL0z'\n")
    one = ctx(daemon, "scan", str(tree / "one.py")).stderr
    assert one == "1 secret in 1 file\n"
    assert ctx(daemon, "scan", str(tree / "one.py"), str(tree / "one.py")).stderr == "2 secrets in 2 files\n"
    s.read("one.py")
    erased = ctx(daemon, "purge", s.resolve("one.py").object, "--yes")
    assert erased.stdout.splitlines()[0].endswith(": 1 version, 1 text"), erased


@pytest.mark.requirement("CLI-3")
def test_context_shows_the_models_view_with_reasons_and_costs(daemon: Running, lived: SyncSession) -> None:
    seen = lived.assemble()
    assert ctx(daemon, "context", lived.id, "--text").stdout == seen.text
    told = ctx(daemon, "context", lived.id).stdout
    head = told.splitlines()[0]
    assert head.startswith(f"{lived.id}  turn 2  assembly {seen.number}  {seen.tokens:,} tokens")
    for size in seen.sections:
        assert re.search(rf"{size.section} +{size.tokens:,} tokens? +{size.entries:,} entr(y|ies)", told)
    table = told.split("REASON", 1)[1].splitlines()[1:]
    assert len([line for line in table if line.strip()]) == len(seen.blocks)
    for block, line in zip(seen.blocks, table, strict=False):
        assert f" {block.tokens:,} " in line
        assert f" {block.reason} " in line
        named = {lived.resolve("a.py").object: "/a.py ", f"{lived.id}-call": f"bash {lived.id}-call "}
        assert named.get(block.object or "", "") in line
        assert not re.search(r"\b[0-9a-f]{12}\b", line.split(block.reason)[0]), "names for people, not hashes"
    assert json.loads(ctx(daemon, "context", lived.id, "--json").stdout)["sha256"] == seen.sha256
    plan = ctx(daemon, "context", lived.id, "--plan", "10").stdout
    assert plan.startswith(f"budget 10 tokens, context {seen.tokens:,}")
    assert "oldest tool call" in plan


@pytest.mark.requirement("CLI-3")
def test_context_compares_two_turns(daemon: Running, lived: SyncSession) -> None:
    first, second = lived.show(turn=1), lived.show(turn=2)
    assert ctx(daemon, "context", lived.id, "--turn", "1", "--text").stdout == first.text
    lines = ctx(daemon, "context", lived.id, "--diff", "t1", "t2").stdout.splitlines()
    assert lines[:2] == ["--- assembly 1 (turn 1)", "+++ assembly 2 (turn 2)"]
    added = {line[1:] for line in lines[2:] if line.startswith("+")}
    removed = {line[1:] for line in lines[2:] if line.startswith("-")}
    assert {"two", "second"} <= added <= set(second.text.splitlines())
    assert removed <= set(first.text.splitlines())


@pytest.mark.requirement("SES-16")
def test_a_new_sessions_relative_directory_is_resolved_by_the_caller(daemon: Running) -> None:
    made = ctx(daemon, "session", "new", "spec", "--workdir", "sub", "--json")
    assert json.loads(made.stdout)["session"]["workdir"] == str(Path.cwd() / "sub")


@pytest.mark.requirement("SES-16")
def test_a_new_session_works_in_the_current_directory_by_the_agents_name_for_it(daemon: Running, tree: Path) -> None:
    (tree / "sub").mkdir()
    for words, workdir in (
        ((), str(tree / "sub")),
        (("--mount", f"/workspace={tree}"), "/workspace/sub"),
        (("--mount", f"/workspace={tree}", "--mount", "/deep=."), "/deep"),
        (("--mount", "/w=/usr"), str(tree / "sub")),
    ):
        made = ctx(daemon, "session", "new", "spec", *words, "--json", folder=tree / "sub")
        assert json.loads(made.stdout)["session"]["workdir"] == workdir


@pytest.mark.requirement("REQ-1")
def test_a_piped_request_is_json_and_omissions_are_reported_on_stderr(daemon: Running, lived: SyncSession) -> None:
    lived.append(events=[ThinkingEvent(text="Hm.", signature="sig"), ResponseEvent(text="Done.")])
    done = ctx(daemon, "context", lived.id, "--format", "anthropic-messages", "--model", "claude-sonnet-4-5")
    check_request("anthropic-messages", json.loads(done.stdout))
    assert "reasoning at" in done.stderr and "the messages before it are not known" in done.stderr
    refused = ctx(daemon, "context", lived.id, "--format", "openai-chat", "--plan")
    assert refused.returncode == 2 and "exclude each other" in refused.stderr
