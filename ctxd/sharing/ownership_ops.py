"""Owners and leases at a node: read, and moved on one matched step at a time."""

from collections.abc import Iterable, Sequence
from typing import Final

from ctxd.backends.xtdb.client import XtdbClient
from ctxd.backends.xtdb.documents import FIXED_VALID_TIME, NEWEST_VALID_TIME
from ctxd.backends.xtdb.errors import Refused, Unknown
from ctxd.backends.xtdb.operations import Op
from ctxd.projection import owners
from ctxd.projection.owners import Owner
from ctxd.sharing import leases
from ctxd.sharing.leases import Lease

STEP_S: Final = 10.0
"""Seconds within which a node has to index a step, before its outcome is looked up instead."""


async def owner_of(client: XtdbClient, session: str) -> Owner | None:
    """Whose ``session`` is; null if nobody's. Raises: XtdbFailure, ValueError."""
    return owners.from_doc(await client.entity(owners.owner_id(session), valid_time=FIXED_VALID_TIME))


async def take_step(client: XtdbClient, session: str, before: Owner | None, after: Owner) -> bool:
    """Put ``after`` if the owner still is ``before``; whether it is ``after`` now.

    Raises: XtdbFailure if that cannot be told now; taking the same step again is safe. Cancel: likewise.
    """
    if await _committed(client, owners.change(session, before, after)):
        return True
    return await owner_of(client, session) == after


async def basis_of(client: XtdbClient, session: str) -> int:
    """The node's transaction as of which ``session`` is read: the first claim since its owner had it whole.

    Raises: XtdbFailure, ValueError.
    """
    rows = await client.history(owners.owner_id(session), corrections=True)
    basis: int | None = None
    for row in sorted(rows, key=lambda each: each.tx_id, reverse=True):
        owner = owners.from_doc(row.doc)
        if owner is None or owner.source is None:
            break
        basis = row.tx_id
    if basis is None:
        raise Unknown(f"the node does not say when session {session} was claimed")
    return basis


async def owners_of(client: XtdbClient, sessions: Iterable[str] | None) -> dict[str, Owner]:
    """Return the owner of each of ``sessions`` that has one; ``None``: of all. Raises: XtdbFailure, ValueError."""
    if sessions is None:
        ids = await client.ids(owners.PREFIX, valid_time=FIXED_VALID_TIME)
    else:
        ids = [owners.owner_id(session) for session in sessions]
    docs = await client.entities(ids, valid_time=FIXED_VALID_TIME)
    found = {id.removeprefix(owners.PREFIX): owners.from_doc(doc) for id, doc in docs.items()}
    return {session: owner for session, owner in sorted(found.items()) if owner is not None}


async def every_lease(client: XtdbClient) -> dict[str, Lease]:
    """The lease of each writer that has one. Raises: XtdbFailure, ValueError."""
    ids = await client.ids(leases.PREFIX, valid_time=NEWEST_VALID_TIME)
    docs = await client.entities(ids, valid_time=NEWEST_VALID_TIME)
    found = {id.removeprefix(leases.PREFIX): leases.from_doc(doc) for id, doc in docs.items()}
    return {writer: lease for writer, lease in found.items() if lease is not None}


async def renew(client: XtdbClient, writer: str, before: Lease | None, after: Lease) -> bool:
    """Move the lease of ``writer`` on from ``before``; whether it is ``after`` now. Raises: XtdbFailure, ValueError."""
    if await _committed(client, leases.renewal(writer, before, after)):
        return True
    doc = await client.entity(leases.lease_id(writer), valid_time=NEWEST_VALID_TIME)
    return leases.from_doc(doc) == after


async def _committed(client: XtdbClient, ops: Sequence[Op]) -> bool:
    """Whether ``ops`` took place; false also where nobody knows."""
    try:
        return await client.committed(await client.submit(ops), timeout_s=STEP_S)
    except Refused:
        raise
    except Unknown:
        return False
