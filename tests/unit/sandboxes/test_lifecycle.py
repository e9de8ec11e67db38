"""Registrations and their leases over a store, without sockets."""

import os
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anyio
import pytest

from ctxd import failpoints
from ctxd.clock import SystemClock
from ctxd.commits.commit_operations import Commits
from ctxd.commits.session_checkpoints import SessionCheckpoints
from ctxd.errors import CtxdError
from ctxd.sandboxes import lifecycle
from ctxd.sandboxes.lifecycle import Sandboxes
from ctxd.sandboxes.registration import Registration, new_id
from ctxd.sandboxes.sandbox_directories import Directories
from ctxd.sandboxes.sandbox_methods import SandboxCalls
from ctxd.sessions.live_session import write_request
from ctxd.sources.confinement import Confinement
from ctxd.store.write_types import Write
from ctxd_protocol.methods import sandboxes as wire
from tests.fakes.no_threads import no_threads
from tests.unit.sessions.world import CALLER, World, settled, world
from tests.waiting import until

pytestmark = pytest.mark.anyio

RENEW = Write(kind="sandbox.renew", principal="host")


class Sockets:
    """Listeners that open nothing, but the file that stands for the socket."""

    async def close_others(self, known: set[str]) -> None:
        pass

    async def open(self, registration: Registration, path: Path) -> None:
        path.touch()
        await anyio.sleep(0.01)

    async def close(self, sandbox: str) -> None:
        pass

    def figures(self, sandbox: str) -> Any:
        return SimpleNamespace(connections=0, requests=0, refused=0)


class Boxes:
    """Sandboxes over the store of ``made``. ``logged``: the events of the log."""

    def __init__(self, made: World, root: Path, confinement: Confinement | None = None) -> None:
        self.logged: list[str] = []
        self.sockets = Sockets()
        log: Any = SimpleNamespace(info=self._log, warning=self._log, error=self._log)
        self.directories = Directories(root / "s")
        self.commits = Commits(made.sessions, SystemClock(), machine="m", policy="flag")
        listeners: Any = self.sockets
        self.sandboxes = Sandboxes(
            made.sessions, SessionCheckpoints(made.sessions, self.commits), confinement or Confinement(), SystemClock(),
            listeners, self.directories, log, not_mounted=(),
        )  # fmt: skip
        self.calls = SandboxCalls(self.sandboxes, made.sessions, SystemClock())
        self._world = made

    def _log(self, event: str, **_: object) -> None:
        self.logged.append(event)

    async def register(self, session: str, **settings: Any) -> Registration:
        """Register a sandbox of a new session."""
        await self._world.call("session.create", session=session, agent="a", filesystem_id="e" * 64)
        given = {"principal": session, "grace_s": 0, "created_at": 0} | settings
        made = Registration(id=new_id(), sessions=(session,), grants=(), **given)
        await (await self.sandboxes.register(made, None, Write(kind="sandbox.register", principal="host"))).wait()
        return made


@asynccontextmanager
async def boxes(root: Path) -> AsyncIterator[tuple[World, Boxes]]:
    async with world(root / "state") as made:
        found = Boxes(made, root)
        with closing(found.commits):
            await found.sandboxes.start()
            yield made, found


@pytest.mark.requirement("SVC-16")
async def test_a_sandbox_whose_lease_ends_while_no_thread_can_be_started_ends_nevertheless(tmp_path: Path) -> None:
    closers: list[Callable[[], None]] = []
    async with boxes(tmp_path) as (_, found), anyio.create_task_group() as tasks:
        await tasks.start(found.sandboxes.run)
        box = await found.register("s")
        found.sandboxes.hold(box.id, 1, closers.append)
        with no_threads():
            closers[0]()
            await until(lambda: found.sandboxes.all() == [])
            await until(lambda: "sandbox.directory_stays" in found.logged)
        tasks.cancel_scope.cancel()


