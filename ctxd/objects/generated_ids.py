"""Ids that ctxd generates, and how they are kept apart from ids that it receives.

Guarantee: ids of different origin never collide. A file's id is a hash of its source; every other generated id has a
reserved prefix; a tool call keeps its harness's id unless that could be mistaken for a generated one.
"""

import hashlib
import re
from typing import Final

from ctxd.errors import CtxdError
from ctxd.objects.hashing import identity_hash
from ctxd.objects.kinds import KINDS
from ctxd_protocol.ids import ObjectId, is_context_id
from ctxd_protocol.object_types import FilesystemSource, Source, source_label

INFRASTRUCTURE_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.visible and kind.of_session)
"""Prefixes of ids of infrastructure objects (spec 1 §2.1)."""

INNER_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if not kind.visible)
"""Prefixes of ids of entities that are not objects, which clients never see."""

UNCACHED_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.prefix and not kind.cached)
"""Prefixes of ids of entities whose newest version is not cached: an accepted version is found once it is durable."""

UNPURGEABLE_PREFIXES: Final = tuple(kind.prefix for kind in KINDS if kind.purge != "erase")
"""Prefixes of ids that cannot be purged as single objects."""

STORE_PREFIX: Final = "ctxd/"
"""Prefix of the ids of ctxd's own documents in a store that may be shared."""

RESERVED_PREFIXES: Final = (*(kind.prefix for kind in KINDS if kind.prefix), STORE_PREFIX)
"""Prefixes of generated ids. A harness's id with one of them is aliased."""

NUMBER_DIGITS: Final = 10
"""Digits of the number in a segment's or assembly's id, with leading zeros, so that ids sort like numbers."""

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
    """The filesystem id of the session's own observations of files."""
    return hashlib.sha256(f"observed\0{session}".encode()).hexdigest()


def observed(session: str, path: str) -> FilesystemSource:
    """The source of a file at ``path`` that only ``session`` reports."""
    return FilesystemSource(observations(session), path)


def is_reserved(id: str) -> bool:
    """Return True if ``id`` could be mistaken for a generated one: it has a reserved prefix, or the form of a hash."""
    return id.startswith(RESERVED_PREFIXES) or (len(id) == 64 and is_hash(id))


def is_hash(id: str) -> bool:
    """Return True if ``id`` has the form of a hash, as a file's id has. It need not be a file's."""
    return len(id) == 64 and _HASH.fullmatch(id) is not None


def names_commit(name: str) -> bool:
    """Return True if clients take ``name`` for the newest commit or for the id of a commit: never for a tag, or for a
    session."""
    return name == "HEAD" or is_context_id(name)


_OWNED: Final = tuple(kind.prefix for kind in KINDS if kind.of_session and kind.stored)


def session_of(id: str) -> str | None:
    """Return the session that the entity ``id`` belongs to; None for an entity that several sessions may know."""
    return id.partition(":")[2].partition("#")[0] if id.startswith(_OWNED) else None


def id_in(session: str, id: str) -> str:
    """Return the id in ``session`` of the entity that is ``id`` in the session that it belongs to."""
    kind, _, rest = id.partition(":")
    _, mark, name = rest.partition("#")
    return f"{kind}:{session}{mark}{name}"


def segments_prefix(session: str) -> str:
    """Return the prefix of the ids of all segments of ``session``, and of no others."""
    return f"segment:{session}#"


def segment_id(session: str, number: int) -> str:
    """The id of segment ``number`` of ``session``."""
    return _SEGMENT % (session, number)


def cursor_mark(session: str) -> str:
    """The mark of ``session`` in its cursors, 8 hex digits, by which other sessions refuse them."""
    return hashlib.sha256(f"cursor\0{session}".encode()).hexdigest()[:8]


def assemblies_prefix(session: str = "") -> str:
    """Return the prefix of the ids of all recorded assemblies of ``session``, and of no others; empty: of all
    sessions."""
    return f"assembly:{session}#" if session else "assembly:"


def assembly_id(session: str, number: int) -> str:
    """The id of the record of assembly ``number`` of ``session``."""
    return f"assembly:{session}#{number:0{NUMBER_DIGITS}d}"


def component_texts_prefix(session: str = "") -> str:
    """Return the prefix of the ids of all component texts of ``session``, and of no others; empty: of all sessions."""
    return f"component_text:{session}#" if session else "component_text:"


def component_text_id(session: str, address: str) -> str:
    """The id of the component text at ``address`` of ``session``."""
    return f"component_text:{session}#{address}"


ENTRY_PREFIX: Final = "session_entry:"
"""Prefix of the ids of the entries of all sessions."""


def entries_prefix(session: str) -> str:
    """Return the prefix of the ids of all entries of ``session``, and of no others."""
    return f"{ENTRY_PREFIX}{session}#"


def entry_id(session: str, key: str) -> str:
    """The id of the entry ``key`` of ``session``."""
    return entries_prefix(session) + key


COMMIT_PREFIX: Final = "commit:"
"""Prefix of the entity ids of context commits; the commit id follows."""


def number_of(id: str) -> int:
    """The number in the id of a segment or an assembly."""
    return int(id[-NUMBER_DIGITS:])
