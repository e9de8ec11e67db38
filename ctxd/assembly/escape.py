r"""How content is kept from looking like structure, and values from breaking their line.

Two rules, both reversible and both silent on ordinary text:

- A *line* of content that could be taken for a structural line gets one ``\`` in front. Which lines: after any number
  of ``\`` (so that a line which already looks escaped is escaped once more), then any blanks and invisible characters,
  comes ``METADATA_POOL``, ``CHAT_MESSAGE``, ``toolcall_ref`` or ``ACTIVE_CONTENT``, or ``id=`` with ``type=`` later in
  the line; invisible characters between the letters do not count. A line begins at the start of the content and after
  every character that some reader takes for a line end, CR, NEL, LS and PS among them.
- A *value* of a structural line that is empty, or holds a blank, a quote, a line end, a control, an invisible or a
  direction character, is written as a JSON string in which those (blanks excepted) are ``\uXXXX``.

The character classes are spelled out instead of taken from the interpreter's Unicode tables: a recorded context must
render to the same bytes under another Python.
"""

import json
import re
from functools import cache
from typing import Final, NamedTuple

LINE_ENDS: Final = "\n\x0b\x0c\r\x1c\x1d\x1e\x85\u2028\u2029"
"""Every character that ends a line for some reader. Only LF ends a line of the rendering."""

_BLANKS: Final = "\t \xa0\u1680\u2000-\u200a\u202f\u205f\u2800\u3000\u3164\uffa0"
_INVISIBLE: Final = (
    "\x00-\x08\x0e-\x1b\x1f\x7f-\x84\x86-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f"
    "\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff"
)
_UNSAFE: Final = f"{LINE_ENDS}{_BLANKS}{_INVISIBLE}\ud800-\udfff"

KEYWORDS: Final = ("METADATA_POOL", "CHAT_MESSAGE", "toolcall_ref", "ACTIVE_CONTENT")
"""What a structural line starts with, metadata lines excepted."""


def _spaced(word: str) -> str:
    """A pattern for ``word`` with invisible characters anywhere in it."""
    return f"[{_INVISIBLE}]*+".join(re.escape(letter) for letter in word)


_POOL_LINE: Final = f"{_spaced('id=')}(?=[^{LINE_ENDS}]*{_spaced('type=')})"
_STRUCTURAL: Final = rf"\\*+[{_BLANKS}{_INVISIBLE}]*+(?:{'|'.join(map(_spaced, KEYWORDS))}|{_POOL_LINE})"
_ANY_INVISIBLE: Final = re.compile(f"[{_INVISIBLE}]")
_PLAIN_ASCII: Final = re.compile("[\t-\r\x1c-\x1e -~]*+")
_BARE: Final = re.compile(f'[^"{_UNSAFE}]+')
_QUOTED_APART: Final = re.compile(f"[{LINE_ENDS}{_BLANKS.replace(' ', '', 1)}{_INVISIBLE}\ud800-\udfff]")


class _Lines(NamedTuple):
    """Patterns of structural lines: at the start of a text, and after a line end."""

    first: re.Pattern[str]
    later: re.Pattern[str]


@cache
def _lines() -> _Lines:
    """Compiled at first use: that takes longer than most modules take to import, and little text needs it."""
    later = rf"([{LINE_ENDS}])"
    patterns = (_STRUCTURAL, f"{later}(?={_STRUCTURAL})")
    return _Lines(*map(re.compile, patterns))


def escape(content: str) -> str:
    """``content`` with a backslash before each line that could be taken for structure; itself if there is none.

    Cost: linear, one pass over text in which no keyword occurs.
    """
    if not _may_hold_structure(content):
        return content
    escaped = _lines().later.sub(r"\1\\", content)
    return "\\" + escaped if _lines().first.match(content) else escaped


def _may_hold_structure(text: str) -> bool:
    """False only if no line of ``text`` is structural: a cheap test that spares most text the exact one."""
    if any(keyword in text for keyword in KEYWORDS) or ("id=" in text and "type=" in text):
        return True
    # Most text is plain ASCII, and that is told eight times faster than the absence of every invisible character.
    return _PLAIN_ASCII.fullmatch(text) is None and _ANY_INVISIBLE.search(text) is not None


def quote(value: str) -> str:
    """``value`` as it stands after ``key=`` in a structural line: bare if it is one plain word, else a JSON string."""
    if (value.isalnum() and value.isascii()) or _BARE.fullmatch(value):
        return value
    return _QUOTED_APART.sub(_as_unicode_escape, json.dumps(value, ensure_ascii=False))


def _as_unicode_escape(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]
