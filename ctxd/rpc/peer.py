"""Who is at the other end of a Unix socket, by the kernel's word."""

import os
import socket
import struct
from typing import Final

import msgspec

_UCRED: Final = struct.Struct("3i")


class Peer(msgspec.Struct, frozen=True):
    """The process that connected, as the kernel saw it then. ``pid`` may be another process's by now: for logs only."""

    pid: int
    uid: int
    gid: int


def peer_of(fd: int) -> Peer:
    """The peer of the connected Unix socket ``fd``.

    Raises: OSError if ``fd`` is no such socket.
    """
    with socket.socket(fileno=os.dup(fd)) as held:
        return Peer(*_UCRED.unpack(held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))


def may_enter(peer: Peer, *, owner_uid: int, owner_only: bool) -> bool:
    """Whether ``peer`` may use a socket of ``owner_uid``; root and the owner always, others by group only."""
    return not owner_only or peer.uid in (owner_uid, 0)
