"""A document: one version of one entity, before and after it is stored; the builders of documents, and the stored form.

Documents form no reference cycles, so the garbage collector need not track them, of which there are many. A builder
returns a complete document, with hashes, and is deterministic, so that equal states of a source have equal content
hashes in every session. Builders do not decide whether a version is due.

The stored form is a MessagePack array without names; 64 hex digits, mostly a hash, take 32 bytes. It keeps the order of
a payload's fields, and starts with ``FORMAT``, so that old rows stay readable.
"""

import posixpath
from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from ctxd.errors import CtxdError
from ctxd.media_types import media_type
from ctxd.objects.hashing import BASE64, content_hash, identity_hash
from ctxd.secrets.policy import DEFAULT, keeps_bytes, to_payload
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.limits import CONTENT_INLINE_BYTES_MAX
from ctxd_protocol.object_types import FilesystemSource, Source, ToolcallStatus, filesystem_source, source_label
from ctxd_protocol.secret_types import Secrets

Content = str | bytes
"""Content of a version: text if it is UTF-8, else bytes. The document has the media type of bytes."""


def encode_content(content: Content) -> bytes:
    """The bytes of ``content``."""
    return content if isinstance(content, bytes) else content.encode()


def decode_content(data: bytes) -> Content:
    """Undo ``encode_content``."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def require_text(content: Content) -> str:
    """``content``, which must be text. Raises: CtxdError ``corrupt`` if it is not."""
    if isinstance(content, bytes):
        raise CtxdError("corrupt", "the content of a text is not UTF-8")
    return content


class Artifact:
    """A hold on bytes that are durable in the artifact store: they are not removed as long as this object exists.

    ``ref`` is their BLAKE3 in hex, ``size`` their number. ``used`` is set once a durable version refers to them; bytes
    without a hold or a version are removed.
    """

    __slots__ = ("_release", "ref", "size", "used")

    def __init__(self, ref: str, size: int, release: Callable[["Artifact"], None]) -> None:
        self.ref = ref
        self.size = size
        self.used = False
        self._release = release

    def __del__(self) -> None:
        self._release(self)


class Document(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One version of an entity, as it is written.

    ``payload`` has every mutable field except ``content``, which is stored separately so that equal content is stored
    once. Its ``encoding`` is ``base64`` if the content is not text, and ``media_type`` is its type then.
    ``source_hash`` is None for unread and deleted files and for entities without a source. ``artifact`` is a hold on
    the content if it is already durable, as large content is before the write.
    """

    id: str
    type: str
    source: Source | None = None
    identity_hash: str
    source_hash: str | None = None
    content_hash: str
    payload: dict[str, Any]
    content: Content | None = None
    artifact: Artifact | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One version of an entity, as it was accepted.

    ``document.content`` is None unless content was requested; ``content_ref`` is its BLAKE3 (64 hex digits), None if
    the version has none. ``tx`` is the journal sequence, ``valid_time`` and ``tx_time`` are ms since 1970.
    """

    document: Document
    content_ref: str | None
    valid_time: int
    tx: int
    tx_time: int

    @property
    def is_backdated(self) -> bool:
        """True if it was written with a past valid time."""
        return self.valid_time < self.tx_time


LATEST: Final = 2**63 - 1
"""The upper bound of both times: no version is later."""


class AsOf(msgspec.Struct, frozen=True):
    """A point in both times, inclusive: ``valid_time`` in ms since 1970, ``tx`` as a journal sequence; the newest by
    default."""

    valid_time: int = LATEST
    tx: int = LATEST

    @classmethod
    def given(cls, valid_time: int | None, tx: int | None) -> "AsOf":
        """The point with the given times; None stands for the newest."""
        return cls(LATEST if valid_time is None else valid_time, LATEST if tx is None else tx)

    @property
    def is_past(self) -> bool:
        """True if either time is bounded."""
        return self.valid_time != LATEST or self.tx != LATEST

    def includes(self, stored: Stored) -> bool:
        """True if ``stored`` is not later than this in either time."""
        return stored.valid_time <= self.valid_time and stored.tx <= self.tx


NOW: Final = AsOf()
"""The newest version, as known now."""

K = TypeVar("K")


class Page(msgspec.Struct, Generic[K], frozen=True):
    """A part of an ordered listing: at most ``limit`` rows after the key ``after``, in the requested order."""

    after: K | None = None
    limit: int | None = None
    ascending: bool = True


ALL: Final[Page[Any]] = Page()
"""The whole listing, ascending."""

HistoryPage = Page[tuple[int, int]]
"""A part of a history, by ``(valid_time, tx)``."""

IdPage = Page[str]
"""A part of a scan, by entity."""


def select_visible_versions(versions: Iterable[Stored]) -> list[Stored]:
    """Return those of an entity's ``versions`` that were its newest by valid time when they were written, in order of
    writing. A version written at a past time is included only if it replaced the newest."""
    found: list[Stored] = []
    for stored in sorted(versions, key=lambda stored: stored.tx):
        if not found or stored.valid_time >= found[-1].valid_time:
            found.append(stored)
    return found


def is_large(content: Content | None) -> bool:
    """Return True if ``content`` is kept in the artifact store, not in the database. Cost: constant for ASCII text."""
    if content is None or isinstance(content, bytes) or content.isascii() or len(content) > CONTENT_INLINE_BYTES_MAX:
        return content is not None and len(content) > CONTENT_INLINE_BYTES_MAX
    return len(content.encode()) > CONTENT_INLINE_BYTES_MAX


# --- builders ---


def file_type(path: str) -> str:
    """The lower-case extension of ``path``'s last component without its dot; ``text`` if it has none."""
    extension = posixpath.splitext(posixpath.basename(path))[1]
    return extension[1:].lower() or "text"


