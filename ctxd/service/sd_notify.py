"""Service manager notifications (sd_notify(3)).

Owns the notification socket. Without ``NOTIFY_SOCKET`` nothing is sent. If the manager's queue is full, the sender
waits; if the manager is gone, notifications are dropped.
"""

import array
import os
import socket
from collections.abc import MutableMapping, Sequence
from typing import Final

import anyio

_TEXT_MAX: Final = 500
"""Maximum characters of a value: a status is a line for people."""


class Notify:
    """Connect to ``address``, the manager's notification socket; None: no manager."""

    def __init__(self, address: str | None) -> None:
        raw = None if address is None else os.fsencode(address)
        # An address with @ is in the abstract namespace.
        self._address = b"\0" + raw[1:] if raw is not None and raw.startswith(b"@") else raw
        self._socket = None if address is None else socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        if self._socket is not None:
            self._socket.setblocking(False)

    @classmethod
    def of(cls, environ: MutableMapping[str, str]) -> "Notify":
        """Return the notifier for the address in ``environ``, and remove the variable: no child may notify for the
        daemon."""
        address = environ.pop("NOTIFY_SOCKET", "")
        return cls(address if address[:1] in ("/", "@") else None)

    @property
    def wanted(self) -> bool:
        """True if there is a service manager."""
        return self._socket is not None

    async def send(self, descriptors: Sequence[int] = (), **fields: str | int) -> None:
        """Send ``fields`` in one datagram, with ``descriptors``. Cancel: safe; all or nothing is sent."""
        if self._socket is None or self._address is None:
            return
        lines = "".join(f"{name}={str(value).translate(_ONE_LINE)[:_TEXT_MAX]}\n" for name, value in fields.items())
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        while True:
            try:
                self._socket.sendmsg([lines.encode()], rights, 0, self._address)
                return
            except BlockingIOError:
                await anyio.sleep(_AGAIN_S)  # noqa: TID251 - an edge: the other process has no event to wait for
            except OSError:
                return

    def close(self) -> None:
        """Close the socket; later notifications are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


_ONE_LINE: Final = {ord("\n"): " ", ord("\0"): " "}
_AGAIN_S: Final = 0.01
