"""Conversion of versions to XTDB documents and back, byte for byte.

Top-level keys are a closed set; client-chosen names nest in ``payload``, as text. XTDB keeps no order of keys, so
``order`` records it where it is not sorted. A payload with a number that XTDB would change is kept encoded as ``body``;
type and hashes are still at the top level.

XTDB stores a document once, under its hash. When a node replays an eviction, it removes every document that it has seen
of the entity, even one put again since: another node, or one that rebuilds its index, would lose it. So a document put
after an eviction has that eviction's name in ``put``, which gives it a different hash.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterable
from math import copysign
from typing import Any, Final

import msgspec
from blake3 import blake3

from ctxd.backends.stored_version import Version
from ctxd.backends.xtdb.messages import Doc
from ctxd.objects.commit_document import STORED_NAMES
from ctxd.objects.document import Content, Document, decode_document, encode_content, encode_document, source_of
from ctxd.objects.generated_ids import session_of
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource, Source

FIXED_VALID_TIME: Final = 946_684_800_000
"""2000-01-01T00:00:00Z in ms: the valid time of entities without one of their own, such as texts."""

NEWEST_VALID_TIME: Final = 253_402_300_799_999
"""The last ms of the year 9999, the latest date of a request: a read as of it returns the newest version."""

RESERVED: Final = "ctxd/"
"""Prefix of the ids of ctxd's own entities."""

_json: Final = msgspec.json.Encoder().encode
_parse: Final = msgspec.json.Decoder().decode
_OPAQUE: Final = "opaque"
_NEGATIVE_ZERO: Final = b"\xcb\x80\0\0\0\0\0\0\0"
"""-0.0 in MessagePack, or hash bytes that look like it. XTDB makes 0.0 of it."""

_LOOKED_UP: Final = {"tool": str, "turn": int}
"""Fields of a payload that are repeated as top-level keys, by type."""


def content_id(ref: bytes) -> str:
    """Entity of the text whose BLAKE3 is ``ref``."""
    return f"{RESERVED}content/{ref.hex()}"


def content_ref(entity: str) -> bytes:
    """BLAKE3 of the text that ``entity`` holds. Raises: ValueError if it is not a ``content_id``."""
    return bytes.fromhex(entity.removeprefix(f"{RESERVED}content/"))


def cursor_id(writer: str) -> str:
    """Entity of the cursor of ``writer``'s journal."""
    return f"{RESERVED}cursor/{writer}"


def to_doc(version: Version, writer: str, *, put: str = "") -> Doc:
    """Document of ``version`` in the journal of ``writer``.

    ``put`` distinguishes it from documents that were evicted before. Raises: ValueError for a deletion, which has no
    document.
    """
    body = version.body
    if body is None:
        raise ValueError("a deletion has no document")
    payload: dict[str, Any] = {"tx": version.tx, "tx_time": version.tx_time}
    # A bulk read does not return valid times, so the document has its own.
    payload["valid_time"] = version.valid_time
    if put:
        payload["put"] = put
    if version.content is not None:
        payload["content"] = version.content.hex()
    document = _document(version.id, body)
    order = None if document is None else _key_order(document, body)
    if document is None or order is None:
        payload["body"] = b64encode(body).decode()
    else:
        payload["fields"] = document.payload
        if order:
            payload["order"] = order
    doc: Doc = {"xt/id": version.id, "type": _OPAQUE, "writer": writer}
    if document is not None:
        doc |= _named(document)
    doc["payload"] = payload
    return doc


def _named(document: Document) -> Doc:
    """Top-level keys of ``document``, by which queries look it up."""
    named: Doc = {"type": document.type}
    fields = document.payload if isinstance(document.payload, dict) else {}
    # A tool call names its session by its chat.
    chat = fields.get("chat_ref")
    named_session = chat.removeprefix("chat:") if isinstance(chat, str) and chat.startswith("chat:") else None
    if document.type == "commit" and type(of_commit := fields.get(STORED_NAMES["session"])) is str:
        named_session = of_commit
    if (session := session_of(document.id) or named_session) is not None:
        named["session"] = session
    for key, kind in _LOOKED_UP.items():
        if type(value := fields.get(key)) is kind:
            named[key] = value
    file = document.source if isinstance(document.source, FilesystemSource) else None
    if file is not None:
        named["source"], named["path"] = msgspec.structs.asdict(file), file.path
    elif document.source is not None:
        named["source"] = msgspec.to_builtins(document.source)
    named["identity_hash"] = document.identity_hash
    if document.source_hash is not None:
        named["source_hash"] = document.source_hash
    named["content_hash"] = document.content_hash
    return named


