"""The state of a version, from its document: unread, deleted, purged or reclaimed, or a file whose content is not kept.
Pure."""

from typing import Literal, cast

from ctxd.objects.document import Document
from ctxd_protocol.object_types import ObjectState


def is_unread(document: Document) -> bool:
    """True if only the name of the file is known: its source was never read."""
    return (
        document.type == "file"
        and document.source_hash is None
        and "kind" not in document.payload
        and not is_deleted(document)
        and not is_purged(document)
    )


def is_deleted(document: Document) -> bool:
    """True if the version records that the file is confirmed deleted."""
    return document.payload.get("deleted") is True


def is_purged(document: Document) -> bool:
    """True if the content of the version was destroyed on request."""
    return document.payload.get("purged") is True


def is_reclaimed(document: Document) -> bool:
    """True if the content of the version was destroyed to free space, so that it may come back from another host."""
    return document.payload.get("reclaimed") is True


def state_of(document: Document) -> ObjectState:
    """The state recorded in the version; whether the source can be reached now is known only to its reader."""
    if is_purged(document):
        return "purged"
    if is_deleted(document):
        return "deleted"
    return "unread" if is_unread(document) else "present"


def unkept_kind(document: Document) -> Literal["too_large", "binary"] | None:
    """Why the version of a file that exists has no content: it is too large, or binary and not kept under its secret
    policy. None for any other version."""
    kind = document.payload.get("kind")
    if kind == "too_large" or (kind == "binary" and "encoding" not in document.payload):
        return cast("Literal['too_large', 'binary']", kind)
    return None


def unkept_text(document: Document) -> str:
    """The kind of ``unkept_kind`` with the size of the file, for a reader; empty for any other version."""
    kind = unkept_kind(document)
    return "" if kind is None else f"{kind.replace('_', ' ')}, {document.payload['size_bytes']:,} bytes"


def binary_text(document: Document, hint: str = "") -> str:
    """The line that stands for the binary content of the version, with ``hint`` behind its size."""
    return f"[{document.payload['media_type']}, {document.payload['size_bytes']:,} bytes{hint}]"
