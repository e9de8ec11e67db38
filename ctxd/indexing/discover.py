"""Discovery (spec 1 §5.6): files that an agent saw the names of become unread stubs.

Only what is a regular file now becomes one; everything else is named with its reason. A version that was read is never
touched. Many paths cost one hop to a thread and one look-up.
"""

from collections.abc import Iterable
from typing import Literal, assert_never

import anyio.lowlevel
import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.reach import PLACED_IN_A_ROW, Reach
from ctxd.indexing.versions import Versions
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import Document, Stored
from ctxd.objects.identity import file_id
from ctxd.objects.kinds import is_deleted
from ctxd.objects.next_version import file_stub
from ctxd.sources.port import Look, Missing, Regular, Source, Special, Unreadable
from ctxd.store.answers import Missing as Unknown
from ctxd_protocol.objects import FilesystemSource


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One path that was looked at, as it was given.

    ``created``: ``document`` is a stub to put, with a valid time of at least ``floor_vt`` (the object may exist: a
    deleted file that is back). ``unchanged``: the object exists, or an earlier path of the same call is the same file.
    ``ignored``: ``object`` is null and ``reason`` says why.
    """

    path: str
    outcome: Literal["created", "unchanged", "ignored"]
    object: str | None = None
    reason: str | None = None
    document: Document | None = None
    floor_vt: int = 0


class _Place(msgspec.Struct, frozen=True):
    path: str
    id: str
    source: FilesystemSource


async def discover(
    versions: Versions, source: Source, reach: Reach, mounts: MountTable, workdir: str, paths: Iterable[str]
) -> tuple[Found, ...]:
    """What each of ``paths``, as the agent names them, comes to, in their order.

    A path out of ``reach`` cannot be looked at: it counts only if its object exists. Decided on the newest versions,
    without an await before returning (see ``ctxd.indexing.index``). Cancel: safe.
    """
    paths = list(paths)
    places: list[_Place | Found] = []
    for path, lies in zip(paths, await reach.place(mounts, workdir, paths), strict=True):
        places.append(_placed(path, lies))
        if len(places) % PLACED_IN_A_ROW == 0:
            await anyio.lowlevel.checkpoint()
    known = [place for place in places if isinstance(place, _Place)]
    readable = await reach.readable(mounts, [place.source for place in known])
    here = {place.id: place.source.path for place, near in zip(known, readable, strict=True) if near}
    looks = dict(zip(here, await source.look_many(list(here.values())), strict=True)) if here else {}
    heads = await versions.heads([place.id for place in known])
    stubbed: set[str] = set()
    found: list[Found] = []
    for place in places:
        if isinstance(place, Found):
            found.append(place)
            continue
        newest = versions.peek(place.id)
        head = heads.get(place.id) if isinstance(newest, Unknown) else newest
        found.append(_judged(place, looks.get(place.id), head, stubbed))
    return tuple(found)


def _placed(path: str, lies: FilesystemSource | CtxdError) -> _Place | Found:
    if isinstance(lies, CtxdError):
        return Found(path=path, outcome="ignored", reason=lies.message)
    return _Place(path, file_id(lies), lies)


def _judged(place: _Place, look: Look | None, head: Stored | None, stubbed: set[str]) -> Found:
    reason = _why_not(look, head)
    if reason:
        return Found(path=place.path, outcome="ignored", reason=reason)
    if place.id in stubbed or (head is not None and not (look and is_deleted(head.document))):
        return Found(path=place.path, outcome="unchanged", object=place.id)
    stubbed.add(place.id)
    return Found(
        path=place.path,
        outcome="created",
        object=place.id,
        document=file_stub(place.id, place.source),
        floor_vt=head.valid_time + 1 if head else 0,
    )


def _why_not(look: Look | None, head: Stored | None) -> str | None:
    match look:
        case None:
            return None if head else "not on the host's filesystem"
        case Regular():
            return None
        case Special():
            return look.kind.replace("_", " ")
        case Unreadable():
            return "cannot be looked at"
        case Missing():
            return "no such file"
        case _:
            assert_never(look)
