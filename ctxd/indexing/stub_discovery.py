"""Discovery (spec 1 §5.6): files whose names an agent has seen become unread stubs.

Only existing regular files become stubs; all other paths are returned with a reason. A version that was read is never
changed. Many paths take one thread hop and one look-up.

The disk settles what a command's text leaves open: whether an uncertain name is a file's, and the top of the work tree
that git's names are relative to.
"""

import errno
import posixpath
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Literal, assert_never

import anyio.lowlevel
import msgspec

from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.indexing.host_visibility import PLACED_IN_A_ROW
from ctxd.indexing.shell.paths import PathCandidate
from ctxd.mounts.mapping import MountTable
from ctxd.objects.document import AsOf, Document, Stored, file_stub
from ctxd.objects.generated_ids import file_id
from ctxd.objects.version_state import is_deleted
from ctxd.sources.host_files import Look, Regular
from ctxd.sources.source_interface import LEADS_OUT, Missing, Special, Unreadable
from ctxd.store.version_store import VersionStore
from ctxd.store.write_types import NotCached
from ctxd_protocol.object_types import FilesystemSource

BASES_MAX: Final = 16
"""Maximum directories per command whose work tree is looked up. No real command runs git in more."""

PARENTS_MAX: Final = 64
"""Maximum parents checked for each of them."""


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one path, as given.

    ``created``: ``document`` is a stub to put, with a valid time of at least ``floor_vt`` (the object may exist if a
    deleted file reappeared). ``unchanged``: the object exists, or an earlier path of the same call is the same file.
    ``ignored``: ``object`` is ``None`` and ``reason`` holds the reason.
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
    indexer: Indexer, mounts: MountTable, workdir: str, paths: Iterable[str], valid_time: int | None = None
) -> tuple[FoundFile, ...]:
    """Decide on each of the agent's ``paths``, in order; files without a version at ``valid_time`` (None: now) get a
    stub.

    A path that the daemon may not read counts only if its object exists. Decided on the newest versions, without an
    await before returning (see ``ctxd.indexing.file_indexer``). Cancel: safe.
    """
    indexer.visibility.confine(mounts)
    places = await _places(indexer, mounts, workdir, list(paths))
    looks = await _looks(indexer, mounts, places)
    return await _judged_all(indexer.versions, places, looks, valid_time)


async def discover_named(
    indexer: Indexer, mounts: MountTable, candidates: Sequence[PathCandidate], valid_time: int | None = None
) -> tuple[FoundFile, ...]:
    """Decide on the candidates of a command, in order, each path once; ``valid_time``: see ``discover``.

    Uncertain candidates that have no object afterwards are left out. A missing one that is anchored to the repository
    is looked up below the top of the work tree: the nearest directory at or above its base with a ``.git``. Takes at
    most one thread hop more than ``discover``, with the same guarantee. Cancel: safe.
    """
    indexer.visibility.confine(mounts)
    elsewhere = await _from_the_top(indexer, mounts, candidates)
    paths = [candidate.path for candidate in candidates]
    places = await _places(indexer, mounts, "/", [*paths, *elsewhere.values()])
    looks = await _looks(indexer, mounts, places)
    for number, other in zip(elsewhere, places[len(paths) :], strict=True):
        here = places[number]
        if isinstance(here, _Place) and isinstance(other, _Place) and isinstance(looks.get(other.id), Regular):
            if isinstance(looks.get(here.id), Missing):
                places[number] = other
    found = await _judged_all(indexer.versions, places[: len(paths)], looks, valid_time)
    once = {one.path: one for one in reversed(found)}
    return tuple(
        one
        for candidate, one in zip(candidates, found, strict=True)
        if once[one.path] is one and (candidate.certain or one.object is not None)
    )


