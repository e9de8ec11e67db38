"""Content-defined chunks: the same bytes are cut at the same places wherever they stand in a content.

So contents that resemble each other share most of their chunks. The parameters are frozen: others would cut old content
at other places, and nothing new would share a chunk with it. Stands alone: the one user of the library that cuts.
"""

from typing import Final

from pyfastcdc import FastCDC

CHUNK_BYTES_MAX: Final = 65_536
"""Bytes of the largest chunk. Content up to this size is not cut."""

_CUTTER: Final = FastCDC(avg_size=16_384, min_size=4_096, max_size=CHUNK_BYTES_MAX)


class Chunker:
    """Cuts a content that comes in pieces. Where the pieces end has no effect on the chunks."""

    def __init__(self) -> None:
        self._left = b""

    def cut(self, piece: bytes) -> list[bytes]:
        """Return the chunks that ``piece`` completes."""
        data = self._left + piece
        chunks = [data[chunk.offset : chunk.offset + chunk.length] for chunk in _CUTTER.cut_buf(data)]
        # The last one may go on in the next piece.
        self._left = chunks.pop() if chunks else b""
        return chunks

    def end(self) -> list[bytes]:
        """Return the last chunk, none of an empty content."""
        left, self._left = self._left, b""
        return [left] if left else []


def cut(data: bytes) -> list[bytes]:
    """Return the chunks of ``data``; of no more than one chunk's bytes, ``data`` itself."""
    if len(data) <= CHUNK_BYTES_MAX:
        return [data] if data else []
    chunker = Chunker()
    return [*chunker.cut(data), *chunker.end()]
