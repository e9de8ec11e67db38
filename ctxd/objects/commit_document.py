"""The stored fields of a context commit: the payload of its document, and the id of its entity."""

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Final

import msgspec

from ctxd.objects.generated_ids import COMMIT_PREFIX
from ctxd.objects.hashing import content_hash
from ctxd_protocol.ids import context_id

STORED_NAMES: Final = {
    "principal": "by",
    "format": "form",
    "checkpoint": "why",
    "commit_type": "type",
    "parent": "up",
    "machine": "on",
    "session": "in",
    "template": "as",
    "message_count": "msgs",
    "token_count": "toks",
    "depth": "deep",
    "position": "pos",
}
"""Shorter names of fields in the payload, because most deltas are little larger than the names."""

REVISION: Final = "rev"
"""Member of the payload with the number of changes of its summary and tags, absent before the first. Of two hosts'
versions the one with more changes is the newer, whatever the hosts' clocks show. It does not distinguish commits, so it
is not one of ``Fields``."""


class Position(msgspec.Struct, frozen=True, array_like=True):
    """A moment of a session: the turn of its chat and the number of events in it, and the numbers of its assemblies and
    indexed objects."""

    turn: int = 0
    place: int = 0
    assembly: int = 0
    objects: int = 0

    @property
    def chat(self) -> tuple[int, int]:
        """The position in the chat."""
        return self.turn, self.place


class Fields(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=STORED_NAMES):
    """The payload of a commit's document. ``at`` is the instant in ms since 1970. ``tags`` is None if it never had
    any. ``position``: the end of a checkpoint that the daemon made of the session, None for any other commit."""

    principal: str
    at: int
    format: str
    checkpoint: str
    commit_type: str = "delta"
    version: int = 1
    parent: str = ""
    machine: str = ""
    session: str | None = None
    template: str | None = None
    ticket_id: str = ""
    thread_id: str = ""
    message_count: int = 0
    token_count: int = 0
    depth: int = 0
    summary: str = ""
    tags: tuple[str, ...] | None = None
    position: Position | None = None

    @property
    def is_boundary(self) -> bool:
        """True if the commit replaces everything before it."""
        return self.commit_type != "delta"


def commit_hash(payload: dict[str, Any], artifact_ref: str | None) -> str:
    """The content hash of a commit's version. It covers the hash of the content, which may not fit in memory."""
    return content_hash(payload if artifact_ref is None else {**payload, "artifact_ref": artifact_ref}, None)


def entity_id(commit: str) -> str:
    """The entity id of ``commit``."""
    return COMMIT_PREFIX + commit


def commit_id(entity: str) -> str:
    """Undo ``entity_id``."""
    return entity.removeprefix(COMMIT_PREFIX)


def created_at(at: int) -> str:
    """The instant ``at``, in ms since 1970, as ISO 8601 in whole seconds: a part of the id (spec 3)."""
    return datetime.fromtimestamp(at // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def ids_of(fields: Fields, artifact_ref: str) -> Iterator[str]:
    """Candidate ids of the commit with ``fields`` and that content: it takes the first that is not another commit's.

    Commits with equal parents, contents, seconds and templates share the first three; the last two cover all fields.
    """
    template = fields.template or ""
    for digits in (8, 12, 16):
        yield context_id(fields.parent, artifact_ref, created_at(fields.at), template, digits=digits)
    # Many agents may start together with the same prompt, and differ only in their sessions.
    whole = msgspec.json.encode(msgspec.structs.replace(fields, at=0), order="sorted").decode()
    for digits in (16, 64):
        yield context_id(fields.parent, artifact_ref, created_at(fields.at), f"{template}\0{whole}", digits=digits)
