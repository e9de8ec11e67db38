"""The query language, translated to FTS5 expressions. Pure.

A query consists of words, phrases in double quotes, and prefixes of words, which end in ``*``; a text has to contain
all of them. All other characters separate words, so users cannot enter FTS5 operators.
"""

import unicodedata
from typing import Final, NamedTuple

from ctxd.errors import CtxdError
from ctxd_protocol.methods.search import QUERY_TERMS_MAX

PREFIX_CHARS_MIN: Final = 2
"""Minimum letters and digits before ``*``: almost every text has a word with a shorter prefix."""

_HINT: Final = 'Write words, "a phrase" or the beginning of a word with *, as in: pars* "tab stop".'


class Query(NamedTuple):
    """A query as FTS5 expressions: ``all_of`` requires each of ``terms``, ``any_of`` one of those without the file."""

    all_of: str
    any_of: str
    terms: tuple[str, ...]


def parse(text: str, file: str | None = None) -> Query:
    """Translate the query ``text``; with ``file``, restrict it to tool calls with that file in their arguments.

    Raises: CtxdError ``invalid_params`` for an unclosed quote, a prefix that is too short, too many terms, or text
    without a word.
    """
    terms = [_expression(words, prefix=prefix) for words, prefix in _terms(text) if has_word(words)]
    if not terms:
        raise _refused(f"the query {_shown(text)} has no word")
    if len(terms) > QUERY_TERMS_MAX:
        raise _refused(f"the query has {len(terms)} words and phrases; the maximum is {QUERY_TERMS_MAX}")
    any_of, all_of = " OR ".join(terms), " AND ".join(terms)
    if file is not None:
        if not has_word(file):
            raise CtxdError("invalid_params", f"the file name {_shown(file)} has no letter and no digit")
        all_of = f"({all_of}) AND {naming(file)}"
        terms.append(naming(file))
    return Query(all_of, any_of, tuple(terms))


def naming(file: str) -> str:
    """The FTS5 expression for tool calls with ``file`` in their arguments."""
    return f"call : {_expression(file, prefix=False)}"


def _terms(text: str) -> list[tuple[str, bool]]:
    """The terms of ``text``, each with True if it is a prefix."""
    found: list[tuple[str, bool]] = []
    at = 0
    while at < len(text):
        if text[at].isspace():
            at += 1
            continue
        if text[at] == '"':
            end = text.find('"', at + 1)
            if end < 0:
                raise _refused(f"the quote at character {at + 1} of the query is not closed")
            words, at = text[at + 1 : end], end + 1
        else:
            end = at
            while end < len(text) and not text[end].isspace() and text[end] != '"':
                end += 1
            words, at = text[at:end], end
            if words.endswith("*") and has_word(words):
                found.append((words.rstrip("*"), True))
                continue
        is_prefix = at < len(text) and text[at] == "*" and has_word(words)
        found.append((words, is_prefix))
        at += is_prefix
    for words, is_prefix in found:
        if is_prefix and sum(map(_is_letter, words)) < PREFIX_CHARS_MIN:
            raise _refused(f"{_shown(words + '*')} is too short: write {PREFIX_CHARS_MIN} letters before *")
    return found


def _expression(words: str, *, prefix: bool) -> str:
    """``words`` as an FTS5 string. A NUL would end the whole expression."""
    quoted = words.replace('"', '""').replace("\0", " ")
    # The star applies to the last word; separators after it would make that an empty word.
    while prefix and quoted and not _is_letter(quoted[-1]):
        quoted = quoted[:-1]
    return f'"{quoted}"{" *" if prefix else ""}'


def has_word(text: str) -> bool:
    """True if ``text`` has a letter or a digit, without which a term finds nothing."""
    return any(map(_is_letter, text))


def _is_letter(character: str) -> bool:
    """True for the characters that the tokenizer ``unicode61`` keeps in words."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"


def _refused(message: str) -> CtxdError:
    return CtxdError("invalid_params", message, hint=_HINT)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
