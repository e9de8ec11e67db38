"""The kernel's word on mounts, in every form that a name can have."""

import os
from pathlib import Path

import pytest

from ctxd.mounts.mountinfo import OWN_MOUNTS, Mounted, mounts_in

LINE = "36 35 98:7 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue"

DEVICES = ("-1:-1", "1:-1", "+1:1", "1_0:1", "8:1:1", ":1", "9999999999:1", "8:" + "9" * 5000)


def test_a_line_gives_the_device_and_place_of_a_mount() -> None:
    assert mounts_in(LINE + "\n") == [Mounted(os.makedev(98, 7), "/mnt1", "/mnt2", True, "ext3")]


@pytest.mark.parametrize("options", ["ro,noatime - ext3 x rw", "rw shared:1 - ext3 x ro,a=b", "ro - ext3 x ro"])
def test_either_the_mount_or_its_filesystem_makes_it_read_only(options: str) -> None:
    assert [mounted.writable for mounted in mounts_in(f"1 0 8:1 / /a {options}")] == [False]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        (rb"/a\040b\011c\012d\134e", b"/a b\tc\nd\\e"),
        (b"/caf\xc3\xa9", "/café".encode()),
        (rb"/caf\303\251", "/café".encode()),
        (b"/caf\xe9", b"/caf\xe9"),
        (rb"/caf\351", b"/caf\xe9"),
        (b"/caf\xe9\\040b", b"/caf\xe9 b"),
        (b"/a\rb\x0bc\xc2\x85d", b"/a\rb\x0bc\xc2\x85d"),
        (rb"/a\1345b", rb"/a\5b"),
        (rb"/a\777\9\04", rb"/a\777\9\04"),
    ],
    ids=["blanks", "UTF-8", "UTF-8 escaped", "a byte", "a byte escaped", "both", "line ends", "once", "no escape"],
)
def test_a_name_is_the_bytes_that_the_kernel_means(written: bytes, name: bytes) -> None:
    table = b"1 0 8:1 " + written + b" " + written + b" rw - fuse.x y rw\n" + LINE.encode() + b"\n"
    found = mounts_in(os.fsdecode(table))
    assert [os.fsencode(mounted.mount_point) for mounted in found] == [name, b"/mnt2"]
    assert os.fsencode(found[0].root) == name


@pytest.mark.parametrize(
    "bad",
    [
        "garbage",
        "proc /proc proc rw 0 0",
        "1 2 0:1 / / rw - ext4",
        "1 2 disk / / rw - ext4 x rw",
        *(f"1 2 {device} / / rw - ext4 x rw" for device in DEVICES),
    ],
)
def test_a_line_of_another_form_is_named_by_its_number(bad: str) -> None:
    with pytest.raises(ValueError, match=r"^line 3 is not of mountinfo's form$"):
        mounts_in(f"{LINE}\n\n{bad}\n{LINE}\n")


def test_mounts_of_this_process_match_the_system() -> None:
    device = os.stat("/proc").st_dev
    found = mounts_in(os.fsdecode(Path(OWN_MOUNTS).read_bytes()))
    assert {mounted.filesystem for mounted in found if mounted.device == device} == {"proc"}
