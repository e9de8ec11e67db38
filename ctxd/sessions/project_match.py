"""Sessions of a project: matches directories that belong to one project, and resolves project names. Pure.

Directory, remotes and root commits of a project may all change: a directory becomes a repository, gets a remote, is
moved or cloned again. So none of them is its identity: two projects are the same if any one matches, unless another
contradicts.
"""

import re
from collections.abc import Iterator
from posixpath import basename
from typing import Final

import msgspec

from ctxd.sources.git_remote_address import normal_remote
from ctxd_protocol.session_types import Project

Key = tuple[str, ...]
"""A trait that sessions of one project share; the first member is its kind."""

_ROOT: Final = re.compile("[0-9a-f]{7,64}")
_DEPTH_MAX: Final = 64


class ProjectFilter(msgspec.Struct, frozen=True):
    """Filter for the sessions of the project ``at`` a directory, or with ``name``. See ``SessionListParams``."""

    at: Project | None = None
    name: str = ""

    def passes(self, project: Project | None) -> bool:
        """Return True if sessions of ``project`` pass."""
        if project is None:
            return False
        return _is_named(self.name, project) if self.at is None else _is_same(self.at, project)

    @property
    def keys(self) -> list[Key]:
        """Keys, see ``keys_of``: every session that passes has at least one. Empty if only ``passes`` decides."""
        at = self.at
        if at is None:
            return [] if _ROOT.fullmatch(self.name) else [("name", _last(self.name))]
        # A project without a remote matches any remote.
        kind = "unnamed" if at.remotes else "root"
        return [
            *(("remote", remote, at.path) for remote in at.remotes[:1]),
            *((kind, root, at.path) for root in at.roots),
            ("at", place_of(at)),
        ]


def keys_of(project: Project) -> Iterator[Key]:
    """Yield the keys of the sessions of ``project``, including keys for each parent directory."""
    paths = [*_above(project.path)][:_DEPTH_MAX]
    for path in paths:
        for remote in project.remotes[:1]:
            yield "remote", remote, path
        for root in project.roots:
            yield "root", root, path
            if not project.remotes:
                yield "unnamed", root, path
    yield from (("kin", root, remote) for root in project.roots for remote in project.remotes[:1])
    place = place_of(project)
    yield "at", "/"
    yield from (("at", f"/{path}") for path in [*_above(place.strip("/"))][1 : _DEPTH_MAX + 1])
    yield "name", project_name(project)


def place_of(project: Project) -> str:
    """Return the directory of the sessions of ``project``: its root and the path below."""
    return f"{project.directory.rstrip('/')}/{project.path}" if project.path else project.directory


def project_name(project: Project) -> str:
    """Return the last part of the project's first remote, else of its directory."""
    return _last(project.remotes[0]) if project.remotes else basename(project.directory) or "/"


def _is_same(at: Project, project: Project) -> bool:
    """Return True if ``project`` is the project ``at`` a directory, at or below its path."""
    if _contradict(at.roots, project.roots):
        return False
    is_plain = not (project.roots or project.remotes)
    if project.directory == at.directory or (
        _share(at.remotes[:1], project.remotes[:1])
        or (_share(at.roots, project.roots) and not _contradict(at.remotes[:1], project.remotes[:1]))
    ):
        return _is_below(at.path, project.path)
    # A session from before the directory was a repository.
    is_repository = bool(at.roots or at.remotes)
    return is_plain and is_repository and _is_below(place_of(at).strip("/"), project.directory.strip("/"))


def _is_named(name: str, project: Project) -> bool:
    if _ROOT.fullmatch(name) and any(root.startswith(name) for root in project.roots):
        return True
    for remote in project.remotes[:1]:
        if f"/{remote}".endswith(f"/{name}") or remote == normal_remote(name):
            return True
    return not project.remotes and project_name(project) == name


def _share(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return not set(one).isdisjoint(other)


def _contradict(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    return bool(one and other) and set(one).isdisjoint(other)


def _is_below(above: str, path: str) -> bool:
    return not above or path == above or path.startswith(f"{above}/")


def _above(path: str) -> Iterator[str]:
    """Yield the parents of the relative ``path``, the empty one first, and ``path`` itself."""
    yield ""
    end = -1
    while path and (end := path.find("/", end + 1)) >= 0:
        yield path[:end]
    if path:
        yield path


def _last(name: str) -> str:
    """Return the last part of an address of any form."""
    plain = (normal_remote(name) or name) if ":" in name else name
    return re.split("[/:]", plain.rstrip("/"))[-1].removesuffix(".git")
