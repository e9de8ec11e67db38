"""The closed set of object types, and what state a version is in.

Segments and assemblies are stored as entities too, but are no objects: no client asks for them by type.
"""

from typing import Final, get_args

from ctxd.objects.document import Document
from ctxd_protocol.objects import ObjectState, ObjectType

OBJECT_TYPES: Final[frozenset[str]] = frozenset(get_args(ObjectType))
"""Every type an object can have (spec 1 §2.5)."""


def type_of(id: str) -> ObjectType | None:
    """The type an infrastructure id speaks of by its prefix; null for every other id."""
    prefix, colon, _ = id.partition(":")
    if not colon:
        return None
    match prefix:
        case "chat" | "system_prompt" | "session":
            return prefix
        case _:
            return None


def is_unread(document: Document) -> bool:
    """Whether only the name of the file is known: its source was never read."""
    return (
        document.type == "file"
        and document.source_hash is None
        and "kind" not in document.payload
        and not is_deleted(document)
        and not is_purged(document)
    )


def is_deleted(document: Document) -> bool:
    """Whether the version says that the file's source is confirmed gone."""
    return document.payload.get("deleted") is True


def is_purged(document: Document) -> bool:
    """Whether what the version said was destroyed on request."""
    return document.payload.get("purged") is True


def state_of(document: Document) -> ObjectState:
    """The state that the version itself tells; that a source cannot be reached now is known only to who tried."""
    if is_purged(document):
        return "purged"
    if is_deleted(document):
        return "deleted"
    return "unread" if is_unread(document) else "present"