def file_stub(id: str, source: Source) -> Document:
    """A file whose content is unknown. ``id`` is ``file_id(source)``, here and below."""
    return _file(id, source, None, None, {"char_count": 0})


def file_text(id: str, source: Source, text: str, source_hash: str, secrets: Secrets | None = None) -> Document:
    """A file that was read. ``source_hash`` is the hash of the bytes that ``text`` was decoded from, keyed if anything
    was redacted."""
    return _file(id, source, source_hash, text, {"char_count": len(text), **to_payload(secrets)})


def is_binary(document: Document) -> bool:
    """True if the content of the version is not text."""
    return document.payload.get("encoding") == BASE64


def file_binary(id: str, source: Source, source_hash: str, raw: bytes, secrets: Secrets | None = None) -> Document:
    """A file that is not text; without its bytes if the secret policy does not keep them."""
    type = media_type(raw)
    fields = {"char_count": 0, "kind": "binary", "size_bytes": len(raw), "media_type": type}
    is_kept = keeps_bytes(type, DEFAULT if secrets is None else secrets.policy)
    encoding = {"encoding": BASE64} if is_kept else {}
    return _file(id, source, source_hash, raw if is_kept else None, {**fields, **encoding, **to_payload(secrets)})


def file_too_large(id: str, source: Source, size_bytes: int, modified_us: int | None = None) -> Document:
    """A file that is too large to be read: only its size and time are known."""
    fields: dict[str, Any] = {"char_count": 0, "kind": "too_large", "size_bytes": size_bytes}
    if modified_us is not None:
        fields["modified_us"] = modified_us
    return _file(id, source, None, None, fields)


def file_tombstone(id: str, source: Source) -> Document:
    """A file that is confirmed deleted. A later file at the same path is the same object."""
    return _file(id, source, None, None, {"char_count": 0, "deleted": True})


