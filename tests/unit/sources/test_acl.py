"""Lists of access rights, as the kernel takes them and gives them back."""

import errno
import os
from pathlib import Path

import pytest

from ctxd.sources import rights

ENTRIES = [
    (rights.OWNER, 6, rights.NO_ID),
    (rights.USER, 4, 12345),
    (rights.USER, 6, 12346),
    (rights.GROUP, 0, rights.NO_ID),
    (rights.NAMED_GROUP, 5, 30),
    (rights.MASK, 6, rights.NO_ID),
    (rights.OTHERS, 0, rights.NO_ID),
]


def test_the_kernel_takes_a_list_and_gives_the_same_back(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(mode=0o600)
    try:
        os.setxattr(file, rights.ATTRIBUTE, rights.packed(ENTRIES))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system keeps no access control lists")
        raise
    assert rights.unpacked(os.getxattr(file, rights.ATTRIBUTE)) == ENTRIES
    assert file.stat().st_mode & 0o777 == 0o660, "the group's rights show the mask"


@pytest.mark.parametrize(
    "raw", [b"", b"\2\0\0", b"\1\0\0\0", rights.packed(ENTRIES)[:-1], b"\3" + rights.packed(ENTRIES)[1:]]
)
def test_a_list_of_another_form_is_not_taken_for_an_empty_one(raw: bytes) -> None:
    with pytest.raises(ValueError, match="unknown form"):
        rights.unpacked(raw)
