"""The current context's id for scripts and commits: ``ctx current`` and the git hook."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from ctxd_client import connect_sync
from tests.client.running import Running
from tests.e2e.hanging import hanging

CTX = Path(sysconfig.get_path("scripts")) / "ctx"
QUIET = {name: value for name, value in os.environ.items() if not name.startswith(("CTXD_", "GIT_"))}
GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "HOME": "/nonexistent"}
WITHIN_S = 20.0
"""Seconds that only a program that waits for an answer exceeds. ``python -m bench ctx_start`` has the limit 0.2."""
TRIES = 60


def current(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [CTX, "current", *words], capture_output=True, text=True, timeout=WITHIN_S, env=QUIET | environ
    )


def found(*words: str, **environ: str) -> str:
    """What the program prints once it finds a context: on a machine that does other work 200 ms may end before that."""
    for _ in range(TRIES):
        done = current(*words, **environ)
        if done.returncode != 3:
            break
    return done.stdout


def require_nothing_in_time(*words: str, **environ: str) -> None:
    """Fail unless the program ends without an answer and prints nothing."""
    done = current(*words, **environ)
    assert (done.returncode, done.stdout, done.stderr) == (3, "null\n" if "--json" in words else "", "")


@contextmanager
def silent(path: Path) -> Iterator[str]:
    """A socket that accepts connections and does not reply."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield str(path)


@pytest.mark.requirement("CLI-6")
@pytest.mark.requirement("BOX-6")
def test_the_id_comes_from_the_environment_the_file_or_the_daemon(tmp_path: Path) -> None:
    file = tmp_path / "current.json"
    file.write_text('{"context_id":"ctx-file","session":"s1","turn":1,"assembly":1}\n')
    nowhere = str(tmp_path / "ctxd.sock")
    assert found(CTXD_CONTEXT_ID="ctx-env", CTXD_SOCKET=nowhere) == "ctx-env\n"
    assert found(CTXD_SOCKET=nowhere) == "ctx-file\n", "the daemon is gone, the file beside its socket is not"
    assert found(CTXD_CONTEXT_FILE=str(file), CTXD_SOCKET="/nowhere") == "ctx-file\n"
    assert json.loads(found("--json", CTXD_SOCKET=nowhere))["session"] == "s1"
    (tmp_path / "daemon").mkdir()
    with Running(tmp_path / "daemon") as daemon, connect_sync(daemon.socket) as client:
        client.session_create("a", session="s1")
        client.session_create("a", session="s2")
        for session in ("s1", "s2"):
            client.context_assemble(session)
        made = [found("-s", session, CTXD_SOCKET=daemon.socket).strip() for session in ("s1", "s2")]
        assert [client.commit_show(id).commit.session for id in made] == ["s1", "s2"]
        assert found(CTXD_SOCKET=daemon.socket, CTXD_SESSION="s2").strip() == made[1]
        assert current(CTXD_SOCKET=daemon.socket).returncode == 3, "two sessions, and none is meant"


@pytest.mark.requirement("CLI-6")
def test_without_a_context_the_command_prints_nothing_and_does_not_block(tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "current.json").write_text("{")
    dead = tmp_path / "dead.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(dead))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with silent(tmp_path / "silent.sock") as stuck:
        for environ in (
            {"CTXD_SOCKET": str(tmp_path / "none.sock")},
            {"CTXD_SOCKET": str(tmp_path / "broken" / "none.sock")},
            {"CTXD_SOCKET": str(dead)},
            {"CTXD_SOCKET": stuck},
            {"CTXD_SOCKET": stuck, "CTXD_CONTEXT_FILE": str(pipe)},
        ):
            require_nothing_in_time(**environ)


@pytest.mark.requirement("CLI-6")
@pytest.mark.parametrize("words", [(), ("--json",)], ids=["at once", "by way of the whole program"])
def test_a_file_system_that_hangs_is_not_waited_for(tmp_path: Path, words: tuple[str, ...]) -> None:
    with hanging(tmp_path / "far") as far:
        for environ in ({"CTXD_SOCKET": str(far / "ctxd.sock")}, {"CTXD_CONTEXT_FILE": str(far / "current.json")}):
            require_nothing_in_time(*words, **{"CTXD_SOCKET": "/nowhere", **environ})


