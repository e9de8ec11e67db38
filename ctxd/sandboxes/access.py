"""Giving one more user access to a file of the daemon's, without any privilege of the daemon's own.

A service has a user of its own and may not give files away, but the owner of a file may always name others in its
access control list.
"""

import os
import struct
from typing import Final

_NAME: Final = "system.posix_acl_access"
_VERSION: Final = struct.pack("<I", 2)
_ENTRY: Final = struct.Struct("<HHI")
_OWNER, _USER, _GROUP, _MASK, _OTHERS = 0x01, 0x02, 0x04, 0x10, 0x20
_READ_WRITE: Final = 6
_NOBODY_IN_PARTICULAR: Final = 0xFFFFFFFF


def let_in(file: int | os.PathLike[str], uid: int | None) -> None:
    """Have user ``uid`` read and write ``file``, a path or a descriptor, beside the daemon; null or its own: nobody
    more. A daemon that is root gives it away instead. Two calls at most.

    Raises: OSError, EOPNOTSUPP on a file system without access control lists.
    """
    if uid is None or uid == os.geteuid():
        return
    if os.geteuid() == 0:
        os.chown(file, uid, -1)
    else:
        os.setxattr(file, _NAME, _list_of(uid))


def _list_of(uid: int) -> bytes:
    entries = (
        (_OWNER, _READ_WRITE, _NOBODY_IN_PARTICULAR),
        (_USER, _READ_WRITE, uid),
        (_GROUP, 0, _NOBODY_IN_PARTICULAR),
        (_MASK, _READ_WRITE, _NOBODY_IN_PARTICULAR),
        (_OTHERS, 0, _NOBODY_IN_PARTICULAR),
    )
    return _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries)
