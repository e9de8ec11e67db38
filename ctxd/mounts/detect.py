"""Detection of mount mappings in the output of container runtimes and the kernel.

Prefer ``docker inspect``, which contains host paths. ``/proc/self/mountinfo``, read inside the sandbox, contains each
mount's root *within its filesystem* (field 4) and its mount point (field 5): that root is the host's path only if the
host mounts the filesystem at ``/``. Entries that are not mappings are returned with a reason, never dropped silently.
"""

import os
import re
from typing import Any, Final

import msgspec

from ctxd.errors import CtxdError
from ctxd.mounts.filesystem_id import container_filesystem_id
from ctxd.mounts.mountinfo import Mounted, mounts_in
from ctxd_protocol.ids import FilesystemId
from ctxd_protocol.session_types import Mount

_IN_MEMORY: Final = frozenset({
    "autofs", "bpf", "binfmt_misc", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "fusectl",
    "hugetlbfs", "mqueue", "nsfs", "proc", "pstore", "ramfs", "securityfs", "sysfs", "tmpfs", "tracefs",
})  # fmt: skip
"""Kernel filesystems, without files of the host's disks."""

_OWN_FILES: Final = frozenset({"/etc/hostname", "/etc/hosts", "/etc/resolv.conf"})
"""Files that every runtime mounts over the image's; they are created for the sandbox alone."""

_CONTAINER_IN_PATH: Final = re.compile(r"/([0-9a-f]{64})/")


class Detected(msgspec.Struct, frozen=True, kw_only=True):
    """``filesystem_id`` is the sandbox's own, for paths that no mount covers; `None` if the text does not show it."""

    mounts: tuple[Mount, ...]
    filesystem_id: FilesystemId | None
    ignored: tuple[str, ...]


class _Container(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="Id")
    mounts: list[dict[str, Any]] | None = msgspec.field(name="Mounts", default=None)


def from_docker_inspect(text: str) -> Detected:
    """The mappings of the single container in the output of ``docker inspect``.

    Binds and local volumes are directories of the host; everything else is ignored.
    Raises: CtxdError invalid_params for anything but one container.
    """
    container = _container(text)
    mounts: list[Mount] = []
    ignored: list[str] = []
    for entry in container.mounts or ():
        reason = _why_no_directory_of_the_host(entry)
        if reason:
            ignored.append(f"{entry.get('Destination', '?')}: {reason}")
        else:
            mounts.append(
                Mount(
                    agent_prefix=entry["Destination"],
                    canonical_prefix=entry["Source"],
                    writable=entry.get("RW") is not False,
                )
            )
    return Detected(mounts=tuple(mounts), filesystem_id=container_filesystem_id(container.id), ignored=tuple(ignored))


def _container(text: str) -> _Container:
    try:
        printed = msgspec.json.decode(text)
        found = printed if isinstance(printed, list) else [printed]
        if len(found) != 1:
            hint = "Name exactly one running container."
            raise CtxdError("invalid_params", f"docker inspect printed {len(found)} containers, not one", hint=hint)
        return msgspec.convert(found[0], _Container)
    except (msgspec.DecodeError, msgspec.ValidationError, RecursionError) as error:
        hint = "Give the whole output of docker inspect CONTAINER."
        raise CtxdError("invalid_params", f"not the output of docker inspect: {error}", hint=hint) from error


def _why_no_directory_of_the_host(entry: dict[str, Any]) -> str | None:
    kind = entry.get("Type")
    if not _is_absolute(entry.get("Destination")):
        return "its destination is not an absolute path"
    if kind == "volume" and entry.get("Driver", "local") != "local":
        return f"a volume of driver {entry.get('Driver')}, which need not lie on the host"
    if kind not in ("bind", "volume"):
        return f"{kind} is not a directory of the host"
    if not _is_absolute(entry.get("Source")):
        return "its source is not an absolute path of this host"
    return None


def _is_absolute(path: object) -> bool:
    return isinstance(path, str) and path.startswith("/") and "\0" not in path


def from_mountinfo(text: str) -> Detected:
    """The mappings that ``/proc/self/mountinfo`` of a sandbox shows: the binds of directories of one filesystem.

    Ignored: kernel filesystems, the sandbox's root, whole filesystems and Btrfs subvolumes (their path on the host is
    unknown), mounts outside the root that the text was read in, the runtime's own files, deleted directories, paths
    that are not UTF-8, and mounts hidden by a later one. Raises: CtxdError invalid_params for a malformed line, and for
    text that cannot come from ``os.fsdecode``.
    """
    try:
        os.fsencode(text)
    except UnicodeEncodeError as error:
        hint = "Decode the bytes of /proc/self/mountinfo with os.fsdecode."
        message = "the mountinfo text contains characters that cannot come from os.fsdecode"
        raise CtxdError("invalid_params", message, hint=hint) from error
    try:
        lines = mounts_in(text)
    except ValueError as error:
        hint = "Give the text of /proc/self/mountinfo, not of /proc/mounts."
        raise CtxdError("invalid_params", str(error), hint=hint) from error
    if not lines:
        raise CtxdError("invalid_params", "the mountinfo text is empty")
    newest = {line.mount_point: line for line in lines}
    mounts: list[Mount] = []
    ignored: list[str] = []
    for line in lines:
        reason = "a later mount hides it" if newest[line.mount_point] is not line else _why_no_bind(line)
        if reason:
            ignored.append(f"{_shown(line.mount_point)}: {reason}")
        else:
            mounts.append(Mount(agent_prefix=line.mount_point, canonical_prefix=line.root, writable=line.writable))
    return Detected(mounts=tuple(mounts), filesystem_id=_own_filesystem(lines), ignored=tuple(ignored))


def _why_no_bind(line: Mounted) -> str | None:
    reason: str | None = None
    if line.mount_point == "/":
        reason = "the sandbox's own root"
    elif line.filesystem in _IN_MEMORY:
        reason = f"{line.filesystem} is not a directory of the host"
    elif line.filesystem == "overlay":
        reason = "an overlay's files have no one path on the host"
    elif line.root == "/":
        reason = f"a whole {line.filesystem} filesystem, whose path on the host is unknown"
    elif line.filesystem == "btrfs":
        reason = "Btrfs reports a path within its subvolume, not on the host"
    elif line.root.endswith("//deleted"):
        reason = "the mounted directory was deleted"
    elif line.mount_point in _OWN_FILES:
        reason = "the runtime's own file"
    else:
        reason = _why_no_path(line)
    return reason


def _why_no_path(line: Mounted) -> str | None:
    if ".." in line.root.split("/"):
        return "the mounted directory is outside the root of the process that read mountinfo"
    if not (_is_absolute(line.root) and _is_absolute(line.mount_point)):
        return "its paths are not absolute"
    if not (_is_text(line.root) and _is_text(line.mount_point)):
        return "its paths are not UTF-8"
    return None


def _is_text(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(path: str) -> str:
    """``path`` for people: bytes that are not UTF-8 as two hex digits each."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _own_filesystem(lines: list[Mounted]) -> FilesystemId | None:
    """The container id, from the paths of the runtime's own files; `None` if unknown."""
    for line in lines:
        match = _CONTAINER_IN_PATH.search(line.root) if line.mount_point in _OWN_FILES else None
        if match:
            return FilesystemId(match[1])
    return None
