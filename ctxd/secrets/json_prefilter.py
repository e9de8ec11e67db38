"""Pattern of JSON lines that may hold a secret, so that the other lines need not be decoded to be searched.

Each rule is loosened so that it matches JSON wherever the rule itself matches one of its strings: a word may begin
after any escape, a quote may have the backslashes that JSON adds, and conditions after a match are left out. A line
without a match holds nothing that the rules find. Pure. Separate from the scanner, which matches one text.
"""

import re
from collections.abc import Sequence
from typing import Final

from ctxd.secrets.built_in_rules import EDGE, NAME, Rule

_EDGE: Final = r"(?:\b|\\[nrtbf]|\\u[0-9a-fA-F]{4})"
_BACKSLASHES: Final = r"\\{0,3}"
_MORE_BACKSLASHES: Final = r"\\{0,7}"
"""JSON doubles up to three backslashes before a quote, and adds one for the quote."""

_SPACES: Final = re.compile(r"\\s\{\d,\d\}")
_ANY_SPACE: Final = r"(?:\s|\\[nrtf])*"
_QUOTED_VALUE: Final = re.compile(r"\(\?P<s>\[!-&.*")
"""A value that may contain quotes: the text before it suffices."""

_END: Final = re.compile(r"\(\?:\[\^[^\]]*\]\|\\z\)")

_OTHERWISE: Final = (
    # An escape of a character that needs none.
    r"\\u00[2-7]",
    r"\\/",
    # A name with a list as its value: each string in it counts.
    rf'{NAME}"\s*:\s*\[',
)


def loosened(rules: Sequence[Rule]) -> str | None:
    """Return the pattern of a possible secret in encoded JSON; None with rules from a file, whose patterns may be
    anything."""
    if any(rule.custom for rule in rules):
        return None
    return "|".join((*(f"(?:{_loosened(rule.pattern)})" for rule in rules), *_OTHERWISE))


def _loosened(pattern: str) -> str:
    loose = _EDGE.join(part.replace(r"\b", "") for part in pattern.split(EDGE)).replace(_BACKSLASHES, _MORE_BACKSLASHES)
    loose = _END.sub("", _SPACES.sub(lambda _: _ANY_SPACE, loose))
    return _QUOTED_VALUE.sub("", loose).replace("?P<s>", "?:")
