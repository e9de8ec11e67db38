"""Operations that write context commits. A sandbox may change the commits of its own sessions, and continue any commit
that it sees: see ``ctxd.commits.commit_reads``."""

from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from blake3 import blake3

from ctxd.clock import Clock
from ctxd.commits.commit import (
    VERSION,
    document,
    is_same,
    read_fields,
    require_writable,
    shown,
)
from ctxd.commits.commit_reads import CommitReads, CommitViewer
from ctxd.commits.delta_scan import checks_format, count_delta, delta_captured
from ctxd.commits.scan_process import DELTA_BYTES_MIN, FileInMemory, SandboxProcesses, ScanProcess
from ctxd.errors import CtxdError
from ctxd.formats.delta_formats import Counts
from ctxd.objects.commit_document import REVISION, Fields, commit_hash, commit_id, entity_id, ids_of
from ctxd.objects.document import Artifact, Content, Document, Stored, decode_content, encode_content
from ctxd.objects.generated_ids import names_commit
from ctxd.objects.version_state import is_purged
from ctxd.secrets.redaction import Capture, Guard
from ctxd.sessions.live_session import (
    Accepted,
    SessionLock,
    WriteRequest,
    find_replay,
    kept_result,
)
from ctxd.sessions.operation_admission import require_may_backdate
from ctxd.sessions.registry import Sessions
from ctxd.sessions.secret_redaction import off_loop
from ctxd.sessions.session_loading import batched
from ctxd.store import commit_index, purge
from ctxd.store.commit_index import CommitFilter
from ctxd.store.write_types import PurgeRequest, Replay, Write
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.methods import commits as wire
from ctxd_protocol.object_types import Receipt
from ctxd_protocol.secret_types import SecretPolicy, Secrets

DELTA_BYTES_MAX: Final = 256 * 1024 * 1024
"""Maximum bytes of a delta."""


class NewCommit(NamedTuple):
    """A commit to make: its delta, and its fields except instant, machine, parent and depth."""

    delta: bytes
    fields: Fields


class CapturedDelta(NamedTuple):
    """A delta in the form to be kept, and its address. ``content`` is None if it is only in the artifact store."""

    counts: Counts
    content: Content | None
    artifact: Artifact | None
    ref: str


class _KeptCommit(msgspec.Struct, frozen=True, array_like=True):
    """Stored result of a write, for a resend; the rest of the result is read again then."""

    commit: str
    is_written: bool = True


_DISCARDED_AT_ONCE: Final = 128
"""Commits discarded per write, which delays other writes by a few milliseconds."""

_Change = tuple[Stored, dict[str, Any]]
"""A version, and the changes to its payload."""


