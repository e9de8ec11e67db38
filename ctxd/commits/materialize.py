"""Materialisation: joins the deltas of a chain to one context, in a thread, with a few MiB of deltas in memory."""

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, cast

import anyio
import anyio.lowlevel
import msgspec
from anyio.abc import TaskStatus

from ctxd.commits.chain_walk import ChainWalk, Walked, included
from ctxd.commits.commit_operations import Commits
from ctxd.commits.commit_reads import CommitViewer
from ctxd.commits.context_cache import CachedContext, ContextCache, ContextContent
from ctxd.commits.snapshot_making import SNAPSHOT_COMMITS_MIN, SnapshotReader, keep_snapshot, plan_snapshots
from ctxd.errors import CtxdError
from ctxd.fd_passing import PassedFile
from ctxd.formats.cbor_array import UnreadableDelta
from ctxd.formats.delta_formats import is_array
from ctxd.formats.translation import (
    GONE,
    RAW,
    TRANSLATOR_VERSION,
    Delta,
    Materialization,
    Output,
    UntranslatableFormat,
)
from ctxd.objects.commit_document import STORED_NAMES, commit_id, entity_id
from ctxd.objects.document import Content, Document, decode_content, encode_content
from ctxd.objects.version_state import state_of
from ctxd.store.chain_snapshots import ChainSnapshot, ChainSnapshots, SnapshotGone
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import DurableWrites
from ctxd.worker_threads import Lane, LoopHandle, SharedLane, in_thread
from ctxd_protocol.methods import commits as wire

T = TypeVar("T")

CONTEXT_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Maximum bytes of the deltas of one context, which takes as much room on the disk while it is cached."""

WHOLE_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum bytes of a context returned in one reply."""

CONFINED_OUTPUTS_MAX: Final = 16 * 1024 * 1024
"""Maximum characters of tool outputs in one context for a sandbox; further outputs stay references."""

PASSED_BYTES_MIN: Final = 64 * 1024
"""Minimum bytes of a context that is passed as a file: a shorter one is as fast in the reply itself."""

_BATCH_BYTES: Final = 4 * 1024 * 1024
"""Approximate bytes of deltas in memory at a time."""

_CHATS: Final = "chat:"

_THREADS: Final = 2

_SNAPSHOT_EVERY: Final = 256
"""Interval of depths at which a snapshot is made before the chain is read, so that the first read is fast too."""

_WANTED_MAX: Final = 64
"""Maximum chains queued for a snapshot; others get one when they are read."""


_Fetch = Callable[[], Awaitable[Any]]

_Made = CachedContext[wire.CommitMaterializeResult]


