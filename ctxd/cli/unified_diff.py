"""Unified diffs of two texts, in the form that ``patch`` accepts."""

from ctxd.cli.common_options import Invocation
from ctxd.terminal import Colour, cell

_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "@": "cyan"}


def unified(before: str, after: str, before_name: str, after_name: str) -> list[str]:
    """The lines of the unified diff, each with its line feed; none if the texts are equal. Pure."""
    import difflib

    told: list[str] = []
    for line in difflib.unified_diff(_lines(before), _lines(after), cell(before_name), cell(after_name)):
        told.extend([line] if line.endswith("\n") else [f"{line}\n", "\\ No newline at end of file\n"])
    return told


def print_diff(run: Invocation, lines: list[str]) -> None:
    """The lines of a unified diff, coloured where that is wanted; a remark on standard error if there are none."""
    if not lines:
        run.screen.note("no difference")
    for line in lines:
        text = line.rstrip("\n")
        shown = cell(text) if run.screen.terminal else text
        colour = _COLOURS.get(text[:1])
        run.screen.line(run.screen.paint(shown, colour) if colour else shown)


def _lines(text: str) -> list[str]:
    # Only a line feed ends a line of a diff; splitlines would also split at form feeds and the like.
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])
