"""The closed set of object types: what role each plays, which fields its payload has, and what state a version is in.

Segments and assemblies are stored as entities too, but are no objects: no client asks for them by type.
"""

from typing import Final, Literal

import msgspec

from ctxd.objects.document import Document
from ctxd_protocol.objects import ObjectState, ObjectType

Role = Literal["content", "infrastructure"]
"""Whether the agent works with it (activates, pins, pools it), or it is scaffolding of a session (spec 1 §2.1)."""


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """One type. ``fields`` are always in its payload, ``optional`` ones only when they apply; ``content`` is apart."""

    role: Role
    sourced: bool
    fields: frozenset[str]
    optional: frozenset[str] = frozenset()


KINDS: Final[dict[ObjectType, Kind]] = {
    "file": Kind(
        role="content",
        sourced=True,
        fields=frozenset({"file_type", "char_count"}),
        optional=frozenset({"kind", "size_bytes", "deleted"}),
    ),
    "toolcall": Kind(
        role="content",
        sourced=False,
        fields=frozenset({"tool", "args", "status", "chat_ref"}),
        optional=frozenset({"args_display", "file_refs"}),
    ),
    "chat": Kind(
        role="infrastructure",
        sourced=False,
        fields=frozenset({"turns", "session_ref", "turn_count", "toolcall_refs"}),
    ),
    "system_prompt": Kind(role="infrastructure", sourced=False, fields=frozenset()),
    "session": Kind(
        role="infrastructure",
        sourced=False,
        fields=frozenset({
            "session_id", "chat_ref", "system_prompt_ref", "session_index", "metadata_pool", "active_set", "pinned_set",
        }),
    ),
}  # fmt: skip
"""Every type an object can have (spec 1 §2.5)."""


def is_content(type: str) -> bool:
    """Whether objects of ``type`` can be activated, pinned and pooled. Not so a type that no object has."""
    match type:
        case "file" | "toolcall":
            return True
        case _:
            return False


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
    )


def is_deleted(document: Document) -> bool:
    """Whether the version says that the file's source is confirmed gone."""
    return document.payload.get("deleted") is True


def state_of(document: Document) -> ObjectState:
    """The state that the version itself tells; that a source cannot be reached now is known only to who tried."""
    if is_deleted(document):
        return "deleted"
    return "unread" if is_unread(document) else "present"