class Commits(CommitReads):
    """The commits of one store. ``machine``: the name of this host. ``policy``: the secret policy of commits without a
    session."""

    def __init__(
        self,
        sessions: Sessions,
        clock: Clock,
        *,
        machine: str,
        policy: SecretPolicy,
    ) -> None:
        super().__init__(sessions)
        self.clock = clock
        self.machine = machine
        self._policy = policy
        self.deciding = SessionLock()
        """Held from the decision about the ids and depths of commits until they are submitted."""
        # A sandbox may craft deltas that take long to search; the host's deltas do not wait for those.
        self._process, self._sandboxes = ScanProcess(), SandboxProcesses()

    def close(self) -> None:
        """End the processes that search large deltas. Blocks until they have ended."""
        self._process.close()
        self._sandboxes.close()

    # --- writes ---

    async def checkpoint(self, viewer: CommitViewer, params: wire.CheckpointParams, call: WriteRequest) -> Accepted:
        """Write a commit.

        The delta is durable with it. An existing commit is not written again; a different one with the same id gets a
        longer id. Raises: CtxdError ``commit_not_found`` for the parent, ``session_not_found``, ``session_removed``,
        ``invalid_params``, ``unsupported``, and those of the store. Cancel: safe until it is written.
        """
        policy = self.policy_of(params.session)
        if params.valid_time is not None:
            require_may_backdate(viewer.actor)
        if [params.delta, params.delta_base64, params.artifact].count(None) != 2:
            message = "exactly one of delta, delta_base64 and artifact is required"
            hint = "delta is text, delta_base64 is bytes, artifact is the address of bytes that are stored."
            raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
        held = await self._held(viewer, params)
        capture = Capture(self._guard(viewer, params.session), policy)
        given = _content_of(params) if held is None else held
        is_counted = params.message_count is not None and params.token_count is not None
        kept = await self.captured(capture, params.format, given, sandbox=viewer.sandbox, is_counted=is_counted)
        fields = self._fields(capture, params, kept.counts)
        async with self.deciding:
            if (replay := await find_replay(self.store, call)) is not None:
                return await self._again(viewer, replay)
            if params.valid_time is not None:
                self.store.require_past((params.valid_time,))
            self.require_kept(params.session)
            depth = 0
            if params.parent is not None:
                depth = read_fields(await self.find(viewer, params.parent)).depth + 1
            now = max(self.clock.wall_ms(), self.store.newest_valid_time)
            at = now if params.valid_time is None else params.valid_time
            fields = msgspec.structs.replace(
                fields, principal=viewer.actor.principal, machine=self.machine, at=at, depth=depth
            )
            commit, there = await self.free_id(fields, kept.ref)
            if there is not None:
                return await self._unchanged(viewer, call, there)
            made = msgspec.structs.replace(
                document(commit, fields, kept.ref, capture.secrets), content=kept.content, artifact=kept.artifact
            )
            times = {} if params.valid_time is None else {made.id: at}
            return self._submit(viewer, call, [made], {made.id: kept.ref}, valid_times=times)

    async def _held(self, viewer: CommitViewer, params: wire.CheckpointParams) -> Artifact | None:
        """A hold on the artifact that is the delta; None if ``params`` have none. Raises: CtxdError."""
        if params.artifact is None:
            return None
        if viewer.is_confined:
            message = "artifact is only allowed on host connections; a sandbox must send the delta inline"
            raise CtxdError("invalid_params", message, hint="Send delta or delta_base64.", outcome="not_applied")
        held = await self.store.hold_artifact(params.artifact)
        if held.size > DELTA_BYTES_MAX:
            message = f"the delta has {held.size:,} bytes; the maximum is {DELTA_BYTES_MAX:,}"
            raise CtxdError("too_large", message, hint="Commit it in several parts.", outcome="not_applied")
        return held

    async def captured(
        self, capture: Capture, format: str, given: Content | Artifact, *, sandbox: str | None, is_counted: bool = False
    ) -> CapturedDelta:
        """The delta ``given`` in the form to be kept, durable if it is large. Adds its secrets to the findings of
        ``capture``. ``is_counted``: the caller has counted it, so a small delta is not counted again.

        Raises: CtxdError ``invalid_params``, ``unsupported``; ``too_large`` and ``internal_error`` of the process that
        searches it; those of the store. Cancel: waits for the search.
        """
        size = given.size if isinstance(given, Artifact) else len(given)
        if size < DELTA_BYTES_MIN:
            plain = decode_content(await self.store.get_artifact(given.ref)) if isinstance(given, Artifact) else given

            def work() -> tuple[Counts, Content]:
                if is_counted and checks_format(format):
                    return Counts(0, 0), delta_captured(capture, format, plain)
                return count_delta(format, plain), delta_captured(capture, format, plain)

            counts, content = await off_loop(size, work, sandbox=sandbox)
            held = given if isinstance(given, Artifact) and content is plain else await self.store.keep_content(content)
            return CapturedDelta(counts, content, held, _ref_of(content, held))
        with await self._in_memory(given) as file:
            if sandbox is None:
                counts, redacted = await self._process.captured(capture, format, file)
            else:
                async with self._sandboxes.of(sandbox) as process:
                    counts, redacted = await process.captured(capture, format, file)
        if redacted is None:
            if isinstance(given, Artifact):
                return CapturedDelta(counts, None, given, given.ref)
            held = await self.store.keep_content(given)
            return CapturedDelta(counts, given, held, _ref_of(given, held))
        with redacted:
            if redacted.size > CONTENT_INLINE_BYTES_MAX:
                held = await self.store.put_artifact(redacted.pieces)
                return CapturedDelta(counts, None, held, held.ref)
            content = decode_content(b"".join(redacted.pieces()))
            return CapturedDelta(counts, content, None, _ref_of(content, None))

    async def _in_memory(self, given: Content | Artifact) -> FileInMemory:
        """The bytes of a large delta in a file for the child process. Raises: those of the store."""
        if isinstance(given, Artifact):
            ref = given.ref
            return await self.store.read_artifacts(lambda artifacts: FileInMemory(artifacts.pieces(ref)))
        return await off_loop(len(given), lambda: FileInMemory((encode_content(given),)))

    def _fields(self, capture: Capture, params: wire.CheckpointParams, counts: Counts) -> Fields:
        """The fields of a commit save provenance, the secrets in its texts captured."""
        messages, tokens = counts
        return Fields(
            version=VERSION,
            principal="",
            at=0,
            commit_type=params.commit_type,
            format=params.format,
            checkpoint=params.checkpoint,
            parent=params.parent or "",
            session=params.session,
            template=capture.text(params.template) or None,
            ticket_id=capture.text(params.ticket_id),
            thread_id=capture.text(params.thread_id),
            message_count=messages if params.message_count is None else params.message_count,
            token_count=tokens if params.token_count is None else params.token_count,
            summary=capture.text(params.summary),
        )

    async def append(
        self, parent: str | None, new: Sequence[NewCommit], call: WriteRequest, *, unless: Callable[[], bool]
    ) -> bool:
        """Write ``new`` as a chain of commits after ``parent``, all or none, and wait until they are durable. Returns:
        False, with nothing written, if ``unless()``. Raises: those of the store."""
        captured: list[tuple[NewCommit, CapturedDelta, Secrets | None]] = []
        for one in new:
            capture = Capture(self._sessions.guard, self.policy_of(one.fields.session))
            kept = await self.captured(capture, one.fields.format, decode_content(one.delta), sandbox=None)
            captured.append((one, kept, capture.secrets))
        async with self.deciding:
            at = max(self.clock.wall_ms(), self.store.newest_valid_time)
            head = None if parent is None else await self._head(parent)
            depth = -1 if head is None else read_fields(head).depth
            made: list[Document] = []
            for one, kept, secrets in captured:
                depth += 1
                fields = msgspec.structs.replace(
                    one.fields, at=at, machine=self.machine, parent=parent or "", depth=depth
                )
                parent, there = await self.free_id(fields, kept.ref)
                if there is None:
                    plain = document(parent, fields, kept.ref, secrets)
                    made.append(msgspec.structs.replace(plain, content=kept.content, artifact=kept.artifact))
            if unless():
                return False
            pending = self.store.submit(Write(kind=call.kind, principal=call.principal, puts=tuple(made)))
        await pending.wait()
        return True

    async def annotate(self, viewer: CommitViewer, params: wire.CommitAnnotateParams, call: WriteRequest) -> Accepted:
        """Set the summary of a commit. Raises: CtxdError ``commit_not_found``, ``unsupported``; those of the store."""
        async with self.deciding:
            if (replay := await find_replay(self.store, call)) is not None:
                return await self._again(viewer, replay)
            (stored,) = await self._current(viewer, params.commit)
            fields = read_fields(stored)
            capture = Capture(self._guard(viewer, fields.session), self.policy_of(fields.session))
            summary = capture.text(params.summary)
            if summary == fields.summary:
                return await self._unchanged(viewer, call, stored)
            return self._rewrite(viewer, call, [(stored, {"summary": summary})])

    async def tag(self, viewer: CommitViewer, params: wire.CommitTagParams, call: WriteRequest) -> Accepted:
        """Set or remove a tag of a commit. Among the commits of one principal and session, at most one has a given tag.

        Raises: CtxdError ``tag_conflict`` if a commit other than ``expected`` has it, ``invalid_params`` for a new tag
        that names another commit, ``commit_not_found``, ``unsupported``; those of the store.
        """
        async with self.deciding:
            if (replay := await find_replay(self.store, call)) is not None:
                return await self._again(viewer, replay)
            _require_tag(params)
            fields = read_fields(await self.find(viewer, params.commit))
            same = CommitFilter(
                tag=params.tag,
                principal=fields.principal,
                session=fields.session,
                without_session=fields.session is None,
            )
            places = await self.store.read_index(lambda connection: commit_index.list_commits(connection, same, 1))
            stored, *holders = await self._current(viewer, params.commit, *(commit_id(place.id) for place in places))
            has = commit_id(holders[0].document.id) if holders else ""
            if params.expected is not None and has != params.expected:
                message = f"tag {params.tag} is on {has or 'no commit'}"
                message += f", not on {params.expected}" if params.expected else ""
                raise CtxdError(
                    "tag_conflict",
                    message,
                    hint="Read the tag, then send the call with its current commit as expected.",
                    outcome="not_applied",
                )
            if (has == params.commit) is not params.remove:
                return await self._unchanged(viewer, call, stored)
            mine = set(read_fields(stored).tags or ()) ^ {params.tag}
            changes: list[_Change] = [(stored, {"tags": sorted(mine)})]
            if holders and not params.remove:
                left = [tag for tag in read_fields(holders[0]).tags or () if tag != params.tag]
                changes.append((holders[0], {"tags": left}))
            return self._rewrite(viewer, call, changes)

    async def discard(self, viewer: CommitViewer, params: wire.CommitDiscardParams) -> wire.CommitDiscardResult:
        """Destroy the deltas and summaries of commits, some at a time, each durable before the next.

        Texts that other entities have stay. Raises: CtxdError ``commit_not_found``, with nothing destroyed; those of
        the store. Cancel: some may be destroyed; repeat the call to continue.
        """
        heads = await self.find_all(viewer, [entity_id(commit) for commit in params.commits])
        left = [stored.document.id for stored in heads if not is_purged(stored.document)]
        for some in batched(left, _DISCARDED_AT_ONCE):
            async with self.deciding:
                # ``reclaimed`` is empty, so no session's objects are purged with the commits.
                asked = PurgeRequest(some, str, reclaimed="")
                write = Write(kind=purge.KIND, principal=viewer.actor.principal, purge=asked)
                pending = self.store.submit(write)
            await pending.wait()
        if left:
            await self.store.purge_residue()
        return wire.CommitDiscardResult(discarded=len(left))

    async def _current(self, viewer: CommitViewer, *commits: str) -> list[Stored]:
        """The newest versions of ``commits``, once no purge is running: a write submitted before the next await can
        still refer to their contents. Raises: as ``find``."""
        while True:
            found = [await self.find(viewer, commit) for commit in commits]
            for stored in found:
                if not viewer.owns(stored):
                    commit = commit_id(stored.document.id)
                    message = f"commit {commit} is inherited from the parent session and is read-only here"
                    raise CtxdError("invalid_params", message, hint="Change your own commits.", outcome="not_applied")
            if not self.store.is_purging():
                return found
            await self.store.wait_for_writes()

    def policy_of(self, session: str | None) -> SecretPolicy:
        """The secret policy of the commits of ``session``. Raises: CtxdError ``session_not_found``."""
        # The commits of a session outlive its final removal.
        if session is None or session in self._sessions.emptied:
            return self._policy
        return self._sessions.catalog.settings(session).secrets

    def _guard(self, viewer: CommitViewer, session: str | None) -> Guard:
        # Tags of a sandbox's texts are its own: see ``Guard.by``.
        return self._sessions.guard.by(session or "") if viewer.is_confined else self._sessions.guard

    def require_kept(self, session: str | None) -> None:
        """Raises: CtxdError ``session_removed`` if ``session`` is in the trash or was removed for good."""
        if session in self._sessions.emptied:
            message, hint = f"session {session} was removed for good", "Use another session."
            raise CtxdError("session_removed", message, hint=hint, outcome="not_applied")
        if session is not None and self._sessions.catalog.state(session) == "removed":
            message, hint = f"session {session} is in the trash", "Call session.restore first."
            raise CtxdError("session_removed", message, hint=hint, outcome="not_applied")

    async def free_id(self, fields: Fields, ref: str, *, taken: Container[str] = ()) -> tuple[str, Stored | None]:
        """The shortest id that no other commit has and that is not in ``taken``; and the commit itself if it exists."""
        for commit in ids_of(fields, ref):
            head = await self._head(commit)
            if head is None and entity_id(commit) not in taken:
                return commit, None
            if head is not None and head.content_ref == ref and is_same(fields, read_fields(head)):
                return commit, head
        raise CtxdError("internal_error", "no id is free for the commit", outcome="not_applied")

    def _rewrite(self, viewer: CommitViewer, call: WriteRequest, changes: Sequence[_Change]) -> Accepted:
        """Write new versions of commits, read by ``_current``, with changed metadata. The first one is the result."""
        made: list[Document] = []
        for stored, change in changes:
            require_writable(commit_id(stored.document.id), read_fields(stored))
            before = stored.document.payload
            payload = {**before, **change, REVISION: before.get(REVISION, 0) + 1}
            if payload.get("summary"):
                # For a purged commit: its new summary can be purged too.
                payload.pop("purged", None)
            hashed = commit_hash(payload, stored.content_ref)
            made.append(msgspec.structs.replace(stored.document, payload=payload, content_hash=hashed))
        refs = {stored.document.id: stored.content_ref for stored, _ in changes}
        floor_vt = max(stored.valid_time for stored, _ in changes) + 1
        unchanged = {id: ref for id, ref in refs.items() if ref is not None}
        return self._submit(viewer, call, made, refs, floor_vt=floor_vt, unchanged=unchanged)

    def _submit(
        self,
        viewer: CommitViewer,
        call: WriteRequest,
        made: Sequence[Document],
        refs: Mapping[str, str | None],
        *,
        floor_vt: int = 0,
        valid_times: Mapping[str, int] = {},
        unchanged: Mapping[str, str] = {},
    ) -> Accepted:
        first = made[0]
        write = Write(
            kind=call.kind,
            principal=call.principal,
            op_id=call.op_id,
            request=call.request,
            result=kept_result(call, _KeptCommit(commit_id(first.id))),
            puts=tuple(made),
            floor_vt=floor_vt,
            valid_times=valid_times,
            unchanged=unchanged,
        )
        pending = self.store.submit(write)
        call.submitted = True
        plain = msgspec.structs.replace(first, content=None, artifact=None)

        def result(receipt: Receipt | None) -> wire.CommitResult:
            stored = Stored(
                document=plain, content_ref=refs[first.id], valid_time=pending.vt, tx=pending.seq, tx_time=pending.vt
            )
            return wire.CommitResult(commit=shown(stored, confined=viewer.is_confined), receipt=receipt)

        return Accepted(pending, result)

    async def _unchanged(self, viewer: CommitViewer, call: WriteRequest, stored: Stored) -> Accepted:
        """The result of a call that left ``stored`` unchanged; a resend of the call finds it too."""
        result = wire.CommitResult(commit=shown(stored, confined=viewer.is_confined), receipt=None)
        if call.op_id is None:
            # The version may not be durable yet.
            await self.store.wait_for_writes()
            return Accepted(None, lambda _: result)
        kept = _KeptCommit(commit_id(stored.document.id), is_written=False)
        # Write only the operation, without a version.
        write = Write(
            kind=call.kind,
            principal=call.principal,
            op_id=call.op_id,
            request=call.request,
            result=kept_result(call, kept),
        )
        pending = self.store.submit(write)
        call.submitted = True
        return Accepted(pending, lambda _: result)

    async def _again(self, viewer: CommitViewer, replay: Replay) -> Accepted:
        kept = msgspec.json.decode(replay.result, type=_KeptCommit)
        commit = shown(await self.find(viewer, kept.commit), confined=viewer.is_confined)

        def result(receipt: Receipt | None) -> wire.CommitResult:
            return wire.CommitResult(commit=commit, receipt=(receipt or replay.receipt) if kept.is_written else None)

        return Accepted(replay.pending, result)


