"""Which id an object has, and which object an id, or the start of one, means.

The promise: ids of different origin never meet. A file's id is a hash of its source; everything ctxd names itself has a
reserved prefix; a tool call keeps its harness's id unless that could be taken for one of those.
"""

import re
from collections.abc import Iterable
from typing import Final

from ctxd.errors import CtxdError
from ctxd.objects.hashing import identity_hash
from ctxd_protocol.ids import PREFIX_CHARS_MIN, ObjectId, toolcall_alias
from ctxd_protocol.objects import FilesystemSource

RESERVED_PREFIXES: Final = ("chat:", "session:", "system_prompt:", "segment:", "assembly:", "toolcall:")
"""How ids begin that ctxd makes. A harness's id that begins so is aliased."""

_HASH: Final = re.compile(r"[0-9a-f]{64}")


def file_id(source: FilesystemSource) -> ObjectId:
    """The id of the file at ``source``: its identity hash.

    Raises: CtxdError invalid_path for a path that is not valid UTF-8.
    """
    try:
        return ObjectId(identity_hash("file", source, ""))
    except ValueError as error:
        raise CtxdError("invalid_path", f"path {source.path!r} is not valid UTF-8") from error


def is_reserved(id: str) -> bool:
    """Whether ``id`` could be taken for one that ctxd makes: a reserved prefix, or the look of a file's id."""
    return id.startswith(RESERVED_PREFIXES) or _HASH.fullmatch(id) is not None


def toolcall_id(session: str, harness_id: str, *, taken: bool) -> ObjectId:
    """The id under which ``session`` keeps its tool call: the harness's own, or an alias.

    ``taken``: an object of that id exists and is not this session's.
    """
    if taken or is_reserved(harness_id):
        return toolcall_alias(session, harness_id)
    return ObjectId(harness_id)


def resolve(text: str, known: Iterable[str]) -> ObjectId:
    """The one id of ``known`` that ``text`` is, or begins; a whole id wins over longer ids that begin with it.

    Raises: CtxdError object_not_found if there is none or ``text`` is a start of fewer than 8 characters, ambiguous_id
    if there are several.
    """
    found: list[str] = []
    for id in known:
        if id == text:
            return ObjectId(id)
        if id.startswith(text):
            found.append(id)
    if len(text) < PREFIX_CHARS_MIN:
        hint = f"Give the whole id, or at least {PREFIX_CHARS_MIN} characters of it." if found else ""
        raise CtxdError("object_not_found", f"no object id={text}", hint=hint)
    if not found:
        raise CtxdError("object_not_found", f"no object id={text}")
    if len(found) > 1:
        names = ", ".join(sorted(found)[:3])
        raise CtxdError(
            "ambiguous_id", f"{len(found)} objects begin with {text}", hint=f"Among them {names}: give more of it."
        )
    return ObjectId(found[0])
