"""Limits that both sides of the socket enforce. The daemon announces them as ``Limits`` in ``hello``."""

from typing import Final

import msgspec

FRAME_BYTES_HOST_MAX: Final = 16 * 1024 * 1024
"""Bytes of one line on the host socket, without the line feed. Larger text takes several calls."""

FRAME_BYTES_SANDBOX_MAX: Final = 1024 * 1024
"""Bytes of one line on a sandbox's socket: it bounds the time that a hostile line can cost other clients."""

SOCKET_PATH_BYTES_MAX: Final = 107
"""Bytes of a socket's path: ``sun_path`` has 108 with the terminating NUL, so longer ones cannot be bound or
connected to."""

DEPTH_MAX: Final = 64
"""Levels of nesting in one frame: far below the recursion limit of every parser in use."""

BATCH_MAX: Final = 100
"""Members of one JSON-RPC batch."""

IN_FLIGHT_MAX: Final = 32
"""Pending requests of one connection. Further ones are not read until one has its reply."""

REQUEST_ID_BYTES_MAX: Final = 128
"""UTF-8 bytes of a string request id, which is echoed and must therefore be small."""

SAFE_INTEGER_MAX: Final = 2**53 - 1
"""Largest magnitude of an integer in a frame: every JSON reader represents it exactly."""

PAGE_ITEMS_MAX: Final = 1000
"""Items of one page of a listing."""

PATHS_MAX: Final = 10_000
"""Paths of one ``file.discover`` call."""

FILE_BYTES_MAX: Final = 8 * 1024 * 1024
"""Bytes of a file whose content is kept. A larger file has only its name, size and other metadata, without a hash."""

CONTENT_INLINE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of content kept in the database. Longer content is kept in the artifact store and referenced."""

SETTINGS_BYTES_MAX: Final = 64 * 1024
"""Bytes of a session's settings as JSON, including labels and mounts: they are written again with every turn."""


ENTRY_BYTES_MAX: Final = 8 * 1024
"""Bytes of the value of an entry, as JSON."""

ENTRIES_MAX: Final = 64
"""Entries of a session."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one connection, in bytes, levels or items, as announced by ``hello``."""

    frame_bytes: int = FRAME_BYTES_HOST_MAX
    depth: int = DEPTH_MAX
    batch: int = BATCH_MAX
    in_flight: int = IN_FLIGHT_MAX
    page_items: int = PAGE_ITEMS_MAX
    file_bytes: int = FILE_BYTES_MAX
