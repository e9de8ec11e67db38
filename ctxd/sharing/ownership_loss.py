"""Ownership loss: fences the writes made after another host claimed a session, and saves them as a branch.

The projection detects them: the node rejects a batch with such a row. Promise: no acknowledged write of a lost session
is lost, even if the session returns before its loss is detected; an interrupted branch is completed, not restarted.
"""

from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from typing import Final

import anyio
import msgspec

from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.commit_document import STORED_NAMES, commit_hash
from ctxd.objects.document import AsOf, Document, Page, Stored
from ctxd.objects.generated_ids import assemblies_prefix, entries_prefix, segments_prefix
from ctxd.observe.logs import LogEvent
from ctxd.projection.owner_record import Owner
from ctxd.projection.ownership_checks import NO_ROW, Fence, Ownership, OwnershipLost, fence_document
from ctxd.sessions.live_session import WriteRequest
from ctxd.sessions.registry import Sessions
from ctxd.sessions.session_loading import batched
from ctxd.sessions.session_settings import SessionSettings
from ctxd.sessions.sessions_elsewhere import MovedSession
from ctxd.sessions.stored_session import read_head
from ctxd.sharing.session_import import LocalSession, dated, import_session, read_destination, read_history, tip_of
from ctxd.sharing.shared_log import SharedLog, unavailable
from ctxd.store.write_types import Write
from ctxd_protocol.ids import session_object_id, system_prompt_id

SETTLE_S: Final = 1.0
"""Seconds between two attempts to write a fence."""

CLAIM_WAIT_S: Final = 5.0
"""Seconds for which a claim waits until the rows written here are projected or fenced."""

_COMMITS_AT_ONCE: Final = 64
_LOOK_S: Final = 0.05
_SESSION_CHARS: Final = 96
"""Maximum characters from a session's id in its branch's id, which with its suffix must fit an id."""


