"""Files behind components of the system context: found, listed and read under the names that a session's agent uses.

Access is the same as for all other reads: a sandbox's mounts and symlinks bound which files can be opened, and each
text is a version in the file store. A file whose stamp has not changed since it was read is not read again: the check
costs one stat. This module never adds a file to a session's pool.
"""

import errno
import os
import pwd
import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import anyio
import msgspec

from ctxd.epochs.component import FileVersion, UnavailableComponent
from ctxd.errors import CtxdError
from ctxd.indexing.file_indexer import Indexer
from ctxd.objects.document import Stored
from ctxd.sessions.live_session import LiveSession, WriteRequest
from ctxd.sources.host_files import Look, Regular
from ctxd.sources.source_interface import Missing, Present, Special, Stamp, Unreadable, size_of
from ctxd.store.version_store import VersionStore
from ctxd.task_groups import task_group
from ctxd.worker_threads import in_thread
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.secret_types import SecretPolicy

FILE_BYTES_MAX: Final = 256 * 1024
"""Maximum bytes of a file whose text becomes a component. For a longer one, the model gets the size."""

SMALL_BYTES_MAX: Final = 4096
"""Maximum bytes of a small file."""

SMALL_FILES_MAX: Final = 1_000
"""Maximum small files whose texts are kept, those read last."""

NAMES_MAX: Final = 500
"""Maximum names taken from a directory, the first in sorted order."""

DIRECTORIES_MAX: Final = 64
"""Maximum directories above a working directory that are searched for files."""

AT_ONCE: Final = 8
"""Files that one session reads concurrently."""

TEXT_CHARS_MAX: Final = 16 * 1024 * 1024
"""Maximum characters of the texts kept for all sessions. The least recently used are evicted, and read again on
demand."""

_UID: Final = re.compile(r"uid:(\d{1,10})")

_READS_NOTHING: Final = frozenset({"file_not_found", "unsupported"})
_UNAVAILABLE: Final = frozenset({"source_unreachable", "path_escapes_mount", "store_backlog_full", "purged"})


class FileText(msgspec.Struct, frozen=True):
    """Text of a file. ``omitted_bytes``: the size of a file that is too long; its text is then empty, and ``version``
    None.

    Bytes that are not UTF-8 are replaced.
    """

    text: str
    omitted_bytes: int = 0
    version: FileVersion | None = None


class Account(msgspec.Struct, frozen=True):
    """Home directory and shell of a user of the host."""

    home: str
    shell: str


class AgentPath(msgspec.Struct, frozen=True):
    """A path as an agent names it, and the state of the file there. ``source``: its place on the host."""

    source: FilesystemSource
    look: Look

    @property
    def is_there(self) -> bool:
        """False if no file exists there."""
        return not isinstance(self.look, Missing)

    @property
    def is_directory(self) -> bool:
        """True for a directory."""
        return isinstance(self.look, Special) and self.look.kind == "directory"

    @property
    def is_file(self) -> bool:
        """True for a regular file, and for a file that cannot be examined and so may be regular."""
        return isinstance(self.look, Regular | Unreadable)

    @property
    def size_bytes(self) -> int:
        """Size of a regular file, 1 for anything else."""
        return size_of(self.look.stamp.fingerprint) if isinstance(self.look, Regular) else 1


class _KeptText(msgspec.Struct, frozen=True):
    """A text, the file's stamp before it was read, and the version of its object."""

    stamp: Stamp
    text: FileText


