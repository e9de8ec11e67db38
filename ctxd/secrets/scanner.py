"""One scan over a text for all rules: a combined RE2 pattern finds candidates, the rules decide.

RE2 takes linear time on any text, so no text can stall the daemon. Pure; may run on any thread.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, cached_property
from typing import Any, Final

import msgspec
import re2  # type: ignore[import-untyped]  # it brings no types

from ctxd.secrets.built_in_rules import BUILT_IN, Rule
from ctxd.secrets.json_prefilter import loosened

_MEMORY: Final = 64 * 1024 * 1024
"""Maximum bytes of the combined pattern's automaton: with less, RE2 discards and rebuilds it over and over."""

_LOOKED_AGAIN_MIN: Final = 64 * 1024
"""Bytes of false matches that may be searched again, in addition to the size of the text."""

_BEYOND: Final = 4096
"""Bytes after a loose match that are searched for a secret which begins within it."""

_NEAR: Final = 4096
"""Bytes after a match that are searched first. Text that begins like a secret without an end keeps the automaton
running to the end of its input; after each of many matches, that would be the whole text."""

_FARTHER: Final = 8
"""Factor by which the searched bytes grow if they hold nothing."""


class Hit(msgspec.Struct, frozen=True):
    """A secret: the rule that found it, and its start and end (exclusive) in the text, in bytes."""

    rule: str
    start: int
    end: int


class RefusedPattern(ValueError):
    """RE2 refuses a rule's pattern; the message names the rule and the reason."""


def compiled(name: str, pattern: str, *, combined: bool = False) -> Any:  # noqa: ANN401 - re2 has no types
    """Compile ``pattern`` over bytes; ``combined``: it joins many rules, without groups. Raises: RefusedPattern."""
    options = _options()
    if combined:
        options.max_mem = _MEMORY
        options.never_capture = True
    try:
        return re2.compile(pattern.encode(), options)
    except re2.error as error:
        reason = error.args[0] if error.args else "it cannot be compiled"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise RefusedPattern(f"rule {name}: RE2 refuses the pattern: {text}") from error


def _options() -> Any:  # noqa: ANN401 - re2 has no types
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.log_errors = False
    return options


class _Compiled(msgspec.Struct, frozen=True):
    rule: Rule
    pattern: Any
    group: int | None


