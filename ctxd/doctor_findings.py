"""Findings of the checks of ``ctx doctor`` and ``ctxd doctor``: one form, one look, remedies that begin alike.

It stands alone because clients and the daemon's commands share it.
"""

from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from ctxd.formatting import clause
from ctxd.terminal import Colour, Screen, cell

Verdict = Literal["ok", "warn", "fail"]

_MARKS: Final[dict[Verdict, tuple[str, Colour]]] = {"ok": ("✓", "green"), "warn": ("!", "yellow"), "fail": ("✗", "red")}


class Finding(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Result of one check: its name, the verdict, the details, and the fix; no fix is needed when it is ok."""

    name: str
    verdict: Verdict
    found: str
    fix: str = ""


def ok(name: str, found: str) -> Finding:
    """Return the result of a check that found no problem."""
    return Finding(name=name, verdict="ok", found=found)


def warn(name: str, found: str, fix: str) -> Finding:
    """Return the result of a check that found a minor or future problem."""
    return Finding(name=name, verdict="warn", found=found, fix=clause(fix))


def fail(name: str, found: str, fix: str) -> Finding:
    """Return the result of a check that found a problem that keeps ctxd from working."""
    return Finding(name=name, verdict="fail", found=found, fix=clause(fix))


def lines(findings: Iterable[Finding], screen: Screen) -> Iterator[str]:
    """The findings for a person: one line each, and below it the fix, if one is needed."""
    for each in findings:
        mark, colour = _MARKS[each.verdict]
        yield f"{screen.paint(mark, colour)} {each.name:<28} {cell(each.found)}"
        if each.fix:
            yield f"  {'':<28} {screen.paint('fix: ' + cell(each.fix), 'dim')}"
