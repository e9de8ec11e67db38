"""Rows read ahead for the node: as many as a portion holds, by number and by bytes."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from ctxd.artifacts.artifact_store import ArtifactStore
from ctxd.projection import projected_rows
from ctxd.projection.projected_rows import Rows
from tests.unit.store.documents import document, write
from tests.unit.store.running import running

pytestmark = pytest.mark.anyio

TEXT = 10_000


@contextmanager
def reading(root: Path) -> Iterator[Rows]:
    reader = Rows(root / "state.db", ArtifactStore(root / "artifacts"))
    try:
        yield reader
    finally:
        reader.close()


@pytest.fixture
async def filled(root: Path) -> Path:
    """A state directory with eight rows, of ``TEXT`` characters each."""
    async with running(root) as store:
        for number in range(8):
            await store.submit(write(document(f"t{number}", f"{number}" * TEXT))).wait()
    return root


async def test_a_row_counts_with_its_text_and_its_own_bytes(filled: Path) -> None:
    with closing(sqlite3.connect(filled / "state.db")) as connection:
        bodies = [size for (size,) in connection.execute("SELECT length(body) FROM journal ORDER BY seq")]
    with reading(filled) as reader:
        found = reader.pieces(0)
        assert [piece.seq for piece in found] == list(range(1, 9))
        assert all(piece.size > TEXT + body for piece, body in zip(found, bodies, strict=True))
        assert all(piece.size < TEXT + body + 1_000 for piece, body in zip(found, bodies, strict=True))


async def test_a_portion_ends_at_its_rows_or_at_its_bytes_and_has_one_row_at_least(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reading(filled) as reader:
        assert [piece.seq for piece in reader.pieces(2, limit=3)] == [3, 4, 5]
        assert reader.pieces(8) == []
        monkeypatch.setattr(projected_rows, "PORTION_BYTES", 2 * TEXT)
        assert [piece.seq for piece in reader.pieces(0)] == [1, 2]
        monkeypatch.setattr(projected_rows, "PORTION_BYTES", 1)
        assert [piece.seq for piece in reader.pieces(5)] == [6]
