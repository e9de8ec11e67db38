"""The table of entity kinds.

A new kind of entity is one row of ``KINDS``, from which prefixes, caching and rules are derived.
"""

from typing import Final, Literal, NamedTuple, cast

from ctxd_protocol.object_types import ObjectType


class EntityKind(NamedTuple):
    """One kind of entity, with its treatment by the parts of the daemon."""

    name: str
    """The type of its documents."""
    prefix: str
    """The prefix of its ids; empty for kinds whose ids are a hash or a harness's own."""
    visible: bool
    """True if clients see it as an object (spec 1 §2.5)."""
    of_session: bool
    """True if the id contains the session that the entity belongs to."""
    stored: bool
    """False for objects that are folded from other entities."""
    cached: bool
    """True if its newest version is cached."""
    purge: Literal["erase", "restate", "refuse"]
    """Effect of a purge: erase its text, restate it without the purged parts, or refuse."""


KINDS: Final = (
    EntityKind("file", "", visible=True, of_session=False, stored=True, cached=True, purge="erase"),
    EntityKind("toolcall", "toolcall:", visible=True, of_session=False, stored=True, cached=True, purge="erase"),
    EntityKind("chat", "chat:", visible=True, of_session=True, stored=False, cached=False, purge="restate"),
    EntityKind("session", "session:", visible=True, of_session=True, stored=True, cached=True, purge="refuse"),
    EntityKind(
        "system_prompt", "system_prompt:", visible=True, of_session=True, stored=True, cached=True, purge="erase"
    ),
    EntityKind("segment", "segment:", visible=False, of_session=True, stored=True, cached=False, purge="restate"),
    EntityKind("assembly", "assembly:", visible=False, of_session=True, stored=True, cached=True, purge="refuse"),
    EntityKind(
        "component_text", "component_text:", visible=False, of_session=True, stored=True, cached=True, purge="erase"
    ),
    EntityKind(
        "session_entry", "session_entry:", visible=False, of_session=True, stored=True, cached=True, purge="erase"
    ),
    EntityKind("commit", "commit:", visible=False, of_session=False, stored=True, cached=True, purge="erase"),
    EntityKind("artifact", "artifact:", visible=False, of_session=False, stored=True, cached=True, purge="erase"),
    EntityKind(
        "artifact_tag", "artifact_tag:", visible=False, of_session=False, stored=True, cached=True, purge="refuse"
    ),
    EntityKind("sandbox", "sandbox:", visible=False, of_session=False, stored=True, cached=True, purge="refuse"),
    EntityKind("fence", "fence:", visible=False, of_session=False, stored=True, cached=True, purge="refuse"),
)
"""All kinds. A tool call gets the prefix ``toolcall:`` if its own id could be mistaken for another entity's."""

ContentKind = Literal["file", "toolcall"]
"""The kinds of objects in a session's sets. Each id is stored with its kind, which is never derived from the id."""

OBJECT_TYPES: Final[frozenset[str]] = frozenset(kind.name for kind in KINDS if kind.visible)
"""All types of objects (spec 1 §2.5)."""

_INFRASTRUCTURE: Final = {kind.prefix: kind.name for kind in KINDS if kind.visible and kind.of_session}


def type_of(id: str) -> ObjectType | None:
    """Return the type given by the prefix of an infrastructure id; None for other ids."""
    prefix, colon, _ = id.partition(":")
    return cast("ObjectType | None", _INFRASTRUCTURE.get(prefix + colon)) if colon else None
