"""The log that several hosts share, as one of them asks it: whose sessions are, who is alive, what another one wrote.

What goes wrong with the node is told as ``store_unavailable``, here and nowhere above.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final

import anyio
from anyio.abc import TaskStatus

from ctxd.backends.xtdb.client import VALID_TIME_MAX, XtdbClient
from ctxd.backends.xtdb.documents import from_doc
from ctxd.backends.xtdb.errors import XtdbFailure
from ctxd.clock import Clock
from ctxd.errors import CtxdError
from ctxd.objects.document import Stored
from ctxd.projection.owners import Owner
from ctxd.sharing import ownership_ops
from ctxd.sharing.heartbeat import Heartbeat, Tell
from ctxd.sharing.remote_session import RemoteSession
from ctxd.store.reads import to_stored

ANSWER_S: Final = 3.0
"""Seconds that the node may take for one question or step, before it counts as away."""

LEVEL_S: Final = 20.0
"""Seconds that a node may be behind the log for a resume to wait for it."""


class SharedLog:
    """See the module. ``run`` while anything else is called. All calls raise CtxdError ``store_unavailable`` if the
    node does not answer, or not in time; all may be cancelled."""

    def __init__(self, client: XtdbClient, beats: Heartbeat) -> None:
        self._client = client
        self._heartbeat = beats

    async def run(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep this host's lease and watch the others' until cancelled; started once the rest may be called."""
        async with self._client:
            task_status.started()
            await self._heartbeat.run()

    # --- hosts ---

    def host(self, writer: str) -> str:
        """The name of the host of ``writer``."""
        return self._heartbeat.host(writer)

    def filesystem(self, writer: str) -> str:
        """The id of the own filesystem of the host of ``writer``; empty where nothing tells it."""
        return self._heartbeat.filesystem(writer)

    def left_s(self, writer: str) -> float:
        """Seconds until ``writer`` counts as dead if it stays silent; 0 or less: it does."""
        return self._heartbeat.left_s(writer)

    async def left_s_for_certain(self, writer: str) -> float:
        """As ``left_s``, and once it has run out with what was in the log when it was asked: while this host or its
        node stood still, nobody was seen to renew."""
        await self.meet(writer)
        if self.left_s(writer) <= 0:
            with _asking("which hosts are alive", within_s=LEVEL_S):
                await self._client.sync(LEVEL_S)
                await self._heartbeat.look()
        return self.left_s(writer)

    async def meet(self, writer: str) -> None:
        """Know the lease of ``writer``, if it has one."""
        if writer not in self._heartbeat.observer.leases:
            with _asking("which hosts there are"):
                await self._heartbeat.look()

    # --- owners ---

    async def owner(self, session: str) -> Owner | None:
        """Whose ``session`` is; null if nobody's."""
        with _asking(f"whose session {session} is"):
            return await ownership_ops.owner_of(self._client, session)

    async def newest_owner(self, session: str) -> Owner | None:
        """As ``owner``, once this host's node has everything that was in the log when it was asked."""
        with _asking(f"whose session {session} is", within_s=LEVEL_S):
            await self._client.sync(LEVEL_S)
            return await ownership_ops.owner_of(self._client, session)

    async def owners(self, sessions: Iterable[str] | None = None) -> dict[str, Owner]:
        """Return the owner of each of ``sessions`` that has one, by session; ``None``: of all sessions."""
        with _asking("whose the sessions are"):
            return await ownership_ops.owners_of(self._client, sessions)

    async def step(self, session: str, before: Owner | None, after: Owner) -> bool:
        """See ``ownership_ops.take_step``."""
        with _asking(f"whether session {session} changed hands"):
            return await ownership_ops.take_step(self._client, session, before, after)

    # --- what others wrote ---

    async def heads(self, sessions: Iterable[str]) -> Mapping[str, Stored]:
        """The newest heads of ``sessions``, whoever wrote them, by id of session."""
        ids = {f"session:{session}": session for session in sessions}
        with _asking("what the sessions are"):
            docs = await self._client.entities(ids, valid_time=VALID_TIME_MAX)
            versions = {ids[id]: from_doc(doc)[0] for id, doc in docs.items()}
        found = {session: to_stored(version) for session, version in versions.items()}
        return {session: stored for session, stored in found.items() if stored is not None}

    async def origin(self, session: str, source: str) -> RemoteSession:
        """``session`` as it was when ``source`` had it whole for the last time."""
        with _asking(f"since when session {session} is claimed"):
            return RemoteSession(self._client, source, await ownership_ops.basis_of(self._client, session))


def shared_log(
    url: str, clock: Clock, *, writer: str, host: str, filesystem: str, incarnation: int, lease_s: float, tell: Tell
) -> SharedLog:
    """The log behind the node at ``url``, for the journal of ``writer`` in its ``incarnation`` on ``host``."""
    client = XtdbClient(url, clock=clock)
    beats = Heartbeat(
        client,
        clock,
        writer=writer,
        host=host,
        filesystem=filesystem,
        incarnation=incarnation,
        lease_s=lease_s,
        tell=tell,
    )
    return SharedLog(client, beats)


@contextmanager
def _asking(what: str, *, within_s: float = ANSWER_S) -> Iterator[None]:
    try:
        with anyio.fail_after(within_s):
            yield
    except (XtdbFailure, TimeoutError, ValueError) as error:
        raise unavailable(what, str(error) or "it does not answer in time") from error


def unavailable(what: str, why: str) -> CtxdError:
    """The error of a call that needs the node."""
    message = f"the XTDB node does not tell {what}: {why}"
    return CtxdError("store_unavailable", message, retry_after_ms=1_000, outcome="not_applied")
