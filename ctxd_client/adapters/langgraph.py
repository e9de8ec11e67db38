"""LangGraph checkpointers on the daemon: ``CtxdSaver``, and ``AsyncCtxdSaver`` for code with an event loop.

Needs the package ``langgraph-checkpoint``. A thread is a session of the agent ``langgraph``, its checkpoints are
commits. A write is durable once its method returns.
"""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    SerializerProtocol,
    get_checkpoint_id,
    get_checkpoint_metadata,
    writes_sort_key,
)

from ctxd_client.adapters.commit_log import CommitLog, Steps, run, run_async
from ctxd_client.adapters.langgraph_checkpoints import (
    CheckpointFrame,
    CheckpointPlace,
    NewCheckpoint,
    OneWrite,
    ReadCheckpoint,
    StateWalks,
    Threads,
    WritesFrame,
    checked_id,
    nonce,
    shorten_field,
)
from ctxd_client.adapters.langgraph_deltas import split
from ctxd_client.client import Client, connect
from ctxd_client.sync import SyncClient, connect_sync

T = TypeVar("T")

_LISTED_AT_ONCE: Final = 100
_SNAPSHOT: Final = "_DeltaSnapshot"

_Listed = tuple[CommitLog[Any], list[CheckpointPlace]]


class _Saver(BaseCheckpointSaver[str]):
    """Base of both savers: the operations as steps, and the serialisation of values."""

    def __init__(self, session: str | None, serde: SerializerProtocol | None) -> None:
        super().__init__(serde=serde)
        self._threads = Threads(session)

    def get_next_version(self, current: str | int | None, channel: None) -> str:
        """The version after ``current``: greater, also when compared as text."""
        number = 0 if current is None else current if isinstance(current, int) else int(current.split(".")[0])
        return f"{number + 1:032}.{int.from_bytes(nonce()):020}"

    # --- steps ---

    def _find(self, config: RunnableConfig) -> Steps[CheckpointTuple | None]:
        thread, namespace = _place(config)
        found = yield from self._threads.find(thread, namespace, get_checkpoint_id(config) or None)
        if found is None:
            return None
        typed = {channel: value.typed for channel, value in found.values.items()}
        return self._tuple(found.frame, self._state(found.frame), typed, found.writes)

    def _written(
        self, config: RunnableConfig, checkpoint: Checkpoint, metadata: CheckpointMetadata
    ) -> tuple[NewCheckpoint, RunnableConfig]:
        thread, namespace = _place(config)
        id = checked_id(checkpoint["id"])
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        kept = get_checkpoint_metadata(config, metadata)
        kind, state = self.serde.dumps_typed([rest, kept])
        values = {
            channel: split(*self.serde.dumps_typed(value)) for channel, value in checkpoint["channel_values"].items()
        }
        parent = get_checkpoint_id(config)
        parent = checked_id(parent) if parent else None
        run = kept.get("run_id")
        run = run if isinstance(run, str) else None
        summary = f"{kept.get('source', 'checkpoint')} step {kept.get('step', '?')}"[:200]
        new = NewCheckpoint(thread, namespace, id, parent, kind, state, values, run, summary)
        return new, _config(config["configurable"]["thread_id"], namespace, id)

    def _task_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> WritesFrame:
        thread, namespace = _place(config)
        return WritesFrame(
            thread=thread,
            namespace=namespace,
            id=checked_id(config["configurable"]["checkpoint_id"]),
            task=task_id,
            path=task_path,
            replaces=all(channel in WRITES_IDX_MAP for channel, _ in writes),
            writes=[
                OneWrite(WRITES_IDX_MAP.get(channel, number), channel, *self.serde.dumps_typed(value))
                for number, (channel, value) in enumerate(writes)
            ],
            nonce=nonce(),
        )

    def _plan(self, config: RunnableConfig | None, before: RunnableConfig | None) -> Steps[list[_Listed]]:
        """The checkpoints to list, by descending id, in runs from one log."""
        thread = namespace = id = None
        if config is not None:
            thread = str(config["configurable"]["thread_id"])
            namespace = config["configurable"].get("checkpoint_ns")
            id = get_checkpoint_id(config) or None
        end = None if before is None else get_checkpoint_id(before)
        logs = (yield from self._threads.logs()) if thread is None else [self._threads.log(thread)]
        found: list[tuple[CheckpointPlace, CommitLog[Any]]] = []
        for log in logs:
            yield from log.sync()
            names = (
                None if thread is None else shorten_field(thread),
                None if namespace is None else shorten_field(namespace),
            )
            found += ((place, log) for place in log.index.list_checkpoints(*names, end) if id in (None, place.id))
        found.sort(key=lambda each: each[0].id, reverse=True)
        runs: list[_Listed] = []
        for place, log in found:
            if not runs or runs[-1][0] is not log or len(runs[-1][1]) == _LISTED_AT_ONCE:
                runs.append((log, []))
            runs[-1][1].append(place)
        return runs

    def _listed(
        self, read: ReadCheckpoint, filter: Mapping[str, Any] | None, walks: StateWalks
    ) -> Steps[CheckpointTuple | None]:
        """A checkpoint with its values; None if ``filter`` excludes it, or its values are gone."""
        state = self._state(read.frame)
        if filter and any(state[1].get(name) != value for name, value in filter.items()):
            return None
        walk = yield from walks.at(read.commit)
        return None if walk is None else self._tuple(read.frame, state, walk.typed(), read.writes)

    def _delete(self, thread_id: str) -> Steps[None]:
        thread = str(thread_id)
        yield from self._threads.remove(self._threads.log(thread), thread, lambda _: True, all_of_it=True)

    def _prune(self, thread_ids: Sequence[str], strategy: str) -> Steps[None]:
        if strategy not in ("keep_latest", "delete"):
            raise ValueError(f"strategy is {strategy!r}; it must be 'keep_latest' or 'delete'")
        for thread in map(str, thread_ids):
            if strategy == "delete":
                yield from self._delete(thread)
                continue
            log = self._threads.log(thread)
            yield from log.sync()
            yield from self._require_plain(log, thread)
            yield from self._threads.remove(log, thread, partial(_is_old, log))

    def _delete_runs(self, run_ids: Sequence[str]) -> Steps[None]:
        wanted = {run for run in run_ids if run is not None}
        for log in (yield from self._threads.logs()):
            yield from log.sync()
            places = [*log.index.commits]
            doomed: dict[str, set[CheckpointPlace]] = {}
            for first in range(0, len(places), _LISTED_AT_ONCE):
                some = places[first : first + _LISTED_AT_ONCE]
                for _, frame, _ in (yield from self._threads.read(log, some)):
                    if frame.run in wanted:
                        place = CheckpointPlace(shorten_field(frame.thread), shorten_field(frame.namespace), frame.id)
                        doomed.setdefault(frame.thread, set()).add(place)
            for thread, gone in doomed.items():
                yield from self._threads.remove(log, thread, gone.__contains__)

    def _require_plain(self, log: CommitLog[Any], thread: str) -> Steps[None]:
        """Raise ValueError for a thread with a ``DeltaChannel``: its value depends on writes of earlier checkpoints."""
        places = [*log.index.list_checkpoints(shorten_field(thread), None, None)]
        for first in range(0, len(places), _LISTED_AT_ONCE):
            for _, frame, _ in (yield from self._threads.read(log, places[first : first + _LISTED_AT_ONCE])):
                for delta in frame.deltas:
                    if not delta.kept_start and not delta.kept_end and delta.kind == "msgpack":
                        value = self.serde.loads_typed((delta.kind, delta.head + delta.added))
                        if type(value).__name__ == _SNAPSHOT:
                            message = f"thread {thread!r} has a DeltaChannel, whose value is made of writes"
                            raise ValueError(f"{message}: prune it with the strategy 'delete', or leave it")

    # --- values ---

    def _state(self, frame: CheckpointFrame) -> tuple[dict[str, Any], dict[str, Any]]:
        """The checkpoint without its values, and its metadata."""
        rest, metadata = self.serde.loads_typed((frame.kind, frame.state))
        return rest, metadata

    def _tuple(
        self,
        frame: CheckpointFrame,
        state: tuple[dict[str, Any], Any],
        values: dict[str, tuple[str, bytes]],
        writes: list[WritesFrame],
    ) -> CheckpointTuple:
        rest, metadata = state
        loaded = {channel: self.serde.loads_typed(value) for channel, value in values.items()}
        checkpoint: Any = {**rest, "channel_values": loaded}
        return CheckpointTuple(
            _config(frame.thread, frame.namespace, frame.id),
            checkpoint,
            metadata,
            None if frame.parent is None else _config(frame.thread, frame.namespace, frame.parent),
            self._pending(writes),
        )

    def _pending(self, frames: list[WritesFrame]) -> list[tuple[str, str, Any]]:
        """The writes of tasks, in the order in which a run applies them."""
        kept: dict[tuple[str, int], tuple[str, OneWrite]] = {}
        for frame in frames:
            for write in frame.writes:
                if frame.replaces or (frame.task, write.number) not in kept:
                    kept[frame.task, write.number] = (frame.path, write)
        ordered = sorted(kept.items(), key=lambda item: writes_sort_key(item[1][0], *item[0]))
        return [
            (task, write.channel, self.serde.loads_typed((write.kind, write.data))) for (task, _), (_, write) in ordered
        ]