@pytest.mark.requirement("BOX-4")
async def test_two_renewals_that_are_not_written_leave_the_time_of_the_last_one_that_was(tmp_path: Path) -> None:
    async with boxes(tmp_path) as (_, found):
        box = await found.register("s", ttl_s=100, expires_at=SystemClock().wall_ms() + 100_000)
        await anyio.sleep(0.05)
        renewed = found.sandboxes.renew(box.id, RENEW)
        assert renewed is not None
        await renewed.wait()
        written = found.sandboxes.view(box.id).expires_at
        await anyio.sleep(0.05)
        with failpoints.armed("journal.commit=error:ENOSPC*1"):
            first, second = found.sandboxes.renew(box.id, RENEW), found.sandboxes.renew(box.id, RENEW)
            for pending in (first, second):
                assert pending is not None
                with pytest.raises(CtxdError):
                    await pending.wait()
        assert found.sandboxes.view(box.id).expires_at == written


async def test_a_connection_that_renews_a_lease_is_remembered_once(tmp_path: Path) -> None:
    closers: list[Callable[[], None]] = []
    async with boxes(tmp_path) as (_, found):
        box, other = await found.register("s"), await found.register("t")
        for _ in range(3):
            found.sandboxes.hold(box.id, 1, closers.append)
            found.sandboxes.hold(other.id, 1, closers.append)
        assert len(closers) == 1
        found.sandboxes.hold(other.id, 2, closers.append)
        assert [found.sandboxes.view(each.id).expires_at for each in (box, other)] == [None, None]
        closers[0]()
        assert found.sandboxes.view(box.id).expires_at is not None
        assert found.sandboxes.view(other.id).expires_at is None, "another connection holds it"
        found.sandboxes.hold(box.id, 1, closers.append)
        assert len(closers) == 3, "a number may be used again"


@pytest.mark.requirement("BOX-1")
async def test_of_two_registrations_at_once_for_one_principal_one_is_refused(tmp_path: Path) -> None:
    async with boxes(tmp_path) as (_, found):
        outcomes: list[str] = []

        async def register(session: str) -> None:
            try:
                await found.register(session, principal="p")
                outcomes.append("registered")
            except CtxdError as error:
                outcomes.append(error.code)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(register, "s")
            tasks.start_soon(register, "t")
        assert sorted(outcomes) == ["principal_exists", "registered"]
        assert len(os.listdir(found.directories.root)) == 1


@pytest.mark.requirement("BOX-4")
async def test_a_registration_that_is_resent_after_its_sandbox_has_ended_is_not_found(tmp_path: Path) -> None:
    async with boxes(tmp_path) as (made, found):
        await made.call("session.create", session="s", agent="a", filesystem_id="e" * 64)
        params = wire.SandboxRegisterParams(sessions=("s",), op_id="op-1")

        async def register() -> Any:
            return await settled(
                await found.calls.sandbox_register(CALLER, params, write_request("sandbox.register", "host", params))
            )

        box = (await register()).sandbox.sandbox
        assert (await register()).sandbox.sandbox == box
        await (await found.sandboxes.release(box, Write(kind="sandbox.release", principal="host"))).wait()
        with pytest.raises(CtxdError) as caught:
            await register()
        assert caught.value.code == "sandbox_not_found"


@pytest.mark.requirement("BOX-1")
async def test_unremovable_sandbox_directories_do_not_prevent_a_start(
    tmp_path: Path,
) -> None:
    async with boxes(tmp_path) as (_, found):
        kept = await found.register("s")
        (tmp_path / "s" / ("b" * 16) / "planted" / "deep").mkdir(parents=True)
        (tmp_path / "outside").mkdir()
        (tmp_path / "outside" / "file").touch()
        (tmp_path / "s" / ("b" * 16) / "link").symlink_to(tmp_path / "outside")
        (tmp_path / "s" / ("c" * 16)).symlink_to(tmp_path / "outside")
        (tmp_path / "s" / ("d" * 16)).mkdir()
    async with boxes(tmp_path) as (_, found):
        assert sorted(os.listdir(tmp_path / "s")) == sorted([kept.id, "c" * 16])
        assert found.logged == ["sandbox.directory_stays"]
        assert (tmp_path / "outside" / "file").exists()


@pytest.mark.requirement("BOX-6")
async def test_the_file_of_the_context_is_whole_if_the_system_writes_it_in_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    async with boxes(tmp_path) as (_, found):
        box = await found.register("s")
        file = found.directories.directory(box.id) / "current.json"
        whole = file.read_bytes()
        with monkeypatch.context() as patched:
            patched.setattr(os, "write", lambda file, data: write(file, bytes(data)[:7]))
            found.directories.write_context(box.id, found.sandboxes._contexts[box.id], None)
        assert file.read_bytes() == whole


