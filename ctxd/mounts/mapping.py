"""Mount mapping: from the path an agent uses to the canonical path, and back (spec 1 §5.3).

Everything is lexical: no file is accessed, so the result does not depend on whether the sandbox still runs. Prefixes
match whole components, and the longest one wins, in both directions. Guarantee: a display path maps back to the same
file, or it is the canonical path because the agent has no name for the file.
"""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import Final

from ctxd.errors import CtxdError
from ctxd_protocol.object_types import FilesystemSource, Source, filesystem_source, source_label
from ctxd_protocol.session_types import Mount

PATH_BYTES_MAX: Final = 4096
"""Maximum bytes of a path in UTF-8: Linux's PATH_MAX."""

UNMOUNTED: Final = "<unmounted>"
"""The display path, for an agent in a sandbox, of a file that none of its mounts covers (any more)."""


class _MountRule:
    """One mapping. The prefix of the root is ``""``, so that ``prefix + "/"`` always ends a component."""

    __slots__ = ("agent", "canonical", "filesystem_id")

    def __init__(self, agent: str, canonical: str, filesystem_id: str) -> None:
        self.agent = agent
        self.canonical = canonical
        self.filesystem_id = filesystem_id


class MountTable:
    """The mappings of one session. Immutable: a new one is created when the session's mounts change."""

    __slots__ = ("_by_agent", "_by_canonical", "_own", "by_device", "filesystem_id", "host_filesystem_id")

    def __init__(
        self,
        mounts: Iterable[Mount],
        *,
        filesystem_id: str,
        host_filesystem_id: str,
        by_device: bool = False,
        observations: str | None = None,
        resolved: Sequence[str] = (),
    ) -> None:
        """``resolved`` are the canonical prefixes of ``mounts`` with symlinks resolved; empty: use them as given.

        ``filesystem_id`` is that of paths that no mount covers; a mount without one is on the host. ``by_device``: a
        path that no mount covers is a host path, on the filesystem of its device. ``ctxd.indexing.host_visibility``
        looks up that filesystem; here such a path still gets ``filesystem_id``. ``observations`` is the filesystem id
        of the session's own observations.
        Raises: CtxdError invalid_path for a prefix that is not an absolute path, or a duplicate agent prefix.
        """
        self.filesystem_id = filesystem_id
        self.host_filesystem_id = host_filesystem_id
        self.by_device = by_device
        self._own = (filesystem_id, observations)
        rules: dict[str, _MountRule] = {}
        for mount, plain in zip_longest(mounts, resolved):
            agent, canonical = mount_prefix(mount.agent_prefix), mount_prefix(plain or mount.canonical_prefix)
            if agent in rules:
                raise CtxdError("invalid_path", f"two mounts at {mount.agent_prefix!r}", hint="Keep one of them.")
            rules[agent] = _MountRule(agent, canonical, mount.filesystem_id or host_filesystem_id)
        # Sorting is stable: of two equally long canonical prefixes, the one configured first is displayed.
        self._by_agent = sorted(rules.values(), key=lambda rule: -len(rule.agent))
        self._by_canonical = sorted(rules.values(), key=lambda rule: -len(rule.canonical))

    @classmethod
    def of_host(cls, filesystem_id: str) -> "MountTable":
        """The table of an agent on the host: all files that the daemon itself can read."""
        return cls((), filesystem_id=filesystem_id, host_filesystem_id=filesystem_id, by_device=True)

    @property
    def in_sandbox(self) -> bool:
        """True if the agent has a filesystem of its own and sees only mounted directories of the host."""
        return self.filesystem_id != self.host_filesystem_id and not self.by_device

    @property
    def host_roots(self) -> tuple[str, ...]:
        """The host directories that a sandbox sees, and may plant symlinks in; empty for an agent on the host."""
        if not self.in_sandbox:
            return ()
        on_host = (rule for rule in self._by_canonical if rule.filesystem_id == self.host_filesystem_id)
        return tuple(rule.canonical or "/" for rule in on_host)

    @property
    def view(self) -> tuple[tuple[str, str | None], ...]:
        """Each agent prefix with its host directory, `None` if it is not on the host. The root is an empty prefix."""
        host = self.host_filesystem_id
        return tuple((rule.agent, rule.canonical if rule.filesystem_id == host else None) for rule in self._by_agent)

    def forward(self, path: str, workdir: str = "/") -> FilesystemSource:
        """The source of the agent's ``path``; see `locate`."""
        return self.locate(path, workdir)[0]

    def locate(self, path: str, workdir: str = "/") -> tuple[FilesystemSource, str | None]:
        """The source of the agent's ``path``, and the canonical prefix of its mount, `None` without one.

        Symlinks are not followed. A relative path is relative to ``workdir``. The root is an empty prefix.
        Raises: CtxdError invalid_path (see ``normalise``), also when the canonical path would be too long.
        """
        agent_path = normalise(path, workdir)
        for rule in self._by_agent:
            rest = _below(rule.agent, agent_path)
            if rest is not None:
                canonical = rule.canonical + rest or "/"
                _check_length(canonical)
                return FilesystemSource(rule.filesystem_id, canonical), rule.canonical
        return FilesystemSource(self.filesystem_id, agent_path), None

    def display(self, source: Source) -> str:
        """The agent's path of the file at ``source``; without one, the canonical path, or ``UNMOUNTED`` for an agent in
        a sandbox, which must not see host paths. A sandbox sees no source of another kind."""
        name = self.agent_path(source)
        if name is not None:
            return name
        file = filesystem_source(source)
        is_own = file is not None and file.filesystem_id in self._own
        return UNMOUNTED if self.in_sandbox and not is_own else source_label(source)

    def agent_path(self, source: Source) -> str | None:
        """The path of the file at ``source`` in the agent's mounts; ``None`` if no mount contains it.

        ``None`` also for a source that is not a file.
        """
        file = filesystem_source(source)
        if file is None:
            return None
        for rule in self._by_canonical:
            if rule.filesystem_id != file.filesystem_id:
                continue
            rest = _below(rule.canonical, file.path)
            # Another mount may cover that name, which then means a different file.
            if rest is not None and self._innermost(rule.agent + rest) is rule:
                return rule.agent + rest or "/"
        return None

    def _innermost(self, agent_path: str) -> _MountRule | None:
        for rule in self._by_agent:
            if _below(rule.agent, agent_path or "/") is not None:
                return rule
        return None


