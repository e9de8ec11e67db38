"""Media types of bytes."""

from typing import Final

UNKNOWN_MEDIA: Final = "application/octet-stream"
"""The media type of unknown bytes."""

_MEDIA_TYPES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"BM", "image/bmp"),
    (b"II*\0", "image/tiff"),
    (b"MM\0*", "image/tiff"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
    (b"\x7fELF", "application/x-elf"),
    (b"\0asm", "application/wasm"),
    (b"OggS", "audio/ogg"),
    (b"ID3", "audio/mpeg"),
    (b"wOF2", "font/woff2"),
)
"""First bytes of a file, and its media type."""


def media_type(raw: bytes) -> str:
    """The media type of ``raw`` by its first bytes, the same on every host; ``UNKNOWN_MEDIA`` if unknown."""
    if raw.startswith(b"RIFF"):
        return {b"WEBP": "image/webp", b"WAVE": "audio/wav"}.get(raw[8:12], UNKNOWN_MEDIA)
    return next((type for magic, type in _MEDIA_TYPES if raw.startswith(magic)), UNKNOWN_MEDIA)
