"""Content-defined chunking: the same bytes are cut at the same places, wherever they are in a content.

So similar contents share most of their chunks. The parameters are frozen: different ones would cut elsewhere, and new
content would share no chunks with old content.
"""

from typing import Final

from pyfastcdc import FastCDC

CHUNK_BYTES_MAX: Final = 65_536
"""Bytes of the largest chunk. Content up to this size is not cut."""

_CUTTER: Final = FastCDC(avg_size=16_384, min_size=4_096, max_size=CHUNK_BYTES_MAX)


class Chunker:
    """Cuts a content that arrives in pieces. The ends of the pieces do not affect the chunks."""

    def __init__(self) -> None:
        self._left = b""

    def cut(self, piece: bytes) -> list[bytes]:
        """Return the chunks that ``piece`` completes."""
        data = self._left + piece
        chunks = [data[chunk.offset : chunk.offset + chunk.length] for chunk in _CUTTER.cut_buf(data)]
        # The last chunk may continue in the next piece.
        self._left = chunks.pop() if chunks else b""
        return chunks

    def end(self) -> list[bytes]:
        """Return the last chunk; empty for an empty content."""
        left, self._left = self._left, b""
        return [left] if left else []


def cut(data: bytes) -> list[bytes]:
    """Return the chunks of ``data``; ``data`` itself if it fits in one."""
    if len(data) <= CHUNK_BYTES_MAX:
        return [data] if data else []
    chunker = Chunker()
    return [*chunker.cut(data), *chunker.end()]