class OwnershipLoss:
    """Sessions of this host that other hosts have claimed."""

    def __init__(
        self, sessions: Sessions, log: SharedLog, ownership: Ownership, clock: Clock, *,
        projected: Callable[[], int], log_event: LogEvent,
    ) -> None:  # fmt: skip
        """``projected``: returns the newest journal row that the node is known to have."""
        self._sessions = sessions
        self._store = sessions.store
        self._log = log
        self._ownership = ownership
        self._clock = clock
        self._projected = projected
        self._log_event = log_event
        self._imported: dict[str, int] = {}

    async def refuse_writes_again(self) -> dict[str, int]:
        """Refuse writes to each session that has not returned since its last fence.

        Returns: by session, the token of this host's claim, if it was not imported yet.
        """
        fences = self._ownership.fences
        ids = {session: str(session_object_id(session)) for session in fences.sessions}
        heads = await self._store.heads(ids.values())
        tokens: dict[str, int] = {}
        for session, id in ids.items():
            if (newest := fences.newest(session)) is None:
                continue
            (fence, seq), head = newest, heads[id]
            if head is None or head.tx <= seq:
                self._sessions.moved_sessions[session] = MovedSession(fence.host, fence.branch)
            elif not read_head(head).entering:
                continue
            if fence.first == NO_ROW:
                tokens[session] = fence.token
        return tokens

    async def note_claim(self, session: str, host: str, token: int) -> None:
        """Refuse writes to ``session``, which ``host`` owns, until it is imported under ``token``, even after a
        restart: a write to its former state here would replace everything written elsewhere.

        Raises: CtxdError of the store. Cancel: safe.
        """
        moved = self._sessions.moved_sessions.get(session)
        branch = None if moved is None else moved.branch
        await self._put(Fence(session=session, first=NO_ROW, branch=branch, host=host, token=token))

    async def wait_until_projected(self, session: str) -> None:
        """Wait until every row of ``session`` written here is at the node, or fenced.

        Raises: CtxdError store_unavailable after ``CLAIM_WAIT_S``: the node does not keep up. Cancel: safe.
        """
        with anyio.move_on_after(CLAIM_WAIT_S):
            while await self.is_behind(session):
                await self._clock.sleep(_LOOK_S)
            return
        why = f"rows of session {session} that were written here are still on their way to it"
        raise unavailable(f"the current owner of session {session}", why)

    async def is_behind(self, session: str) -> bool:
        """True if a row of ``session`` written here is neither at the node nor fenced."""
        newest = await self.newest_row(session)
        return newest > self._projected() and newest > self._fenced(session)

    async def newest_row(self, session: str) -> int:
        """Return the newest journal row of ``session``; 0 without one."""
        found = (await self._store.heads((str(session_object_id(session)), str(system_prompt_id(session))))).values()
        newest = [stored.tx for stored in found if stored is not None]
        for prefix in (segments_prefix(session), assemblies_prefix(session)):
            newest += [stored.tx for stored in await self._store.scan(prefix, page=Page(limit=1, ascending=False))]
        return max(newest, default=0)

    def refuse_writes(self, session: str, host: str) -> None:
        """Refuse writes to ``session``, which ``host`` owns, from now on. Late rows are fenced when the projection
        reaches them."""
        moved = self._sessions.moved_sessions
        if session in moved:
            moved[session] = MovedSession(host, moved[session].branch)
        elif session in self._sessions.catalog:
            moved[session] = MovedSession(host, None)
            self._sessions.unload(session)

    def require_kept(self, session: str, row: int) -> None:
        """Raises: CtxdError session_owned_elsewhere if ``session`` was lost since journal row ``row``."""
        newest = self._ownership.fences.newest(session)
        if newest is not None and newest[1] > row:
            raise self._sessions.moved_sessions[session].error(session)

    def note_import(self, session: str, seq: int) -> None:
        """Record that ``session`` was imported up to row ``seq``: rows up to it are copies."""
        self._imported[session] = seq

    def _fenced(self, session: str) -> int:
        """Return the journal row of the last fence of ``session``; 0 without one."""
        newest = self._ownership.fences.newest(session)
        return 0 if newest is None else newest[1]

    async def settle(self, lost: OwnershipLost) -> None:
        """Fence every session in ``lost``, and save the rows written here as a branch."""
        for session, owner in lost.sessions.items():
            try:
                await self._fence(session, owner, lost.first)
            except CtxdError as error:
                self._log_event("sharing.fence_not_written", {"session": session, "reason": error.message})
                await self._clock.sleep(SETTLE_S)
                return

    async def _fence(self, session: str, owner: Owner, first: int) -> None:
        with suppress(CtxdError):
            await self._log.learn_lease(owner.writer)
        host = self._log.heartbeat.host(owner.writer)
        branch = self._branch_id(session)
        self._sessions.moved_sessions[session] = MovedSession(host, branch)
        self._sessions.unload(session)
        await self._store.wait_for_writes()
        kept = branch if await self._keep_branch(session, branch, first) else None
        self._sessions.moved_sessions[session] = MovedSession(host, kept)
        fence = Fence(session=session, first=first, branch=kept, host=host, token=owner.token)
        await self._put(fence)
        self._log_event("sharing.lost", {"session": session, "to": host, "branch": kept})

    async def _put(self, fence: Fence) -> None:
        write = Write(kind="session.fence", principal="daemon", puts=(fence_document(fence),))
        receipt = await self._store.submit(write).wait()
        self._ownership.fences.add(fence, receipt.seq)

    async def _keep_branch(self, session: str, branch: str, first: int) -> bool:
        """Copy ``session`` to ``branch`` if it was written to here from row ``first`` on. Returns: True if there is a
        branch."""
        if branch in self._sessions.catalog:
            await self._rebase_forks(session, branch, first)
            return True
        if session not in self._sessions.catalog or not await self._has_writes(session, first):
            return False
        await self._move_commits(session, branch, first)
        source = LocalSession(self._store)
        history = await read_history(source, session)
        if history is None:
            return False
        ordinal = self._sessions.next_ordinal()
        destination = await read_destination(self._store, history, branch, self._ownership.fences, ordinal=ordinal)
        pending = await import_session(
            self._store, source, history, destination, kind="session.branch", principal="daemon"
        )
        await pending.wait()
        await self._rebase_forks(session, branch, first)
        return True

    async def _move_commits(self, session: str, branch: str, first: int) -> None:
        """Move the commits of ``session`` from row ``first`` on to ``branch``: other hosts continue from an earlier
        one."""
        source = LocalSession(self._store)
        commits = await source.newest(await source.commits_of(session))
        first = max(first, self._imported.get(session, 0) + 1)
        late = [each.stored for each in await dated(source, commits.values()) if each.made >= first]
        for some in batched((stored.document.id for stored in late), _COMMITS_AT_ONCE):
            heads = await source.newest(some)
            while self._store.is_purging():
                await self._store.wait_for_writes()
                heads = await source.newest(some)
            puts = [_of_session(head, branch) for head in heads.values()]
            write = Write(
                kind="session.branch", principal="daemon", puts=tuple(puts),
                floor_vt=max(head.valid_time for head in heads.values()) + 1,
                unchanged={id: head.content_ref for id, head in heads.items() if head.content_ref is not None},
            )  # fmt: skip
            await self._store.submit(write).wait()

    async def _rebase_forks(self, session: str, branch: str, first: int) -> None:
        """Rebase the forks of ``session`` that share rows from ``first`` on to ``branch``, which has equal rows: those
        of the session are replaced when it returns."""
        source = LocalSession(self._store)
        for fork in self._sessions.catalog.forks(session):
            base = self._sessions.catalog.settings(fork).base
            if base is None or base.session != session or base.tx < first or fork in self._sessions.moved_sessions:
                continue
            head = self._store.head()
            assert head is not None, "the branch was written"
            tip = await tip_of(source, fork, branch)
            live = await self._sessions.live(fork)
            async with live.lock:
                live.require_current()
                settings = msgspec.structs.replace(
                    live.settings,
                    base=msgspec.structs.replace(base, session=branch, tx=head.seq),
                    continues=live.settings.continues if tip is None else tip,
                )
                pending = live.submit(WriteRequest("session.branch", "daemon"), settings=settings)
            await pending.wait()
            self._sessions.unload(fork)

    async def _has_writes(self, session: str, first: int) -> bool:
        """True if rows from ``first`` on change more of ``session`` than its state, and are not copies."""
        first = max(first, self._imported.get(session, 0) + 1)
        prompt, head = str(system_prompt_id(session)), str(session_object_id(session))
        newest = [*(await self._store.heads((prompt,))).values(), *await self._store.scan(entries_prefix(session))]
        for prefix in (segments_prefix(session), assemblies_prefix(session)):
            newest += await self._store.scan(prefix, page=Page(limit=1, ascending=False))
        if any(stored is not None and stored.tx >= first for stored in newest):
            return True
        now, before = (await self._store.heads((head,)))[head], await self._store.get(head, AsOf(tx=first - 1))
        return now is not None and now.tx >= first and (before is None or _lasting(now) != _lasting(before))

    def _branch_id(self, session: str) -> str:
        """Return the id of the next branch: the same after an interruption, and another one after each fence."""
        name = session
        if len(session) > _SESSION_CHARS:
            # Sessions that begin alike have different branches.
            name = f"{session[: _SESSION_CHARS - 9]}.{sha256(session.encode()).hexdigest()[:8]}"
        return f"{name}@{self._store.writer[:8]}.{self._ownership.fences.count(session) + 1}"


def _of_session(stored: Stored, session: str) -> Document:
    """Return the commit ``stored`` as one of ``session``."""
    # The member ``tags``, even empty, marks a commit with several versions: see ``dated``.
    payload = {"tags": [], **stored.document.payload, STORED_NAMES["session"]: session}
    hashed = commit_hash(payload, stored.content_ref)
    return msgspec.structs.replace(stored.document, payload=payload, content_hash=hashed)


def _lasting(head: Stored) -> SessionSettings:
    """Return the settings of ``head`` without those that a pause or a resume changes."""
    return msgspec.structs.replace(read_head(head).settings, state="active", ordinal=0)
