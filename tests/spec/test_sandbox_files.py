"""Sandboxes: which files the daemon reads for one, and whose observation they are."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ctxd_client import CallFailed
from ctxd_client.sync import SyncClient, SyncSession
from ctxd_protocol.sandbox_types import SandboxView
from tests.spec.sandboxes import inside
from tests.suites.sandboxed_paths import OWN, VECTORS, make_tree, placed


@pytest.mark.requirement("BOX-7")
def test_no_path_makes_the_daemon_read_unmounted_files(
    client: SyncClient, start: Callable[..., SyncSession], boxed: Callable[..., SandboxView], tmp_path: Path
) -> None:
    root = tmp_path.resolve() / "host"
    mounts = make_tree(root)
    box = boxed(start(filesystem_id=OWN, mounts=mounts, workdir="/workspace"))
    own = box.sessions[0]
    assert len(VECTORS) >= 60
    with inside(box) as agent:
        for vector in VECTORS:
            path = placed(vector["path"], root)
            if "reads" in vector:
                read = agent.file_index(own, path)
                assert agent.object_get(read.object, session=own).object.payload["content"] == vector["reads"], path
                continue
            assert refusal(agent, own, path) == vector["refused"], path
        valid = [vector for vector in VECTORS if vector.get("refused") != "invalid_params"]
        found = agent.file_discover(own, [placed(vector["path"], root) for vector in valid]).objects
        for vector, one in zip(valid, found, strict=True):
            assert one.outcome == ("unchanged" if "reads" in vector else "ignored"), vector["path"]
        assert "SECRET" not in agent.context_assemble(own).text


def refusal(agent: SyncClient, session: str, path: str) -> str | None:
    """The code with which reading is refused; None if it is not."""
    try:
        agent.file_index(session, path)
    except CallFailed as error:
        assert "SECRET" not in str(error)
        return error.code
    return None


@pytest.mark.requirement("BOX-11")
def test_a_sandbox_of_another_user_reads_no_file_that_this_user_may_not(
    boxed: Callable[..., SandboxView], client: SyncClient, s: SyncSession, tree: Path
) -> None:
    for name, mode in (("open", 0o644), ("secret", 0o600)):
        (tree / name).write_text(name)
        (tree / name).chmod(mode)
    tree.chmod(0o755)
    os.link(tree / "secret", tree / "linked")
    try:
        box = boxed(uid=65534)
    except CallFailed as refused:
        pytest.skip(f"needs root, or access control lists: {refused}")
    own = box.sessions[0]
    assert client.file_index(own, "open").kind == "text"
    for name in ("secret", "linked"):
        with pytest.raises(CallFailed) as unread:
            client.file_index(own, name)
        assert unread.value.code == "source_unreachable"
    assert [found.outcome for found in client.file_discover(own, ["secret", "linked"]).objects] == ["ignored"] * 2
    client.sandbox_release(box.sandbox)
    assert s.read("secret").kind == "text", "nobody is kept from it any more"


@pytest.mark.requirement("BOX-8")
def test_content_sent_by_a_sandbox_for_a_shared_file_stays_its_own(
    client: SyncClient, boxed: Callable[..., SandboxView], s: SyncSession, tree: Path
) -> None:
    (tree / "a.py").write_text("true\n")
    shared = s.read("a.py").object
    box = boxed()
    own = box.sessions[0]
    with inside(box) as agent:
        said = agent.file_index(own, "a.py", content="false\n")
        assert said.object != shared
        seen = agent.object_get(said.object, session=own).object
        assert (seen.payload["content"], seen.display_path) == ("false\n", "/workspace/a.py")
        agreed = agent.file_index(own, "a.py", content="true\n")
        assert (agreed.object, agreed.outcome) == (shared, "created"), "what the daemon reads too is the file"
        agent.file_index(own, "none.py", content="made up\n")
    assert client.object_get(shared).object.payload["content"] == "true\n"
    assert len(client.object_history(shared).versions) == 1
    assert "false" not in s.assemble().text
    assert "made up" not in s.assemble().text
