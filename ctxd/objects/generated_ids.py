"""Ids that ctxd makes itself, and how they differ from those that it receives.

The promise: ids of different origin never meet. A file's id is a hash of its source; everything else that ctxd names
has a reserved prefix; a tool call keeps its harness's id unless that could be taken for one of those.
"""

import hashlib
import re
from typing import Final

from ctxd.errors import CtxdError
from ctxd.objects.hashing import identity_hash
from ctxd.objects.kinds import KINDS
from ctxd_protocol.ids import ObjectId
from ctxd_protocol.object_types import FilesystemSource, Source, source_label

INFRASTRUCTURE_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.visible and kind.of_session)
"""Prefixes of ids of infrastructure objects (spec 1 §2.1)."""

INNER_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if not kind.visible)
"""Prefixes of ids of entities that are no objects: no client is shown one."""

UNCACHED_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.prefix and not kind.cached)
"""Prefixes of ids of entities whose newest version is not kept in memory: one that was accepted is found once it is
durable."""

UNPURGEABLE_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.purge != "erase")
"""Prefixes of ids that a purge of one object refuses."""

STORE_PREFIX: Final = "ctxd/"
"""Prefix of the ids of ctxd's own documents in a store that others can use as well."""

RESERVED_PREFIXES: Final = (*(kind.prefix for kind in KINDS if kind.prefix), STORE_PREFIX)
"""Prefixes of ids that ctxd makes. A harness's id with one of them is aliased."""

NUMBER_DIGITS: Final = 10
"""Digits of the number in a segment's and an assembly's id: with leading zeros, so that ids sort as numbers do."""

_SEGMENT: Final = f"segment:%s#%0{NUMBER_DIGITS}d"
_HASH: Final = re.compile(r"[0-9a-f]{64}")


def file_id(source: Source) -> ObjectId:
    """The id of the file at ``source``: its identity hash.

    Raises: CtxdError invalid_path for a path that is not valid UTF-8.
    """
    try:
        return ObjectId(identity_hash("file", source, ""))
    except ValueError as error:
        raise CtxdError("invalid_path", f"path {source_label(source)!r} is not valid UTF-8") from error


def observations(session: str) -> str:
    """The filesystem id under which ``session`` keeps its own observations of files."""
    return hashlib.sha256(f"observed\0{session}".encode()).hexdigest()


def observed(session: str, path: str) -> FilesystemSource:
    """The source of the file that ``session`` alone reports at its ``path``."""
    return FilesystemSource(observations(session), path)


def is_reserved(id: str) -> bool:
    """Return True if ``id`` could be taken for one that ctxd makes: a reserved prefix, or the form of a hash."""
    return id.startswith(RESERVED_PREFIXES) or (len(id) == 64 and is_hash(id))


def is_hash(id: str) -> bool:
    """Return True if ``id`` has the form of a hash, as a file's id has. It need not be a file's."""
    return len(id) == 64 and _HASH.fullmatch(id) is not None


_OWNED: Final = tuple(kind.prefix for kind in KINDS if kind.of_session and kind.stored)


def session_of(id: str) -> str | None:
    """Return the session that the entity ``id`` is a part of; None for an entity that several sessions may know."""
    return id.partition(":")[2].partition("#")[0] if id.startswith(_OWNED) else None


def segments_prefix(session: str) -> str:
    """Return the prefix of the ids of all segments of ``session``, and of no others."""
    return f"segment:{session}#"


def segment_id(session: str, number: int) -> str:
    """The id of segment ``number`` of ``session``."""
    return _SEGMENT % (session, number)


def cursor_mark(session: str) -> str:
    """The mark of ``session`` in cursors of its pages: 8 hex digits, so that another session refuses it."""
    return hashlib.sha256(f"cursor\0{session}".encode()).hexdigest()[:8]


def assemblies_prefix(session: str) -> str:
    """Return the prefix of the ids of all recorded assemblies of ``session``, and of no others."""
    return f"assembly:{session}#"


def assembly_id(session: str, number: int) -> str:
    """The id of the record of assembly ``number`` of ``session``."""
    return f"assembly:{session}#{number:0{NUMBER_DIGITS}d}"


def component_texts_prefix(session: str = "") -> str:
    """Return the prefix of the ids of all component texts of ``session``, and of no others; of every session without
    one."""
    return f"component_text:{session}#" if session else "component_text:"


def component_text_id(session: str, address: str) -> str:
    """The id of the component text at ``address`` of ``session``."""
    return f"component_text:{session}#{address}"


def entries_prefix(session: str) -> str:
    """Return the prefix of the ids of all entries of ``session``, and of no others."""
    return f"session_entry:{session}#"


def entry_id(session: str, key: str) -> str:
    """The id of the entry ``key`` of ``session``."""
    return f"session_entry:{session}#{key}"


COMMIT_PREFIX: Final = "commit:"
"""Prefix of the entities of context commits; the id that clients know follows."""


def number_of(id: str) -> int:
    """The number in the id of a segment or an assembly."""
    return int(id[-NUMBER_DIGITS:])
