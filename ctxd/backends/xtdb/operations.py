"""Transactions: operations, documents, and their encoding in transit."""

from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import msgspec

from ctxd.backends.xtdb import transit
from ctxd.backends.xtdb.errors import Refused

Doc: TypeAlias = dict[str, Any]
"""An XTDB document: the keys of ``KEYS``, each value any JSON value with text for keys."""

KEYS: Final = (
    "xt/id",
    "type",
    "writer",
    "session",
    "tool",
    "turn",
    "path",
    "source",
    "identity_hash",
    "source_hash",
    "content_hash",
    "payload",
)
"""The top-level keys of documents, which XTDB indexes. No client ever names one."""

_SPELLED: Final = {key: b'"~:%s":' % key.encode() for key in KEYS}


class PutDoc(msgspec.Struct, frozen=True, gc=False):
    """``doc`` holds from ``valid_time`` (ms) until ``end``; without it, until the next version already recorded."""

    doc: Doc
    valid_time: int
    end: int | None = None


class Delete(msgspec.Struct, frozen=True, gc=False):
    """``id`` is not there from ``valid_time`` (ms) until ``end``, or until the next version already there."""

    id: str
    valid_time: int
    end: int | None = None


class Match(msgspec.Struct, frozen=True, gc=False):
    """The transaction takes place only if ``id`` is ``doc`` at ``valid_time`` (ms); ``None``: only if it does not
    exist."""

    id: str
    doc: Doc | None
    valid_time: int


class Evict(msgspec.Struct, frozen=True, gc=False):
    """Every version of ``id`` is erased. Never together with another operation on it in one transaction."""

    id: str


Op: TypeAlias = PutDoc | Delete | Match | Evict


def encode_transaction(ops: Sequence[Op]) -> bytes:
    """Body that submits ``ops`` as one transaction.

    Raises: Refused for an operation that a node would refuse or misread, naming it.
    """
    parts = []
    for op in ops:
        try:
            parts.append(_encode_op(op))
        except (ValueError, TypeError, OverflowError, KeyError) as error:
            raise Refused(f"an operation cannot be written: {error}", kind="unwritable", op=op) from error
    return b'{"~:tx-ops":[%s]}' % b",".join(parts)


def _encode_op(op: Op) -> bytes:
    if isinstance(op, PutDoc):
        return b'["~:xtdb.api/put",%s,%s]' % (encode_document(op.doc), _times(op.valid_time, op.end))
    if isinstance(op, Delete):
        return b'["~:xtdb.api/delete",%s,%s]' % (transit.encode(op.id), _times(op.valid_time, op.end))
    if isinstance(op, Match):
        expected = b"null" if op.doc is None else encode_document(op.doc)
        at = transit.encode_date(op.valid_time)
        return b'["~:xtdb.api/match",%s,%s,%s]' % (transit.encode(op.id), expected, at)
    return b'["~:xtdb.api/evict",%s]' % transit.encode(op.id)


def _times(start: int, end: int | None) -> bytes:
    if end is None:
        return transit.encode_date(start)
    if start > end:
        raise ValueError("it ends before it starts")
    return b"%s,%s" % (transit.encode_date(start), transit.encode_date(end))


def encode_document(doc: Doc) -> bytes:
    """``doc`` as transit, its top keys as keywords.

    Raises: KeyError for a top key beyond ``KEYS``; ValueError without an id that is text; what ``transit.encode`` does.
    """
    if not isinstance(doc.get("xt/id"), str):
        raise ValueError("a document's id is text")
    values = transit.encode_all(doc.values())
    return b"{%s}" % b",".join([_SPELLED[key] + value for key, value in zip(doc, values, strict=True)])


def to_doc(read: Any) -> Doc | None:  # noqa: ANN401 - whatever the node answers
    """Document in a response. Raises: ValueError for anything else."""
    if read is None:
        return None
    if not isinstance(read, dict) or not isinstance(read.get("xt/id"), str):
        raise ValueError("an answer holds something else where a document should be")
    return {str(key): value for key, value in read.items()}
