"""Unified diffs of two texts, in the form that ``patch`` accepts."""

from collections.abc import Sequence
from typing import Final

from ctxd.cli.common_options import Invocation
from ctxd.terminal import Colour, cell

_COLOURS: dict[str, Colour] = {"+": "green", "-": "red", "@": "cyan"}

_CONTEXT: Final = 3
"""Number of equal lines shown around each difference."""


def unified(before: str, after: str, before_name: str, after_name: str) -> list[str]:
    """The lines of the unified diff, each with its line feed; none if the texts are equal. Pure."""
    from difflib import SequenceMatcher

    if before == after:
        return []
    old, new = _lines(before), _lines(after)
    # The matcher compares each line with all equal lines. Long texts mostly differ in few places: it gets only these.
    first = max(0, _common(old, new) - _CONTEXT)
    old, new = old[first:], new[first:]
    last = max(0, _common(old[::-1], new[::-1]) - _CONTEXT)
    old, new = old[: len(old) - last], new[: len(new) - last]
    written = [f"--- {cell(before_name)}\n", f"+++ {cell(after_name)}\n"]
    for group in SequenceMatcher(None, old, new).get_grouped_opcodes(_CONTEXT):
        (_, old_start, _, new_start, _), (_, _, old_end, _, new_end) = group[0], group[-1]
        ranges = _range(first + old_start, old_end - old_start), _range(first + new_start, new_end - new_start)
        written.append("@@ -{} +{} @@\n".format(*ranges))
        for kind, old_start, old_end, new_start, new_end in group:
            if kind == "equal":
                written += [" " + line for line in old[old_start:old_end]]
            else:
                written += [*("-" + line for line in old[old_start:old_end])]
                written += [*("+" + line for line in new[new_start:new_end])]
    return [
        part
        for line in written
        for part in ([line] if line.endswith("\n") else [f"{line}\n", "\\ No newline at end of file\n"])
    ]


def print_diff(run: Invocation, lines: list[str]) -> None:
    """Print the lines of a unified diff, coloured if that is enabled; without lines, a note on standard error."""
    if not lines:
        run.screen.note("no difference")
    for line in lines:
        text = line.rstrip("\n")
        shown = cell(text) if run.screen.terminal else text
        colour = _COLOURS.get(text[:1])
        run.screen.line(run.screen.paint(shown, colour) if colour else shown)


def _lines(text: str) -> list[str]:
    # Only a line feed ends a line of a diff; splitlines would also split at form feeds, for example.
    *whole, rest = text.split("\n")
    return [f"{line}\n" for line in whole] + ([rest] if rest else [])


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """The number of equal lines at the start."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (a, b) in pairs if a != b), min(len(one), len(other)))


def _range(start: int, length: int) -> str:
    """A range of lines; an empty one is named by the line before it."""
    return f"{start + 1}" if length == 1 else f"{start + 1 if length else start},{length}"
