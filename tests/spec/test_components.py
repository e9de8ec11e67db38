"""Components that the daemon reads, through the client: environment, date, instruction files and skills."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ctxd_client import ComponentOptions, connect_sync
from ctxd_client.errors import CallFailed, InvalidCall
from ctxd_client.sync import SyncSession
from ctxd_protocol.context_types import AssembledContext
from ctxd_protocol.event_types import ResponseEvent
from ctxd_protocol.session_types import ComponentName, Mount
from tests.client.running import Running
from tests.spec.sandboxes import BOX
from tests.unit.assembly.provider_rules import check_request

ALL: tuple[ComponentName, ...] = ("environment", "date", "instructions", "skills")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A repository with instructions and one skill."""
    root = tmp_path / "project"
    (root / ".git").mkdir(parents=True)
    (root / ".git/HEAD").write_text("ref: refs/heads/main\n")
    (root / "CLAUDE.md").write_text("Use tabs. @style.md")
    (root / "style.md").write_text("Write short lines.")
    skill = root / ".claude/skills/deploy/SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: deploy\ndescription: Puts it online.\n---\n")
    return root


@contextmanager
def session(daemon: Running, project: Path, *components: ComponentName) -> Iterator[SyncSession]:
    """A session of Claude Code in ``project``, with all components unless some are given."""
    options = ComponentOptions(harness="claude-code", home=str(project.parent / "home"), shell="/bin/sh", zone="UTC")
    with connect_sync(daemon.socket) as client:
        s = client.session(
            "s", agent="a", workdir=str(project), components=components or ALL, component_options=options
        )
        s.user("Begin.")
        yield s


def turn(s: SyncSession, words: str) -> AssembledContext:
    s.append(events=[ResponseEvent(text="Done.")])
    s.user(words)
    return request(s)


def request(s: SyncSession) -> AssembledContext:
    made = s.assemble(format="anthropic-messages", model="claude-sonnet-4-5")
    assert made.request is not None
    check_request("anthropic-messages", made.request)
    return made


def told(s: SyncSession) -> list[tuple[str, str]]:
    return [(text.key.rpartition("/")[2], text.part) for text in s.epoch().texts]


BASELINE = [(name, "baseline") for name in ("environment", "date", "CLAUDE.md", "style.md", "skills")]


@pytest.mark.requirement("EPO-20")
@pytest.mark.requirement("EPO-25")
@pytest.mark.requirement("EPO-29")
def test_a_session_has_its_components_and_each_change_of_their_files(tmp_path: Path, project: Path) -> None:
    with Running(tmp_path) as daemon, session(daemon, project) as s:
        first = json.dumps(request(s).request)
        for words in (
            "branch main",
            "Shell: /bin/sh",
            "Today is ",
            "Use tabs.",
            "Write short lines.",
            "- deploy: Puts it online.",
        ):
            assert first.count(words) == 1
        assert told(s) == BASELINE
        assert turn(s, "Go on.").stable_prefix is not None and told(s) == BASELINE
        (project / "style.md").write_text("Write long lines.")
        (project / ".git/HEAD").write_text("ref: refs/heads/other\n")
        made = json.dumps(turn(s, "Go on.").request)
        assert "style.md changed. They are now:" in made and "branch other" in made
        assert told(s)[5:] == [("environment", "changed"), ("style.md", "changed")]
        (project / "style.md").unlink()
        assert "no longer apply" in json.dumps(turn(s, "Go on.").request)
        versions = [source for text in s.epoch().texts if text.key.endswith("style.md") for source in text.sources]
        history = s.client.object_history(versions[0].object).versions
        assert [each.content_hash for each in versions[:2]] == [each.content_hash for each in history[:2]]
        assert s.client.session_get("s").session.session_index == ()


@pytest.mark.requirement("EPO-23")
def test_an_unreadable_component_blocks_the_first_request_and_keeps_its_baseline_later(
    tmp_path: Path, project: Path
) -> None:
    (project / "CLAUDE.local.md").symlink_to("CLAUDE.local.md")
    with Running(tmp_path) as daemon, session(daemon, project) as s:
        with pytest.raises(CallFailed) as refused:
            request(s)
        assert refused.value.code == "source_unreachable" and "CLAUDE.local.md" in str(refused.value)
        (project / "CLAUDE.local.md").unlink()
        request(s)
        (project / "CLAUDE.md").unlink()
        (project / "CLAUDE.md").symlink_to("CLAUDE.md")
        turn(s, "Go on.")
        project.rename(project.with_name("away"))
        turn(s, "And on.")
        assert told(s) == BASELINE