def normalise(path: str, workdir: str = "/") -> str:
    """``path`` as an absolute path without ``.``, ``..``, empty components or a trailing slash.

    ``..`` removes the component before it, even if that is a symlink on disk. ``workdir`` is absolute.
    Raises: CtxdError invalid_path if the path is empty, longer than 4,096 bytes, climbs above the root, holds a NUL or
    is not valid UTF-8.
    """
    if not path:
        raise CtxdError("invalid_path", "the path is empty")
    if "\0" in path:
        raise CtxdError("invalid_path", f"path {path[:100]!r} holds a NUL byte")
    _check_length(path)
    whole = path if path.startswith("/") else f"{workdir}/{path}"
    if not whole.startswith("/"):
        message = f"path {path[:100]!r} is relative to {workdir[:100]!r}, which is relative too"
        raise CtxdError("invalid_path", message, hint="Give an absolute working directory.")
    parts: list[str] = []
    for part in whole.split("/"):
        if part == "..":
            if not parts:
                raise CtxdError("invalid_path", f"path {path[:100]!r} climbs above the root")
            parts.pop()
        elif part and part != ".":
            parts.append(part)
    normal = "/" + "/".join(parts)
    _check_length(normal)
    return normal


def ancestors(path: str) -> Iterator[str]:
    """The parents of an absolute ``path`` by name, starting with the root as an empty string."""
    end = path.find("/")
    while end >= 0:
        yield path[:end]
        end = path.find("/", end + 1)


def _check_length(path: str) -> None:
    try:
        size = len(path) if path.isascii() else len(path.encode())
    except UnicodeEncodeError as error:
        raise CtxdError("invalid_path", f"path {path[:100]!r} is not valid UTF-8") from error
    if size > PATH_BYTES_MAX:
        raise CtxdError("invalid_path", f"path of {size} bytes is longer than {PATH_BYTES_MAX}")


def mount_prefix(path: str) -> str:
    """Normalise a mount's prefix; the root becomes an empty string. Raises: CtxdError invalid_path."""
    if not path.startswith("/"):
        raise CtxdError("invalid_path", f"mount prefix {path[:100]!r} is not an absolute path")
    return normalise(path).rstrip("/")


def _below(prefix: str, path: str) -> str | None:
    """The rest of ``path`` after ``prefix``: empty for the prefix itself, else with a leading slash, or `None`."""
    if path == prefix or (not prefix and path == "/"):
        return ""
    return path[len(prefix) :] if path.startswith(prefix + "/") else None
