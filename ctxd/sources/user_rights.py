"""Access rights of users to files, by the kernel's rules: owner, groups and access control list.

The lists are in the format of Linux's extended attribute, which sandboxes also write. Decides for users on whose behalf
the daemon reads as another user. Guarantee: it never allows more than the kernel would.
"""

import errno
import grp
import os
import pwd
import stat
import struct
from collections.abc import Iterable
from typing import Final

import msgspec

ATTRIBUTE: Final = "system.posix_acl_access"

OWNER: Final = 0x01
USER: Final = 0x02
GROUP: Final = 0x04
NAMED_GROUP: Final = 0x08
MASK: Final = 0x10
OTHERS: Final = 0x20

NO_ID: Final = 0xFFFFFFFF
"""The id in entries for neither a user nor a group."""

Entry = tuple[int, int, int]
"""A tag, the rights as three bits, and the id of the user or group."""

_VERSION: Final = struct.pack("<I", 2)
_ENTRY: Final = struct.Struct("<HHI")

READ: Final = 4
SEARCH: Final = 1

_NONE: Final = frozenset({errno.ENODATA, errno.EOPNOTSUPP})


class User(msgspec.Struct, frozen=True):
    """A user of the host, with all groups."""

    uid: int
    groups: frozenset[int] = frozenset()

    @classmethod
    def of(cls, uid: int) -> "User":
        """The user with its groups in the host's accounts, none without an account. May block."""
        try:
            account = pwd.getpwuid(uid)
        except KeyError:
            return cls(uid)
        named = {group.gr_gid for group in grp.getgrall() if account.pw_name in group.gr_mem}
        return cls(uid, frozenset({account.pw_gid, *named}))


def require(user: User, place: int, *, directory: int = SEARCH) -> None:
    """Refuse ``place``, a descriptor, unless ``user`` may read that file, or has the right ``directory`` to that one.

    Raises: PermissionError, OSError; ValueError for an access control list of an unknown form.
    """
    found = os.fstat(place)
    if stat.S_ISDIR(found.st_mode):
        wanted = directory
    elif stat.S_ISREG(found.st_mode):
        wanted = READ
    else:
        return
    if not allows(user, found, _list_of(place), wanted):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def allows(user: User, found: os.stat_result, entries: list[Entry], wanted: int) -> bool:
    """True if ``user`` has the rights ``wanted`` to the file ``found`` with the access control ``entries``."""
    mode = stat.S_IMODE(found.st_mode)
    if user.uid == 0:
        return True
    if user.uid == found.st_uid:
        return bool(mode >> 6 & wanted)
    mask = next((rights for tag, rights, _ in entries if tag == MASK), 7)
    for tag, rights, id in entries:
        if tag == USER and id == user.uid:
            return bool(rights & mask & wanted)
    own = next((rights for tag, rights, _ in entries if tag == GROUP), mode >> 3)
    groups = [(found.st_gid, own), *((id, rights) for tag, rights, id in entries if tag == NAMED_GROUP)]
    mine = [rights & mask for id, rights in groups if id in user.groups]
    if mine:
        return any(rights & wanted for rights in mine)
    return bool(mode & wanted)


def _list_of(place: int) -> list[Entry]:
    try:
        raw = os.getxattr(f"/proc/self/fd/{place}", ATTRIBUTE)
    except OSError as error:
        if error.errno in _NONE:
            return []
        raise
    return unpacked(raw)


def packed(entries: Iterable[Entry]) -> bytes:
    """The attribute for ``entries``, which the kernel requires in ascending order of tag and id."""
    return _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries)


def unpacked(raw: bytes) -> list[Entry]:
    """The entries in the attribute ``raw``. Raises: ValueError if its format is unknown."""
    if not raw.startswith(_VERSION) or (len(raw) - len(_VERSION)) % _ENTRY.size:
        raise ValueError(f"an access control list of an unknown form: {raw[:8].hex()}")
    entries: list[Entry] = list(_ENTRY.iter_unpack(raw[len(_VERSION) :]))
    return entries
