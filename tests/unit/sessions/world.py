"""Sessions over a real store in a folder: what the tests of this part work in, and what is often done there."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from ctxd.clock import Clock, SystemClock
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.indexing.stub_discovery import discover
from ctxd.mounts.filesystem_id import host_devices
from ctxd.rpc.caller import Caller
from ctxd.rpc.dispatch import bound
from ctxd.rpc.handlers import files, mounts, objects, secrets, sessions, shared_sessions
from ctxd.sessions import file_operations
from ctxd.sessions.change_notices import NoticeFeeds
from ctxd.sessions.live_session import Accepted, WriteRequest, write_request
from ctxd.sessions.operation_table import Operations
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_listing import SessionLists
from ctxd.sources.host_files import HostFiles
from ctxd.store.version_store import VersionStore
from ctxd_protocol.methods import METHODS
from ctxd_protocol.session_types import Collapse

HOST = "f" * 64
CALLER = Caller(principal="host", capability="host", session=None, connection=1, notify=lambda _, __: True)


async def _named_by_none(_: str) -> frozenset[str]:
    return frozenset()


def lists(of: Any) -> SessionLists:
    """The lists of the sessions of a world or a household, without an index of texts."""
    return SessionLists(of.sessions, of.indexer, _named_by_none)


def session_handlers(operations: Operations, notices: NoticeFeeds, lists: SessionLists) -> dict[str, Any]:
    """The handlers of the methods of sessions, by method, on a single host; sessions begin without a context."""
    return (
        operations.by_method()
        | bound(sessions.SessionCalls(operations.sessions, notices))
        | bound(shared_sessions.SharedSessionCalls(operations, operations.lifecycle.create, None, lists))
    )


class World:
    """One run of a store and everything over it."""

    def __init__(self, store: VersionStore, *, live_max: int = 8, clock: Clock) -> None:
        self.store = store
        self.sessions = Sessions(store, clock, host_filesystem_id=HOST, live_max=live_max)
        self.indexer = Indexer(store, HostFiles(clock), HOST, host_devices=host_devices())
        self.notices = NoticeFeeds(self.sessions)
        self.operations = Operations(self.sessions, self.indexer, Collapse(), "flag")
        self.handlers = (
            session_handlers(self.operations, self.notices, lists(self))
            | bound(objects.ObjectCalls(self.sessions))
            | bound(secrets.SecretCalls(self.sessions, self.indexer))
            | bound(files.FileCalls(self.sessions, self.indexer))
            | bound(mounts.MountCalls())
        )

    async def begin(self, method: str, *, caller: Caller = CALLER, **params: Any) -> Any:
        """What the handler answers, before its write is durable."""
        given = msgspec.convert(params, METHODS[method].params)
        if METHODS[method].writes:
            return await self.handlers[method](caller, given, write_request(method, caller.principal, given))
        return await self.handlers[method](caller, given)

    def now(self, method: str, **params: Any) -> Any:
        """What the handler answers without suspending. Raises: AssertionError if it suspends."""
        begun = self.begin(method, **params)
        try:
            begun.send(None)
        except StopIteration as done:
            return done.value
        begun.close()
        raise AssertionError(f"{method} suspends")

    async def call(self, method: str, *, caller: Caller = CALLER, **params: Any) -> Any:
        """The result of a call, once it may go out."""
        return await settled(await self.begin(method, caller=caller, **params))

    async def read(self, session: str, path: Path) -> str:
        """Index the file as an agent's read does."""
        live = await self.sessions.live(session)
        async with live.lock:
            indexed = await self.indexer.index(live.mounts, live.settings.workdir, str(path))
            delta = file_operations.read_delta(live.state, indexed.object)
            if delta or indexed.puts:
                pending = live.submit(
                    WriteRequest("file.index", "host"), delta, puts=indexed.puts,
                    signatures=indexed.signatures, floor_vt=indexed.floor_vt,
                )  # fmt: skip
                await pending.wait()
        return indexed.object

    async def discover(self, session: str, *paths: Path) -> None:
        """Make stubs as a tool's output does."""
        live = await self.sessions.live(session)
        async with live.lock:
            found = await discover(self.indexer, live.mounts, "/", [str(path) for path in paths])
            puts = tuple(item.document for item in found if item.document is not None)
            delta = file_operations.discover_delta(live.state, [item.object for item in found if item.object])
            await live.submit(WriteRequest("file.discover", "host"), delta, puts=puts).wait()


async def settled(answer: Any) -> Any:
    if not isinstance(answer, Accepted):
        return answer
    return answer.result(None if answer.pending is None else await answer.pending.wait())


@asynccontextmanager
async def world(root: Path, *, clock: Clock | None = None, **rest: Any) -> AsyncIterator[World]:
    clock = clock or SystemClock()
    store = VersionStore(root, clock)
    async with anyio.create_task_group() as group:
        await group.start(store.run)
        made = World(store, clock=clock, **rest)
        await made.sessions.start()
        with anyio.fail_after(30):
            yield made
        await store.drain()
        group.cancel_scope.cancel()


async def code_of(call) -> str:
    with pytest.raises(CtxdError) as caught:
        await call
    return caught.value.code


async def record(w: World, session: str, id: str, content: str = "out", **rest):
    return await w.call("toolcall.record", session=session, id=id, tool="bash", content=content, **rest)


async def say(w: World, session: str, *messages: tuple[str, str], **rest):
    said = [{"role": role, "content": text} for role, text in messages]
    return await w.call("session.append", session=session, messages=said, **rest)


async def filled(w: World, session: str, folder: Path) -> None:
    """A session with some of everything."""
    await w.call("session.create", agent="a", session=session, system_prompt="be good", labels={"k": "v"})
    for turn in range(5):
        await say(w, session, ("user", f"turn {turn}"), ("assistant", "well"))
        for n in range(3):
            await record(w, session, f"{session}-call-{turn}-{n}", f"output {n}")
        path = folder / f"{turn}.txt"
        # Sessions that are filled at the same time read the same files: one rewritten meanwhile cannot be read.
        if not path.exists():
            path.write_text(f"text {turn}")
        await w.read(session, path)
    await w.call("session.pin", session=session, object=f"{session}-call-1-1")
    await w.call("session.activate", session=session, object=f"{session}-call-0-0")
    await w.call("session.pool_remove", session=session, object=f"{session}-call-0-1")
