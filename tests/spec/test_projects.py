"""LST: the project of a session, however the session is created, and who is told it."""

import json
from pathlib import Path

import pytest

from ctxd_client.sync import SyncClient
from ctxd_protocol.ids import captured_session_id
from ctxd_protocol.session_types import Mount, Project
from tests.repositories import needs_git, repository
from tests.spec.sandboxes import BOX, inside

pytestmark = needs_git


@pytest.mark.requirement("LST-1")
def test_a_session_has_the_project_of_its_directory_however_it_was_created(start, client: SyncClient, tree: Path):
    root = repository(tree, "https://me:secret@example.com/o/r.git")
    (tree / "sub").mkdir()
    project = Project(directory=str(tree), remotes=("example.com/o/r",), roots=(root,))
    below = Project(directory=str(tree), path="sub", remotes=("example.com/o/r",), roots=(root,))

    s = start(workdir=str(tree / "sub"), labels={"harness": "codex"})
    assert s.view().session.project == below
    row = next(row for row in client.session_list(limit=1000).sessions if row.session == s.id)
    assert (row.project, row.harness) == (below, "codex")

    mounted = start(workdir="/w/sub", mounts=(Mount(agent_prefix="/w", canonical_prefix=str(tree)),), filesystem_id=BOX)
    assert mounted.view().session.project == below

    event = {"session_id": f"native-{s.id}", "cwd": str(tree), "hook_event_name": "UserPromptSubmit", "prompt": "hi"}
    client.session_hook("codex", json.dumps(event))
    hooked = client.session_get(captured_session_id("codex", f"native-{s.id}")).session
    assert hooked.project == project

    fork = client.session_get(client.session_fork(s.id).session).session
    assert fork.project == below
    begun = client.session_create("other", context={"session": s.id}, workdir=str(tree)).session
    assert begun.project == project


@pytest.mark.requirement("LST-1")
def test_another_working_directory_is_another_project(start, client: SyncClient, tree: Path):
    (tree / "a").mkdir()
    root = repository(tree / "b")
    s = start(workdir=str(tree / "a"))
    assert s.view().session.project == Project(directory=str(tree / "a"))
    made = client.session_configure(s.id, workdir=str(tree / "b")).session
    assert made.project == Project(directory=str(tree / "b"), roots=(root,))
    assert s.view().session.project == made.project


@pytest.mark.requirement("LST-1")
def test_a_session_without_a_directory_of_the_host_has_no_project(start):
    assert start(workdir="/").view().session.project is None
    assert start(workdir="/elsewhere", filesystem_id=BOX).view().session.project is None


@pytest.mark.requirement("LST-4")
def test_a_sandbox_does_not_see_its_project(start, boxed, client: SyncClient, tree: Path):
    repository(tree, "https://example.com/hidden")
    mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(tree)),)
    s = start(filesystem_id=BOX, mounts=mounts, workdir="/workspace")
    assert s.view().session.project is not None
    with inside(boxed(s)) as sandboxed:
        assert sandboxed.session_get(s.id).session.project is None
        assert "hidden" not in str(sandboxed.object_get(f"session:{s.id}"))


@pytest.mark.requirement("LST-11")
def test_hooks_keep_the_grants_that_they_name(client: SyncClient, tmp_path: Path):
    def hook(mode: str | None, number: int) -> None:
        event = {"session_id": f"grants-{tmp_path.name}", "cwd": str(tmp_path), "hook_event_name": "UserPromptSubmit"}
        more = {} if mode is None else {"permission_mode": mode}
        client.session_hook("claude-code", json.dumps({**event, "prompt": f"prompt {number}", **more}))

    session = captured_session_id("claude-code", f"grants-{tmp_path.name}")
    found = []
    for number, mode in enumerate([None, "plan", "plan", None, "bypassPermissions"]):
        hook(mode, number)
        recorded = client.session_get(session).session.recorded
        found.append(recorded.permissions.get("permission_mode") if recorded else None)
    assert found == [None, "plan", "plan", "plan", "bypassPermissions"]