async def _from_the_top(indexer: Indexer, mounts: MountTable, candidates: Sequence[PathCandidate]) -> dict[int, str]:
    """The path of each anchored candidate below the top of the work tree, by its number, if it differs."""
    anchored = {number: one for number, one in enumerate(candidates) if one.anchor == "repository"}
    if not anchored:
        return {}
    bases = dict.fromkeys(one.base for one in anchored.values())
    above = {base: _upwards(base) for base in list(bases)[:BASES_MAX]}
    probes = dict.fromkeys(posixpath.join(parent, ".git") for parents in above.values() for parent in parents)
    places = await _places(indexer, mounts, "/", list(probes))
    looks = await _looks(indexer, mounts, places)
    holds = {place.path for place in places if isinstance(place, _Place) and _is_git(looks.get(place.id))}
    tops = {
        base: next((parent for parent in parents if posixpath.join(parent, ".git") in holds), base)
        for base, parents in above.items()
    }
    elsewhere: dict[int, str] = {}
    for number, one in anchored.items():
        top = tops.get(one.base, one.base)
        below = one.base.rstrip("/") + "/"
        if top != one.base and one.path.startswith(below):
            elsewhere[number] = posixpath.join(top, one.path[len(below) :])
    return elsewhere


def _upwards(base: str) -> list[str]:
    """``base`` and the directories above it."""
    parents = [base]
    while parents[-1] != "/" and len(parents) < PARENTS_MAX:
        parents.append(posixpath.dirname(parents[-1]))
    return parents


def _is_git(look: Look | None) -> bool:
    """True for a directory, or the file that a linked work tree and a submodule have instead."""
    return isinstance(look, Regular) or (isinstance(look, Special) and look.kind == "directory")


async def _places(indexer: Indexer, mounts: MountTable, workdir: str, paths: Sequence[str]) -> list[_Place | FoundFile]:
    places: list[_Place | FoundFile] = []
    for path, lies in zip(paths, await indexer.visibility.place(mounts, workdir, paths), strict=True):
        places.append(_placed(path, lies))
        if len(places) % PLACED_IN_A_ROW == 0:
            await anyio.lowlevel.checkpoint()
    return places


async def _looks(indexer: Indexer, mounts: MountTable, places: Sequence[_Place | FoundFile]) -> Mapping[str, Look]:
    """Stat each place that the daemon may read, by object id. Takes one thread hop."""
    known = [place for place in places if isinstance(place, _Place)]
    readable = await indexer.visibility.readable(mounts, [place.source for place in known])
    here = {place.id: place.source.path for place, near in zip(known, readable, strict=True) if near}
    return dict(zip(here, await indexer.files.look_many(list(here.values())), strict=True)) if here else {}


async def _judged_all(
    versions: VersionStore,
    places: Sequence[_Place | FoundFile],
    looks: Mapping[str, Look],
    valid_time: int | None,
) -> tuple[FoundFile, ...]:
    """Decide on the newest versions, without an await after reading them."""
    ids = [place.id for place in places if isinstance(place, _Place)]
    then = {} if valid_time is None else await versions.bulk(ids, AsOf(valid_time=valid_time))
    heads = await versions.heads(ids)
    stubbed: set[str] = set()
    found: list[FoundFile] = []
    for place in places:
        if isinstance(place, FoundFile):
            found.append(place)
            continue
        newest = versions.peek(place.id)
        head = heads.get(place.id) if isinstance(newest, NotCached) else newest
        reason = _why_not(looks.get(place.id), head)
        if reason:
            found.append(FoundFile(path=place.path, outcome="ignored", reason=reason))
        else:
            known = head if valid_time is None else then.get(place.id)
            found.append(_judged(place, looks.get(place.id), known, stubbed))
    return tuple(found)


def _placed(path: str, lies: FilesystemSource | CtxdError) -> _Place | FoundFile:
    if isinstance(lies, CtxdError):
        return FoundFile(path=path, outcome="ignored", reason=lies.message)
    return _Place(path, file_id(lies), lies)


def _judged(place: _Place, look: Look | None, head: Stored | None, stubbed: set[str]) -> FoundFile:
    if place.id in stubbed or (head is not None and not (look and is_deleted(head.document))):
        return FoundFile(path=place.path, outcome="unchanged", object=place.id)
    stubbed.add(place.id)
    return FoundFile(
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
        case Unreadable(errno=errno.EXDEV):
            return LEADS_OUT
        case Unreadable():
            return "cannot be looked at"
        case Missing():
            return "no such file"
        case _:
            assert_never(look)
