"""Operations that bring files into a session: index one, discover named ones, observe a tool's output."""

import binascii
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final, Literal

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed, Indexer
from ctxd.indexing.shell.file_candidates import candidates
from ctxd.indexing.stub_discovery import FoundFile, discover, discover_named
from ctxd.mounts.mapping import normalise
from ctxd.sessions.live_session import Accepted, Transaction
from ctxd.sessions.operation_admission import OperationGroup, admitted
from ctxd.sessions.reconciliation import attribute, found_for, write_batches
from ctxd.sessions.registry import Sessions
from ctxd.sessions.sandbox_file_visibility import as_first_seen
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.stored_session import NOTHING, DiscoverObjects, ReadObjects, SessionDelta
from ctxd.worker_threads import Lane
from ctxd_protocol.methods import files as file_methods
from ctxd_protocol.methods import toolcalls as toolcall_methods

OUTPUT_INLINE_CHARS_MAX: Final = 16 * 1024
"""A command and its output up to this many characters are parsed on the loop, in some milliseconds; longer ones on a
thread."""


class FileOperations(OperationGroup):
    """Writes of files and of their stubs."""

    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        super().__init__(sessions, indexer)
        self._parsing = Lane("commands")

    @admitted("file.index", file_methods.FileIndexResult)
    async def index(self, tx: Transaction, params: file_methods.FileIndexParams) -> Accepted:
        """Index a file that the agent read or edited, or check it; the cause decides its level (spec 1 §5.6)."""
        live = tx.live
        indexed = await self._index(tx, params)
        if params.cause == "edit" and indexed.outcome == "unchanged" and params.valid_time is None:
            indexed = await attribute(self.store, indexed)
        # No await from here to the write, so that no version of another session comes between.
        delta = NOTHING if indexed.kind == "missing" else index_delta(live.state, indexed.object, params.cause)
        result = file_methods.FileIndexResult(
            object=indexed.object,
            outcome=indexed.outcome,
            kind=indexed.kind,
            source_hash=indexed.source_hash,
            char_count=indexed.char_count,
            receipt=None,
        )
        if tx.is_confined:
            result, indexed = as_first_seen(live.state, params.cause, result, indexed)
        if indexed.document is None and not delta:
            tx.basis = indexed.basis
            return tx.unchanged(result)
        if params.valid_time is not None:
            self.sessions.visibility.note_past(indexed.object)
        return tx.submit(result, delta, **indexed.writes, valid_time=params.valid_time)

    async def _index(self, tx: Transaction, params: file_methods.FileIndexParams) -> Indexed:
        """Index the file. An edit counts as its deletion if the session knows the file and a check confirms that it is
        gone."""
        live, content = tx.live, content_of(params)
        if params.valid_time is not None:
            if content is None:
                message = "valid_time needs the content: the daemon reads the file as it is now"
                raise CtxdError("invalid_params", message, hint="Give content too.", outcome="not_applied")
            return await self.indexer.index_past(
                live.mounts, live.settings.workdir, params.path, content, params.valid_time, live.settings.secrets
            )
        index = partial(
            self.indexer.index,
            live.mounts,
            live.settings.workdir,
            params.path,
            content=content,
            policy=live.settings.secrets,
            # Content from a sandbox is its own observation, not a version of a file that other sessions read.
            observer=params.session if tx.is_confined else None,
            knows=live.state.index.__contains__ if tx.is_confined else None,
        )
        try:
            return await index(cause=params.cause)
        except CtxdError as error:
            if params.cause != "edit" or error.code != "file_not_found":
                raise
            id, _ = await self.indexer.resolve(live.mounts, live.settings.workdir, params.path)
            # Only the session's own index decides: the reply must not show which files other sessions know.
            if id not in live.state.index:
                raise
            indexed = await index(cause="check")
            if indexed.kind != "missing" or indexed.outcome == "orphaned":
                raise
            return indexed

    @admitted("file.discover", toolcall_methods.ToolObserveResult)
    async def discover(self, tx: Transaction, params: file_methods.FileDiscoverParams) -> Accepted:
        """Add the files at the given paths to the index and the pool, unread."""
        live = tx.live
        find = partial(discover, self.indexer, live.mounts, live.settings.workdir, params.paths, params.valid_time)
        return _discovered(tx, await found_for(tx, self.indexer, find), params.valid_time)

    @admitted("tool.observe", toolcall_methods.ToolObserveResult)
    async def observe(self, tx: Transaction, params: toolcall_methods.ToolObserveParams) -> Accepted:
        """Add the files that a command line and its output name to the index and the pool, unread."""
        live = tx.live
        workdir = live.settings.workdir
        cwd = workdir if params.cwd is None else normalise(params.cwd, workdir)
        named = partial(candidates, params.command, params.output, cwd)
        if len(params.command) + len(params.output) <= OUTPUT_INLINE_CHARS_MAX:
            found = named()
        else:
            found = await self._parsing.run(named)
        find = partial(discover_named, self.indexer, live.mounts, found.paths, params.valid_time)
        return _discovered(tx, await found_for(tx, self.indexer, find), params.valid_time)


