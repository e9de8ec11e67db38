"""The three hashes of an object (spec 1 §2.2): SHA-256, as 64 lower-case hex digits.

The identity hash names the object, the source hash changes with its source, the content hash with the document. All
but the source hash are taken over the canonical encoding.
"""

import hashlib
from typing import Any

from ctxd.objects.canonical import canonical, canonical_text
from ctxd_protocol.objects import FilesystemSource


def identity_hash(type: str, source: FilesystemSource | None, id: str) -> str:
    """Hash the identity of an object: its type and source, or its type and ``id`` without a source.

    Raises: ValueError if a part has no canonical encoding (a path that is not UTF-8).
    """
    if source is None:
        # The canonical encoding of an object with these two fields.
        return hashlib.sha256(b'{"type":%b,"xt/id":%b}' % (canonical_text(type), canonical_text(id))).hexdigest()
    return _sha256({"source": source_binding(source), "type": type})


def source_hash(raw: bytes) -> str:
    """Hash the bytes of a source as they are, whatever their encoding."""
    return hashlib.sha256(raw).hexdigest()


def content_hash(payload: dict[str, Any], content: str | None) -> str:
    """Hash every mutable field of a document, ``content`` among them unless it is None.

    ``payload`` holds no key ``content``. Its ``secrets`` are left out: what is found in a text depends on the rules of
    the day, and equal text is equal. Raises: ValueError if a field has no canonical encoding.
    """
    if "secrets" in payload:
        payload = {name: field for name, field in payload.items() if name != "secrets"}
    if content is None:
        return _sha256(payload)
    return _sha256({**payload, "content": content})


def source_binding(source: FilesystemSource) -> dict[str, str]:
    """``source`` as the envelope spells it."""
    return {"filesystemId": source.filesystem_id, "path": source.path, "type": "filesystem"}


def _sha256(value: dict[str, Any]) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
