"""Versions of shared files that a session in a sandbox may see.

A file is one object for all sessions, but must not reveal to a sandbox content that others read earlier, or with rights
that it lacks. A sandbox's session sees a shared file only once the file is in its index (first sight), and then:

- the version that was the newest at first sight, dated to that moment: the daemon compared it with the file then, under
  the sandbox's mounts and rights;
- versions that the session itself wrote;
- versions captured while the sandbox is registered, as its mounts and its user then limit every read by the daemon; but
  not versions written at a past valid time, which are imported history;
- the newest version, if the file has the same content now, under the sandbox's mounts and rights.

All this is derived from the journal, the registration and the file, so that a restart changes no result. State in
memory only caches look-ups.
"""

from collections.abc import Iterable
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexed, Indexer
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import NOW, AsOf, Page, Stored
from ctxd.objects.generated_ids import segment_id, segments_prefix
from ctxd.sessions.live_session import LiveSession
from ctxd.sessions.session_loading import decoded
from ctxd.sessions.session_state import SessionState
from ctxd.sessions.stored_session import ENTERING, ActivateObjects
from ctxd.store.version_store import VersionStore
from ctxd_protocol.context_types import Block
from ctxd_protocol.methods.files import FileIndexResult
from ctxd_protocol.object_types import filesystem_source

CONFIRMED_MAX: Final = 10_000
"""Versions cached as visible to their sandbox; the oldest are evicted and looked up again."""

_SEGMENTS_AT_ONCE: Final = 32


