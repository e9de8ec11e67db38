"""``file.*``, ``tool.observe`` and ``mount.detect``: files become objects, and enter the sets of the session they met.

How a file was met decides its place (spec 1 §5.6). A read shows its content, so it becomes active; so does the first
edit, whose content the agent wrote. A later edit leaves the level as the agent set it. A name in some output makes the
file known. A check changes no set.
"""

import binascii
from collections.abc import Sequence
from functools import partial
from typing import Final

import anyio
import anyio.to_thread
import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.discover import Found
from ctxd.indexing.discovery.candidates import candidates
from ctxd.indexing.discovery.paths import Candidate
from ctxd.indexing.index import Cause, Indexed, Indexer
from ctxd.mounts.detect import from_docker_inspect, from_mountinfo
from ctxd.mounts.mapping import normalise
from ctxd.rpc.dispatch import Handler
from ctxd.rpc.identity import Caller
from ctxd.sessions import transitions
from ctxd.sessions.attribution import claimed, until_durable
from ctxd.sessions.registry import Sessions
from ctxd.sessions.resume import portions
from ctxd.sessions.segments import NOTHING, SessionDelta
from ctxd.sessions.session import Accepted, LiveSession, WriteRequest, again, kept_result
from ctxd.sessions.state import SessionState
from ctxd_protocol.methods.files import (
    Discovered,
    FileDiscoverParams,
    FileIndexParams,
    FileIndexResult,
    FileResolveParams,
    FileResolveResult,
    MountDetectParams,
    MountDetectResult,
    ToolObserveParams,
    ToolObserveResult,
)

OUTPUT_INLINE_CHARS_MAX: Final = 16 * 1024
"""Characters of a command and its output that are parsed on the loop: some milliseconds. More go to a thread."""


def handlers(sessions: Sessions, indexer: Indexer) -> dict[str, Handler]:
    """The methods of this family by name."""
    methods = _Files(sessions, indexer)
    return {
        "file.index": methods.index,
        "file.discover": methods.discover,
        "file.resolve": methods.resolve,
        "tool.observe": methods.observe,
        "mount.detect": detect,
    }


class _Files:
    def __init__(self, sessions: Sessions, indexer: Indexer) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._indexer = indexer
        self._parsing = anyio.CapacityLimiter(1)

    async def index(self, caller: Caller, params: FileIndexParams, call: WriteRequest) -> Accepted:
        content = _content(params)
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, FileIndexResult)
            indexed = await self._index(live, params, content, alone=caller.capability != "host")
            if params.cause == "edit" and indexed.outcome == "unchanged":
                indexed = await claimed(self._store, indexed)
            # No await from here to the write: another session's version cannot come between.
            is_gone = indexed.kind == "missing"
            delta = NOTHING if is_gone else _met(live.state, indexed.object, params.cause)
            result = _told(indexed)
            if indexed.document is None and delta == NOTHING:
                live.require_current()
                barrier = live.barrier
            else:
                pending = live.commit(
                    call,
                    delta,
                    puts=indexed.puts,
                    signatures=indexed.signatures,
                    floor_vt=indexed.floor_vt,
                    result=kept_result(call, result),
                )
                return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))
        await until_durable(self._store, indexed.basis)
        return Accepted(barrier, lambda _: result)

    async def _index(
        self, live: LiveSession, params: FileIndexParams, content: bytes | None, *, alone: bool
    ) -> Indexed:
        """Index the file. An edit of a file in the session's index that is confirmed to be gone is its deletion."""
        index = partial(
            self._indexer.index,
            live.mounts,
            live.settings.workdir,
            params.path,
            content=content,
            policy=live.settings.secrets,
            # A sandbox's content is an observation of its own, not a version of a file that others read too.
            observer=params.session if alone else None,
        )
        try:
            return await index(cause=params.cause)
        except CtxdError as error:
            if params.cause != "edit" or error.code != "file_not_found":
                raise
            id, _ = await self._indexer.resolve(live.mounts, live.settings.workdir, params.path)
            # Only the session's own index decides: the answer must not show which files other sessions know.
            if id not in live.state.index:
                raise
            indexed = await index(cause="check")
            if indexed.kind != "missing" or indexed.outcome == "orphaned":
                raise
            return indexed

    async def discover(self, caller: Caller, params: FileDiscoverParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, ToolObserveResult)
            found = await self._indexer.discover(live.mounts, live.settings.workdir, params.paths)
            return _kept(live, call, found)

    async def observe(self, caller: Caller, params: ToolObserveParams, call: WriteRequest) -> Accepted:
        live = await self._sessions.live(params.session)
        with live.lock.ticket() as ticket:
            replay = await live.admit(ticket, call)
            if replay is not None:
                return again(replay, ToolObserveResult)
            workdir = live.settings.workdir
            cwd = workdir if params.cwd is None else normalise(params.cwd, workdir)
            named = await self._named(params.command, params.output, cwd)
            return _kept(live, call, await self._indexer.discover_named(live.mounts, named))

    async def resolve(self, _: Caller, params: FileResolveParams) -> FileResolveResult:
        live = await self._sessions.live(params.session)
        id, source = await self._indexer.resolve(live.mounts, live.settings.workdir, params.path)
        shown = live.mounts.display(source)
        head = (await self._store.heads((id,)))[id]
        durable = self._store.head()
        if head is not None and (durable is None or durable.seq < head.tx):
            head = await self._store.get(id, tx=head.tx)
        return FileResolveResult(
            object=id,
            canonical_path=source.path,
            filesystem_id=source.filesystem_id,
            display_path=shown,
            known=head is not None,
        )

    async def _named(self, command: str, output: str, cwd: str) -> tuple[Candidate, ...]:
        if len(command) + len(output) <= OUTPUT_INLINE_CHARS_MAX:
            named = candidates(command, output, cwd)
        else:
            named = await anyio.to_thread.run_sync(candidates, command, output, cwd, limiter=self._parsing)
        return named.paths