class CtxdSaver(_Saver):
    """A checkpointer that keeps threads in the daemon, for code without an event loop. Threads may share it.

    ``session``: the session for all threads, in a sandbox, which cannot create sessions. By default each thread has its
    own. Every method raises ``ctxd_client.CallFailed``; a write is applied once. ``serde`` serialises values. A session
    with the policy ``redact`` refuses a checkpoint whose bytes contain a secret.
    """

    def __init__(
        self, client: SyncClient, *, session: str | None = None, serde: SerializerProtocol | None = None
    ) -> None:
        super().__init__(session, serde)
        self._client = client
        self._deciding = threading.Lock()

    def _run(self, steps: Steps[T]) -> T:
        return run(self._client, steps, self._deciding)

    @classmethod
    @contextmanager
    def connect(
        cls, socket: str | Path | None = None, *, session: str | None = None, serde: SerializerProtocol | None = None
    ) -> Iterator["CtxdSaver"]:
        """A checkpointer with a connection of its own. Raises: ``ConnectFailed``.

        Example: ``with CtxdSaver.connect() as saver: graph = builder.compile(checkpointer=saver)``
        """
        with connect_sync(socket, client="langgraph") as client:
            yield cls(client, session=session, serde=serde)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """The checkpoint that ``config`` names, or the newest one of its thread and namespace."""
        return self._run(self._find(config))

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Checkpoints, by descending id; without ``config`` those of all threads."""
        left = _limit(limit)
        walks: dict[int, StateWalks] = {}
        for log, places in self._run(self._plan(config, before)):
            walk = walks.setdefault(id(log), StateWalks(log))
            for read in self._run(self._threads.read(log, places if filter else places[:left])):
                if left and (found := self._run(self._listed(read, filter, walk))) is not None:
                    left -= 1
                    yield found
            if not left:
                return

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint. Returns: the config that names it. Raises: also the exceptions of ``serde``."""
        new, made = self._written(config, checkpoint, metadata)
        self._run(self._threads.put(new))
        return made

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """Store the writes of a task, which stay pending on the checkpoint of ``config`` until the next one."""
        self._run(self._threads.put_writes(self._task_writes(config, writes, task_id, task_path)))

    def delete_thread(self, thread_id: str) -> None:
        """Destroy a thread: its contents at once, and its session moves to the trash. Raises: ``Forbidden`` in a
        sandbox."""
        self._run(self._delete(thread_id))

    def delete_for_runs(self, run_ids: Sequence[str]) -> None:
        """Destroy the checkpoints of runs, with their writes, in all threads. Reads every checkpoint."""
        self._run(self._delete_runs(run_ids))

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Add all checkpoints and writes of a thread to another one."""
        self._run(self._threads.copy(str(source_thread_id), str(target_thread_id)))

    def prune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """Destroy all checkpoints of threads but the newest of each namespace; with ``delete`` all of them.

        Raises: ValueError for another strategy, and with ``keep_latest`` for a thread with a ``DeltaChannel``, which
        needs its earlier checkpoints.
        """
        self._run(self._prune(thread_ids, strategy))


class AsyncCtxdSaver(_Saver):
    """As ``CtxdSaver``, for asyncio and trio: the same methods with the prefix ``a``."""

    def __init__(self, client: Client, *, session: str | None = None, serde: SerializerProtocol | None = None) -> None:
        super().__init__(session, serde)
        self._client = client

    @classmethod
    @asynccontextmanager
    async def connect(
        cls, socket: str | Path | None = None, *, session: str | None = None, serde: SerializerProtocol | None = None
    ) -> AsyncIterator["AsyncCtxdSaver"]:
        """As ``CtxdSaver.connect``.

        Example: ``async with AsyncCtxdSaver.connect() as saver: graph = builder.compile(checkpointer=saver)``
        """
        async with connect(socket, client="langgraph") as client:
            yield cls(client, session=session, serde=serde)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """As ``CtxdSaver.get_tuple``."""
        return await run_async(self._client, self._find(config))

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """As ``CtxdSaver.list``."""
        left = _limit(limit)
        walks: dict[int, StateWalks] = {}
        for log, places in await run_async(self._client, self._plan(config, before)):
            walk = walks.setdefault(id(log), StateWalks(log))
            for read in await run_async(self._client, self._threads.read(log, places if filter else places[:left])):
                if left and (found := await run_async(self._client, self._listed(read, filter, walk))) is not None:
                    left -= 1
                    yield found
            if not left:
                return

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """As ``CtxdSaver.put``. Cancel: the checkpoint may be stored."""
        new, made = self._written(config, checkpoint, metadata)
        await run_async(self._client, self._threads.put(new))
        return made

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """As ``CtxdSaver.put_writes``. Cancel: the writes may be stored."""
        await run_async(self._client, self._threads.put_writes(self._task_writes(config, writes, task_id, task_path)))

    async def adelete_thread(self, thread_id: str) -> None:
        """As ``CtxdSaver.delete_thread``. Cancel: the rest stays; call it again."""
        await run_async(self._client, self._delete(thread_id))

    async def adelete_for_runs(self, run_ids: Sequence[str]) -> None:
        """As ``CtxdSaver.delete_for_runs``. Cancel: the rest stays; call it again."""
        await run_async(self._client, self._delete_runs(run_ids))

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """As ``CtxdSaver.copy_thread``. Cancel: a part may be copied."""
        await run_async(self._client, self._threads.copy(str(source_thread_id), str(target_thread_id)))

    async def aprune(self, thread_ids: Sequence[str], *, strategy: str = "keep_latest") -> None:
        """As ``CtxdSaver.prune``. Cancel: the rest stays; call it again."""
        await run_async(self._client, self._prune(thread_ids, strategy))


def _place(config: RunnableConfig) -> tuple[str, str]:
    """The thread and the namespace in ``config``. Raises: ValueError without a thread, or for text that is not
    Unicode."""
    configurable = config.get("configurable") or {}
    if "thread_id" not in configurable:
        raise ValueError('the config names no thread: pass {"configurable": {"thread_id": …}}')
    thread, namespace = str(configurable["thread_id"]), configurable.get("checkpoint_ns") or ""
    for name, text in (("thread_id", thread), ("checkpoint_ns", namespace)):
        if not text.isascii() and text != text.encode("utf-8", "replace").decode():
            raise ValueError(f"{name} is {ascii(text)[:60]}, which is not Unicode text")
    return thread, namespace


def _config(thread: Any, namespace: str, id: str) -> RunnableConfig:  # noqa: ANN401 - as the caller gave it
    return {"configurable": {"thread_id": thread, "checkpoint_ns": namespace, "checkpoint_id": id}}


def _limit(limit: int | None) -> int:
    return 2**62 if limit is None else max(0, limit)


def _is_old(log: CommitLog[Any], place: CheckpointPlace) -> bool:
    newest = next(iter(log.index.newest(place.thread, place.namespace)), None)
    return place != newest
