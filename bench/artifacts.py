"""Bytes that an artifact adds which resembles another one.

``dedup`` is a ratio: bytes that the folder of artifacts grows by for 4 MiB with one byte prepended, over 4 MiB, once
the same 4 MiB without it are stored. The bytes are random, so that compression adds nothing. Expected order of growth:
O(1), a few chunks whatever the size, and a manifest of 36 bytes a chunk. Every put is flushed before it counts.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Figure
from ctxd.artifacts.store import ArtifactStore

SIZE = 4 * 1024 * 1024
SIZES = (SIZE // 4, SIZE, SIZE * 4)


def added(size: int) -> int:
    """Bytes that the folder of a store grows by."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "artifacts"
        data = os.urandom(size)
        before = 0
        for each in (data, b"x" + data):
            store = ArtifactStore(root)
            store.create()
            store.keep(each)
            store.close()
            total = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
            before, grown = total, total - before
        return grown


def run() -> Iterator[Figure]:
    found = {size: max(added(size) for _ in range(3)) for size in SIZES}
    growth = ", ".join(f"{size >> 20} MiB: {grown:,} bytes" for size, grown in found.items())
    yield Figure(
        name="dedup", value=found[SIZE] / SIZE, goal=0.03, better="lower", detail=f"flushed; worst of 3; {growth}"
    )
