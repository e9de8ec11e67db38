"""The table of ``ctx session ls``: what a narrow terminal shows of it."""

from collections.abc import Callable, Collection, Sequence
from typing import Final

from ctxd.terminal import Screen, width

_COLUMNS: Final = ("SESSION", "UPDATED", "AGENT", "STATE", "PROJECT", "TURNS", "ACTIVE", "INDEX")
_NUMBERS: Final = ("TURNS", "ACTIVE", "INDEX")
_LEAST: Final = ("INDEX", "ACTIVE", "AGENT", "STATE", "TURNS", "PROJECT")
"""Columns that a narrow terminal leaves out, the first ones first."""

_LAST_CHARS: Final = 24
"""Characters of the last column that the columns of ``_LEAST`` leave free."""

_PREFIX_CHARS_MIN: Final = 16
"""Minimum characters of a shortened id, so that a new session seldom has the same prefix."""


def header(last: str) -> tuple[str, ...]:
    """The names of all columns, of which ``last`` is the last."""
    return (*_COLUMNS, last)


def print_table(
    screen: Screen,
    names: Sequence[str],
    rows: Sequence[Sequence[str]],
    prefixes: Callable[[], dict[str, str]] | None,
) -> None:
    """Print ``rows`` under ``names``. A terminal gets no column of zeros; if it is too narrow, it gets fewer columns,
    and in place of the ids the result of ``prefixes``, unless it is None."""
    edge = screen.columns
    if edge is not None:
        empty = [name for name in _NUMBERS if all(row[names.index(name)] in ("", "0") for row in rows)]
        names, rows = _without(names, rows, empty)
        if prefixes is not None and _width(names, rows) > edge:
            shortened = prefixes()
            rows = [(shortened[row[0]], *row[1:]) for row in rows]
        for name in _LEAST:
            if _width(names, rows) > edge:
                names, rows = _without(names, rows, [name])
    screen.table(names, rows, right=[number for number, name in enumerate(names) if name in _NUMBERS])


def unique_prefixes(shown: Collection[str], all_ids: Collection[str]) -> dict[str, str]:
    """Return the shortest prefix of each id in ``shown`` that no other id in ``all_ids`` has."""
    ordered = sorted({*shown, *all_ids})
    found: dict[str, str] = {}
    for number, id in enumerate(ordered):
        beside = ordered[max(0, number - 1) : number] + ordered[number + 1 : number + 2]
        length = max((_common(id, other) + 1 for other in beside), default=1)
        found[id] = id[: max(length, _PREFIX_CHARS_MIN)]
    return {id: found[id] for id in shown}


def _common(one: str, other: str) -> int:
    same = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        same += 1
    return same


def _without(
    names: Sequence[str], rows: Sequence[Sequence[str]], gone: Collection[str]
) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    kept = [number for number, name in enumerate(names) if name not in gone]
    return [names[number] for number in kept], [[row[number] for number in kept] for row in rows]


def _width(names: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table, of whose last column at most ``_LAST_CHARS`` count."""
    widths = [max(map(width, column)) for column in zip(names, *rows, strict=True)]
    return sum(widths[:-1]) + min(widths[-1], _LAST_CHARS) + 2 * (len(widths) - 1)
