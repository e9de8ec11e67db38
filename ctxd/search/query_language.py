"""The language of queries, translated to that of FTS5. Pure.

A query is words, phrases in double quotes, and beginnings of words, which end in ``*``; a text has to contain them all.
Whatever else is written separates words, so that nothing a user writes is an operator of FTS5.
"""

import unicodedata
from typing import Final, NamedTuple

from ctxd.errors import CtxdError
from ctxd_protocol.methods.search import QUERY_TERMS_MAX

PREFIX_CHARS_MIN: Final = 2
"""Letters and digits before ``*`` at least: a shorter beginning is that of almost every text."""

_HINT: Final = 'Write words, "a phrase" or the beginning of a word with *, as in: pars* "tab stop".'


class Query(NamedTuple):
    """A query as FTS5 expressions: ``all_of`` requires every term, ``any_of`` one of them."""

    all_of: str
    any_of: str


def parse(text: str, file: str | None = None) -> Query:
    """Return the query ``text``; with ``file`` only what arguments of tool calls name so.

    Raises: CtxdError ``invalid_params`` for a quote that is not closed, a beginning that is too short, too many terms,
    and for text without a word.
    """
    terms = [_expression(words, prefix=prefix) for words, prefix in _terms(text) if has_word(words)]
    if not terms:
        raise _refused(f"the query {_shown(text)} has no word")
    if len(terms) > QUERY_TERMS_MAX:
        raise _refused(f"the query has {len(terms)} words and phrases, {QUERY_TERMS_MAX} are possible")
    all_of = " AND ".join(terms)
    if file is not None:
        if not has_word(file):
            raise CtxdError("invalid_params", f"the file name {_shown(file)} has no letter and no digit")
        all_of = f"({all_of}) AND {naming(file)}"
    return Query(all_of, " OR ".join(terms))


def naming(file: str) -> str:
    """The expression that finds the tool calls of which an argument names ``file``."""
    return f"call : {_expression(file, prefix=False)}"


def _terms(text: str) -> list[tuple[str, bool]]:
    """The terms of ``text``, each with whether it is the beginning of a word."""
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
    """``words`` as a string of FTS5. A NUL would end the whole expression."""
    quoted = words.replace('"', '""').replace("\0", " ")
    # The last word is the one that a star continues: what separates words behind it would be one more, empty.
    while prefix and quoted and not _is_letter(quoted[-1]):
        quoted = quoted[:-1]
    return f'"{quoted}"{" *" if prefix else ""}'


def has_word(text: str) -> bool:
    """True if ``text`` has a letter or a digit, without which nothing is found."""
    return any(map(_is_letter, text))


def _is_letter(character: str) -> bool:
    """True for the characters that the tokenizer ``unicode61`` makes words of."""
    category = unicodedata.category(character)
    return category[0] in "LN" or category == "Co"


def _refused(message: str) -> CtxdError:
    return CtxdError("invalid_params", message, hint=_HINT)


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else f"{text[:60]}…")