class _FirstSights:
    """Number of the segment that brought each object into a session's index, up to segment ``upto``."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.upto = 0


class _Cleared:
    """Files whose newest version was visible under ``mounts`` and ``since``: all later versions are visible too; and
    single ``versions`` that were visible, by file and transaction."""

    def __init__(self, mounts: MountTable, since: int) -> None:
        self.mounts = mounts
        self.since = since
        self.ids: set[str] = set()
        self.versions: set[tuple[str, int]] = set()


class Visibility:
    """Decides which versions of files a session in a sandbox may see. Cancel: safe in all reads."""

    def __init__(self, store: VersionStore, indexer: Indexer | None) -> None:
        """``indexer`` compares a version with its file; with None, no version is confirmed that way."""
        self._store = store
        self._indexer = indexer
        self._registered: dict[str, dict[str, int]] = {}
        self._since: dict[str, int] = {}
        self._sights: WeakKeyDictionary[LiveSession, _FirstSights] = WeakKeyDictionary()
        self._cleared: WeakKeyDictionary[LiveSession, _Cleared] = WeakKeyDictionary()
        self._confirmed: dict[tuple[str, str, int], None] = {}

    # --- registrations

    def restrict(self, sandbox: str, sessions: Iterable[str], seq: int) -> None:
        """Restrict ``sessions`` from the registration of ``sandbox`` on; ``seq``: its journal sequence."""
        for session in sessions:
            known = self._registered.setdefault(session, {})
            known[sandbox] = seq
            self._since[session] = max(known.values())

    def lift(self, sandbox: str, sessions: Iterable[str]) -> None:
        """End the restriction by ``sandbox``; calls of the sandbox that are in flight stay restricted."""
        for session in sessions:
            known = self._registered.get(session, {})
            known.pop(sandbox, None)
            if known:
                self._since[session] = max(known.values())
            else:
                self._registered.pop(session, None)

    def restricts(self, session: str) -> bool:
        """Return True while a registered sandbox may use ``session``."""
        return session in self._registered

    def require_free_mounts(self, session: str) -> None:
        """Raises: CtxdError session_in_sandbox while a registered sandbox may use ``session``."""
        if self.restricts(session):
            raise CtxdError(
                "session_in_sandbox",
                f"session {session} belongs to a registered sandbox, whose mounts are fixed",
                hint="Release the sandbox, or register another one.",
                outcome="not_applied",
            )

    # --- versions

    def note_past(self, id: str) -> None:
        """Check again who may see ``id``: its newest version may now be one with a past valid time."""
        for cleared in self._cleared.values():
            cleared.ids.discard(id)

    async def shown(self, live: LiveSession, stored: Stored) -> Stored | None:
        """Return ``stored`` in the form that the sandbox of ``live`` sees, perhaps with other times; None if it may not
        see it.

        Raises: CtxdError corrupt, store_failed.
        """
        id, source = stored.document.id, stored.document.source
        if source is None or stored.document.type != "file":
            return stored
        number = await self._first_sight(live, id)
        if number is None:
            return None
        seen = live.seqs[number]
        if stored.tx < seen:
            return await self._dated(live, number, stored)
        if stored.tx == seen:
            return stored
        covered = _covers(live, stored)
        if covered and stored.tx >= self._since.get(live.session, 0) and not stored.is_backdated:
            return stored
        key = (live.session, id, stored.tx)
        if key not in self._confirmed:
            if not (await self._is_own(live, stored) or (covered and await self._is_confirmed(live, stored))):
                return None
            self._confirmed[key] = None
            if len(self._confirmed) > CONFIRMED_MAX:
                del self._confirmed[next(iter(self._confirmed))]
        return stored

    async def newest(
        self,
        live: LiveSession,
        stored: Stored | None,
        at: AsOf = NOW,
        *,
        content: bool = False,
    ) -> Stored | None:
        """Return the newest version that the sandbox of ``live`` may see, at or before ``stored``, the newest as of
        ``at``; None if it may see no version.

        Raises: CtxdError corrupt, store_failed.
        """
        while stored is not None:
            if (shown := await self.shown(live, stored)) is not None:
                return shown if at.includes(shown) else None
            stored = await self._before(live, stored, at, content=content)
        return None

    async def dated(self, live: LiveSession, blocks: tuple[Block, ...]) -> tuple[Block, ...]:
        """Return the ``blocks`` of a context, with each version from before the sandbox's first sight of its file
        redated to that; unchanged if there are none.

        Raises: CtxdError corrupt, store_failed.
        """
        times: dict[int, dict[str, int]] = {}
        made = list(blocks)
        for place, block in enumerate(blocks):
            if block.object is None or block.tx is None or not live.state.is_file(block.object):
                continue
            number = await self._first_sight(live, block.object)
            if number is None or block.tx >= live.seqs[number]:
                continue
            if number not in times:
                segment = await self._store.get(live.lineage.segment_id(number))
                assert segment is not None, "a session has its segments"
                times[number] = {"valid_time": segment.valid_time, "tx": segment.tx}
            made[place] = msgspec.structs.replace(block, **times[number])
        return tuple(made) if times else blocks

    async def hidden(self, live: LiveSession, ids: Iterable[str]) -> list[str]:
        """Return the files among ``ids`` whose newest version the sandbox of ``live`` may not see.

        Cost: one look-up for each id the first time, one set operation afterwards.
        """
        cleared = self._cleared_of(live)
        unchecked = live.state.files(set(ids) - cleared.ids)
        if not unchecked:
            return []
        found: list[str] = []
        for id, head in (await self._store.heads(unchecked)).items():
            if head is None:
                continue
            if await self.shown(live, head) is None:
                found.append(id)
            elif _covers(live, head):
                cleared.ids.add(id)
        return found

    async def shows(self, live: LiveSession, versions: Iterable[tuple[str, int, int]]) -> bool:
        """Return True if the sandbox of ``live`` may see all ``versions``: ids of objects, each with a valid time and a
        transaction.

        Cost: as ``hidden``. Raises: CtxdError corrupt, store_failed.
        """
        cleared = self._cleared_of(live)
        for id, valid_time, tx in versions:
            if not live.state.is_file(id) or (id, tx) in cleared.versions:
                continue
            stored = await self._store.get(id, AsOf(valid_time=valid_time, tx=tx))
            if stored is not None and await self.shown(live, stored) is None:
                return False
            cleared.versions.add((id, tx))
        return True

    def _cleared_of(self, live: LiveSession) -> _Cleared:
        since = self._since.get(live.session, 0)
        cleared = self._cleared.get(live)
        if cleared is None or cleared.mounts is not live.mounts or cleared.since != since:
            cleared = self._cleared[live] = _Cleared(live.mounts, since)
        return cleared

    async def _before(self, live: LiveSession, stored: Stored, at: AsOf, *, content: bool) -> Stored | None:
        """Return the version before ``stored``; None if ``stored`` is from before first sight, as all earlier versions
        are hidden."""
        number = await self._first_sight(live, stored.document.id)
        if number is None or stored.tx < live.seqs[number]:
            return None
        id, after = stored.document.id, (stored.valid_time, stored.tx)
        page = await self._store.history(id, at, Page(after=after, limit=1, ascending=False))
        if not page or not content:
            return page[0] if page else None
        return await self._store.get(id, AsOf(valid_time=page[0].valid_time, tx=page[0].tx), content=True)

    async def _dated(self, live: LiveSession, number: int, stored: Stored) -> Stored | None:
        """Return ``stored``, a version from before first sight, redated to it if it was the newest then; else None."""
        base = await self._store.get(stored.document.id, AsOf(tx=live.seqs[number]))
        if base is None or base.tx != stored.tx:
            return None
        segment = await self._store.get(live.lineage.segment_id(number))
        if segment is None:
            return None
        times = {"valid_time": segment.valid_time, "tx": segment.tx, "tx_time": segment.tx_time}
        return msgspec.structs.replace(stored, **times)

    async def _is_own(self, live: LiveSession, stored: Stored) -> bool:
        found = await self._store.changes(after=stored.tx - 1, limit=1)
        return any(change.seq == stored.tx and change.session == live.session for change in found)

    async def _is_confirmed(self, live: LiveSession, stored: Stored) -> bool:
        head = (await self._store.heads((stored.document.id,)))[stored.document.id]
        if self._indexer is None or head is None or head.tx != stored.tx:
            return False
        return await self._indexer.confirms(live.mounts, head.document)

    async def _first_sight(self, live: LiveSession, id: str) -> int | None:
        """Return the number of the segment that added ``id`` to the index; None if it is not in the index."""
        if id not in live.state.index:
            return None
        sights = self._sights.setdefault(live, _FirstSights())
        if id not in sights.numbers and sights.upto < live.state.segments:
            first, upto = sights.upto, live.state.segments
            # Read a few at a time: the chat of a long session may not fit in memory.
            while first < upto:
                part = live.lineage.holder(first)
                after = segment_id(part.session, first - 1) if first else ""
                page = Page(after=after, limit=min(_SEGMENTS_AT_ONCE, part.segments - first))
                stored = await self._store.scan(segments_prefix(part.session), page=page)
                for number, delta in enumerate(decoded(part.session, stored, first=first), first):
                    for operation in delta:
                        if isinstance(operation, (*ENTERING, ActivateObjects)):
                            for object in operation.objects:
                                sights.numbers.setdefault(object, number)
                if not stored:
                    break
                first += len(stored)
            sights.upto = max(sights.upto, upto)
        # A session that was imported whole, by a branch or a hand-over, begins with its index.
        return sights.numbers.get(id, 0)


def _covers(live: LiveSession, stored: Stored) -> bool:
    """Return False if ``stored`` is a host file that no mount of ``live`` contains, or its source is not a file."""
    source = stored.document.source
    if source is None:
        return True
    file = filesystem_source(source)
    if file is None:
        return False
    if file.filesystem_id != live.mounts.host_filesystem_id:
        return True
    return live.mounts.agent_path(file) is not None


def as_first_seen(
    state: SessionState, cause: str, result: FileIndexResult, indexed: Indexed
) -> tuple[FileIndexResult, Indexed]:
    """Return the result and the write for a sandbox that indexed a file. Neither depends on other sessions."""
    if indexed.outcome == "orphaned":
        # The file cannot be read now, and its newest version may be known to other sessions only.
        return msgspec.structs.replace(result, source_hash=None, char_count=0), indexed
    if indexed.object in state.read or indexed.outcome == "deleted":
        return result, indexed
    if indexed.object in state.index:
        return msgspec.structs.replace(result, outcome="updated"), indexed
    if cause == "check":
        # Nothing is written for a file that the session does not know, whether or not another session does.
        indexed = msgspec.structs.replace(indexed, document=None, signature=None)
    return msgspec.structs.replace(result, outcome="created"), indexed
