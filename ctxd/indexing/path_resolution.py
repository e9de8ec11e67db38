"""Resolution of an agent's paths: the filesystem and the file that each is on, and whether the daemon may read it.

The host's own files can always be read for its sessions. A session that distinguishes filesystems by device
(``MountTable.by_device``) is one of the host: what no mount of it covers lies on the filesystem of its device,
and is looked at like the host's as long as that device is at its path. Nothing is remembered: after a restart, and
after a disk was changed, each answer is that of the moment.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio.lowlevel

from ctxd.errors import CtxdError
from ctxd.mounts.filesystem_id import Devices
from ctxd.mounts.mapping import MountTable, mount_prefix
from ctxd.sources.filesystem import HostFiles
from ctxd_protocol.object_types import FilesystemSource, Source, filesystem_source
from ctxd_protocol.session_types import Mount

PLACED_IN_A_ROW: Final = 500
"""Paths that are mapped before other sessions get their turn: some 2 ms."""


class HostVisibility:
    """Asks ``files`` for the devices of paths and ``devices`` for their filesystems. Cancel: safe anywhere."""

    def __init__(self, files: HostFiles, devices: Devices) -> None:
        self._files = files
        self._devices = devices

    def confine(self, mounts: MountTable) -> None:
        """Follow no symlink below a mount of a sandbox to other files of the host, for any session."""
        for root in mounts.host_roots:
            self._files.confinement.confine(root, mounts.view)

    async def place(self, mounts: MountTable, workdir: str, paths: Sequence[str]) -> list[FilesystemSource | CtxdError]:
        """Find the source of each of ``paths``, as the agent names them, without symlinks.

        In its place stands the error: invalid_path, or source_unreachable where a device does not answer.
        """
        places: list[FilesystemSource | CtxdError] = []
        prefixes: dict[int, str | None] = {}
        for number, path in enumerate(paths):
            try:
                named, prefix = mounts.locate(path, workdir)
                places.append(named)
                if named.filesystem_id == self._devices.host or (mounts.by_device and prefix is None):
                    prefixes[number] = prefix
            except CtxdError as error:
                places.append(error)
            if len(places) % PLACED_IN_A_ROW == 0:
                await anyio.lowlevel.checkpoint()
        looked_up = {number: place for number in prefixes if isinstance(place := places[number], FilesystemSource)}
        for number, path in (await self._resolved(looked_up, prefixes)).items():
            places[number] = FilesystemSource(looked_up[number].filesystem_id, path)
        uncovered = [number for number in looked_up if mounts.by_device and prefixes[number] is None]
        by_device = {number: place for number in uncovered if isinstance(place := places[number], FilesystemSource)}
        filesystems = await self._filesystems([place.path for place in by_device.values()])
        for (number, place), filesystem in zip(by_device.items(), filesystems, strict=True):
            places[number] = _unanswered(place.path) if filesystem is None else FilesystemSource(filesystem, place.path)
        return places

    def host_path(self, mounts: MountTable, workdir: str, path: str) -> FilesystemSource | None:
        """The source that an agent of the host calls ``path``, symlinks not followed; ``None`` for an agent in a
        sandbox, for another filesystem than the host's, and where only the path's device decides which it is.

        ``readable`` is true for this source unless a symlink leads elsewhere. Raises: CtxdError invalid_path.
        """
        named, prefix = mounts.locate(path, workdir)
        is_host = named.filesystem_id == self._devices.host and not mounts.in_sandbox
        return named if is_host and (prefix is not None or not mounts.by_device) else None

    async def _resolved(
        self, places: Mapping[int, FilesystemSource], prefixes: Mapping[int, str | None]
    ) -> dict[int, str]:
        """The paths of ``places`` without the symlinks below their ``prefixes``, by number."""
        if not places:
            return {}
        roots = [prefix for prefix in dict.fromkeys(map(prefixes.__getitem__, places)) if prefix]
        found = await self._files.resolve_many([*(place.path for place in places.values()), *roots])
        real = dict(zip(roots, found[len(places) :], strict=True))
        paths = dict(zip(places, found[: len(places)], strict=True))
        for number, path in paths.items():
            prefix = prefixes[number]
            # A session from before prefixes were resolved goes on calling its files what they were called.
            if prefix and real[prefix] != prefix and f"{path}/".startswith(real[prefix].rstrip("/") + "/"):
                paths[number] = prefix + path[len(real[prefix].rstrip("/")) :]
        return paths

    async def resolve_prefixes(self, mounts: Sequence[Mount]) -> tuple[str, ...]:
        """The canonical prefix of each of ``mounts`` without symlinks; as it is if it is not the host's.

        Raises: CtxdError invalid_path.
        """
        prefixes = [mount_prefix(mount.canonical_prefix) or "/" for mount in mounts]
        on_host = [number for number, mount in enumerate(mounts) if mount.filesystem_id in (None, self._devices.host)]
        found = await self._files.resolve_many([prefixes[number] for number in on_host]) if on_host else []
        for number, path in zip(on_host, found, strict=True):
            prefixes[number] = path
        return tuple(prefixes)

    async def readable(self, mounts: MountTable, sources: Sequence[Source]) -> list[bool]:
        """Return for each of ``sources`` whether the daemon may read it for the session with ``mounts``.

        This is the one check before every read of a file for a session. For a session in a sandbox a source is readable
        only while one of its mounts shows it, whatever the session has indexed before. What is no file is readable
        for every session but a sandbox's. Does not suspend if all are the host's, or for a session that goes by its
        mounts alone.
        """
        answers: list[bool] = []
        away: dict[int, FilesystemSource] = {}
        for number, source in enumerate(sources):
            file = filesystem_source(source)
            is_readable = file is None or file.filesystem_id == self._devices.host
            if mounts.in_sandbox:
                is_readable = is_readable and mounts.agent_path(source) is not None
            elif mounts.by_device and file is not None and not is_readable:
                away[number] = file
            answers.append(is_readable)
        filesystems = await self._filesystems([file.path for file in away.values()])
        for (number, file), filesystem in zip(away.items(), filesystems, strict=True):
            answers[number] = file.filesystem_id == filesystem
        return answers

    def is_from_sandbox(self, source: Source) -> bool:
        """True if a sandbox may have written ``source``: a file below a directory that is confined."""
        file = filesystem_source(source)
        return file is not None and self._files.confinement.holds(file.path)

    async def _filesystems(self, paths: list[str]) -> list[str | None]:
        """The filesystem of the device below each canonical path of the host; ``None`` if that does not answer."""
        if not paths:
            return []
        devices = await self._files.devices_of(paths)
        known = {device: self._devices.filesystem_id(device) for device in set(devices) if device is not None}
        return [None if device is None else known[device] for device in devices]


def _unanswered(path: str) -> CtxdError:
    return CtxdError(
        "source_unreachable",
        f"read failed unreadable file path={path}: its file system does not answer",
        hint="Send it again once it does.",
        outcome="not_applied",
    )