def from_doc(doc: Doc, valid_time: int | None = None) -> tuple[Version, str]:
    """Version in ``doc``, and its writer. ``valid_time`` (ms): that of its row, if known.

    Raises: ValueError for a document that ``to_doc`` does not make.
    """
    try:
        payload = doc["payload"]
        content = payload.get("content")
        version = Version(
            id=doc["xt/id"],
            valid_time=_valid_time(payload) if valid_time is None else valid_time,
            tx=_whole(payload["tx"]),
            tx_time=_whole(payload["tx_time"]),
            body=_body(doc, payload),
            content=None if content is None else bytes.fromhex(content),
        )
        # In earlier versions the writer was in the payload.
        return version, doc["writer"] if "writer" in doc else payload["writer"]
    except (KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"the document of {doc.get('xt/id')} is not one of ctxd's: {error!r}") from error


def _valid_time(payload: dict[str, Any]) -> int:
    # The name of earlier versions of this program.
    return _whole(payload["valid_time"] if "valid_time" in payload else payload["vt"])


def _whole(value: Any) -> int:  # noqa: ANN401
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _document(id: str, body: bytes) -> Document | None:
    """Document in ``body``; ``None`` if it is not a document of ours, or cannot be written as JSON."""
    try:
        document = decode_document(id, body)
        _json([document.type, document.source, document.source_hash, document.identity_hash, document.content_hash])
        return document if isinstance(document.type, str) else None
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, AttributeError):
        return None


def _key_order(document: Document, body: bytes) -> list[Any] | None:
    """Order of the keys, empty if they are sorted; ``None`` if the document would not be converted back to ``body``."""
    try:
        if _parse(_json(document.payload)) != document.payload:
            return None
        if _NEGATIVE_ZERO in body and _has_negative_zero(document.payload):
            return None
        if encode_document(document, ordered=True) == body:
            return []
        if not isinstance(document.payload, dict) or encode_document(document) != body:
            return None
        return _order(document.payload)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError, AttributeError):
        return None


def _has_negative_zero(value: Any) -> bool:  # noqa: ANN401
    if isinstance(value, dict):
        return any(map(_has_negative_zero, value.values()))
    if isinstance(value, list):
        return any(map(_has_negative_zero, value))
    return isinstance(value, float) and value == 0 and copysign(1, value) < 0


def _order(payload: dict[str, Any]) -> list[Any]:
    orders: list[Any] = []
    _note_order(payload, orders)
    while orders and orders[-1] is None:
        orders.pop()
    return orders


def _note_order(value: Any, orders: list[Any]) -> None:  # noqa: ANN401
    """Append one entry per map to ``orders``, outer maps first: the places of its sorted keys, or ``None``."""
    if type(value) is dict:
        keys = list(value)
        ordered = sorted(keys)
        if keys == ordered:
            orders.append(None)
        else:
            places = {key: place for place, key in enumerate(keys)}
            orders.append([places[key] for key in ordered])
        for key in ordered:
            item = value[key]
            if type(item) is dict or type(item) is list:
                _note_order(item, orders)
    elif type(value) is list:
        for item in value:
            if type(item) is dict or type(item) is list:
                _note_order(item, orders)


def _put_in_order(value: Any, orders: Any) -> Any:  # noqa: ANN401
    """``value`` with the keys of each map in the order noted by ``_note_order``; ``orders`` iterates over these."""
    if type(value) is dict:
        ordered = sorted(value)
        places = next(orders, None)
        made = {key: _put_in_order(value[key], orders) for key in ordered}
        if places is None:
            return made
        by_place = dict(zip(places, ordered, strict=True))
        return {by_place[place]: made[by_place[place]] for place in range(len(ordered))}
    if type(value) is list:
        return [_put_in_order(item, orders) if type(item) in (dict, list) else item for item in value]
    return value