def document_without_source(id: str, type: str, payload: dict[str, Any], content: str | None = None) -> Document:
    """The document of an object without a source. Raises: ValueError if ``payload`` has no canonical encoding."""
    return Document(
        id=id,
        type=type,
        identity_hash=identity_hash(type, None, id),
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


def toolcall(
    id: str,
    *,
    tool: str,
    args: dict[str, Any],
    content: str,
    chat_ref: str,
    status: ToolcallStatus = "ok",
    args_display: str | None = None,
    file_refs: tuple[str, ...] | None = None,
    unresolved_refs: tuple[str, ...] = (),
    secrets: Secrets | None = None,
) -> Document:
    """A tool call and its output. Fields that are `None` are left out.

    ``unresolved_refs``: references to files unknown to the session, as the harness gave them. Raises: ValueError if
    ``args`` have no canonical encoding.
    """
    payload: dict[str, Any] = {"tool": tool, "args": args, "status": status, "chat_ref": chat_ref}
    if args_display is not None:
        payload["args_display"] = args_display
    if file_refs is not None:
        payload["file_refs"] = list(file_refs)
    if unresolved_refs:
        payload["unresolved_refs"] = list(unresolved_refs)
    if secrets is not None:
        payload |= to_payload(secrets)
    return Document(
        id=id,
        type="toolcall",
        identity_hash=identity_hash("toolcall", None, id),
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


def system_prompt(session: str, content: str, secrets: Secrets | None = None) -> Document:
    """The system prompt of ``session``."""
    return document_without_source(system_prompt_id(session), "system_prompt", to_payload(secrets), content)


def renamed(document: Document, id: str) -> Document:
    """``document`` as a version of the entity ``id``."""
    if id == document.id:
        return document
    return msgspec.structs.replace(document, id=id, identity_hash=identity_hash(document.type, document.source, id))


def _file(
    id: str, source: Source, source_hash: str | None, content: Content | None, fields: dict[str, Any]
) -> Document:
    payload = {"file_type": file_type(source_label(source)), **fields}
    return Document(
        id=id,
        type="file",
        source=source,
        # A file's id is its identity hash: do not hash the source again.
        identity_hash=id,
        source_hash=source_hash,
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


# --- stored form ---

SOURCE_TYPES: Final[dict[str, type[Source]]] = {"filesystem": FilesystemSource}
"""The members of the union ``Source``, by their tag."""

FORMAT: Final = 1
"""The format that is written."""

_HEX_DIGITS: Final = 64
_encoder: Final = msgspec.msgpack.Encoder()
_sorting: Final = msgspec.msgpack.Encoder(order="sorted")
_decoder: Final = msgspec.msgpack.Decoder(list[Any])


def pack_text(text: str) -> str | bytes:
    """``text``, or 32 bytes if it is their lower-case hex."""
    if len(text) != _HEX_DIGITS:
        return text
    try:
        packed = bytes.fromhex(text)
    except ValueError:
        return text
    return packed if packed.hex() == text else text


def unpack_text(packed: str | bytes) -> str:
    """Undo ``pack_text``."""
    return packed if isinstance(packed, str) else packed.hex()


def source_of(members: dict[str, Any]) -> Source:
    """The source with these ``members``, including its type. Raises: ValueError for an unknown type or members."""
    kind = SOURCE_TYPES.get(members.get("type", ""))
    if kind is None:
        raise ValueError(f"source type {members.get('type')!r} is unknown: it was stored by a newer ctxd")
    return msgspec.convert(members, kind)


def _pack_source(source: Source) -> tuple[str | bytes, str] | dict[str, Any]:
    """A pair for a file; for other kinds, the members with their names."""
    file = filesystem_source(source)
    if file is not None:
        return pack_text(file.filesystem_id), file.path
    members: dict[str, Any] = msgspec.to_builtins(source)
    return members


def _unpack_source(packed: Any) -> Source | None:  # noqa: ANN401
    """Undo ``_pack_source``."""
    if packed is None:
        return None
    return source_of(packed) if isinstance(packed, dict) else FilesystemSource(unpack_text(packed[0]), packed[1])


def encode_document(document: Document, *, ordered: bool = False) -> bytes:
    """The stored form of ``document``: everything except its id and content; with ``ordered``, with the keys of its
    payload sorted at every depth.

    Raises: TypeError, ValueError or OverflowError for a payload that is not a JSON value.
    """
    return (_sorting if ordered else _encoder).encode(
        (
            FORMAT,
            document.type,
            None if document.source is None else _pack_source(document.source),
            None if document.identity_hash == document.id else pack_text(document.identity_hash),
            None if document.source_hash is None else pack_text(document.source_hash),
            pack_text(document.content_hash),
            document.payload,
        )
    )


def decode_document(id: str, body: bytes, content: Content | None = None) -> Document:
    """Undo ``encode_document``; ``content`` is added.

    Raises: ValueError for an unknown format.
    """
    version, *fields = _decoder.decode(body)
    if version != FORMAT:
        raise ValueError(f"document form {version} is unknown")
    kind, source, identity, source_hash, hashed, payload = fields
    return Document(
        id=id,
        type=kind,
        source=_unpack_source(source),
        identity_hash=id if identity is None else unpack_text(identity),
        source_hash=None if source_hash is None else unpack_text(source_hash),
        content_hash=unpack_text(hashed),
        payload=payload,
        content=content,
    )
