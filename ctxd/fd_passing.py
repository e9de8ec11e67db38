"""Replies whose content is passed as a file: its descriptor accompanies the line (SCM_RIGHTS, see unix(7)).

The transport of the event loop cannot send descriptors, so such a reply bypasses it, and is sent only if the client has
read everything sent before. So at most one descriptor waits for a client, however many it requests, and none outlives
its connection unread: the kernel closes it.
"""

import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable

import msgspec

_COUNT = struct.Struct("i")


class PassedFile:
    """A reply in two forms: ``brief`` with the file ``descriptor``, which this object closes, and ``whole`` for a
    client to which the file cannot be sent. ``whole`` raises the exceptions of the handler."""

    __slots__ = ("brief", "descriptor", "whole")

    def __init__(self, brief: msgspec.Struct, descriptor: int, whole: Callable[[], msgspec.Struct]) -> None:
        self.brief = brief
        self.descriptor = descriptor
        self.whole = whole

    def __del__(self) -> None:
        os.close(self.descriptor)


def send_with_file(connection: int, line: bytes, descriptor: int) -> int:
    """Send ``line`` and ``descriptor`` to the peer of the Unix socket ``connection``; never blocks.

    Returns: the number of bytes sent. 0 if the peer has not read everything sent before, runs as a user that is neither
    the daemon's nor root (it could use up the daemon's memory with the files it keeps), or if the kernel refuses.
    """
    try:
        with socket.socket(fileno=os.dup(connection)) as held:
            _, uid, _ = struct.unpack("3i", held.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            (unread,) = _COUNT.unpack(fcntl.ioctl(held, termios.TIOCOUTQ, bytes(_COUNT.size)))
            if unread or uid not in (os.getuid(), 0):
                return 0
            return socket.send_fds(held, [line], [descriptor], socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)
    except OSError:
        return 0