class Scanner:
    """Finds the secrets of ``rules`` in a text. Earlier rules have precedence."""

    def __init__(self, rules: Sequence[Rule] = BUILT_IN, allowed: Iterable[bytes] = ()) -> None:
        """``allowed``: texts that are not secrets, whichever rule matches. Raises: RefusedPattern."""
        self._made_from = tuple(rules), frozenset(allowed)
        self._allowed = self._made_from[1]
        self._rules = [_compile(rule) for rule in rules]
        self._which = _which(rules)
        # A custom pattern may depend on characters next to the match, and may match the beginning of a built-in form.
        self._custom = [number for number, rule in enumerate(rules) if rule.custom]
        self._strict = _joined(rule for rule in rules if not rule.loose)
        self.combined = _joined(rules)

    def __reduce__(self) -> tuple[type["Scanner"], tuple[tuple[Rule, ...], frozenset[bytes]]]:
        """Pickle the rules: compiled patterns cannot be pickled, so another process compiles them again."""
        return Scanner, self._made_from

    def hits(self, data: bytes, *, first_only: bool = False) -> list[Hit]:
        """The secrets in ``data``, in order and without overlaps; ``first_only``: only the first of them. Cost: linear,
        see the bench ``secrets``."""
        found: list[Hit] = []
        left = _LOOKED_AGAIN_MIN + len(data)
        match = self.combined.search(data)
        while match is not None:
            start, end = match.span()
            hit = self._hit_at(data, start, end)
            if hit is not None:
                found.append(hit)
                if first_only:
                    break
                at = max(hit.end, start + 1)
            else:
                # A false match may have hidden the start of a secret, so search it again, within a limit.
                left -= end - start
                at = _next_word(data, start, end) if left > 0 else max(end, start + 1)
            match = self._next(data, at)
        return found

    def lines_to_search(self, data: bytes) -> Iterator[int]:
        """Yield the numbers, from 0, of those lines of JSON in which a decoded text or name may hold a secret. Cost:
        linear."""
        if self._in_json is None:
            yield from range(data.count(b"\n") + 1)
            return
        number = at = 0
        while (match := self._in_json.search(data, at)) is not None:
            number += data.count(b"\n", at, match.start())
            yield number
            at = data.find(b"\n", match.start()) + 1
            number += 1
            if not at:
                return

    @cached_property
    def _in_json(self) -> Any:  # noqa: ANN401 - re2 has no types
        pattern = loosened(self._made_from[0])
        return None if pattern is None else compiled("of JSON", pattern, combined=True)

    def _next(self, data: bytes, at: int) -> Any:  # noqa: ANN401 - re2 has no types
        """Return the next match from ``at`` on, None without one; the nearest bytes are searched first."""
        size, near = len(data), _NEAR
        while True:
            end = min(size, at + near)
            match = self.combined.search(data, at, end)
            # A match up to the end of the searched bytes may continue after them.
            if end == size or (match is not None and match.end() < end):
                return match
            near *= _FARTHER

    def _hit_at(self, data: bytes, start: int, end: int) -> Hit | None:
        """Return the finding of the first rule that matches at ``start`` and passes its check; the combined match ends
        at ``end``."""
        if self._custom:
            end = min(len(data), end + _BEYOND)
        for number in sorted({*self._custom, *(self._which.Match(data[start:end]) or ())}):
            one = self._rules[number]
            match = one.pattern.match(data, start, end)
            if match is None:
                continue
            inner = self._inner(data, *self._span(one, match)) if one.rule.loose else None
            hit = inner or self._checked(data, one, match)
            if hit is not None:
                return hit
        return None

    def _inner(self, data: bytes, start: int, end: int) -> Hit | None:
        """Return the finding of a rule of a distinctive form within a loose match."""
        found = self._strict.search(data, start, min(len(data), end + _BEYOND))
        return None if found is None or found.start() >= end else self._hit_at(data, *found.span())

    def _span(self, one: _Compiled, match: Any) -> tuple[int, int]:  # noqa: ANN401 - re2 has no types
        start, end = match.span(one.group or 0)
        return (start, end) if start >= 0 else match.span()

    def _checked(self, data: bytes, one: _Compiled, match: Any) -> Hit | None:  # noqa: ANN401 - re2 has no types
        start, end = self._span(one, match)
        if one.rule.end is not None:
            last = one.rule.end(data, end)
            if last is None:
                return None
            end = last
        secret = data[start:end]
        if not secret or secret in self._allowed or (one.rule.check is not None and not one.rule.check(secret)):
            return None
        # A match of a custom rule may end within a character; include the rest of it.
        while start and data[start] & 0xC0 == 0x80:
            start -= 1
        while end < len(data) and data[end] & 0xC0 == 0x80:
            end += 1
        return Hit(one.rule.name, start, end)


@cache
def built_in_scanner() -> Scanner:
    """The scanner of the built-in rules, one for each process: making it takes 10 ms."""
    return Scanner()


def _next_word(data: bytes, start: int, end: int) -> int:
    """Return the offset at which to continue after a false match: after its first word, since secrets begin with a
    word."""
    place = start
    while place < end and (data[place : place + 1].isalnum() or data[place] in b"_-"):
        place += 1
    return max(place, start + 1)


def _joined(rules: Iterable[Rule]) -> Any:  # noqa: ANN401 - re2 has no types
    pattern = "|".join(f"(?:{rule.pattern})" for rule in rules)
    return compiled("of all together", pattern or r"[^\x00-\xff]", combined=True)


def _which(rules: Sequence[Rule]) -> Any:  # noqa: ANN401 - re2 has no types
    """Return an RE2 set that finds the rules which a text matches."""
    options = _options()
    options.max_mem = _MEMORY
    found = re2.Set.MatchSet(options)
    for rule in rules:
        found.Add(rule.pattern.encode())
    if rules:
        found.Compile()
    return found


def _compile(rule: Rule) -> _Compiled:
    # In a group, as in the combined pattern: a pattern that compiles only alone is refused here, with its rule's name.
    pattern = compiled(rule.name, f"(?:{rule.pattern})")
    group = dict(pattern.groupindex).get(b"s")
    return _Compiled(rule, pattern, group)
