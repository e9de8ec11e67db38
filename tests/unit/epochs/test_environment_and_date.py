"""Environment and date of an agent, from real directories."""

import subprocess
from pathlib import Path

import pytest

from ctxd.clock import SystemClock
from ctxd.epochs.component import Loaded, UnavailableComponent
from ctxd.epochs.environment_and_date import (
    DateComponent,
    Environment,
    EnvironmentComponent,
    EnvironmentProvider,
    Today,
)
from tests.unit.epochs.agents import Agent, agent, write

pytestmark = pytest.mark.anyio


async def environment(a: Agent) -> Environment | UnavailableComponent:
    provider = EnvironmentProvider(a.files, SystemClock())
    loaded = (await a.loaded(provider.environment))["core/environment"]
    if isinstance(loaded, UnavailableComponent):
        return loaded
    assert isinstance(loaded.value, Environment)
    return loaded.value


def git(tree: Path, *command: str) -> None:
    subprocess.run(
        ["git", "-C", str(tree), "-c", "user.name=x", "-c", "user.email=x", *command], check=True, capture_output=True
    )


@pytest.mark.requirement("EPO-29")
async def test_an_environment_has_the_branch_of_the_nearest_repository(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="repo/sub", options={"shell": "/bin/zsh"}) as a:
        write(a.tree, {"repo/sub/": ""})
        plain = Environment("linux", f"{a.tree}/repo/sub", None, None, "/bin/zsh")
        assert await environment(a) == plain
        git(a.tree / "repo", "init", "-q", "-b", "feature/x")
        found = await environment(a)
        assert found == Environment("linux", f"{a.tree}/repo/sub", f"{a.tree}/repo", "feature/x", "/bin/zsh")
        assert isinstance(found, Environment)
        assert await environment(a) == found and a.reads == [f"{a.tree}/repo/.git/HEAD"]
        assert "Git repository: " in EnvironmentComponent(Loaded(found)).baseline(found)
        git(a.tree / "repo", "commit", "-q", "--allow-empty", "-m", "m")
        git(a.tree / "repo", "checkout", "-q", "--detach")
        detached = await environment(a)
        assert isinstance(detached, Environment) and detached.branch is None
        assert "no branch checked out" in EnvironmentComponent(Loaded(found)).update(found, detached)


@pytest.mark.requirement("EPO-29")
async def test_a_linked_worktree_has_a_branch_of_its_own(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="linked") as a:
        write(a.tree, {"repo/": ""})
        git(a.tree / "repo", "init", "-q", "-b", "main")
        git(a.tree / "repo", "commit", "-q", "--allow-empty", "-m", "m")
        git(a.tree / "repo", "worktree", "add", "-q", "-b", "other", str(a.tree / "linked"))
        found = await environment(a)
        assert isinstance(found, Environment) and (found.repository, found.branch) == (f"{a.tree}/linked", "other")


@pytest.mark.requirement("EPO-29")
async def test_a_sandbox_has_the_environment_of_its_mounts(tmp_path: Path) -> None:
    async with agent(tmp_path, workdir="/w/sub", mounts={"/w": "repo/inner"}) as a:
        write(a.tree, {"repo/.git/HEAD": "ref: refs/heads/secret\n", "repo/inner/sub/": "", "repo/inner/x": ""})
        assert await environment(a) == Environment("linux", "/w/sub")
        write(a.tree, {"repo/inner/.git": f"gitdir: {a.tree}/repo/.git\n"})
        assert await environment(a) == Environment("linux", "/w/sub", "/w")


@pytest.mark.requirement("EPO-23")
async def test_an_environment_without_its_directory_is_unavailable(tmp_path: Path) -> None:
    async with agent(tmp_path) as a:
        assert isinstance(await environment(a), UnavailableComponent)


@pytest.mark.parametrize(
    ("zone", "day"), [("UTC", "2026-11-23"), ("Asia/Tokyo", "2026-11-24"), ("Pacific/Honolulu", "2026-11-23")]
)
@pytest.mark.requirement("EPO-29")
async def test_a_date_is_a_day_in_its_zone(zone: str, day: str) -> None:
    # 2026-11-23 20:00 UTC
    component = DateComponent(1_795_464_000_000, zone)
    assert await component.load() == Loaded(Today(day))
    assert day in component.baseline(Today(day)) and "Today is now" in component.update(Today(day), Today(day))


@pytest.mark.parametrize("zone", ["Nowhere/Land", "../../etc/passwd", "/etc/passwd", "", "a\0b"])
@pytest.mark.requirement("EPO-23")
async def test_a_date_in_an_unknown_zone_is_unavailable(zone: str) -> None:
    assert isinstance(await DateComponent(0, zone).load(), UnavailableComponent)