class AgentFiles:
    """Reads files through ``indexer``. The texts of all sessions are kept, by file and secrets policy."""

    def __init__(self, indexer: Indexer, versions: VersionStore) -> None:
        self._indexer = indexer
        self._versions = versions
        self._accounts: dict[int, Account | None] = {}
        self._kept: OrderedDict[tuple[FilesystemSource, SecretPolicy], _KeptText] = OrderedDict()
        self._chars = 0
        self._small: OrderedDict[FilesystemSource, tuple[Stamp, str | None]] = OrderedDict()

    async def home(self, live: LiveSession) -> str | None:
        """The home directory of the agent of ``live``, as the agent knows it; None if unknown. Cancel: safe."""
        given = live.settings.component_options.home
        if given is not None:
            return given.rstrip("/")
        account = await self.account(live)
        return None if account is None else account.home.rstrip("/")

    async def account(self, live: LiveSession) -> Account | None:
        """The account of the user who made ``live``, None for an agent in a sandbox. Cancel: safe."""
        found = _UID.fullmatch(live.settings.principal)
        if found is None or live.mounts.in_sandbox:
            return None
        uid = int(found[1])
        if uid not in self._accounts:
            # The host's user database may be on the network.
            self._accounts[uid] = await in_thread(_account_of, uid)
        return self._accounts[uid]

    async def look(self, live: LiveSession, paths: Iterable[str]) -> dict[str, AgentPath]:
        """Examine the files at ``paths``, as the agent of ``live`` names them, with three calls to worker threads.

        Paths that the daemon cannot see for this session are left out. Cancel: safe.
        """
        visibility, mounts = self._indexer.visibility, live.mounts
        visibility.confine(mounts)
        named = list(dict.fromkeys(paths))
        sources: dict[str, FilesystemSource] = {}
        found: dict[str, AgentPath] = {}
        for path, source in zip(named, await visibility.place(mounts, live.settings.workdir, named), strict=True):
            if isinstance(source, FilesystemSource):
                sources[path] = source
            elif source.code == "source_unreachable":
                found[path] = AgentPath(
                    FilesystemSource(live.settings.filesystem_id, path), Unreadable(errno.ETIMEDOUT)
                )
        readable = await visibility.readable(mounts, list(sources.values()))
        seen = {path: source for (path, source), may in zip(sources.items(), readable, strict=True) if may}
        looks = await self._indexer.files.look_many([source.path for source in seen.values()])
        for (path, source), look in zip(seen.items(), looks, strict=True):
            found[path] = AgentPath(source, look)
        return found

    async def list(self, places: Mapping[str, AgentPath]) -> dict[str, tuple[str, ...] | UnavailableComponent]:
        """The names in each directory of ``places``, sorted, at most ``NAMES_MAX``. Cancel: safe."""
        listed = await self._indexer.files.list_many([place.source.path for place in places.values()], NAMES_MAX)
        found: dict[str, tuple[str, ...] | UnavailableComponent] = {}
        for path, listing in zip(places, listed, strict=True):
            match listing:
                case Unreadable(errno=number):
                    found[path] = unavailable(path, number)
                case tuple():
                    found[path] = listing
                case _:
                    found[path] = ()
        return found

    async def small_text(self, live: LiveSession, path: str) -> str | UnavailableComponent | None:
        """The text of the small file at ``path``, which gets no version; None if there is no such file. Cancel:
        safe."""
        place = (await self.look(live, [path])).get(path)
        if place is None or not place.is_file or place.size_bytes > SMALL_BYTES_MAX:
            return None
        kept = self._small.get(place.source)
        if kept is not None and isinstance(place.look, Regular) and kept[0].settled:
            if kept[0].fingerprint == place.look.stamp.fingerprint:
                return kept[1]
        match await self._indexer.files.read(place.source):
            case Present(text=text, stamp=stamp):
                self._small.pop(place.source, None)
                self._small[place.source] = stamp, text
                if len(self._small) > SMALL_FILES_MAX:
                    self._small.popitem(last=False)
                return text
            case Unreadable(errno=number):
                return unavailable(path, number)
            case _:
                return None

    async def read(
        self, live: LiveSession, call: WriteRequest, places: Mapping[str, AgentPath]
    ) -> dict[str, FileText | UnavailableComponent]:
        """The text of each file in ``places``, read concurrently; a file that has disappeared meanwhile is left out.

        New versions are committed to ``live`` with ``call``; the caller holds the session's lock. Raises: CtxdError of
        the store. Cancel: safe; some of the files may have new versions then.
        """
        found: dict[str, FileText | UnavailableComponent] = {}
        slots = anyio.Semaphore(AT_ONCE)

        async def read(path: str, place: AgentPath, look: Regular) -> None:
            async with slots:
                text = await self._indexed(live, call, path, place, look)
            if text is not None:
                found[path] = text

        due: dict[str, tuple[AgentPath, Regular]] = {}
        for path, place in places.items():
            match place.look:
                case Unreadable(errno=number):
                    found[path] = unavailable(path, number)
                case Regular() if place.size_bytes > FILE_BYTES_MAX:
                    found[path] = FileText("", place.size_bytes)
                case Regular() as look:
                    if (text := await self._unchanged(live, path, place, look)) is not None:
                        found[path] = text
                    else:
                        due[path] = place, look
        async with task_group() as group:
            for path, (place, look) in due.items():
                group.start_soon(read, path, place, look)
        return {path: found[path] for path in places if path in found}

    async def _unchanged(self, live: LiveSession, path: str, place: AgentPath, look: Regular) -> FileText | None:
        """The kept text of the file, None if it may have changed."""
        key = (place.source, live.settings.secrets)
        kept = self._kept.get(key)
        if kept is None or not kept.stamp.settled or kept.stamp.fingerprint != look.stamp.fingerprint:
            return None
        version = kept.text.version
        assert version is not None, "only versions are kept"
        head = await self._versions.newest(version.object)
        if head is None or (head.tx, head.document.content_hash) != (version.tx, version.content_hash):
            # Another session has recorded other content, or the content was purged.
            return None
        self._kept.move_to_end(key)
        return msgspec.structs.replace(kept.text, version=msgspec.structs.replace(version, path=path))

    async def _indexed(
        self, live: LiveSession, call: WriteRequest, path: str, place: AgentPath, look: Regular
    ) -> FileText | UnavailableComponent | None:
        """Read the file, write a new version if it changed, and keep the text."""
        policy = live.settings.secrets
        try:
            indexed = await self._indexer.index(live.mounts, live.settings.workdir, path, policy=policy)
            if indexed.document is not None:
                live.submit(call.without_id(), **indexed.writes)
            head = await self._versions.newest(indexed.object)
            assert head is not None, "it was just indexed"
            text = await self._text(head)
        except CtxdError as error:
            if error.code in _READS_NOTHING:
                return None
            if error.code in _UNAVAILABLE:
                return UnavailableComponent(error.message)
            raise
        version = FileVersion(path, indexed.object, head.tx, head.document.content_hash)
        if len(text) > FILE_BYTES_MAX:
            # The file has grown since it was examined.
            return FileText("", len(text.encode()))
        made = FileText(text, version=version)
        self._keep((place.source, policy), _KeptText(look.stamp, made))
        return made

    async def _text(self, head: Stored) -> str:
        """The text of a version; for a binary one, its bytes decoded with replacements."""
        if head.content_ref is None:
            return ""
        content = (await self._versions.contents((head.content_ref,)))[head.content_ref]
        return content if isinstance(content, str) else content.decode(errors="replace")

    def _keep(self, key: tuple[FilesystemSource, SecretPolicy], kept: _KeptText) -> None:
        if (before := self._kept.pop(key, None)) is not None:
            self._chars -= _size(before)
        self._kept[key] = kept
        self._chars += _size(kept)
        while self._chars > TEXT_CHARS_MAX:
            _, gone = self._kept.popitem(last=False)
            self._chars -= _size(gone)


