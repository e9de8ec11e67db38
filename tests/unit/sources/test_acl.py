"""Lists of access rights, as the kernel takes them and gives them back."""

import errno
import os
from pathlib import Path

import pytest

from ctxd.sources import user_rights

ENTRIES = [
    (user_rights.OWNER, 6, user_rights.NO_ID),
    (user_rights.USER, 4, 12345),
    (user_rights.USER, 6, 12346),
    (user_rights.GROUP, 0, user_rights.NO_ID),
    (user_rights.NAMED_GROUP, 5, 30),
    (user_rights.MASK, 6, user_rights.NO_ID),
    (user_rights.OTHERS, 0, user_rights.NO_ID),
]


def test_the_kernel_takes_a_list_and_gives_the_same_back(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch(mode=0o600)
    try:
        os.setxattr(file, user_rights.ATTRIBUTE, user_rights.packed(ENTRIES))
    except OSError as error:
        if error.errno == errno.EOPNOTSUPP:
            pytest.skip("this file system keeps no access control lists")
        raise
    assert user_rights.unpacked(os.getxattr(file, user_rights.ATTRIBUTE)) == ENTRIES
    assert file.stat().st_mode & 0o777 == 0o660, "the group's rights show the mask"


@pytest.mark.parametrize(
    "raw", [b"", b"\2\0\0", b"\1\0\0\0", user_rights.packed(ENTRIES)[:-1], b"\3" + user_rights.packed(ENTRIES)[1:]]
)
def test_an_acl_of_unknown_form_is_not_read_as_empty(raw: bytes) -> None:
    with pytest.raises(ValueError, match="unknown form"):
        user_rights.unpacked(raw)
