"""What is kept of an assembly: enough to render it again byte for byte, and nothing that is kept elsewhere.

Owns the stored form of ``assembly:{session}#{number}``. Its size depends on what was active, never on the pool or the
chat.
"""

from datetime import UTC, datetime
from typing import Final

import msgspec

from ctxd.assembly.composition import Composition
from ctxd.assembly.render import RENDERER
from ctxd.errors import CtxdError
from ctxd.objects.document import Document, Stored
from ctxd.objects.hashing import content_hash, identity_hash
from ctxd.objects.identity import assembly_id
from ctxd_protocol.context import AssemblyRecord
from ctxd_protocol.ids import context_id

ID_DIGITS = (8, 12, 16)
"""Hex digits of a context id: more only where fewer are taken by other content of the session."""


class Recorded(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One assembly. ``segments``: how many of the session's made it. Its transaction is the record's own.

    ``active``: the versions shown whole, as (object, valid time, transaction). ``dropped``: (object, reason) of what
    the budget left out. ``assembled_at`` is in ms since 1970; ``renderer`` is the version of the text format.
    """

    number: int
    segments: int
    turn: int
    context_id: str
    parent: str
    sha256: str
    bytes: int
    tokens: int
    stable_prefix: int | None
    assembled_at: int
    active: tuple[tuple[str, int, int], ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()
    renderer: int = RENDERER


def document_of(session: str, recorded: Recorded) -> Document:
    """The document that keeps ``recorded``."""
    id, payload = assembly_id(session, recorded.number), msgspec.to_builtins(recorded)
    return Document(
        id=id,
        type="assembly",
        identity_hash=identity_hash("assembly", None, id),
        content_hash=content_hash(payload, None),
        payload=payload,
    )


def read_record(stored: Stored) -> Recorded:
    """The record that a version holds. Raises: CtxdError corrupt if it is none."""
    try:
        return msgspec.convert(stored.document.payload, Recorded)
    except msgspec.ValidationError as error:
        raise CtxdError("corrupt", f"the record {stored.document.id} cannot be read") from error


def summary(recorded: Recorded) -> AssemblyRecord:
    """The row of a listing."""
    return AssemblyRecord(
        number=recorded.number,
        context_id=recorded.context_id,
        turn=recorded.turn,
        sha256=recorded.sha256,
        bytes=recorded.bytes,
        tokens=recorded.tokens,
        assembled_at=recorded.assembled_at,
        stable_prefix=recorded.stable_prefix,
    )


def shown_versions(composition: Composition) -> tuple[tuple[str, int, int], ...]:
    """The versions that ``composition`` shows whole."""
    return tuple(
        (piece.object, piece.valid_time, piece.tx)
        for piece in composition.pieces
        if piece.section == "active_content"
        and piece.object is not None
        and piece.valid_time is not None
        and piece.tx is not None
    )


_LAST_SECOND: Final = 253_402_300_799
"""The end of the year 9999, in seconds since 1970: no time has a text beyond it, whatever a broken clock says."""


def new_context_id(parent: str, sha256: str, assembled_at: int, agent: str, taken: set[str]) -> str:
    """The id of the context with hash ``sha256``, as short as the ids ``taken`` allow. ``assembled_at`` is in ms."""
    moment = datetime.fromtimestamp(min(assembled_at // 1000, _LAST_SECOND), UTC)
    second = moment.strftime("%Y-%m-%dT%H:%M:%SZ")
    id = ""
    for digits in ID_DIGITS:
        id = context_id(parent, sha256, second, agent, digits=digits)
        if id not in taken:
            break
    return id
