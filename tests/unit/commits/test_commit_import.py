"""Imports of the same deltas at the same time make each commit once."""

from base64 import b64encode
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import msgspec
import pytest

from ctxd.clock import SystemClock
from ctxd.commits.commit_import import CommitImports
from ctxd.commits.commit_operations import Commits
from ctxd.commits.commit_reads import CommitViewer
from ctxd.sessions.live_session import Actor, write_request
from ctxd_protocol.methods.commits import CommitImportParams
from tests.unit.sessions.world import settled, world
from tests.unit.store.running import SteppingClock

pytestmark = pytest.mark.anyio


@pytest.mark.requirement("IMP-10")
async def test_two_imports_of_one_delta_at_the_same_time_make_one_commit(tmp_path: Path, monkeypatch: Any) -> None:
    delta = b'{"role":"user","content":"a"}\n'
    given = {"session": "s1", "format": "raw-jsonl", "content_base64": b64encode(delta).decode()}
    params = msgspec.convert({**given, "deltas": [{"size": len(delta)}]}, CommitImportParams)
    async with world(tmp_path) as made:
        await made.call("session.create", agent="a", session="s1")
        clock = SteppingClock(SystemClock().wall_ms())
        commits = Commits(made.sessions, clock, machine="m", policy="flag")
        imports = CommitImports(made.sessions, commits)
        there, looked_up, written = imports._there, anyio.Event(), anyio.Event()

        async def late(*given: Any) -> Any:
            """The first call writes after the second one has looked up, if that may be."""
            found, is_first = await there(*given), not late_calls
            late_calls.append(1)
            if not is_first:
                looked_up.set()
            with anyio.move_on_after(0.2):
                await (looked_up if is_first else written).wait()
            if not is_first:
                clock.wall += 2_000  # Commits of one second with the same content have the same id.
            return found

        late_calls: list[int] = []
        monkeypatch.setattr(imports, "_there", late)
        results: list[Any] = []

        async def imported() -> None:
            viewer = CommitViewer(Actor("host", "host"), None)
            accepted = await imports.import_commits(viewer, params, write_request("commit.import", "host", params))
            results.append(await settled(accepted))
            written.set()

        with closing(commits):
            async with anyio.create_task_group() as group:
                group.start_soon(imported)
                group.start_soon(imported)
        assert sorted(each.made for each in results) == [0, 1] and results[0].commits == results[1].commits


async def test_other_calls_get_turns_while_a_large_import_decides(tmp_path: Path, monkeypatch: Any) -> None:
    deltas = [b'{"role":"user","content":"%d"}\n' % number for number in range(200)]
    given = {"session": "s1", "format": "raw-jsonl", "content_base64": b64encode(b"".join(deltas)).decode()}
    params = msgspec.convert({**given, "deltas": [{"size": len(one)} for one in deltas]}, CommitImportParams)
    async with world(tmp_path) as made:
        await made.call("session.create", agent="a", session="s1")
        clock = SteppingClock(SystemClock().wall_ms())
        commits = Commits(made.sessions, clock, machine="m", policy="flag")
        imports = CommitImports(made.sessions, commits)
        free_id, turns, decided = commits.free_id, 0, list[int]()

        async def noted(*given: Any, **known: Any) -> Any:
            decided.append(turns)
            return await free_id(*given, **known)

        async def others() -> None:
            nonlocal turns
            while True:
                await anyio.lowlevel.checkpoint()
                turns += 1

        monkeypatch.setattr(commits, "free_id", noted)
        with closing(commits):
            async with anyio.create_task_group() as group:
                group.start_soon(others)
                viewer = CommitViewer(Actor("host", "host"), None)
                call = write_request("commit.import", "host", params)
                assert (await settled(await imports.import_commits(viewer, params, call))).made == len(deltas)
                group.cancel_scope.cancel()
        # Trio takes turns in random order, so one of two may be missed.
        assert max(Counter(decided).values()) <= 100
