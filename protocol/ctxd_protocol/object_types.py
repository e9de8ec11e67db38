"""Object versions as clients see them (spec 1 §2)."""

from typing import Any, Literal

import msgspec

ObjectType = Literal["file", "toolcall", "chat", "system_prompt", "session"]
ToolcallStatus = Literal["ok", "fail", "aborted", "unanswered"]
"""``aborted``: it was interrupted before it ended. ``unanswered``: no result came, and none will."""
ObjectState = Literal["present", "unread", "deleted", "orphaned", "purged"]
"""``unread``: known by name only. ``deleted``: its source is confirmed gone. ``orphaned``: its source is unreachable.
``purged``: its content was erased on request."""


class FilesystemSource(msgspec.Struct, frozen=True, gc=False, tag="filesystem", tag_field="type", rename="camel"):
    """A file, by the filesystem it lives on and its canonical absolute path there (spec 1 §2.3)."""

    filesystem_id: str
    path: str


Source = FilesystemSource
"""What an object is bound to: a tagged union, by ``type``. Filesystem files are its only member today."""


def filesystem_source(source: Source | None) -> FilesystemSource | None:
    """``source`` if it is a file on a filesystem; None for no source and for every other kind, which has no path."""
    return source if isinstance(source, FilesystemSource) else None


def source_label(source: Source) -> str:
    """``source`` for a person: the path of a file; of every other kind its type and its members, ``type:one/two``."""
    file = filesystem_source(source)
    if file is not None:
        return file.path
    members: dict[str, object] = msgspec.to_builtins(source)
    return f"{members.pop('type')}:{'/'.join(map(str, members.values()))}"


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proof that a write is durable: its place in the journal, the chain hash there, its valid time (ms since 1970)."""

    seq: int
    chain: str
    vt: int
    durable: Literal["disk"] = "disk"


class ObjectVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one object.

    ``payload`` holds the type's own fields; ``content`` is among them unless the caller left it out. With
    ``payload["encoding"]`` ``base64`` it is bytes, of the kind ``payload["media_type"]``; without, it is text.
    ``valid_time`` and ``tx_time`` are milliseconds since 1970, ``tx`` is the journal sequence that wrote the version.
    ``source_hash`` is None for an unread or deleted file and for objects without a source. ``payload["secrets"]``, of
    the shape of ``ctxd_protocol.secrets.Secrets``, lists secrets found in it.
    """

    id: str
    type: ObjectType
    source: Source | None
    identity_hash: str
    source_hash: str | None
    content_hash: str
    payload: dict[str, Any]
    valid_time: int
    tx: int
    tx_time: int
    state: ObjectState = "present"
    display_path: str | None = None


class VersionRow(msgspec.Struct, frozen=True, kw_only=True):
    """One row of an object's history: its two times and its hashes, without content.

    ``content_hash`` is None for a chat and a session, which are folded from their writes: ``object.get`` at ``tx`` has
    it.
    """

    valid_time: int
    tx: int
    tx_time: int
    content_hash: str | None
    source_hash: str | None
    state: ObjectState
    char_count: int | None = None
