"""A document: one version of one entity, before or after it is stored.

Documents refer to nothing that refers back, so the garbage collector is spared looking at them: many are kept.
"""

from typing import Any

import msgspec

from ctxd_protocol.objects import FilesystemSource


class Document(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One version of an entity, as it is written.

    ``payload`` holds every mutable field but ``content``; ``content`` is the text itself, kept apart so that equal text
    is kept once. ``source_hash`` is None for unread and deleted files and for entities without a source.
    """

    id: str
    type: str
    source: FilesystemSource | None = None
    identity_hash: str
    source_hash: str | None = None
    content_hash: str
    payload: dict[str, Any]
    content: str | None = None


class Stored(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One version of an entity, as it was accepted.

    ``document.content`` is None unless the reader asked for content; ``content_ref`` then names it (BLAKE3, 64 hex
    digits), None if the version has none. ``tx`` is the journal sequence, ``valid_time`` and ``tx_time`` are ms since
    1970.
    """

    document: Document
    content_ref: str | None
    valid_time: int
    tx: int
    tx_time: int
