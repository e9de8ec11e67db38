"""Search of JSON as it is written for lines that may hold a secret, so that the other lines need not be decoded.

Each rule is loosened such that it matches JSON wherever the rule itself matches one of its strings: a word may begin
behind any escape, a quote may have the backslashes that JSON adds, and what is required behind a match is left out. A line that is not found holds nothing that the rules find. Pure.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final

from ctxd.secrets.rules import EDGE, NAME, Rule
from ctxd.secrets.scanner import compiled

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


class JsonCandidates:
    """The loosened form of ``rules``. With a rule from a file, whose pattern may be anything, every line is found."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._pattern: Any = None
        if not any(rule.custom for rule in rules):
            pattern = "|".join((*(f"(?:{_loosened(rule.pattern)})" for rule in rules), *_OTHERWISE))
            self._pattern = compiled("of JSON", pattern, combined=True)

    def lines(self, data: bytes) -> Iterator[int]:
        """Yield the numbers, from 0, of the lines of ``data`` that may hold a secret. Cost: linear."""
        if self._pattern is None:
            yield from range(data.count(b"\n") + 1)
            return
        number = at = 0
        while (match := self._pattern.search(data, at)) is not None:
            start = match.start()
            number += data.count(b"\n", at, start)
            yield number
            at = data.find(b"\n", start) + 1
            number += 1
            if not at:
                return


def _loosened(pattern: str) -> str:
    loose = _EDGE.join(part.replace(r"\b", "") for part in pattern.split(EDGE)).replace(_BACKSLASHES, _MORE_BACKSLASHES)
    loose = _END.sub("", _SPACES.sub(lambda _: _ANY_SPACE, loose))
    return _QUOTED_VALUE.sub("", loose).replace("?P<s>", "?:")
