"""Complete lines of a source that a harness may still be writing, in pieces that fit a delta. Sources are only read.

A source is a file of JSON lines, plain or compressed with zstd, or lines made of the rows of a database. Text after the
last line feed is left for the next read unless it is a complete JSON object, which a partial line never is.
"""

import os
import re
import stat
from codecs import BOM_UTF8
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from pathlib import Path
from typing import IO, Final, NamedTuple

import msgspec

from ctxd.transcripts.record_decoding import PART, WHOLE_LINE_BYTES_MAX, Record, decoded
from ctxd.zstandard import zstd

DAMAGED_FRAME: Final = (EOFError, zstd.ZstdError)
"""Errors of reading a compressed source that is damaged, or not complete yet."""

_PART_BYTES: Final = 2 * 1024 * 1024
_WORD_BYTES_MAX: Final = 4096
_LINKS_BYTES_MAX: Final = 4096
_LINKS: Final = re.compile(
    rb'\s*\{\s*"type"\s*:\s*"\w+"\s*,\s*("id"\s*:\s*"\w[\w-]*")\s*,\s*("parentId"\s*:\s*(?:"\w[\w-]*"|null))'
)
"""The beginning of an entry of pi: its id and its parent, before its content."""

_HASHED_BYTES: Final = 1024 * 1024
DIGEST_BYTES: Final = 16


class SourceLine(NamedTuple):
    """One line: ``end``, the byte of the source after it; the bytes ``to_store``; its record; and its own bytes.

    ``record`` is None for a line that is not a JSON object; its text is stored inside an object. If an entry of pi is
    in parts, the record of the first part has its parent, and that of the last part its id, which its children follow.
    """

    end: int
    to_store: bytes
    record: Record | None
    source: bytes


def open_source(path: Path) -> IO[bytes]:
    """Open a regular file for reading, decompressed if its name ends in ``.zst``. Never waits for the writer of a pipe.

    Raises: OSError, also if it is not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    file = os.fdopen(descriptor, "rb")
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise OSError(0, "not a regular file", str(path))
    if path.suffix == ".zst":
        return _Unpacked(file)
    return file


class _Unpacked(BufferedReader):
    """The decompressed content of a file; ``close`` closes both."""

    def __init__(self, packed: IO[bytes]) -> None:
        super().__init__(zstd.ZstdFile(packed))
        self._packed = packed
        self._last_end: int | None = None

    def close(self) -> None:
        super().close()
        self._packed.close()

    def has_line_feed(self) -> bool:
        """Return True if a line feed follows. Only the first call reads up to the end: to go back, all content before
        is decompressed again."""
        here = self.tell()
        if self._last_end is None:
            self._last_end, at = 0, here
            with suppress(*DAMAGED_FRAME):  # Reading the lines raises it again, where the damage is.
                while piece := self.read(_HASHED_BYTES):
                    found = piece.rfind(b"\n") + 1
                    self._last_end = at + found if found else self._last_end
                    at += len(piece)
            self.seek(here)
        return here < self._last_end


def source_lines(file: IO[bytes], start: int = 0, early_splits: int = 0) -> Iterator[SourceLine]:
    """Yield the complete lines of ``file`` from byte ``start`` on, at which a line must begin. Blank lines have an
    empty ``to_store``; a byte order mark is not part of the first line. ``early_splits``: the bytes in which long lines
    are split where earlier versions of ctxd split them.

    Memory: a few times ``WHOLE_LINE_BYTES_MAX``. Raises: OSError, EOFError or zstd's error for a damaged file.
    """
    end = start
    while raw := file.readline(WHOLE_LINE_BYTES_MAX):
        if len(raw) == WHOLE_LINE_BYTES_MAX and not raw.endswith(b"\n"):
            for part in _long_line(file, raw, end, is_early=end < early_splits):
                end = part.end
                yield part
            continue
        line = _line(raw, end + len(raw))
        if line is None:
            return
        end = line.end
        yield line
        if not raw.endswith(b"\n"):
            # The line feed is already counted in ``end``, but not written yet.
            return


def _line(raw: bytes, end: int) -> SourceLine | None:
    """Return the line ``raw``; None for the beginning of one that is still being written."""
    text = (raw.removeprefix(BOM_UTF8) if end == len(raw) else raw).strip()
    if not text:
        return SourceLine(end, b"", None, raw)
    is_plain = True
    try:
        record = msgspec.json.decode(text)
    except (msgspec.DecodeError, ValueError, RecursionError):
        is_plain = False
        try:
            record = decoded(text)
        except ValueError:
            record = None
    is_object = isinstance(record, dict)
    if not raw.endswith(b"\n"):
        if not is_object:
            return None
        # The harness writes the line feed later; it is counted as if it were there.
        raw, end = raw + b"\n", end + 1
    if is_object and (is_plain or _is_utf8(text)):
        return SourceLine(end, text + b"\n", record, raw)
    if is_object:
        return SourceLine(end, _wrapped(PART, text, number=1, last=True), record, raw)
    return SourceLine(end, _wrapped("damaged", text), None, raw)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _wrapped(kind: str, text: bytes, **more: object) -> bytes:
    """Return bytes that cannot be kept unchanged as a record: Latin-1 preserves every byte, and can be searched for
    secrets."""
    try:
        found = {"text": text.decode()}
    except UnicodeDecodeError:
        found = {"latin1": text.decode("latin-1")}
    return msgspec.json.encode({"type": kind, **more, **found}) + b"\n"


def _long_line(file: IO[bytes], raw: bytes, start: int, *, is_early: bool) -> Iterator[SourceLine]:
    """Yield a long line in parts; nothing if the line is not complete yet."""
    if not _is_complete(file):
        file.seek(0, os.SEEK_END)
        return
    held, end, number = raw, start, 1
    links = _LINKS.match(raw, 0, _LINKS_BYTES_MAX)
    while not held.endswith(b"\n"):
        more = file.readline(_PART_BYTES)
        if not more:
            break
        held += more
        while len(held) > 2 * _PART_BYTES:
            at = _word_end(held, is_early=is_early)
            end += at
            parent = decoded(b"{%b}" % links[2]) if links is not None and number == 1 else None
            yield SourceLine(end, _wrapped(PART, held[:at], number=number), parent, held[:at])
            held, number = held[at:], number + 1
    end += len(held)
    id = decoded(b"{%b}" % links[1]) if links is not None else None
    yield SourceLine(end, _wrapped(PART, held.rstrip(b"\r\n"), number=number, last=True), id, held)


def _is_complete(file: IO[bytes]) -> bool:
    """Return True if a line feed follows; the position of ``file`` does not change."""
    if isinstance(file, _Unpacked):
        return file.has_line_feed()
    here, found = file.tell(), False
    while piece := file.read(_HASHED_BYTES):
        if b"\n" in piece:
            found = True
            break
    file.seek(here)
    return found


def _word_end(held: bytes, *, is_early: bool) -> int:
    """Return the place to split ``held`` so that neither a word, which may be a secret, nor a character is split.
    ``is_early``: an escaped line feed is split, so that its letter is before the next word."""
    at = _PART_BYTES
    space = held.rfind(b" ", at - _WORD_BYTES_MAX, at)
    escape = held.rfind(b"\\n", at - _WORD_BYTES_MAX, at)
    if max(space, escape) >= 0:
        return max(space, escape) + (2 if escape > space and not is_early else 1)
    while at > _PART_BYTES - 4 and held[at] & 0xC0 == 0x80:
        at -= 1
    return at
