"""The three hashes of an object (spec 1 §2.2): SHA-256, as 64 lower-case hex digits.

Identity says which object it is, source whether the outside thing changed, content whether the document changed. All
but the source hash are taken over the canonical encoding.
"""

import hashlib
from typing import Any

from ctxd.objects.canonical import canonical, canonical_text
from ctxd_protocol.objects import FilesystemSource


def identity_hash(type: str, source: FilesystemSource | None, id: str) -> str:
    """Which object it is: over type and source, or over type and ``id`` for an object without a source.

    Raises: ValueError if a part has no canonical encoding (a path that is not UTF-8).
    """
    if source is None:
        # The canonical encoding of an object with these two fields.
        return hashlib.sha256(b'{"type":%b,"xt/id":%b}' % (canonical_text(type), canonical_text(id))).hexdigest()
    return _sha256({"source": source_binding(source), "type": type})


def source_hash(raw: bytes) -> str:
    """What the source held: over its bytes as they are, whatever their encoding."""
    return hashlib.sha256(raw).hexdigest()


def content_hash(payload: dict[str, Any], content: str | None) -> str:
    """What the document says: over every mutable field, ``content`` among them unless it is null.

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
