"""Access rights of users to files, as the kernel judges them: by owner, groups and access control list.

Owns that judgement, for users whom the daemon reads for and is not. Promise: never more than the kernel would allow.
"""

import errno
import grp
import os
import pwd
import stat
from typing import Final

import msgspec

from ctxd.sources import acl

READ: Final = 4
SEARCH: Final = 1

_NONE: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})


class User(msgspec.Struct, frozen=True):
    """A user of the host, with all groups."""

    uid: int
    groups: frozenset[int] = frozenset()

    @classmethod
    def of(cls, uid: int) -> "User":
        """The user with the groups that the host's accounts give; one without an account has none. May block."""
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid)
        named = {group.gr_gid for group in grp.getgrall() if account.pw_name in group.gr_mem}
        return cls(uid, frozenset({account.pw_gid, *named}))


def require(user: User, place: int) -> None:
    """Refuse ``place``, an open descriptor, unless ``user`` may read the file or search the directory that it is.

    Raises: PermissionError, OSError; ValueError for an access control list of an unknown form.
    """
    found = os.fstat(place)
    if stat.S_ISDIR(found.st_mode):
        wanted = SEARCH
    elif stat.S_ISREG(found.st_mode):
        wanted = READ
    else:
        return
    if not allows(user, found, _list_of(place), wanted):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def allows(user: User, found: os.stat_result, entries: list[acl.Entry], wanted: int) -> bool:
    """True if ``found``, with the ``entries`` of its list if it has one, lets ``user`` do what is ``wanted``."""
    mode = stat.S_IMODE(found.st_mode)
    if user.uid == 0:
        return True
    if user.uid == found.st_uid:
        return bool(mode >> 6 & wanted)
    mask = next((rights for tag, rights, _ in entries if tag == acl.MASK), 7)
    for tag, rights, id in entries:
        if tag == acl.USER and id == user.uid:
            return bool(rights & mask & wanted)
    own = next((rights for tag, rights, _ in entries if tag == acl.GROUP), mode >> 3)
    groups = [(found.st_gid, own), *((id, rights) for tag, rights, id in entries if tag == acl.NAMED_GROUP)]
    mine = [rights & mask for id, rights in groups if id in user.groups]
    if mine:
        return any(rights & wanted for rights in mine)
    return bool(mode & wanted)


def _list_of(place: int) -> list[acl.Entry]:
    try:
        raw = os.getxattr(f"/proc/self/fd/{place}", acl.ATTRIBUTE)
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise
    return acl.unpacked(raw)
