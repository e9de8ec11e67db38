"""LST: lists of sessions by their filters, what they leave out, titles, labels, archive, and projects that move."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.session_types import RecordedSession
from tests.client.running import Running
from tests.repositories import git, needs_git, repository
from tests.spec.refusal import refused
from tests.spec.secrecy import TOKEN
from tests.spec.test_commands import ctx
from tests.spec.test_import import Claude, imported, write
from tests.waiting import block_until


def ids(client: SyncClient, **filters: Any) -> list[str]:
    return [row.session for row in client.session_list(limit=1000, **filters).sessions]


@pytest.mark.requirement("LST-6")
@needs_git
def test_sessions_are_listed_by_project_package_harness_and_file(start, client: SyncClient, tmp_path: Path):
    repo = tmp_path / "mono"
    remote = f"https://example.com/{tmp_path.name}/mono"
    root = repository(repo, remote)
    for package in ("one", "two"):
        (repo / "packages" / package / "src").mkdir(parents=True)
        (repo / "packages" / package / "pyproject.toml").touch()
    (repo / "packages/one/src/a.py").write_text("1\n")
    top = start(workdir=str(repo), labels={"harness": "codex"})
    one = start(workdir=str(repo / "packages/one/src"), labels={"harness": "pi"})
    two = start(workdir=str(repo / "packages/two"))
    git(tmp_path, "clone", "-q", "mono", "clone")
    git(tmp_path / "clone", "remote", "set-url", "origin", f"git@example.com:{tmp_path.name}/mono.git")
    clone = start(workdir=str(tmp_path / "clone"))
    elsewhere = start(workdir=str(tmp_path))
    one.read("a.py")

    every = [clone.id, two.id, one.id, top.id]
    assert ids(client, project=str(repo)) == every == ids(client, project=str(tmp_path / "clone"))
    assert ids(client, project=f"{tmp_path.name}/mono") == every == ids(client, project=remote)
    assert ids(client, project=root[:12]) == every
    assert ids(client, project=str(repo / "packages/one/src")) == [one.id], "a path in a package means the package"
    assert ids(client, project=str(repo / "packages")) == every, "which is none"
    assert ids(client, project=str(tmp_path)) == [elsewhere.id]
    assert ids(client, project="no-such-project") == []
    assert ids(client, project=str(repo), harness="codex") == [top.id]
    assert ids(client, file=str(repo / "packages/one/src/a.py")) == [one.id]
    assert ids(client, file=str(repo / "packages/one/src/a.py"), harness="codex") == []
    with refused("invalid_path"):
        client.session_list(file="a.py")


@pytest.mark.requirement("LST-6")
def test_imported_sessions_are_listed_by_the_files_that_their_tool_calls_name(
    daemon: Running, client: SyncClient, tmp_path: Path
):
    # The transcript names the directory /srv/app.
    place, sessions = f"src/{tmp_path.name}.py", []
    for input in ({"file_path": f"/srv/app/{place}"}, {"command": f"sed -n 1p {place}"}, {"command": "ls"}):
        claude = Claude()
        call = {"type": "tool_use", "id": f"call-{claude.session}", "name": "Bash", "input": input}
        step = claude("b", "assistant")
        step["message"]["content"] = [call]
        imported(daemon, "claude", write(tmp_path / f"{claude.session}.jsonl", [claude("a"), step]))
        sessions.append(claude.id)
    path = f"/srv/app/{place}"
    block_until(lambda: len(ids(client, file=path)) == 2)
    assert set(ids(client, file=path)) == set(sessions[:2])
    assert ids(client, file=f"/elsewhere/{place}") == []
    assert ids(client, file="/...") == []


@pytest.mark.requirement("LST-5")
@needs_git
def test_a_moved_project_keeps_its_sessions(start, client: SyncClient, tmp_path: Path):
    place = tmp_path / "early"
    place.mkdir()
    plain = start(workdir=str(place))
    root = repository(place)
    local = start(workdir=str(place))
    git(place, "remote", "add", "origin", f"https://example.com/{tmp_path.name}/r")
    named = start(workdir=str(place))
    every = [named.id, local.id, plain.id]
    assert ids(client, project=str(place)) == every
    git(place, "remote", "set-url", "origin", f"https://example.org/{tmp_path.name}/renamed")
    assert ids(client, project=str(place)) == every
    git(place, "remote", "set-url", "origin", f"https://example.com/{tmp_path.name}/r")
    shutil.move(place, tmp_path / "late")
    late = str(tmp_path / "late")
    assert ids(client, project=late) == [named.id, local.id]
    assert ids(client, project=str(place)) == every, "a path that is gone means the sessions that were there"

    git(tmp_path, "clone", "-q", "late", "fork")
    git(tmp_path / "fork", "remote", "set-url", "origin", f"https://example.com/{tmp_path.name}/fork")
    fork = start(workdir=str(tmp_path / "fork"))
    assert fork.id not in ids(client, project=late)
    assert client.session_list(project=late).forks == 1
    assert fork.id in ids(client, project=root)


@pytest.mark.requirement("LST-10")
def test_a_directory_without_a_repository_is_moved_by_command(
    daemon: Running, start, client: SyncClient, tmp_path: Path
):
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "sub").mkdir(parents=True)
    (tmp_path / "older").mkdir()
    one, two, other = start(workdir=str(old)), start(workdir=str(old / "sub")), start(workdir=str(tmp_path / "older"))
    one.close()
    two.pause()
    client.session_annotate(two.id, archived=True)
    old.rename(new)
    assert ids(client, project=str(new)) == []
    done = ctx(daemon, "session", "moved", str(old), str(new))
    assert (done.returncode, done.stdout) == (0, f"2 sessions moved to {new}\n")
    assert ids(client, project=str(new)) == [one.id]
    assert ids(client, project=str(new / "sub"), archived=True) == [two.id]
    assert client.session_get(two.id).session.project.directory == str(new / "sub")
    assert client.session_get(other.id).session.project.directory == str(tmp_path / "older")
    again = ctx(daemon, "session", "moved", str(old), str(new))
    assert again.returncode == 3 and "no session has its project at" in again.stderr


@pytest.mark.requirement("CLI-10")
@pytest.mark.own_daemon
def test_a_session_without_activity_is_never_the_default(daemon: Running, client: SyncClient, tmp_path: Path):
    kept = client.session_create("langgraph", state="paused", workdir=str(tmp_path)).session.session
    assert client.context_current().session is None
    alone = ctx(daemon, "session", "show")
    assert alone.returncode == 3 and "there is no open session" in alone.stderr
    here = ctx(daemon, "session", "show", folder=tmp_path)
    assert here.returncode == 0 and kept in here.stdout
    own = client.session(client.session_create("demo").session.session)
    assert client.context_current().session == own.id
    assert own.id in ctx(daemon, "session", "show").stdout
    own.user("Begin.")
    own.pause()
    assert client.context_current().session == own.id and own.id in ctx(daemon, "session", "show").stdout


@pytest.mark.requirement("LST-7")
@pytest.mark.requirement("LST-8")
@pytest.mark.own_daemon
def test_an_archived_session_is_left_out_of_lists_and_counted(daemon: Running, start, client: SyncClient):
    kept, done, gone = start(), start(), start()
    done.user("hi")
    done.close()
    before = done.view().session
    client.session_annotate(done.id, archived=True)
    gone.remove()
    page = client.session_list()
    assert [row.session for row in page.sessions] == [kept.id]
    assert (page.total, page.archived, page.removed, page.forks) == (1, 1, 1, None)
    assert ids(client, archived=True) == [done.id] and ids(client, state="removed") == [gone.id]
    assert ids(client, state="closed") == [] and ids(client, state="closed", archived=True) == [done.id]
    after = done.view().session
    assert (after.state, after.turn_count, after.archived) == (before.state, before.turn_count, True)
    assert client.session_list(agent="nobody").archived == 0

    shown = ctx(daemon, "session", "ls")
    assert "left out: 1 archived; --archived lists it\n" in shown.stderr
    assert "left out: 1 in the trash; --state removed lists it\n" in shown.stderr
    assert "1 of" not in shown.stderr
    other = start(agent="other")
    assert "1 of 2 sessions" in ctx(daemon, "session", "ls", "--agent", "other").stderr
    assert json.loads(ctx(daemon, "session", "ls", "--json").stdout)["archived"] == 1

    other.pause()
    assert (
        ctx(daemon, "session", "archive", other.id, kept.id).stdout
        == f"{other.id} is archived\n{kept.id} is archived\n"
    )
    assert ids(client) == []
    other.resume()
    assert ids(client) == [other.id], "a resume lists it again"
    ctx(daemon, "session", "unarchive", kept.id)
    assert set(ids(client)) == {kept.id, other.id}


@pytest.mark.requirement("LST-9")
def test_the_title_is_the_given_one_the_harnesss_or_the_first_prompt(daemon: Running, start, client: SyncClient):
    s = start()

    def title() -> str:
        row = next(row for row in client.session_list(limit=1000).sessions if row.session == s.id)
        assert row.title == client.session_get(s.id).session.title
        return row.title

    assert title() == ""
    s.user("\n  Mend the parser \nplease")
    s.user("Go on")
    assert title() == "Mend the parser"
    fork = client.session_get(client.session_fork(s.id).session).session
    assert fork.title == "Mend the parser"
    client.session_annotate(s.id, recorded=RecordedSession(title="Parser work", prompt="Another"))
    assert title() == "Parser work"
    s.pause()
    assert ctx(daemon, "session", "title", s.id, " My \n title ").stdout == f"{s.id}: My title\n"
    assert title() == "My title" and s.id in ids(client, text="my TITLE")
    s.close()
    client.session_annotate(s.id, title="")
    assert title() == "Parser work"
    client.session_annotate(s.id, recorded=RecordedSession())
    assert title() == "Mend the parser"


@pytest.mark.requirement("LST-9")
def test_secrets_and_purged_prompts_are_removed_from_the_title(start, client: SyncClient):
    secret = TOKEN
    s = start(secrets="redact")
    s.user(f"use {secret}")
    client.session_annotate(s.id, title=f"with {secret}", recorded=RecordedSession(prompt=f"or {secret}"))
    (listed,) = [row for row in client.session_list(limit=1000).sessions if row.session == s.id]
    assert secret not in str(listed) + str(client.session_get(s.id))
    plain = start()
    plain.user("something private")
    plain.user("go on")
    client.object_purge(f"chat:{plain.id}", turns=[1])
    assert client.session_get(plain.id).session.title == "[purged]"
    assert "something private" not in str(client.session_list(limit=1000))
    captured = start()
    captured.user("a customer\nwrote this")
    captured.user("go on")
    client.session_annotate(captured.id, recorded=RecordedSession(title="Bug of wrote this", prompt="a customer\nwro"))
    client.object_purge(f"chat:{captured.id}", turns=[1])
    recorded = client.session_get(captured.id).session.recorded
    assert recorded == RecordedSession(title="Bug of wrote this", prompt="[purged]"), "a title may be of another text"


@pytest.mark.requirement("LST-10")
def test_labels_are_added_and_removed_in_any_state(daemon: Running, start, client: SyncClient):
    s = start(labels={"a": "1", "b": "2"})
    s.close()
    assert ctx(daemon, "session", "label", s.id, "c=3", "a=").stdout == f"{s.id}: b=2 c=3\n"
    assert s.view().session.labels == {"b": "2", "c": "3"} and ids(client, label="c=3") == [s.id]
    assert ctx(daemon, "session", "label", s.id, "plain").returncode == 2
    unchanged = client.session_annotate(s.id, labels={"b": "2"})
    assert unchanged.receipt is None


@pytest.mark.requirement("LST-6")
def test_an_imported_session_has_the_times_of_its_events(start, client: SyncClient):
    old, new = start(), start()
    client.session_annotate(new.id, recorded=RecordedSession(began_at=1000, ended_at=5000))
    row = next(row for row in client.session_list(limit=1000).sessions if row.session == new.id)
    assert (row.created_at, row.updated_at) == (1000, 5000)
    assert ids(client).index(new.id) > ids(client).index(old.id)
    assert new.id in ids(client, since=5000, until=5000) and old.id not in ids(client, until=5000)
    assert new.id not in ids(client, since=5001) and new.id not in ids(client, until=4999)


@pytest.mark.requirement("LST-6")
def test_the_command_accepts_relative_paths_and_human_times(daemon: Running, start, tmp_path: Path):
    (tmp_path / "here").mkdir()
    s = start(workdir=str(tmp_path / "here"))
    done = ctx(daemon, "session", "ls", "--project", ".", "--since", "2h", "-q", folder=tmp_path / "here")
    assert done.stdout == f"{s.id}\n"
    assert ctx(daemon, "session", "ls", "--since", "never").returncode == 2
