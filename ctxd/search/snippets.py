"""Snippets: the passage of a text that matches a query best, made safe for display.

FTS5 itself finds it, with the tokenizer of the index, in an in-memory table that is emptied afterwards. In a long text,
only the surroundings of the first match are considered, unless it has accents or the like that only FTS5 ignores.
"""

import re
import unicodedata
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from ctxd import sqlite_file
from ctxd.search.word_shards import TOKENIZER
from ctxd.terminal import visible

WORDS: Final = 24
"""Approximate words per snippet."""

CHARS_MAX: Final = 400
"""Maximum characters of a snippet."""

_WHOLE_CHARS_MAX: Final = 16 * 1024
_AROUND_CHARS: Final = 2 * 1024
_START, _END, _MORE = "\x01", "\x02", "…"

_SPACES: Final = re.compile(r"[\s\x00-\x20\x7f-\xa0]+")
_TERM: Final = re.compile(r'"([^"]+)"( \*)?')
_WORD: Final = re.compile(r"[^\W_]+")


class Snippet(NamedTuple):
    """A passage on one line, with the start and end of each match in it."""

    text: str
    matches: tuple[tuple[int, int], ...]


class Snippets:
    """Maker of snippets. Blocks; for one thread at a time."""

    def __init__(self) -> None:
        self._connection = sqlite_file.in_memory()
        self._connection.execute(
            f"CREATE VIRTUAL TABLE shown USING fts5(text, call, tokenize='{TOKENIZER}')"
        ).fetchall()

    def close(self) -> None:
        """Free the memory."""
        self._connection.close()

    def of(
        self, texts: Sequence[tuple[str, str]], any_of: str, check: Callable[[], None] = lambda: None
    ) -> list[Snippet | None]:
        """The snippets of ``texts``, pairs of text and arguments, for the FTS5 expression ``any_of``; None for a text
        without a match. ``check`` is called before each text; its errors pass through."""
        terms, windows = _pattern(any_of), []
        for text, call in texts:
            check()
            windows.append((_window(text, terms), _window(call, terms)))
        found = self._marked(windows, any_of)
        for number, (text, call) in enumerate(texts):
            if found[number] is None and len(text) + len(call) > _WHOLE_CHARS_MAX:
                # FTS5 and the pattern may delimit words differently.
                check()
                found[number] = self._marked([(_SPACES.sub(" ", text), _SPACES.sub(" ", call))], any_of)[0]
        return found

    def _marked(self, texts: Sequence[tuple[str, str]], any_of: str) -> list[Snippet | None]:
        found: list[Snippet | None] = [None] * len(texts)
        connection = self._connection
        connection.execute("BEGIN").fetchall()
        try:
            rows = [(number, text, call) for number, (text, call) in enumerate(texts, 1)]
            sqlite_file.insert_rows(connection, "INSERT INTO shown(rowid, text, call)", "(?,?,?)", rows)
            query = f"SELECT rowid, snippet(shown, -1, ?, ?, ?, {WORDS}) FROM shown WHERE shown MATCH ?"
            for number, text in connection.execute(query, (_START, _END, _MORE, any_of)):
                found[number - 1] = _read(text)
        finally:
            connection.execute("ROLLBACK").fetchall()
        return found


def _pattern(any_of: str) -> re.Pattern[str]:
    """A pattern for the terms of the FTS5 expression ``any_of``, as whole words or prefixes of words."""
    found = []
    for term, is_prefix in _TERM.findall(unicodedata.normalize("NFC", any_of)):
        words = r"[\W_]+".join(map(re.escape, _WORD.findall(term) or [term]))
        found.append(rf"(?<![^\W_]){words}" if is_prefix else rf"(?<![^\W_]){words}(?![^\W_])")
    return re.compile("|".join(found), re.IGNORECASE)


def _window(text: str, terms: re.Pattern[str]) -> str:
    """``text`` without control characters, or the surroundings of the first of ``terms`` in a long one."""
    if len(text) > _WHOLE_CHARS_MAX and (found := terms.search(text)) is not None:
        # Start at the beginning of a word: a part of one would be a different word.
        first = found.start()
        start = max(0, first - _AROUND_CHARS)
        start = start if start == 0 else text.find(" ", start, first) + 1 or first
        text = text[start : found.end() + _AROUND_CHARS]
    return _SPACES.sub(" ", text)


def _read(marked: str) -> Snippet:
    """The snippet with the positions of its matches; terminal control characters are escaped."""
    parts: list[str] = []
    matches: list[tuple[int, int]] = []
    size = 0
    for nth, piece in enumerate(re.split(f"([{_START}{_END}])", marked.strip())):
        if nth % 2:
            if piece == _START:
                matches.append((size, size))
            elif matches:
                matches[-1] = (matches[-1][0], size)
            continue
        shown = visible(piece)
        parts.append(shown)
        size += len(shown)
    text = "".join(parts)
    if size > CHARS_MAX:
        # Words may be of any length; make sure that the first match is visible.
        start = max(0, min(matches[0][0] - CHARS_MAX // 4, size - CHARS_MAX)) if matches else 0
        text = text[start : start + CHARS_MAX]
        moved = ((max(0, begin - start), min(CHARS_MAX, end - start)) for begin, end in matches)
        matches = [(begin, end) for begin, end in moved if begin < end]
    return Snippet(text, tuple(matches))
