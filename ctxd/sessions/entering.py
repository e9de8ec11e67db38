"""A session taken in: read whole from where it is, and written to the journal of this store.

Where it is may be another host's part of XTDB, or this very journal under another id. Owns no rights: who may take
what is settled before. Promise: a break at any point leaves a session that is marked as entering, which is none as of
now, and taking it in again gives the whole.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Protocol, TypeVar

import anyio
from anyio.lowlevel import checkpoint
from anyio.to_thread import run_sync

from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.objects.identity import assemblies_prefix, is_file_id, segments_prefix
from ctxd.sessions.loading import SEGMENTS_INLINE_MAX
from ctxd.sessions.restating import Draft, Here, Past, Restating, aliases_of, entered
from ctxd.store.versions import VersionStore
from ctxd.store.writes import Pending
from ctxd_protocol.ids import session_object_id, system_prompt_id

TEXTS_AHEAD: Final = 64
"""Texts that are fetched together. Bounds what is held in memory of a session that is taken in."""

TEXTS_AHEAD_MAX: Final = 2_000
TEXTS_HELD_CHARS: Final = 1024 * 1024
"""Characters of texts fetched together up to which four times as many are fetched the next time."""

WAITING_MAX: Final = 512
"""Writes of one entering session that may wait for the disk: other sessions' calls queue behind no more."""

TURN: Final = 16
"""Writes that are made in a row, some milliseconds; then others have their turn."""

HISTORIES_AT_ONCE: Final = 16
_PAGE: Final = 1_000

T = TypeVar("T")


class Origin(Protocol):
    """One writer's versions, as of the moment in which the session was its for the last time."""

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """The newest version of each of ``ids``, without content; what has none is left out."""
        ...

    async def scan(self, prefix: str) -> list[Stored]:
        """The newest version of each entity with ``prefix``, by id, without content."""
        ...

    async def history(self, id: str) -> list[Stored]:
        """Every version of ``id``, oldest first, without content."""
        ...

    async def contents(self, refs: Iterable[str]) -> dict[str, str]:
        """Text by its ``content_ref``; what a purge took away everywhere is left out.

        Raises: CtxdError corrupt if it cannot be read or does not match its hash.
        """
        ...


class OwnJournal:
    """This store as an origin."""

    def __init__(self, store: VersionStore) -> None:
        self._store = store
        self.contents = store.contents

    async def newest(self, ids: Sequence[str]) -> dict[str, Stored]:
        """See ``Origin.newest``."""
        return {id: stored for id, stored in (await self._store.heads(ids)).items() if stored is not None}

    async def scan(self, prefix: str) -> list[Stored]:
        """See ``Origin.scan``."""
        return await self._store.scan(prefix)

    async def history(self, id: str) -> list[Stored]:
        """See ``Origin.history``."""
        found: list[Stored] = []
        while True:
            after = (found[-1].valid_time, found[-1].tx) if found else None
            page = await self._store.history(id, after=after, limit=_PAGE)
            found.extend(page)
            if len(page) < _PAGE:
                return found


async def past_of(origin: Origin, session: str) -> Past | None:
    """All that ``origin`` has of ``session``; null if it has none.

    Raises: CtxdError corrupt if it is not whole, and what ``origin`` raises. Cancel: safe.
    """
    heads = await origin.history(str(session_object_id(session)))
    if not heads:
        return None
    prompts = await origin.history(str(system_prompt_id(session)))
    segments = await origin.scan(segments_prefix(session))
    assemblies = await origin.scan(assemblies_prefix(session))
    index = await _apart(segments, lambda: entered(segments))
    newest = await origin.newest(list(index))
    if missing := next((id for id in index if id not in newest), None):
        raise CtxdError("corrupt", f"{missing} is in session {session}, but has no version where that is")
    # What has not changed since it entered has one version that matters.
    moved = [id for id, since in index.items() if newest[id].tx > since]
    histories = await _histories(origin, moved)
    objects = {id: tuple(histories.get(id) or (newest[id],)) for id in index}
    return Past(session, tuple(heads), tuple(prompts), tuple(segments), tuple(assemblies), objects)