@pytest.mark.requirement("BOX-4")
@pytest.mark.parametrize("by_time", [False, True], ids=["held", "renewed"])
async def test_a_lease_that_is_renewed_while_another_sandbox_ends_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, by_time: bool
) -> None:
    closers: list[Callable[[], None]] = []
    closing, go_on = anyio.Event(), anyio.Event()
    async with boxes(tmp_path) as (_, found), anyio.create_task_group() as tasks:
        settings = {"ttl_s": 100, "expires_at": 0} if by_time else {}
        first, second = [await found.register(name, **settings) for name in ("a", "b")]
        for box in (first, second):
            found.sandboxes._leases[box.id].ends = 0.0

        async def close(sandbox: str) -> None:
            if sandbox == first.id:
                closing.set()
                await go_on.wait()

        monkeypatch.setattr(found.sockets, "close", close)
        await tasks.start(found.sandboxes.run)
        await closing.wait()
        renewed = found.sandboxes.renew(second.id, RENEW)
        if renewed is None:
            found.sandboxes.hold(second.id, 7, closers.append)
        else:
            await renewed.wait()
        go_on.set()
        await until(lambda: len(found.sandboxes.all()) == 1)
        await anyio.wait_all_tasks_blocked()
        assert [view.sandbox for view in found.sandboxes.all()] == [second.id]
        tasks.cancel_scope.cancel()


@pytest.mark.requirement("BOX-11")
async def test_a_start_does_not_wait_for_mounts_that_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answers, uid = threading.Event(), 12345
    hung = [tmp_path / name for name in ("one", "two", "three")]
    async with world(tmp_path / "state") as made:
        found = Boxes(made, tmp_path)
        monkeypatch.setattr(Directories, "write_context", lambda *_: None)
        monkeypatch.setattr(Directories, "grant_socket", lambda *_: None)
        with closing(found.commits):
            await found.sandboxes.start()
            for place in hung:
                place.mkdir()
                mounts = [{"agent_prefix": "/w", "canonical_prefix": str(place)}]
                await made.call("session.create", session=place.name, agent="a", filesystem_id="e" * 64, mounts=mounts)
                box = Registration(
                    id=new_id(),
                    sessions=(place.name,),
                    grants=(),
                    principal=place.name,
                    grace_s=30,
                    created_at=0,
                    uid=uid,
                )
                await (await found.sandboxes.register(box, None, RENEW)).wait()
        real = os.path.realpath

        def resolved(path: Any, **how: Any) -> Any:
            if Path(path) in hung:
                answers.wait(30)
            return real(path, **how)

        monkeypatch.setattr(os.path, "realpath", resolved)
        monkeypatch.setattr(lifecycle, "ROOTS_S", 0.3)
        confinement = Confinement()
        again = Boxes(made, tmp_path, confinement)
        try:
            with closing(again.commits), anyio.fail_after(20):
                await again.sandboxes.start()
        finally:
            answers.set()
        assert "sandbox.not_opened" not in again.logged
        for place in hung:
            assert {user.uid for user in confinement._users_of(f"{place}/file")} == {uid}


@pytest.mark.requirement("BOX-11")
async def test_a_sandbox_whose_user_is_not_looked_up_in_time_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def look_up(uid: int) -> Any:
        answers.wait(30)

    async with boxes(tmp_path) as (made, found):
        mounts = [{"agent_prefix": "/w", "canonical_prefix": str(tmp_path)}]
        await made.call("session.create", session="s", agent="a", filesystem_id="e" * 64, mounts=mounts)
        box = Registration(id=new_id(), sessions=("s",), grants=(), principal="s", grace_s=30, created_at=0, uid=12345)
        monkeypatch.setattr(lifecycle, "ROOTS_S", 0.1)
        monkeypatch.setattr(lifecycle, "User", SimpleNamespace(of=look_up))
        try:
            with pytest.raises(CtxdError, match="groups of user 12345") as refused:
                await found.sandboxes.register(box, tuple(made.sessions.catalog.settings("s").mounts), RENEW)
        finally:
            answers.set()
        assert refused.value.code == "unsupported" and found.sandboxes.all() == []
