"""Object versions as clients see them (spec 1 §2)."""

from typing import Any, Literal

import msgspec

ObjectType = Literal["file", "toolcall", "chat", "system_prompt", "session"]
ToolcallStatus = Literal["ok", "fail", "aborted", "unanswered"]
"""``aborted``: it was interrupted before it ended. ``unanswered``: there is no result, and there will be none."""
ObjectState = Literal["present", "unread", "deleted", "orphaned", "purged"]
"""``unread``: known by name only. ``deleted``: its source is confirmed gone. ``orphaned``: its source is unreachable.
``purged``: its content was erased on request."""


class FilesystemSource(msgspec.Struct, frozen=True, gc=False, tag="filesystem", tag_field="type", rename="camel"):
    """A file, by its filesystem and its canonical absolute path there (spec 1 §2.3)."""

    filesystem_id: str
    path: str


Source = FilesystemSource
"""Source of an object: a tagged union, by ``type``, whose only member so far is a file."""


def filesystem_source(source: Source | None) -> FilesystemSource | None:
    """``source`` if it is a file on a filesystem; None without a source, and for other kinds, which have no path."""
    return source if isinstance(source, FilesystemSource) else None


def source_label(source: Source) -> str:
    """``source`` for display: the path of a file; for every other kind, its type and its members, ``type:one/two``."""
    file = filesystem_source(source)
    if file is not None:
        return file.path
    members: dict[str, object] = msgspec.to_builtins(source)
    return f"{members.pop('type')}:{'/'.join(map(str, members.values()))}"


class Receipt(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Proof that a write is durable: its journal sequence, the chain hash there, its valid time (ms since 1970)."""

    seq: int
    chain: str
    vt: int
    durable: Literal["disk"] = "disk"


class ObjectVersion(msgspec.Struct, frozen=True, kw_only=True):
    """One version of one object.

    ``payload`` has the type's own fields, including ``content`` unless the caller left it out. With
    ``payload["encoding"]`` ``base64`` the content is bytes of ``payload["media_type"]``; without, it is text.
    ``valid_time`` and ``tx_time`` are milliseconds since 1970, ``tx`` is the journal sequence that wrote the version.
    ``source_hash`` is None for an unread or deleted file and for objects without a source. ``payload["secrets"]``, of
    the shape of ``ctxd_protocol.secret_types.Secrets``, lists secrets found in it.
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

    ``content_hash`` is None for a chat and a session, which are folds of their writes: ``object.get`` at ``tx`` returns
    it.
    """

    valid_time: int
    tx: int
    tx_time: int
    content_hash: str | None
    source_hash: str | None
    state: ObjectState
    char_count: int | None = None
