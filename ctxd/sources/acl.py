"""Access control lists of files, in the form in which Linux keeps them as an extended attribute.

Stands alone: the sandboxes write lists, and the rights of users read them.
"""

import struct
from collections.abc import Iterable
from typing import Final

ATTRIBUTE: Final = "system.posix_acl_access"

OWNER: Final = 0x01
USER: Final = 0x02
GROUP: Final = 0x04
NAMED_GROUP: Final = 0x08
MASK: Final = 0x10
OTHERS: Final = 0x20

NO_ID: Final = 0xFFFFFFFF
"""The id in entries that name neither a user nor a group."""

Entry = tuple[int, int, int]
"""A tag, the rights as three bits, and the id of the user or group."""

_VERSION: Final = struct.pack("<I", 2)
_ENTRY: Final = struct.Struct("<HHI")


def packed(entries: Iterable[Entry]) -> bytes:
    """The attribute that holds ``entries``; the kernel takes them by ascending tag, and id."""
    return _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries)


def unpacked(raw: bytes) -> list[Entry]:
    """The entries that the attribute ``raw`` holds. Raises: ValueError if it is of another form."""
    if not raw.startswith(_VERSION) or (len(raw) - len(_VERSION)) % _ENTRY.size:
        raise ValueError(f"an access control list of an unknown form: {raw[:8].hex()}")
    entries: list[Entry] = list(_ENTRY.iter_unpack(raw[len(_VERSION) :]))
    return entries
