"""Messages between ctxd and an XTDB node: failures, transactions, and responses.

Failures are distinguished by certainty. ``Refused`` and ``Unreachable``: the transaction was not applied. ``Unknown``:
it may have been, so it must be looked up and never resent. A read that fails in either way has no result. Responses are
parsed strictly: one that differs from the request counts as missing.
"""

import gc
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from ctxd.backends.xtdb import transit
from ctxd.worker_threads import Lane, NoThread


class XtdbFailure(Exception):
    """Failed request to a node. ``kind``: the node's class or key of the error, ``None`` if it sent none; ``status``:
    of HTTP, ``None`` without a response."""

    def __init__(self, message: str, *, kind: str | None = None, status: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.status = status


class Refused(XtdbFailure):
    """The node understood the request and refused it, as it would again: nothing was applied.

    ``op``: the operation at fault, as transit spells it, ``None`` if the node named none.
    """

    def __init__(
        self,
        message: str,
        *,
        kind: str | None = None,
        status: int | None = None,
        op: Any | None = None,  # noqa: ANN401 - whatever was sent
    ) -> None:
        super().__init__(message, kind=kind, status=status)
        self.op = op


class Behind(Refused):
    """The node has not reached the given transaction: it is slow, or has lost transactions."""


class Unreachable(XtdbFailure):
    """The request did not reach the node: nothing was applied."""


class Unknown(XtdbFailure):
    """The request may have reached the node, and no trustworthy response came back."""


# --- transactions ---

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
"""The top-level keys of documents, which XTDB indexes. Clients never choose them."""

_SPELLED: Final = {key: b'"~:%s":' % key.encode() for key in KEYS}


class PutDoc(msgspec.Struct, frozen=True, gc=False):
    """``doc`` is valid from ``valid_time`` (ms) until the next version already recorded."""

    doc: Doc
    valid_time: int


class Delete(msgspec.Struct, frozen=True, gc=False):
    """``id`` does not exist from ``valid_time`` (ms) until the next version already recorded."""

    id: str
    valid_time: int


class Match(msgspec.Struct, frozen=True, gc=False):
    """The transaction is applied only if ``id`` is ``doc`` at ``valid_time`` (ms); ``None``: only if it does not
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

    Raises: Refused, with the operation, for one that a node would refuse or misread.
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
        return b'["~:xtdb.api/put",%s,%s]' % (encode_document(op.doc), transit.encode_date(op.valid_time))
    if isinstance(op, Delete):
        return b'["~:xtdb.api/delete",%s,%s]' % (transit.encode(op.id), transit.encode_date(op.valid_time))
    if isinstance(op, Match):
        expected = b"null" if op.doc is None else encode_document(op.doc)
        at = transit.encode_date(op.valid_time)
        return b'["~:xtdb.api/match",%s,%s,%s]' % (transit.encode(op.id), expected, at)
    return b'["~:xtdb.api/evict",%s]' % transit.encode(op.id)


def encode_document(doc: Doc) -> bytes:
    """``doc`` as transit, its top keys as keywords.

    Raises: KeyError for a top key beyond ``KEYS``; ValueError without an id that is text; those of ``transit.encode``.
    """
    if not isinstance(doc.get("xt/id"), str):
        raise ValueError("a document's id is text")
    values = transit.encode_all(doc.values())
    return b"{%s}" % b",".join([_SPELLED[key] + value for key, value in zip(doc, values, strict=True)])


def to_doc(read: Any) -> Doc | None:  # noqa: ANN401 - any value in transit
    """Document in a response. Raises: ValueError for anything else."""
    if read is None:
        return None
    if not isinstance(read, dict) or not isinstance(read.get("xt/id"), str):
        raise ValueError("an answer holds something else where a document should be")
    return {str(key): value for key, value in read.items()}


# --- responses ---

T = TypeVar("T")

TYPE: Final = "application/transit+json"
"""The media type of every request and every valid response."""

_NO_CONTENT: Final = "0" * 40
_REFUSING: Final = frozenset({"illegal-argument", "IllegalArgumentException"})
"""Kinds of error that an equal request would get again. Any other may be temporary, or may hide that it was applied."""

_HEADER_TOO_LARGE: Final = (414, 431)
"""Jetty's responses to a request whose first line and headers exceed 8 KiB, its default limit."""

_MALFORMED: Final = "Malformed "
"""Prefix of the message for an unreadable request. Requests are well-formed, so it was damaged in transit."""

_BEHIND: Final = frozenset({"node-out-of-sync", "NodeOutOfSyncException"})


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """Status reported by a node. It is healthy only while ``ingester_failed`` is False."""

    version: str | None
    revision: str | None
    index_version: int | None
    kv_store: str | None
    keys: int | None
    bytes: int | None
    ingester_failed: bool


class HistoryRow(msgspec.Struct, frozen=True, gc=False):
    """Row of an entity's history: the node's transaction and its time, the valid time (both ms), whether the entity
    exists, and its document, ``None`` if it does not."""

    tx_id: int
    tx_time: int
    valid_time: int
    present: bool
    doc: Doc | None


def parse(status: int, media_type: str, body: bytes) -> Any:  # noqa: ANN401 - any value in transit
    """Value of a successful response. Raises: Unknown if it is not transit."""
    if media_type != TYPE:
        raise Unknown(f"the answer is {media_type or 'of no type'}, not transit", status=status)
    if not body:
        raise Unknown("the answer is empty: the node failed while it wrote it", status=status)
    try:
        return transit.decode(body)
    except transit.NotTransit as error:
        raise Unknown(f"the answer cannot be read: {error}", status=status) from error


def failure(status: int, media_type: str, body: bytes) -> XtdbFailure:
    """The failure for an unsuccessful response: ``Refused`` only if the node itself rejects the request, because the
    response may come from a proxy."""
    if status in _HEADER_TOO_LARGE:
        return Refused(
            "the server refuses a request whose URL holds a long entity id: set :request-header-size 65536 in its"
            " :jetty-opts, and restart it",
            kind="request-header-size",
            status=status,
        )
    try:
        fields = strip_namespaces(parse(status, media_type, body))
    except (Unknown, ValueError):
        return Unknown(f"the node answered {status}, without a reason in transit", status=status)
    kinds = [
        str(fields[key]) for key in ("error-key", "errorKey", "error-type", "errorType", "class") if fields.get(key)
    ]
    simple = {kind.rpartition(".")[2] for kind in kinds}
    kind = kinds[0] if kinds else None
    message = str(fields.get("message") or fields.get("error") or kind or f"the node answered {status}")
    if simple & _BEHIND:
        return Behind(message, kind=kind, status=status)
    if 400 <= status < 500 and message.startswith(_MALFORMED):
        return Unreachable(f"the request came to the node damaged: {message}")
    if 400 <= status < 500 and simple & _REFUSING:
        return Refused(message, kind=kind, status=status, op=fields.get("op"))
    return Unknown(message, kind=kind, status=status)


def too_early(status: int, media_type: str, body: bytes) -> bool:
    """True if the response reports that the node's waiting time has passed."""
    if status == 200:
        return False
    return (failure(status, media_type, body).kind or "").endswith("TimeoutException")


def absent(status: int, media_type: str, body: bytes) -> bool:
    """True if the response reports that the entity does not exist, rather than a missing page."""
    if status != 404:
        return False
    try:
        strip_namespaces(parse(status, media_type, body))
    except (Unknown, ValueError):
        return False
    return True


def strip_namespaces(read: Any) -> dict[str, Any]:  # noqa: ANN401
    """A map by the names of its keys, without namespaces: the two servers differ in them. Raises: ValueError."""
    if not isinstance(read, dict):
        raise ValueError("the response is not a map")
    return {key.name if isinstance(key, transit.Keyword) else str(key): value for key, value in read.items()}


def number(read: Any, name: str) -> int:  # noqa: ANN401
    """The whole number under ``name`` in a map. Raises: ValueError."""
    value = strip_namespaces(read).get(name)
    if type(value) is not int:
        raise ValueError(f"the answer has no number {name}")
    return value


def to_status(read: Any) -> NodeStatus:  # noqa: ANN401
    """Raises: ValueError."""
    fields = strip_namespaces(read)
    failed = fields.get("ingester-failed?", fields.get("ingesterFailed?"))
    if type(failed) is not bool:
        raise ValueError("the status lacks the state of the ingester")

    def one(kind: type, *names: str) -> Any:  # noqa: ANN401
        return next((fields[name] for name in names if type(fields.get(name)) is kind), None)

    return NodeStatus(
        version=one(str, "version"),
        revision=one(str, "revision"),
        index_version=one(int, "index-version", "indexVersion"),
        kv_store=one(str, "kv-store", "kvStore"),
        keys=one(int, "estimate-num-keys", "estimateNumKeys"),
        bytes=one(int, "size"),
        ingester_failed=failed,
    )


def to_committed(read: Any) -> bool:  # noqa: ANN401
    """Raises: ValueError."""
    fields = strip_namespaces(read)
    committed = fields.get("tx-committed?", fields.get("txCommitted?"))
    if type(committed) is not bool:
        raise ValueError("the response lacks the outcome of the transaction")
    return committed


def to_row(read: Any) -> HistoryRow:  # noqa: ANN401
    """Raises: ValueError, KeyError."""
    fields = strip_namespaces(read)
    content = fields["content-hash"] if "content-hash" in fields else fields["contentHash"]
    present = content not in (None, _NO_CONTENT)
    doc = to_doc(fields.get("doc"))
    if present and doc is None:
        raise ValueError("a version is there, but its document is not")
    return HistoryRow(number(read, "tx-id"), number(read, "tx-time"), number(read, "valid-time"), present, doc)


def to_history(read: Any, id: str) -> list[HistoryRow]:  # noqa: ANN401
    """The rows of entity ``id``. Raises: ValueError, KeyError."""
    rows = [to_row(item) for item in _rows(read) if not _is_evicted(item)]
    if any(row.doc is not None and row.doc["xt/id"] != id for row in rows):
        raise ValueError("a version is another entity's")
    return rows


def reached(read: Any) -> tuple[int, int]:  # noqa: ANN401
    """The valid time and the transaction of the last row of a history's page. Raises: ValueError if it has none."""
    *_, last = _rows(read)
    return number(last, "valid-time"), number(last, "tx-id")


def _is_evicted(read: Any) -> bool:  # noqa: ANN401
    """True for a row whose document is a tombstone: another node has performed an eviction, this one has not yet."""
    doc = strip_namespaces(read).get("doc")
    return isinstance(doc, dict) and strip_namespaces(doc).get("evicted?") is True


def to_entity(read: Any, id: str) -> Doc | None:  # noqa: ANN401
    """The document of entity ``id``. Raises: ValueError."""
    doc = to_doc(read)
    if doc is not None and doc["xt/id"] != id:
        raise ValueError("the document is another entity's")
    return doc


def asked_for(found: dict[str, T], ids: Collection[str]) -> dict[str, T]:
    """``found``, if all its ids are in the requested ``ids``. Raises: ValueError."""
    if not found.keys() <= set(ids):
        raise ValueError("a row of the query is of an entity that was not requested")
    return found


def to_docs(read: Any) -> dict[str, Doc]:  # noqa: ANN401
    """The rows of a query for id and document, those without one left out. Raises: ValueError."""
    docs = {}
    for id, doc in _rows(read):
        known = to_doc(doc)
        if known is None:
            continue
        if known["xt/id"] != id:
            raise ValueError("a row of the query is not of an entity")
        docs[id] = known
    return docs


def _rows(read: Any) -> list[Any]:  # noqa: ANN401
    if not isinstance(read, list):
        raise ValueError("the response is not a list")
    return read


def to_rows(read: Any) -> list[list[Any]]:  # noqa: ANN401
    """Return the rows of a query for anything. Raises: ValueError."""
    rows = _rows(read)
    if not all(isinstance(row, (list, tuple)) for row in rows):
        raise ValueError("a row is not a list")
    return [list(row) for row in rows]


def to_ids(read: Any) -> list[str]:  # noqa: ANN401
    """The rows of a query for ids, each once. Raises: ValueError."""
    ids = dict.fromkeys(id for (id,) in _rows(read))
    if not all(isinstance(id, str) for id in ids):
        raise ValueError("an id is not text")
    return list(ids)


async def offload(function: Callable[[], T], lane: Lane) -> T:
    """Return the result of ``function``, called on a thread of ``lane``.

    Raises: as ``function``; Unknown if no thread can be started. Cancel: takes effect once it has returned.
    """
    try:
        return await lane.run(_uncollected, function)
    except NoThread as error:
        raise Unknown(f"the response cannot be read: {error}") from error


def _uncollected(function: Callable[[], T]) -> T:
    # All objects of a long response are kept, and collecting garbage meanwhile would triple the cost.
    collecting = gc.isenabled()
    gc.disable()
    try:
        return function()
    finally:
        # Of concurrent calls, only those that found collection enabled enable it again, so it never stays off.
        if collecting:
            gc.enable()
