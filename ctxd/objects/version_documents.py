"""The documents that become versions: each builder gives one whole, hashes included.

Nothing here decides whether a version is due. A builder's document is the same for the same arguments, so that equal
states of a source have equal content hashes in every session.
"""

import posixpath
from typing import Any, Final

import msgspec

from ctxd.objects.document import Content, Document
from ctxd.objects.hashing import BASE64, content_hash, identity_hash
from ctxd.secrets.policy import DEFAULT, keeps_bytes, to_payload
from ctxd_protocol.ids import system_prompt_id
from ctxd_protocol.objects import Source, ToolcallStatus, source_label
from ctxd_protocol.secrets import Secrets

UNKNOWN_MEDIA: Final = "application/octet-stream"
"""The media type of bytes of no known kind."""

_MEDIA_TYPES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\x7fELF", "application/x-elf"),
    (b"\0asm", "application/wasm"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"wOF2", "font/woff2"),
)
"""First bytes, and the media type of what begins with them."""


def file_type(path: str) -> str:
    """The lower-case extension of ``path``'s last component without its dot; ``text`` if it has none."""
    extension = posixpath.splitext(posixpath.basename(path))[1]
    return extension[1:].lower() or "text"


def file_stub(id: str, source: Source) -> Document:
    """A file of which only the name is known. ``id`` is ``file_id(source)``, here and below."""
    return _file(id, source, None, None, {"char_count": 0})


def file_text(id: str, source: Source, text: str, source_hash: str, secrets: Secrets | None = None) -> Document:
    """A file that was read. ``source_hash`` is the hash of the bytes that ``text`` was decoded from, keyed if something
    in it was redacted."""
    return _file(id, source, source_hash, text, {"char_count": len(text), **to_payload(secrets)})


def media_type(raw: bytes) -> str:
    """The media type of ``raw`` by its first bytes, the same on every host; that of unknown bytes if none is known."""
    if raw.startswith(b"RIFF"):
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(raw[8:12], UNKNOWN_MEDIA)
    return next((type for magic, type in _MEDIA_TYPES if raw.startswith(magic)), UNKNOWN_MEDIA)


def file_binary(id: str, source: Source, source_hash: str, raw: bytes, secrets: Secrets | None = None) -> Document:
    """A file whose bytes are no text; of bytes that its policy on secrets does not keep, the hash."""
    type = media_type(raw)
    fields = {"char_count": 0, "kind": "binary", "size_bytes": len(raw), "media_type": type}
    is_kept = keeps_bytes(type, DEFAULT if secrets is None else secrets.policy)
    encoding = {"encoding": BASE64} if is_kept else {}
    return _file(id, source, source_hash, raw if is_kept else None, {**fields, **encoding, **to_payload(secrets)})


def file_too_large(id: str, source: Source, size_bytes: int, modified_us: int | None = None) -> Document:
    """A file beyond the bound up to which files are read: size and time are all that is known of what it holds."""
    fields: dict[str, Any] = {"char_count": 0, "kind": "too_large", "size_bytes": size_bytes}
    if modified_us is not None:
        fields["modified_us"] = modified_us
    return _file(id, source, None, None, fields)


def file_tombstone(id: str, source: Source) -> Document:
    """A file that is confirmed gone. Its identity stays, so that the same path later is the same object."""
    return _file(id, source, None, None, {"char_count": 0, "deleted": True})


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

    ``unresolved_refs``: references to files that the session did not know, as the harness gave them.

    Raises: ValueError if ``args`` hold what JSON readers disagree on.
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
    id, payload = system_prompt_id(session), to_payload(secrets)
    return Document(
        id=id,
        type="system_prompt",
        identity_hash=identity_hash("system_prompt", None, id),
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )


def renamed(document: Document, id: str) -> Document:
    """``document`` as one of the entity ``id``."""
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
        # A file's id is its identity hash: hashing the source again would only cost time.
        identity_hash=id,
        source_hash=source_hash,
        content_hash=content_hash(payload, content),
        payload=payload,
        content=content,
    )
