"""Resolution of an agent's paths: the filesystem and file of each, and whether the daemon may read it.

The host's own files can always be read for its sessions. A session that distinguishes filesystems by device
(``MountTable.by_device``) is on the host: a path that no mount covers is on the filesystem of its device, and is
treated like the host's as long as that device is at its path. Nothing is cached: after a restart, or a change of disks,
each result is current.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio.lowlevel

from ctxd.errors import CtxdError
from ctxd.mounts.filesystem_id import Devices
from ctxd.mounts.mapping import MountTable, mount_prefix
from ctxd.sources.host_files import HostFiles
from ctxd_protocol.object_types import FilesystemSource, Source, filesystem_source
from ctxd_protocol.session_types import Mount

PLACED_IN_A_ROW: Final = 500
"""Paths mapped before other sessions get a turn: about 2 ms."""


class HostVisibility:
    """Gets the devices of paths from ``files``, and their filesystems from ``devices``. Cancel: safe everywhere."""

    def __init__(self, files: HostFiles, devices: Devices) -> None:
        self._files = files
        self._devices = devices

    def confine(self, mounts: MountTable) -> None:
        """From now on, never follow a symlink below a sandbox's mounts to other host files, for any session."""
        for root in mounts.host_roots:
            self._files.confinement.confine(root, mounts.view)

    async def place(self, mounts: MountTable, workdir: str, paths: Sequence[str]) -> list[FilesystemSource | CtxdError]:
        """Find the source of each of the agent's ``paths``, with symlinks resolved.

        A failed path has an error in its place: invalid_path, or source_unreachable if a device hangs.
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
            places[number] = _timed_out(place.path) if filesystem is None else FilesystemSource(filesystem, place.path)
        return places

    def host_path(self, mounts: MountTable, workdir: str, path: str) -> FilesystemSource | None:
        """The source of a host agent's ``path``, without following symlinks; ``None`` for an agent in a sandbox, for a
        filesystem other than the host's, and if the filesystem depends on the path's device.

        ``readable`` is true for this source unless a symlink leads elsewhere. Raises: CtxdError invalid_path.
        """
        named, prefix = mounts.locate(path, workdir)
        is_host = named.filesystem_id == self._devices.host and not mounts.in_sandbox
        return named if is_host and (prefix is not None or not mounts.by_device) else None

    async def _resolved(
        self, places: Mapping[int, FilesystemSource], prefixes: Mapping[int, str | None]
    ) -> dict[int, str]:
        """The paths of ``places``, with symlinks below their ``prefixes`` resolved, by number."""
        if not places:
            return {}
        roots = [prefix for prefix in dict.fromkeys(map(prefixes.__getitem__, places)) if prefix]
        found = await self._files.resolve_many([*(place.path for place in places.values()), *roots])
        real = dict(zip(roots, found[len(places) :], strict=True))
        paths = dict(zip(places, found[: len(places)], strict=True))
        for number, path in paths.items():
            prefix = prefixes[number]
            # A session from before prefixes were resolved keeps the old names of its files.
            if prefix and real[prefix] != prefix and f"{path}/".startswith(real[prefix].rstrip("/") + "/"):
                paths[number] = prefix + path[len(real[prefix].rstrip("/")) :]
        return paths

    async def resolve_prefixes(self, mounts: Sequence[Mount]) -> tuple[str, ...]:
        """The canonical prefix of each of ``mounts``, with symlinks resolved if it is on the host.

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

        Every read of a file for a session is checked here. For a session in a sandbox, a source is readable only while
        one of its mounts contains it, whatever the session has indexed before. Sources other than files are readable
        for all sessions except a sandbox's. Does not suspend if all sources are on the host, or for sessions that use
        only mounts.
        """
        are_readable: list[bool] = []
        elsewhere: dict[int, FilesystemSource] = {}
        for number, source in enumerate(sources):
            file = filesystem_source(source)
            is_readable = file is None or file.filesystem_id == self._devices.host
            if mounts.in_sandbox:
                is_readable = is_readable and mounts.agent_path(source) is not None
            elif mounts.by_device and file is not None and not is_readable:
                elsewhere[number] = file
            are_readable.append(is_readable)
        filesystems = await self._filesystems([file.path for file in elsewhere.values()])
        for (number, file), filesystem in zip(elsewhere.items(), filesystems, strict=True):
            are_readable[number] = file.filesystem_id == filesystem
        return are_readable

    def is_from_sandbox(self, source: Source) -> bool:
        """True if a sandbox may have written ``source``: a file below a confined directory."""
        file = filesystem_source(source)
        return file is not None and self._files.confinement.holds(file.path)

    async def _filesystems(self, paths: list[str]) -> list[str | None]:
        """The filesystem of the device below each canonical host path; ``None`` if the device hangs."""
        if not paths:
            return []
        devices = await self._files.devices_of(paths)
        known = {device: self._devices.filesystem_id(device) for device in set(devices) if device is not None}
        return [None if device is None else known[device] for device in devices]


def _timed_out(path: str) -> CtxdError:
    return CtxdError(
        "source_unreachable",
        f"cannot read the file {path}: its file system does not respond",
        hint="Send it again once it does.",
        outcome="not_applied",
    )
