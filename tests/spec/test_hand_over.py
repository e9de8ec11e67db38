"""HND: contexts that go on in a harness. The harness itself is played by its files and its hooks; the real clients are
in tests/harnesses."""

import json
import os
import shlex
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ctxd.cli.hand_over import HandedOver, _become, _content, _create, _with_outputs
from ctxd.click_support import Stop
from ctxd.formats.losses import Losses
from ctxd.transcripts.format_detection import read
from ctxd_client import SyncClient, SyncSession
from ctxd_protocol.event_types import (
    OpaqueEvent,
    PromptEvent,
    ResponseEvent,
    SystemEvent,
    ThinkingEvent,
    ToolCallEvent,
    ToolResultEvent,
)
from tests.client.running import Running
from tests.spec.test_commands import ctx
from tests.spec.test_session_start import story, tip

HARNESSES = {"claude": "claude-code", "codex": "codex", "pi": "pi", "opencode": "opencode"}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home directory in which opencode knows its model."""
    config = tmp_path / "home/.config/opencode/opencode.json"
    config.parent.mkdir(parents=True)
    config.write_text('{\n  // comments are allowed\n  "model": "scripted/model"\n}\n')
    return tmp_path / "home"


@pytest.fixture
def handed(daemon: Running, home: Path, tree: Path) -> Callable[..., dict[str, Any]]:
    """``handed("resume", commit, "--in", "claude")``: the outcome of a hand-over into ``tree``."""

    def run(*words: str, **environ: str) -> dict[str, Any]:
        done = ctx(daemon, *words, "--cwd", str(tree), "--json", HOME=str(home), TMPDIR=str(home), **environ)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return run


def talked(s: SyncSession) -> str:
    """A session in which something was said, and the commit of it."""
    s.user("Does the parser accept tabs?")
    s.tool("bash", {"command": "grep tab parser.py"}, output="delimiter = ' '\n", id=f"{s.id}-call")
    s.assistant("It does not.")
    return tip(s.client, s.id)


def told(file: str) -> list[str]:
    """The conversation in a session file, in short."""
    found = []
    for entry in read(Path(file))[1]:
        match entry.event:
            case PromptEvent(text=text) | ResponseEvent(text=text) | ToolResultEvent(text=text):
                found.append(text)
            case ToolCallEvent(args=args):
                found.append(json.dumps(args))
            case _:
                pass
    return found


@pytest.mark.requirement("HND-1")
@pytest.mark.parametrize("verb", ["resume", "fork"])
@pytest.mark.parametrize("harness", HARNESSES)
def test_a_commit_becomes_a_session_of_the_harness(
    handed: Callable[..., dict[str, Any]], s: SyncSession, tree: Path, harness: str, verb: str
) -> None:
    commit = talked(s)
    s.user("Not in the other.")
    made = handed(verb, commit, "--in", harness)
    said = ["Does the parser accept tabs?", '{"command": "grep tab parser.py"}', "delimiter = ' '\n", "It does not."]
    assert told(made["file"]) == said
    assert (made["commit"], made["cwd"], made["left_out"]) == (commit, str(tree), {})
    assert made["native_session"] in " ".join(made["command"]) and made["command"][0] == harness
    assert stat.S_IMODE(os.stat(made["file"]).st_mode) == 0o600


@pytest.mark.requirement("HND-1")
def test_a_moment_of_a_session_a_session_and_the_newest_work_can_be_handed_over(
    handed: Callable[..., dict[str, Any]], s: SyncSession, client: SyncClient
) -> None:
    talked(s)
    s.user("Second.")
    assert told(handed("fork", f"{s.id}@1", "--in", "pi")["file"])[-1] == "It does not."
    assert told(handed("fork", s.id, "--in", "pi")["file"])[-1] == "Second."
    assert told(handed("resume", "--in", "pi", "--agent", "spec")["file"])


@pytest.mark.requirement("HND-1")
def test_the_printed_command_and_exec_run_in_the_directory(
    daemon: Running, s: SyncSession, home: Path, tree: Path
) -> None:
    commit = talked(s)
    folder = tree / "it's here"
    folder.mkdir()
    programs = home / "bin"
    programs.mkdir()
    for name in ("claude", "opencode"):
        (programs / name).write_text('#!/bin/sh\necho "$(pwd) $*"\n')
        (programs / name).chmod(0o755)
    environ = {"HOME": str(home), "TMPDIR": str(home), "PATH": f"{programs}:/usr/bin:/bin"}
    printed = ctx(daemon, "resume", commit, "--in", "claude", "--cwd", str(folder), **environ)
    words = shlex.split(printed.stdout)
    assert words[:3] == ["cd", str(folder), "&&"] and words[3:5] == ["claude", "--resume"]
    for harness, word in (("claude", "--resume"), ("opencode", "--session")):
        done = ctx(daemon, "resume", commit, "--in", harness, "--cwd", str(folder), "--exec", **environ)
        assert done.returncode == 0, done.stderr
        assert f"{folder} {word} " in done.stdout.splitlines()[-1]
    assert not list(home.glob("ctx-hand-over-*")), "the document is removed once it is imported"
    missing = ctx(daemon, "resume", commit, "--in", "codex", "--cwd", str(folder), "--exec", **environ)
    assert missing.returncode == 1 and "codex is not on PATH" in missing.stderr and not (home / ".codex").exists()


@pytest.mark.requirement("HND-1")
def test_a_directory_that_no_harness_can_use_is_named(daemon: Running, s: SyncSession, home: Path, tree: Path) -> None:
    commit, folder = talked(s), tree / os.fsdecode(b"caf\xe9")
    folder.mkdir()
    for place, reason in ((folder, "is not UTF-8"), (tree / "none", "No such file or directory")):
        done = ctx(daemon, "resume", commit, "--in", "claude", "--cwd", str(place), HOME=str(home))
        assert done.returncode == 2 and "--cwd" in done.stderr and reason in done.stderr


@pytest.mark.requirement("HND-2")
def test_omitted_content_is_reported(
    daemon: Running, handed: Callable[..., dict[str, Any]], s: SyncSession, home: Path, tree: Path
) -> None:
    s.user("Begin.")
    s.append(events=[ThinkingEvent(text="Hm.", signature="S"), ToolCallEvent(call="c1", tool="bash", args={})])
    commit = tip(s.client, s.id)
    assert handed("resume", commit, "--in", "pi")["left_out"] == {"output of an interrupted call": 1, "thinking": 1}
    done = ctx(daemon, "resume", commit, "--in", "pi", "--cwd", str(tree), HOME=str(home))
    assert done.stderr.endswith("output of an interrupted call (1), thinking (1)\n")
    s.append(events=[SystemEvent(kind="resume"), OpaqueEvent(kind="atis-latch", data={}), ResponseEvent(text="So.")])
    done = ctx(daemon, "resume", s.id, "--in", "pi", "--cwd", str(tree), HOME=str(home))
    assert done.stderr.endswith("thinking (1), 2 records of the harness itself (--json lists all)\n")


@pytest.mark.requirement("HND-2")
def test_reasoning_is_kept_where_the_whole_context_is_of_the_same_harness(
    handed: Callable[..., dict[str, Any]], start: Any
) -> None:
    s = start(agent="claude-code", labels={"harness": "claude-code"})
    s.user("Begin.")
    s.append(events=[ThinkingEvent(text="Hm.", signature="S"), ResponseEvent(text="Done.")])
    commit = tip(s.client, s.id)
    file = Path(handed("resume", commit, "--in", "claude")["file"])
    thought = json.loads(file.read_text().splitlines()[1])
    assert thought["message"]["content"] == [{"type": "thinking", "thinking": "Hm.", "signature": "S"}]
    assert handed("resume", commit, "--in", "pi")["left_out"] == {"thinking": 1}


@pytest.mark.requirement("HND-3")
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--cwd", "/no/such/place"), "No such file or directory"),
        (("--cwd", "/etc/hostname"), "Not a directory"),
        (("--id", "mine"), "--in and --id exclude each other"),
        (("--system-prompt", "x"), "--in and --system-prompt exclude each other"),
    ],
)
def test_an_invalid_hand_over_leaves_nothing_behind(
    daemon: Running, client: SyncClient, s: SyncSession, home: Path, words: tuple[str, ...], message: str
) -> None:
    commit = talked(s)
    before = len(client.session_list(limit=1000).sessions)
    done = ctx(daemon, "resume", commit, "--in", "claude", *words, HOME=str(home))
    assert done.returncode == 2 and message in done.stderr and len(done.stderr.splitlines()) == 1
    assert not (home / ".claude").exists() and len(client.session_list(limit=1000).sessions) == before


@pytest.mark.requirement("HND-3")
def test_a_place_that_cannot_be_written_leaves_no_open_session(
    daemon: Running, client: SyncClient, s: SyncSession, home: Path, tree: Path
) -> None:
    commit = talked(s)
    (home / ".claude").write_text("a file")
    before = {each.session for each in client.session_list(limit=1000).sessions}
    done = ctx(daemon, "resume", commit, "--in", "claude", "--cwd", str(tree), HOME=str(home))
    assert done.returncode == 1 and "cannot create" in done.stderr and len(done.stderr.splitlines()) == 1
    assert {each.session for each in client.session_list(limit=1000).sessions} == before
    long = tree.joinpath(*["d" * 100] * 3)
    long.mkdir(parents=True)
    done = ctx(daemon, "resume", commit, "--in", "claude", "--cwd", str(long), HOME=str(home))
    assert done.returncode == 2 and "choose a --cwd of at most 200 characters" in done.stderr
    (tree / "loop").symlink_to("loop")
    done = ctx(daemon, "resume", commit, "--in", "claude", "--cwd", str(tree / "loop"), HOME=str(home))
    assert done.returncode == 2 and "Too many levels" in done.stderr and len(done.stderr.splitlines()) == 1
    assert ctx(daemon, "fork", commit, "--exec").returncode == 2


@pytest.mark.requirement("HND-3")
def test_a_session_without_commits_is_named_with_the_remedy(daemon: Running, s: SyncSession, home: Path) -> None:
    done = ctx(daemon, "fork", s.id, "--in", "claude", "--cwd", str(home), HOME=str(home))
    assert done.returncode == 3 and f"session {s.id} has no commit to hand over" in done.stderr, done.stderr
    assert "name a commit" in done.stderr


@pytest.mark.requirement("HND-1")
def test_the_harness_of_each_session_is_looked_up_once(client: SyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    session = client.session_create("claude-code", labels={"harness": "claude-code"}).session.session
    for text in ("one", "two", "three"):
        client.session_append(session, events=(PromptEvent(text=text),))
        commit = tip(client, session)
    looked, get = list[str](), client.session_get
    monkeypatch.setattr(client, "session_get", lambda id: looked.append(id) or get(id))
    found = _content(client, commit, "claude", Losses())
    assert (found.is_own, found.first_format, looked) == (True, "events-v1", [session])


@pytest.mark.requirement("HND-1")
def test_the_outputs_of_a_context_are_read_in_few_calls_however_large_they_are(
    client: SyncClient, s: SyncSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = 3_000_000
    for number in range(8):
        s.tool("bash", {"command": f"cat {number}"}, output=f"{number}" * (large if number % 2 else 1))
    results = [
        ToolResultEvent(call=f"{place}", object=each.object)
        for place, each in enumerate(client.object_list(session=s.id, type="toolcall").objects)
    ]
    gone = ToolResultEvent(call="gone", object="toolcall:gone")
    calls, bulk = list[int](), client.object_bulk

    def counted(objects: list[str], **params: Any) -> Any:
        calls.append(len(objects))
        return bulk(objects, **params)

    monkeypatch.setattr(client, "object_bulk", counted)
    prompt = PromptEvent(text="Read them.")
    found = _with_outputs(client, s.id, [prompt, *results, gone, results[0]])
    assert found[0] is prompt and found[1] == found[-1] and found[-2].text == "[The output is gone.]"  # type: ignore[union-attr]
    lengths = sorted(len(each.text) for each in found[1:9])  # type: ignore[union-attr]
    assert lengths == [1] * 4 + [large] * 4
    assert calls[0] == 9 and len(calls) < 9


@pytest.mark.requirement("HND-3")
def test_an_interrupted_hand_over_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        _create(tmp_path / "rollout.jsonl", b"{}\n")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.requirement("HND-3")
def test_a_directory_that_is_removed_before_the_harness_starts_is_named(tmp_path: Path) -> None:
    result = HandedOver("s-1", "ctx-1", "n-1", "file", str(tmp_path / "gone"), (), ("claude", "--resume", "n-1"), {})
    with pytest.raises(Stop, match=r"cannot enter .*gone: No such file or directory") as stopped:
        _become(result)
    assert "claude --resume n-1" in str(stopped.value.hint)


@pytest.mark.requirement("HND-3")
def test_no_session_that_exists_is_touched_nor_a_link_followed(
    handed: Callable[..., dict[str, Any]], s: SyncSession, home: Path
) -> None:
    commit = talked(s)
    first = handed("resume", commit, "--in", "claude")
    content = Path(first["file"]).read_bytes()
    second = handed("resume", commit, "--in", "claude")
    assert first["file"] != second["file"] and first["session"] != second["session"]
    assert Path(first["file"]).read_bytes() == content


@pytest.mark.requirement("HND-3")
def test_a_context_that_is_purged_is_refused(
    daemon: Running, client: SyncClient, s: SyncSession, home: Path, tree: Path
) -> None:
    made = client.commit_checkpoint("claude-code-v1", '{"type":"user","message":{"content":"secret"}}\n').commit
    client.object_purge(f"commit:{made.commit}")
    before = {each.session for each in client.session_list(limit=1000).sessions}
    done = ctx(daemon, "resume", made.commit, "--in", "claude", "--cwd", str(tree), HOME=str(home))
    assert done.returncode != 0 and "purged" in done.stderr and len(done.stderr.splitlines()) == 1
    assert {each.session for each in client.session_list(limit=1000).sessions} == before
    assert not (home / ".claude").exists()


def hook(client: SyncClient, made: dict[str, Any], event: str, **fields: str) -> str:
    """One event of the harness that continues ``made``; the session of the daemon that has it."""
    given = {"session_id": made["native_session"], "cwd": made["cwd"], "hook_event_name": event, **fields}
    return client.session_hook(HARNESSES[made["harness"]], json.dumps(given)).session  # type: ignore[arg-type]


@pytest.mark.requirement("HND-4")
def test_two_sessions_from_one_commit_are_isolated(
    handed: Callable[..., dict[str, Any]], client: SyncClient, s: SyncSession, tree: Path
) -> None:
    """A review notes a finding with its context id; each discussion starts from there, in another harness."""
    s.user("Review parser.py.")
    s.assistant("Finding: tabs are refused.")
    finding = {"text": "tabs are refused", "context_id": tip(client, s.id)}
    s.user("Go on with the next file.")
    first = handed("resume", finding["context_id"], "--in", "claude")
    second = handed("resume", finding["context_id"], "--in", "codex")
    for made, question in ((first, "Is it on purpose?"), (second, "Who wrote it?")):
        assert hook(client, made, "UserPromptSubmit", prompt=question, prompt_id=question) == made["session"]
        hook(client, made, "Stop", last_assistant_message=f"About: {question}", prompt_id=question)
    stories = [story(client, tip(client, made["session"])) for made in (first, second)]
    for own, other, question in ((0, 1, "Is it on purpose?"), (1, 0, "Who wrote it?")):
        assert "Finding: tabs are refused." in stories[own] and question in stories[own]
        assert f"About: {question}" in stories[own] and question not in stories[other]
        assert "next file" not in stories[own]
    children = client.commit_show(finding["context_id"]).children
    assert {first["session"], second["session"]} <= {client.commit_show(each).commit.session for each in children}
    assert "Is it on purpose?" not in story(client, tip(client, s.id))
    # And from one discussion on, in a third harness.
    third = handed("fork", first["session"], "--in", "pi")
    assert told(third["file"])[-2:] == ["Is it on purpose?", "About: Is it on purpose?"]