async def _histories(origin: Origin, ids: Iterable[str]) -> dict[str, list[Stored]]:
    histories: dict[str, list[Stored]] = {}
    slots = anyio.Semaphore(HISTORIES_AT_ONCE)

    async def read(id: str) -> None:
        async with slots:
            histories[id] = await origin.history(id)

    try:
        async with anyio.create_task_group() as group:
            for id in ids:
                group.start_soon(read, id)
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return histories


async def here_of(
    store: VersionStore, past: Past, session: str, *, ordinal: int, filesystem: str = "", taken_up: bool = False
) -> Here:
    """What ``store`` has that matters when ``past`` becomes its ``session``.

    Raises: CtxdError corrupt, store_failed. Cancel: safe.
    """
    objects = await store.heads(past.objects)
    taken = [id for id, stored in objects.items() if stored is not None and not is_file_id(id)]
    aliases = await store.heads([alias for id in taken for alias in aliases_of(session, id)])
    old = [*await store.scan(segments_prefix(session)), *await store.scan(assemblies_prefix(session))]
    return Here(
        session=session,
        ordinal=ordinal,
        objects=objects,
        aliases=aliases,
        stale=tuple(stored.document.id for stored in old),
        filesystem=filesystem,
        taken_up=taken_up,
    )


async def enter(store: VersionStore, origin: Origin, past: Past, here: Here, *, kind: str, principal: str) -> Pending:
    """Write ``past`` as ``here`` says. Returns: the write that makes it whole; every one before it was accepted.

    Raises: CtxdError of ``origin``, ``toolcall_conflict``, and those of the store. Cancel: safe; see the module.
    """
    restating = await _apart(past.segments, lambda: Restating(past, here))
    drafts = restating.drafts()
    waiting: list[Pending] = []
    # A draft may be made only when the one before it has landed, but the text of many is fetched at once: which text
    # that is stands in the past.
    texts = _Texts(origin, past)
    while draft := next(drafts, None):
        pending = store.submit(draft.write(kind, principal, here.session, await texts.of(draft)))
        restating.landed(pending.seq, pending.vt)
        waiting.append(pending)
        if len(waiting) % TURN == 0:
            await checkpoint()
        if len(waiting) == WAITING_MAX:
            await waiting[-1].wait()
            waiting.clear()
    return waiting[-1] if waiting else pending


async def _apart(segments: Sequence[Stored], work: Callable[[], T]) -> T:
    """What ``work`` returns, done on a thread where there are many ``segments``: other sessions go on meanwhile."""
    return await run_sync(work) if len(segments) > SEGMENTS_INLINE_MAX else work()


class _Texts:
    """The texts of a past, fetched ahead in the order in which they are needed."""

    def __init__(self, origin: Origin, past: Past) -> None:
        self._origin = origin
        self._coming: Iterator[str] = iter(_refs(past))
        self._have: dict[str, str] = {}
        self._gone: set[str] = set()
        self._ahead = TEXTS_AHEAD

    async def of(self, draft: Draft) -> dict[str, str]:
        needed = [ref for _, ref in draft.documents if ref is not None and ref not in self._gone]
        if any(ref not in self._have for ref in needed):
            asked = dict.fromkeys((*needed, *islice(self._coming, self._ahead)))
            self._have = await self._origin.contents(asked)
            self._gone |= asked.keys() - self._have.keys()
            # Where texts are small, a trip for each few of them would take longer than everything else.
            small = sum(map(len, self._have.values())) <= TEXTS_HELD_CHARS
            self._ahead = min(TEXTS_AHEAD_MAX, 4 * self._ahead) if small else TEXTS_AHEAD
        return {ref: self._have[ref] for ref in needed if ref in self._have}


def _refs(past: Past) -> list[str]:
    """The texts of ``past`` by the write that they were of."""
    stored = [*past.prompts, *(version for versions in past.objects.values() for version in versions)]
    return [
        version.content_ref for version in sorted(stored, key=lambda each: each.tx) if version.content_ref is not None
    ]