def _ref_of(content: Content, artifact: Artifact | None) -> str:
    """The address of ``content``, which is in ``artifact`` if it is large."""
    return blake3(encode_content(content)).hexdigest() if artifact is None else artifact.ref


def _content_of(params: wire.CheckpointParams) -> Content:
    """The delta in ``params``. Raises: CtxdError ``invalid_params`` for an empty one."""
    content: Content
    if params.delta is not None:
        content = params.delta
    else:
        try:
            content = decode_content(b64decode(params.delta_base64 or "", validate=True))
        except (Base64Error, ValueError) as error:
            raise CtxdError("invalid_params", f"delta_base64 is not base64: {error}", outcome="not_applied") from error
    if not content:
        raise CtxdError(
            "invalid_params", "the delta is empty", hint="Commit at least one new event.", outcome="not_applied"
        )
    return content


def _require_tag(params: wire.CommitTagParams) -> None:
    """Raises: CtxdError invalid_params for a new tag that clients would take for another name of a commit. An earlier
    version accepted such tags: they can be removed."""
    if names_commit(params.tag) and not params.remove:
        meaning = "the newest commit" if params.tag == "HEAD" else "a commit id"
        message = f"{params.tag} cannot be a tag: it is {meaning}"
        hint = "Choose another name, without the form of a commit id."
        raise CtxdError("invalid_params", message, hint=hint, outcome="not_applied")
