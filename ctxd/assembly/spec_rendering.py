r"""The text format of a context (spec 1 §4.1): pure, and with one text per value.

A context is a sequence of *blocks*, separated by one blank line (``\n\n``)::

    {system prompt}                                          only if not empty

    METADATA_POOL                                            only if the pool is not empty
    id={id} type=file path={path} file_type={t} char_count={n}
    id={id} type=file path={path} file_type={t} char_count=0 [unread]
    id={id} type=file path={path} file_type={t} char_count=0 [deleted]
    id={id} type=file path={path} file_type={t} char_count=0 [purged]
    id={id} type=file path={path} file_type={t} char_count=0 [too large]
    id={id} type=file path={path} file_type={t} char_count=0 [binary]
    id={id} type=toolcall tool={tool} status={status}

    CHAT_MESSAGE role=user                                   or role=assistant
    {text}

    toolcall_ref id={id} tool={tool} status={status}

    CHAT_MESSAGE role=tool tool={tool} status={status}       a tool call without an object
    {arguments: a JSON object, one line}
    {output}

    ACTIVE_CONTENT id={id}
    {content}

Nothing is added to content or lost from it, and it keeps its own final newline or lack of one: the blank line between
blocks is two line feeds after its last byte, and the text ends with the last block's last byte. Text that looks like
structure is escaped, so that every context can be parsed back exactly. Two rules do that; both are reversible, and
neither changes ordinary text:

- A *line* of content that looks like a structural line gets one ``\`` in front. Such a line has any number of ``\`` (so
  that a line which already looks escaped is escaped once more), then any blanks and invisible characters, then
  ``METADATA_POOL``, ``CHAT_MESSAGE``, ``toolcall_ref`` or ``ACTIVE_CONTENT``, or ``id=`` with ``type=`` later in the
  line; invisible characters between the letters are ignored. A line begins at the start of the content and after every
  character that some reader treats as a line end, CR, NEL, LS and PS among them.
- A *value* of a structural line that is empty, or contains a blank, a quote, a line end, a control, an invisible or a
  direction character, is written as a JSON string in which those (blanks excepted) are ``\uXXXX``.

The character classes are spelled out instead of taken from the interpreter's Unicode tables: a recorded context must
render to the same bytes under another Python.
"""

import json
import re
from functools import cache
from typing import Final, Literal, NamedTuple

LineState = Literal["present", "unread", "deleted", "purged", "too_large", "binary"]
"""State of a file in its metadata line; the last two: of a file whose content is not kept."""

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
"""Beginnings of structural lines, except metadata lines."""


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
    """The patterns, compiled at first use: this takes longer than importing most modules, and little text needs it."""
    later = rf"([{LINE_ENDS}])"
    patterns = (_STRUCTURAL, f"{later}(?={_STRUCTURAL})")
    return _Lines(*map(re.compile, patterns))


def escape(content: str) -> str:
    """``content`` with a backslash before each line that looks like structure; unchanged without such a line.

    Cost: linear, one pass over text in which no keyword occurs.
    """
    plain = not any(keyword in content for keyword in KEYWORDS) and not ("id=" in content and "type=" in content)
    # Most text is plain ASCII, which is found eight times faster than the absence of every invisible character.
    if plain and (_PLAIN_ASCII.fullmatch(content) is not None or _ANY_INVISIBLE.search(content) is None):
        return content
    escaped = _lines().later.sub(r"\1\\", content)
    return "\\" + escaped if _lines().first.match(content) else escaped


def quote(value: str) -> str:
    """``value`` in the form for a structural line, after ``key=``: bare if it is one plain word, else a JSON string."""
    if (value.isalnum() and value.isascii()) or _BARE.fullmatch(value):
        return value
    return _QUOTED_APART.sub(_as_unicode_escape, json.dumps(value, ensure_ascii=False))


def _as_unicode_escape(found: re.Match[str]) -> str:
    return json.dumps(found.group())[1:-1]


RENDERER: Final = 3
"""Version of the format, kept with every recorded assembly. A change of any byte of any rendering needs a new one."""

RENDERERS: Final = (1, 2, RENDERER)
"""Versions that can be rendered. Version 1 has no mark for files whose content is not kept; in versions 1 and 2, the
chat has no tool calls without an object, and no compactions."""

SEPARATOR: Final = "\n\n"
"""Separator between two blocks."""

POOL_HEADER: Final = "METADATA_POOL"
_SUFFIXES: Final[dict[LineState, str]] = {
    "present": "",
    "unread": " [unread]",
    "deleted": " [deleted]",
    "purged": " [purged]",
    "too_large": " [too large]",
    "binary": " [binary]",
}


def render_file_line(id: str, path: str, file_type: str, char_count: int, state: LineState) -> str:
    """The metadata line of a file. ``path``: its display path; ``char_count``: in code points."""
    return (
        f"id={quote(id)} type=file path={quote(path)} file_type={quote(file_type)}"
        f" char_count={char_count}{_SUFFIXES[state]}"
    )


def render_toolcall_line(id: str, tool: str, status: str) -> str:
    """The metadata line of a tool call."""
    return f"id={quote(id)} type=toolcall tool={quote(tool)} status={quote(status)}"


def render_message(role: str, text: str) -> str:
    """The block of a user's or an assistant's message."""
    return f"CHAT_MESSAGE role={role}\n{escape(text)}"


def render_toolcall_ref(id: str, tool: str, status: str) -> str:
    """The block in the chat that refers to the output of a tool call."""
    return f"toolcall_ref id={quote(id)} tool={quote(tool)} status={quote(status)}"


def render_tool_message(tool: str, status: str, arguments: str, output: str) -> str:
    """The block in the chat of a tool call without an object. ``arguments``: a JSON object in one line."""
    body = escape(f"{arguments}\n{output}")
    return f"CHAT_MESSAGE role=tool tool={quote(tool)} status={quote(status)}\n{body}"


def render_active(id: str, content: str) -> str:
    """The block of an active object."""
    return f"ACTIVE_CONTENT id={quote(id)}\n{escape(content)}"
