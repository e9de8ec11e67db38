"""Identity of the project of a host directory: its git repository, or the directory itself.

``git`` reads the repository, because only it knows every format (packed, shallow, linked, reftable). It runs only if
there is a ``.git``, and the repository cannot make it run anything: it uses no configuration but the repository's own,
no network, and no hook, monitor, pager or replacement. If the daemon is root, ``git`` runs as the owner of the
repository. A repository that takes too long, or that the daemon may not read, counts as a plain directory.
"""

import os
import pwd
import stat
import subprocess
import threading
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

import anyio
import msgspec

from ctxd.mounts.mapping import ancestors
from ctxd.sources.git_remote_address import normal_remote
from ctxd.worker_threads import Lane, NoThread
from ctxd_protocol.session_types import Project

GIT_S: Final = 3.0
"""Seconds for one git command. Finding the root commits among a million takes about ten without a commit graph."""

LOOKUP_S: Final = 8.0
"""Seconds after which a directory on a hanging file system counts as one without a repository."""

ROOTS_MAX: Final = 32
REMOTES_MAX: Final = 8
"""Maximum root commits, and remotes, kept per repository: the first in their order."""

_OUTPUT_BYTES_MAX: Final = 1024 * 1024
_KEPT: Final = 256
_THREADS: Final = 2
_ROOTS_READ: Final = 1000
_ENTRIES_MAX: Final = 50_000
"""Maximum objects and references of a sandbox's repository."""

_PACKAGES: Final = (
    "package.json", "pyproject.toml", "Cargo.toml", "go.mod", "setup.py", "pom.xml", "build.gradle", "build.gradle.kts",
    "composer.json", "Gemfile", "mix.exs", "pubspec.yaml", "Package.swift", "CMakeLists.txt", "BUILD.bazel", "BUILD",
)  # fmt: skip
"""Files that build tools expect at the root of a package."""

_HARDENED: Final = ("--no-pager", "-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null", "-c", "gc.auto=0")
_ENVIRONMENT: Final = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    # A partial clone would fetch missing objects with programs named in its configuration.
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    # The real history, not one that a clone replaces locally.
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_GRAFT_FILE": "/dev/null",
    "LC_ALL": "C",
}


class _Repository(msgspec.Struct, frozen=True):
    remotes: tuple[str, ...]
    roots: tuple[str, ...]


class _Lookup(msgspec.Struct, eq=False):
    is_late: bool = False


