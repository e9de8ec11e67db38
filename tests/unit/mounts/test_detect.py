"""Mappings out of docker's and the kernel's own words."""

import json
from typing import Any

import pytest

from ctxd.errors import CtxdError
from ctxd.mounts.detect import Detected, from_docker_inspect, from_mountinfo
from ctxd.mounts.mapping import MountTable
from ctxd_protocol.object_types import FilesystemSource
from ctxd_protocol.session_types import Mount

CONTAINER = "4f" * 32

BIND = {"Type": "bind", "Source": "/home/a/project", "Destination": "/workspace", "Mode": "", "RW": True}
READ_ONLY = {
    "Type": "bind",
    "Source": "/home/a/.gitconfig",
    "Destination": "/root/.gitconfig",
    "Mode": "ro",
    "RW": False,
}
VOLUME = {
    "Type": "volume",
    "Name": "cache",
    "Source": "/var/lib/docker/volumes/cache/_data",
    "Destination": "/cache",
    "Driver": "local",
    "RW": True,
}


def inspect(*mounts: dict[str, Any], **more: Any) -> Detected:
    return from_docker_inspect(json.dumps([{"Id": CONTAINER, "Name": "/box", "Mounts": list(mounts), **more}]))


@pytest.mark.requirement("FS-5")
def test_binds_and_local_volumes_are_mappings_onto_the_host() -> None:
    found = inspect(BIND, READ_ONLY, VOLUME)
    assert found.mounts == (
        Mount(agent_prefix="/workspace", canonical_prefix="/home/a/project"),
        Mount(agent_prefix="/root/.gitconfig", canonical_prefix="/home/a/.gitconfig", writable=False),
        Mount(agent_prefix="/cache", canonical_prefix="/var/lib/docker/volumes/cache/_data"),
    )
    assert found.filesystem_id == CONTAINER
    assert found.ignored == ()


@pytest.mark.requirement("FS-5")
@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"Type": "tmpfs", "Source": "", "Destination": "/scratch", "RW": True}, "tmpfs"),
        ({**VOLUME, "Driver": "nfs-plugin"}, "nfs-plugin"),
        ({"Type": "npipe", "Source": r"\\.\pipe\x", "Destination": "/pipe"}, "npipe"),
        ({**BIND, "Source": r"C:\Users\a"}, "source"),
        ({**BIND, "Destination": None}, "destination"),
        ({}, "destination"),
    ],
)
def test_a_mount_that_is_no_host_directory_is_ignored_with_its_reason(entry: dict[str, Any], reason: str) -> None:
    found = inspect(BIND, entry)
    assert len(found.mounts) == 1
    assert len(found.ignored) == 1
    assert reason in found.ignored[0]


def test_a_container_without_mounts_has_no_mapping() -> None:
    assert from_docker_inspect(json.dumps([{"Id": CONTAINER, "Mounts": None}])).mounts == ()
    assert from_docker_inspect(json.dumps({"Id": CONTAINER})).mounts == ()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "Error: No such object: box",
        json.dumps([{"Id": CONTAINER}, {"Id": "5e" * 32}]),
        json.dumps([{"Id": "4f4f4f4f4f4f"}]),
        json.dumps([{"Mounts": []}]),
        json.dumps([{"Id": CONTAINER, "Mounts": ["/a"]}]),
        "[" * 100_000,
    ],
    ids=["nothing", "none", "an error message", "two", "short id", "no id", "mounts of another form", "deep"],
)
def test_input_that_is_not_one_container_is_rejected(text: str) -> None:
    with pytest.raises(CtxdError) as caught:
        from_docker_inspect(text)
    assert caught.value.code == "invalid_params"