class Materializer:
    """Materialisation of the commits of one store."""

    def __init__(self, commits: Commits) -> None:
        self._commits = commits
        self._store = commits.store
        self._cache = ContextCache[wire.CommitMaterializeResult]()
        self._purges = 0
        # A sandbox may commit deltas that take long to translate.
        self._writing = Lane("materialize", _THREADS, bulk=True)
        self._writing_confined = SharedLane("sandbox-materialize", bulk=True)
        self._snapshots = self._store.directory.snapshots
        self._taking = Lane("chain-snapshot", bulk=True)
        self._wanted: dict[tuple[str, str], None] = {}
        self._has_wanted = anyio.Event()
        self._store.on_durable(self._note_commits, types=("commit",))
        # No types: only writes that purge.
        self._store.on_durable(self._note_purge, types=())

    def _note_purge(self, writes: DurableWrites) -> None:
        if any(write.purge is not None for write, _ in writes):
            self._purges += 1
            self._cache.clear()

    async def materialize(
        self, viewer: CommitViewer, params: wire.CommitMaterializeParams, *, bytes_max: int | None = None
    ) -> wire.CommitMaterializeResult | PassedFile:
        """The context of a commit, or a piece of it; without a commit, the empty context. A long one is a file if the
        caller accepts that and is not a sandbox, which could exhaust memory by keeping files open.

        Raises: CtxdError ``commit_not_found``, also for an ancestor; ``invalid_params`` for a stop that is not an
        ancestor; ``unsupported`` for a format that cannot be written; ``too_large`` for whole content of more than
        ``bytes_max``; ``purged``, ``corrupt``, ``store_failed``. Cancel: waits for the current delta.
        """
        if params.commit is None:
            return _EMPTY
        made = await self.context(viewer, params)
        figures, size = made.figures, made.figures.size
        if not params.content:
            return figures
        whole_max = WHOLE_BYTES_MAX if bytes_max is None else min(bytes_max, WHOLE_BYTES_MAX)
        if params.limit is not None:
            # Base64 has four characters for three bytes.
            limit = min(params.limit, whole_max // 4 * 3)
            read = partial(made.content.read, params.offset, limit)
            piece = read() if made.content.is_in_memory else await in_thread(read)
            end = params.offset + len(piece)
            next_offset = end if end < size else None
            return msgspec.structs.replace(figures, content_base64=_base64(piece), next_offset=next_offset)
        if size > whole_max:
            message = f"the context has {size:,} bytes; a single reply is limited to {whole_max:,}"
            raise CtxdError("too_large", message, hint="Read it in pieces, with limit; or stop at a later commit.")
        if size >= PASSED_BYTES_MIN and _is_passed(viewer, params):
            # A prepared copy is an array's, so passing it decodes nothing.
            return _passed(made) if made.content.has_copy else await in_thread(_passed, made)
        return _whole(made)

    async def context(
        self, viewer: CommitViewer, params: wire.CommitMaterializeParams
    ) -> CachedContext[wire.CommitMaterializeResult]:
        """The whole context of the commit in ``params``, from the cache if possible. Raises and cancel: as
        ``materialize``."""
        assert params.commit is not None, "the empty context is not made"
        await self._commits.find(viewer, params.commit)
        # Only callers that see the same commits share results, because ancestors may be invisible to others.
        key = (viewer.sessions, params.commit, params.stop, params.format, TRANSLATOR_VERSION)
        if (made := self._cache.get(key)) is not None:
            return msgspec.structs.replace(made, figures=msgspec.structs.replace(made.figures, cached=True))
        purges = self._purges
        made = await self._made(viewer, params)
        if purges == self._purges:
            self._cache.put(key, made)
        return made

    async def _made(self, viewer: CommitViewer, params: wire.CommitMaterializeParams) -> _Made:
        # The raw format has a line per delta, so it cannot use snapshots.
        if params.format != RAW:
            try:
                return await self._made_of(viewer, params, self._snapshots)
            except SnapshotGone:
                pass  # The snapshot was dropped meanwhile, or is damaged: read the deltas.
        return await self._made_of(viewer, params, None)

    async def _made_of(
        self, viewer: CommitViewer, params: wire.CommitMaterializeParams, snapshots: ChainSnapshots | None
    ) -> _Made:
        chain = await self._chain(viewer, params, snapshots)
        parts = included(chain)
        for each in parts:
            if isinstance(each, Walked) and each.content_ref is None:
                raise _purged(each)
        if (total := sum(each.size for each in parts)) > CONTEXT_BYTES_MAX:
            message = f"the deltas of the context have {total:,} bytes; the limit is {CONTEXT_BYTES_MAX:,}"
            raise CtxdError("too_large", message, hint="Stop at a later commit, or commit a compaction.")
        failure: CtxdError | SnapshotGone | None = None  # A group would wrap it.
        async with anyio.create_task_group() as group:
            deltas = _Deltas(self._store, viewer, [each for each in parts if isinstance(each, Walked)])
            group.start_soon(deltas.serve)
            try:
                await deltas.begin()
                made = _joined(parts, deltas, snapshots, params.format, self._store.root)
                copies = _is_passed(viewer, params) and is_array(made.format)
                write = partial(_written, made, self._store.root, copies)
                if viewer.is_confined:
                    content = await self._writing_confined.run_for(viewer.actor.principal, write)
                else:
                    content = await self._writing.run(write)
            except (CtxdError, SnapshotGone) as error:
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            await anyio.lowlevel.checkpoint()  # A cancelled call must end as cancelled.
            raise failure
        walked = [each for each in chain if isinstance(each, Walked)]
        if len(walked) >= SNAPSHOT_COMMITS_MIN and params.stop in ("compaction", "root"):
            self._want_snapshot(entity_id(params.commit or ""), params.stop)
        figures = wire.CommitMaterializeResult(
            commit=params.commit,
            stop=_oldest(chain),
            format=made.format,
            tier=made.tier,
            lost=tuple(wire.LostPart(*each) for each in made.lost),
            artifact_ref=content.artifact_ref,
            size=content.size,
            commit_count=sum(1 if isinstance(each, Walked) else each.commits for each in chain),
            message_count=made.messages,
            token_count=made.tokens,
            chain_message_count=sum(
                each.fields.message_count if isinstance(each, Walked) else each.messages for each in chain
            ),
            cached=False,
        )
        return _Made(content, figures)

    async def _chain(
        self, viewer: CommitViewer, params: wire.CommitMaterializeParams, snapshots: ChainSnapshots | None
    ) -> list[Walked | ChainSnapshot]:
        """The commits of a context, newest first. Raises: CtxdError, also for an ancestor that ``viewer`` may not
        see."""
        assert params.commit is not None, "the empty context has no chain"
        tip, stop = entity_id(params.commit), params.stop
        chain = await ChainWalk(tip, stop, snapshots).run(self._store)
        last = "" if stop in ("compaction", "root") else entity_id(stop)
        await self._commits.require_chain(viewer, tip, to_boundary=stop == "compaction", last=last)
        return chain

    # --- snapshots ---

    def _note_commits(self, writes: DurableWrites) -> None:
        for write, _ in writes:
            for put in write.puts:
                depth = put.payload.get(STORED_NAMES["depth"], 0) if put.type == "commit" else 0
                if depth and depth % _SNAPSHOT_EVERY == 0:
                    self._want_snapshot(put.id, "root")

    def _want_snapshot(self, tip: str, stop: str) -> None:
        if len(self._wanted) < _WANTED_MAX:
            self._wanted[tip, stop] = None
            self._has_wanted.set()

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Make snapshots of chains in the background, until cancelled."""
        task_status.started()
        try:
            await in_thread(self._snapshots.load)
        except (CtxdError, OSError) as error:
            self._store.note_fault(error)
        while True:
            await self._has_wanted.wait()
            self._has_wanted = anyio.Event()
            while self._wanted:
                tip, stop = next(iter(self._wanted))
                try:
                    await self._make_snapshots(ChainWalk(tip, stop, self._snapshots))
                except (CtxdError, SnapshotGone, UnreadableDelta):
                    pass  # It cannot be read, or was purged meanwhile; calls that read it report that.
                except OSError as error:
                    self._store.note_fault(error)
                del self._wanted[tip, stop]

    async def _make_snapshots(self, walk: ChainWalk) -> None:
        drops = self._snapshots.drops
        for part in plan_snapshots(await walk.run(self._store)):
            refs = [each.content_ref for each in part if isinstance(each, Walked) and not each.fields.is_boundary]
            # Do not let content that is read once evict frequently read content.
            contents = await self._store.contents((ref for ref in refs if ref is not None), keep=False)
            await self._taking.run(keep_snapshot, self._snapshots, part, contents, drops)


class _Deltas:
    """The contents of a chain for a thread that reads them in order, and the tool outputs that they refer to. The loop
    fetches them, a few MiB at a time."""

    def __init__(self, store: VersionStore, viewer: CommitViewer, commits: Sequence[Walked]) -> None:
        self._store = store
        self._viewer = viewer
        self._left = CONFINED_OUTPUTS_MAX if viewer.is_confined else CONTEXT_BYTES_MAX
        self._refs = [each.content_ref or "" for each in commits]
        self._sizes = [each.size for each in commits]
        self._loop = LoopHandle()
        self._held: dict[str, Content] = {}
        self._wanted: tuple[_Fetch, Future[Any]] | None = None
        self._requested = anyio.Event()
        self._is_over = False

    async def begin(self) -> None:
        """Fetch the first batch. Raises: CtxdError."""
        self._held = await self._store.contents(self._batch(0))

    def read(self, number: int) -> bytes:
        """Delta ``number``. Call it on another thread, while ``serve`` runs. Raises: CtxdError."""
        ref = self._refs[number]
        if ref not in self._held:
            self._held = {}
            self._held = self._fetched(partial(self._store.contents, self._batch(number)))
        return encode_content(self._held[ref])

    def outputs(self, ids: Sequence[str]) -> dict[str, Output]:
        """The outputs of tool calls by object id. Raises: CtxdError, also ``too_large``.

        A delta may refer to any object, and repeatedly. A sandbox gets only the outputs of its own sessions, up to a
        limit, and does not learn whether others exist. No caller gets a file's content.
        """
        heads = self._fetched(partial(self._store.bulk, ids))
        wanted = [id for id, head in heads.items() if self._is_output(head.document)]
        found = self._fetched(partial(self._store.bulk, wanted, content=True)) if wanted else {}
        outputs = {} if self._viewer.is_confined else {id: GONE for id in ids if id not in heads}
        for id, stored in found.items():
            document = stored.document
            outputs[id] = Output.of(document.payload, document.content, state_of(document))
        self._left -= sum(len(outputs[id].text) for id in ids if id in outputs)
        if self._left >= 0:
            return outputs
        if self._viewer.is_confined:
            return {}
        message = f"the outputs of the context have more than {CONTEXT_BYTES_MAX:,} characters"
        raise CtxdError("too_large", message, hint="Stop at a later commit, or commit a compaction.")

    def _is_output(self, document: Document) -> bool:
        """True for a tool call whose output the viewer may read."""
        session = str(document.payload.get("chat_ref", "")).removeprefix(_CHATS)
        sessions = self._viewer.sessions
        return document.type == "toolcall" and (sessions is None or session in sessions)

    def _fetched(self, fetch: Callable[[], Awaitable[T]]) -> T:
        fetched: Future[T] = Future()
        self._loop.schedule(self._request, fetch, fetched)
        return fetched.result()

    async def serve(self) -> None:
        """Fetch for the thread until cancelled; its later reads fail."""
        try:
            while True:
                await self._requested.wait()
                self._requested = anyio.Event()
                assert self._wanted is not None, "woken without a request"
                fetch, fetched = self._wanted
                try:
                    found = await fetch()
                except CtxdError as error:
                    self._wanted = None
                    fetched.set_exception(error)
                else:
                    self._wanted = None
                    fetched.set_result(found)
        finally:
            self._is_over = True
            if self._wanted is not None:
                self._wanted[1].set_exception(_over())

    def _request(self, fetch: _Fetch, fetched: "Future[Any]") -> None:
        if self._is_over:
            fetched.set_exception(_over())
            return
        self._wanted = fetch, fetched
        self._requested.set()

    def _batch(self, first: int) -> list[str]:
        size, end = 0, first
        while end < len(self._refs) and (end == first or size + self._sizes[end] <= _BATCH_BYTES):
            size += self._sizes[end]
            end += 1
        return list(self._refs[first:end])


def _over() -> CtxdError:
    return CtxdError("cancelled", "the call was cancelled")


def _joined(
    parts: Sequence[Walked | ChainSnapshot],
    contents: _Deltas,
    snapshots: ChainSnapshots | None,
    wanted: str | None,
    folder: Path,
) -> Materialization:
    """The context of ``parts`` in the format ``wanted``, None for the first part's; ``folder`` holds a long one's
    temporary file. Raises: CtxdError ``unsupported``."""
    deltas: list[Delta] = []
    number, reader = 0, None if snapshots is None else SnapshotReader(snapshots)
    for each in parts:
        if isinstance(each, Walked):
            read = partial(contents.read, number)
            fields = each.fields
            is_compaction = fields.commit_type == "compaction"
            deltas.append(Delta(fields.format, read, fields.message_count, fields.token_count, is_compaction))
            number += 1
        else:
            assert reader is not None, "found among the snapshots"
            deltas += reader.deltas(each)
    try:
        return Materialization(deltas, wanted or deltas[0].format, folder, contents.outputs)
    except UntranslatableFormat as error:
        raise CtxdError("unsupported", str(error), hint="Leave format out for that of the chain.") from error


def _written(made: Materialization, folder: Path, copies: bool) -> ContextContent:
    """The whole content; with ``copies``, prepare a copy of a long one to pass.

    Raises: CtxdError ``corrupt`` for a delta that is not in its format; ``disk_full``.
    """
    content = ContextContent(folder)
    try:
        for chunk in made.chunks():
            content.write(chunk)
    except UnreadableDelta as error:
        raise CtxdError("corrupt", f"a delta cannot be read: {error}") from error
    except OSError as error:
        raise CtxdError("disk_full", f"the context cannot be kept in {folder}: {error.strerror}") from error
    if copies and PASSED_BYTES_MIN <= content.size <= WHOLE_BYTES_MAX:
        with suppress(OSError):  # If descriptors run out, the content is sent in the reply itself.
            content.make_copy()
    return content


def _is_passed(viewer: CommitViewer, params: wire.CommitMaterializeParams) -> bool:
    """True if long content is passed as a file: it was requested whole, and not by a sandbox."""
    return params.descriptor and params.content and params.limit is None and not viewer.is_confined


def _whole(made: _Made) -> wire.CommitMaterializeResult:
    if (text := _text(made)) is not None:
        return msgspec.structs.replace(made.figures, content=text)
    return msgspec.structs.replace(made.figures, content_base64=_base64(made.content.read(0, made.figures.size)))


def _text(made: _Made) -> str | None:
    if is_array(made.figures.format or ""):
        return None
    content = decode_content(made.content.read(0, made.figures.size))
    return content if isinstance(content, str) else None


def _passed(made: _Made) -> wire.CommitMaterializeResult | PassedFile:
    """The context as a file, or in the reply itself if the daemon cannot open one."""
    member: Literal["content", "content_base64"] = "content_base64" if _text(made) is None else "content"
    try:
        descriptor = made.content.open_copy()
    except OSError:
        return _whole(made)
    return PassedFile(msgspec.structs.replace(made.figures, descriptor=member), descriptor, partial(_whole, made))


def _base64(content: bytes) -> str:
    """``content`` for a reply: its encoder writes bytes as base64 without another copy."""
    return cast("str", content)


def _oldest(chain: Sequence[Walked | ChainSnapshot]) -> str:
    """The commit where a walk stopped: never within a snapshot, unless the snapshot starts at the root."""
    last = chain[-1]
    return last.commit if isinstance(last, Walked) else commit_id(last.oldest)


def _purged(gone: Walked) -> CtxdError:
    """The error for a context that needs the delta of ``gone``."""
    parent = gone.fields.parent
    start = f"Start from its parent {parent}, or continue" if parent else "Continue"
    hint = (
        f"{start} from a later compaction, which commit.checkpoint makes; commit.materialize can also stop at a later "
        f'commit, and commit.show with {{"commit": "{gone.commit}"}} has what is left of it.'
    )
    return CtxdError("purged", f"the content of commit {gone.commit} was purged", hint=hint)


_EMPTY: Final = wire.CommitMaterializeResult(
    commit=None,
    stop=None,
    format=None,
    tier="native",
    lost=(),
    artifact_ref=None,
    size=0,
    commit_count=0,
    message_count=0,
    token_count=0,
    chain_message_count=0,
    cached=False,
    content="",
)
