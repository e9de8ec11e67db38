"""A session whose harness reads instruction files and skills, on real files below a temporary directory."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ctxd.epochs.component import Loaded, Provider, UnavailableComponent
from ctxd.epochs.component_files import AgentFiles
from ctxd.epochs.instruction_files import PREFIX, InstructionFiles, Instructions
from ctxd.epochs.skills import SkillFiles
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sessions.session_settings import SessionSettings
from ctxd_protocol.session_types import ComponentOptions, Harness, Mount
from tests.unit.assembly.stored_sessions import HOST, Household, TestClock, household

CALL = WriteRequest("context.assemble", "p")


class Agent:
    """``tree``: the directory in which the test writes files."""

    def __init__(self, home: Household, live: LiveSession, tree: Path) -> None:
        self.home = home
        self.live = live
        self.tree = tree
        self.files = AgentFiles(home.indexer, home.store)
        self.instruction_files = InstructionFiles(self.files)
        self.skill_files = SkillFiles(self.files)
        self.reads: list[str] = []
        read = home.indexer.files._read

        def counted(path: str) -> Any:
            self.reads.append(path)
            return read(path)

        home.indexer.files._read = counted  # type: ignore[method-assign]

    async def loaded(self, provider: Provider) -> dict[str, Loaded[Any] | UnavailableComponent]:
        """What every component of ``provider`` loads, by key, in order."""
        async with self.live.lock:
            return {each.key: await each.load() for each in await provider(self.live, CALL)}

    async def instructions(self) -> dict[str, str]:
        """The texts of the instruction files by path below ``tree``; of one that is unavailable the reason."""
        found = {}
        for key, loaded in (await self.loaded(self.instruction_files.provide)).items():
            path = key.removeprefix(PREFIX).replace(f"{self.tree}/", "")
            if isinstance(loaded, UnavailableComponent):
                found[path] = f"unavailable: {loaded.reason}"
            else:
                assert isinstance(loaded.value, Instructions)
                found[path] = loaded.value.text
        return found

    async def skills(self) -> Loaded[Any] | UnavailableComponent | None:
        """The index of skills."""
        return (await self.loaded(self.skill_files.provide)).get("skills")


def write(tree: Path, files: Mapping[str, str | bytes]) -> None:
    """Write each of ``files`` below ``tree``; a name that ends with a slash is a directory."""
    for name, text in files.items():
        path = tree / name
        if name.endswith("/"):
            path.mkdir(parents=True, exist_ok=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())


@asynccontextmanager
async def agent(
    root: Path,
    harness: Harness | None = "claude-code",
    *,
    workdir: str = "repo",
    mounts: Mapping[str, str] | None = None,
    options: Mapping[str, Any] = {},
    name: str = "agent",
) -> AsyncIterator[Agent]:
    """``mounts``: of an agent in a sandbox, its directories by those below ``tree``; None for an agent on the host."""
    clock = TestClock()
    # No stamp is younger than the coarsest file time.
    clock.wall = int((os.stat(root).st_ctime + 3600) * 1000)
    tree = root / "tree"
    tree.mkdir(exist_ok=True)
    async with household(root, clock) as home:
        given = tuple(
            Mount(agent_prefix=inner, canonical_prefix=str(tree / outer)) for inner, outer in (mounts or {}).items()
        )
        settings = SessionSettings(
            agent=name,
            principal="p",
            created_at=0,
            ordinal=0,
            filesystem_id=HOST if mounts is None else "box",
            workdir=str(tree / workdir) if mounts is None else workdir,
            mounts=given,
            prefixes=await home.indexer.visibility.resolve_prefixes(given),
            component_options=ComponentOptions(
                **{"harness": harness, **({"home": str(tree / "home")} if mounts is None else {}), **options}
            ),
        )
        made = await home.sessions.create(WriteRequest("session.create", "p"), "s", settings, "")
        assert isinstance(made, tuple)
        yield Agent(home, made[0], tree)
