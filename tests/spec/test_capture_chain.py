"""The chain of a capture: the commit that it continues, the current context beside it, and invalid settings."""

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.spec.test_capture import CTX, TURN, WAIT_S, captured, chain, environ, events, kinds, running, undelivered


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Running]:
    with Running(tmp_path, keep_state=True) as daemon:
        yield daemon


@pytest.mark.requirement("CAP-9")
def test_a_capture_of_a_session_continues_its_newest_commit(own: Running) -> None:
    line = b'{"type":"user","content":"go"}\n'
    with connect_sync(own.socket) as client:
        client.session("s", agent="a")
        for number in range(3):
            captured(own, "", "--session", "s", stdin=line)
            assert len(chain(client)) == number + 1
        captured(own, "", "--session", "s", "--new", stdin=line)
        newest = client.commit_list(session="s").commits[0]
        assert newest.parent is None
    assert captured(own, "", "--new", "--parent", newest.commit, stdin=line).returncode == 2


@pytest.mark.requirement("CAP-9")
def test_the_parent_of_a_capture_is_named_as_any_commit_and_a_wrong_name_starts_no_agent(own: Running) -> None:
    line = b'{"type":"user","content":"go"}\n'
    with connect_sync(own.socket) as client:
        client.session("s", agent="a")
        captured(own, "", "--session", "s", stdin=line)
        (first,) = chain(client)
        client.commit_tag(first.commit, "good")
        for name in ("good", "HEAD", "s", f"{first.commit}~0"):
            assert captured(own, "", "--session", "s", "--new", "--parent", name, stdin=line).returncode == 2
            assert captured(own, "", "--session", "s", "--parent", name, stdin=line).returncode == 0, name
        made = client.commit_list(session="s").commits[::-1]
        ids = [each.commit for each in made]
        assert [each.parent for each in made] == [None, ids[0], ids[1], ids[2], ids[0]]
        ran = captured(own, TURN, "--parent", "no/such")
        assert (ran.returncode, ran.stdout) == (3, b"")
        assert not undelivered(own)


@pytest.mark.requirement("CAP-3")
@pytest.mark.requirement("CMT-20")
def test_the_current_context_beside_a_capture_has_all_that_was_delivered_and_a_signal_delivers_the_rest(
    own: Running, tmp_path: Path
) -> None:
    go, end = tmp_path / "go", tmp_path / "end"
    prompts = [f"line(type='user', content={text!r})" for text in ("first", "second")]
    body = f"{prompts[0]}\nuntil({str(go)!r})\n{prompts[1]}\nuntil({str(end)!r})"
    with connect_sync(own.socket) as client:
        client.session("s", agent="a")
        with running(own, body, "--session", "s", "--checkpoint", "session_end") as process:
            assert process.stdout is not None
            lines = process.stdout
            assert b"first" in lines.readline() + lines.readline()
            assert client.context_current(session="s").context_id is None, "what the capture holds is no commit yet"

            def current_after_signal(messages: int) -> str:
                while sum(commit.message_count for commit in chain(client)) < messages:
                    process.send_signal(signal.SIGUSR1)
                return client.context_current(session="s").context_id or ""

            first = current_after_signal(1)
            assert kinds(events(client, first)) == ["System", "Prompt"]
            go.touch()
            assert b"second" in lines.readline()
            second = current_after_signal(2)
            assert kinds(events(client, second)) == ["System", "Prompt", "Prompt"]
            end.touch()
            assert process.wait(WAIT_S) == 0
        assert client.context_current(session="s").context_id == chain(client)[-1].commit


@pytest.mark.requirement("CAP-9")
def test_the_session_of_a_capture_may_be_shortened_and_must_exist_for_every_input(own: Running, tmp_path: Path) -> None:
    line = b'{"type":"user","content":"go"}\n'
    transcript = tmp_path / "S.jsonl"
    transcript.write_bytes(b'{"type":"user","uuid":"u","sessionId":"S","message":{"role":"user","content":"go"}}\n')
    imported = [CTX, "capture", "--from", transcript]
    with connect_sync(own.socket) as client:
        client.session("session-1", agent="a")
        ran = captured(own, "", "--session", "nosuch", stdin=line)
        assert (ran.returncode, ran.stdout) == (3, b"")
        assert b"ctx session new AGENT --id nosuch" in ran.stderr
        assert subprocess.run([*imported, "-s", "nosuch"], env=environ(own.socket), timeout=WAIT_S).returncode == 3
        assert client.commit_list().commits == ()
        assert not undelivered(own)
        assert captured(own, "", "--session", "sess", stdin=line).returncode == 0
        assert captured(own, TURN, "--session", "sess").returncode == 0
        assert subprocess.run([*imported, "-s", "sess"], env=environ(own.socket), timeout=WAIT_S).returncode == 0
        assert {each.session for each in client.commit_list().commits} == {"session-1"}


@pytest.mark.requirement("CAP-9")
def test_a_session_that_is_not_there_starts_no_agent_and_output_without_messages_makes_no_commit(own: Running) -> None:
    ran = captured(own, TURN, "--session", "nosuch")
    assert (ran.returncode, ran.stdout) == (3, b"")
    assert b"ctx session new AGENT --id nosuch" in ran.stderr
    ran = captured(own, "", stdin=b"hello\n")
    assert b"the output had no message, and nothing was committed" in ran.stderr and b"the newest" not in ran.stderr
    failed = b'{"type":"system","subtype":"init"}\n{"type":"result","subtype":"error","is_error":true}\n'
    for output in (b"hello\n", failed, failed + b"ended\n"):
        ran = captured(own, "", "--json", stdin=output)
        done = json.loads(ran.stderr)
        (note,) = done["notes"]
        assert note.startswith("the output had no message")
        assert (done["commits"], done["newest"]) == (0, None), output
    with connect_sync(own.socket) as client:
        assert client.commit_list().commits == ()


@pytest.mark.requirement("CAP-8")
@pytest.mark.parametrize("setting", ["[secrets]\nrules = '/none.toml'", "["], ids=["rules", "settings"])
def test_with_invalid_settings_the_agent_runs_and_only_the_daemon_stores_its_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    (tmp_path / "config/ctxd").mkdir(parents=True)
    (tmp_path / "config/ctxd/ctxd.toml").write_text(setting)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    # Longer than the time after which waiting commits are written to the file.
    ran = captured(Running(tmp_path), TURN + "time.sleep(3)\nprint('over', flush=True)\nsys.exit(3)", "--wait", "0.1")
    assert ran.returncode == 3 and ran.stdout.endswith(b"over\n")
    assert b"4 commits lost" in ran.stderr and b"toml: " in ran.stderr
    monkeypatch.delenv("XDG_CONFIG_HOME")
    with Running(tmp_path) as daemon:
        monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
        assert b"3 commits, the newest is" in captured(daemon, TURN).stderr
