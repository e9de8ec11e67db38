"""What single words of a shell command turn into: braces to several words, ``$'…'`` to the characters it spells."""

import re
from collections.abc import Iterator

from ctxd.indexing.discovery.syntax import Word

BRACED_CHARS_MAX = 1024
"""Characters of a word whose braces are expanded; longer ones are data, not lists of files."""

_BRACES = re.compile(r"\{([^\s{},]*(?:,[^\s{},]*)+)\}")
_SPELLED = re.compile(r"(?:[^'\\]|\\.)*", re.DOTALL)
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{1,2})|u([0-9a-fA-F]{1,4})|U([0-9a-fA-F]{1,8})|([0-7]{1,3})|(.))", re.DOTALL)
_NAMED = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "e": "\x1b", "E": "\x1b", "f": "\f", "v": "\v"}
_LAST_CHARACTER = 0x10FFFF


def spelled(text: str, at: int) -> tuple[str, int]:
    """The characters that ``$'…'`` spells, and where it ends. ``at`` is behind its opening quote."""
    found = _SPELLED.match(text, at)
    end = found.end() if found is not None else at
    return _ESCAPE.sub(_character, text[at:end]), min(end + 1, len(text))


def _character(escape: re.Match[str]) -> str:
    *codes, octal, other = escape.groups()
    if other is not None:
        return _NAMED.get(other, other)
    number = int(octal, 8) if octal else int(next(code for code in codes if code), 16)
    return chr(number) if 0 < number <= _LAST_CHARACTER and not 0xD800 <= number < 0xE000 else ""


def braced(word: Word, limit: int = 64) -> Iterator[Word]:
    """``a{b,c}d`` as ``abd`` and ``acd``; as it is if there is nothing to expand, or too much."""
    pending, done = [word.text], 0
    if not word.bare or "{" not in word.text or "," not in word.text or len(word.text) > BRACED_CHARS_MAX:
        yield word
        return
    while pending and done < limit:
        text = pending.pop()
        braces = _BRACES.search(text)
        if braces is None or len(pending) > limit:
            done += 1
            yield Word(text, word.opaque, word.glob, word.bare, word.inner)
            continue
        head, tail = text[: braces.start()], text[braces.end() :]
        pending.extend(head + part + tail for part in reversed(braces.group(1).split(",")))