@pytest.mark.requirement("CLI-6")
def test_a_daemon_whose_queue_is_full_is_not_waited_for(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener, ExitStack() as waiting:
        listener.bind(str(tmp_path / "full.sock"))
        listener.listen(0)
        for _ in range(2):
            one = waiting.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            one.connect_ex(str(tmp_path / "full.sock"))
        done = current(CTXD_SOCKET=str(tmp_path / "full.sock"))
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


@pytest.mark.requirement("CLI-6")
def test_a_daemon_that_is_stopped_is_not_waited_for(tmp_path: Path) -> None:
    with Running(tmp_path) as daemon:
        with connect_sync(daemon.socket) as client:
            pid = client.daemon_status().pid
        os.kill(pid, signal.SIGSTOP)
        try:
            done = current(CTXD_SOCKET=daemon.socket)
        finally:
            os.kill(pid, signal.SIGCONT)
        assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


# --- git ---


class Repository:
    """A git repository, and ``ctx install git`` in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.git("init", "-q", "-b", "main", str(root), at=root.parent)
        self.git("config", "user.name", "n")
        self.git("config", "user.email", "n@example.org")

    def run(self, *command: str, at: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
        path = f"{CTX.parent}:{os.environ['PATH']}"
        env = QUIET | GIT | {"PATH": path, "CTXD_SOCKET": "/nowhere"} | environ
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env=env, cwd=at or self.root)

    def git(self, *words: str, at: Path | None = None, **environ: str) -> str:
        done = self.run("git", *words, at=at, **environ)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def install(self, *words: str, at: Path | None = None) -> dict[str, object]:
        done = self.run(str(CTX), "install", "git", "--json", *words, at=at)
        assert done.returncode == 0, done.stderr
        told: dict[str, object] = json.loads(done.stdout)
        return told

    def trailers(self, message: str = "one\n\ntext\n---\nmore", at: Path | None = None, **environ: str) -> list[str]:
        """The trailers of a new commit."""
        self.git("commit", "-q", "--allow-empty", "-m", message, at=at, **environ)
        return self.git("log", "-1", "--format=%(trailers:key=Context-Id,valueonly)", at=at).split()


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "repo").mkdir()
    return Repository(tmp_path / "repo")


def hook_in(folder: Path, text: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    hook = folder / "commit-msg"
    hook.write_text(f"#!/bin/sh\n{text}\n")
    hook.chmod(0o755)
    return hook


@pytest.mark.requirement("CLI-7")
def test_commits_carry_the_context_they_were_made_in(repository: Repository, tmp_path: Path) -> None:
    assert repository.install()["changed"]
    assert not repository.install()["changed"], "again: no effect"
    assert repository.trailers(CTXD_CONTEXT_ID="ctx-0123abcd") == ["ctx-0123abcd"]
    assert repository.trailers() == [], "no context, no trailer, and the commit is made"
    file = tmp_path / "current.json"
    file.write_text('{"context_id":"ctx-file","session":"s1","turn":1,"assembly":1}\n')
    for _ in range(TRIES):
        if told := repository.trailers(CTXD_CONTEXT_FILE=str(file)):
            break
    assert told == ["ctx-file"]
    assert repository.trailers(CTXD_CONTEXT_FILE=str(file), PATH="/usr/bin:/bin") == ["ctx-file"], "where ctx is not"
    assert repository.trailers(CTXD_CONTEXT_ID="ctx-x\nEvil: yes") == [], "no id"
    repository.trailers(CTXD_CONTEXT_ID="ctx-1")
    repository.git("commit", "-q", "--amend", "--no-edit", "--allow-empty", CTXD_CONTEXT_ID="ctx-1")
    assert repository.git("log", "-1", "--format=%B").count("Context-Id:") == 1


@pytest.mark.requirement("CLI-7")
@pytest.mark.parametrize(
    ("words", "editor"),
    [((), "sh -c 'echo \"# no\" > $1' -"), (("-v",), "true"), (("-s",), "true"), (("-v", "-s"), "true")],
    ids=["comments", "with the change shown", "signed off", "both"],
)
def test_an_aborted_commit_stays_aborted(repository: Repository, words: tuple[str, ...], editor: str) -> None:
    repository.install()
    (repository.root / "a").write_text("text")
    repository.git("add", "a")
    done = repository.run("git", "commit", *words, CTXD_CONTEXT_ID="ctx-1", GIT_EDITOR=editor)
    assert done.returncode != 0
    assert "empty commit message" in done.stderr


@pytest.mark.requirement("CLI-7")
@pytest.mark.parametrize("words", [(), ("-s",)], ids=["plain", "signed off"])
def test_an_unedited_template_makes_no_commit(repository: Repository, words: tuple[str, ...]) -> None:
    repository.install()
    (repository.root / "template").write_text("subject\n\nwhy\n")
    repository.git("config", "commit.template", "template")
    done = repository.run("git", "commit", "--allow-empty", *words, CTXD_CONTEXT_ID="ctx-1", GIT_EDITOR="true")
    assert done.returncode != 0
    assert "did not edit the message" in done.stderr
    assert repository.trailers(message="my own", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]


@pytest.mark.requirement("CLI-7")
def test_a_merge_carries_the_trailer_beneath_its_subject(repository: Repository) -> None:
    repository.install()
    repository.trailers(message="base")
    repository.git("branch", "side")
    repository.trailers(message="here")
    repository.git("checkout", "-q", "side")
    repository.trailers(message="there")
    repository.git("merge", "-q", "--no-edit", "main", CTXD_CONTEXT_ID="ctx-1")
    told = repository.git("log", "-1", "--format=%s|%(trailers:key=Context-Id,valueonly)")
    assert told == "Merge branch 'main' into side|ctx-1"


@pytest.mark.requirement("CLI-7")
def test_a_shell_hook_that_uses_its_own_name_still_works(repository: Repository) -> None:
    folder = repository.root / ".husky" / "_"
    hook_in(folder, '. "$(dirname "$0")/h"')
    (folder / "h").write_text('sh -e "$(dirname "$(dirname "$0")")/$(basename "$0")" "$@"; exit $?\n')
    (repository.root / ".husky" / "commit-msg").write_text('grep -q good "$1"\n')
    repository.git("config", "core.hooksPath", ".husky/_")
    repository.install()
    refused = repository.run("git", "commit", "--allow-empty", "-m", "bad", CTXD_CONTEXT_ID="ctx-1")
    assert refused.returncode != 0
    assert repository.trailers(message="good", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]


@pytest.mark.requirement("CLI-7")
def test_a_hook_that_is_not_a_shell_script_runs_too(repository: Repository) -> None:
    hook = repository.root / ".git/hooks/commit-msg"
    hook.parent.mkdir(parents=True, exist_ok=True)
    hook.write_text(f"#!{sys.executable}\nimport sys\nsys.exit('bad' in open(sys.argv[1]).read())\n")
    hook.chmod(0o755)
    repository.install()
    refused = repository.run("git", "commit", "--allow-empty", "-m", "bad", CTXD_CONTEXT_ID="ctx-1")
    assert refused.returncode != 0
    assert repository.trailers(message="good", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]


@pytest.mark.requirement("CLI-7")
def test_an_existing_hook_runs_first_and_is_restored(repository: Repository) -> None:
    hook = hook_in(repository.root / ".git/hooks", 'grep -q bad "$1" && exit 1; echo "Signed: me" >> "$1"')
    before = hook.read_text(), stat.S_IMODE(hook.stat().st_mode)
    assert repository.install()["kept"]
    assert repository.trailers(message="one", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]
    assert "Signed: me" in repository.git("log", "-1", "--format=%B")
    refused = repository.run("git", "commit", "--allow-empty", "-m", "bad", CTXD_CONTEXT_ID="ctx-1")
    assert refused.returncode != 0, "what it refuses is refused"
    uninstalled = json.loads(repository.run(str(CTX), "uninstall", "git", "--json").stdout)
    assert uninstalled["changed"] and uninstalled["kept"]
    assert (hook.read_text(), stat.S_IMODE(hook.stat().st_mode)) == before
    assert repository.trailers(message="one", CTXD_CONTEXT_ID="ctx-1") == []
    assert not repository.install("--uninstall")["changed"]
    assert hook.exists(), "what is not ours is not touched"


@pytest.mark.requirement("CLI-7")
def test_the_hook_is_installed_in_gits_hooks_path(repository: Repository, tmp_path: Path) -> None:
    repository.trailers()
    repository.git("worktree", "add", "-q", str(tmp_path / "other"))
    assert repository.install(at=tmp_path / "other")["hook"] == str(repository.root / ".git/hooks/commit-msg")
    assert repository.trailers(at=tmp_path / "other", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]
    repository.git("config", "core.hooksPath", ".githooks")
    installed = Path(repository.install()["hook"])
    assert installed == repository.root / ".githooks/commit-msg"
    assert stat.S_IMODE(installed.stat().st_mode) == 0o755
    assert repository.trailers(CTXD_CONTEXT_ID="ctx-2") == ["ctx-2"]
    outside = repository.run(str(CTX), "install", "git", at=tmp_path)
    assert outside.returncode == 3


@pytest.mark.requirement("CLI-7")
def test_the_hook_is_written_through_no_link_of_the_repository(repository: Repository, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("mine\n")
    hooks = repository.root / "hooks"
    hooks.mkdir()
    (hooks / ".commit-msg.ctxd").symlink_to(mine)
    repository.git("config", "core.hooksPath", "hooks")
    assert repository.install()["changed"]
    assert mine.read_text() == "mine\n" and not mine.stat().st_mode & 0o111
    assert not (hooks / "commit-msg").is_symlink()
    assert repository.trailers(message="text", CTXD_CONTEXT_ID="ctx-1") == ["ctx-1"]
