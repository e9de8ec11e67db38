"""LangGraph's conformance suite for checkpointers, unchanged, on both savers."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import ALL_CAPABILITIES

from ctxd_client import connect_sync
from ctxd_client.adapters.langgraph import AsyncCtxdSaver, CtxdSaver
from tests.client.running import Running


class InThreads(BaseCheckpointSaver[str]):
    """The blocking saver as the suite calls one: by its asynchronous methods, each in a thread."""

    def __init__(self, saver: CtxdSaver) -> None:
        super().__init__(serde=saver.serde)
        self._saver = saver

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        return await asyncio.to_thread(self._saver.get_tuple, config)

    async def alist(self, config: RunnableConfig | None, **conditions: Any) -> AsyncIterator[CheckpointTuple]:
        for found in await asyncio.to_thread(lambda: [*self._saver.list(config, **conditions)]):
            yield found

    async def aput(self, *given: Any) -> RunnableConfig:
        return await asyncio.to_thread(self._saver.put, *given)

    async def aput_writes(self, *given: Any, **named: Any) -> None:
        await asyncio.to_thread(self._saver.put_writes, *given, **named)

    async def adelete_thread(self, thread_id: str) -> None:
        await asyncio.to_thread(self._saver.delete_thread, thread_id)

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        await asyncio.to_thread(self._saver.delete_for_runs, run_ids)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        await asyncio.to_thread(self._saver.copy_thread, source_thread_id, target_thread_id)

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        await asyncio.to_thread(lambda: self._saver.prune(thread_ids, strategy=strategy))


@asynccontextmanager
async def blocking(socket: str, **options: Any) -> AsyncIterator[InThreads]:
    with CtxdSaver.connect(socket, **options) as saver:
        yield InThreads(saver)


@pytest.fixture
def session(daemon: Running) -> Iterator[str]:
    with connect_sync(daemon.socket) as client:
        made = client.session_create("langgraph").session.session
        yield made
        client.session_remove(made)


@pytest.mark.anyio
@pytest.mark.requirement("ADP-1")
@pytest.mark.parametrize("connect", [AsyncCtxdSaver.connect, blocking], ids=["asynchronous", "blocking"])
@pytest.mark.parametrize("shares", [False, True], ids=["own-sessions", "one-session"])
async def test_the_savers_pass_the_conformance_suite(
    connect: Callable[..., Any], shares: bool, daemon: Running, session: str
) -> None:
    options = {"session": session} if shares else {}

    @checkpointer_test(name="ctxd")
    async def ours() -> AsyncIterator[BaseCheckpointSaver[str]]:
        async with connect(daemon.socket, **options) as saver:
            yield saver

    report = await validate(ours)
    failures = {name: result.failures for name, result in report.results.items() if result.failures}
    assert failures == {}
    assert {name for name, result in report.results.items() if result.passed} == {
        each.value for each in ALL_CAPABILITIES
    }
    assert sum(result.tests_passed for result in report.results.values()) >= 81
