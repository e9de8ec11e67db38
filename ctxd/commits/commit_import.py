"""Import of commits: many deltas of a session in one write, each committed only once even if sent repeatedly.

An existing commit is recognised by its content and its parent, at any instant, so a killed import can be repeated.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, pairwise
from typing import Final, NamedTuple
from weakref import WeakValueDictionary

import anyio
import anyio.lowlevel
import msgspec
from blake3 import blake3

from ctxd import sqlite_file
from ctxd.commits.commit import VERSION, document, read_fields
from ctxd.commits.commit_operations import CapturedDelta, Commits
from ctxd.commits.commit_reads import CommitViewer
from ctxd.commits.delta_scan import checks_format, count_delta, delta_captured
from ctxd.commits.scan_process import DELTA_BYTES_MIN
from ctxd.errors import CtxdError
from ctxd.formats.delta_formats import Counts
from ctxd.objects.commit_document import Fields, commit_id
from ctxd.objects.document import Document, decode_content, encode_content
from ctxd.secrets.redaction import Capture
from ctxd.sessions.live_session import Accepted, WriteRequest
from ctxd.sessions.operation_admission import require_may_backdate
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import off_loop
from ctxd.store import commit_index
from ctxd.store.write_types import PackedText, Write
from ctxd.zstandard import zstd
from ctxd_protocol.limits import FRAME_BYTES_HOST_MAX
from ctxd_protocol.methods import commits as wire
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import SecretPolicy, Secrets

_DECIDED_AT_ONCE: Final = 50
"""Deltas after which other calls get a turn: deciding about them takes some 5 ms."""

_Place = tuple[str, str, str, str, str]
"""The identity of a commit: its parent, content, format, type and thread."""


class _Imported(NamedTuple):
    """A delta in the form to be kept, the fields of its commit except provenance, and the secrets in both. ``packed``
    is None for a large delta."""

    delta: CapturedDelta
    packed: PackedText | None
    fields: Fields
    secrets: Secrets | None


class CommitImports:
    """Imports of commits into one store."""

    def __init__(self, sessions: Sessions, commits: Commits) -> None:
        self._sessions = sessions
        self._store = sessions.store
        self._commits = commits
        self._importing: WeakValueDictionary[str, anyio.Lock] = WeakValueDictionary()

    async def import_commits(
        self, viewer: CommitViewer, params: wire.CommitImportParams, call: WriteRequest
    ) -> Accepted:
        """Write those commits of ``params`` that do not exist yet, all or none.

        Raises: CtxdError ``session_not_found``, ``session_removed``, ``commit_not_found`` for a parent,
        ``invalid_params``, and those of the store. Cancel: safe until they are written.
        """
        policy = self._commits.policy_of(params.session)
        for number, one in enumerate(params.deltas):
            if one.valid_time is not None:
                require_may_backdate(viewer.actor)
            if one.after is not None and (one.parent is not None or one.after >= number):
                message = f"deltas[{number}].after is {one.after}"
                hint = "Set either parent or after; after is the zero-based index of an earlier delta in this call."
                raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        imported = await self._imported(policy, params)
        # One at a time for each session: the other may be writing the same commits.
        async with self._importing.setdefault(params.session, anyio.Lock()):
            there = await self._there(params.session, {one.delta.ref for one in imported})
            async with self._commits.deciding:
                self._commits.require_kept(params.session)
                return await self._write(viewer, call, params, imported, there)

    async def _imported(self, policy: SecretPolicy, params: wire.CommitImportParams) -> list[_Imported]:
        """The deltas of ``params`` in the form to be kept; large ones are durable. Raises: as ``Commits.captured``."""
        captures = [Capture(self._sessions.guard, policy) for _ in params.deltas]

        def work() -> list[_Imported | bytes]:
            contents = zip(_contents(params), captures, params.deltas, strict=True)
            return [
                content if len(content) >= DELTA_BYTES_MIN else _packed(capture, params, given, content)
                for content, capture, given in contents
            ]

        found: list[_Imported] = []
        for one, capture, given in zip(
            await off_loop(sum(one.size for one in params.deltas), work), captures, params.deltas, strict=True
        ):
            if isinstance(one, bytes):
                kept = await self._commits.captured(capture, params.format, decode_content(one), sandbox=None)
                fields = _fields(capture, params, given, kept.counts)
                one = _Imported(kept, None, fields, capture.secrets)
            found.append(one)
        return found

    async def _there(self, session: str, refs: set[str]) -> dict[_Place, str]:
        """The commits of ``session`` with one of the contents ``refs``."""
        ids = await self._store.read_index(partial(commit_index.holding, session=session, refs=refs))
        heads = (await self._store.heads(ids)).values() if ids else ()
        return {
            _place(read_fields(head), head.content_ref): commit_id(head.document.id)
            for head in heads
            if head is not None and head.content_ref is not None
        }

    async def _write(
        self,
        viewer: CommitViewer,
        call: WriteRequest,
        params: wire.CommitImportParams,
        imported: Sequence[_Imported],
        there: Mapping[_Place, str],
    ) -> Accepted:
        self._store.require_past(given.valid_time for given in params.deltas if given.valid_time is not None)
        now = max(self._commits.clock.wall_ms(), self._store.newest_valid_time)
        depths: dict[str, int] = {}
        ids: list[str] = []
        known = dict(there)
        puts: dict[str, Document] = {}
        packed: dict[str, PackedText] = {}
        valid_times: dict[str, int] = {}
        for number, (given, one) in enumerate(zip(params.deltas, imported, strict=True)):
            if number % _DECIDED_AT_ONCE == 0:
                await anyio.lowlevel.checkpoint()
            parent = given.parent if given.after is None else ids[given.after]
            if parent is not None and parent not in depths:
                depths[parent] = read_fields(await self._commits.find(viewer, parent)).depth
            fields = msgspec.structs.replace(
                one.fields,
                principal=viewer.actor.principal,
                machine=self._commits.machine,
                at=now if given.valid_time is None else given.valid_time,
                parent=parent or "",
                depth=0 if parent is None else depths[parent] + 1,
            )
            place = _place(fields, one.delta.ref)
            if (commit := known.get(place)) is None:
                commit, head = await self._commits.free_id(fields, one.delta.ref, taken=puts)
                if head is None:
                    made = document(commit, fields, one.delta.ref, one.secrets)
                    if one.packed is None:
                        made = msgspec.structs.replace(made, content=one.delta.content, artifact=one.delta.artifact)
                    else:
                        packed[made.id] = one.packed
                    if given.valid_time is not None:
                        valid_times[made.id] = fields.at
                    puts[made.id] = made
                    depths[commit] = fields.depth
                known[place] = commit
            ids.append(commit)
        return await self._accepted(call, ids, tuple(puts.values()), packed, valid_times)

    async def _accepted(
        self,
        call: WriteRequest,
        ids: Sequence[str],
        puts: tuple[Document, ...],
        packed: Mapping[str, PackedText],
        valid_times: Mapping[str, int],
    ) -> Accepted:
        def result(receipt: Receipt | None) -> wire.CommitImportResult:
            return wire.CommitImportResult(commits=tuple(ids), made=len(puts), receipt=receipt)

        if not puts:
            # The existing commits may not be durable yet.
            await self._store.wait_for_writes()
            return Accepted(None, result)
        write = Write(kind=call.kind, principal=call.principal, puts=puts, packed=packed, valid_times=valid_times)
        pending = self._store.submit(write)
        call.submitted = True
        return Accepted(pending, result)


def _place(fields: Fields, ref: str) -> _Place:
    return fields.parent, ref, fields.format, fields.commit_type, fields.thread_id


def _contents(params: wire.CommitImportParams) -> list[bytes]:
    """The bytes of each delta. Raises: CtxdError ``invalid_params``."""
    ends = list(accumulate(one.size for one in params.deltas))
    whole = params.content_base64
    if params.compression is not None:
        whole = _decompressed(whole, ends[-1])
    if ends[-1] != len(whole):
        message = f"content_base64 has {len(whole):,} bytes, the deltas together have {ends[-1]:,}"
        raise CtxdError("invalid_params", message, hint="Give the size of each delta.", outcome="not_applied")
    return [whole[start:end] for start, end in pairwise((0, *ends))]


def _decompressed(packed: bytes, size: int) -> bytes:
    """The first bytes in a Zstandard frame, one more than ``size`` at most. Raises: CtxdError ``invalid_params``."""
    if size > FRAME_BYTES_HOST_MAX:
        message = f"the deltas together have {size:,} bytes, more than {FRAME_BYTES_HOST_MAX:,}"
        raise CtxdError("invalid_params", message, hint="Send several calls.", outcome="not_applied")
    try:
        return zstd.ZstdDecompressor().decompress(packed, size + 1)
    except (zstd.ZstdError, MemoryError) as error:
        message = f"content_base64 is not a Zstandard frame: {error}"
        raise CtxdError("invalid_params", message, outcome="not_applied") from error


def _packed(capture: Capture, params: wire.CommitImportParams, given: wire.ImportedDelta, data: bytes) -> _Imported:
    """A small delta in the form to be kept. Raises: CtxdError ``invalid_params``, ``unsupported``."""
    content = decode_content(data)
    counts = Counts(given.message_count or 0, given.token_count or 0)
    if None in (given.message_count, given.token_count) or not checks_format(params.format):
        counts = count_delta(params.format, content)
    kept = delta_captured(capture, params.format, content)
    if kept is not content:
        data = encode_content(kept)
    digest = blake3(data).digest()
    packed = PackedText(digest, len(data), sqlite_file.pack_content(data))
    fields = _fields(capture, params, given, counts)
    return _Imported(CapturedDelta(counts, None, None, digest.hex()), packed, fields, capture.secrets)


def _fields(capture: Capture, params: wire.CommitImportParams, given: wire.ImportedDelta, counts: Counts) -> Fields:
    """The fields of a commit except provenance, with the secrets in its texts captured."""
    return Fields(
        version=VERSION,
        principal="",
        at=0,
        commit_type=given.commit_type,
        format=params.format,
        checkpoint=given.checkpoint,
        session=params.session,
        thread_id=capture.text(given.thread_id),
        message_count=counts.messages if given.message_count is None else given.message_count,
        token_count=counts.tokens if given.token_count is None else given.token_count,
        summary=capture.text(given.summary),
    )
