"""Giving one more user access to a file of the daemon's, without any privilege of the daemon's own.

A service has a user of its own and may not give files away, but the owner of a file may always name others in its
access control list.
"""

import os
from typing import Final

from ctxd.sources import acl

_READ_WRITE: Final = 6


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
        os.setxattr(file, acl.ATTRIBUTE, _list_of(uid))


def _list_of(uid: int) -> bytes:
    entries = (
        (acl.OWNER, _READ_WRITE, acl.NO_ID),
        (acl.USER, _READ_WRITE, uid),
        (acl.GROUP, 0, acl.NO_ID),
        (acl.MASK, _READ_WRITE, acl.NO_ID),
        (acl.OTHERS, 0, acl.NO_ID),
    )
    return acl.packed(entries)
