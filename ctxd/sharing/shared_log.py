"""One host's access to the log that several hosts share: owners, leases, and sessions of other hosts.

This module, and none above it, turns failures of the node into ``store_unavailable``.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME, from_doc
from ctxd.backends.xtdb.messages import Unknown, XtdbFailure
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.projection import owner_record
from ctxd.projection.owner_record import Owner
from ctxd.sessions.session_loading import batched
from ctxd.sharing.heartbeat import Heartbeat, is_committed
from ctxd.sharing.remote_session import RemoteSession
from ctxd.store.version_reads import to_stored
from ctxd_protocol.ids import session_object_id

ANSWER_S: Final = 3.0
"""Timeout in seconds of one query or step, after which the node counts as unavailable."""

SESSIONS_PER_REQUEST: Final = 1_000
"""Maximum sessions per request, which a loaded node serves well within ``ANSWER_S``. There may be any number."""

LEVEL_S: Final = 20.0
"""Seconds for which a resume waits for a node that is behind the log."""


class SharedLog:
    """The log behind one node. ``run`` must be running during all other calls. All calls raise CtxdError
    ``store_unavailable`` if the node does not respond in time; all may be cancelled."""

    def __init__(self, client: XtdbClient, heartbeat: Heartbeat) -> None:
        self._client = client
        self.heartbeat = heartbeat

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Renew this host's lease and observe the others' until cancelled; started once other calls are possible."""
        async with self._client:
            task_status.started()
            await self.heartbeat.run()

    # --- hosts ---

    async def left_s_for_certain(self, writer: str) -> float:
        """Return the seconds until the lease of ``writer`` expires. Before an expired lease is reported, it is checked
        against the current log: this host or its node may have been stalled and missed renewals."""
        await self.learn_lease(writer)
        if self.heartbeat.left_s(writer) <= 0:
            with _requesting("which hosts are alive", within_s=LEVEL_S):
                await self._client.sync(LEVEL_S)
                await self.heartbeat.look()
        return self.heartbeat.left_s(writer)

    async def look(self) -> None:
        """Read the leases of all hosts."""
        with _requesting("which hosts there are"):
            await self.heartbeat.look()

    async def learn_lease(self, writer: str) -> None:
        """Read the lease of ``writer`` unless it is known."""
        if writer not in self.heartbeat.leases:
            await self.look()

    # --- owners ---

    async def owner(self, session: str, *, newest: bool = False) -> Owner | None:
        """Return the owner of ``session``; ``None`` if it has none. ``newest``: wait until this host's node has
        everything that was in the log at the call."""
        with _requesting(f"the owner of session {session}", within_s=LEVEL_S if newest else ANSWER_S):
            if newest:
                await self._client.sync(LEVEL_S)
            return await self._owner(session)

    async def owners(self, sessions: Iterable[str] | None = None, *, newest: bool = False) -> dict[str, Owner]:
        """Return the owner of each of ``sessions`` (``None``: of all) that has one, by session. ``newest``: as for
        ``owner``."""
        if newest:
            with _requesting("the owners of sessions", within_s=LEVEL_S):
                await self._client.sync(LEVEL_S)
        ids = await self._owner_ids() if sessions is None else [owner_record.owner_id(each) for each in sessions]
        found: dict[str, Owner] = {}
        for some in batched(ids, SESSIONS_PER_REQUEST):
            with _requesting("the owners of sessions"):
                docs = await self._client.entities(some, valid_time=FIXED_VALID_TIME)
                owners = {id: owner_record.from_doc(doc) for id, doc in docs.items()}
            found |= {id.removeprefix(owner_record.PREFIX): owner for id, owner in owners.items() if owner is not None}
        return dict(sorted(found.items()))

    async def _owner_ids(self) -> list[str]:
        found: list[str] = []
        prefix, limit = owner_record.PREFIX, SESSIONS_PER_REQUEST
        while len(found) % limit == 0:
            after = found[-1] if found else None
            with _requesting("which sessions have an owner"):
                page = await self._client.ids(prefix, after=after, limit=limit, valid_time=FIXED_VALID_TIME)
            if not page:
                break
            found += page
        return found

    async def step(self, session: str, before: Owner | None, after: Owner) -> bool:
        """Renew this host's lease, then replace the owner by ``after`` if it still is ``before``. Returns: True if the
        owner is now ``after``. Repeating a step is safe."""
        with _requesting(f"whether session {session} changed hands"):
            await self.heartbeat.require_fresh()
            if await is_committed(self._client, owner_record.change(session, before, after)):
                return True
            return await self._owner(session) == after

    async def _owner(self, session: str) -> Owner | None:
        return owner_record.from_doc(
            await self._client.entity(owner_record.owner_id(session), valid_time=FIXED_VALID_TIME)
        )

    # --- sessions of other hosts ---

    async def heads(self, sessions: Iterable[str]) -> Mapping[str, Stored]:
        """Return the newest heads of ``sessions``, of any writer, by session."""
        found: dict[str, Stored] = {}
        for some in batched(sessions, SESSIONS_PER_REQUEST):
            ids = {str(session_object_id(session)): session for session in some}
            with _requesting("the heads of sessions"):
                docs = await self._client.entities(ids, valid_time=NEWEST_VALID_TIME)
                versions = {ids[id]: to_stored(from_doc(doc)[0]) for id, doc in docs.items()}
            found |= {session: stored for session, stored in versions.items() if stored is not None}
        return found

    async def remote_session(self, session: str, source: str) -> RemoteSession:
        """Return ``session`` as of the transaction in which ``source`` last had it whole: the first claim after it."""
        with _requesting(f"when session {session} was claimed"):
            rows = await self._client.history(owner_record.owner_id(session))
            claim: int | None = None
            for row in sorted(rows, key=lambda each: each.tx_id, reverse=True):
                owner = owner_record.from_doc(row.doc)
                if owner is None or owner.source is None:
                    break
                claim = row.tx_id
            if claim is None:
                raise Unknown(f"the node has no claim of session {session}")
            return RemoteSession(self._client, source, claim)


@contextmanager
def _requesting(what: str, *, within_s: float = ANSWER_S) -> Iterator[None]:
    try:
        with anyio.fail_after(within_s):
            yield
    except (XtdbFailure, TimeoutError, ValueError) as error:
        raise unavailable(what, str(error) or f"no response within {within_s:g} s") from error


def unavailable(what: str, why: str) -> CtxdError:
    """Return the error of a call that needs the node."""
    message = f"cannot read {what} from the XTDB node: {why}"
    return CtxdError("store_unavailable", message, retry_after_ms=1_000, outcome="not_applied")