def _body(doc: Doc, payload: dict[str, Any]) -> bytes:
    if "body" in payload:
        return b64decode(payload["body"], validate=True)
    source, order = doc.get("source"), payload.get("order")
    fields = payload["fields"]
    document = Document(
        id=doc["xt/id"],
        type=doc["type"],
        source=None if source is None else _source(source),
        identity_hash=doc["identity_hash"],
        source_hash=doc.get("source_hash"),
        content_hash=doc["content_hash"],
        payload=fields if order is None else _put_in_order(fields, iter(order)),
    )
    return encode_document(document, ordered=order is None)


def _source(named: dict[str, Any]) -> Source:
    """A source from its column: a file's has no type, and names with underscores."""
    return source_of(named) if "type" in named else FilesystemSource(named["filesystem_id"], named["path"])


# --- text ---


WHOLE_BYTES_MAX: Final = CONTENT_INLINE_BYTES_MAX // 4 * 3
"""Size of content in bytes that always fits in one document, also in base64, which is a third longer."""


def content_docs(ref: bytes, content: Content, *, put: str = "") -> list[Doc]:
    """Documents of ``content``, whose BLAKE3 is ``ref``: parts before the document that lists them. ``put``
    distinguishes them from evicted documents of the same content."""
    data = encode_content(content)
    named = {"put": put} if put else {}
    part_bytes = WHOLE_BYTES_MAX if isinstance(content, bytes) else CONTENT_INLINE_BYTES_MAX
    if len(data) <= part_bytes:
        return [_content_doc(ref, {**_spelled(content), **named})]
    docs, parts = [], []
    first = 0
    while first < len(data):
        last = first + part_bytes if isinstance(content, bytes) else _boundary(data, first + part_bytes)
        part = data[first:last]
        digest = blake3(part).digest()
        docs.append(_content_doc(digest, {**_spelled(part if isinstance(content, bytes) else part.decode()), **named}))
        parts.append(content_id(digest))
        first = last
    by_id = {doc["xt/id"]: doc for doc in docs}
    return [*by_id.values(), _content_doc(ref, {"parts": parts, **named})]


def _spelled(content: Content) -> dict[str, str]:
    return {"base64": b64encode(content).decode()} if isinstance(content, bytes) else {"text": content}


def _content_doc(ref: bytes, payload: dict[str, Any]) -> Doc:
    return {"xt/id": content_id(ref), "type": "content", "payload": payload}


def _boundary(data: bytes, place: int) -> int:
    """Last position at or before ``place`` that does not split a character of ``data``."""
    while place < len(data) and data[place] & 0xC0 == 0x80:
        place -= 1
    return min(place, len(data))


def parts_of(doc: Doc) -> list[str] | None:
    """Ids of the parts listed in a content document, ``None`` if it holds its text itself. Raises: ValueError."""
    parts = doc["payload"].get("parts") if isinstance(doc.get("payload"), dict) else None
    if parts is not None and not (isinstance(parts, list) and all(isinstance(part, str) for part in parts)):
        raise ValueError(f"{doc.get('xt/id')} lists invalid parts")
    return parts


def content_of(docs: Iterable[Doc]) -> bytes:
    """The bytes of content documents without parts, one after the other. Raises: ValueError."""
    return b"".join(map(_bytes_of, docs))


def _bytes_of(doc: Doc) -> bytes:
    payload = doc.get("payload")
    held = payload if isinstance(payload, dict) else {}
    if isinstance(text := held.get("text"), str):
        return text.encode()
    if isinstance(spelled := held.get("base64"), str):
        return b64decode(spelled, validate=True)
    raise ValueError(f"{doc.get('xt/id')} holds no content")


# --- evictions ---

EVICTIONS_ID: Final = f"{RESERVED}evictions"
"""Entity that names the newest transaction, of any journal, that evicted something; missing before the first."""


def evictions_doc(put: str) -> Doc:
    """Document that an evicting transaction also puts, at ``FIXED_VALID_TIME``. ``put``: a unique name."""
    return {"xt/id": EVICTIONS_ID, "type": "evictions", "payload": {"put": put}}


def put_after(evictions: Doc | None) -> str:
    """``put`` of documents put after ``evictions``; empty if that is ``None``. Raises: ValueError."""
    payload = {"put": ""} if evictions is None else evictions.get("payload")
    put = payload.get("put") if isinstance(payload, dict) else None
    if not isinstance(put, str):
        raise ValueError(f"{EVICTIONS_ID} names no transaction")
    return put
