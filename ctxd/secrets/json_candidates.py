"""Pattern of lines of JSON that may hold a secret, so that the other lines need not be decoded to be searched.

Each rule is loosened such that it matches JSON wherever the rule itself matches one of its strings: a word may begin
behind any escape, a quote may have the backslashes that JSON adds, and what is required behind a match is left out. A
line without a match holds nothing that the rules find. Pure. Separate from the scanner, which matches one text.
"""

import re
from collections.abc import Sequence
from typing import Final

from ctxd.secrets.rules import EDGE, NAME, Rule

_EDGE: Final = r"(?:\b|\\[nrtbf]|\\u[0-9a-fA-F]{4})"
_BACKSLASHES: Final = r"\\{0,3}"
_MORE_BACKSLASHES: Final = r"\\{0,7}"
"""JSON writes up to three backslashes before a quote as twice as many, and one more for the quote."""

_SPACES: Final = re.compile(r"\\s\{\d,\d\}")
_ANY_SPACE: Final = r"(?:\s|\\[nrtf])*"
_QUOTED_VALUE: Final = re.compile(r"\(\?P<s>\[!-&.*")
"""A value that may hold quotes: what stands before it is enough."""

_END: Final = re.compile(r"\(\?:\[\^[^\]]*\]\|\\z\)")

_OTHERWISE: Final = (
    # A character that could stand as it is.
    r"\\u00[2-7]",
    r"\\/",
    # A name of which each text in a list is the value.
    rf'{NAME}"\s*:\s*\[',
)


def loosened(rules: Sequence[Rule]) -> str | None:
    """Return the pattern of a possible secret in JSON as it is written; None with rules from a file: their patterns
    may be anything."""
    if any(rule.custom for rule in rules):
        return None
    return "|".join((*(f"(?:{_loosened(rule.pattern)})" for rule in rules), *_OTHERWISE))


def _loosened(pattern: str) -> str:
    loose = _EDGE.join(part.replace(r"\b", "") for part in pattern.split(EDGE)).replace(_BACKSLASHES, _MORE_BACKSLASHES)
    loose = _END.sub("", _SPACES.sub(lambda _: _ANY_SPACE, loose))
    return _QUOTED_VALUE.sub("", loose).replace("?P<s>", "?:")
