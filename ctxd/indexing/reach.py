"""Which filesystem an agent's path lies on, and which files the daemon can look at itself.

Owns both questions, for every caller. The host's own files can always be looked at. A session that tells filesystems
apart by device (``MountTable.by_device``) is one of the host: what no mount of it covers lies where its device says,
and is looked at like the host's as long as that device is at its path. Nothing is remembered: after a restart, and
after a disk was changed, each answer is that of the moment.
"""

from collections.abc import Sequence
from typing import Final

import anyio.lowlevel

from ctxd.errors import CtxdError
from ctxd.mounts.devices import Devices
from ctxd.mounts.mapping import MountTable
from ctxd.sources.port import Source
from ctxd_protocol.objects import FilesystemSource

PLACED_IN_A_ROW: Final = 500
"""Paths that are mapped before other sessions get their turn: some 2 ms."""


class Reach:
    """Asks ``source`` for the devices of paths and ``devices`` for their filesystems. Cancel: safe anywhere."""

    def __init__(self, source: Source, devices: Devices) -> None:
        self._source = source
        self._devices = devices

    async def place(self, mounts: MountTable, workdir: str, paths: Sequence[str]) -> list[FilesystemSource | CtxdError]:
        """Where each of ``paths``, as the agent names them, lies; for one that is no path, the error invalid_path, and
        for one whose device does not answer, source_unreachable.

        Does not suspend for few paths of a session that goes by its mounts alone.
        """
        places: list[FilesystemSource | CtxdError] = []
        uncovered: list[int] = []
        for path in paths:
            try:
                places.append(mounts.forward(path, workdir))
                if mounts.by_device and not mounts.covers(path, workdir):
                    uncovered.append(len(places) - 1)
            except CtxdError as error:
                places.append(error)
            if len(places) % PLACED_IN_A_ROW == 0:
                await anyio.lowlevel.checkpoint()
        by_mounts = {number: place for number in uncovered if isinstance(place := places[number], FilesystemSource)}
        filesystems = await self._filesystems([place.path for place in by_mounts.values()])
        for (number, place), filesystem in zip(by_mounts.items(), filesystems, strict=True):
            places[number] = _unanswered(place.path) if filesystem is None else FilesystemSource(filesystem, place.path)
        return places

    async def readable(self, mounts: MountTable, sources: Sequence[FilesystemSource]) -> list[bool]:
        """Return for each of ``sources`` whether the daemon may read it for the session with ``mounts``.

        This is the one check before every read of a file for a session. For a session in a sandbox a source is readable
        only while one of its mounts shows it, whatever the session has indexed before. Does not suspend if all are the
        host's, or for a session that goes by its mounts alone.
        """
        on_host = [source.filesystem_id == self._devices.host for source in sources]
        if mounts.in_sandbox:
            return [
                here and mounts.agent_path(source) is not None for here, source in zip(on_host, sources, strict=True)
            ]
        answers = on_host
        if mounts.by_device and not all(answers):
            away = [number for number, on_host in enumerate(answers) if not on_host]
            filesystems = await self._filesystems([sources[number].path for number in away])
            for number, filesystem in zip(away, filesystems, strict=True):
                answers[number] = sources[number].filesystem_id == filesystem
        return answers

    async def _filesystems(self, paths: list[str]) -> list[str | None]:
        """The filesystem of the device that each canonical path of the host lies on; null if that does not answer."""
        if not paths:
            return []
        devices = await self._source.devices_of(paths)
        known = {device: self._devices.filesystem_id(device) for device in set(devices) if device is not None}
        return [None if device is None else known[device] for device in devices]


def _unanswered(path: str) -> CtxdError:
    return CtxdError(
        "source_unreachable",
        f"read failed unreadable file path={path}: its file system does not answer",
        hint="Send it again once it does.",
        outcome="not_applied",
    )
