"""Writes to descriptors."""

import os


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write all of ``data``, of which one call of the system may write only a part. Raises: OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
