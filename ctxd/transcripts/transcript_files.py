"""Files of a harness that may be transcripts: the places where it keeps them, and how a change of one is recognised.

Separate from their content, so that an import that finds no changed file loads no reader.
"""

import os
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from ctxd.transcripts.harness_names import HarnessCommand

_SUFFIXES: Final[dict[HarnessCommand, tuple[str, ...]]] = {
    "claude": (".jsonl",),
    "codex": (".jsonl", ".jsonl.zst"),
    "pi": (".jsonl",),
    "opencode": (".db", ".jsonl", ".json"),
}
_OLD_ROLLOUT: Final = re.compile(r"rollout-.*\.json")
"""Name of a rollout of codex before June 2025, which is one JSON document."""

_OWN_FILES: Final = frozenset({"app.json", "auth.json", "mcp-auth.json"})
_OWN_FOLDERS: Final = frozenset({"session_diff", "session_share", "share", "project", "todo", "permission"})
"""Files of opencode in a folder with a storage or a database, and folders in a storage, that hold no conversation."""

_FOREIGN: Final = frozenset({"sqlite3", "backports.zstd", "compression.zstd", "backports.zstd._zstd", "_zstd"})
"""Modules whose errors mean a damaged source."""


class Skipped(msgspec.Struct, frozen=True):
    """A file or a session that is not imported, and the reason."""

    path: str
    reason: str


class Stat(NamedTuple):
    """Identity of a file's content: equal values mean an unchanged file. For a folder, size and time are -1."""

    device: int
    inode: int
    size: int
    changed_ns: int


def default_places(harness: HarnessCommand, environment: Mapping[str, str], home: Path) -> list[Path]:
    """Return the places where a harness keeps its sessions, whether or not they exist."""
    match harness:
        case "claude":
            configured = environment.get("CLAUDE_CONFIG_DIR")
            roots = [Path(configured)] if configured else [home / ".claude", home / ".config/claude"]
            return [root / "projects" for root in roots]
        case "codex":
            root = Path(environment.get("CODEX_HOME") or home / ".codex")
            return [root / "sessions", root / "archived_sessions"]
        case "pi":
            if sessions := environment.get("PI_CODING_AGENT_SESSION_DIR"):
                return [Path(sessions)]
            return [Path(environment.get("PI_CODING_AGENT_DIR") or home / ".pi/agent") / "sessions"]
        case "opencode":
            data = Path(environment.get("XDG_DATA_HOME") or home / ".local/share") / "opencode"
            if chosen := environment.get("OPENCODE_DB"):
                return [data / chosen]
            return [*sorted(data.glob("opencode*.db")), data / "storage", *sorted(data.glob("project/*/storage"))]


def candidates(harness: HarnessCommand, place: Path) -> Iterator[Path | Skipped]:
    """Yield the files below ``place`` that may be transcripts, sorted by name; symlinks to folders are not followed."""
    if not place.is_dir():
        shown = _shown(str(place))
        yield place if shown == str(place) else Skipped(shown, "its path is not UTF-8: rename it")
        return
    if harness == "opencode" and (place / "session").is_dir():
        yield place
        return

    refused: list[OSError] = []
    for folder, folders, files in os.walk(place, onerror=refused.append):
        folders.sort()
        files = _without_own(harness, folder, folders, files)
        if harness == "opencode" and "storage" in folders and (Path(folder) / "storage" / "session").is_dir():
            folders.remove("storage")
            yield Path(folder) / "storage"
        for name in sorted(files):
            if _may_be_source(harness, name):
                path = os.path.join(folder, name)
                if (shown := _shown(path)) != path:
                    yield Skipped(shown, "its path is not UTF-8: rename it")
                elif name.endswith(".zst") and name.removesuffix(".zst") in files:
                    yield Skipped(path, "the same rollout is there uncompressed")
                else:
                    yield Path(path)
    for error in refused:
        yield Skipped(_shown(str(error.filename)), str(error.strerror))


def _without_own(harness: HarnessCommand, folder: str, folders: list[str], files: list[str]) -> list[str]:
    """Return the ``files`` in a folder without those that opencode keeps for itself, and leave out its own
    ``folders``."""
    if harness != "opencode":
        return files
    if os.path.basename(folder) == "storage":
        folders[:] = [name for name in folders if name not in _OWN_FOLDERS]
    if "storage" not in folders and not any(name.endswith(".db") for name in files):
        return files
    return [name for name in files if name not in _OWN_FILES]


def _may_be_source(harness: HarnessCommand, name: str) -> bool:
    return name.endswith(_SUFFIXES[harness]) or (harness == "codex" and _OLD_ROLLOUT.fullmatch(name) is not None)


def _shown(path: str) -> str:
    """Return ``path`` with an escape for each byte that is not part of UTF-8."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def changed_candidate(harness: HarnessCommand, path: Path) -> Path | None:
    """Return the candidate to which a changed ``path`` belongs, None for other files."""
    if harness == "opencode":
        for folder in path.parents:
            if folder.name == "storage" and (folder / "session").is_dir():
                return folder
        if path.name.endswith((".db-wal", ".db-shm", ".db-journal")):
            path = path.with_name(path.name.rpartition("-")[0])
    return path if _may_be_source(harness, path.name) and path.is_file() else None


def stat_of(path: Path) -> Stat:
    """Return the identity of a file's content; that of a database includes its write-ahead log. Raises: OSError, also
    for special files."""
    found = path.stat()
    if stat.S_ISDIR(found.st_mode):
        return Stat(found.st_dev, found.st_ino, -1, -1)
    if not stat.S_ISREG(found.st_mode):
        raise OSError(0, "not a regular file", str(path))
    size, changed = found.st_size, found.st_mtime_ns
    if path.suffix == ".db":
        log = path.with_name(path.name + "-wal")
        if log.exists():
            size, changed = size + log.stat().st_size, max(changed, log.stat().st_mtime_ns)
    return Stat(found.st_dev, found.st_ino, size, changed)


class SourceSkipped(Exception):
    """A source that cannot be imported now. The message is the reason, for the user."""


_OF_SOURCE: Final = (SourceSkipped, OSError, ValueError, EOFError, RecursionError)


def is_of_source(error: Exception) -> bool:
    """Return True for an error that ends the import of one source only: it is damaged, nested too deeply, missing or
    skipped."""
    return isinstance(error, _OF_SOURCE) or type(error).__module__ in _FOREIGN


def source_reason(error: Exception) -> str:
    """Return the reason of an error that a source causes."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return (error.strerror if isinstance(error, OSError) else "") or str(error)