def is_below(found: Mapping[str, AgentPath], path: str, directories: Iterable[str | None]) -> bool:
    """True if ``path`` leads to a place below one of the ``directories``, with symlinks of both followed. All are
    looked up in ``found``; False for paths that it lacks."""
    at = found.get(path)
    roots = [place.source.path.rstrip("/") for each in directories if each and (place := found.get(each)) is not None]
    return at is not None and any(at.source.path.startswith(f"{root}/") for root in roots)


def directories_above(path: str) -> Sequence[str]:
    """``path`` and the ``DIRECTORIES_MAX`` nearest directories above it, outermost first.

    The root is included only if ``path`` is the root.
    """
    parts = path.strip("/").split("/")
    found = ["/"] if path == "/" else ["/" + "/".join(parts[: count + 1]) for count in range(len(parts))]
    return found[-1 - DIRECTORIES_MAX :]


def visible(found: Mapping[str, AgentPath], optional: Iterable[str]) -> dict[str, AgentPath]:
    """``found`` without those ``optional`` paths below directories that the daemon may not search: a system daemon
    cannot enter a private home directory, and requests must not be blocked by the files in it."""
    closed = {
        path
        for path in optional
        if (at := found.get(path)) is not None and isinstance(at.look, Unreadable) and at.look.errno == errno.EACCES
    }
    return {path: at for path, at in found.items() if path not in closed}


def nearest_repository(above: Sequence[str], found: Mapping[str, AgentPath]) -> str | None:
    """The innermost of the directories ``above`` for which ``found`` has ``.git``; None without one."""
    marked = [each for each in above if (place := found.get(f"{each.rstrip('/')}/.git")) is not None and place.is_there]
    return marked[-1] if marked else None


def unavailable(path: str, number: int) -> UnavailableComponent:
    """The unavailable component for a file that cannot be read. ``number``: the errno."""
    return UnavailableComponent(f"{path} cannot be read: {os.strerror(number)}")


def _size(kept: _KeptText) -> int:
    """Characters that ``kept`` counts as: those of its text, and a constant for the rest."""
    return len(kept.text.text) + 512


def _account_of(uid: int) -> Account | None:
    try:
        found = pwd.getpwuid(uid)
    except (KeyError, OverflowError):
        return None
    return Account(found.pw_dir, found.pw_shell)