MOUNTINFO = rf"""
1035 768 0:184 / / rw,relatime master:318 - overlay overlay rw,lowerdir=/var/lib/docker/overlay2/l/A
1036 1035 0:187 / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw
1037 1035 0:188 / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755
1040 1035 252:1 /home/a/my\040project /workspace rw,relatime - ext4 /dev/vda1 rw
1041 1035 252:1 /home/a/b\134c\011d /ro\012dir ro,relatime shared:7 master:9 - ext4 /dev/vda1 rw
1042 1035 252:1 /var/lib/docker/containers/{CONTAINER}/resolv.conf /etc/resolv.conf rw,relatime - ext4 /dev/vda1 rw
1043 1035 252:2 / /data rw,relatime - xfs /dev/vdb rw
1044 1035 0:40 /@home/a /sub rw,relatime - btrfs /dev/vdc rw
1045 1035 252:1 /home/a/old//deleted /old rw,relatime - ext4 /dev/vda1 rw
1048 1035 252:1 /../other /outside rw,relatime - ext4 /dev/vda1 rw
1046 1035 252:1 /home/a/first /twice rw,relatime - ext4 /dev/vda1 rw
1047 1046 252:1 /home/a/second /twice rw,relatime - ext4 /dev/vda1 ro
""".lstrip()


@pytest.mark.requirement("FS-5")
def test_binds_are_found_in_mountinfo_with_their_escapes_undone() -> None:
    found = from_mountinfo(MOUNTINFO)
    assert found.mounts == (
        Mount(agent_prefix="/workspace", canonical_prefix="/home/a/my project"),
        Mount(agent_prefix="/ro\ndir", canonical_prefix="/home/a/b\\c\td", writable=False),
        Mount(agent_prefix="/twice", canonical_prefix="/home/a/second", writable=False),
    )
    assert found.filesystem_id == CONTAINER


@pytest.mark.requirement("FS-5")
def test_every_other_line_of_mountinfo_is_named_with_its_reason() -> None:
    ignored = dict(row.split(": ", 1) for row in from_mountinfo(MOUNTINFO).ignored)
    assert ignored == {
        "/": "the sandbox's own root",
        "/proc": "proc is not a directory of the host",
        "/dev": "tmpfs is not a directory of the host",
        "/etc/resolv.conf": "the runtime's own file",
        "/data": "a whole xfs filesystem, whose path on the host is unknown",
        "/sub": "Btrfs reports a path within its subvolume, not on the host",
        "/old": "the mounted directory was deleted",
        "/outside": "the mounted directory is outside the root of the process that read mountinfo",
        "/twice": "a later mount hides it",
    }


@pytest.mark.requirement("FS-5")
def test_a_non_utf8_path_is_ignored_as_a_mapping_and_named_by_its_bytes() -> None:
    places = (r"/caf\351 /w", r"/a /caf\351", r"/caf\303\251 /c")
    found = from_mountinfo("".join(f"1 0 8:1 {each} rw - ext4 x rw\n" for each in places))
    assert found.ignored == ("/w: its paths are not UTF-8", "/caf\\xe9: its paths are not UTF-8")
    assert found.mounts == (Mount(agent_prefix="/c", canonical_prefix="/café"),)


@pytest.mark.parametrize("places", ["/a\ud800 /w", "/a /w\ud800", "/a\\040\ud800 /w", "/ /w\udfff"])
def test_text_with_surrogates_is_rejected(places: str) -> None:
    with pytest.raises(CtxdError, match="cannot come from os.fsdecode") as refused:
        from_mountinfo(f"1 0 8:1 {places} rw - ext4 x rw\n")
    assert refused.value.code == "invalid_params"


def test_this_kernels_mountinfo_is_parsed() -> None:
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
        text = lines.read()
    found = from_mountinfo(text)
    assert len(found.mounts) + len(found.ignored) == text.count("\n")


@pytest.mark.parametrize("text", ["", "\n", "proc /proc proc rw 0 0", "1 2 0:1 / / rw - ext4", "garbage"])
def test_input_that_is_not_mountinfo_is_rejected(text: str) -> None:
    with pytest.raises(CtxdError) as caught:
        from_mountinfo(text)
    assert caught.value.code == "invalid_params"


def test_detected_mounts_make_a_table() -> None:
    found = from_mountinfo(MOUNTINFO)
    mounts = MountTable(found.mounts, filesystem_id=str(found.filesystem_id), host_filesystem_id="host")
    assert mounts.forward("/workspace/a") == FilesystemSource("host", "/home/a/my project/a")
    assert mounts.forward("/etc/passwd") == FilesystemSource(CONTAINER, "/etc/passwd")