def _kept(live: LiveSession, call: WriteRequest, found: Sequence[Found]) -> Accepted:
    """Put the stubs of ``found`` and make what it names known to the session. Under its lock.

    No await lies between its finding and the write: another session's version cannot come between.
    """
    delta = transitions.discover(live.state, [one.object for one in found if one.object is not None])
    stubs = [one.document for one in found if one.document is not None]
    result = ToolObserveResult(objects=tuple(_row(one) for one in found), receipt=None)
    if not stubs and delta == NOTHING:
        live.require_current()
        return Accepted(live.barrier, lambda _: result)
    floor_vt = max(one.floor_vt for one in found)
    # The operation id goes with the last portion, as the sets do: stubs without those do no harm.
    *early, last = portions(stubs)
    for documents in early:
        live.commit(WriteRequest(call.kind, call.principal), puts=documents, floor_vt=floor_vt)
    pending = live.commit(call, delta, puts=last, floor_vt=floor_vt, result=kept_result(call, result))
    return Accepted(pending, lambda receipt: msgspec.structs.replace(result, receipt=receipt))


async def detect(_: Caller, params: MountDetectParams) -> MountDetectResult:
    """The mappings in either text. Raises: CtxdError invalid_params."""
    if (params.docker_inspect is None) == (params.mountinfo is None):
        raise CtxdError("invalid_params", "give docker_inspect or mountinfo, and not both")
    if params.docker_inspect is not None:
        found = from_docker_inspect(params.docker_inspect)
    else:
        assert params.mountinfo is not None, "one of both is there"
        found = from_mountinfo(params.mountinfo)
    return MountDetectResult(mounts=found.mounts, filesystem_id=found.filesystem_id, ignored=found.ignored)


def _content(params: FileIndexParams) -> bytes | None:
    """The bytes that the call sends, null if the daemon is to read the file."""
    if params.content is not None and params.content_base64 is not None:
        raise CtxdError("invalid_params", "give content or content_base64, not both", outcome="not_applied")
    try:
        if params.content_base64 is not None:
            return binascii.a2b_base64(params.content_base64, strict_mode=True)
        return None if params.content is None else params.content.encode()
    except ValueError as error:
        raise CtxdError("invalid_params", f"content: {error}", outcome="not_applied") from error


def _met(state: SessionState, id: str, cause: Cause) -> SessionDelta:
    match cause:
        case "read":
            return transitions.read(state, id)
        case "edit":
            return transitions.discover(state, (id,)) if id in state.read else transitions.read(state, id)
        case "check":
            return NOTHING


def _told(indexed: Indexed) -> FileIndexResult:
    return FileIndexResult(
        object=indexed.object,
        outcome=indexed.outcome,
        kind=indexed.kind,
        source_hash=indexed.source_hash,
        char_count=indexed.char_count,
        receipt=None,
    )


def _row(found: Found) -> Discovered:
    return Discovered(path=found.path, outcome=found.outcome, object=found.object, reason=found.reason)