class ProjectLookup:
    """Looks projects up in threads, a few concurrently. Unchanged repositories are not read again."""

    def __init__(self, git: str = "git") -> None:
        self._git = git
        self._lane = Lane("projects", _THREADS)
        self._running: set[_Lookup] = set()
        self._known: OrderedDict[str, tuple[object, _Repository]] = OrderedDict()

    async def project_of(self, directory: str, *, in_sandbox: bool = False, package: bool = False) -> Project:
        """The project of ``directory``, a normalised absolute host path that need not exist.

        ``in_sandbox``: a sandbox can write there, so a repository with parts elsewhere counts as a plain directory.
        ``package``: include the path of the package around the directory, found by the files of build tools; empty for
        the repository's root. Cancel: safe.
        """
        # A hanging file system occupies its thread. If all threads hang, do not wait for one.
        if sum(run.is_late for run in tuple(self._running)) < _THREADS:
            run = _Lookup()
            with suppress(NoThread), anyio.move_on_after(LOOKUP_S):
                return await self._lane.run(self._in_thread, run, directory, in_sandbox, package, abandon=True)
            run.is_late = True
        return Project(directory=directory)

    def _in_thread(self, run: _Lookup, directory: str, in_sandbox: bool, package: bool) -> Project:
        self._running.add(run)
        try:
            found = self._looked_up(directory, in_sandbox)
            return msgspec.structs.replace(found, path=_package_at(found)) if package else found
        finally:
            self._running.discard(run)

    def _looked_up(self, directory: str, in_sandbox: bool) -> Project:
        plain = Project(directory=directory)
        try:
            real = os.path.realpath(directory, strict=True)
        except (OSError, ValueError):
            return plain
        if real != directory and in_sandbox:
            return plain
        plain = Project(directory=real)
        top = _working_tree(real, may_be_linked=not in_sandbox)
        if in_sandbox and top is not None and _has_parts_elsewhere(f"{top.rstrip('/')}/.git"):
            return plain
        repository = None if top is None else self._repository(top)
        if top is None or repository is None:
            return plain
        below = os.path.relpath(real, top)
        return Project(
            directory=top, path="" if below == "." else below, remotes=repository.remotes, roots=repository.roots
        )

    def _repository(self, top: str) -> _Repository | None:
        """The repository whose working tree is ``top``; None if git cannot read it."""
        folder = f"{top.rstrip('/')}/.git"
        try:
            places = self._run(folder, top, "rev-parse", "--git-common-dir", "--is-shallow-repository").splitlines()
            common, is_shallow = os.path.join(top, os.fsdecode(places[0])), places[1] == b"true"
        except (OSError, IndexError):
            return None
        marks = tuple(_mark(path) for path in (f"{folder}/HEAD", f"{common}/HEAD", f"{common}/config"))
        known = self._known.get(top)
        if known is not None and known[0] == marks:
            return known[1]
        remotes = self._remotes(folder, top, common)
        roots = self._roots(folder, top, f"{common}/shallow" if is_shallow else None)
        made = _Repository(remotes, roots)
        if roots:
            # Do not cache a repository without commits: its first commit does not change these files.
            self._known[top] = (marks, made)
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return made

    def _remotes(self, folder: str, top: str, common: str) -> tuple[str, ...]:
        """The normalised remotes: ``origin`` first, the others by name."""
        try:
            listed = self._run(
                folder, top, "config", "--file", f"{common}/config", "--no-includes", "--null", "--get-regexp",
                r"^remote\..*\.url$",
            )  # fmt: skip
        except OSError:
            return ()
        named: dict[str, str] = {}
        for entry in listed.split(b"\0"):
            name, _, url = entry.decode("utf-8", "replace").partition("\n")
            found = normal_remote(url, top)
            if found is not None:
                named.setdefault(name, found)
        ordered = sorted(named, key=lambda name: (name != "remote.origin.url", name))
        return tuple(dict.fromkeys(named[name] for name in ordered))[:REMOTES_MAX]

    def _roots(self, folder: str, top: str, shallow: str | None) -> tuple[str, ...]:
        """The root commits of HEAD, sorted, without the boundary commits of a shallow clone."""
        try:
            found = set(
                self._run(
                    folder, top, "rev-list", "--max-parents=0", f"--max-count={_ROOTS_READ}", "HEAD", "--"
                ).split()
            )
            if shallow is not None:
                with open(shallow, "rb") as file:
                    found -= set(file.read(_OUTPUT_BYTES_MAX).split())
        except OSError:
            return ()
        return tuple(sorted(each.decode("ascii", "replace") for each in found))[:ROOTS_MAX]

    def _run(self, folder: str, top: str, *arguments: str) -> bytes:
        """The output of a git command. Raises: OSError, also if it fails, takes too long or prints too much."""
        environment = {**_ENVIRONMENT, "PATH": os.environ.get("PATH", os.defpath), "HOME": "/nonexistent"}
        process = subprocess.Popen(
            [self._git, *_HARDENED, f"--git-dir={folder}", *arguments],
            cwd="/", env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            **_owner_of(top),
        )  # fmt: skip
        late = threading.Timer(GIT_S, process.kill)
        late.start()
        with process:
            assert process.stdout is not None, "it is a pipe"
            output: bytes = process.stdout.read(_OUTPUT_BYTES_MAX + 1)
            if len(output) > _OUTPUT_BYTES_MAX:
                process.kill()
        late.cancel()
        if process.returncode != 0:
            raise OSError(f"git {arguments[0]} ended with {process.returncode}")
        return output


def _working_tree(directory: str, *, may_be_linked: bool) -> str | None:
    """The nearest directory at or above ``directory`` with a ``.git``. ``may_be_linked``: ``.git`` may be a file, as in
    a linked working tree or a submodule."""
    for top in reversed(list(ancestors(f"{directory.rstrip('/')}/."))):
        with suppress(OSError):
            found = os.lstat(f"{top}/.git")
            if stat.S_ISDIR(found.st_mode) or (may_be_linked and stat.S_ISREG(found.st_mode)):
                return top or "/"
    return None


def _has_parts_elsewhere(folder: str) -> bool:
    """True if the repository ``folder`` refers to another directory or file of objects, references or configuration, or
    has too many for a check."""
    if any(os.path.lexists(f"{folder}/{name}") for name in ("commondir", "objects/info/alternates")):
        return True
    number, left = 0, [f"{folder}/refs", f"{folder}/objects", folder]
    while left:
        place = left.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    number += 1
                    if entry.is_symlink() or number > _ENTRIES_MAX:
                        return True
                    if place != folder and entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
        except FileNotFoundError:
            continue
        except OSError:
            return True
    return False


def _package_at(project: Project) -> str:
    """The path of the nearest directory at or above that of ``project`` with a file of a build tool."""
    path = project.path
    while path and not any(os.path.isfile(f"{project.directory}/{path}/{name}") for name in _PACKAGES):
        path = os.path.dirname(path)
    return path


def _mark(path: str) -> tuple[int, ...] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _owner_of(top: str) -> dict[str, Any]:
    """Process arguments to run as the owner of ``top``; empty if this process is not root's. Raises: OSError."""
    if os.geteuid() != 0 or (owner := os.stat(top)).st_uid == 0:
        return {}
    try:
        group = pwd.getpwuid(owner.st_uid).pw_gid
    except KeyError:
        group = owner.st_gid
    return {"user": owner.st_uid, "group": group, "extra_groups": ()}
