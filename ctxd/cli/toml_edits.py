"""The statements of a TOML document and their places in its text, for edits that leave every other byte unchanged.

``tomllib`` parses values without their places. The text must be valid TOML for ``tomllib``, so that this module only
has to find the end of each value.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator
from typing import Final, Literal, NamedTuple

_SPACE: Final = re.compile(r"[ \t]*")
_REST: Final = re.compile(r"[^\n]*\n?")
_PART: Final = re.compile(r"""[ \t]*([A-Za-z0-9_-]+|"(?:\\.|[^"\\\n])*"|'[^'\n]*')[ \t]*""")
_TOKEN: Final = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})|' + r"'''.*?'''(?:'{0,2})|" + r""""(?:\\.|[^"\\\n])*"|'[^'\n]*'|"""
    r"#[^\n]*|[\[{]|[\]}]|\n",
    re.S,
)  # fmt: skip


class NamePlace(NamedTuple):
    """One name of a dotted key, and its place in the text."""

    start: int
    end: int


class Statement(NamedTuple):
    """The lines from ``start`` to ``end``: the header of a ``table`` or of a table in an ``array``, or a ``key`` with
    its value. ``path``: its names from the root of the document; ``parts``: the places of the names in these lines."""

    kind: Literal["table", "array", "key"]
    start: int
    end: int
    path: tuple[str, ...]
    parts: tuple[NamePlace, ...]

    def part(self, number: int) -> NamePlace | None:
        """The place of name ``number`` of the path; None if it is in an earlier header."""
        at = number - (len(self.path) - len(self.parts))
        return self.parts[at] if at >= 0 else None


class Edit(NamedTuple):
    """Replacement of the text from ``start`` to ``end`` with ``text``."""

    start: int
    end: int
    text: str = ""


def edited(text: str, edits: Iterable[Edit]) -> str:
    """``text`` with ``edits``, which must not overlap."""
    for edit in sorted(edits, reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def statements(text: str) -> Iterator[Statement]:
    """The statements of ``text``, in order."""
    at, table = 0, ()  # type: int, tuple[str, ...]
    while at < len(text):
        start, at = at, _end(_SPACE, text, at)
        if text.startswith(("#", "\n", "\r\n"), at) or at == len(text):
            at = _end(_REST, text, at)
        elif text[at] == "[":
            is_array = text.startswith("[[", at)
            table, parts, at = _key(text, at + 1 + is_array)
            at = _end(_REST, text, at)
            yield Statement("array" if is_array else "table", start, at, table, parts)
        else:
            names, parts, at = _key(text, at)
            at = _value_end(text, at)
            yield Statement("key", start, at, table + names, parts)


def comments(text: str, comment: str) -> list[tuple[int, int]]:
    """The places of the lines of ``text`` that equal ``comment``, except lines within values."""
    taken = [(each.start, each.end) for each in statements(text)]
    found = [found.span() for found in re.finditer(rf"(?m)^{re.escape(comment)}[ \t]*(?:\r?\n|\Z)", text)]
    return [(start, end) for start, end in found if not any(low <= start < high for low, high in taken)]


def _key(text: str, at: int) -> tuple[tuple[str, ...], tuple[NamePlace, ...], int]:
    """The names of the dotted key at ``at``, their places, and where the key ends."""
    names, parts = [], []
    while True:
        found = _PART.match(text, at)
        assert found is not None, "the text is valid"
        name, at = found[1], found.end()
        names.append(tomllib.loads(f"key = {name}")["key"] if name[0] in "\"'" else name)
        parts.append(NamePlace(*found.span(1)))
        if text[at] != ".":
            return tuple(names), tuple(parts), at
        at += 1


def _value_end(text: str, at: int) -> int:
    """The end of the line on which the value at ``at`` ends."""
    depth = 0
    for token in _TOKEN.finditer(text, at):
        depth += (token[0] in ("[", "{")) - (token[0] in ("]", "}"))
        if token[0] == "\n" and depth == 0:
            return token.end()
    return len(text)


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "it matches nothing as well"
    return found.end()
