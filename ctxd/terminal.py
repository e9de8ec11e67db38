"""Terminal output: data on standard output, the rest on standard error, colour only for people.

Owns the decision about colour and the rule that control characters in content are escaped on a terminal: they could
move the cursor, set the title, or hide text. Content for a pipe is unchanged, byte for byte.
"""

import errno
import io
import json
import os
import re
import sys
import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

Colour = Literal["bold", "dim", "red", "green", "yellow", "blue", "magenta", "cyan"]

_SGR: Final[dict[Colour, str]] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "blue": "34",
    "magenta": "35",
    "cyan": "36",
}

_UNSAFE: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e007f]"
)
"""Control characters except tab and line feed, marks that reorder or hide text, and lone surrogates."""


class ReaderGone(Exception):
    """The reader of standard output closed it: the program should end without a message."""


class OutputFailed(Exception):
    """Standard output cannot be written."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"standard output cannot be written: {reason.strerror or reason}")


def visible(text: str) -> str:
    """``text`` with every character that a terminal would interpret escaped, except tabs and line feeds."""
    return _UNSAFE.sub(_escape, text)


class _OutputFile(io.FileIO):
    """Standard output. Its failures are no OSErrors, which handlers would blame on the file that they read."""

    def write(self, data: "ReadableBuffer", /) -> int:
        """Write ``data``. Raises: ReaderGone, OutputFailed."""
        try:
            written = super().write(data)
        except BrokenPipeError as error:
            raise ReaderGone from error
        except OSError as error:
            raise OutputFailed(error) from error
        if written is None:
            raise OutputFailed(BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)))
        return written


class InputClosed(Exception):
    """Standard input is needed, but closed."""


class _ClosedInput(io.RawIOBase):
    """Replaces a closed standard input, for which Python has None."""

    def readable(self) -> bool:
        return True

    def readinto(self, _: object) -> int:
        raise InputClosed

    def fileno(self) -> int:
        raise InputClosed


def input_of(stdin: TextIO | None) -> TextIO:
    """Return ``stdin``; if it is closed, a stream of which every read raises ``InputClosed``."""
    return io.TextIOWrapper(io.BufferedReader(_ClosedInput())) if stdin is None else stdin


def output_of(stream: TextIO) -> TextIO:
    """Return the standard output to use instead of ``stream``: it raises ReaderGone and OutputFailed, and escapes the
    characters that its encoding lacks if it would refuse them."""
    if not isinstance(stream, io.TextIOWrapper):
        return stream
    if stream.errors == "strict" and stream.encoding != "utf-8":
        stream.reconfigure(errors="backslashreplace")
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if not isinstance(raw, io.FileIO) or isinstance(raw, _OutputFile):
        return stream
    # Without a buffer, as PYTHONUNBUFFERED demands, a write may write only a part.
    is_flushed = stream.line_buffering or stream.write_through
    file = io.BufferedWriter(_OutputFile(raw.fileno(), "wb", closefd=False))
    return io.TextIOWrapper(file, stream.encoding, stream.errors, line_buffering=is_flushed)


def cell(text: str) -> str:
    """``text`` on one line, for a table or a message."""
    return visible(text).replace("\n", "\\n").replace("\t", "\\t")


def width(text: str) -> int:
    """Columns of a terminal that ``text``, one line without control characters, fills: wide characters fill two,
    combining marks none."""
    if text.isascii():
        return len(text)
    # Loading its tables takes longer than the rest of most commands, and most output is ASCII.
    import wcwidth

    return wcwidth.width(text)


def cut(text: str, columns: int) -> str:
    """``text``, one line without control characters, cut to ``columns``, the last of which then is an ellipsis."""
    if width(text) <= columns:
        return text
    if text.isascii():
        return text[: columns - 1] + "…"
    import wcwidth

    return wcwidth.clip(text, 0, columns - 1) + "…"


def wants_colour(environ: Mapping[str, str], *, terminal: bool) -> bool:
    """Return True for colour: ``NO_COLOR`` disables it, ``FORCE_COLOR`` forces it, else a capable terminal gets it."""
    if environ.get("NO_COLOR"):
        return False
    if environ.get("FORCE_COLOR", "0") not in ("", "0"):
        return True
    return terminal and environ.get("TERM", "dumb") != "dumb"


class Screen:
    """Output of one command. ``as_json`` and ``quiet`` are the user's options."""

    def __init__(self, *, as_json: bool = False, quiet: bool = False) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.out: TextIO = sys.stdout
        self.terminal = self.out.isatty()
        self.colour = wants_colour(os.environ, terminal=self.terminal)

    def paint(self, text: str, *colours: Colour) -> str:
        """``text`` in colours, if they are enabled."""
        if not (self.colour and colours and text):
            return text
        return f"\x1b[{';'.join(_SGR[colour] for colour in colours)}m{text}\x1b[0m"

    def line(self, text: str = "") -> None:
        """Write one line of data, which must be safe for a terminal: see ``paint`` and ``cell``."""
        self._write(text + "\n")

    def content(self, text: str) -> None:
        """Write untrusted content: unchanged into a pipe; on a terminal escaped, and with a trailing line feed."""
        if not self.terminal:
            self._write(text)
            return
        shown = visible(text)
        self._write(shown if shown.endswith("\n") or not shown else shown + "\n")

    def document(self, value: Any) -> None:  # noqa: ANN401 - anything that msgspec encodes
        """Write one JSON document: indented on a terminal, on one line in a pipe."""
        self._json(value, indent=2 if self.terminal else None)

    def record(self, value: Any) -> None:  # noqa: ANN401 - anything that msgspec encodes
        """Write one of several JSON documents, on one line."""
        self._json(value, indent=None)

    def listing(self, items: Sequence[Any], ids: Sequence[str], **more: Any) -> bool:  # noqa: ANN401
        """Write a listing as ``{"items": [...]}`` or as ids alone, as the options require. Returns: False if the caller
        must show a table instead."""
        if self.as_json:
            self.document({"items": items, **more})
        elif self.quiet:
            for id in ids:
                self.line(cell(id))
        return self.quiet or self.as_json

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> None:
        """Write columns under a header; those in ``right`` are right-aligned. Lines are cut at the terminal's edge."""
        shown = [[cell(text) for text in row] for row in rows]
        widths = [max(map(width, column)) for column in zip(header, *shown, strict=True)]
        for number, row in enumerate([header, *shown]):
            fills = [" " * (widest - width(text)) for text, widest in zip(row, widths, strict=True)]
            texts = [fills[at] + text if at in right else text + fills[at] for at, text in enumerate(row)]
            line = self.clipped("  ".join(texts).rstrip())
            self.line(self.paint(line, "bold") if number == 0 else line)

    def spans(self, *parts: tuple[str, Colour | None]) -> str:
        """Return texts, each with its colour, joined to one line that is cut at the terminal's edge."""
        left = self.clipped("".join(text for text, _ in parts))
        shown: list[str] = []
        for text, colour in parts:
            # Of the part at the edge, the end is an ellipsis.
            part, left = left[: len(text)], left[len(text) :]
            shown.append(self.paint(part, colour) if colour and part else part)
        return "".join(shown)

    def field(self, name: str, value: str, name_width: int, *, colour: Colour | None = None) -> None:
        """Write ``name``, padded to ``name_width``, and ``value``, which continues below itself at the edge."""
        edge = self.columns
        lines = [value]
        if edge and width(value) > edge - name_width - 1 > 0:
            lines = textwrap.wrap(value, edge - name_width - 1, break_long_words=False, break_on_hyphens=False)
        for number, line in enumerate(lines):
            label = self.paint(f"{'' if number else name:<{name_width}}", "dim")
            self.line(f"{label} {self.paint(line, colour) if colour else line}")

    def note(self, text: str) -> None:
        """Write a message for people to standard error."""
        print(cell(text), file=sys.stderr, flush=True)  # noqa: T201 - the one place for diagnostics

    def _json(self, value: Any, *, indent: int | None) -> None:  # noqa: ANN401 - anything that msgspec encodes
        import msgspec

        # All but ASCII is escaped on a terminal, which would interpret some Unicode marks.
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=self.terminal, indent=indent)
        self._write((text.replace("\x7f", "\\u007f") if self.terminal else text) + "\n")

    def clipped(self, text: str) -> str:
        """``text``, which must not have colours yet, cut at the terminal's edge."""
        edge = self._size()[0]
        return cut(text, edge) if edge else text

    @property
    def columns(self) -> int | None:
        """Width of the terminal; None if it is not one, or its size is unknown."""
        return self._size()[0]

    @property
    def rows(self) -> int | None:
        """Lines of the terminal; None if it is not one, or its size is unknown."""
        return self._size()[1]

    def _size(self) -> tuple[int | None, int | None]:
        if not self.terminal:
            return None, None
        try:
            found = os.get_terminal_size(self.out.fileno())
        except (OSError, ValueError):
            return None, None
        return found.columns or None, found.lines or None

    def _write(self, text: str) -> None:
        self.out.write(text.encode("utf-8", "surrogatepass").decode("utf-8", "replace"))


def _escape(match: re.Match[str]) -> str:
    point = ord(match[0])
    return f"\\x{point:02x}" if point < 0x100 else f"\\u{point:04x}" if point < 0x10000 else f"\\U{point:08x}"
