"""Bounds that both sides of the socket enforce.

Each constant states its unit and why it has its value. ``Limits`` is how the daemon announces them in ``hello``.
"""

from typing import Final

import msgspec

FRAME_BYTES_HOST_MAX: Final = 16 * 1024 * 1024
"""Bytes of one line on the host socket, line feed excluded. Larger text goes in as several calls."""

FRAME_BYTES_SANDBOX_MAX: Final = 1024 * 1024
"""Bytes of one line on a sandbox's socket: what bounds the time that one hostile line can cost everybody else."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""Bytes of a socket's path: ``sun_path`` holds 108 with the closing NUL. A longer one can be neither bound nor
connected to."""

DEPTH_MAX: Final = 64
"""Levels of nesting in one frame. Far below the recursion limit of every parser in use."""

BATCH_MAX: Final = 100
"""Members of one JSON-RPC batch."""

IN_FLIGHT_MAX: Final = 32
"""Requests of one connection that may be unanswered at once. More are not read until one is answered."""

REQUEST_ID_BYTES_MAX: Final = 128
"""UTF-8 bytes of a string request id: it is echoed, so it must stay small."""

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""Largest magnitude of an integer in a frame: what every JSON reader can hold without loss."""

PAGE_ITEMS_MAX: Final = 1000
"""Items of one page of a listing."""

PATHS_MAX: Final = 10_000
"""Paths of one ``file.discover`` call."""

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a file whose content is kept. A larger file is known by name, size and hash-free metadata only."""

CONTENT_INLINE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of content kept in the database. Longer content goes to the artifact store and is referenced."""

SETTINGS_BYTES_MAX: Final = 64 * 1024
"""Bytes of a session's settings as JSON, labels and mounts among them: they are written again with every turn."""


ENTRY_BYTES_MAX: Final = 8 * 1024
"""Bytes of the value of an entry, as JSON."""

ENTRIES_MAX: Final = 64
"""Entries of a session."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The bounds of one connection, in bytes, levels or items, as ``hello`` announces them."""

    frame_bytes: int = FRAME_BYTES_HOST_MAX
    depth: int = DEPTH_MAX
    batch: int = BATCH_MAX
    in_flight: int = IN_FLIGHT_MAX
    page_items: int = PAGE_ITEMS_MAX
    file_bytes: int = FILE_BYTES_MAX
