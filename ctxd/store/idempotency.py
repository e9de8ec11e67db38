"""Idempotency: whether a write under an operation id is a resend of an earlier one, or another call.

The store keeps running and recently finished writes in memory; older ones are in the journal.
"""

from typing import NamedTuple

from ctxd.errors import CtxdError
from ctxd.store.write_types import QueuedWrite, Replay, StoredWrite

Operation = tuple[str, str]
"""A principal and its operation id."""


class Resend(NamedTuple):
    """A call that may be sent again: the name of its method, its session, if it is a call on one, and the digest of its
    parameters."""

    kind: str
    session: str | None
    request: bytes


def replay_of(key: Operation, call: Resend, found: QueuedWrite | StoredWrite) -> Replay:
    """The result for ``call`` if it is a resend of the write ``found`` under ``key``.

    Raises: CtxdError ``idempotency_mismatch`` if it is another call.
    """
    if isinstance(found, QueuedWrite):
        write = found.encoded.write
        is_same, replay = write.request == call.request, Replay(write.result, found.pending, None)
    else:
        is_same = found.body.request == call.request
        if not found.body.request:
            # A purge also removes the digest of a write's parameters, but not its method and its session.
            is_same = found.kind == call.kind and call.session in (None, found.session)
        replay = Replay(found.body.result, None, found.receipt)
    if not is_same:
        raise mismatch(key[1])
    return replay


def mismatch(op_id: str) -> CtxdError:
    """Return the error for a call whose ``op_id`` was used with other parameters."""
    return CtxdError(
        "idempotency_mismatch",
        f"operation id {op_id} was used with other parameters",
        hint="Use a new op_id for each new call.",
        outcome="not_applied",
    )


def made_already() -> CtxdError:
    """Return the error for a write whose ``op_id`` another write used after it was looked up."""
    return CtxdError("cancelled", "this write was made already", hint="Send it again.", outcome="unknown")