@pytest.mark.requirement("EPO-25")
def test_after_a_kill_nothing_is_announced_again(tmp_path: Path, project: Path) -> None:
    with Running(tmp_path, keep_state=True) as daemon:
        with session(daemon, project) as s:
            request(s)
        daemon.kill()
        (project / "CLAUDE.md").write_text("Use spaces. @style.md")
    with Running(tmp_path, keep_state=True) as daemon:
        with connect_sync(daemon.socket) as client:
            s = client.session("s")
            assert "Use spaces." in json.dumps(turn(s, "Go on.").request)
            assert told(s)[5:] == [("CLAUDE.md", "changed")]
            assert client.session_get("s").session.component_options.shell == "/bin/sh"


@pytest.mark.requirement("EPO-25")
def test_a_purged_file_is_in_no_request_any_more(tmp_path: Path, project: Path) -> None:
    (project / "style.md").write_text("The password is swordfish.")
    with Running(tmp_path) as daemon, session(daemon, project, "instructions") as s:
        assert "swordfish" in json.dumps(request(s).request)
        (source,) = next(text.sources for text in s.epoch().texts if text.key.endswith("style.md"))
        s.client.object_purge(source.object)
        (project / "style.md").write_text("Nothing.")
        assert "swordfish" not in json.dumps(turn(s, "Go on.").request)


@pytest.mark.requirement("EPO-24")
def test_an_import_in_a_repository_fetches_no_file_of_the_user(tmp_path: Path, project: Path) -> None:
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id").write_text("swordfish")
    (project / "CLAUDE.md").write_text(f"@~/.ssh/id @{tmp_path}/home/.ssh/id @../home/.ssh/id @link")
    os.symlink(tmp_path / "home/.ssh/id", project / "link")
    with Running(tmp_path) as daemon, session(daemon, project, "instructions") as s:
        assert "swordfish" not in json.dumps(request(s).request) and told(s) == [("CLAUDE.md", "baseline")]


@pytest.mark.requirement("EPO-20")
def test_options_are_checked(tmp_path: Path, project: Path) -> None:
    with Running(tmp_path) as daemon, connect_sync(daemon.socket) as client:
        with pytest.raises(InvalidCall, match="home directory 'relative' is relative"):
            client.session(agent="a", component_options=ComponentOptions(home="relative"))
        s = client.session(agent="a", workdir=str(project), components=("instructions",))
        options = ComponentOptions(harness="claude-code", home="/nowhere/")
        s.configure(component_options=options)
        assert client.session(s.id, agent="a", workdir=str(project), component_options=options).id == s.id
        s.user("Begin.")
        assert "Use tabs." in json.dumps(request(s).request)


@pytest.mark.requirement("EPO-24")
def test_a_session_in_a_sandbox_has_the_instructions_of_its_mounts(
    start: Callable[..., SyncSession], boxed: Callable[..., object], tree: Path
) -> None:
    (tree.parent / "CLAUDE.md").write_text("swordfish")
    (tree / "CLAUDE.md").write_text("Use tabs. @../CLAUDE.md @/CLAUDE.md")
    mounts = (Mount(agent_prefix="/workspace", canonical_prefix=str(tree)),)
    s = start(
        filesystem_id=BOX,
        mounts=mounts,
        workdir="/workspace",
        components=ALL,
        component_options=ComponentOptions(harness="claude-code", home="/workspace/home"),
    )
    boxed(s)
    (tree / "home/.claude").mkdir(parents=True)
    (tree / "home/.claude/CLAUDE.md").write_text("Be brief.")
    s.user("Begin.")
    made = json.dumps(request(s).request)
    assert "Instructions from /workspace/CLAUDE.md" in made and "Be brief." in made
    assert "swordfish" not in made and str(tree) not in made and "Shell" not in made
    (tree / "CLAUDE.md").unlink()
    (tree / "CLAUDE.md").symlink_to(tree.parent / "CLAUDE.md")
    assert "swordfish" not in json.dumps(turn(s, "Go on.").request)
    assert [text.part for text in s.epoch().texts].count("removed") == 0