def content_of(params: file_methods.FileIndexParams) -> bytes | None:
    """Return the content in ``params`` as bytes, None if the daemon must read the file.

    Raises: CtxdError invalid_params if both forms of content are given, or for invalid content.
    """
    if params.content is not None and params.content_base64 is not None:
        raise CtxdError("invalid_params", "give content or content_base64, not both", outcome="not_applied")
    try:
        if params.content_base64 is not None:
            return binascii.a2b_base64(params.content_base64, strict_mode=True)
        return None if params.content is None else params.content.encode()
    except ValueError as error:
        raise CtxdError("invalid_params", f"content: {error}", outcome="not_applied") from error


def _discovered(tx: Transaction, found: Sequence[FoundFile], valid_time: int | None) -> Accepted:
    """Write the stubs of ``found``, as of ``valid_time`` (None: now), and add its files to the session.

    The caller must not await between finding ``found`` and this call, so that no version of another session comes
    between.
    """
    live = tx.live
    delta = discover_delta(live.state, [one.object for one in found if one.object is not None])
    stubs = [one.document for one in found if one.document is not None]
    rows = tuple(
        toolcall_methods.Discovered(path=one.path, outcome=one.outcome, object=one.object, reason=one.reason)
        for one in found
    )
    result = toolcall_methods.ToolObserveResult(objects=rows, receipt=None)
    if not stubs and not delta:
        return tx.unchanged(result)
    floor_vt = max(one.floor_vt for one in found)
    # The last write has the operation id and the change of the sets: stubs without either do no harm.
    *early, last = write_batches(stubs)
    for documents in early:
        live.submit(tx.request.without_id(), puts=documents, floor_vt=floor_vt, valid_time=valid_time)
    return tx.submit(result, delta, puts=last, floor_vt=floor_vt, valid_time=valid_time)


def read_delta(state: SessionState, id: str) -> SessionDelta:
    """Return the change after an agent read ``id``: it enters index, pool and active set (spec 1 §5.6)."""
    if id in state.active and id in state.read:
        return NOTHING
    return (ReadObjects((id,)),)


def discover_delta(state: SessionState, ids: Iterable[str]) -> SessionDelta:
    """Return the change after a tool's output named ``ids``: they enter index and pool (spec 1 §5.6)."""
    fresh = tuple(dict.fromkeys(id for id in ids if id not in state.pool))
    return (DiscoverObjects(fresh),) if fresh else NOTHING


def index_delta(state: SessionState, id: str, cause: Literal["read", "edit", "check"]) -> SessionDelta:
    """Return the change of the sets after a file was indexed because of ``cause``."""
    match cause:
        case "read":
            return read_delta(state, id)
        case "edit":
            return discover_delta(state, (id,)) if id in state.read else read_delta(state, id)
        case "check":
            return NOTHING
